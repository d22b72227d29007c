"""What no stream can be, whatever its trigger and its table."""

from __future__ import annotations

from sqlglot import exp

from penstock.common.errors import InvalidStreamError
from penstock.planner.bind.query_parts import is_star
from penstock.planner.bind.scopes import QUERIES, require_vector, vector_calls
from penstock.planner.bind.user_functions import function_of
from penstock.planner.duckdb_sql.interval_windows import check_interval
from penstock.planner.functions.table import FUNCTIONS
from penstock.planner.streams.stream_context import StreamContext
from penstock.sql.dialect.literals import position
from penstock.sql.tree.expression_nodes import source_range
from penstock.sql.tree.statements import (
    CreateStream,
    Cte,
    FunctionSource,
    IntervalWindow,
    JoinSource,
    SubquerySource,
    ValuesQuery,
)
from penstock.sql.tree.walking import found_in

FUNCTION_NOT_ALLOWED = 0x265A


def refuse_queries(statement: CreateStream) -> None:
    """Raises InvalidStreamError for what queries have beside those in FROM: streams compute none of it."""
    for source in found_in(statement.query, JoinSource, SubquerySource, FunctionSource, ValuesQuery):
        what, hint = _refused_source(source)
        if what:
            raise InvalidStreamError(f"{what} is not allowed in a stream", hint=hint)
    if not statement.query.nests and not statement.query.ctes:
        return
    for found in found_in(statement.query, Cte, exp.Filter, exp.Window, exp.Anonymous, *QUERIES):
        if isinstance(found, Cte):
            raise InvalidStreamError("WITH is not allowed in a stream", hint="write the query into FROM")
        what = "sub-queries in expressions"
        if isinstance(found, exp.Filter | exp.Window):
            what = "FILTER and OVER"
        elif isinstance(found, exp.Any | exp.All):
            what = "ANY and ALL"
        elif isinstance(found, exp.Anonymous):
            if not found.args.get("distinct") and found.args.get("order") is None:
                continue
            what = "DISTINCT and ORDER BY in calls"
        start, end = source_range(found)
        raise InvalidStreamError(
            f"{what} are not allowed in a stream",
            position=position(statement.source_text, start - statement.source_start, end - start),
            hint="join the table, or query the result table with it")


def _refused_source(source: JoinSource | SubquerySource | FunctionSource | ValuesQuery) -> tuple[str, str | None]:
    if isinstance(source, ValuesQuery):
        return "VALUES", "put the rows into a table"
    if isinstance(source, FunctionSource):
        return f"{source.call.this}() in FROM", None
    if isinstance(source, SubquerySource):
        named = "a list of column names behind a sub-query" if source.columns else ""
        return "LATERAL" if source.lateral else named, "name the columns in the sub-query" if named else None
    if source.using or source.natural:
        return "USING" if source.using else "NATURAL", "write ON"
    if source.nearest:
        return f"ASOF {source.kind.upper()} JOIN", "write LEFT ASOF JOIN"
    plain_semi = source.variant and source.kind == "inner"
    return f"{source.variant.upper()} JOIN" if plain_semi else "", f"write LEFT {source.variant.upper()} JOIN"


def check_shape(stream: StreamContext) -> None:
    """Raises InvalidStreamError for clauses and pseudo columns that streams don't have."""
    query = stream.query
    refused = (
        (query.group_by, "GROUP BY is not allowed in a stream", "use PARTITION BY"),
        (query.order_by, "ORDER BY is not allowed in a stream", None),
        (query.having, "HAVING is not allowed in a stream", "filter the result table when you query it"),
        (query.qualify, "QUALIFY is not allowed in a stream", None),
        (query.limit, "LIMIT is not allowed in a stream", None),
        (query.slimit, "SLIMIT is not allowed in a stream", None),
        (query.distinct or query.distinct_on, "DISTINCT is not allowed in a stream", None),
        (query.windows, "WINDOW is not allowed in a stream", None),
        (query.tags_only, "SELECT TAGS is not allowed in a stream", None),
        (query.into_file, "a stream writes into a table, not a file", None),
    )
    for clause, message, hint in refused:
        if clause:
            raise InvalidStreamError(message, hint=hint)
    for expression in (*(item.expression for item in query.items), *([query.where] if query.where else [])):
        for node in found_in(expression, exp.Column):
            spec = FUNCTIONS.get(node.name)
            if spec is not None and not spec.in_stream and not stream.rows.has_column(node.name):
                raise InvalidStreamError(f"{spec.name} is not allowed in a stream", code=FUNCTION_NOT_ALLOWED,
                                         position=stream.position(node))
    for call in found_in(stream.statement, exp.Anonymous):
        spec = function_of(call)
        if spec is not None and spec.category == "scalar" and not spec.in_stream:
            raise InvalidStreamError(f"{spec.name}() is not allowed in a stream: it gives another value whenever it is "
                                     "computed", code=FUNCTION_NOT_ALLOWED, position=stream.position(call))
    if query.window is None and stream.join is None:
        _check_no_aggregates(stream)


def _check_no_aggregates(stream: StreamContext) -> None:
    """Refuses functions over several rows in a stream without a window, INTERP aside."""
    for call in stream.calls:
        spec = require_vector(call)
        if spec.in_stream and not spec.instants:
            raise InvalidStreamError(f"{call.this} needs a window in a stream", position=stream.position(call),
                                     hint="add INTERVAL(10s), for example")


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
