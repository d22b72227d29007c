"""FORCE_WINDOW_CLOSE: a stream's query as SQL over the rows of the windows that the clock has just ended.

The batch planner compiles the query, so that all its functions are there, also TWA, ELAPSED and INTERP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from penstock.common.errors import InternalError, InvalidStreamError
from penstock.planner.batch_plan import BatchPlan
from penstock.planner.duckdb_tree import (
    Tree,
    cast,
    everything,
    fragment,
    named,
    number,
    render,
    select,
    text,
    with_step,
)
from penstock.planner.duckdb_tree import column as duckdb_column
from penstock.planner.group_ids import group_id
from penstock.planner.lower.duckdb.query import lower
from penstock.planner.lower.stages import TBNAME, SourceRows, source_plan
from penstock.planner.plan import PlanNode, SqlExpr
from penstock.planner.query_parts import text_of
from penstock.planner.scopes import columns_of, vector_calls
from penstock.planner.select import plan_query
from penstock.planner.stream import INSTANT, FillPlan, ForcePlan, SourcePlan, StreamPlan
from penstock.planner.stream_fill import Filled, is_filled, plan_fill
from penstock.planner.windows import grid_of
from penstock.sql.dialect import DurationLiteral
from penstock.sql.schema import Column
from penstock.sql.statements import IntervalWindow, Range, Select, SelectItem
from penstock.sql.types import UNITS_PER_SECOND, Kind, timestamp

if TYPE_CHECKING:
    from penstock.planner.stream_planner import _Planner

_ENDS = (4_000_000_000_000_000_001, 4_000_000_000_000_000_002)
"""What the ends of the grid are planned as, which a run doesn't know before it comes to its instant."""
_WINDOW_FILLS = ("none", "null", "null_f", "value", "value_f", "prev")
_INSTANT_FILLS = ("null", "null_f", "value", "value_f", "prev")
_LOOKING_BACK = ("twa", "elapsed", "interp")


