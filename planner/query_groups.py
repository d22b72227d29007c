"""Queries with aggregates: GROUP BY, PARTITION BY, windows, and FILL of windows without rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.binder import COLUMN_MARK, is_pseudo
from penstock.planner.duckdb_tree import render
from penstock.planner.expressions import compile_condition, compile_expression
from penstock.planner.fill import FILL_RANGE, MAX_FILLED, FillColumn, filled_sql, grid_sql
from penstock.planner.grouping import COUNTING, WITH_COMPANIONS, Aggregation, GroupScope, distinct_calls
from penstock.planner.plan import SqlExpr
from penstock.planner.query_context import QueryContext
from penstock.planner.query_parts import Planned, is_star, over_node, text_of, window_text
from penstock.planner.scalar_cast import cast, null_of
from penstock.planner.scopes import WINDOW_NAMES, RowScope, columns_of, key_of, vector_calls, with_placeholders
from penstock.planner.window_steps import assign_windows, bounded, resolved_interval
from penstock.planner.windows import count_between, interval_end_sql, starts_between_sql, window_bounds
from penstock.sql.statements import Fill, IntervalWindow
from penstock.sql.types import DataType, Kind


def plan_groups(query: QueryContext) -> Planned:
    """Aggregates: one result row per group, per window of a group, or in all."""
    select, builder = query.select, query.builder
    calls = distinct_calls(query.calls, query.scope)
    if select.window is not None and not calls:
        raise InvalidStatementError("a query with a window needs an aggregate or selection function",
                                    hint="add count(*), for example")
    interval = isinstance(select.window, IntervalWindow)
    aggregation = Aggregation(
        query.relation, query.scope.within("an argument"), builder, list(query.key_columns), interval)
    groups = list(query.key_columns)
    if select.window is None:
        if query.relation.driver is not None:
            groups.append(query.relation.driver)
            # A group is what a driving row met: its first and last rows are those of the other side's time.
            main = query.relation.time
            query.move(replace(query.relation, time=next(t for t, _ in query.relation.times if t is not main)))
        _neighbours(query, aggregation)
    elif interval:
        _neighbours(query, aggregation)
        groups = assign_windows(query, borders=False)
        _add_ends(query, aggregation)
    else:
        groups = assign_windows(query, borders=False)
        aggregation.line_keys = groups
        groups = [*groups, *(key.column for key in query.keys if not key.partitions)]
        _neighbours(query, aggregation)
    aggregation.rows = query.relation
    aggregation.scope = query.scope.within("an argument")
    rows_tree = query.relation.tree
    # Plain columns come from the row that the one selecting function picks; LAST_ROWs all pick the same.
    one = len(calls) == 1 or (calls and all(call.this == "last_row" for call in calls))
    selecting = calls[0] if one and calls[0].this in WITH_COMPANIONS else None
    scope = GroupScope(query.scope, aggregation, query.keys, selecting, query.constants,
                       windowed=select.window is not None)
    having = _existence(query, calls, aggregation)
    name = builder.step("groups", lambda: _groups_sql(query, aggregation, groups, having))
    if select.window is not None:
        name = bounded(query, name)
    compiled = [query.compiled(item.expression, scope) for item in query.items]
    tree = over_node(rows_tree, "Aggregate", *_aggregate_properties(query, calls))
    if select.fill is not None and select.fill.mode != "none":
        compiled, name = _filled(query, compiled, name, scope, aggregation)
        tree = over_node(tree, "Fill", ("mode", select.fill.mode))
    outputs = [query.output(item, scope, value) for item, value in zip(query.items, compiled, strict=True)]
    if "histogram" in query.functions:
        outputs = [replace(output, value=SqlExpr(f"unnest({output.value.sql})", output.value.type))
                   if any(call.this == "histogram" for call in vector_calls(item.expression)) else output
                   for item, output in zip(query.items, outputs, strict=True)]
    terms = query.order_terms(outputs, lambda node: query.compiled(node, scope))
    condition = None
    if query.having is not None:
        condition = compile_condition(with_placeholders(query.having, query.keys, query.scope), scope)
    default = groups if select.window is None else [*query.key_columns, '"#ws"']
    return query.finish(name, outputs, terms, tree, default=default, having=condition, sort=True)


def _neighbours(query: QueryContext, aggregation: Aggregation) -> None:
    """Adds the step with columns that look at the rows before and after, which aggregates may ask for."""
    below = query.relation.name
    name = query.builder.step("lines", lambda: "SELECT " + ", ".join(
        ["*", *(f"{sql} AS {column}" for sql, column in aggregation.row_columns.items())]) + f" FROM {below}")
    query.move(query.relation.over(name))


def _add_ends(query: QueryContext, aggregation: Aggregation) -> None:
    """Adds the ends of interval windows to the rows if an aggregate needs them there."""
    assert isinstance(query.select.window, IntervalWindow)
    window = resolved_interval(query, query.select.window)
    end = interval_end_sql('"#ws"', window, query.scope.precision, query.scope.session.time_zone)
    below = query.relation.name
    name = query.builder.step("windowed", lambda: "SELECT *" + (
        f", {end} AS \"#we\"" if aggregation.row_columns else "") + f" FROM {below}")
    query.move(query.relation.over(name))


def _groups_sql(query: QueryContext, aggregation: Aggregation, groups: Sequence[str], having: str | None) -> str:
    columns = list(groups)
    if query.select.window is not None and not isinstance(query.select.window, IntervalWindow):
        assert query.relation.time is not None
        ts = query.relation.time.use().sql
        columns += [f"min({ts}) AS \"#ws\"", f"max({ts}) AS \"#we\""]
    columns += aggregation.select_list()
    sql = f"SELECT {', '.join(columns) or '1'} FROM {aggregation.rows.name}"
    if groups:
        sql += f" GROUP BY {', '.join(groups)}"
    return f"{sql} HAVING {having}" if having else sql


def _existence(query: QueryContext, calls: Sequence[exp.Anonymous], aggregation: Aggregation) -> str | None:
    """The condition under which a group has a result row at all."""
    names = {str(call.this) for call in calls}
    if calls and names <= {"first", "last"}:
        values = [aggregation.arguments(str(call.this), call.expressions, call)[0].sql for call in calls
                  if len(call.expressions) == 1 and not is_star(call.expressions[0])]
        return " OR ".join(f"count({value}) > 0" for value in values) or None
    grouped = query.keys or query.select.window is not None or query.relation.driver is not None
    if grouped or names & set(COUNTING):
        return None
    return "count(*) > 0"


def _aggregate_properties(query: QueryContext, calls: Sequence[exp.Anonymous]) -> list[tuple[str, str]]:
    properties = []
    if query.select.window is not None:
        properties.append(("window", window_text(query.select.window)))
    keys = [key.text for key in query.keys if key.partitions]
    if keys:
        properties.append(("by", " ".join(keys)))
    shown = [_shown(query, call) for call in calls]
    return [*properties, ("functions", " ".join(shown) or "none")]


def _shown(query: QueryContext, call: exp.Expression) -> str:
    star = query.relation.star
    return re.sub(f"`{COLUMN_MARK}(\\d+)`", lambda found: star[int(found[1])].name, text_of(call))


def _filled(
    query: QueryContext, compiled: Sequence[SqlExpr], name: str, scope: GroupScope, aggregation: Aggregation
) -> tuple[list[SqlExpr], str]:
    """Adds windows without rows. Returns what the result columns are now, and the relation they are in.

    Aggregates that only HAVING or ORDER BY use are NULL in windows without rows.
    """
    fill, builder = query.select.fill, query.builder
    assert fill is not None
    assert isinstance(query.select.window, IntervalWindow)
    if fill.mode == "near":
        raise InvalidStatementError("FILL(NEAR) is for INTERP only")
    window = resolved_interval(query, query.select.window)
    precision, zone = scope.precision, scope.session.time_zone
    first, last = query.bounds
    if first is None or last is None:
        raise InvalidStatementError("FILL needs a time range in WHERE", code=FILL_RANGE,
                                    hint="write WHERE ts >= ... AND ts <= ...")
    count = count_between(first, last, window, precision, zone)
    if count > MAX_FILLED:
        raise InvalidStatementError(f"FILL would make more than {MAX_FILLED:,} windows", code=FILL_RANGE,
                                    hint="shorten the time range or take longer windows")
    filling = [index for index, item in enumerate(query.items) if _is_filled(query, item.expression)]
    constants = fill_values(fill, [compiled[index].type for index in filling], scope)
    columns = [FillColumn(f'"#f{number}"', compiled[index].type, constants[number] if constants else None)
               for number, index in enumerate(filling)]
    shown = [*query.key_columns, '"#ws"', *(f"{compiled[index].sql} AS {column.name}"
                                           for column, index in zip(columns, filling, strict=True))]
    values = builder.step("values", lambda: (
        f"SELECT {', '.join([*shown, *aggregation.columns.values()])} FROM {name}"))
    # With SLIDING, windows that start before the range hold its first instant.
    earliest = window_bounds(first, window, precision, zone)[0][0] if first <= last else first
    starts = starts_between_sql(earliest, last, window, precision, zone) if first <= last else "[]::BIGINT[]"
    grid = builder.step("grid", grid_sql(values, query.key_columns, starts, count, fill.mode))
    filled = builder.step("filled", filled_sql(grid, query.key_columns, columns, fill.mode))
    end = interval_end_sql('"#ws"', window, precision, zone)
    filled = builder.step("filled", f"SELECT *, {end} AS \"#we\" FROM {filled}")
    changed = list(compiled)
    for column, index in zip(columns, filling, strict=True):
        changed[index] = SqlExpr(column.name, column.type)
    return changed, filled


def _is_filled(query: QueryContext, node: exp.Expression) -> bool:
    """Whether a result column has its value from rows; keys, constants and bounds are known without."""
    if next(vector_calls(node), None) is not None:
        return True
    for column in columns_of(with_placeholders(node, query.keys, query.scope)):
        if key_of(column.name, query.keys) is None and not is_pseudo(column, *WINDOW_NAMES):
            return True
    return False


def fill_values(fill: Fill, types: Sequence[DataType], scope: RowScope) -> list[str]:
    """Returns SQL of the constants of FILL, cast to the types of the columns they are for; none if it has none.

    Raises InvalidStatementError if there are more or fewer of them than columns.
    """
    if not fill.values:
        return []
    if len(fill.values) != len(types):
        raise InvalidStatementError(
            f"FILL({fill.mode.upper()}) needs {len(types)} value{'' if len(types) == 1 else 's'}, not "
            f"{len(fill.values)}", hint="one for each column with a function")
    constants = RowScope(None, scope.builder, "FILL")
    values = []
    for node, type_ in zip(fill.values, types, strict=True):
        value = compile_expression(node, constants)
        values.append(render(null_of(type_)) if value.type.kind is Kind.NULL
                      else cast(value, type_, scope.precision, scope.session.time_zone).sql)
    return values
