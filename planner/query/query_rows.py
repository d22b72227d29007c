"""Queries whose result rows are rows of the source: projections, and functions that pick rows or run along them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from penstock.planner.bind.binder import Relation
from penstock.planner.bind.grouping import distinct_calls
from penstock.planner.bind.query_parts import Planned
from penstock.planner.bind.result_scopes import CalledScope, RowResultScope
from penstock.planner.bind.scopes import NOT_ALLOWED_FUNCTION, fingerprint
from penstock.planner.bind.timeseries import checked_call, picking, time_series
from penstock.planner.duckdb_sql.duckdb_tree import column
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.operators import ROW, Pick, RowCall, SeriesValues
from penstock.planner.logical.window_kinds import START
from penstock.planner.query.query_context import QueryContext
from penstock.planner.query.window_steps import assign_windows
from penstock.sql.tree.statements import JoinSource

GROUP_LACKS_EXPRESSION = 0x260A


def plan_rows(query: QueryContext) -> Planned:
    """No function over several rows: one result row per row."""
    scope = RowResultScope(query.scope, query.keys)
    if query.having is not None:
        raise query.builder.error("HAVING needs an aggregate", query.having, code=GROUP_LACKS_EXPRESSION)
    outputs = [query.output(item, scope, query.compiled(item.expression, scope)) for item in query.items]
    terms = query.order_terms(outputs, lambda node: query.compiled(node, scope))
    joined = isinstance(query.select.source, JoinSource) and query.builder.ordered
    return query.finish(query.relation.plan, outputs, terms, sort=joined, scope=scope,
                        default=lambda: [*query.key_columns, *query.relation.order])


def plan_series(query: QueryContext) -> Planned:
    """DIFF, CSUM and their kin."""
    calls = distinct_calls(query.calls, query.scope)
    query.only_calls(calls, lambda spec: spec.along is not None)
    arguments = query.scope.within("an argument")
    checked = [checked_call(call, arguments) for call in calls]
    row_calls, line = time_series(checked, query.relation, query.key_columns, query.builder, arguments)
    relation = query.relation.over(lambda below: SeriesValues(below, row_calls, line, query.labels))
    return _plan_called(query, calls, row_calls, relation)


def plan_picked(query: QueryContext) -> Planned:
    """TOP, UNIQUE and their kin: rows are picked per group or window, and shown."""
    calls = distinct_calls(query.calls, query.scope)
    if len(calls) > 1:
        raise query.builder.error(
            f"{calls[0].this}() gives several rows and cannot stand next to {calls[1].this}()", calls[1],
            code=NOT_ALLOWED_FUNCTION)
    call = checked_call(calls[0], query.scope.within("an argument"))
    # In a WINDOW JOIN they are picked from what each driving row met, as aggregates are computed over it.
    keys = [*query.key_columns, *([ROW] if query.relation.driver is not None else [])]
    if query.select.window is not None:
        keys = assign_windows(query, borders=lambda: True)
        call = checked_call(calls[0], query.scope.within("an argument"))
    picked, line = picking(call, query.relation, keys, query.builder)
    relation = query.relation.over(lambda below: Pick(
        below, picked, line, query.builder.session.now_ms, query.select.window, query.labels))
    return _plan_called(query, calls, [picked], relation)


def _plan_called(
    query: QueryContext, calls: Sequence[exp.Anonymous], columns: Sequence[RowCall], relation: Relation
) -> Planned:
    known = {fingerprint(call, query.scope): SqlExpr(column(found.name), found.type)
             for call, found in zip(calls, columns, strict=True)}
    query.move(relation)
    scope = CalledScope(query.scope, query.keys, known, windowed=query.select.window is not None)
    outputs = [query.output(item, scope, query.compiled(item.expression, scope)) for item in query.items]
    terms = query.order_terms(outputs, lambda node: query.compiled(node, scope))
    window = [START] if query.select.window else []
    return query.finish(relation.plan, outputs, terms, having=query.compiled_having(scope), sort=True, scope=scope,
                        default=lambda: [*query.key_columns, *window, *relation.order])
