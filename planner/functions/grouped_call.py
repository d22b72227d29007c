"""What the builders of aggregates are given: one checked call over grouped rows."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.common.errors import InvalidStatementError
from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, fragment
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.group_values import RowKey
from penstock.planner.scalar.scalar_cast import to_double
from penstock.sql.types import DataType


@dataclass(frozen=True, slots=True)
class Selection:
    """Which row a selection function takes: the first (`ascending`) or last, by value or along the time line; if
    `present`, of those only that have a value."""

    ascending: bool
    by_value: bool = False
    present: bool = True

    @property
    def of_value(self) -> bool:
        """Whether a group in which no row has a value has no row that could be taken."""
        return self.present and not self.by_value


def rank(row: RowKey, selection: Selection, value: Tree) -> Tree:
    """Returns what is least (ascending) or greatest for the row to pick.

    Equal values go to the earliest row, then to the lowest table id. Of rows of equal time the first has the least
    key, the last the greatest; then the lowest table id decides.
    """
    ts, keys = row.ts.node, [key.node for key in row.others]
    table = None if row.table is None else fragment(":table::HUGEINT", table=row.table.node)
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
    holes = {f"o{place}": value.node for place, value in enumerate(row.order)}
    return fragment(f"list(:item ORDER BY {', '.join(f':{name}' for name in holes)})", item=item, **holes)


@dataclass(frozen=True, slots=True)
class GroupedCall:
    """A call whose arguments were checked against the function table; `result` is the type it must give.

    No arguments stand for whole rows: `count(*)`. TIMESTAMP values are BIGINT, in units of their type's precision.
    """

    name: str
    arguments: tuple[SqlExpr, ...]
    result: DataType
    row: RowKey

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
        return InvalidStatementError(f"{self.name}(): {text}", code=code)
