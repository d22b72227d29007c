"""The results of a stream over one table: its SELECT list, bound, and the operators that give it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from penstock.common.errors import InvalidStreamError
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.filling import fill_columns, is_filled
from penstock.planner.bind.query_parts import Item
from penstock.planner.bind.scopes import replaced
from penstock.planner.bind.select_list import expand_items
from penstock.planner.duckdb_sql.duckdb_tree import column
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.table import lookup
from penstock.planner.logical import operators
from penstock.planner.logical.expr import Computed, Line
from penstock.planner.logical.group_values import AggregateCall
from penstock.planner.logical.operators import TABLE_UID, Aggregate, FillColumn, Operator, Project
from penstock.planner.logical.window_kinds import END, NUMBER, START, ByClock, ByInterval, Shape
from penstock.planner.streams.stream_checks import check_aggregates
from penstock.planner.streams.stream_context import StreamContext
from penstock.planner.streams.stream_projections import Projections, short_names, with_time
from penstock.planner.streams.stream_scopes import StreamAggregation, StreamRowScope
from penstock.planner.streams.stream_target import BoundTarget
from penstock.sql.tree.statements import Fill
from penstock.sql.types import timestamp

Filled = tuple[SqlExpr, FillColumn]
"""A value, and what FILL makes of it in windows without rows."""


def items_of(stream: StreamContext) -> list[Item]:
    """Returns the SELECT list with one item per result column."""
    query = stream.query
    plain = [replaced(item.expression, _key_itself) for item in query.items]
    if any(one is not item.expression for one, item in zip(plain, query.items, strict=True)):
        query = query.with_changes(items=tuple(
            item.with_changes(expression=one) for one, item in zip(plain, query.items, strict=True)))
    items = expand_items(query, stream.relation, stream.builder)
    return items if stream.lookup is None else short_names(items)


def _key_itself(node: exp.Expression) -> exp.Expression | None:
    """`_group_key(x)` is x."""
    called = isinstance(node, exp.Anonymous) and str(node.this) == "_group_key" and len(node.expressions) == 1
    return node.expressions[0] if called else None


# --- rows -------------------------------------------------------------------------------------------------------


def row_projections(stream: StreamContext) -> Projections:
    """Returns the results of a stream without a window, a row per row; raises InvalidStreamError."""
    items = items_of(stream)
    first = items[0].expression
    called = any(key.alias == first.name for key in stream.keys)
    if called or stream.rows.find(first) is not stream.relation.time:
        raise InvalidStreamError("the first column of a stream without a window must be the primary timestamp",
                                 hint=f"start the list with {stream.table.time_column.name}")
    scope = StreamRowScope(stream.rows.within("the SELECT list"), stream.keys)
    return [(item, compile_expression(item.expression, scope)) for item in items]


# --- windows ----------------------------------------------------------------------------------------------------


def window_projections(stream: StreamContext) -> tuple[Projections, bool, StreamAggregation]:
    """Returns the results of windows, these' start first, whether that isn't of the query, and what is aggregated."""
    check_aggregates(stream)
    items = items_of(stream)
    scope, aggregation = stream.groups()
    compiled = [(item, stream.compiled(item.expression, scope)) for item in items]
    if not aggregation.calls:
        raise InvalidStreamError("a window needs at least one aggregate function",
                                 hint="for example count(*) or avg(column)")
    value = SqlExpr(column(START), timestamp(stream.precision))
    projections = with_time(compiled, "_wstart", value)
    return projections, len(projections) > len(compiled), aggregation


def filled_projections(stream: StreamContext, fill: Fill, projections: Projections) -> list[Filled]:
    """Returns the projections that FILL gives in windows without rows."""
    values = [value for item, value in projections
              if is_filled(item.expression, stream.partition, stream.rows, stream.constants)]
    return list(zip(values, fill_columns(fill, [value.type for value in values], stream.rows), strict=True))


def windowed(
    stream: StreamContext, aggregation: StreamAggregation, shape: Shape, least: int | None, filled: Sequence[Filled]
) -> Operator:
    """Returns a row per group and window, in gaps between windows too if they are filled."""
    time, fill = stream.table.time_column.name, stream.query.fill
    partition = tuple(key.column for key in stream.partition)
    order = () if isinstance(shape, ByClock) else (time, TABLE_UID)
    interval = shape.interval if isinstance(shape, ByClock) else shape if isinstance(shape, ByInterval) else None
    keys = (*(key.column for key in stream.keys), NUMBER if interval is None else START)
    calls = aggregation.calls
    aggregate = Aggregate(
        operators.Window(stream.scanned_rows(), shape, Line(partition, order)), keys,
        tuple(aggregation.columns.values()), present=_present(calls), interval=interval,
        time=time if interval is None else None, least=least, window=stream.query.window,
        by=tuple(key.text for key in stream.partition),
        functions=tuple(call.written for call in calls if call.written is not None))
    if fill is None or not filled or interval is None:
        return aggregate
    kept = [Computed(each.name, SqlExpr(column(each.name), each.type)) for each in aggregate.output
            if each.name != END]
    values = [Computed(given.name, value) for value, given in filled]
    return operators.FillGaps(Project(aggregate, (*kept, *values)), partition, interval, None, fill.mode,
                          tuple(given for _, given in filled))


def _present(calls: Sequence[AggregateCall]) -> tuple[SqlExpr, ...] | None:
    """What groups must have to have a result row, if they must; see `Aggregate.present`."""
    specs = [lookup(call.function) for call in calls if call.user is None]
    of_values = len(specs) == len(calls) and all(
        spec is not None and spec.selects is not None and spec.selects.of_value for spec in specs)
    return tuple(call.arguments[0] for call in calls) if of_values else None


def results(rows: Operator, bound: BoundTarget, filled: Sequence[Filled]) -> Project:
    """Returns the result columns over groups or rows; what FILL gives is a column of what is below."""
    given = {id(value): SqlExpr(column(each.name), each.type) for value, each in filled}
    return Project(rows, tuple(
        Computed(f"r{n}", given.get(id(value), value), target.name)
        for n, (value, target) in enumerate(zip(bound.values, bound.target.columns, strict=True))))


def without_labels(plan: Operator) -> Operator:
    """Returns the plan of a query whose columns aren't those of the stream, so that EXPLAIN doesn't show them."""
    if isinstance(plan, operators.Sort):
        return replace(plan, input=without_labels(plan.input))
    if not isinstance(plan, Project) or plan.extends:
        return plan
    return replace(plan, input=without_labels(plan.input),
                   columns=tuple(replace(computed, label=None) for computed in plan.columns))
