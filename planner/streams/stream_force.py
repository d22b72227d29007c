"""FORCE_WINDOW_CLOSE: a stream's query as SQL over the rows of the windows that the clock has just ended.

The batch planner compiles the query, so that all its functions are there, also TWA, ELAPSED and INTERP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from penstock.common.errors import InternalError, InvalidStreamError
from penstock.planner.bind.query_parts import Item
from penstock.planner.bind.scopes import columns_of, key_of, require_vector
from penstock.planner.duckdb_sql.duckdb_tree import (
    Tree,
    cast,
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
from penstock.planner.duckdb_sql.pieces import joined, over, star
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.operators import FillColumn, FillGaps, Operator
from penstock.planner.logical.window_kinds import END, START, ByInterval
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
from penstock.planner.streams.stream_context import StreamContext
from penstock.planner.streams.stream_projections import Projections, with_time
from penstock.planner.streams.stream_results import filled_projections
from penstock.planner.streams.stream_target import BoundTarget, bind_target
from penstock.planner.task_plans.stream_plan import (
    INSTANT,
    FillPlan,
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

_WINDOW_FILLS = ("none", "null", "null_f", "value", "value_f", "prev")
_INSTANT_FILLS = ("null", "null_f", "value", "value_f", "prev")


def plan_force(stream: StreamContext) -> StreamPlan:
    """Returns the plan of a stream that runs by the clock.

    Raises what `plan_query` raises, and InvalidStreamError for what this trigger doesn't allow.
    """
    query = stream.query
    functions = list(map(require_vector, stream.calls))
    instants = any(spec.instants for spec in functions)
    window = _interp_step(query) if instants else _window(stream)
    if stream.table.kind == "super" and stream.key_of_source(TBNAME) is None:
        raise InvalidStreamError("FORCE_WINDOW_CLOSE over a super table needs PARTITION BY tbname")
    if not instants and not functions:
        raise InvalidStreamError("a window needs at least one aggregate function",
                                 hint="for example count(*) or avg(column)")
    asked = _asked(stream, window, instants=instants)
    bound = bind_target(stream, asked.projections, prepended=asked.prepended)
    gaps = _gaps(stream, asked, bound)
    casts = converted_results(bound.values, bound.target.result_columns)
    source = _source(stream, asked.batch)
    sql = render(_sql(stream, asked, casts if gaps is None else gaps.casts, source.needs_children))
    keep = any(spec.looks_back for spec in functions)
    force = ForcePlan(
        TimeWindows(window, stream.precision, stream.session.time_zone), sql,
        render(_keep_sql(stream, source)) if keep else None, instants, alone=keep,
        created=stream.session.now_ms * UNITS_PER_SECOND[stream.precision] // 1_000,
        fill=None if gaps is None else gaps.plan)
    logical = stream.logical(asked.batch.plan if gaps is None else gaps.logical, bound.target, "force_window_close",
                             Policies(ignore_update=True, guarantee=stream.guarantee))
    return assembled(logical, replace(source, sql=sql), Grouping(key_fields(logical.keys), colocated=True), force,
                     (*stream.functions, *asked.batch.functions), ())


@dataclass(frozen=True, slots=True)
class ForceQuery:
    """What runs by the clock: the query that gives keys, the time, and the `projections` over its result.

    `prepended`: the first of these isn't of the statement. `instants`: it is INTERP.
    """

    batch: BatchPlan
    projections: Projections
    prepended: bool
    window: IntervalWindow
    instants: bool


def _asked(stream: StreamContext, window: IntervalWindow, *, instants: bool) -> ForceQuery:
    query, time = stream.query, "_irowts" if instants else "_wstart"
    items = [item.with_changes(expression=_by_clock(item.expression, "_irowts" if instants else "_wend"))
             for item in query.items]
    _follow(stream, items)
    select = _batch_query(stream, items, time, None if instants else window)
    batch = plan_query(select, stream.catalog, stream.session, of_stream=True)
    if len(batch.scans) != 1 or batch.tables:
        raise InternalError("the query of a stream reads more than the rows of its table")
    given = batch.columns[len(stream.keys) + 1:]
    nodes = [item.expression for item in items]
    if len(given) != len(items):  # first(*) and the like stand for several columns
        nodes = [exp.Anonymous(this="last") for _ in given]
    projections: Projections = [
        (Item(node, column.name, column.name), SqlExpr(duckdb_column(f"c{n}"), column.type))
        for n, (node, column) in enumerate(zip(nodes, given, strict=True))]
    shown = with_time(projections, time, SqlExpr(duckdb_column("_at"), timestamp(stream.precision)))
    return ForceQuery(batch, shown, len(shown) > len(projections), window, instants)


def _follow(stream: StreamContext, items: Sequence[SelectItem]) -> None:
    """Makes keys of the tags and the name that are selected: they follow from the partition."""
    for column in (column for item in items for column in columns_of(item.expression)):
        known = None if key_of(column, stream.keys) is not None else stream.rows.find(column)
        if known is not None and any(known is constant for constant in stream.constants):
            stream.follow(known)


@dataclass(frozen=True, slots=True)
class ForceGaps:
    """FILL of windows without rows: as tasks do it, as results with its constants, and as an operator."""

    plan: FillPlan
    casts: Sequence[Tree]
    logical: Operator


def _gaps(stream: StreamContext, asked: ForceQuery, bound: BoundTarget) -> ForceGaps | None:
    fill = stream.query.fill
    if fill is None or fill.mode == "none" or asked.instants:
        return None
    filling, shown = _filled(stream, fill, asked.projections, bound)
    fields = [key.field for key in stream.keys]
    of_blocks = {**{key.column: duckdb_column(key.field.name) for key in stream.keys},
                 START: duckdb_column(WINDOW_START), END: duckdb_column(WINDOW_END)}
    interval = ByInterval(asked.window, stream.precision, stream.session.time_zone)
    columns = bound.target.result_columns
    return ForceGaps(
        fill_plan(fill.mode, interval, shown, bound.target, fields, of_blocks),
        with_constants(fill.mode, shown, columns, converted_results(bound.values, columns)),
        FillGaps(asked.batch.plan, tuple(f"o{n}" for n in range(len(fields))), interval, None, fill.mode, filling))


def _window(stream: StreamContext) -> IntervalWindow:
    query, window = stream.query, stream.query.window
    if not isinstance(window, IntervalWindow):
        raise InvalidStreamError("FORCE_WINDOW_CLOSE needs an INTERVAL window")
    grid = grid_of(window, stream.precision, stream.session.time_zone)
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
    stream: StreamContext, items: Sequence[SelectItem], time_name: str, window: IntervalWindow | None
) -> Select:
    """Returns the query that gives keys, the time, and the projections."""
    query = stream.query
    keys = []
    for n, key in enumerate(stream.keys):
        node = key.item.expression if key.item is not None else exp.column(exp.to_identifier(
            key.text, quoted=key.text != TBNAME))
        keys.append(SelectItem(node, f"k{n}", f"k{n}"))
    span = None
    if window is None:
        span = Range(exp.Placeholder(this=INSTANT))
    return Select(
        items=(*keys, SelectItem(exp.column(time_name), "_at", "_at"), *items), source=query.source, where=query.where,
        partition_by=query.partition_by, window=window, fill=query.fill if window is None else None, range=span,
        every=query.every, source_text=stream.statement.source_text, source_start=stream.statement.source_start)


def _source(stream: StreamContext, batch: BatchPlan) -> SourcePlan:
    for column in stream.relation.columns:
        if column.name in batch.scans[0].columns:
            column.mark()
    rows = _rows(stream)
    of_super_table = stream.table.kind == "super"
    found = source_plan(rows, "", group_is_table=of_super_table and rows.group_is_table)
    return replace(found, needs_children=stream.table.kind != "normal" and found.needs_children)


def _rows(stream: StreamContext) -> SourceRows:
    return rows_of(stream.scanned_rows(), [key.stream_key for key in stream.keys], stream.session.time_zone)


def _base(stream: StreamContext, needs_children: bool) -> Tree:
    """The rows with the names and tags of their tables."""
    if needs_children:
        return fragment("SELECT r.*, c.* EXCLUDE (_tuid) FROM rows AS r JOIN children AS c USING (_tuid)")
    if stream.table.kind == "normal":
        return select([star(), named(text(stream.table.name), TBNAME)], "rows")
    return select([star()], "rows")


def _gid(stream: StreamContext, rows: SourceRows) -> Tree:
    """The group's id over the keys (as in streams by event time)."""
    if rows.group_is_table:
        return fragment("c._tuid") if stream.table.kind == "super" else cast(
            number(stream.table.uid), "UBIGINT")
    if not rows.partition:
        return rows.gid
    return group_id((duckdb_column(key.field.name), key.field.type) for key in rows.identity)


