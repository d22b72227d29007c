"""Queries with INTERP."""

from __future__ import annotations

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.filling import fill_values
from penstock.planner.bind.grouping import distinct_calls
from penstock.planner.bind.query_parts import Planned
from penstock.planner.bind.result_scopes import InterpScope
from penstock.planner.bind.scopes import NO_TIME_LINE, NOT_ALLOWED_FUNCTION, RowScope, fingerprint
from penstock.planner.bind.time_range import time_constant
from penstock.planner.bind.timeseries import checked_call
from penstock.planner.duckdb_sql.duckdb_tree import column
from penstock.planner.duckdb_sql.fill import FILL_RANGE, MAX_FILLED
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import Line
from penstock.planner.logical.operators import AT, Interpolate, Interpolated, Parameter, WindowGrid
from penstock.planner.query.query_context import QueryContext


def plan_interp(query: QueryContext) -> Planned:
    """INTERP: one result row per group and instant of the grid."""
    select, builder, relation = query.select, query.builder, query.relation
    calls = distinct_calls(query.calls, query.scope)
    query.only_calls(calls, lambda spec: spec.instants)
    if select.window is not None or select.group_by:
        raise builder.error("interp() cannot be used with a window or GROUP BY", calls[0],
                            code=NOT_ALLOWED_FUNCTION, hint="use PARTITION BY")
    if relation.time is None:
        raise builder.error("interp() needs a time line", calls[0], code=NO_TIME_LINE)
    grid = _interp_grid(query)
    checked = [checked_call(call, query.scope.within("an argument")) for call in calls]
    assert select.fill is not None
    mode = select.fill.mode
    types = [call.type for call in checked]
    constants = fill_values(select.fill, types, query.scope)
    values = tuple(
        Interpolated(f"#i{index}", SqlExpr(call.arguments[0].node, call.type), call.integer(1) == 1,
                     constants[index] if constants else None) for index, call in enumerate(checked))
    line = Line(tuple(query.key_columns), relation.order)
    known = {fingerprint(call, query.scope): SqlExpr(column(value.name), found.type)
             for call, found, value in zip(calls, checked, values, strict=True)}
    scope = InterpScope(query.scope, query.keys, known)
    outputs = [query.output(item, scope, query.compiled(item.expression, scope)) for item in query.items]
    terms = query.order_terms(outputs, lambda node: query.compiled(node, scope))
    return query.finish(lambda: Interpolate(relation.plan(), values, line, grid, mode), outputs, terms,
                        default=lambda: [*query.key_columns, AT], sort=True, scope=scope)


def _interp_grid(query: QueryContext) -> WindowGrid:
    select, precision = query.select, query.scope.precision
    if select.range is None or select.fill is None:
        raise InvalidStatementError("INTERP needs RANGE and FILL", code=NOT_ALLOWED_FUNCTION,
                                    hint="write RANGE(first, last) EVERY(step) FILL(mode)")
    first = _instant(query, select.range.first)
    last = first if select.range.last is None else _instant(query, select.range.last)
    reach = select.range.near.in_units(precision) if select.range.near is not None else None
    if select.every is None:
        if select.range.last is not None and first != last:
            raise InvalidStatementError("INTERP over a range needs EVERY", hint="write EVERY(1s), for example")
        return WindowGrid(first, first, 1, reach)
    step = 0 if select.every.is_calendar else select.every.in_units(precision)
    if step <= 0:
        raise InvalidStatementError(f"EVERY({select.every}) must be a fixed time of at least one unit",
                                    code=0x2615)
    if isinstance(first, int) and isinstance(last, int) and (last - first) // step > MAX_FILLED:
        raise InvalidStatementError(f"INTERP would make more than {MAX_FILLED:,} rows", code=FILL_RANGE)
    return WindowGrid(first, last, step, reach)


def _instant(query: QueryContext, node: exp.Expression) -> int | Parameter:
    if isinstance(node, exp.Placeholder):  # streams by the clock don't know theirs yet
        return Parameter(node.name)
    scope = RowScope(None, query.builder, "RANGE")
    scope.precision = query.scope.precision
    value = time_constant(compile_expression(node, scope), scope.precision, scope.session)
    if value is None:
        raise query.builder.error("RANGE needs instants", node, code=0x2635,
                                 hint="write '2024-01-01 00:00:00' or a number")
    return int(value)
