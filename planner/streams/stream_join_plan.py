"""CREATE STREAM over a join: what source tasks send of each side, and the query that join tasks run over both.

The batch planner compiles the query, so that a stream and the same SELECT give the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from penstock.common.errors import InternalError, InvalidStreamError, NotSupportedError, Position
from penstock.planner.bind.binder import Relation
from penstock.planner.bind.expressions import compile_expression, condition_tree
from penstock.planner.bind.join_conditions import Equality, sides_of
from penstock.planner.bind.join_reading import JoinReading
from penstock.planner.bind.query_parts import text_of
from penstock.planner.bind.scopes import (
    Mark,
    RowScope,
    columns_of,
    conjuncts,
    fingerprint,
    mark_of,
    vector_calls,
    vector_spec,
)
from penstock.planner.duckdb_sql.duckdb_tree import (
    Tree,
    cast,
    closed,
    everything,
    fragment,
    made,
    named,
    render,
    select,
)
from penstock.planner.duckdb_sql.duckdb_tree import column as duckdb_column
from penstock.planner.duckdb_sql.group_ids import group_id, group_value
from penstock.planner.duckdb_sql.interval_windows import is_local, months_of
from penstock.planner.duckdb_sql.pieces import ordered, row_number
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.operators import Scan, Side
from penstock.planner.lower.duckdb.query_sql import lower
from penstock.planner.query.batch_plan import BatchPlan
from penstock.planner.query.select import plan_query
from penstock.planner.streams.dead_letters import plan_dlq
from penstock.planner.streams.stream_joins import StreamJoin, read_stream_join
from penstock.planner.task_plans.stream_plan import (
    Field,
    History,
    JoinMeeting,
    JoinPlan,
    JoinSide,
    SourceColumn,
    SourcePlan,
    TimeWindows,
)
from penstock.sql.schema import Column
from penstock.sql.tree.statements import IntervalWindow, JoinSource, PartitionItem, SelectItem
from penstock.sql.types import (
    BIGINT,
    INTEGERS,
    STRINGS,
    UNITS_PER_SECOND,
    VARCHAR,
    DataType,
    Kind,
    Precision,
    timestamp,
)

if TYPE_CHECKING:
    from penstock.planner.streams.stream_planner import _Planner

_DAY_S = 86_400
_LONGEST_MONTH_S = 31 * _DAY_S
_LONGEST_SHIFT_S = 4 * 3_600
"""By so much a day may be longer than 24 hours where clocks are put back."""


@dataclass(frozen=True, slots=True)
class JoinQuery:
    """The query of a join: `sql` of the batch planner gives keys, `hidden` columns and the projections.

    `alone` gives the same of driving rows that have no partner.
    """

    batch: BatchPlan
    alone: BatchPlan
    hidden: int
    items: Sequence[SelectItem]


@dataclass(frozen=True, slots=True)
class StreamQuery:
    """A stream's join, as read and as it runs, while it is planned."""

    join: JoinReading
    described: StreamJoin

    @property
    def driver(self) -> Relation:
        return self.join.sides.relation(self.join.driver)

    @property
    def both(self) -> bool:
        return self.join.source.kind == "full"


def read_stream(planner: _Planner) -> StreamQuery:
    """Returns the join that a stream reads; raises as `read_stream_join`, and for what none can do."""
    source = planner.query.source
    assert isinstance(source, JoinSource)
    join, described = read_stream_join(planner.statement, source, planner.catalog, planner.session)
    query = StreamQuery(join, described)
    if described.meeting != "lookup" and _reach(query)[1] is None:
        raise NotSupportedError("a stream cannot look for the next row of the other table: it would wait for ever",
                                position=_place(query, planner), hint="compare with >= or >: the newest row before")
    return query


def _place(query: StreamQuery, planner: _Planner) -> Position | None:
    on = query.join.source.on
    return planner.position(on) if on is not None else None


def _reach(query: StreamQuery) -> tuple[int | None, int | None]:
    """Returns the bounds of the other side's time minus the driver's."""
    start, end = query.described.start, query.described.end
    if query.join.driver == "l":
        return start, end
    return None if end is None else -end, None if start is None else -start


