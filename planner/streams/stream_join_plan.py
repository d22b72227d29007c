"""CREATE STREAM over a join: what source tasks send of each side, and where these meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from penstock.planner.bind.expressions import compile_expression, condition_tree
from penstock.planner.bind.join_conditions import Equality
from penstock.planner.bind.join_reading import JoinReading
from penstock.planner.bind.query_parts import text_of
from penstock.planner.bind.scopes import Mark, RowScope, columns_of, fingerprint, mark_of
from penstock.planner.duckdb_sql.duckdb_tree import (
    Tree,
    cast,
    closed,
    fragment,
    made,
    named,
    render,
    select,
)
from penstock.planner.duckdb_sql.duckdb_tree import column as duckdb_column
from penstock.planner.duckdb_sql.group_ids import group_id, group_value
from penstock.planner.duckdb_sql.interval_windows import is_local, months_of
from penstock.planner.duckdb_sql.pieces import ordered, row_number, star
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.operators import Scan, Side
from penstock.planner.lower.duckdb.query_sql import lower
from penstock.planner.lower.targets import tolerant
from penstock.planner.query.batch_plan import BatchPlan
from penstock.planner.streams.dead_letters import plan_dlq
from penstock.planner.streams.stream_context import StreamContext
from penstock.planner.streams.stream_join_query import JoinQuery
from penstock.planner.streams.stream_joins import JoinedTables
from penstock.planner.task_plans.stream_plan import (
    Field,
    History,
    JoinDistribution,
    JoinPlan,
    JoinSide,
    Policies,
    SourceColumn,
    SourcePlan,
    TimeWindows,
)
from penstock.sql.schema import Column
from penstock.sql.tree.statements import IntervalWindow
from penstock.sql.tree.walking import conjuncts, found_in
from penstock.sql.types import (
    BIGINT,
    INTEGERS,
    STRINGS,
    UNITS_PER_SECOND,
    VARCHAR,
    DataType,
    Kind,
    Precision,
)

_DAY_S = 86_400
_LONGEST_MONTH_S = 31 * _DAY_S
_LONGEST_SHIFT_S = 4 * 3_600
"""By so much a day may be longer than 24 hours where clocks are put back."""


# --- where rows meet ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Routing:
    """What keeps results of one place together.

    `keys`: the equalities by whose values rows come together, and go to join tasks if there are several. `single`: why
    one join task must have all rows; empty if it needn't.
    """

    distribution: JoinDistribution
    reason: str
    keys: tuple[Equality, ...]
    single: str


def routing(stream: StreamContext, query: JoinedTables) -> Routing:
    """Returns how rows come together. All results that a place in the target ever has must come from one join task.

    A place is a group, a time, and the target's key column. Rows may change: were a result withdrawn by another task
    than writes the next one, either might come last.
    """
    join, described = query.reading, query.described
    partition = {key.mark for key in stream.keys}
    usable = [key for key in join.conditions.keys if _text_type(key, join.scope) is not None]
    in_partition = tuple(key for key in usable if {
        fingerprint(key.left, join.scope), fingerprint(key.right, join.scope)} & partition)
    by_row = _one_row_per_place(stream, query, partition)
    keys = in_partition or (tuple(usable) if by_row else ())
    if described.distribution == "vnode" and (by_row or _stays_on_vnode(stream, query, in_partition)):
        return Routing("vnode", described.reason, keys, "")
    reason = described.reason if described.distribution == "exchange" else (
        "groups of PARTITION BY have rows of several vnodes")
    if in_partition:
        names = ", ".join(text_of(key.left) for key in keys)
        return Routing("exchange", f"{reason}; rows go by {names}", keys, "")
    if not join.conditions.keys:
        why = "no values are equal on both sides"
    elif not partition:
        why = "all results are of one group, since there is no PARTITION BY"
    elif not usable:
        why = "what is equal on both sides has different types"
    elif by_row:
        why = "a row may get other values of what is equal on both sides, and stay in its group of PARTITION BY"
    else:
        why = "a group of PARTITION BY may have rows with different values of what is equal on both sides"
    return Routing("exchange", reason, keys, why)


def _one_row_per_place(stream: StreamContext, query: JoinedTables, partition: set[Mark]) -> bool:
    """Whether no two rows of the driving table give results of one place."""
    relation, join = query.driver, query.reading
    if stream.query.window is not None or query.both or relation.table is None or relation.table.key_column is not None:
        return False
    return has_own_time(stream, query) and (
        relation.table.kind != "super" or _has_name(join, join.driver, partition))


def has_own_time(stream: StreamContext, query: JoinedTables) -> bool:
    """Whether the time of a result is the start of its window, or that of its driving row."""
    if stream.query.window is not None:
        return True
    found = query.reading.scope.find(stream.query.items[0].expression)
    return not query.both and found is not None and found.origins[0] is query.driver.time


def _has_name(join: JoinReading, side: Side, partition: set[Mark]) -> bool:
    names = [column for column in join.sides.inside.columns
             if column.role == "tbname" and join.sides.of(column) == side]
    return any(mark_of(column) in partition for column in names)


def _stays_on_vnode(stream: StreamContext, query: JoinedTables, in_partition: Sequence[Equality]) -> bool:
    """Whether all rows of a group are on one vnode."""
    join = query.reading
    tables = [join.sides.left.table, join.sides.right.table]
    if all(table is not None and table.kind != "super" for table in tables):
        return True
    database = stream.catalog.database(stream.table.database)
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


def side_of(
    stream: StreamContext, query: JoinedTables, side: Side, scan: Scan, routed: Routing, policies: Policies, slack: int
) -> JoinSide:
    """Returns what source tasks send of one side: the columns of `scan`, for rows that may count.

    `slack`: by how much rows may be older than the time of their vnode and not be too late.
    """
    join = query.reading
    relation = join.sides.relation(side)
    table = relation.table
    assert table is not None
    scope = RowScope(relation, join.builder, "WHERE")
    condition = _own_condition(stream, query, side, scope)
    gid = fragment("0::UBIGINT")
    if routed.keys:
        parts = []
        for key in routed.keys:
            value = _key_value(key, side, scope, policies)
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
        time_column=table.time_column.name, group_is_table=False, precision=stream.precision,
        columns=tuple(SourceColumn(column.name, of_table[column.name].physical, column.type) for column in in_rows),
        tags=tuple(Field(tag.name, tag.type) for tag in table.tags), needs_children=needs_children, sql=sql,
        late_sql=None, expired_sql=None,
        key_column=None if table.key_column is None else table.key_column.name,
        history=History(None, None) if stream.statement.options.fill_history else None,
        used_tags=tuple(column.name for column in read if column.role == "tag"))
    dlq = plan_dlq(stream.statement.options, table, stream.precision, stream.catalog, stream.session)
    return JoinSide(source, columns, slack if policies.ignore_expired else None, dlq)


def _key_value(key: Equality, side: Side, scope: RowScope, policies: Policies) -> SqlExpr:
    """Returns what is equal, as the rows of one side have it."""
    value = compile_expression(key.left if side == "l" else key.right, scope)
    return tolerant(value) if policies.leaves_out_errors else value


def _columns(time: str, key: str | None, scanned: Sequence[str]) -> list[str]:
    """Returns the columns of a side's rows: what tells them apart comes first."""
    return list(dict.fromkeys([time, *([key] if key is not None else []), *scanned]))


