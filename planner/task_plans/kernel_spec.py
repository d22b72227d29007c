"""What a task computes without DuckDB where its SQL is simple: plain data, derived from that SQL when planning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.sql.types import Kind

FieldFunction = Literal["rows", "count", "sum", "min", "max", "mean", "deviations", "zero"]


@dataclass(frozen=True, slots=True)
class Expr:
    """A scalar expression over columns. `op` names the operation; TIMESTAMP values are BIGINT.

    column: `value` is its name. constant: `value`. cast: of `args[0]` to `type`, exact or to DOUBLE. left: of a text,
    to `value` characters. case: `args` are condition, value, ..., and last the value of ELSE, if there is one.
    Others: + - * / neg sqrt greatest nullif coalesce = <> < <= > >= and or not null (is NULL).
    """

    op: str
    type: Kind
    args: tuple[Expr, ...] = ()
    value: int | float | str | bool | None = None

    def columns(self) -> set[str]:
        """Returns the names of the columns that the expression reads."""
        own = {str(self.value)} if self.op == "column" else set()
        return own.union(*(arg.columns() for arg in self.args))


@dataclass(frozen=True, slots=True)
class FieldKernel:
    """One field of a partial: `function` over the values of `value` that are not NULL (rows: over all rows).

    sum is NULL without values; deviations: the sum of squared deviations from the mean.
    """

    function: FieldFunction
    value: Expr | None = None


@dataclass(frozen=True, slots=True)
class PickKernel:
    """The fields of one chosen row, all NULL without a row: the first by `order` (place in `fields`, smallest first?)
    of those where `present` is not NULL (None: of all)."""

    fields: tuple[Expr, ...]
    order: tuple[tuple[int, bool], ...]
    present: Expr | None


@dataclass(frozen=True, slots=True)
class Panes:
    """Windows on a grid without calendar: starts at `offset` + k * `step`, each `width` long; `pane` divides both.

    If these are 0 all time is one window.
    """

    offset: int
    step: int
    width: int
    pane: int


@dataclass(frozen=True, slots=True)
class ValueKeys:
    """How the values of rows make groups: those of `columns`, and if `of_tables` the child table, decide on the group.

    `sql` reads these columns, `tbname` and the tags from `keys`, and yields `_digest` and the keys, row by
    row. The last half of the digest is the group's id.
    """

    sql: str
    columns: tuple[str, ...]
    of_tables: bool


@dataclass(frozen=True, slots=True)
class SourceKernel:
    """What `SourcePlan.sql` computes, for `tasks.source_kernel`.

    `groups_sql` reads `children` and yields `_tuid`, `_gid` and the keys; None: all rows are of the group 0, without
    keys, unless `values` says how groups follow from rows. `aggregates` are in the order of the partial's fields;
    `projections` those of a scalar stream. `panes` is None where there is no INTERVAL.
    `marks` are the named columns by which `tasks.windower` tells row windows apart, `mark_condition` which rows count.
    """

    condition: Expr | None
    groups_sql: str | None
    panes: Panes | None
    aggregates: tuple[FieldKernel | PickKernel, ...]
    projections: tuple[Expr, ...]
    marks: tuple[tuple[str, Expr], ...] = ()
    mark_condition: Expr | None = None
    values: ValueKeys | None = None


@dataclass(frozen=True, slots=True)
class FinalKernel:
    """What `WindowsPlan.final_sql` computes: the result columns over keys, `_wstart`, `_rows`, the accumulators'
    fields, and `_wend`, which is `end` of these (None: no result reads it). Where `nothing` holds there is no result.
    """

    results: tuple[Expr, ...]
    end: Expr | None
    nothing: Expr