# --- the query ------------------------------------------------------------------------------------------------


def plan_join_query(planner: _Planner, query: StreamQuery) -> JoinQuery:
    """Returns the batch plan; raises what `plan_query` raises, and InvalidStreamError for what no stream can do."""
    select = planner.query
    window = select.window
    if window is not None and not isinstance(window, IntervalWindow):
        raise InvalidStreamError("windows over a join in a stream are INTERVAL windows")
    if select.fill is not None:
        raise InvalidStreamError("FILL is not for joins in streams", hint="fill when you query the result table")
    _check_functions(planner, query, window)
    hidden = _hidden(query, window)
    keys = [SelectItem(item.expression, f"#k{n}", item.text) for n, item in enumerate(_partition(planner, query))]
    _check_places(planner, query, window)
    asked = select.with_changes(
        items=(*keys, *hidden, *select.items), source_text=planner.statement.source_text,
        partition_by=select.partition_by if window is not None else ())
    batch = plan_query(asked, planner.catalog, planner.session, ordered=False)
    alone = batch
    if query.join.source.kind == "inner" or query.join.source.variant in ("semi", "anti"):
        alone = plan_query(asked.with_changes(source=_outer(query), where=None), planner.catalog, planner.session,
                           ordered=False)
    if len(batch.scans) != 2 or batch.tables:
        raise InternalError("the query of a join reads something else than its two tables")
    names = [column.name for column in batch.columns[len(keys) + len(hidden):]]
    items: Sequence[SelectItem] = select.items
    if len(names) != len(items):
        items = [SelectItem(exp.Star(), None, name) for name in names]
    return JoinQuery(batch, alone, len(hidden), short_names(items, names))


def short_names(items: Sequence[SelectItem], names: Sequence[str] | None = None) -> list[SelectItem]:
    """Returns the items with the names of the result's columns: for `a.v` that is `v`, unless another is called that.

    `names`: what they are called otherwise.
    """
    if names is None:
        names = [item.name for item in items]
    short = [item.expression.name if item.alias is None and isinstance(item.expression, exp.Column) else name
             for item, name in zip(items, names, strict=True)]
    return [item.with_changes(alias=one if short.count(one) == 1 else name)
            for item, one, name in zip(items, short, names, strict=True)]


def _outer(query: StreamQuery) -> JoinSource:
    """Returns a join that keeps all rows of the driving side, whatever their partners."""
    join = query.join
    times = []
    for relation in (join.sides.left, join.sides.right):
        assert relation.time is not None
        times.append(exp.column(exp.to_identifier(relation.time.name, quoted=True),
                                exp.to_identifier(relation.qualifiers[0], quoted=True)))
    return join.source.with_changes(kind="left" if join.driver == "l" else "right", variant="", jlimit=None,
                                    on=exp.EQ(this=times[0], expression=times[1]))


def _check_places(planner: _Planner, query: StreamQuery, window: IntervalWindow | None) -> None:
    """Checks that each driving row tells the group and the time of its results, whatever its partners.

    So they are known to be withdrawn, also if it was before a failure that they were written.
    """
    nodes = [item.expression for item in planner.query.partition_by]
    if window is None and not query.both:
        nodes.append(planner.query.items[0].expression)
    for node in nodes:
        sides = sides_of(node, query.join.sides, query.join.scope)
        if query.both and len(sides) == 1:
            raise InvalidStreamError(
                "PARTITION BY over a FULL join must be made of both sides", position=planner.position(node),
                hint="CASE WHEN a.k IS NULL THEN b.k ELSE a.k END, since rows of either side may stand alone")
        if not query.both and sides - {query.join.driver}:
            name = query.driver.qualifiers[0]
            raise InvalidStreamError(
                f"PARTITION BY and the first column must be made of columns of {name}, whose rows drive the join",
                position=planner.position(node), hint=f"write the equal column of {name}, or swap the tables")


