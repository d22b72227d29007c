"""A plan in which what can't be computed of a row or a group is NULL: no row stops a stream that leaves errors out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import Tree, made, or_null
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.group_values import AggregateCall, GroupValue
from penstock.planner.logical.operators import (
    Aggregate,
    Children,
    Filter,
    Join,
    JoinKey,
    Lookup,
    OneRow,
    Operator,
    Project,
    Scan,
    Window,
)
from penstock.planner.logical.window_kinds import ByEvent, ByState
from penstock.planner.lower.targets import tolerant

_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between)


def tolerant_plan(plan: Operator) -> Operator:
    """Returns such a plan."""
    below: Any = plan
    match plan:
        case Scan() | Children() | OneRow():
            return plan
        case Join():
            return replace(plan, left=replace(plan.left, rows=tolerant_plan(plan.left.rows)),
                           right=replace(plan.right, rows=tolerant_plan(plan.right.rows)),
                           condition=_tolerant_condition(plan.condition), keys=tuple(map(_tolerant_key, plan.keys)))
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


def tolerant_lookup(plan: Operator) -> Operator:
    """Returns a plan whose rows don't find those that ON can't compare them with; else it is left as it is."""
    match plan:
        case Scan():
            return plan
        case Lookup():
            return plan if plan.on is None else replace(plan, on=_tolerant_condition(plan.on))
    below: Any = plan
    found: Operator = replace(below, input=tolerant_lookup(below.input))
    return found


def _tolerant_key(key: JoinKey) -> JoinKey:
    return replace(key, left=tolerant(key.left), right=tolerant(key.right), equal=_tolerant_condition(key.equal))


def _tolerant_condition(condition: SqlExpr) -> SqlExpr:
    """Returns what ON says so that rows with which it can't be computed don't find each other, as with NULL.

    What it compares stays compared: by that DuckDB tells how it finds pairs without trying all.
    """
    return SqlExpr(_tolerant_tree(condition.node), condition.type)


def _tolerant_tree(tree: Tree) -> Tree:
    connects = isinstance(tree, exp.And | exp.Paren)
    if not connects and not isinstance(tree, _COMPARISONS):
        return or_null(tree)
    of_part: Callable[[Tree], Tree] = _tolerant_tree if connects else or_null
    return made(type(tree), **{name: of_part(part) for name, part in tree.args.items() if part is not None})


def _tolerant_call(value: GroupValue) -> GroupValue:
    if not isinstance(value, AggregateCall):
        return value
    return replace(value, arguments=tuple(map(tolerant, value.arguments)))
