"""What is computed of groups as DuckDB aggregates over grouped rows; every tree is usable next to GROUP BY.

Where rows tie, the earliest one and then the table with the lowest id win, so that results depend on the rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from penstock.common.errors import InternalError
from penstock.planner.bind.aggregate_calls import selection_of
from penstock.planner.bind.user_functions import called
from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, column, fragment, made, null
from penstock.planner.functions.grouped_call import GroupedCall, in_order, rank
from penstock.planner.functions.partials import present_only
from penstock.planner.functions.table import require
from penstock.planner.functions.taken_rows import taking
from penstock.planner.logical.group_values import (
    AggregateCall,
    Covered,
    GroupValue,
    KeysLeftOut,
    PickedColumn,
    RowKey,
    RowTotal,
    SharedValue,
)
from penstock.planner.logical.operators import ROWS, Aggregate, Operator, Shared, inputs_of
from penstock.planner.task_plans.user_calls import Step, UserCall
from penstock.sql.types import Kind


def aggregate(value: GroupValue) -> Tree:
    """Returns the aggregate; that of a histogram is a list of texts to unnest."""
    match value:
        case AggregateCall():
            return _called(value)
        case PickedColumn():
            return _rows_by_value(value) if require(value.function).selects_equal else _picked(value)
        case Covered():
            return _covered(value)
        case SharedValue():
            return fragment("any_value(:value)", value=value.value.node)
        case KeysLeftOut(keys=keys):
            return call("grouping", *map(column, keys))
        case RowTotal():
            return fragment("coalesce(sum(:rows), 0)::BIGINT", rows=column(ROWS))


def given_call(found: AggregateCall) -> GroupedCall:
    """Returns a call as the builders of functions take it."""
    return GroupedCall(found.function, found.arguments, found.type, found.row)


def user_call(step: Step, found: AggregateCall) -> UserCall:
    """Returns which step of a user's function such a call needs."""
    assert found.user is not None
    return UserCall(step, found.user, tuple(argument.type for argument in found.arguments), found.type)


def rows_in_order(values: Sequence[Tree], row: RowKey) -> Tree:
    """Returns an aggregate: the list of a group's rows, as structs of the values a0, a1, ..., along the time line."""
    members = [made(exp.PropertyEQ, this=exp.to_identifier(f"a{n}"), expression=value)
               for n, value in enumerate(values)]
    return in_order(call("struct_pack", *members), row)


def users_aggregates(plan: Operator) -> Iterator[UserCall]:
    """Yields the calls of users' aggregates in a plan."""
    pending, shared = [plan], set[str]()
    while pending:
        operator = pending.pop()
        if isinstance(operator, Shared):
            if operator.key in shared:
                continue
            shared.add(operator.key)
        pending += inputs_of(operator)
        if isinstance(operator, Aggregate):
            yield from (user_call("aggregate", found) for found in operator.calls
                        if isinstance(found, AggregateCall) and found.user is not None)


def _called(found: AggregateCall) -> Tree:
    if found.user is not None:
        arguments = [argument.node for argument in found.arguments]
        return called(user_call("aggregate", found), [rows_in_order(arguments, found.row)])
    spec = require(found.function)
    if found.arguments[0].type.kind is Kind.NULL and not spec.counts and spec.typed is None:
        return call("max", null(found.type.duckdb()))
    if spec.aggregate is None:
        raise InternalError(f"{found.function} is not computed per group")
    tree = spec.aggregate(given_call(found))
    return tree if found.taken is None else taking(tree, found.taken, [value.node for value in found.arguments])


def _picked(found: PickedColumn) -> Tree:
    """The column in the row that min, max, first, last or last_row picks."""
    selection = selection_of(found.function)
    function = "arg_min_null" if selection.ascending else "arg_max_null"
    value = call(function, found.column.node, rank(found.row, selection, found.by.node))
    return present_only(value, found.by.node) if selection.present else value


def _rows_by_value(found: PickedColumn) -> Tree:
    item = fragment("{'v': :value, 'c': :column}", value=found.by.node, column=found.column.node)
    return present_only(in_order(item, found.row), found.by.node)


def _covered(found: Covered) -> Tree:
    """Sums over the stretches between a row and its neighbours, cut at the window's borders."""
    by_stretches = require(found.function).by_stretches
    assert by_stretches is not None
    return by_stretches(found)
