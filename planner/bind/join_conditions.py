"""What the conditions of a join say: how far apart in time its rows may be, and which values of theirs must be equal.

It reads conditions that AND joins; what a kind of join makes of them is its planner's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlglot import exp

from penstock.planner.bind.binder import Relation, RelColumn
from penstock.planner.bind.scopes import RowScope, has_query
from penstock.planner.logical.operators import Comparison, Side
from penstock.sql.tree.expression_nodes import DurationLiteral
from penstock.sql.tree.walking import found_in, unwrapped
from penstock.sql.types import Precision

_COMPARISONS: dict[type[exp.Expression], Comparison] = {
    exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<=", exp.EQ: "=",
}
MIRRORED: dict[Comparison, Comparison] = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "=": "="}


@dataclass(frozen=True, slots=True)
class Sides:
    """Both relations, as aliases l and r, and the columns of both for conditions (`l.x`) and for the result."""

    left: Relation
    right: Relation
    inside: Relation
    outer: tuple[RelColumn, ...]

    def relation(self, side: Side) -> Relation:
        return self.left if side == "l" else self.right

    def of(self, column: RelColumn) -> Side:
        """Returns the side that a column of `inside` belongs to."""
        return "l" if column.side == "l" else "r"


def join_sides(left: Relation, right: Relation) -> Sides:
    """Returns both relations with the columns that conditions over them, and the joined rows, have."""
    inner: list[RelColumn] = []
    outer: list[RelColumn] = []
    sides: tuple[tuple[Side, Relation], ...] = (("l", left), ("r", right))
    for side, relation in sides:
        for column in relation.columns:
            inner.append(column.above(side=side))
            outer.append(column.above(column=f"#{side}{len(outer)}"))
    inside = Relation(
        columns=tuple(inner), star=tuple(inner), time=None, precision=left.precision, plan=left.plan,
        qualifiers=(*left.qualifiers, *right.qualifiers), homes=(*left.homes, *right.homes))
    return Sides(left, right, inside, tuple(outer))


@dataclass(frozen=True, slots=True)
class TimeComparison:
    """`left time OPERATOR right time + shift`, in units of the precision.

    `left` and `right` are the two expressions, `columns` the primary timestamps in them: joined rows have several.
    `shift` is None if one of them is truncated.
    """

    operator: Comparison
    left: exp.Expression
    right: exp.Expression
    columns: tuple[RelColumn, RelColumn]
    shift: int | None


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The least and the greatest of right time minus left time in units of the precision, None where nothing bounds it.

    `left` and `right` are the primary timestamps in question.
    """

    left: RelColumn
    right: RelColumn
    start: int | None
    end: int | None

    @property
    def is_bounded(self) -> bool:
        return self.start is not None and self.end is not None


@dataclass(frozen=True, slots=True)
class Equality:
    """An expression over the left side equals one over the right side."""

    left: exp.Expression
    right: exp.Expression


@dataclass(frozen=True, slots=True)
class Conditions:
    """What must be true of a pair of rows: `others` are neither about both times nor equalities of both sides."""

    times: tuple[TimeComparison, ...]
    keys: tuple[Equality, ...]
    others: tuple[exp.Expression, ...]

    def __add__(self, other: Conditions) -> Conditions:
        """What must be true if both must."""
        return Conditions(self.times + other.times, self.keys + other.keys, self.others + other.others)

    @property
    def truncated(self) -> bool:
        """Whether the times are equal once truncated, which bounds how far apart they are."""
        return any(time.operator == "=" and time.shift is None for time in self.times)

    @property
    def ranges(self) -> tuple[TimeRange, ...]:
        """What the comparisons of untruncated times say together, for each two timestamps."""
        by_columns: dict[tuple[int, int], list[TimeComparison]] = {}
        for time in self.times:
            by_columns.setdefault((id(time.columns[0]), id(time.columns[1])), []).append(time)
        return tuple(_range(times) for times in by_columns.values())


def _range(times: list[TimeComparison]) -> TimeRange:
    starts, ends = [], []
    for time in times:
        if time.shift is None:
            continue
        if time.operator in ("=", "<", "<="):
            starts.append(-time.shift + (time.operator == "<"))
        if time.operator in ("=", ">", ">="):
            ends.append(-time.shift - (time.operator == ">"))
    return TimeRange(*times[0].columns, max(starts, default=None), min(ends, default=None))