def plan_force(planner: _Planner, condition: Tree | None) -> StreamPlan:
    """Returns the plan of a stream that runs by the clock.

    `condition` is the compiled WHERE. Raises what `plan_query` raises, and InvalidStreamError for what this trigger
    doesn't allow.
    """
    query = planner.query
    functions = {str(call.this) for item in query.items for call in vector_calls(item.expression)}
    instants = "interp" in functions
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
    sink, casts = planner.sink(projections, prepended=len(projections) > len(items))
    fill = None
    if query.fill is not None and query.fill.mode != "none" and not instants:
        fill, casts = _fill(planner, window, projections, sink.columns, casts)
    source = _source(planner, batch)
    sql = render(_sql(planner, batch, casts, instants, window, source.needs_children))
    keep = functions & set(_LOOKING_BACK)
    force = ForcePlan(
        window, planner.precision, planner.session.time_zone, sql,
        render(_keep_sql(planner, condition, source)) if keep else None, instants,
        alone=bool(keep), created=planner.session.now_ms * UNITS_PER_SECOND[planner.precision] // 1_000)
    tree = PlanNode("Stream", (
        ("trigger", "force_window_close"), *((("fill", query.fill.mode),) if query.fill is not None else ()),
        *((("timezone", planner.session.time_zone),) if planner.statement.options.timezone is not None else ()),
        ("into", sink.text)), (batch.tree,))
    return StreamPlan(
        source_database=planner.table.database, source_table=planner.table.name, trigger="force_window_close",
        watermark=0, ignore_expired=True, ignore_update=True, time_zone=planner.session.time_zone,
        keys=tuple(key.field for key in planner.keys), source=replace(source, sql=sql), agg=None, sink=sink,
        colocated=True, tree=tree, fill=fill, force=force)


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
        span = Range(*map(exp.Literal.number, _ENDS))
    return Select(
        items=(*keys, SelectItem(exp.column(time_name), "_at", "_at"), *items), source=query.source, where=query.where,
        partition_by=query.partition_by, window=window, fill=query.fill if window is None else None, range=span,
        every=query.every, source_text=query.source_text)


def _source(planner: _Planner, batch: BatchPlan) -> SourcePlan:
    for name in batch.scans[0].columns:
        if name == TBNAME:
            planner.needs_children = True
        else:
            planner.use(name)
    rows = planner.source_rows(None)
    of_super_table = planner.table.kind == "super"
    found = source_plan(rows, "", group_is_table=of_super_table and rows.group_is_table)
    return replace(found, needs_children=planner.table.kind != "normal" and found.needs_children)


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
    rows = planner.source_rows(None)
    keys = [key.field.name for key in planner.keys]
    count = len(batch.columns) - len(keys) - 1
    query = lower(batch.plan)
    for end in list(query.find_all(exp.Literal)) if instants else ():
        if not end.is_string and end.this.isdigit() and int(end.this) in _ENDS:
            end.replace(exp.Placeholder(this=INSTANT))
    body = with_step(batch.scans[0].name, _base(planner, needs_children), query)
    start = fragment("_at - :step", step=window.interval.in_units(planner.precision)) if instants else fragment("_at")
    values = [fragment("0::UTINYINT AS _op"), named(_gid(planner, rows), "_gid")]
    values += [named(cast(duckdb_column(key.field.name), key.field.duckdb()), key.field.name)
               for key in planner.keys]
    values += [named(cast, f"r{n}") for n, cast in enumerate(casts)]
    found = exp.Subquery(this=body, alias=exp.TableAlias(
        this=exp.to_identifier("q"),
        columns=[exp.to_identifier(name, quoted=True) for name in (*keys, "_at", *(f"c{n}" for n in range(count)))]))
    whole = select([*values, named(start, "_start")], found)
    if rows.group_is_table and planner.table.kind == "super":
        name = next(key.field.name for key in planner.keys if key.column == TBNAME)
        whole.append("joins", exp.Join(
            this=exp.Subquery(this=fragment("SELECT _tuid, tbname FROM children"), alias=exp.TableAlias(
                this=exp.to_identifier("c"))),
            on=fragment("c.tbname = :name", name=duckdb_column(name, "q"))))
    return whole


def _keep_sql(planner: _Planner, condition: Tree | None, source: SourcePlan) -> Tree:
    """The newest row per group, and the newest that has a value, for each column."""
    partition = [duckdb_column("_tuid"), *(key.value.node for key in planner.keys if key.partitions)]
    ts = planner.table.time_column.name

    def newest(aggregate: Tree) -> Tree:
        over = exp.Window(this=aggregate, partition_by=[node.copy() for node in partition])
        return fragment(":ts = :newest", ts=duckdb_column(ts), newest=over)

    found = newest(fragment("max(:ts)", ts=duckdb_column(ts)))
    for column in source.columns:
        if column.type.kind is not Kind.TIMESTAMP or column.name != ts:
            found = exp.Or(this=found, expression=newest(fragment(
                "max(:ts) FILTER (WHERE :value IS NOT NULL)", ts=duckdb_column(ts), value=duckdb_column(column.name))))
    columns = [duckdb_column("_tuid"), *(duckdb_column(column.name) for column in source.columns)]
    return select(columns, _base(planner, source.needs_children), where=condition, qualify=found)


def _fill(
    planner: _Planner, window: IntervalWindow, projections: Sequence[tuple[SelectItem, SqlExpr]],
    columns: Sequence[Column], casts: list[Tree],
) -> tuple[FillPlan, list[Tree]]:
    from penstock.planner.expressions import compile_expression
    from penstock.planner.stream_planner import ResultScope, RowScope, converted

    fill = planner.query.fill
    assert fill is not None
    scope = ResultScope(planner, RowScope(planner), window)
    filled = []
    for item, value in projections:
        plain = None
        if not is_filled(item.expression, lambda name: planner.key(name) is not None):
            plain = compile_expression(item.expression, scope)
        filled.append(Filled(value, plain))
    return plan_fill(fill, filled, planner.bound, casts, columns, planner.fill_context(window), converted)
