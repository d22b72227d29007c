"""Queries whose result rows are rows of the source: projections, and functions that pick rows or run along them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from penstock.planner.binder import Relation, Tree
from penstock.planner.expressions import compile_condition
from penstock.planner.grouping import distinct_calls
from penstock.planner.plan import SqlExpr
from penstock.planner.query_context import QueryContext
from penstock.planner.query_parts import Planned, over_node, window_text
from penstock.planner.result_scopes import CalledScope, RowResultScope
from penstock.planner.scopes import NOT_ALLOWED_FUNCTION, fingerprint, with_placeholders
from penstock.planner.timeseries import ROW_RULES, checked_call, picked_rows, time_series
from penstock.planner.window_steps import assign_windows
from penstock.sql.statements import JoinSource

GROUP_LACKS_EXPRESSION = 0x260A


def plan_rows(query: QueryContext) -> Planned:
    """No function over several rows: one result row per row."""
    scope = RowResultScope(query.scope, query.keys)
    if query.having is not None:
        raise query.builder.error("HAVING needs an aggregate", query.having, code=GROUP_LACKS_EXPRESSION)
    outputs = [query.output(item, scope, query.compiled(item.expression, scope)) for item in query.items]
    terms = query.order_terms(outputs, lambda node: query.compiled(node, scope))
    joined = isinstance(query.select.source, JoinSource) and query.builder.ordered
    default = [*query.key_columns, *query.relation.order] if query.select.partition_by or joined else []
    return query.finish(query.relation.name, outputs, terms, query.relation.tree, default=default, sort=joined)


def plan_series(query: QueryContext) -> Planned:
    """DIFF, CSUM and their kin."""
    calls = distinct_calls(query.calls, query.scope)
    query.only_calls(calls, set(ROW_RULES))
    arguments = query.scope.within("an argument")
    checked = [checked_call(call, arguments) for call in calls]
    relation, values = time_series(checked, query.relation, query.key_columns, query.builder, arguments)
    names = " ".join(call.name for call in checked)
    tree = over_node(relation.tree, "Series", ("functions", names), *_by(query))
    return _plan_called(query, calls, values, relation, tree)


def plan_picked(query: QueryContext) -> Planned:
    """TOP, UNIQUE and their kin: rows are picked per group or window, and shown."""
    calls = distinct_calls(query.calls, query.scope)
    if len(calls) > 1:
        raise query.builder.error(
            f"{calls[0].this}() gives several rows and cannot stand next to {calls[1].this}()", calls[1],
            code=NOT_ALLOWED_FUNCTION)
    call = checked_call(calls[0], query.scope.within("an argument"))
    keys = query.key_columns
    if query.select.window is not None:
        keys = assign_windows(query, borders=True)
        call = checked_call(calls[0], query.scope.within("an argument"))
    relation, value = picked_rows(call, query.relation, keys, query.builder, query.builder.session.now_ms)
    tree = over_node(relation.tree, "Pick", ("function", call.name), *_by(query))
    return _plan_called(query, calls, [value], relation, tree)


def _by(query: QueryContext) -> list[tuple[str, str]]:
    parts = [window_text(query.select.window)] if query.select.window is not None else []
    parts += [key.text for key in query.keys if key.partitions]
    return [("by", " ".join(parts))] if parts else []


def _plan_called(
    query: QueryContext, calls: Sequence[exp.Anonymous], values: Sequence[SqlExpr], relation: Relation, tree: Tree
) -> Planned:
    known = {fingerprint(call, query.scope): value for call, value in zip(calls, values, strict=True)}
    query.move(relation)
    scope = CalledScope(query.scope, query.keys, known, windowed=query.select.window is not None)
    outputs = [query.output(item, scope, query.compiled(item.expression, scope)) for item in query.items]
    terms = query.order_terms(outputs, lambda node: query.compiled(node, scope))
    having = None
    if query.having is not None:
        having = compile_condition(with_placeholders(query.having, query.keys, query.scope), scope)
    default = [*query.key_columns, *(['"#ws"'] if query.select.window else []), *relation.order]
    return query.finish(relation.name, outputs, terms, tree, default=default, having=having, sort=True)
