"""What operators hold where they compute something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from sqlglot import exp

from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.sql.types import DataType

Expr: TypeAlias = SqlExpr
"""A bound expression: typed, a tree over the columns of the operator's input, by their names there."""

Written: TypeAlias = exp.Expression
"""An expression as the statement has it, for EXPLAIN."""


@dataclass(frozen=True, slots=True)
class ColumnExpr:
    """A column of an operator's rows. No two of one operator have the same name."""

    name: str
    type: DataType


@dataclass(frozen=True, slots=True)
class Computed:
    """A column that an operator computes. `label` is what EXPLAIN calls it, None if that doesn't show it."""

    name: str
    value: Expr
    label: str | None = None

    @property
    def column(self) -> ColumnExpr:
        return ColumnExpr(self.name, self.value.type)


@dataclass(frozen=True, slots=True)
class Line:
    """How rows lie in time: `order` names the columns with the time and with what orders rows of equal time.

    `keys` name the columns that tell lines apart.
    """

    keys: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
