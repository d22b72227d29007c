"""Binds joins: inner, left, right, full, and their SEMI, ANTI, ASOF and WINDOW variants, as one relation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from sqlglot import exp

from penstock.planner.bind.binder import STAR, Builder, Plan, Relation, RelColumn, find_column, numbered, used
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.join_conditions import Equality, TimeComparison
from penstock.planner.bind.join_reading import JoinReading, read_join
from penstock.planner.bind.scopes import RowScope, condition_of
from penstock.planner.duckdb_sql.duckdb_tree import all_of, call, fragment
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import ColumnExpr, Computed
from penstock.planner.logical.operators import (
    Join,
    JoinColumn,
    JoinedRows,
    JoinKey,
    JoinRange,
    JoinTime,
    Lateral,
    Operator,
    Project,
)
from penstock.planner.scalar.common_type import common_type
from penstock.planner.scalar.scalar_compare import Comparer
from penstock.sql.tree.statements import JoinSource, Select, SelectItem, SubquerySource
from penstock.sql.tree.walking import conjuncts
from penstock.sql.types import BOOL, INTEGERS


def bind_join(source: JoinSource, left: Relation, right: Relation, where: exp.Expression | None,
              builder: Builder) -> Relation:
    """Returns the joined relation. `where` is the WHERE clause of the query: it may hold conditions of an inner join.

    Raises as `read_join`.
    """
    if source.variant in ("semi", "anti") and source.kind == "inner":
        joined = bind_join(source.with_changes(kind="left"), left, right, where, builder)
        kept = joined.columns[:len(left.columns)]
        own = {id(column) for column in kept}
        return replace(
            joined, columns=kept, star=tuple(column for column in joined.star if id(column) in own),
            qualifiers=left.qualifiers, times=tuple(each for each in joined.times if id(each[0]) in own),
            same_times=tuple(column for column in joined.same_times if id(column) in own), homes=left.homes)
    merged = _merged(source, left, right, builder)
    if merged:
        source = source.with_changes(on=_compared(merged, left, right, nearest=source.nearest))
    if source.nearest:
        _check_nearest(source, builder)
    join = read_join(source, left, right, where, builder, on_anything=not builder.of_stream)
    conditions = [join.on] if join.on is not None else []
    # What WHERE says of both sides is said here, too: it must not wait until all pairs are numbered.
    conditions += [condition_of(node, join.scope) for node in join.elsewhere]
    times = [_time(time, join) for time in join.conditions.times]
    limit = source.jlimit
    if source.variant == "asof" and not times:
        times = [_not_later(join)]
        template = ":left >= :right" if times[0].comparison == ">=" else ":left <= :right"
        conditions.append(SqlExpr(fragment(template, left=times[0].left.node, right=times[0].right.node), BOOL))
    if source.variant == "asof" and limit is None:
        limit = 1
    if source.variant == "window":
        conditions.insert(0, _within(join))
    ordered = source.variant == "semi" or (source.variant in ("asof", "window") and limit is not None)
    orders = [relation.order if ordered and join.other == side else ()
              for side, relation in (("l", left), ("r", right))]
    condition = SqlExpr(all_of([each.node for each in conditions]), BOOL)
    keys, found = tuple(_key(key, join) for key in join.conditions.keys), _range(join)

    def plan() -> Operator:
        return Join(
            left=_side(left, orders[0]), right=_side(right, orders[1]), kind=source.kind, variant=source.variant,
            condition=condition, columns=_columns(join), written=source, keys=keys, times=tuple(times), range=found,
            others=bool(join.conditions.others), limit=limit, looked_up=join.looked_up,
            nearest=source.nearest)

    return _with_merged(_joined(join, plan), join, merged)


_Pair = tuple[RelColumn, RelColumn]


def _merged(source: JoinSource, left: Relation, right: Relation, builder: Builder) -> list[_Pair]:
    """The columns of both sides that USING or NATURAL makes one."""
    names = source.using
    if source.natural:
        ours = {column.name for _, column in right.starred(None)}
        names = tuple(dict.fromkeys(column.name for _, column in left.starred(None) if column.name in ours))
        if not names:
            raise builder.error_at("the tables of the NATURAL JOIN have no column in common", source.place)
    node = exp.Column(this=exp.Identifier(this=""))
    return [(find_column(left, name, None, node, builder), find_column(right, name, None, node, builder))
            for name in names]


def _check_nearest(source: JoinSource, builder: Builder) -> None:
    unequal = [part for part in conjuncts(source.on) if isinstance(part, exp.GT | exp.GTE | exp.LT | exp.LTE)]
    if len(unequal) != 1:
        raise builder.error_at(f"an ASOF JOIN needs one comparison by <, <=, > or >=, not {len(unequal)}", source.place,
                               hint="write ON a.k = b.k AND a.ts >= b.ts")


def _compared(merged: Sequence[_Pair], left: Relation, right: Relation, *, nearest: bool) -> exp.Expression:
    """What USING says: all are equal; of the `nearest` row the last one isn't greater."""
    both = [id(column) for column in (*left.columns, *right.columns)]

    def reference(column: RelColumn) -> exp.Column:
        found = exp.Column(this=exp.Identifier(this=column.name, quoted=True))
        if column.qualifier is not None:
            found.set("table", exp.Identifier(this=column.qualifier, quoted=True))
        found.meta[STAR] = both.index(id(column))
        return found

    equal = [exp.EQ(this=reference(one), expression=reference(other)) for one, other in merged]
    if nearest:
        equal[-1] = exp.GTE(**equal[-1].args)
    return reduce(lambda one, other: exp.And(this=one, expression=other), equal)


