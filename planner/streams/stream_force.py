"""FORCE_WINDOW_CLOSE: a stream's query as SQL over the rows of the windows that the clock has just ended.

The batch planner compiles the query, so that all its functions are there, also TWA, ELAPSED and INTERP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from penstock.common.errors import InternalError, InvalidStreamError
from penstock.planner.bind.binder import Builder
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.query_parts import text_of
from penstock.planner.bind.scopes import columns_of, require_vector, vector_calls
from penstock.planner.duckdb_sql.duckdb_tree import (
    Tree,
    cast,
    everything,
    extended,
    fragment,
    made,
    named,
    number,
    render,
    select,
    text,
    with_steps,
)
from penstock.planner.duckdb_sql.duckdb_tree import column as duckdb_column
from penstock.planner.duckdb_sql.group_ids import group_id
from penstock.planner.duckdb_sql.interval_windows import grid_of
from penstock.planner.duckdb_sql.pieces import joined, over
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.operators import Fill, FillColumn
from penstock.planner.logical.window_kinds import END, START, Interval
from penstock.planner.lower.duckdb.query_sql import lower
from penstock.planner.lower.gaps import fill_plan, with_constants
from penstock.planner.lower.stages import (
    TBNAME,
    WINDOW_END,
    WINDOW_START,
    SourceRows,
    assembled,
    rows_of,
    source_plan,
)
from penstock.planner.lower.targets import converted_results, key_fields
from penstock.planner.query.batch_plan import BatchPlan
from penstock.planner.query.select import plan_query
from penstock.planner.streams.stream_fill import fill_columns, is_filled
from penstock.planner.streams.stream_scopes import ResultScope, RowScope
from penstock.planner.streams.stream_target import BoundTarget, Projections, bind_target
from penstock.planner.task_plans.stream_plan import (
    INSTANT,
    ForcePlan,
    Grouping,
    Policies,
    SourcePlan,
    StreamPlan,
    TimeWindows,
)
from penstock.sql.tree import statements
from penstock.sql.tree.expression_nodes import DurationLiteral
from penstock.sql.tree.statements import IntervalWindow, Range, Select, SelectItem
from penstock.sql.types import UNITS_PER_SECOND, Kind, timestamp

if TYPE_CHECKING:
    from penstock.planner.streams.stream_planner import _Planner

_WINDOW_FILLS = ("none", "null", "null_f", "value", "value_f", "prev")
_INSTANT_FILLS = ("null", "null_f", "value", "value_f", "prev")


def plan_force(planner: _Planner) -> StreamPlan:
    """Returns the plan of a stream that runs by the clock.

    Raises what `plan_query` raises, and InvalidStreamError for what this trigger
    doesn't allow.
    """
    query = planner.query
    functions = [require_vector(call) for item in query.items for call in vector_calls(item.expression)]
    instants = any(spec.instants for spec in functions)
    window = _interp_step(query) if instants else _window(planner)
    if planner.table.kind == "super" and not any(key.column == TBNAME for key in planner.keys):
        raise InvalidStreamError("FORCE_WINDOW_CLOSE over a super table needs PARTITION BY tbname")
    if not instants and not functions:
        raise InvalidStreamError("a window needs at least one aggregate function",
                                 hint="for example count(*) or avg(column)")
    time_name = "_irowts" if instants else "_wstart"
    items = [item.with_changes(expression=_by_clock(item.expression, "_irowts" if instants else "_wend"))
             for item in query.items]
    for item in items:
        for column in columns_of(item.expression):
            planner.key(column.name)  # tags and tbname follow from the partition; what does not, stays a column
    select = _batch_query(planner, items, time_name, window if not instants else None)
    batch = plan_query(select, planner.catalog, planner.session)
    if len(batch.scans) != 1 or batch.tables:
        raise InternalError("the query of a stream reads more than the rows of its table")
    width = len(planner.keys)
    values = [SqlExpr(duckdb_column(f"c{n}"), column.type) for n, column in enumerate(batch.columns[width + 1:])]
    names = [column.name for column in batch.columns[width + 1:]]
    if len(names) != len(items):  # first(*) and the like stand for several columns
        items = [SelectItem(exp.Anonymous(this="last"), None, name) for name in names]
    projections = [(item.with_changes(alias=name), value)
                   for item, name, value in zip(items, names, values, strict=True)]
    first = items[0].expression
    if not (isinstance(first, exp.Column) and first.name == time_name):
        name = next(name for name in (time_name, "ts", f"{time_name}_") if name not in names)
        start = SelectItem(exp.column(time_name), name, name)
        projections.insert(0, (start, SqlExpr(duckdb_column("_at"), timestamp(planner.precision))))
    bound = bind_target(planner, projections, prepended=len(projections) > len(items))
    casts, plan, fill = converted_results(bound.values, bound.target.columns), batch.plan, None
    if query.fill is not None and query.fill.mode != "none" and not instants:
        filling, shown = _filled(planner, query.fill, projections, bound)
        of_blocks = {**{key.name: duckdb_column(key.field.name) for key in planner.keys},
                     START: duckdb_column(WINDOW_START), END: duckdb_column(WINDOW_END)}
        interval = Interval(window, planner.precision, planner.session.time_zone)
        fill = fill_plan(query.fill.mode, interval, shown, bound.target.columns, [key.field for key in planner.keys],
                         of_blocks)
        casts = with_constants(query.fill.mode, shown, bound.target.columns, casts)
        plan = Fill(plan, tuple(f"o{n}" for n in range(width)), interval, None, query.fill.mode, filling)
    source = _source(planner, batch)
    sql = render(_sql(planner, batch, casts, instants, window, source.needs_children))
    keep = any(spec.looks_back for spec in functions)
    force = ForcePlan(
        TimeWindows(window, planner.precision, planner.session.time_zone), sql,
        render(_keep_sql(planner, source)) if keep else None, instants,
        alone=keep, created=planner.session.now_ms * UNITS_PER_SECOND[planner.precision] // 1_000, fill=fill)
    policies = Policies(ignore_update=True, guarantee=planner.guarantee)
    stream = planner.logical(plan, bound.target, "force_window_close", policies)
    return assembled(stream, replace(source, sql=sql), Grouping(key_fields(stream.keys), colocated=True), force,
                     (*planner.functions, *batch.functions), ())


def _window(planner: _Planner) -> IntervalWindow:
    query, window = planner.query, planner.query.window
    if not isinstance(window, IntervalWindow):
        raise InvalidStreamError("FORCE_WINDOW_CLOSE needs an INTERVAL window")
    grid = grid_of(window, planner.precision, planner.session.time_zone)
    if not grid.tumbling:
        raise InvalidStreamError("FORCE_WINDOW_CLOSE cannot have windows that overlap",
                                 hint="leave SLIDING out, or make it as long as INTERVAL")
    if query.fill is not None and query.fill.mode not in _WINDOW_FILLS:
        raise InvalidStreamError(f"FORCE_WINDOW_CLOSE cannot FILL({query.fill.mode.upper()})",
                                 hint="what comes after a window isn't known: use NONE, NULL, VALUE or PREV")
    if query.range is not None or query.every is not None:
        raise InvalidStreamError("RANGE and EVERY belong to INTERP")
    return IntervalWindow(window.interval, window.offset)


def _interp_step(query: Select) -> IntervalWindow:
    if query.window is not None:
        raise InvalidStreamError("INTERP cannot be used with a window")
    if query.range is not None:
        raise InvalidStreamError("INTERP in a stream cannot have a RANGE", hint="the clock gives the instants")
    if query.every is None or query.fill is None:
        raise InvalidStreamError("INTERP in a stream needs EVERY and FILL", hint="write EVERY(10s) FILL(PREV)")
    if query.every.is_calendar or query.every.value <= 0:
        raise InvalidStreamError(f"EVERY({query.every}) must be a fixed time", code=0x2615)
    if query.fill.mode not in _INSTANT_FILLS:
        raise InvalidStreamError(f"INTERP in a stream cannot FILL({query.fill.mode.upper()})",
                                 hint="what comes after an instant isn't known: use NULL, VALUE or PREV")
    return IntervalWindow(query.every)


def _by_clock(node: exp.Expression, trigger_time: str) -> exp.Expression:
    """Replaces NOW and TODAY by the time at which the clock ends the window."""

    def replaced(part: exp.Expression) -> exp.Expression:
        if isinstance(part, exp.Anonymous) and not part.expressions:
            if str(part.this) == "now":
                return exp.column(trigger_time)
            if str(part.this) == "today":
                return exp.Anonymous(this="timetruncate",
                                     expressions=[exp.column(trigger_time), DurationLiteral(value=1, unit="d")])
        return part

    return node.transform(replaced)


def _batch_query(
    planner: _Planner, items: Sequence[SelectItem], time_name: str, window: IntervalWindow | None
) -> Select:
    """Returns the query that gives keys, the time, and the projections."""
    query = planner.query
    parts = {text_of(item.expression): item.expression for item in query.partition_by}
    keys = []
    for n, key in enumerate(planner.keys):
        node = parts[key.names[-1]] if key.partitions else exp.column(exp.to_identifier(
            key.names[0], quoted=key.names[0] != "tbname"))
        keys.append(SelectItem(node, f"k{n}", f"k{n}"))
    span = None
    if window is None:
        span = Range(exp.Placeholder(this=INSTANT))
    return Select(
        items=(*keys, SelectItem(exp.column(time_name), "_at", "_at"), *items), source=query.source, where=query.where,
        partition_by=query.partition_by, window=window, fill=query.fill if window is None else None, range=span,
        every=query.every, source_text=query.source_text)


def _source(planner: _Planner, batch: BatchPlan) -> SourcePlan:
    for name in batch.scans[0].columns:
        planner.use(name)
    rows = _rows(planner)
    of_super_table = planner.table.kind == "super"
    found = source_plan(rows, "", group_is_table=of_super_table and rows.group_is_table)
    return replace(found, needs_children=planner.table.kind != "normal" and found.needs_children)


def _rows(planner: _Planner) -> SourceRows:
    return rows_of(planner.rows(), [key.key for key in planner.keys], planner.session.time_zone)


def _base(planner: _Planner, needs_children: bool) -> Tree:
    """The rows with the names and tags of their tables."""
    if needs_children:
        return fragment("SELECT r.*, c.* EXCLUDE (_tuid) FROM rows AS r JOIN children AS c USING (_tuid)")
    if planner.table.kind == "normal":
        return select([everything(), named(text(planner.table.name), TBNAME)], "rows")
    return select([everything()], "rows")


def _gid(planner: _Planner, rows: SourceRows) -> Tree:
    """The group's id over the keys (as in streams by event time)."""
    if rows.group_is_table:
        return fragment("c._tuid") if planner.table.kind == "super" else cast(
            number(planner.table.uid), "UBIGINT")
    if not rows.partition:
        return rows.gid
    return group_id((duckdb_column(key.field.name), key.field.type) for key in rows.partition)


