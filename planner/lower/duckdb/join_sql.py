"""Joins: inner, left, right, full, and their SEMI, ANTI, ASOF and WINDOW variants.

SEMI, ANTI, ASOF and WINDOW joins have a driving side, whose rows are numbered; what the other side adds is chosen per
driving row.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from penstock.common.errors import InternalError
from penstock.planner.duckdb_sql.duckdb_tree import Tree, all_of, column, fragment, made, named, number, select
from penstock.planner.duckdb_sql.pieces import (
    as_type,
    joined,
    nested,
    ordered,
    relation,
    row_number,
    star,
)
from penstock.planner.logical.joining import has_pieces, is_nearest
from penstock.planner.logical.operators import ROW, Join, JoinTime, Side
from penstock.planner.lower.duckdb.steps import Steps

_POSITION = "#position"
_NEAREST = "#nearest"
_PIECE = "#piece"


def joined_rows(join: Join, steps: Steps) -> exp.Query:
    """Returns the joined rows."""
    return _Lowering(join, steps).query()


class _Lowering:
    """One join: the names of the relations of both sides, and what its SELECTs have in common."""

    def __init__(self, join: Join, steps: Steps) -> None:
        self.join = join
        self.steps = steps
        self.names: dict[Side, str] = {"l": steps.rows(join.left.rows), "r": steps.rows(join.right.rows)}

    def query(self) -> exp.Query:
        join = self.join
        match join.variant:
            case "window":
                return self._chosen(descending=False)
            case "asof":
                if is_nearest(join):
                    return self._nearest()
                return self._chosen(descending=self._looks_back())
            case "semi" | "anti":
                return self._filtering()
        if join.nearest:
            found = joined(self._side("r"), join.condition.node, side="" if join.kind == "inner" else join.kind.upper(),
                           method="ASOF")
            return select(self._shown(), self._side("l"), joins=[found])
        if join.kind == "full" and has_pieces(join):
            return self._full()
        side = {"inner": "", "left": "LEFT", "right": "LEFT", "full": "FULL"}[join.kind]
        others, condition = self._near(join.driver)
        return select(self._shown(), self._side(join.driver), joins=[joined(others, condition, side=side)])

    # -- parts -----------------------------------------------------------------------------------------------

    def _side(self, side: Side) -> Tree:
        return relation(self.names[side], side)

    def _numbered(self, side: Side) -> Tree:
        """The rows of a side with their number ROW."""
        return nested(select([star(), named(row_number(), ROW)], self.names[side]), side)

    def _order(self, side: Side, *, descending: bool = False) -> list[Tree]:
        found = [ordered(column(name, side), descending=descending) for name in self.join.side(side).order]
        return [*found] or [number(1)]

    def _shown(self, without: Side | None = None) -> list[Tree]:
        """The columns of the result; those of the side `without` are NULL."""
        return [named(as_type(exp.null(), item.column.type) if item.side == without
                      else column(item.column.name, item.side), item.name) for item in self.join.columns] or [number(1)]

    def _near(self, driver: Side) -> tuple[Tree, Tree]:
        """The FROM item of the side that isn't driving, and the condition, where too many rows have equal keys.

        Time is cut into pieces as long as the range of the join. A row of the other side stands in each piece in which
        its partners may be, which are one or two; so pieces are equal, and hashed, like keys, and no pair is found
        twice.
        """
        join = self.join
        other: Side = "l" if driver == "r" else "r"
        condition = join.condition.node
        if not has_pieces(join):
            return self._side(other), condition
        found = join.range
        if found is None or found.start is None or found.end is None:
            raise InternalError("a join has pieces, and nothing bounds its times")
        length = max(found.end - found.start, 1)
        if driver == "l":
            driving, time, shifts = found.left, found.right, (-found.end, -found.start)
        else:
            driving, time, shifts = found.right, found.left, (found.start, found.end)
        first, last = (fragment("(:time::HUGEINT + :shift) // :length", time=column(time), shift=shift, length=length)
                       for shift in shifts)
        pieces = fragment("unnest(list_distinct([:first, :last]))", first=first, last=last)
        same = fragment(":time::HUGEINT // :length = :piece", time=column(driving, driver), length=length,
                        piece=column(_PIECE, other))
        return nested(select([star(), named(pieces, _PIECE)], self.names[other]), other), all_of([same, condition])

    # -- kinds -----------------------------------------------------------------------------------------------

    def _full(self) -> exp.Union:
        """A full join of pieces of time: the left rows, then what is left over."""
        others, paired = self._near("l")
        partners, lonely = self._near("r")
        left = select(self._shown(), self._side("l"), joins=[joined(others, paired, side="LEFT")])
        met = made(exp.Exists, this=select([number(1)], partners, where=lonely))
        right = select(self._shown(without="l"), self._side("r"), where=made(exp.Not, this=met))
        return made(exp.Union, this=left, expression=right, distinct=False)

    def _filtering(self) -> exp.Select:
        join = self.join
        others, condition = self._near(join.driver)
        if join.variant == "anti":
            met = made(exp.Exists, this=select([number(1)], others, where=condition))
            return select(self._shown(without=join.other), self._numbered(join.driver), where=made(exp.Not, this=met))
        position = row_number([column(ROW, join.driver)], self._order(join.other))
        return select(self._shown(), self._numbered(join.driver), joins=[joined(others, condition)],
                      qualify=fragment(":position = 1", position=position))

    def _chosen(self, *, descending: bool) -> exp.Select:
        """The first rows that match each driving row, up to the limit, and driving rows without match."""
        join = self.join
        others, condition = self._near(join.driver)
        kept = None
        if join.limit is not None:
            position = row_number([column(ROW, join.driver)], self._order(join.other, descending=descending))
            kept = fragment(":position <= :most", position=position, most=join.limit)
        return select([*self._shown(), named(column(ROW, join.driver), ROW)], self._numbered(join.driver),
                      joins=[joined(others, condition, side="LEFT")], qualify=kept)

    def _time(self) -> JoinTime:
        return self.join.times[0]

    def _looks_back(self) -> bool:
        """Whether rows of the other side are wanted that come before the driving row."""
        comparison = self._time().comparison
        return comparison == "=" or comparison in ((">", ">=") if self.join.driver == "l" else ("<", "<="))

    def _nearest(self) -> exp.Select:
        """An ASOF join of times that differ and equal values.

        DuckDB's own ASOF join finds the nearest row of each driving row without pairing all rows first. Of rows with
        the same instant, what the time of the driving row is compared with, it would take any: all but the last in
        order (the first if later rows are wanted) are left out before. If more than one is wanted, the other side's
        rows are numbered along their time line, and those with the `limit` numbers from the nearest on are joined.
        """
        join, steps = self.join, self.steps
        driver, other, limit, back = join.driver, join.other, join.limit or 1, self._looks_back()
        keys = [(key.right if other == "r" else key.left).node for key in join.keys]
        others = self.names[other]
        if limit > 1:
            position = named(row_number(keys, self._order(other)), _POSITION)
            others = steps.add("numbered", select([star(), position], relation(others, other)))
        nearest = others
        if not (self._time().exact and join.side(other).one_per_instant):
            instant = (self._time().right if other == "r" else self._time().left).node
            position = row_number([*keys, instant], self._order(other, descending=back))
            nearest = steps.add("nearest", select([star()], relation(others, other),
                                                  qualify=fragment(":position = 1", position=position)))
        found = joined(relation(nearest, other), join.condition.node, side="LEFT", method="ASOF")
        if limit == 1:
            return select(self._shown(), self._side(driver), joins=[found])
        near = steps.add("found", select([star(of=driver), named(column(_POSITION, other), _NEAREST)],
                                         self._numbered(driver), joins=[found]))
        return self._beside(near, others, self._span(back, limit), back)

    def _span(self, back: bool, limit: int) -> Tree:
        driver, other = self.join.driver, self.join.other
        template = ":position BETWEEN :near - :more AND :near" if back else ":position BETWEEN :near AND :near + :more"
        return fragment(template, position=column(_POSITION, other), near=column(_NEAREST, driver), more=limit - 1)

    def _beside(self, near: str, others: str, span: Tree, back: bool) -> exp.Select:
        """The rows of the other side that are beside the nearest one."""
        join = self.join
        same: Sequence[Tree] = [key.equal.node for key in join.keys]
        order: list[Tree] = [ordered(column(ROW, join.driver)), ordered(column(_POSITION, join.other), descending=back)]
        return select(self._shown(), relation(near, join.driver), order_by=order,
                      joins=[joined(relation(others, join.other), all_of([*same, span]), side="LEFT")])