def _hidden(query: StreamQuery, window: IntervalWindow | None) -> list[SelectItem]:
    """Returns what the query gives beside keys and projections: where its rows are in time."""
    if window is not None:
        return [SelectItem(exp.column(name), f"#{name}", name) for name in ("_wstart", "_wend")]
    if not query.both:
        return []
    return [SelectItem(exp.column(exp.to_identifier(relation.time.name, quoted=True), exp.to_identifier(
                relation.qualifiers[0], quoted=True)), f"#{n}", relation.time.name)
            for n, relation in enumerate((query.join.sides.left, query.join.sides.right))
            if relation.time is not None]


def _partition(planner: _Planner, query: StreamQuery) -> list[PartitionItem]:
    """Returns what tells groups apart: constants don't."""
    return [item for item in planner.query.partition_by
            if not isinstance(item.expression, exp.Literal)
            and compile_expression(item.expression, query.join.scope).constant is None]


def _check_functions(planner: _Planner, query: StreamQuery, window: IntervalWindow | None) -> None:
    per_row = query.join.source.variant == "window"
    called = False
    for item in planner.query.items:
        for call in vector_calls(item.expression):
            called = True
            spec = vector_spec(call)
            if spec is None or not spec.in_stream or spec.only_force_window_close or spec.category == "timeseries":
                raise InvalidStreamError(f"{call.this} is not allowed in a stream over a join", code=0x265A,
                                         position=planner.position(call))
            if window is None and not per_row:
                raise InvalidStreamError(f"{call.this} needs a window in a stream", position=planner.position(call),
                                         hint="add INTERVAL(...)")
    if window is not None and not called:
        raise InvalidStreamError("a window needs at least one aggregate function",
                                 hint="for example count(*) or avg(column)")
    if window is not None and (per_row or query.both):
        what = "a WINDOW JOIN groups rows itself" if per_row else "the rows of a FULL join have no time line in common"
        raise InvalidStreamError(f"{what}: no INTERVAL beside it")


def projections_of(planner: _Planner, query: StreamQuery, asked: JoinQuery) -> tuple[
        list[tuple[SelectItem, SqlExpr]], bool]:
    """Returns the projections, the primary timestamp first, and whether that was put before them.

    Raises InvalidStreamError if there is none.
    """
    width = len(planner.keys)
    columns = asked.batch.columns
    values = [SqlExpr(duckdb_column(f"o{n}"), columns[n].type) for n in range(width + asked.hidden, len(columns))]
    projections = list(zip(asked.items, values, strict=True))
    first = planner.query.items[0].expression
    if planner.query.window is None:
        if values[0].type.kind is not Kind.TIMESTAMP:
            time = query.driver.time
            raise InvalidStreamError(
                "the first column of a stream must be a timestamp", position=planner.position(first),
                hint=f"start the list with {query.driver.qualifiers[0]}.{time.name}" if time is not None else None)
        return projections, False
    if isinstance(first, exp.Column) and first.name == "_wstart":
        return projections, False
    names = [item.name for item in asked.items]
    name = next(name for name in ("_wstart", "ts", "_wstart_") if name not in names)
    start = SelectItem(exp.column("_wstart"), name, name)
    return [(start, SqlExpr(duckdb_column(f"o{width}"), timestamp(planner.precision))), *projections], True


# --- where rows meet ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Routing:
    """What keeps results of one place together: the equalities whose values tell where rows go.

    `single`: why one join task must have all rows; empty if it needn't.
    """

    meeting: JoinMeeting
    reason: str
    keys: tuple[Equality, ...]
    single: str