def _sql(stream: StreamContext, asked: ForceQuery, casts: Sequence[Tree], needs_children: bool) -> Tree:
    rows, batch = _rows(stream), asked.batch
    keys = [key.field.name for key in stream.keys]
    count = len(batch.columns) - len(keys) - 1
    body = with_steps([(batch.scans[0].name, _base(stream, needs_children))], lower(batch.plan))
    step = asked.window.interval.in_units(stream.precision)
    start = fragment("_at - :step", step=step) if asked.instants else fragment("_at")
    values = [fragment("0::UTINYINT AS _op"), named(_gid(stream, rows), "_gid")]
    values += [named(cast(duckdb_column(key.field.name), key.field.duckdb()), key.field.name)
               for key in stream.keys]
    values += [named(cast, f"r{n}") for n, cast in enumerate(casts)]
    found = made(exp.Subquery, this=body, alias=made(
        exp.TableAlias, this=exp.to_identifier("q"),
        columns=[exp.to_identifier(name, quoted=True) for name in (*keys, "_at", *(f"c{n}" for n in range(count)))]))
    whole = select([*values, named(start, "_start")], found)
    if rows.group_is_table and stream.table.kind == "super":
        name = next(key.field.name for key in stream.keys if key.source == TBNAME)
        whole = extended(whole, joins=[joined(
            made(exp.Subquery, this=fragment("SELECT _tuid, tbname FROM children"), alias=made(
                exp.TableAlias, this=exp.to_identifier("c"))),
            fragment("c.tbname = :name", name=duckdb_column(name, "q")))])
    return whole


