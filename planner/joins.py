"""Joins as SQL: inner, left, right, full, and their SEMI, ANTI, ASOF and WINDOW variants, as one relation.

SEMI, ANTI, ASOF and WINDOW joins have a driving side (the one that LEFT or RIGHT names), whose rows are numbered;
what the other side adds is chosen per driving row.
"""

from __future__ import annotations

from sqlglot import exp

from penstock.planner.binder import Builder, Relation, RelColumn, row_number_column
from penstock.planner.expressions import compile_condition, compile_expression
from penstock.planner.join_conditions import MIRRORED, Equality, Side, Sides
from penstock.planner.join_reading import Join, read_join
from penstock.planner.plan import PlanNode
from penstock.planner.query_parts import text_of
from penstock.sql.statements import JoinSource
from penstock.sql.types import INTEGERS

ROW = '"#row"'
POSITION = '"#position"'
NEAREST = '"#nearest"'
PIECE = '"#piece"'


def bind_join(source: JoinSource, left: Relation, right: Relation, where: exp.Expression | None,
              builder: Builder) -> Relation:
    """Returns the joined relation. `where` is the WHERE clause of the query: it may hold conditions of an inner join.

    Raises as `read_join`.
    """
    join = read_join(source, left, right, where, builder)
    if source.variant == "window":
        return _window_join(join)
    if source.variant == "asof":
        return _asof_join(join)
    by = _method(bool(join.conditions.keys) or any(time.operator == "=" for time in join.conditions.times))
    if source.variant in ("semi", "anti"):
        return _filtering_join(join, by)
    # What WHERE says of both sides is said here, too: it must not wait until all pairs are numbered.
    condition = " AND ".join([join.on or "true", *(compile_condition(node, join.scope) for node in join.elsewhere)])
    if source.kind == "full" and _has_pieces(join):
        return _result(join, _full_join(join, condition), time=None, by=by)
    words = {"inner": "JOIN", "left": "LEFT JOIN", "right": "LEFT JOIN", "full": "FULL JOIN"}[source.kind]
    driver, (others, condition) = join.driver, _near(join, join.driver, condition)
    driving = join.sides.relation(driver).name
    name = builder.step("joined", lambda: (
        f"SELECT {_select(join.sides)} FROM {driving} {driver} {words} {others} ON {condition}"))
    return _result(join, name, time=_main_time(join), by=by)


def _has_pieces(join: Join) -> bool:
    """Whether DuckDB, which hashes keys, would pair all rows of equal ones, however far apart in time they are."""
    return bool(join.conditions.keys) and join.range is not None and join.range.is_bounded and all(
        time.operator != "=" for time in join.conditions.times)


def _near(join: Join, driver: Side, condition: str) -> tuple[str, str]:
    """Returns the FROM item of the side that isn't driving, and the condition, where too many rows have equal keys.

    Time is cut into pieces as long as the range of the join. A row of the other side stands in each piece in which
    its partners may be, which are one or two; so pieces are equal, and hashed, like keys, and no pair is found twice.
    """
    other: Side = "l" if driver == "r" else "r"
    name, found = join.sides.relation(other).name, join.range
    if not _has_pieces(join) or found is None or found.start is None or found.end is None:
        return f"{name} {other}", condition
    length = max(found.end - found.start, 1)
    if driver == "l":
        driving, time, shifts = found.left, found.right, (-found.end, -found.start)
    else:
        driving, time, shifts = found.right, found.left, (found.start, found.end)
    pieces = ", ".join(f"({time.use().sql}::HUGEINT + {shift}) // {length}" for shift in shifts)
    item = f"(SELECT *, unnest(list_distinct([{pieces}])) AS {PIECE} FROM {name}) {other}"
    return item, f"{driver}.{driving.use().sql}::HUGEINT // {length} = {other}.{PIECE} AND {condition}"


def _full_join(join: Join, condition: str) -> str:
    """Adds the steps of a full join of pieces of time, and returns the last: the left rows, then what is left over."""
    sides, builder = join.sides, join.builder
    others, paired = _near(join, "l", condition)
    partners, lonely = _near(join, "r", condition)
    return builder.step("joined", lambda: (
        f"SELECT {_select(sides)} FROM {sides.left.name} l LEFT JOIN {others} ON {paired} UNION ALL "
        f"SELECT {_select(sides, 'l')} FROM {sides.right.name} r "
        f"WHERE NOT EXISTS (SELECT 1 FROM {partners} WHERE {lonely})"))


def _main_time(join: Join) -> RelColumn | None:
    """Returns the time line of the joined rows: that of the rows that are all there, none if no side's are."""
    if join.source.kind == "full":
        return None
    if join.source.kind == "inner" and join.looked_up is not None:
        return join.sides.relation("l" if join.looked_up == "r" else "r").time
    return join.sides.relation(join.driver).time