def routing(planner: _Planner, query: StreamQuery) -> Routing:
    """Returns how rows come together. Two results of one place in the target must come from one join task.

    A place is a group, a time, and the target's key column.
    """
    join, described = query.join, query.described
    partition = {fingerprint(item.expression, join.scope) for item in _partition(planner, query)}
    usable = [key for key in join.conditions.keys if _text_type(key, join.scope) is not None]
    in_partition = tuple(key for key in usable if {
        fingerprint(key.left, join.scope), fingerprint(key.right, join.scope)} & partition)
    by_row = _one_row_per_place(planner, query, partition)
    keys = in_partition or (tuple(usable) if by_row else ())
    if described.meeting == "vnode" and (by_row or _stays_on_vnode(planner, query, in_partition)):
        return Routing("vnode", described.reason, keys, "")
    reason = described.reason if described.meeting == "exchange" else (
        "groups of PARTITION BY have rows of several vnodes")
    if keys:
        return Routing("exchange", f"{reason}; rows go by {', '.join(text_of(key.left) for key in keys)}", keys, "")
    if not join.conditions.keys:
        why = "no values are equal on both sides"
    elif not partition:
        why = "all results are of one group, since there is no PARTITION BY"
    elif not usable:
        why = "what is equal on both sides has different types"
    else:
        why = "a group of PARTITION BY may have rows with different values of what is equal on both sides"
    return Routing("exchange", reason, (), why)


def _one_row_per_place(planner: _Planner, query: StreamQuery, partition: set[Mark]) -> bool:
    """Whether no two rows of the driving table give results of one place."""
    relation, join = query.driver, query.join
    first = planner.query.items[0].expression
    if planner.query.window is not None or query.both or relation.table is None or relation.time is None:
        return False
    if relation.table.key_column is not None or not isinstance(first, exp.Column):
        return False
    found = join.scope.find(first)
    if found is None or found.origins[0] is not relation.time:
        return False
    return relation.table.kind != "super" or _has_name(join, join.driver, partition)


def _has_name(join: JoinReading, side: Side, partition: set[Mark]) -> bool:
    names = [column for column in join.sides.inside.columns
             if column.role == "tbname" and join.sides.of(column) == side]
    return any(mark_of(column) in partition for column in names)


def _stays_on_vnode(planner: _Planner, query: StreamQuery, in_partition: Sequence[Equality]) -> bool:
    """Whether all rows of a group are on one vnode."""
    join = query.join
    tables = [join.sides.left.table, join.sides.right.table]
    if all(table is not None and table.kind != "super" for table in tables):
        return True
    database = planner.catalog.database(planner.table.database)
    if database is not None and len(database.vgroup_ids) == 1:
        return True
    return any(column is not None and column.role == "tbname"
               for key in in_partition for column in (join.scope.find(key.left), join.scope.find(key.right)))


def _text_type(key: Equality, scope: RowScope) -> DataType | None:
    """Returns the type in which the values of both sides have equal texts if they are equal, None if there is none."""
    kinds = {compile_expression(part, scope).type.kind for part in (key.left, key.right)}
    if kinds <= set(STRINGS):
        return VARCHAR
    if kinds <= set(INTEGERS) or (len(kinds) == 1 and kinds <= {Kind.BOOL, Kind.TIMESTAMP}):
        return BIGINT
    return None


# --- the sides ------------------------------------------------------------------------------------------------


