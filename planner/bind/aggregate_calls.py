"""Calls of functions over groups of rows, bound: what is called is checked, and its type known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.bind.user_functions import bound_function
from penstock.planner.duckdb_sql.duckdb_tree import VOLATILE, Tree, called
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.duckdb_calls import meant
from penstock.planner.functions.grouped_call import GroupedCall, Selection
from penstock.planner.functions.spec import FunctionSpec, check_call
from penstock.planner.functions.table import name_in_plans, require
from penstock.planner.functions.taken_rows import taking
from penstock.planner.logical.group_values import AggregateCall, OrderedBy, RowKey, Taken
from penstock.planner.scalar.scalar_cast import to_bool
from penstock.sql.types import BIGINT, BOOL, Precision

ALL_ROWS = SqlExpr(exp.Star(), BIGINT)
"""What `*` is as an argument of count."""


def aggregate_call(
    name: str, function: str, arguments: Sequence[SqlExpr], row: RowKey, node: exp.Expression | None = None, *,
    precision: Precision = "ms", taken: Taken | None = None,
) -> AggregateCall:
    """Returns a call of the dialect as the column `name` of groups.

    `node` is the call, which may be bound to a user's function; `taken`: which rows it takes. Raises
    InvalidStatementError, without a place, for arguments that do not fit, and for DISTINCT and ORDER BY where they have
    no meaning.
    """
    bound = bound_function(node)
    if bound is not None:
        if taken is not None:
            raise InvalidStatementError(f"{function}() takes no DISTINCT, ORDER BY or FILTER")
        return bound.aggregate(name, arguments, row, node, precision)
    spec = meant(require(function), arguments)
    function = name_in_plans(spec)
    result = check_call(spec, [argument.type for argument in arguments], [argument.constant for argument in arguments],
                        precision=precision)
    if spec.check is not None:
        spec.check(GroupedCall(spec.name, tuple(arguments), result, row))
    if spec.typed is not None:
        result = spec.typed(GroupedCall(spec.name, tuple(arguments), result, row))
    if taken is not None:
        _check_taken(GroupedCall(spec.name, tuple(arguments), result, row), spec, taken)
    return AggregateCall(name, function, tuple(arguments), row, result, node, taken=taken)


def taken_rows(node: exp.Expression, value: Callable[[exp.Expression], SqlExpr]) -> Taken | None:
    """Returns which rows a call takes, as it says by DISTINCT, ORDER BY and FILTER, with `value` of what is in these.

    None if it doesn't say.
    """
    distinct, order, condition = (node.args.get(key) for key in ("distinct", "order", "condition"))
    if not distinct and order is None and condition is None:
        return None
    terms = () if order is None else tuple(
        OrderedBy(value(term.this), term.args["desc"], term.args["nulls_first"]) for term in order.expressions)
    return Taken(bool(distinct), terms, None if condition is None else SqlExpr(to_bool(value(condition)), BOOL))


def _check_taken(call: GroupedCall, spec: FunctionSpec, taken: Taken) -> None:
    along_time = spec.needs_time or spec.selects_equal or (spec.selects is not None and not spec.selects.by_value)
    if spec.aggregate is None or along_time:
        what = "DISTINCT" if taken.distinct else "ORDER BY"
        raise InvalidStatementError(
            f"{call.name}() takes no {what}: it depends on the order of time",
            hint="write any_value(x), arg_min(x, by) or arg_max(x, by)")
    values = [argument.node for argument in call.arguments]
    if taken.distinct and any(isinstance(value, exp.Star) for value in values):
        raise InvalidStatementError(f"{call.name}(DISTINCT *) is not possible: name a column")
    if taken.distinct and not all(_is_made_of(term.value.node, values) for term in taken.order):
        raise InvalidStatementError(f"ORDER BY beside DISTINCT must be made of arguments of {call.name}()")
    try:
        taking(spec.aggregate(call), taken, values)
    except InvalidStatementError as error:
        raise InvalidStatementError(f"{call.name}(): {error.message}") from error


def _is_made_of(tree: Tree, values: Sequence[Tree]) -> bool:
    """Whether a tree reads nothing but the values."""
    return not any(part not in values and (isinstance(part, exp.Column | exp.Query) or called(part) in VOLATILE)
                   for part in tree.walk(prune=lambda part: part in values))


def selection_of(function: str) -> Selection:
    """Returns which row a selection function takes."""
    found = require(function).selects
    assert found is not None
    return found