def _keep_sql(stream: StreamContext, source: SourcePlan) -> Tree:
    """The newest row per group, and the newest that has a value, for each column."""
    partition = [duckdb_column("_tuid"), *(key.value.node for key in stream.keys if key.partitions)]
    ts = stream.table.time_column.name

    def newest(aggregate: Tree) -> Tree:
        return fragment(":ts = :newest", ts=duckdb_column(ts), newest=over(aggregate, partition))

    found = newest(fragment("max(:ts)", ts=duckdb_column(ts)))
    for column in source.columns:
        if column.type.kind is not Kind.TIMESTAMP or column.name != ts:
            found = made(exp.Or, this=found, expression=newest(fragment(
                "max(:ts) FILTER (WHERE :value IS NOT NULL)", ts=duckdb_column(ts), value=duckdb_column(column.name))))
    columns = [duckdb_column("_tuid"), *(duckdb_column(column.name) for column in source.columns)]
    return select(columns, _base(stream, source.needs_children), where=_rows(stream).condition, qualify=found)


def _filled(
    stream: StreamContext, fill: statements.Fill, projections: Projections, bound: BoundTarget
) -> tuple[tuple[FillColumn, ...], list[FillColumn | SqlExpr]]:
    """Returns what FILL gives, and that or the value in gaps for each of the target's columns."""
    filling = filled_projections(stream, fill, projections)
    in_gaps: dict[int, FillColumn | SqlExpr] = {id(value): given for value, given in filling}
    scope, _ = stream.groups()
    for item, value in projections:
        if id(value) not in in_gaps:
            in_gaps[id(value)] = stream.compiled(item.expression, scope)
    return tuple(given for _, given in filling), [in_gaps.get(id(value), value) for value in bound.values]
