"""A plan in which what can't be computed of a row or a group is NULL: no row stops a stream that leaves errors out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.planner.logical.group_values import AggregateCall, GroupValue
from penstock.planner.logical.operators import (
    Aggregate,
    Children,
    Filter,
    Join,
    OneRow,
    Operator,
    Project,
    Scan,
    Window,
)
from penstock.planner.logical.window_kinds import ByEvent, ByState
from penstock.planner.lower.targets import tolerant


def tolerant_plan(plan: Operator) -> Operator:
    """Returns such a plan. What ON compares is left as it is: by that rows find each other."""
    below: Any = plan
    match plan:
        case Scan() | Children() | OneRow():
            return plan
        case Join():
            return replace(plan, left=replace(plan.left, rows=tolerant_plan(plan.left.rows)),
                           right=replace(plan.right, rows=tolerant_plan(plan.right.rows)))
    found: Operator = replace(below, input=tolerant_plan(below.input))
    match found:
        case Project():
            return replace(found, columns=tuple(replace(item, value=tolerant(item.value)) for item in found.columns))
        case Filter():
            return replace(found, condition=tolerant(found.condition))
        case Window(shape=ByState(value)):
            return replace(found, shape=ByState(tolerant(value)))
        case Window(shape=ByEvent(start, end)):
            return replace(found, shape=ByEvent(tolerant(start), tolerant(end)))
        case Aggregate():
            return replace(found, calls=tuple(map(_tolerant_call, found.calls)))
    return found


def _tolerant_call(value: GroupValue) -> GroupValue:
    if not isinstance(value, AggregateCall):
        return value
    return replace(value, arguments=tuple(map(tolerant, value.arguments)))