def _sql(
    planner: _Planner, batch: BatchPlan, casts: Sequence[Tree], instants: bool, window: IntervalWindow,
    needs_children: bool,
) -> Tree:
    rows = _rows(planner)
    keys = [key.field.name for key in planner.keys]
    count = len(batch.columns) - len(keys) - 1
    body = with_steps([(batch.scans[0].name, _base(planner, needs_children))], lower(batch.plan))
    start = fragment("_at - :step", step=window.interval.in_units(planner.precision)) if instants else fragment("_at")
    values = [fragment("0::UTINYINT AS _op"), named(_gid(planner, rows), "_gid")]
    values += [named(cast(duckdb_column(key.field.name), key.field.duckdb()), key.field.name)
               for key in planner.keys]
    values += [named(cast, f"r{n}") for n, cast in enumerate(casts)]
    found = made(exp.Subquery, this=body, alias=made(
        exp.TableAlias, this=exp.to_identifier("q"),
        columns=[exp.to_identifier(name, quoted=True) for name in (*keys, "_at", *(f"c{n}" for n in range(count)))]))
    whole = select([*values, named(start, "_start")], found)
    if rows.group_is_table and planner.table.kind == "super":
        name = next(key.field.name for key in planner.keys if key.column == TBNAME)
        whole = extended(whole, joins=[joined(
            made(exp.Subquery, this=fragment("SELECT _tuid, tbname FROM children"), alias=made(
                exp.TableAlias, this=exp.to_identifier("c"))),
            fragment("c.tbname = :name", name=duckdb_column(name, "q")))])
    return whole


