"""Queries that need nothing of rows but their number, and their first and last times: COUNT, MIN(ts) and their kin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from penstock.common.errors import InternalError
from penstock.planner.bind.binder import STAR, Plan
from penstock.planner.bind.given_instants import is_given_range
from penstock.planner.bind.query_parts import is_star
from penstock.planner.bind.scopes import columns_of
from penstock.planner.bind.time_range import is_time_range
from penstock.planner.logical.group_values import AggregateCall, GroupValue, RowTotal
from penstock.planner.logical.operators import Aggregate, Operator
from penstock.planner.query.query_context import QueryContext
from penstock.sql.tree.walking import conjuncts, unwrapped

_OF_TIMES = ("min", "max", "first", "last", "last_row", "spread")


def note_counted_rows(query: QueryContext, calls: Sequence[exp.Anonymous]) -> bool:
    """Lets the scan of a query tell rows by their number, if it needs nothing else of them; returns whether it does.

    That is so for functions of the time line alone, over all rows in a range of time.
    """
    select, relation = query.select, query.relation
    if (query.builder.of_stream or select.window is not None or query.keys or not calls or relation.driver is not None
            or len(relation.times) != 1 or relation.table is None or relation.table.kind not in ("super", "normal")):
        return False
    _, slot = relation.times[0]
    if slot is None or slot.cuts is not None or slot.tuids is not None:
        return False
    if not all(_counts(query, call) for call in calls) or not all(
            _is_time(query, column) for node in query.result_nodes() for column in columns_of(node)):
        return False
    if not all(is_time_range(node, query.scope, relation.time) or is_given_range(node, query.scope, relation.time)
               for node in conjuncts(select.where)):
        return False
    if query.has_queries:
        return False
    slot.counted = True
    return True


def totalled(plan: Plan) -> Plan:
    """Returns the groups of a counted scan: what counts rows adds up how many each stands for."""
    def totals() -> Operator:
        found = plan()
        if not isinstance(found, Aggregate):
            raise InternalError("rows that were counted are in no group")
        return replace(found, calls=tuple(map(_total, found.calls)))

    return totals


def _total(value: GroupValue) -> GroupValue:
    return RowTotal(value.name) if isinstance(value, AggregateCall) and value.function == "count" else value


def _counts(query: QueryContext, call: exp.Anonymous) -> bool:
    """Whether a call counts rows, or is of the time line alone."""
    name, arguments = str(call.this).lower(), call.expressions
    if len(arguments) != 1:
        return False
    argument = unwrapped(arguments[0])
    if name == "count":
        return is_star(argument) or _is_time(query, argument)
    return name in _OF_TIMES and _is_time(query, argument)


def _is_time(query: QueryContext, node: exp.Expression) -> bool:
    if not isinstance(node, exp.Column) or STAR in node.meta or is_star(node):
        return False
    return query.scope.find(node) is query.relation.time
