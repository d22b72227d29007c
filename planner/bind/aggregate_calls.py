"""Calls of functions over groups of rows, bound: what is called is checked, and its type known."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from penstock.common.errors import Position
from penstock.planner.bind.user_functions import bound_function
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.duckdb_calls import OF_DUCKDB, meant
from penstock.planner.functions.grouped_call import GroupedCall, Selection
from penstock.planner.functions.spec import check_call
from penstock.planner.functions.table import require
from penstock.planner.logical.group_values import AggregateCall, RowKey
from penstock.sql.types import BIGINT, Precision

ALL_ROWS = SqlExpr(exp.Star(), BIGINT)
"""What `*` is as an argument of count."""


def aggregate_call(
    name: str, function: str, arguments: Sequence[SqlExpr], row: RowKey, node: exp.Expression | None = None, *,
    precision: Precision = "ms", position: Position | None = None,
) -> AggregateCall:
    """Returns a call of the dialect as the column `name` of groups.

    `node` is the call, which may be bound to a user's function. Raises InvalidStatementError for arguments that do not
    fit.
    """
    bound = bound_function(node)
    if bound is not None:
        return bound.aggregate(name, arguments, row, node, precision, position)
    named = require(function, position)
    spec = meant(named, arguments)
    if spec is not named:
        function = OF_DUCKDB + function
    result = check_call(spec, [argument.type for argument in arguments], [argument.constant for argument in arguments],
                        precision=precision, position=position)
    if spec.check is not None:
        spec.check(GroupedCall(function, tuple(arguments), result, row, position))
    if spec.typed is not None:
        result = spec.typed(GroupedCall(function, tuple(arguments), result, row, position))
    return AggregateCall(name, function, tuple(arguments), row, result, node)


def selection_of(function: str) -> Selection:
    """Returns which row a selection function takes."""
    found = require(function).selects
    assert found is not None
    return found
