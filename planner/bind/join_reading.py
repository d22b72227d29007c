"""Reads a join: its sides, its conditions, and how far apart in time its rows may be. Its SQL is not made here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sqlglot import exp

from penstock.common.errors import InvalidStatementError, NotFoundError
from penstock.planner.bind.binder import Builder, Relation, RelColumn
from penstock.planner.bind.join_conditions import (
    Conditions,
    Sides,
    TimeRange,
    join_sides,
    read_conditions,
)
from penstock.planner.bind.scopes import RowScope, condition_of, implied
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.operators import Side
from penstock.sql.tree.statements import Duration, JoinSource
from penstock.sql.tree.walking import conjuncts
from penstock.sql.types import Kind

JOIN_ERROR = 0x26FF
NOT_UNIQUE = 0x2663
HOW_TO_JOIN = "write ON a.ts = b.ts, or ON a.ts BETWEEN b.ts - 5s AND b.ts + 5s"


@dataclass(frozen=True, slots=True)
class JoinReading:
    """A join of two relations, in which names mean what `scope` says.

    `on` is ON, bound. `conditions` are those of ON and of `elsewhere`: what WHERE says of both sides of an inner
    join. `range`: how far apart in time rows may be, None if nothing bounds it or times are truncated. `looked_up`: the
    side whose rows are found by equal values, without regard to time.
    """

    source: JoinSource
    sides: Sides
    scope: RowScope
    builder: Builder
    on: SqlExpr | None
    conditions: Conditions
    elsewhere: tuple[exp.Expression, ...] = ()
    range: TimeRange | None = None
    looked_up: Side | None = None

    @property
    def driver(self) -> Side:
        """The side that LEFT or RIGHT names, the left one of inner and full joins."""
        return "r" if self.source.kind == "right" else "l"

    @property
    def other(self) -> Side:
        return "l" if self.source.kind == "right" else "r"

    def error(self, message: str, hint: str | None = None) -> InvalidStatementError:
        """Returns the error for ON, or for the words of the join if there is none."""
        return _error(self.source, message, hint, self.builder)


def read_join(source: JoinSource, left: Relation, right: Relation, where: exp.Expression | None,
              builder: Builder, *, on_anything: bool = False) -> JoinReading:
    """Returns what a join is. `where` is the WHERE clause of the query: it may hold conditions of an inner join.

    Raises InvalidStatementError for names that both sides use, and for a join whose sides don't bound each other's
    times, unless one side may be looked up in, or it may be `on_anything`; NotFoundError for unknown names.
    """
    common = set(left.qualifiers) & set(right.qualifiers)
    if common:
        raise _error(source, f"two tables in FROM are called {sorted(common)[0]}", "give each an alias", builder,
                     NOT_UNIQUE)
    if left.precision != right.precision and _has_times(left) and _has_times(right):
        raise _error(source, f"times in {left.precision} cannot be joined with times in {right.precision}",
                     "the databases must have the same precision", builder)
    if source.on is None and source.kind != "inner" and source.variant in ("", "semi", "anti"):
        raise _error(source, "an outer join needs ON", HOW_TO_JOIN, builder)
    sides = join_sides(left, right)
    scope = RowScope(sides.inside, builder, "ON")
    on = condition_of(source.on, scope) if source.on is not None else None
    join = JoinReading(source, sides, scope, builder, on, read_conditions(conjuncts(source.on), sides, scope))
    if source.variant == "window":
        return replace(join, range=_window_range(join))
    if source.variant == "asof":
        return replace(join, range=_asof_range(join))
    if source.kind == "inner":
        elsewhere = list(_about_both(implied(where), join))
        if elsewhere:
            join = replace(join, conditions=sum((found for _, found in elsewhere), join.conditions),
                           elsewhere=tuple(node for node, _ in elsewhere))
    bounded = next((found for found in join.conditions.ranges if found.is_bounded), None)
    return replace(join, range=bounded, looked_up=_looked_up(join, on_anything=on_anything))


def _error(source: JoinSource, message: str, hint: str | None, builder: Builder,
           code: int = JOIN_ERROR) -> InvalidStatementError:
    if source.on is not None:
        return builder.error(message, source.on, code=code, hint=hint)
    return builder.error_at(message, source.place, code=code, hint=hint)


def _has_times(relation: Relation) -> bool:
    return any(column.type.kind is Kind.TIMESTAMP for column in relation.columns)


def _about_both(nodes: Iterable[exp.Expression], join: JoinReading) -> Iterator[tuple[exp.Expression, Conditions]]:
    """Yields the conditions in WHERE on the times of both sides, and equalities between them, with what they say."""
    for node in nodes:
        try:
            found = read_conditions([node], join.sides, join.scope)
        except (NotFoundError, InvalidStatementError):
            continue  # It is about a table of another join, or WHERE itself is going to tell what is wrong with it.
        if found.times or found.keys:
            yield node, found


def _looked_up(join: JoinReading, *, on_anything: bool) -> Side | None:
    """Returns the side that is looked up in without regard to time, None if the times of both bound each other.

    Raises InvalidStatementError if neither is so, unless the join may be `on_anything`.
    """
    source, conditions = join.source, join.conditions
    if any(found.start > found.end for found in conditions.ranges if found.start is not None and found.end is not None):
        raise join.error("the range of time ends before it starts", "write a.ts BETWEEN b.ts - 5s AND b.ts + 5s")
    if conditions.truncated or any(found.is_bounded for found in conditions.ranges):
        return None
    if on_anything and (conditions.times or not conditions.keys):
        return None
    if conditions.times:
        raise join.error("the join bounds the times of both tables in one direction only",
                         "write both bounds, or LEFT ASOF JOIN for the nearest row")
    if not conditions.keys:
        raise join.error("a join needs a condition on the primary timestamps of both tables", HOW_TO_JOIN)
    candidates: dict[str, tuple[Side, ...]] = {"inner": ("r", "l"), "left": ("r",), "right": ("l",), "full": ()}
    timeless = [side for side in candidates[source.kind] if _is_timeless(join.sides.relation(side))]
    if not timeless and on_anything:
        return None
    if not timeless:
        raise join.error("a join without a condition on the primary timestamps looks up rows by equal values in a "
                         "normal table or a sub-query without a time line"
                         + (", and cannot be FULL" if source.kind == "full" else ""), HOW_TO_JOIN)
    # Of two, the one without a time line: the joined rows have the other's.
    return min(timeless, key=lambda side: join.sides.relation(side).time is not None)


def _is_timeless(relation: Relation) -> bool:
    """Whether rows may be looked up in it without regard to time."""
    return relation.time is None or (relation.table is not None and relation.table.kind == "normal")


def _time_lines(join: JoinReading) -> tuple[RelColumn, RelColumn]:
    left, right = join.sides.left.time, join.sides.right.time
    if left is None or right is None:
        raise join.error(f"both sides of {'an ASOF' if join.source.variant == 'asof' else 'a WINDOW'} join need a "
                         "time line")
    return left, right


def _asof_range(join: JoinReading) -> TimeRange:
    left, right = _time_lines(join)
    if len(join.conditions.times) > 1:
        raise join.error("an ASOF join compares the primary timestamps only once",
                         "bound how far apart they may be in WHERE, or write a WINDOW JOIN")
    if join.conditions.times:
        return join.conditions.ranges[0]
    return TimeRange(left, right, None, 0) if join.driver == "l" else TimeRange(left, right, 0, None)


def _window_range(join: JoinReading) -> TimeRange:
    left, right = _time_lines(join)
    assert join.source.window is not None
    if join.conditions.times:
        raise join.error("ON of a window join cannot compare the primary timestamps",
                         "WINDOW_OFFSET sets their maximum distance")
    start, end = sorted(_offset(offset, join) for offset in join.source.window)
    return TimeRange(left, right, start, end) if join.driver == "l" else TimeRange(left, right, -end, -start)


def _offset(offset: Duration, join: JoinReading) -> int:
    """Returns the length of a bound of the window in units of the precision."""
    precision = join.sides.left.precision
    if offset.is_calendar:
        raise join.error("WINDOW_OFFSET cannot be in months or years", "their length depends on the calendar")
    if Duration(1, offset.unit).in_units(precision) == 0:
        raise join.error(f"WINDOW_OFFSET has {offset}, and times are in {precision}",
                         "its unit cannot be finer than the database's precision")
    return offset.in_units(precision)