def read_conditions(nodes: Iterable[exp.Expression], sides: Sides, scope: RowScope) -> Conditions:
    """Returns what conditions, as `conjuncts` yields them, say about rows of both sides.

    Raises NotFoundError and InvalidStatementError for names that the sides don't have or share.
    """
    times: list[TimeComparison] = []
    keys: list[Equality] = []
    others: list[exp.Expression] = []
    for node in nodes:
        compared = _time_comparisons(node, sides, scope)
        if compared:
            times += compared
            continue
        equality = _equality(node, sides, scope)
        if equality is not None:
            keys.append(equality)
        else:
            others.append(node)
    return Conditions(tuple(times), tuple(keys), tuple(others))


def sides_of(node: exp.Expression, sides: Sides, scope: RowScope) -> set[Side]:
    """Returns the sides whose columns an expression names."""
    columns = [scope.find(column) for column in found_in(node, exp.Column)]
    return {sides.of(column) for column in columns if column is not None and column.role != "outer"}


def _equality(node: exp.Expression, sides: Sides, scope: RowScope) -> Equality | None:
    if not isinstance(node, exp.EQ) or has_query(node):
        return None
    first, second = sides_of(node.this, sides, scope), sides_of(node.expression, sides, scope)
    if (first, second) == ({"l"}, {"r"}):
        return Equality(node.this, node.expression)
    return Equality(node.expression, node.this) if (first, second) == ({"r"}, {"l"}) else None


def _time_comparisons(node: exp.Expression, sides: Sides, scope: RowScope) -> list[TimeComparison]:
    """Returns what a condition says about the time lines of both sides: BETWEEN two things, if anything."""
    if isinstance(node, exp.Between):
        bounds = [_comparison(">=", node.this, node.args["low"], sides, scope),
                  _comparison("<=", node.this, node.args["high"], sides, scope)]
        return [bound for bound in bounds if bound is not None] if None not in bounds else []
    operator = _COMPARISONS.get(type(node))
    if operator is None:
        return []
    found = _comparison(operator, node.this, node.args["expression"], sides, scope)
    return [found] if found is not None else []


def _comparison(operator: Comparison, first: exp.Expression, second: exp.Expression, sides: Sides,
                scope: RowScope) -> TimeComparison | None:
    one, two = _time(first, sides, scope), _time(second, sides, scope)
    if one is None or two is None or one.side == two.side:
        return None
    if one.side == "r":
        operator, first, second, one, two = MIRRORED[operator], second, first, two, one
    shift = None if one.shift is None or two.shift is None else two.shift - one.shift
    return TimeComparison(operator, first, second, (one.column, two.column), shift)


@dataclass(frozen=True, slots=True)
class _Time:
    """A primary timestamp of a side, plus `shift`; None if it is truncated."""

    side: Side
    column: RelColumn
    shift: int | None


def _time(node: exp.Expression, sides: Sides, scope: RowScope) -> _Time | None:
    """Returns what primary timestamp an expression is, if it is one, shifted or truncated at most."""
    node = unwrapped(node)
    if isinstance(node, exp.Add | exp.Sub):
        shifted, by = node.this, _length(node.expression, sides.inside.precision)
        if by is None and isinstance(node, exp.Add):
            shifted, by = node.expression, _length(node.this, sides.inside.precision)
        time = _time(shifted, sides, scope) if by is not None else None
        if time is None or by is None or time.shift is None:
            return time
        return _Time(time.side, time.column, time.shift + (by if isinstance(node, exp.Add) else -by))
    if isinstance(node, exp.Anonymous) and node.this == "timetruncate" and node.expressions:
        time = _time(node.expressions[0], sides, scope)
        return _Time(time.side, time.column, None) if time is not None else None
    column = scope.find(node)
    if column is None or column.role == "outer":
        return None
    side = sides.of(column)
    relation = sides.relation(side)
    times = [time for time, _ in relation.times] or ([relation.time] if relation.time is not None else [])
    return _Time(side, column.origins[0], 0) if any(column.origins[0] is time for time in times) else None


def _length(node: exp.Expression, precision: Precision) -> int | None:
    """Returns the length that a duration or an integer stands for; None for months, years and everything else."""
    node = unwrapped(node)
    if isinstance(node, exp.Neg):
        length = _length(node.this, precision)
        return -length if length is not None else None
    if isinstance(node, DurationLiteral):
        return None if node.duration.is_calendar else node.duration.in_units(precision)
    if isinstance(node, exp.Literal) and not node.is_string and node.this.lstrip("-").isdigit():
        return int(node.this)
    return None
