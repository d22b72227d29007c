"""What no stream can be, whatever its trigger and its table."""

from __future__ import annotations

from sqlglot import exp

from penstock.common.errors import InvalidStreamError
from penstock.planner.bind.query_parts import is_star
from penstock.planner.bind.scopes import require_vector, vector_calls
from penstock.planner.bind.user_functions import function_of
from penstock.planner.duckdb_sql.interval_windows import check_interval
from penstock.planner.functions.table import FUNCTIONS
from penstock.planner.streams.stream_context import StreamContext
from penstock.sql.tree.statements import (
    IntervalWindow,
)
from penstock.sql.tree.walking import found_in

FUNCTION_NOT_ALLOWED = 0x265A


def check_shape(stream: StreamContext) -> None:
    """Raises InvalidStreamError for clauses and pseudo columns that streams don't have."""
    query = stream.query
    if query.tags_only:
        raise InvalidStreamError("SELECT TAGS is not allowed in a stream")
    for expression in (*(item.expression for item in query.items), *([query.where] if query.where else [])):
        for node in found_in(expression, exp.Column):
            spec = FUNCTIONS.get(node.name)
            if spec is not None and not spec.in_stream and not stream.rows.has_column(node.name):
                raise InvalidStreamError(f"{spec.name} is not allowed in a stream", code=FUNCTION_NOT_ALLOWED,
                                         position=stream.position(node))
    given = (stream.statement.query, stream.statement.target)  # what a trigger has computed is asked when it fires
    for call in (call for part in given for call in found_in(part, exp.Anonymous)):
        spec = function_of(call)
        if spec is not None and spec.category == "scalar" and not spec.in_stream:
            raise InvalidStreamError(f"{spec.name}() is not allowed in a stream: its value differs between calls",
                                     code=FUNCTION_NOT_ALLOWED, position=stream.position(call))


def check_window(stream: StreamContext) -> None:
    """Checks the numbers of INTERVAL; raises InvalidStreamError or InvalidStatementError."""
    window = stream.query.window
    if isinstance(window, IntervalWindow):
        check_interval(window, stream.precision)
        if window.offset == "auto":
            raise InvalidStreamError("a stream cannot have INTERVAL(..., AUTO)", hint="write the offset")


def check_aggregates(stream: StreamContext) -> None:
    """Raises InvalidStreamError for what can't be computed of the windows of a stream by event time."""
    interval = isinstance(stream.query.window, IntervalWindow)
    for item in stream.query.items:
        if is_star(item.expression):
            raise InvalidStreamError("`*` is not allowed next to a window", hint="name the columns")
        for call in vector_calls(item.expression):
            spec = require_vector(call)
            if spec.only_force_window_close:
                raise InvalidStreamError(f"{spec.name} needs TRIGGER FORCE_WINDOW_CLOSE in a stream",
                                         code=FUNCTION_NOT_ALLOWED, position=stream.position(call))
            if not spec.in_stream:
                raise InvalidStreamError(f"{spec.name} is not allowed in a stream", code=FUNCTION_NOT_ALLOWED,
                                         position=stream.position(call))
            if spec.not_in_interval and interval:
                raise InvalidStreamError(f"{spec.name} cannot be combined with INTERVAL", code=FUNCTION_NOT_ALLOWED,
                                         position=stream.position(call), hint="use last")