def side_of(planner: _Planner, query: StreamQuery, side: Side, scan: Scan, routed: Routing, slack: int | None
            ) -> JoinSide:
    """Returns what source tasks send of one side: the columns of `scan`, for rows that may count."""
    join = query.join
    relation = join.sides.relation(side)
    table = relation.table
    assert table is not None
    scope = RowScope(relation, join.builder, "WHERE")
    condition = _own_condition(planner, query, side, scope)
    gid = fragment("0::UBIGINT")
    if routed.keys:
        parts = []
        for key in routed.keys:
            value = compile_expression(key.left if side == "l" else key.right, scope)
            type_ = _text_type(key, join.scope)
            assert type_ is not None
            parts.append((value.node, type_))
        gid = group_id(parts)
    names = _columns(table.time_column.name, None if table.key_column is None else table.key_column.name, scan.columns)
    # What conditions and keys read need not cross to a join task.
    read = [column for column in relation.columns if column.used or column.name in names]
    in_rows = [column for column in read if column.role == "column"]
    of_table = {column.name: column for column in (*table.columns, *table.tags)}
    known = {column.name: column for column in relation.columns}
    columns = tuple(Column(name, known[name].type, name, primary_key=table.key_column is not None and place == 1)
                    for place, name in enumerate(names))
    needs_children = any(column.role != "column" for column in read)
    base = fragment("SELECT r.*, c.* EXCLUDE (_tuid) FROM rows AS r LEFT JOIN children AS c USING (_tuid)"
                    if needs_children else "SELECT * FROM rows")
    values = [named(duckdb_column(name), f"r{n}") for n, name in enumerate(names)]
    sql = render(select([fragment("_tuid AS _row"), named(gid, "_gid"), duckdb_column("_tuid"), *values], "base",
                        where=condition, steps=[("base", base)]))
    source = SourcePlan(
        database=table.database, table=table.name, storage_uid=table.storage_uid,
        keep_tuid=None if table.kind == "super" else table.uid,
        time_column=table.time_column.name, group_is_table=False, precision=planner.precision,
        columns=tuple(SourceColumn(column.name, of_table[column.name].physical, column.type) for column in in_rows),
        tags=tuple(Field(tag.name, tag.type) for tag in table.tags), needs_children=needs_children, sql=sql,
        late_sql=None, expired_sql=None,
        key_column=None if table.key_column is None else table.key_column.name,
        history=History(None, None) if planner.statement.options.fill_history else None)
    dlq = plan_dlq(planner.statement.options, table, planner.precision, planner.catalog, planner.session)
    return JoinSide(source, columns, slack, dlq)


def _columns(time: str, key: str | None, scanned: Sequence[str]) -> list[str]:
    """Returns the columns of a side's rows: what tells them apart comes first."""
    return list(dict.fromkeys([time, *([key] if key is not None else []), *scanned]))


def _own_condition(planner: _Planner, query: StreamQuery, side: Side, scope: RowScope) -> Tree | None:
    """Returns what WHERE says about rows of this side alone, if those that it excludes can't count."""
    join = query.join
    kept_whole = query.both or (
        side != join.driver and not (join.source.kind == "inner" and join.source.variant == ""))
    if kept_whole:
        return None
    whole: Tree | None = None
    for node in conjuncts(planner.query.where):
        if _is_about(node, side, join):
            one = closed(condition_tree(node, scope))
            whole = one if whole is None else made(exp.And, this=whole, expression=one)
    return whole


def _is_about(node: exp.Expression, side: Side, join: JoinReading) -> bool:
    columns = [join.scope.find(column) for column in columns_of(node)]
    return bool(columns) and all(column is not None and join.sides.of(column) == side for column in columns)


def newest_sql(query: StreamQuery, side: JoinSide) -> str | None:
    """Returns SQL of those `rows` of the side that an ASOF join looks in which may still be the newest of their key.

    It is for rows that are older than any that will still look; None: any may count.
    """
    join = query.join
    if join.source.variant != "asof" or join.conditions.others or _reach(query)[0] is not None:
        return None
    scope = RowScope(join.sides.relation(join.other), join.builder, "ON")
    keys = [compile_expression(key.left if join.other == "l" else key.right, scope) for key in join.conditions.keys]
    names = {column.name for column in side.columns}
    used = {column.name for key in join.conditions.keys
            for column in (key.left if join.other == "l" else key.right).find_all(exp.Column)}
    if not used <= names:
        return None
    limit = max(1, query.described.limit or 1)
    called = [named(duckdb_column(f"r{n}"), column.name) for n, column in enumerate(side.columns)]
    order = ["r0", "_tuid", *(["r1"] if side.source.key_column is not None else [])]
    place = row_number([group_value(key.node, key.type) for key in keys],
                       [ordered(duckdb_column(name), descending=True) for name in order])
    shown = [duckdb_column(name) for name in ("_gid", "_tuid", *(f"r{n}" for n in range(len(side.columns))))]
    return render(select(shown, select([everything(), *called], "rows"),
                         qualify=fragment(":place <= :limit", place=place, limit=limit)))


# --- all of it ------------------------------------------------------------------------------------------------