def _own_condition(stream: StreamContext, query: JoinedTables, side: Side, scope: RowScope) -> Tree | None:
    """Returns what WHERE says about rows of this side alone, if those that it excludes can't count."""
    join = query.reading
    kept_whole = query.both or (
        side != join.driver and not (join.source.kind == "inner" and join.source.variant == ""))
    if kept_whole:
        return None
    whole: Tree | None = None
    for node in conjuncts(stream.query.where):
        if _is_about(node, side, join):
            one = closed(condition_tree(node, scope))
            whole = one if whole is None else made(exp.And, this=whole, expression=one)
    return whole


def _is_about(node: exp.Expression, side: Side, join: JoinReading) -> bool:
    columns = [join.scope.find(column) for column in columns_of(node)]
    return bool(columns) and all(column is not None and join.sides.of(column) == side for column in columns)


def newest_sql(query: JoinedTables, side: JoinSide, policies: Policies) -> str | None:
    """Returns SQL of those `rows` of the side that an ASOF join looks in which may still be the newest of their key.

    It is for rows that are older than any that will still look; None: any may count.
    """
    join = query.reading
    if join.source.variant != "asof" or join.conditions.others or query.reach[0] is not None:
        return None
    scope = RowScope(join.sides.relation(join.other), join.builder, "ON")
    keys = [_key_value(key, join.other, scope, policies) for key in join.conditions.keys]
    names = {column.name for column in side.columns}
    used = {column.name for key in join.conditions.keys
            for column in found_in(key.left if join.other == "l" else key.right, exp.Column)}
    if not used <= names:
        return None
    limit = max(1, query.described.limit or 1)
    called = [named(duckdb_column(f"r{n}"), column.name) for n, column in enumerate(side.columns)]
    order = ["r0", "_tuid", *(["r1"] if side.source.key_column is not None else [])]
    place = row_number([group_value(key.node, key.type) for key in keys],
                       [ordered(duckdb_column(name), descending=True) for name in order])
    shown = [duckdb_column(name) for name in ("_gid", "_tuid", *(f"r{n}" for n in range(len(side.columns))))]
    return render(select(shown, select([star(), *called], "rows"),
                         qualify=fragment(":place <= :limit", place=place, limit=limit)))


