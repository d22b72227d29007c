"""Columns called as tasks call columns of their own, such as `_wstart`, have other names in what tasks compute."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from penstock.planner.duckdb_sql.duckdb_tree import Tree, column, replaced_columns
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import Line
from penstock.planner.logical.operators import Lookup, Operator, Scan
from penstock.sql.schema import Column, Table

#: What tasks, and the SQL that they run, call columns beside those of rows.
_OF_TASKS = re.compile("_(wstart|wend|wlast|gid|tuid|row|rows|last|limit)|[kr][0-9]+|#.*")


def with_inner_names(plan: Operator) -> Operator:
    """Returns the plan of a stream over one table with other names for such columns of that table."""
    table = _scan_of(plan).table
    names = {each.name: f"#.{each.name}" for each in (*table.columns, *table.tags) if _OF_TASKS.fullmatch(each.name)}
    if not names:
        return plan
    renamed: Operator = _Renaming(names, {name: column(inner) for name, inner in names.items()}).of(plan)
    return renamed


def _scan_of(operator: Operator) -> Scan:
    while not isinstance(operator, Scan):
        operator = operator.input  # type: ignore[union-attr]
    return operator


@dataclass(frozen=True, slots=True)
class _Renaming:
    names: Mapping[str, str]
    columns: Mapping[str, Tree]

    def of(self, value: Any) -> Any:
        """Returns a part of the plan with the other names, whatever it is."""
        match value:
            case SqlExpr():
                return SqlExpr(replaced_columns(value.node, self.columns), value.type, value.constant)
            case Scan():
                return replace(value, table=self._table(value.table), columns=self._names(value.columns))
            case Lookup():  # the columns of the table that is looked up in have names of their own
                return replace(value, input=self.of(value.input), on=self.of(value.on))
            case Line():
                return replace(value, order=self._names(value.order))
            case tuple():
                return tuple(map(self.of, value))
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{each.name: self.of(getattr(value, each.name)) for each in fields(value)})
        return value

    def _names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self.names.get(name, name) for name in names)

    def _table(self, table: Table) -> Table:
        return replace(table, columns=tuple(map(self._column, table.columns)),
                       tags=tuple(map(self._column, table.tags)))

    def _column(self, of_table: Column) -> Column:
        return replace(of_table, name=self.names.get(of_table.name, of_table.name))
