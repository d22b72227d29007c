"""Calls of aggregates split over the tasks of streams: partials of a vnode's rows, their merging, final values."""

from __future__ import annotations

from penstock.planner.bind.user_functions import called
from penstock.planner.duckdb_sql.duckdb_tree import call, fragment
from penstock.planner.functions.partials import Names, Partial, PartialColumn, field_column
from penstock.planner.functions.table import require
from penstock.planner.logical.group_values import AggregateCall
from penstock.planner.lower.duckdb.aggregate_sql import given_call, rows_in_order, user_call
from penstock.planner.task_plans.stream_plan import Accumulator, Field
from penstock.sql.types import BIGINT, DataType, Kind

_STATE = DataType(Kind.VARBINARY)


def split(found: AggregateCall, fresh: Names) -> Partial:
    """Returns how a call splits, of a function that does. NULL rules: tdengine.md 3.2, 7.10."""
    if found.user is not None:
        return _of_users(found, fresh)
    spec = require(found.function)
    assert spec.split is not None
    return spec.split(given_call(found), fresh)


def retractable(found: AggregateCall) -> bool:
    """Whether rows that go can be taken out of what is kept of a call, without loss; see `split_to_retract`."""
    if found.user is not None:
        return False
    kinds = require(found.function).retracts
    return kinds is not None and all(argument.type.kind in kinds for argument in found.arguments)


def split_to_retract(found: AggregateCall, fresh: Names) -> Partial:
    """Returns how a call splits so that rows may go: where there are no more values, they come to nothing.

    What only adds numbers has no other way to know it.
    """
    partial = split(found, fresh)
    if len(partial.parts) > 1 or require(found.function).counts:
        return partial
    count = Field(fresh(), BIGINT)
    counted = PartialColumn(Accumulator("add", (count,)), (call("count", found.arguments[0].node),))
    return Partial((*partial.parts, counted), fragment(
        "CASE WHEN :count > 0 THEN :value END", count=field_column(count.name), value=partial.final))


def _of_users(found: AggregateCall, fresh: Names) -> Partial:
    """States are made, merged and finished."""
    state = Field(fresh(), _STATE)
    rows = rows_in_order([argument.node for argument in found.arguments], found.row)
    made = called(user_call("partial", found), [rows])
    finished = called(user_call("finish", found), [field_column(state.name)])
    return Partial((PartialColumn(Accumulator("udaf", (state,), function=found.user), (made,)),), finished)
