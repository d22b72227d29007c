"""Joins: inner, left, right, full, and their SEMI, ANTI, ASOF and WINDOW variants, as one relation with both sides.

SEMI, ANTI, ASOF and WINDOW joins have a driving side (the one that LEFT or RIGHT names), whose rows are numbered;
what the other side adds is chosen per driving row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlglot import exp

from penstock.common.errors import InvalidStatementError, NotFoundError
from penstock.planner.binder import Builder, Relation, RelColumn, row_number_column
from penstock.planner.expressions import compile_condition, compile_expression
from penstock.planner.join_conditions import (
    MIRRORED,
    Conditions,
    Equality,
    Side,
    Sides,
    conjuncts,
    join_sides,
    read_conditions,
)
from penstock.planner.plan import PlanNode
from penstock.planner.query_parts import text_of
from penstock.planner.scopes import RowScope
from penstock.sql.literals import position
from penstock.sql.statements import Duration, JoinSource
from penstock.sql.types import INTEGERS, Kind

JOIN_ERROR = 0x26FF
NOT_UNIQUE = 0x2663
ROW = '"#row"'
POSITION = '"#position"'
NEAREST = '"#nearest"'
HOW_TO_JOIN = "write ON a.ts = b.ts, or ON a.ts BETWEEN b.ts - 5s AND b.ts + 5s"


@dataclass(frozen=True, slots=True)
class _Join:
    """A join being bound: `on` says what its ON does, `scope` what names mean in it."""

    source: JoinSource
    sides: Sides
    scope: RowScope
    builder: Builder
    on: Conditions

    def error(self, message: str, hint: str | None = None, node: exp.Expression | None = None) -> InvalidStatementError:
        """Returns the error for `node`, else for ON, else for the words of the join."""
        return join_error(self.source, message, hint, self.builder, node)

    @property
    def driver(self) -> Side:
        return "r" if self.source.kind == "right" else "l"

    @property
    def other(self) -> Side:
        return "l" if self.source.kind == "right" else "r"


def join_error(source: JoinSource, message: str, hint: str | None, builder: Builder, node: exp.Expression | None = None,
               code: int = JOIN_ERROR) -> InvalidStatementError:
    """Returns the error for `node`, else for the ON of the join, else for its words."""
    shown = node if node is not None else source.on
    if shown is not None:
        return builder.error(message, shown, code=code, hint=hint)
    start, end = source.place
    at = position(builder.text, start - builder.base, end - start) if end > start else None
    return InvalidStatementError(message, code=code, hint=hint, position=at)


def bind_join(source: JoinSource, left: Relation, right: Relation, where: exp.Expression | None,
              builder: Builder) -> Relation:
    """Returns the joined relation. `where` is the WHERE clause of the query: it may hold conditions of an inner join.

    Raises InvalidStatementError for joins that neither the times of both sides bound nor a side that is looked up
    in allows, and for names that both sides use.
    """
    join = read_join(source, left, right, builder)
    if source.variant == "window":
        return _window_join(join)
    if source.variant == "asof":
        return _asof_join(join)
    if source.on is None and source.kind != "inner":
        raise join.error("an outer join needs ON", HOW_TO_JOIN)
    condition = compile_condition(source.on, join.scope) if source.on is not None else "true"
    elsewhere: list[exp.Expression] = []
    conditions = join.on
    if source.kind == "inner":
        elsewhere = list(_about_both(conjuncts(where), join))
        conditions = read_conditions([*conjuncts(source.on), *elsewhere], join.sides, join.scope)
    looked_up = check_bounded(join, conditions)
    by = _method(bool(conditions.keys) or any(time.operator == "=" for time in conditions.times))
    if source.variant in ("semi", "anti"):
        return _filtering_join(join, condition, by, looked_up)
    # What WHERE says of both sides is said here, too: it must not wait until all pairs are numbered.
    condition = " AND ".join([condition, *(compile_condition(node, join.scope) for node in elsewhere)])
    words = {"inner": "JOIN", "left": "LEFT JOIN", "right": "RIGHT JOIN", "full": "FULL JOIN"}[source.kind]
    name = builder.step("joined", lambda: (
        f"SELECT {_select(join.sides)} FROM {left.name} l {words} {right.name} r ON {condition}"))
    return _result(join, name, time=_main_time(join, looked_up), by=by, looked_up=looked_up)


def read_join(source: JoinSource, left: Relation, right: Relation, builder: Builder) -> _Join:
    """Returns the join with what its ON says, before anything is planned. Raises as `bind_join`."""
    common = set(left.qualifiers) & set(right.qualifiers)
    if common:
        raise join_error(source, f"two tables in FROM are called {sorted(common)[0]}", "give each an alias", builder,
                         code=NOT_UNIQUE)
    if left.precision != right.precision and _has_times(left) and _has_times(right):
        raise join_error(source, f"times in {left.precision} cannot be joined with times in {right.precision}",
                         "the databases must have the same precision", builder)
    sides = join_sides(left, right)
    scope = RowScope(sides.inside, builder, "ON")
    return _Join(source, sides, scope, builder, read_conditions(conjuncts(source.on), sides, scope))


def _has_times(relation: Relation) -> bool:
    return any(column.type.kind is Kind.TIMESTAMP for column in relation.columns)


def _about_both(nodes: Iterable[exp.Expression], join: _Join) -> Iterator[exp.Expression]:
    """Yields the conditions in WHERE on the times of both sides, and equalities between them."""
    for node in nodes:
        try:
            found = read_conditions([node], join.sides, join.scope)
        except (NotFoundError, InvalidStatementError):
            continue  # It is about a table of another join, or WHERE itself is going to tell what is wrong with it.
        if found.times or found.keys:
            yield node


def check_bounded(join: _Join, conditions: Conditions) -> Side | None:
    """Returns the side that is looked up in, if it is one without regard to time.

    Raises InvalidStatementError if the times of both sides are not bounded by each other and none is looked up in.
    """
    source = join.source
    start, end = conditions.range
    if start is not None and end is not None and start > end:
        raise join.error("the range of time ends before it starts", "write a.ts BETWEEN b.ts - 5s AND b.ts + 5s")
    if conditions.truncated or (start is not None and end is not None):
        return None
    if conditions.times:
        raise join.error("the join bounds the times of both tables in one direction only",
                         "write both bounds, or LEFT ASOF JOIN for the nearest row")
    candidates: dict[str, tuple[Side, ...]] = {"inner": ("r", "l"), "left": ("r",), "right": ("l",), "full": ()}
    timeless = [side for side in candidates[source.kind] if _is_timeless(join.sides.relation(side))]
    # Of two, the one without a time line: the joined rows have the other's.
    looked_up = min(timeless, key=lambda side: join.sides.relation(side).time is not None, default=None)
    if not conditions.keys:
        raise join.error("a join needs a condition on the primary timestamps of both tables", HOW_TO_JOIN)
    if looked_up is None:
        raise join.error("a join without a condition on the primary timestamps looks up rows by equal values in a "
                         "normal table or a sub-query without a time line"
                         + (", and cannot be FULL" if source.kind == "full" else ""), HOW_TO_JOIN)
    return looked_up


def _is_timeless(relation: Relation) -> bool:
    """Whether rows may be looked up in it without regard to time."""
    return relation.time is None or (relation.table is not None and relation.table.kind == "normal")


def _main_time(join: _Join, looked_up: Side | None) -> RelColumn | None:
    """Returns the time line of the joined rows: that of the rows that are all there, none if no side's are."""
    if join.source.kind == "full":
        return None
    if join.source.kind == "inner" and looked_up is not None:
        return join.sides.relation("l" if looked_up == "r" else "r").time
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


