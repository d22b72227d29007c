"""What names mean in results whose rows are not groups: rows, rows that functions picked, and instants of INTERP."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from penstock.planner.bind.binder import find_column
from penstock.planner.bind.grouping import window_column
from penstock.planner.bind.over import OverScope
from penstock.planner.bind.scopes import (
    INTERP_NAMES,
    NOT_SINGLE_GROUP,
    TIME_NAMES,
    WINDOW_NAMES,
    GroupKey,
    Mark,
    RowScope,
    fingerprint,
    key_of,
)
from penstock.planner.duckdb_sql.duckdb_tree import column
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.pseudo import pseudo_column
from penstock.planner.logical.operators import AT, FILLED, ORIGIN


class RowResultScope(OverScope):
    """Names in the result of a query over rows: columns, and the aliases of PARTITION BY."""

    def __init__(self, rows: RowScope, keys: Sequence[GroupKey]) -> None:
        super().__init__(rows, rows.clause)
        self.keys = list(keys)

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        key = key_of(node, self.keys) if qualifier is None else None
        return key.use() if key is not None else super().column(name, qualifier, node)


class CalledScope(RowResultScope):
    """As before, with the values of the functions that gave the rows, and the bounds of their windows."""

    def __init__(self, rows: RowScope, keys: Sequence[GroupKey], known: dict[Mark, SqlExpr], *, windowed: bool) -> None:
        super().__init__(rows, keys)
        self.known = known
        self.windowed = windowed

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        if name in WINDOW_NAMES and self.windowed:
            return window_column(name, self)
        return super().pseudo(name, node)

    def aggregate(self, name: str, arguments: list[exp.Expression], node: exp.Expression) -> SqlExpr:
        value = self.known.get(fingerprint(node, self))
        return value if value is not None else super().aggregate(name, arguments, node)


class InterpScope(CalledScope):
    """Names in the result of INTERP: keys, values at instants, and what is known of the instants."""

    def __init__(self, rows: RowScope, keys: Sequence[GroupKey], known: dict[Mark, SqlExpr]) -> None:
        super().__init__(rows, keys, known, windowed=False)

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        key = key_of(node, self.keys) if qualifier is None else None
        if key is not None:
            return key.use()
        assert self.relation is not None
        find_column(self.relation, name, qualifier, node, self.builder)
        raise self.builder.error(f"column {name} has no value between rows", node, code=NOT_SINGLE_GROUP,
                                 hint=f"write interp({name}), or put it into PARTITION BY")

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        if name in INTERP_NAMES:
            return pseudo_column(name, self.precision, column(AT), column(FILLED), column(ORIGIN))
        if name == "tbname":
            return self.column(name, None, node)
        if name in TIME_NAMES:
            raise self.builder.error(f"{name} has no value between rows", node, code=NOT_SINGLE_GROUP,
                                     hint="write _irowts")
        return super().pseudo(name, node)