def _select(sides: Sides, without: Side | None = None) -> str:
    """The used columns of the result; those of the side `without` are NULL."""
    shown = []
    for inside, outside in zip(sides.inside.columns, sides.outside, strict=True):
        if not outside.used:
            continue
        if sides.of(inside) == without:
            shown.append(f"NULL::{outside.type.duckdb()} AS {outside.sql}")
        else:
            shown.append(f"{inside.sql} AS {outside.sql}")
    return ", ".join(shown) or "1 AS \"#one\""


def _method(equalities: bool) -> str:
    """Returns how DuckDB finds pairs: by hashing what must be equal, else by sorting both sides along their times."""
    return "hash" if equalities else "sorted times"


def _result(join: Join, joined: str, *, time: RelColumn | None, by: str, prune: bool = True,
            driver: str | None = None) -> Relation:
    source, sides = join.source, join.sides
    left, right = sides.left, sides.right
    number = row_number_column()
    name = join.builder.step("numbered", lambda: (
        f"SELECT *{', row_number() OVER () AS ' + number.sql if number.used else ''} FROM {joined}"))
    wrapped = {id(column.origins[0]): column for column in sides.outside}
    times = [(wrapped[id(column)], slot if prune else None) for column, slot in (*left.times, *right.times)]
    for side in (left, right):
        if side.time is not None and not side.times:
            times.append((wrapped[id(side.time)], None))
    kind = " ".join(word for word in (source.kind, source.variant) if word)
    properties = [("kind", kind)]
    if source.on is not None:
        properties.append(("on", text_of(source.on)))
    if source.window is not None:
        properties.append(("window", f"{source.window[0]}..{source.window[1]}"))
    if source.jlimit is not None:
        properties.append(("jlimit", str(source.jlimit)))
    properties.append(("by", by))
    if join.looked_up is not None:
        properties.append(("looked up in", " ".join(sides.relation(join.looked_up).qualifiers)))
    return Relation(
        name=name, columns=sides.outside, star=tuple(wrapped[id(c)] for c in (*left.star, *right.star)),
        time=wrapped[id(time)] if time is not None else None, precision=left.precision,
        tree=lambda: PlanNode("Join", tuple(properties), (left.tree(), right.tree())),
        row_key=(number,), qualifiers=(*left.qualifiers, *right.qualifiers), times=tuple(times), driver=driver)


def _numbered(name: str) -> str:
    return f"(SELECT *, row_number() OVER () AS {ROW} FROM {name})"


def _side_order(sides: Sides, side: Side, descending: bool = False) -> str:
    word = " DESC" if descending else ""
    return ", ".join(f"{side}.{column}{word}" for column in sides.relation(side).order) or "1"


def _filtering_join(join: Join, by: str) -> Relation:
    driver, other = join.driver, join.other
    driving = f"{_numbered(join.sides.relation(driver).name)} {driver}"
    others, condition = _near(join, driver, join.on or "true")
    if join.source.variant == "anti":
        name = join.builder.step("joined", lambda: (
            f"SELECT {_select(join.sides, other)} FROM {driving} WHERE NOT EXISTS "
            f"(SELECT 1 FROM {others} WHERE {condition})"))
    else:
        first = f"row_number() OVER (PARTITION BY {driver}.{ROW} ORDER BY {_side_order(join.sides, other)}) = 1"
        name = join.builder.step("joined", lambda: (
            f"SELECT {_select(join.sides)} FROM {driving} JOIN {others} ON {condition} QUALIFY {first}"))
    return _result(join, name, time=join.sides.relation(driver).time, by=by, prune=False)


def _times(join: Join) -> tuple[RelColumn, RelColumn]:
    """The primary timestamps, which an ASOF or WINDOW join has, of the driving side and of the other one."""
    driving, other = join.sides.relation(join.driver).time, join.sides.relation(join.other).time
    assert driving is not None
    assert other is not None
    driving.use()
    other.use()
    return driving, other


def _chosen(join: Join, condition: str, descending: bool, limit: int | None) -> str:
    """Adds the step of a join that keeps the first `limit` matches of each driving row, and rows without match."""
    driver, other = join.driver, join.other
    driving = f"{_numbered(join.sides.relation(driver).name)} {driver}"
    others, condition = _near(join, driver, condition)
    kept = ""
    if limit is not None:
        kept = (f" QUALIFY row_number() OVER (PARTITION BY {driver}.{ROW} ORDER BY "
                f"{_side_order(join.sides, other, descending)}) <= {limit}")
    return join.builder.step("joined", lambda: (
        f"SELECT {_select(join.sides)}, {driver}.{ROW} FROM {driving} LEFT JOIN {others} ON {condition}{kept}"))


