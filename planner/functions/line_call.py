"""What the builders of functions that give rows are given, and what they say: which rows stay, with which values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import Tree, column, fragment
from penstock.planner.duckdb_sql.pieces import columns, over
from penstock.planner.logical.expr import Line
from penstock.planner.logical.operators import RowCall
from penstock.sql.types import Kind

#: The column that numbers the rows of a line.
ROW_NUMBER = "#row"


@dataclass(frozen=True, slots=True)
class LineCall:
    """A checked call over rows that lie along lines. `seed` says which rows are taken at random."""

    call: RowCall
    line: Line
    seed: int = 0

    @property
    def value(self) -> Tree:
        """The first argument."""
        return self.call.arguments[0].node

    @property
    def number(self) -> Tree:
        """The first argument as a number."""
        is_bool = self.call.arguments[0].type.kind is Kind.BOOL
        return fragment(":value::TINYINT", value=self.value) if is_bool else self.value

    @property
    def shown(self) -> Tree:
        """The column with the call's own value."""
        return column(self.call.name)

    @property
    def has_value(self) -> Tree:
        """Whether that isn't NULL."""
        return fragment(":shown IS NOT NULL", shown=self.shown)

    @property
    def row(self) -> Tree:
        """The number of the row, from 1, where values are known."""
        return column(ROW_NUMBER)

    @property
    def run_name(self) -> str:
        """The name of the column that numbers the runs of rows for which the condition holds."""
        return f"#run{self.call.name}"

    @property
    def order(self) -> list[Tree]:
        return columns(self.line.order)

    @property
    def time(self) -> Tree:
        return column(self.line.order[0])

    def integer(self, index: int, default: int = 0) -> int:
        """Returns an argument that the checks have found to be an integer that is known when planning."""
        value = self.call.constants[index] if index < len(self.call.constants) else default
        assert isinstance(value, int)
        return value

    def text(self, index: int) -> str:
        """Returns such an argument that is a text, in small letters."""
        return str(self.call.constants[index]).lower()

    def along(self, function: Tree, rows: exp.WindowSpec | None = None, within: Sequence[Tree] = ()) -> Tree:
        """Returns a window function along the lines, `within` parts of them."""
        return over(function, [*columns(self.line.keys), *within], self.order, rows)


LineBuilder = Callable[[LineCall], Tree]


def every_row(_given: LineCall) -> Tree:
    return exp.true()


@dataclass(frozen=True, slots=True)
class AlongRows:
    """What DuckDB computes for a function that runs along rows: the `value` on each, and whether the row `stays`.

    Functions of the same `rule` leave the same rows, so they may stand side by side. `present`: rows without a value of
    the first argument are left out at first. `holds`: the condition whose runs of rows are numbered at first.
    """

    rule: str
    value: LineBuilder
    stays: LineBuilder = every_row
    present: bool = False
    holds: LineBuilder | None = None


@dataclass(frozen=True, slots=True)
class PicksRows:
    """What DuckDB computes for a function that picks rows: their `ranking`, and the first and last `ranks` taken.

    `present`: of those rows only that have a value. `each_value`: of the rows of each value.
    """

    ranking: Callable[[LineCall], list[Tree]]
    ranks: Callable[[LineCall], tuple[int, int]]
    present: bool = True
    each_value: bool = False