# --- all of it ------------------------------------------------------------------------------------------------


def plan_join(
    stream: StreamContext, query: JoinedTables, asked: JoinQuery, casts: Sequence[Tree], policies: Policies
) -> JoinPlan:
    """Returns what the tasks of a join compute. `casts`: the result columns, over the batch query's `o0`, ..."""
    window = stream.query.window
    assert window is None or isinstance(window, IntervalWindow)
    width = _width(window, stream.precision, stream.session.time_zone) if window is not None else 0
    start, end = query.reach
    assert end is not None
    routed = routing(stream, query)
    waits = max(end, 0)  # so long a driving row may wait for partners
    back = 0 if start is None else max(-start, 0)
    if query.both:
        waits = back = max(waits, back)
    driver_slack, other_slack = waits + width, back + width
    # Rows that come in time change results of driving rows up to so far behind.
    kept = max(driver_slack, other_slack + max(end, 0)) + width
    scans = asked.batch.scans
    database = stream.catalog.database(scans[1].table.database)
    assert database is not None
    drives_left = query.reading.driver == "l"
    slacks = (driver_slack, other_slack) if drives_left else (other_slack, driver_slack)
    left = side_of(stream, query, "l", scans[0], routed, policies, slacks[0])
    right = side_of(stream, query, "r", scans[1], routed, policies, slacks[1])
    if drives_left:
        right = replace(right, newest_sql=newest_sql(query, right, policies))
    else:
        left = replace(left, newest_sql=newest_sql(query, left, policies))
    return JoinPlan(
        left, right, _sql(stream, query, asked.batch, casts, (left, right)),
        _sql(stream, query, asked.alone, casts, (left, right)),
        driver="left" if drives_left else "right", start=start, end=end, both=query.both,
        windows=None if window is None else TimeWindows(window, stream.precision, stream.session.time_zone),
        width=width, waits=waits, kept=kept if policies.ignore_expired else max(kept, policies.delete_mark),
        distribution=routed.distribution, reason=routed.reason, single=routed.single,
        right_vgroup_ids=database.vgroup_ids)


def _width(window: IntervalWindow, precision: Precision, time_zone: str) -> int:
    """Returns how long a window may be at most."""
    per_second = UNITS_PER_SECOND[precision]
    if window.interval.is_calendar:
        return (months_of(window.interval) * _LONGEST_MONTH_S + _LONGEST_SHIFT_S) * per_second
    local = _LONGEST_SHIFT_S * per_second if is_local(window, time_zone) else 0
    return window.interval.in_units(precision) + local


def _sql(stream: StreamContext, query: JoinedTables, batch: BatchPlan, casts: Sequence[Tree],
         sides: tuple[JoinSide, JoinSide]) -> str:
    """Returns the batch query over the rows of both sides, in the columns of result blocks."""
    steps = []
    for scan, side, rows in zip(batch.scans, sides, ("left_rows", "right_rows"), strict=True):
        places = {column.name: n for n, column in enumerate(side.columns)}
        columns = [named(duckdb_column(f"r{places[name]}"), name) for name in scan.columns]
        steps.append((scan.name, select([duckdb_column("_tuid"), *columns], rows)))
    steps.append(("#result", lower(batch.plan)))
    keys = stream.keys
    width = len(keys)
    at: Tree = exp.null()
    if stream.query.window is not None:
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
