"""What is computed of groups of rows: which function is called on what, not how it is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock.planner.logical.expr import Expr, Written
from penstock.sql.schema import UserFunction
from penstock.sql.types import BIGINT, DOUBLE, DataType


@dataclass(frozen=True, slots=True)
class RowKey:
    """What orders the rows of a group: their primary timestamp, their table (None: they have none), and the other
    columns that tell rows of equal time apart, such as the second part of a composite key."""

    ts: Expr
    table: Expr | None = None
    others: tuple[Expr, ...] = ()

    @property
    def order(self) -> tuple[Expr, ...]:
        """What rows are sorted by, along the time line."""
        return tuple(value for value in (self.ts, self.table, *self.others) if value is not None)


@dataclass(frozen=True, slots=True)
class OrderedBy:
    """One thing that orders the rows that an aggregate takes."""

    value: Expr
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """Which rows of a group an aggregate takes, and in which order.

    Each different value of its arguments once, if `distinct`; those for which `condition` is true.
    """

    distinct: bool = False
    order: tuple[OrderedBy, ...] = ()
    condition: Expr | None = None


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """The column `name` of groups: what an aggregate or selection function gives of the rows of each.

    `function` is one of the dialect's, or that of `user`. Its arguments were checked, and are of the types that `user`
    declares; for a whole row, `*`, stands an `exp.Star`. `written` is the call as the statement has it. `taken`: which
    rows it takes, None: all, as its function orders them.
    """

    name: str
    function: str
    arguments: tuple[Expr, ...]
    row: RowKey
    type: DataType
    written: Written | None = None
    user: UserFunction | None = None
    taken: Taken | None = None


@dataclass(frozen=True, slots=True)
class PickedColumn:
    """The column `name` of groups: `column` of the row that a selection function picks by its argument `by`.

    For mode, of which many rows may have the value, it is a list of STRUCT(v, c) instead: `by` and `column` of all rows
    that have a value, along the time line. `written` is the column as the statement has it.
    """

    name: str
    function: str
    by: Expr
    column: Expr
    row: RowKey
    written: Written | None = None

    @property
    def type(self) -> DataType:
        return self.column.type


@dataclass(frozen=True, slots=True)
class Covered:
    """The column `name` of groups: TWA or ELAPSED, sums over the stretches of time between rows that have a value.

    `function` is twa or elapsed. `before` and `after` are the nearest such rows of the same line, as STRUCT(t, v) with
    their time and value. With `after` groups are windows on a grid, and stretches are cut at their borders. `unit`:
    ELAPSED's, in units of the precision.
    """

    name: str
    function: str
    value: Expr
    ts: Expr
    before: Expr
    after: Expr | None = None
    unit: int = 1

    @property
    def type(self) -> DataType:
        return DOUBLE


@dataclass(frozen=True, slots=True)
class SharedValue:
    """The column `name` of groups: a value that all rows of each share."""

    name: str
    value: Expr

    @property
    def type(self) -> DataType:
        return self.value.type


@dataclass(frozen=True, slots=True)
class RowTotal:
    """The column `name` of groups: how many rows there are, of a scan whose rows stand for several each."""

    name: str

    @property
    def type(self) -> DataType:
        return BIGINT


@dataclass(frozen=True, slots=True)
class KeysLeftOut:
    """The column `name` of groups: which of these keys its grouping set lacks, a bit each, the last one counts 1."""

    name: str
    keys: tuple[str, ...]

    @property
    def type(self) -> DataType:
        return BIGINT


GroupValue: TypeAlias = AggregateCall | PickedColumn | Covered | SharedValue | RowTotal | KeysLeftOut
"""A column that is computed over the rows of each group."""