def _result(join: _Join, joined: str, *, time: RelColumn | None, by: str, prune: bool = True,
            looked_up: Side | None = None, driver: str | None = None) -> Relation:
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
    if looked_up is not None:
        properties.append(("looked up in", " ".join(sides.relation(looked_up).qualifiers) or looked_up))
    return Relation(
        name=name, columns=sides.outside, star=tuple(wrapped[id(c)] for c in (*left.star, *right.star)),
        time=wrapped[id(time)] if time is not None else None, precision=left.precision,
        tree=lambda: PlanNode("Join", tuple(properties), (left.tree(), right.tree())),
        row_key=(number,), qualifiers=(*left.qualifiers, *right.qualifiers), times=tuple(times), driver=driver)


def _numbered(name: str) -> str:
    return f"(SELECT *, row_number() OVER () AS {ROW} FROM {name})"


def _tables(join: _Join) -> tuple[str, str]:
    """FROM items of the driving side, with numbered rows, and of the other side."""
    sides, driver, other = join.sides, join.driver, join.other
    return f"{_numbered(sides.relation(driver).name)} {driver}", f"{sides.relation(other).name} {other}"


def _side_order(sides: Sides, side: Side, descending: bool = False) -> str:
    word = " DESC" if descending else ""
    return ", ".join(f"{side}.{column}{word}" for column in sides.relation(side).order) or "1"


def _filtering_join(join: _Join, condition: str, by: str, looked_up: Side | None) -> Relation:
    driver, other = join.driver, join.other
    driving, others = _tables(join)
    if join.source.variant == "anti":
        name = join.builder.step("joined", lambda: (
            f"SELECT {_select(join.sides, other)} FROM {driving} WHERE NOT EXISTS "
            f"(SELECT 1 FROM {others} WHERE {condition})"))
    else:
        first = f"row_number() OVER (PARTITION BY {driver}.{ROW} ORDER BY {_side_order(join.sides, other)}) = 1"
        name = join.builder.step("joined", lambda: (
            f"SELECT {_select(join.sides)} FROM {driving} JOIN {others} ON {condition} QUALIFY {first}"))
    return _result(join, name, time=join.sides.relation(driver).time, by=by, prune=False, looked_up=looked_up)


def _times(join: _Join) -> tuple[RelColumn, RelColumn]:
    """The primary timestamps of the driving side and of the other one."""
    driving, other = join.sides.relation(join.driver).time, join.sides.relation(join.other).time
    if driving is None or other is None:
        raise join.error(f"both sides of {'an ASOF' if join.source.variant == 'asof' else 'a WINDOW'} join need a "
                         "time line")
    driving.use()
    other.use()
    return driving, other