def _asof_join(join: Join) -> Relation:
    driving, other = _times(join)
    parts = [join.on] if join.on is not None else []
    if join.conditions.times:
        compared = join.conditions.times[0]
        operator = compared.operator if join.driver == "l" else MIRRORED[compared.operator]
        instant = compile_expression(compared.right if join.driver == "l" else compared.left, join.scope).sql
        exact = compared.shift is not None
    else:
        operator, instant, exact = ">=", f"{join.other}.{other.sql}", True
        parts.append(f"{join.driver}.{driving.sql} >= {instant}")
    condition = " AND ".join(parts)
    limit = 1 if join.source.jlimit is None else join.source.jlimit
    before = operator in (">", ">=", "=")
    keys = join.conditions.keys
    paired = operator == "=" or join.conditions.others or not all(_equal_as_they_are(key, join) for key in keys)
    if paired or limit == 0:
        name = _chosen(join, condition, before, limit)
        by = _method(operator == "=" or bool(keys))
    else:
        name = _nearest_rows(join, condition, instant, exact, before, limit)
        by = "asof"
    return _result(join, name, time=driving, by=by, prune=False)


def _nearest_rows(join: Join, condition: str, instant: str, exact: bool, before: bool, limit: int) -> str:
    """Adds the steps of an ASOF join of times that differ and equal values, and returns the last.

    DuckDB's own ASOF join finds the nearest row of each driving row without pairing all rows first. Of rows with the
    same `instant`, what the time of the driving row is compared with, it would take any: all but the last in order
    (the first if not `before`) are left out before. If more than one is wanted, the other side's rows are numbered
    along their time line, and those with the `limit` numbers from the nearest on are joined.
    """
    sides, driver, other, builder = join.sides, join.driver, join.other, join.builder
    relation = sides.relation(other)
    keys = [compile_expression(key.right if other == "r" else key.left, join.scope).sql for key in join.conditions.keys]
    same = " AND ".join(compile_condition(exp.EQ(this=key.left, expression=key.right), join.scope)
                        for key in join.conditions.keys)
    first = "DESC" if before else "ASC"
    others = relation.name
    if limit > 1:
        line = f"PARTITION BY {', '.join(keys)} " if keys else ""
        others = builder.step("numbered", lambda: (
            f"SELECT *, row_number() OVER ({line}ORDER BY {_side_order(sides, other)}) AS {POSITION} "
            f"FROM {relation.name} {other}"))
    nearest = others
    if not (exact and _has_one_row_per_instant(relation)):
        order = _side_order(sides, other, descending=before)
        nearest = builder.step("nearest", lambda: (
            f"SELECT * FROM {others} {other} QUALIFY row_number() OVER "
            f"(PARTITION BY {', '.join([*keys, instant])} ORDER BY {order}) = 1"))
    if limit == 1:
        return builder.step("joined", lambda: (
            f"SELECT {_select(sides)} FROM {sides.relation(driver).name} {driver} ASOF LEFT JOIN {nearest} {other} "
            f"ON {condition}"))
    found = builder.step("found", lambda: (
        f"SELECT {driver}.*, {other}.{POSITION} AS {NEAREST} FROM {_numbered(sides.relation(driver).name)} {driver} "
        f"ASOF LEFT JOIN {nearest} {other} ON {condition}"))
    near = f"{driver}.{NEAREST}"
    span = f"{near} - {limit - 1} AND {near}" if before else f"{near} AND {near} + {limit - 1}"
    return builder.step("joined", lambda: (
        f"SELECT {_select(sides)} FROM {found} {driver} LEFT JOIN {others} {other} "
        f"ON {f'{same} AND ' if same else ''}{other}.{POSITION} BETWEEN {span} "
        f"ORDER BY {driver}.{ROW}, {other}.{POSITION} {first}"))


def _equal_as_they_are(key: Equality, join: Join) -> bool:
    """Whether the values of both sides are compared unconverted, so that equal rows of one side have equal values."""
    kinds = {compile_expression(part, join.scope).type.kind for part in (key.left, key.right)}
    return len(kinds) == 1 or kinds <= set(INTEGERS)


def _has_one_row_per_instant(relation: Relation) -> bool:
    """Whether the time of a row is its key: in one table without a composite key."""
    return relation.table is not None and relation.table.kind != "super" and relation.table.key_column is None


def _window_join(join: Join) -> Relation:
    driving, other = _times(join)
    left, right = (driving, other) if join.driver == "l" else (other, driving)
    assert join.range is not None
    window = f"r.{right.sql} BETWEEN l.{left.sql} + {join.range.start} AND l.{left.sql} + {join.range.end}"
    condition = window if join.on is None else f"{window} AND {join.on}"
    name = _chosen(join, condition, False, join.source.jlimit)
    return _result(join, name, time=driving, by=_method(bool(join.conditions.keys)), prune=False, driver=ROW)