def _with_merged(relation: Relation, join: JoinReading, merged: Sequence[_Pair]) -> Relation:
    """Returns the joined rows in which columns of both sides are one: that of the side whose rows are all there."""
    if not merged:
        return relation
    outer = {id(column.origins[0]): column for column in join.sides.outer}
    shown: list[RelColumn] = []
    computed: list[tuple[RelColumn, RelColumn, RelColumn]] = []
    for pair in merged:
        one, other = (outer[id(column)] for column in pair)
        kept = other if join.source.kind == "right" else one
        for column in (one, other):
            column.merged = column is not kept or join.source.kind == "full"
        if join.source.kind == "full":
            kept = replace(one, column=f"#u{len(computed)}", qualifier=None, origins=(one, other), merged=False,
                           type=common_type((one.type, other.type)))
            computed.append((kept, one, other))
        shown.append(kept)
    # In the result they are where the left side has them; those that are merged are there for stars of their tables.
    places = {id(outer[id(one)]): kept for (one, _), kept in zip(merged, shown, strict=True)}
    star: list[RelColumn] = []
    for column in relation.star:
        kept = places.get(id(column), column)
        star += [kept] if kept is column else [kept, column]
    once = tuple({id(column): column for column in star}.values())

    def plan(below: Operator) -> Operator:
        values = tuple(Computed(kept.column, SqlExpr(call("coalesce", one.use().node, other.use().node), kept.type))
                       for kept, one, other in computed if kept.used)
        return Project(below, values, extends=True) if values else below

    found = replace(relation, star=once, columns=(*relation.columns, *(kept for kept, _, _ in computed)))
    return found.over(plan) if computed else found


def bind_lateral(source: JoinSource, inner: SubquerySource, left: Relation, builder: Builder) -> Relation:
    """Returns the rows of a relation, each with those of a sub-query that may name its columns.

    Raises InvalidStatementError for joins that such a sub-query can't be part of.
    """
    if source.variant or source.kind not in ("inner", "left") or source.using or source.natural:
        raise builder.error_at("LATERAL stands behind a comma, CROSS JOIN, or [LEFT] JOIN ... ON", source.place,
                               hint="put the condition into the sub-query")
    if source.on is not None and not (isinstance(source.on, exp.Boolean) and source.on.this):
        everything = Select((SelectItem(exp.Star(), None),), inner, where=source.on, nests=True)
        inner = SubquerySource(everything, inner.alias)
    builder.called = None
    found = RowScope(left, builder, "FROM").inner(
        inner.query, source.on or exp.null(), always_row=builder.always_row or not inner.as_alone)
    called, builder.called = builder.called or builder.fresh("#outer"), None
    names = (*inner.columns, *found.names[len(inner.columns):])
    added = tuple(RelColumn(name, column.type, f"{called}.{place}", inner.alias)
                  for place, (name, column) in enumerate(zip(names, found.columns, strict=True)))
    columns = tuple(ColumnExpr(column.column, column.type) for column in added)
    qualifiers = (*left.qualifiers, inner.alias) if inner.alias else left.qualifiers
    rows = replace(left, columns=(*left.columns, *added), star=(*left.star, *added), table=None, qualifiers=qualifiers)
    return numbered(rows.over(
        lambda below: Lateral(below, found.query, called, columns, outer=source.kind == "left")))


def _side(relation: Relation, order: tuple[str, ...]) -> JoinedRows:
    one = relation.table is not None and relation.table.kind != "super" and relation.table.key_column is None
    return JoinedRows(relation.plan(), order, one, relation.qualifiers)


