"""What the builders of aggregates are given: one checked call over grouped rows."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.common.errors import InvalidStatementError, Position
from penstock.planner.duckdb_tree import Tree, call, fragment
from penstock.planner.plan import SqlExpr
from penstock.planner.scalar_cast import to_double
from penstock.sql.types import DataType, Precision


@dataclass(frozen=True, slots=True)
class Selection:
    """Which row a selection function takes: the first (`ascending`) or last, by value or along the time line; if
    `present`, of those only that have a value."""

    ascending: bool
    by_value: bool = False
    present: bool = True


@dataclass(frozen=True, slots=True)
class RowKey:
    """What orders the rows of a group: their primary timestamp, their table (None: they have none), and the other
    columns that tell rows of equal time apart, such as the second part of a composite key."""

    ts: SqlExpr
    table: SqlExpr | None = None
    others: tuple[SqlExpr, ...] = ()

    @property
    def order(self) -> tuple[Tree, ...]:
        """What rows are sorted by, along the time line."""
        return tuple(value.node for value in (self.ts, self.table, *self.others) if value is not None)

    def rank(self, selection: Selection, value: Tree) -> Tree:
        """Returns what is least (ascending) or greatest for the row to pick.

        Equal values go to the earliest row, then to the lowest table id. Of rows of equal time the first has the least
        key, the last the greatest; then the lowest table id decides.
        """
        ts, keys = self.ts.node, [key.node for key in self.others]
        table = None if self.table is None else fragment(":table::HUGEINT", table=self.table.node)
        if selection.by_value:
            parts = [ts, *([table] if table is not None else [])]
            if not selection.ascending:
                parts = [fragment("-(:part)", part=part) for part in parts]
            # Ties of value and time within a table exist only with a composite key; the greater one is as good.
            return call("row", value, *parts, *keys)
        if table is None:
            return ts
        if not keys:
            # One wide integer instead of a struct: DuckDB picks by it three times as fast.
            sign = "+" if selection.ascending else "-"
            return fragment(f"(:ts::HUGEINT * 18446744073709551616 {sign} :table)", ts=ts, table=table)
        return call("row", ts, *keys, table if selection.ascending else fragment("-:table", table=table))


def in_order(item: Tree, row: RowKey) -> Tree:
    """Returns an aggregate: the list of an item per row, along the time line."""
    holes = {f"o{place}": tree for place, tree in enumerate(row.order)}
    return fragment(f"list(:item ORDER BY {', '.join(f':{name}' for name in holes)})", item=item, **holes)


@dataclass(frozen=True, slots=True)
class GroupedCall:
    """A call whose arguments were checked against the function table; `result` is the type it must give.

    No arguments stand for whole rows: `count(*)`. TIMESTAMP values are BIGINT, in units of `precision`.
    """

    name: str
    arguments: tuple[SqlExpr, ...]
    result: DataType
    row: RowKey
    precision: Precision = "ms"
    position: Position | None = None

    @property
    def value(self) -> Tree:
        """The first argument."""
        return self.arguments[0].node

    @property
    def double(self) -> Tree:
        """The first argument as DOUBLE."""
        return to_double(self.arguments[0])

    def constant(self, index: int) -> object | None:
        """Returns the value of an argument that is known when planning, None if it was left out."""
        return self.arguments[index].constant if index < len(self.arguments) else None

    def number(self, index: int) -> float:
        """Returns such a value, which the checks have found to be a number."""
        value = self.constant(index)
        assert isinstance(value, int | float)
        return float(value)

    def text(self, index: int) -> str:
        """Returns such a value, which the checks have found to be a text."""
        value = self.constant(index)
        assert isinstance(value, str)
        return value

    def refuse(self, text: str, code: int) -> InvalidStatementError:
        """Returns the error for arguments that can't be meant."""
        return InvalidStatementError(f"{self.name}(): {text}", code=code, position=self.position)
