"""Queries with aggregates: GROUP BY, PARTITION BY, windows, and FILL of windows without rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.bind.binder import STAR, Plan, used
from penstock.planner.bind.filling import fill_columns, is_filled
from penstock.planner.bind.grouping import Aggregation, GroupScope, distinct_calls, window_column
from penstock.planner.bind.query_parts import Planned, is_star
from penstock.planner.bind.row_windows import least_length
from penstock.planner.bind.scopes import (
    require_vector,
    vector_calls,
)
from penstock.planner.duckdb_sql.duckdb_tree import call
from penstock.planner.duckdb_sql.duckdb_tree import column as column_tree
from penstock.planner.duckdb_sql.fill import FILL_RANGE, MAX_FILLED
from penstock.planner.duckdb_sql.interval_windows import count_between, window_bounds
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.operators import ROW, Aggregate, FillGaps, FillSpan, Operator, Project
from penstock.planner.logical.window_kinds import START
from penstock.planner.query.counted_rows import note_counted_rows, totalled
from penstock.planner.query.newest_needed import note_newest_rows
from penstock.planner.query.query_context import QueryContext
from penstock.planner.query.window_steps import assign_windows, interval_of
from penstock.sql.tree.statements import IntervalWindow
from penstock.sql.tree.walking import copied, found_in
from penstock.sql.types import Kind


def plan_groups(query: QueryContext) -> Planned:
    """Aggregates: one result row per group, per window of a group, or in all."""
    select = query.select
    calls = distinct_calls(query.calls, query.scope)
    if select.window is not None and not calls:
        raise InvalidStatementError("a query with a window needs an aggregate or selection function",
                                    hint="add count(*), for example")
    interval = isinstance(select.window, IntervalWindow)
    aggregation = Aggregation(
        query.relation, query.scope.within("an argument"), query.builder, list(query.key_columns), interval)
    counted = note_counted_rows(query, calls)
    if not counted:
        note_newest_rows(query, calls)
    groups = list(query.key_columns)
    driving_time = query.relation.time
    if select.window is None:
        if query.relation.driver is not None:
            groups.append(ROW)
            # A group is what a driving row met: its first and last rows are those of the other side's time.
            other_time = next(time for time, _ in query.relation.times if time is not driving_time)
            query.move(replace(query.relation, time=other_time))
        _add_neighbours(query, aggregation)
    elif interval:
        _add_neighbours(query, aggregation)
        groups = assign_windows(query, borders=lambda: bool(aggregation.row_columns))
    else:
        groups = assign_windows(query, borders=lambda: False)
        aggregation.line_keys = groups
        groups = [*groups, *(key.column for key in query.keys if not key.partitions)]
        _add_neighbours(query, aggregation)
    aggregation.rows = query.relation
    aggregation.scope = query.scope.within("an argument")
    # Plain columns come from the row that the one selecting function picks; functions that take the last row, whatever
    # is in it, all pick the same.
    specs = [require_vector(call) for call in calls]
    one = len(calls) == 1 or (calls and all(spec.selects is not None and not spec.selects.present for spec in specs))
    selecting = calls[0] if one and specs[0].has_companions else None
    scope = GroupScope(query.scope, aggregation, query.keys, selecting, query.constants,
                       windowed=select.window is not None)
    plan = _grouped(query, aggregation, groups, calls)
    plan = totalled(plan) if counted else query.with_names(plan)
    compiled = [query.compiled(item.expression, scope) for item in query.items]
    if query.relation.driver is not None:
        # There is a result row per driving row: its time is the time line.
        query.move(replace(query.relation, time=driving_time))
    if select.fill is not None and select.fill.mode != "none":
        compiled, plan = _filled(query, compiled, plan, scope, aggregation)
    outputs = [query.output(item, scope, value) for item, value in zip(query.items, compiled, strict=True)]
    if any(spec.gives_list for spec in specs):
        outputs = [replace(output, value=SqlExpr(call("unnest", output.value.node), output.value.type))
                   if output.value.type.kind is not Kind.OTHER and any(
                       require_vector(each).gives_list for each in vector_calls(item.expression)) else output
                   for item, output in zip(query.items, outputs, strict=True)]
    terms = query.order_terms(outputs, lambda node: _ordering(query, node, scope))
    default = groups if select.window is None else [*query.key_columns, START]
    # Of all rows together TDengine's HAVING knows no row that a function picks.
    having = query.compiled_having(scope if query.keys or select.window is not None else scope.without_selected_row())
    return query.finish(plan, outputs, terms, default=lambda: default, having=having, sort=True, scope=scope)


def _ordering(query: QueryContext, node: exp.Expression, scope: GroupScope) -> SqlExpr:
    """What an item of ORDER BY sorts by: the time line, of which a window has many values, stands for its start."""
    if scope.windowed and scope.selecting is None and query.is_time(node, scope):
        return window_column("_wstart", scope)
    return query.compiled(node, scope)


def _add_neighbours(query: QueryContext, aggregation: Aggregation) -> None:
    """Adds the columns that look at the rows before and after, which aggregates may ask for."""
    def plan(below: Operator) -> Operator:
        columns = tuple(aggregation.row_columns.values())
        return Project(below, columns, extends=True, called=query.called) if columns else below

    query.move(query.relation.over(plan))


def _grouped(query: QueryContext, aggregation: Aggregation, groups: Sequence[str], calls: Sequence[exp.Anonymous],
             ) -> Plan:
    """What the rows are grouped by, once it is known what is computed over them."""
    select, rows = query.select, query.relation
    present, interval, time = _present(query, calls, aggregation), None, None
    least = least_length(select.window, query.scope.precision)
    if isinstance(select.window, IntervalWindow):
        interval = interval_of(query, select.window)
    elif select.window is not None and rows.time is not None:
        time = used(rows.time)
    labels = query.labels

    def plan() -> Operator:
        return Aggregate(
            rows.plan(), tuple(groups), tuple(aggregation.columns.values()), present, interval, time, least,
            select.window, labels, tuple(_as_written(call) for call in calls), query.sets)

    return plan


def _as_written(node: exp.Expression) -> exp.Expression:
    """Returns a call with plain names where it names what `*` stands for."""
    if not any(STAR in column.meta for column in found_in(node, exp.Column)):
        return node
    shown = copied(node)
    for column in found_in(shown, exp.Column):
        if STAR in column.meta:
            column.this.set("quoted", False)
    return shown


def _present(
    query: QueryContext, calls: Sequence[exp.Anonymous], aggregation: Aggregation
) -> tuple[SqlExpr, ...] | None:
    """What groups must have to have a result row; see `Aggregate.present`."""
    specs = [require_vector(call) for call in calls]
    if calls and all(spec.selects is not None and spec.selects.of_value for spec in specs):
        return tuple(aggregation.arguments(str(call.this), call.expressions, call)[0] for call in calls
                     if len(call.expressions) == 1 and not is_star(call.expressions[0])) or None
    grouped = (query.keys or query.select.window is not None or query.relation.driver is not None
               or query.builder.always_row or query.sets is not None)
    return None if grouped or any(spec.counts for spec in specs) else ()


def _filled(
    query: QueryContext, compiled: Sequence[SqlExpr], plan: Plan, scope: GroupScope, aggregation: Aggregation
) -> tuple[list[SqlExpr], Plan]:
    """Adds windows without rows. Returns what the result columns are now, and the rows they are in.

    Aggregates that only HAVING or ORDER BY use are NULL in windows without rows.
    """
    fill, keys = query.select.fill, query.key_columns
    assert fill is not None
    assert isinstance(query.select.window, IntervalWindow)
    interval = interval_of(query, query.select.window)
    window, precision, zone = interval.window, interval.precision, interval.zone
    query.builder.require_known_times("FILL")
    first, last = query.bounds
    if first is None or last is None:
        raise InvalidStatementError("FILL needs a time range in WHERE", code=FILL_RANGE,
                                    hint="write WHERE ts >= ... AND ts <= ...")
    count = count_between(first, last, window, precision, zone)
    if count > MAX_FILLED:
        raise InvalidStatementError(f"FILL would make more than {MAX_FILLED:,} windows", code=FILL_RANGE,
                                    hint="shorten the time range or take longer windows")
    filling = [index for index, item in enumerate(query.items)
               if is_filled(item.expression, query.keys, query.scope)]
    columns = fill_columns(fill, [compiled[index].type for index in filling], scope)
    # With SLIDING, windows that start before the range hold its first instant.
    earliest = window_bounds(first, window, precision, zone)[0][0] if first <= last else None
    mode = fill.mode

    def filled() -> Operator:
        below = plan()
        types = {each.name: each.type for each in below.output}
        kept = [*keys, START, *(call.name for call in aggregation.columns.values())]
        values = Project(below, (
            *(Computed(name, SqlExpr(column_tree(name), types[name])) for name in kept),
            *(Computed(each.name, compiled[index]) for each, index in zip(columns, filling, strict=True))))
        return FillGaps(values, tuple(keys), interval, FillSpan(earliest, last, count), mode, columns)

    changed = list(compiled)
    for each, index in zip(columns, filling, strict=True):
        changed[index] = SqlExpr(column_tree(each.name), each.type)
    return changed, filled