def plan_join(planner: _Planner, query: StreamQuery, asked: JoinQuery, casts: Sequence[Tree], *, ignore_expired: bool
              ) -> JoinPlan:
    """Returns what the tasks of a join compute. `casts`: the result columns, over the batch query's `o0`, ..."""
    window = planner.query.window
    assert window is None or isinstance(window, IntervalWindow)
    width = _width(window, planner.precision, planner.session.time_zone) if window is not None else 0
    start, end = _reach(query)
    assert end is not None
    routed = routing(planner, query)
    waits = max(end, 0)  # so long a driving row may wait for partners
    back = 0 if start is None else max(-start, 0)
    if query.both:
        waits = back = max(waits, back)
    driver_slack, other_slack = waits + width, back + width
    # Rows that come in time change results of driving rows up to so far behind.
    kept = max(driver_slack, other_slack + max(end, 0)) + width
    scans = asked.batch.scans
    database = planner.catalog.database(scans[1].table.database)
    assert database is not None
    slacks = {join_side: (driver_slack if join_side == query.join.driver else other_slack) if ignore_expired else None
              for join_side in ("l", "r")}
    left = side_of(planner, query, "l", scans[0], routed, slacks["l"])
    right = side_of(planner, query, "r", scans[1], routed, slacks["r"])
    if query.join.driver == "l":
        right = replace(right, newest_sql=newest_sql(query, right))
    else:
        left = replace(left, newest_sql=newest_sql(query, left))
    return JoinPlan(
        left, right, _sql(planner, query, asked.batch, casts, (left, right)),
        _sql(planner, query, asked.alone, casts, (left, right)),
        driver="left" if query.join.driver == "l" else "right", start=start, end=end, both=query.both,
        windows=None if window is None else TimeWindows(window, planner.precision, planner.session.time_zone),
        width=width, waits=waits, kept=kept if ignore_expired else max(kept, planner.delete_mark()),
        meeting=routed.meeting, reason=routed.reason, single=routed.single, right_vgroup_ids=database.vgroup_ids)


def _width(window: IntervalWindow, precision: Precision, time_zone: str) -> int:
    """Returns how long a window may be at most."""
    per_second = UNITS_PER_SECOND[precision]
    if window.interval.is_calendar:
        return (months_of(window.interval) * _LONGEST_MONTH_S + _LONGEST_SHIFT_S) * per_second
    local = _LONGEST_SHIFT_S * per_second if is_local(window, time_zone) else 0
    return window.interval.in_units(precision) + local


def _sql(planner: _Planner, query: StreamQuery, batch: BatchPlan, casts: Sequence[Tree],
         sides: tuple[JoinSide, JoinSide]) -> str:
    """Returns the batch query over the rows of both sides, in the columns of result blocks."""
    steps = []
    for scan, side, rows in zip(batch.scans, sides, ("left_rows", "right_rows"), strict=True):
        places = {column.name: n for n, column in enumerate(side.columns)}
        columns = [named(duckdb_column(f"r{places[name]}"), name) for name in scan.columns]
        steps.append((scan.name, select([duckdb_column("_tuid"), *columns], rows)))
    steps.append(("#result", lower(batch.plan)))
    keys = planner.keys
    width = len(keys)
    at: Tree = exp.null()
    if planner.query.window is not None:
        at = duckdb_column(f"o{width + 1}")
    elif query.both:
        at = fragment("coalesce(:left, :right) + 1", left=duckdb_column(f"o{width}"),
                      right=duckdb_column(f"o{width + 1}"))
    gid = group_id([(key.value.node, key.field.type) for key in keys]) if keys else fragment("0::UBIGINT")
    values = [named(cast(at, "BIGINT"), "_at"), fragment("0::UTINYINT AS _op"), named(gid, "_gid")]
    values += [named(cast(group_value(key.value.node, key.field.type), key.field.duckdb()), key.field.name)
               for key in keys]
    values += [named(cast, f"r{n}") for n, cast in enumerate(casts)]
    return render(select(values, "#result", steps=steps))
