"""A compiled scalar expression: a tree of DuckDB SQL, and its type in the dialect."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import Tree, render
from penstock.sql.types import DataType


class SqlExpr:
    """A compiled scalar expression: a tree of DuckDB SQL and its type. It doesn't change.

    TIMESTAMP values are BIGINT in the SQL: units of `type.precision` since 1970-01-01 UTC.
    `constant` is set if the value is known when planning; it isn't compared.
    """

    __slots__ = ("_made_from", "_node", "constant", "type")

    def __init__(self, node: Tree | Callable[[], Tree], type: DataType, constant: object = None) -> None:
        """`node`: the tree, or what makes it once it is asked for: long lists of constants may need none."""
        self._node: Tree | None = node if isinstance(node, exp.Expression) else None
        self._made_from = node
        self.type = type
        self.constant = constant

    @property
    def node(self) -> Tree:
        """The tree."""
        if self._node is None:
            assert not isinstance(self._made_from, exp.Expression)
            self._node = self._made_from()
        return self._node

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SqlExpr) and self.type == other.type and bool(self.node == other.node)

    def __hash__(self) -> int:
        return hash((self.node, self.type))

    def __repr__(self) -> str:
        return f"SqlExpr({render(self.node)!r}, {self.type!r}, {self.constant!r})"
