"""Calls of aggregates as DuckDB aggregates over grouped rows, and columns of the rows that they select.

Every tree is usable next to GROUP BY. Where rows tie, the earliest one and then the table with the lowest id win, so
that results depend on the rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from penstock.common.errors import InternalError, Position
from penstock.planner.duckdb_tree import Tree, call, fragment, null
from penstock.planner.functions.spec import FunctionSpec, check_call
from penstock.planner.functions.table import require
from penstock.planner.grouped_call import GroupedCall, RowKey, Selection, in_order
from penstock.planner.partials import Names, Partial, present_only
from penstock.planner.plan import SqlExpr
from penstock.planner.user_functions import bound_function
from penstock.sql.types import BIGINT, DataType, Kind, Precision

ALL_ROWS = SqlExpr(exp.Star(), BIGINT)
"""What `*` is as an argument of count."""


def aggregate(
    name: str, arguments: Sequence[SqlExpr], row: RowKey, node: exp.Expression | None = None, *,
    precision: Precision = "ms", position: Position | None = None,
) -> SqlExpr:
    """Returns the DuckDB aggregate for a call of the dialect.

    `arguments` are compiled. `node` is the call, which may be bound to a user's function. `histogram` gives a list of
    texts to unnest. Raises InvalidStatementError for arguments that do not fit; InternalError for functions that are
    not computed per group (diff, top, ...).
    """
    bound = bound_function(node)
    if bound is not None:
        return bound.aggregate(arguments, row, precision, position)
    spec, given = _checked(name, arguments, row, precision, position)
    if given.arguments[0].type.kind is Kind.NULL and not spec.counts:
        return SqlExpr(call("max", null(given.result.duckdb())), given.result)
    if spec.aggregate is None:
        raise InternalError(f"{name} is not computed per group")
    return SqlExpr(spec.aggregate(given), given.result)


def split(
    name: str, arguments: Sequence[SqlExpr], row: RowKey, fresh: Names, *, precision: Precision = "ms",
    position: Position | None = None,
) -> tuple[Partial, DataType] | None:
    """Returns how an aggregate splits and its type, or None if it does not (it then cannot run in a stream).

    Raises InvalidStatementError for arguments that do not fit. NULL rules: tdengine.md 3.2, 7.10.
    """
    spec, given = _checked(name, arguments, row, precision, position)
    return None if spec.split is None else (spec.split(given, fresh), given.result)


def companion(name: str, selected: SqlExpr, column: SqlExpr, row: RowKey) -> SqlExpr:
    """Returns a plain column's value from the row that min, max, first, last or last_row picks by `selected`."""
    selection = selection_of(name)
    function = "arg_min_null" if selection.ascending else "arg_max_null"
    found = call(function, column.node, row.rank(selection, selected.node))
    return SqlExpr(present_only(found, selected.node) if selection.present else found, column.type)


def rows_by_value(selected: SqlExpr, column: SqlExpr, row: RowKey) -> Tree:
    """Returns an aggregate: the list of STRUCT(v, c), value and column of all rows with a value, by time."""
    item = fragment("{'v': :value, 'c': :column}", value=selected.node, column=column.node)
    return present_only(in_order(item, row), selected.node)


def selection_of(name: str) -> Selection:
    """Returns which row a selection function takes."""
    found = require(name).selects
    assert found is not None
    return found


def _checked(
    name: str, arguments: Sequence[SqlExpr], row: RowKey, precision: Precision, position: Position | None
) -> tuple[FunctionSpec, GroupedCall]:
    spec = require(name, position)
    result = check_call(spec, [argument.type for argument in arguments], [argument.constant for argument in arguments],
                        precision=precision, position=position)
    return spec, GroupedCall(name, tuple(arguments), result, row, precision, position)