def _columns(join: JoinReading) -> tuple[JoinColumn, ...]:
    """The columns of the result that are used."""
    sides = join.sides
    return tuple(JoinColumn(outer.column, sides.of(inside), ColumnExpr(inside.column, inside.type))
                 for inside, outer in zip(sides.inside.columns, sides.outer, strict=True) if outer.used)


def _key(key: Equality, join: JoinReading) -> JoinKey:
    left, right = compile_expression(key.left, join.scope), compile_expression(key.right, join.scope)
    kinds = {left.type.kind, right.type.kind}
    equal = Comparer(join.scope.precision, join.scope.session.time_zone).compare(exp.EQ, left, right)
    return JoinKey(left, right, SqlExpr(equal, BOOL), as_they_are=len(kinds) == 1 or kinds <= set(INTEGERS))


def _time(time: TimeComparison, join: JoinReading) -> JoinTime:
    return JoinTime(time.operator, compile_expression(time.left, join.scope),
                    compile_expression(time.right, join.scope), exact=time.shift is not None)


def _times(join: JoinReading) -> tuple[SqlExpr, SqlExpr]:
    """The primary timestamps of both sides, which ASOF and WINDOW joins have."""
    found = [_inside(join, column).use() for column in (join.sides.left.time, join.sides.right.time)]
    return found[0], found[1]


def _inside(join: JoinReading, column: RelColumn | None) -> RelColumn:
    """What a column of a side is called in conditions."""
    return next(inside for inside in join.sides.inside.columns if inside.origins[0] is column)


def _not_later(join: JoinReading) -> JoinTime:
    """What an ASOF join without a condition on times asks for: rows of the other side that aren't later."""
    left, right = _times(join)
    return JoinTime(">=" if join.driver == "l" else "<=", left, right, exact=True)


def _within(join: JoinReading) -> SqlExpr:
    """What WINDOW_OFFSET asks for."""
    left, right = _times(join)
    assert join.range is not None
    assert join.range.start is not None
    assert join.range.end is not None
    return SqlExpr(fragment(":right BETWEEN :left + :start AND :left + :till", left=left.node, right=right.node,
                            start=join.range.start, till=join.range.end), BOOL)


def _range(join: JoinReading) -> JoinRange | None:
    found = join.range
    return None if found is None else JoinRange(used(found.left), used(found.right), found.start, found.end)


def _main_time(join: JoinReading) -> RelColumn | None:
    """Returns the time line of the joined rows: that of the rows that are all there, none if no side's are."""
    if join.source.variant:
        return join.sides.relation(join.driver).time
    if join.source.kind == "full":
        return None
    if join.source.kind == "inner" and join.looked_up is not None:
        return join.sides.relation("l" if join.looked_up == "r" else "r").time
    return join.sides.relation(join.driver).time


def _joined(join: JoinReading, plan: Plan) -> Relation:
    sides = join.sides
    left, right = sides.left, sides.right
    wrapped = {id(column.origins[0]): column for column in sides.outer}
    prune = not join.source.variant and not join.source.nearest
    times = [(wrapped[id(column)], slot if prune else None) for column, slot in (*left.times, *right.times)]
    for side in (left, right):
        if side.time is not None and not side.times:
            times.append((wrapped[id(side.time)], None))
    driver = None
    if join.source.variant == "window":
        driver = tuple(wrapped[id(column)] for column in sides.relation(join.driver).columns)
    time = _main_time(join)
    same = tuple(wrapped[id(line)] for line in _equal_lines(join) if line is not time)
    return numbered(Relation(
        columns=sides.outer, star=tuple(wrapped[id(c)] for c in (*left.star, *right.star)),
        time=wrapped[id(time)] if time is not None else None, precision=left.precision, plan=plan,
        qualifiers=(*left.qualifiers, *right.qualifiers), times=tuple(times), driver=driver, same_times=same,
        homes=(*left.homes, *right.homes)))


def _equal_lines(join: JoinReading) -> tuple[RelColumn, ...]:
    """The time lines of both sides where rows meet only at the same instant, and none is without a partner."""
    found, (left, right) = join.range, (join.sides.left, join.sides.right)
    meet = join.source.variant == "semi" or (join.source.kind == "inner" and not join.source.variant)
    if not meet or found is None or found.start != 0 or found.end != 0:
        return ()
    if not (left.is_time_line(found.left) and right.is_time_line(found.right)):
        return ()
    return (*left.time_lines, *right.time_lines)