def _chosen(join: _Join, condition: str, descending: bool, limit: int | None) -> str:
    """Adds the step of a join that keeps the first `limit` matches of each driving row, and rows without match."""
    driver, other = join.driver, join.other
    driving, others = _tables(join)
    kept = ""
    if limit is not None:
        kept = (f" QUALIFY row_number() OVER (PARTITION BY {driver}.{ROW} ORDER BY "
                f"{_side_order(join.sides, other, descending)}) <= {limit}")
    return join.builder.step("joined", lambda: (
        f"SELECT {_select(join.sides)}, {driver}.{ROW} FROM {driving} LEFT JOIN {others} ON {condition}{kept}"))


def _asof_join(join: _Join) -> Relation:
    driving, other = _times(join)
    if len(join.on.times) > 1:
        raise join.error("an ASOF join compares the primary timestamps only once",
                         "bound how far apart they may be in WHERE, or write a WINDOW JOIN")
    parts = [*([compile_condition(join.source.on, join.scope)] if join.source.on is not None else ())]
    if join.on.times:
        compared = join.on.times[0]
        operator = compared.operator if join.driver == "l" else MIRRORED[compared.operator]
        instant = compile_expression(compared.right if join.driver == "l" else compared.left, join.scope).sql
        exact = compared.shift is not None
    else:
        operator, instant, exact = ">=", f"{join.other}.{other.sql}", True
        parts.append(f"{join.driver}.{driving.sql} >= {instant}")
    condition = " AND ".join(parts)
    limit = 1 if join.source.jlimit is None else join.source.jlimit
    before = operator in (">", ">=", "=")
    paired = operator == "=" or join.on.others or not all(_equal_as_they_are(key, join) for key in join.on.keys)
    if paired or limit == 0:
        name = _chosen(join, condition, before, limit)
        by = _method(operator == "=" or bool(join.on.keys))
    else:
        name = _nearest_rows(join, condition, instant, exact, before, limit)
        by = "asof"
    return _result(join, name, time=driving, by=by, prune=False)


def _nearest_rows(join: _Join, condition: str, instant: str, exact: bool, before: bool, limit: int) -> str:
    """Adds the steps of an ASOF join of times that differ and equal values, and returns the last.

    DuckDB's own ASOF join finds the nearest row of each driving row without pairing all rows first. Of rows with the
    same `instant`, what the time of the driving row is compared with, it would take any: all but the last in order
    (the first if not `before`) are left out before. If more than one is wanted, the other side's rows are numbered
    along their time line, and those with the `limit` numbers from the nearest on are joined.
    """
    sides, driver, other, builder = join.sides, join.driver, join.other, join.builder
    relation = sides.relation(other)
    keys = [compile_expression(key.right if other == "r" else key.left, join.scope).sql for key in join.on.keys]
    same = " AND ".join(compile_condition(exp.EQ(this=key.left, expression=key.right), join.scope)
                        for key in join.on.keys)
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


def _equal_as_they_are(key: Equality, join: _Join) -> bool:
    """Whether the values of both sides are compared unconverted, so that equal rows of one side have equal values."""
    kinds = {compile_expression(part, join.scope).type.kind for part in (key.left, key.right)}
    return len(kinds) == 1 or kinds <= set(INTEGERS)


def _has_one_row_per_instant(relation: Relation) -> bool:
    """Whether the time of a row is its key: in one table without a composite key."""
    return relation.table is not None and relation.table.kind != "super" and relation.table.key_column is None


def _window_join(join: _Join) -> Relation:
    source = join.source
    if source.window is None:
        raise join.error("a window join needs WINDOW_OFFSET(start, end)")
    if join.on.times:
        raise join.error("ON of a window join cannot compare the primary timestamps",
                         "WINDOW_OFFSET says how far apart they may be")
    start, end = (_offset(offset, join) for offset in source.window)
    if start > end:
        raise join.error(f"WINDOW_OFFSET({source.window[0]}, {source.window[1]}) ends before it starts")
    driving, other = _times(join)
    window = (f"{join.other}.{other.sql} BETWEEN {join.driver}.{driving.sql} + {start} "
              f"AND {join.driver}.{driving.sql} + {end}")
    condition = window if source.on is None else f"{window} AND {compile_condition(source.on, join.scope)}"
    name = _chosen(join, condition, False, source.jlimit)
    return _result(join, name, time=driving, by=_method(bool(join.on.keys)), prune=False, driver=ROW)


def _offset(offset: Duration, join: _Join) -> int:
    """Returns the length of a bound of the window in units of the precision."""
    precision = join.sides.left.precision
    if offset.is_calendar:
        raise join.error("WINDOW_OFFSET cannot be in months or years", "their length depends on the calendar")
    if Duration(1, offset.unit).in_units(precision) == 0:
        raise join.error(f"WINDOW_OFFSET has {offset}, and times are in {precision}",
                         "its unit cannot be finer than the database's precision")
    return offset.in_units(precision)