def _keep_sql(planner: _Planner, source: SourcePlan) -> Tree:
    """The newest row per group, and the newest that has a value, for each column."""
    partition = [duckdb_column("_tuid"), *(key.value.node for key in planner.keys if key.partitions)]
    ts = planner.table.time_column.name

    def newest(aggregate: Tree) -> Tree:
        return fragment(":ts = :newest", ts=duckdb_column(ts), newest=over(aggregate, partition))

    found = newest(fragment("max(:ts)", ts=duckdb_column(ts)))
    for column in source.columns:
        if column.type.kind is not Kind.TIMESTAMP or column.name != ts:
            found = made(exp.Or, this=found, expression=newest(fragment(
                "max(:ts) FILTER (WHERE :value IS NOT NULL)", ts=duckdb_column(ts), value=duckdb_column(column.name))))
    columns = [duckdb_column("_tuid"), *(duckdb_column(column.name) for column in source.columns)]
    return select(columns, _base(planner, source.needs_children), where=_rows(planner).condition, qualify=found)


def _filled(
    planner: _Planner, fill: statements.Fill, projections: Projections, bound: BoundTarget
) -> tuple[tuple[FillColumn, ...], list[FillColumn | SqlExpr]]:
    """Returns what FILL gives, and that or the value in gaps for each of the target's columns."""
    filling = [value for item, value in projections
               if is_filled(item.expression, lambda name: planner.key(name) is not None)]
    builder = Builder(planner.catalog, planner.session, planner.statement.source_text)
    given = fill_columns(fill, filling, builder, planner.precision)
    in_gaps: dict[int, FillColumn | SqlExpr] = {
        id(value): each for value, each in zip(filling, given, strict=True)}
    scope = ResultScope(planner, RowScope(planner))
    for item, value in projections:
        if id(value) not in in_gaps:
            in_gaps[id(value)] = compile_expression(item.expression, scope)
    return given, [in_gaps.get(id(value), value) for value in bound.values]
