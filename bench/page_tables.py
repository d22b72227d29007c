"""The tables of the pages of figures: which lines of a run they have, and what of a line stands in a column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Line = Mapping[str, Any]
Form = Callable[[Any], str]


def found(line: Line, path: str) -> Any:
    """Returns a field of a line, or of a mapping in it: `latency_ms p50`; None if there is none."""
    value: Any = line
    for name in path.split():
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def short(number: float) -> str:
    """Returns a number with three digits at least: 1.23 M, 45.6 k, 789."""
    for unit, size in ((" M", 1e6), (" k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}" if number < 1000 * size else f"{number / size:.0f}{unit}"
    return f"{number:.3g}" if number < 100 else f"{number:.0f}"


def whole(number: float) -> str:
    """Returns a number without a fraction: 12,345."""
    return f"{number:,.0f}"


def fixed(digits: int) -> Form:
    """Returns what writes numbers with so many digits behind the point."""
    return lambda number: f"{number:,.{digits}f}"


def percent(share: float) -> str:
    """Returns a share of a whole, or of a processor."""
    return f"{100 * share:.0f} %"


def ms(seconds: float) -> str:
    """Returns seconds as milliseconds."""
    return f"{1000 * seconds:,.1f}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its head, the field of a line that it has, and how that is written."""

    head: str
    path: str
    form: Form = str

    def cell(self, line: Line) -> str:
        value = found(line, self.path)
        return "" if value is None else self.form(value)


@dataclass(frozen=True, slots=True)
class Rows:
    """A table with a row for each line that `where` takes."""

    title: str
    where: Callable[[Line], bool]
    columns: Sequence[Column]

    def text(self, lines: Sequence[Line]) -> str:
        """Returns the table as Markdown, or "" without lines."""
        return markdown([column.head for column in self.columns],
                        [[column.cell(line) for column in self.columns] for line in lines if self.where(line)])


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure of the first line that `where` takes: what it is of, and the field that it stands in."""

    what: str
    where: Callable[[Line], bool]
    path: str
    form: Form = str


@dataclass(frozen=True, slots=True)
class Facts:
    """A table of single figures, a row each."""

    title: str
    facts: Sequence[Fact]

    def text(self, lines: Sequence[Line]) -> str:
        """Returns the table as Markdown, or "" without any of the figures."""
        rows = []
        for fact in self.facts:
            values = [value for line in lines if fact.where(line) and (value := found(line, fact.path)) is not None]
            rows += [[fact.what, fact.form(value)] for value in values[:1]]
        return markdown(["what", "figure"], rows)


@dataclass(frozen=True, slots=True)
class Pivot:
    """A table with a row for each value of `row`, and a column for each of `columns`, by their field `column`.

    `ours`: the last column has how many times as much as the best of all others this one has, DuckDB's batch excepted.
    """

    title: str
    where: Callable[[Line], bool]
    row: Column
    column: str
    columns: Sequence[str]
    value: Column
    ours: str = ""

    def values(self, lines: Sequence[Line]) -> dict[str, dict[str, Any]]:
        """Returns what there is, by row and column; of equal lines the last counts."""
        table: dict[str, dict[str, Any]] = {}
        for line in lines:
            if self.where(line) and (value := found(line, self.value.path)) is not None:
                table.setdefault(self.row.cell(line), {})[str(found(line, self.column))] = value
        return table

    def text(self, lines: Sequence[Line]) -> str:
        """Returns the table as Markdown, or "" without lines; a column without values is left out."""
        table = self.values(lines)
        heads = [name for name in self.columns if any(name in row for row in table.values())]
        rows = []
        for name, row in table.items():
            cells = [self.value.form(row[head]) if head in row else "" for head in heads]
            rows.append([name, *cells, *([self._ratio(row)] if self.ours else [])])
        return markdown([self.row.head, *heads, *(["times the best peer"] if self.ours else [])], rows)

    def _ratio(self, row: Mapping[str, Any]) -> str:
        best = max((value for name, value in row.items() if name not in (self.ours, BATCH)), default=0)
        return f"{row[self.ours] / best:.1f}" if best and self.ours in row else ""


#: DuckDB computes the batch answer: the limit, and no peer.
BATCH = "duckdb-batch"

Table = Rows | Facts | Pivot


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table, "" without rows."""
    if not rows:
        return ""
    lines = ["| " + " | ".join(cells) + " |" for cells in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(lines) + "\n"
