"""Plain data of plans: compiled expressions, columns of results, and the tree that EXPLAIN prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from penstock.planner.duckdb_tree import is_loose, parse_tree, render
from penstock.sql.types import DataType


class SqlExpr:
    """A compiled scalar expression: a tree of DuckDB SQL and its type. It doesn't change.

    TIMESTAMP values are BIGINT in the SQL: units of `type.precision` since 1970-01-01 UTC.
    `constant` is set if the value is known when planning; it isn't compared.
    """

    __slots__ = ("_made_from", "_node", "_sql", "constant", "type")

    def __init__(self, sql: str | exp.Expression | Callable[[], exp.Expression], type: DataType,
                 constant: object = None) -> None:
        """`sql`: the tree, which belongs to this from now on; or what makes it, once it is asked for; or text of it."""
        self._sql: str | None = sql if isinstance(sql, str) else None
        self._node: exp.Expression | None = sql if isinstance(sql, exp.Expression) else None
        self._made_from = sql
        self.type = type
        self.constant = constant

    @property
    def node(self) -> exp.Expression:
        """The tree. Who puts it into another one copies it if it is in one already, as `duckdb_tree.fragment` does."""
        if self._node is None:
            made_from = self._made_from
            assert not isinstance(made_from, exp.Expression)
            self._node = parse_tree(made_from) if isinstance(made_from, str) else made_from()
        return self._node

    @property
    def leaf(self) -> exp.Expression:
        """The tree, to be printed as part of another one; what was made from text is one node with that text."""
        if self._node is None and isinstance(self._made_from, str):
            return exp.Paren(this=exp.Var(this=self._made_from))
        return self.node

    @property
    def sql(self) -> str:
        """The expression as text, in parentheses where another operator could tear it apart."""
        if self._sql is None:
            text = render(self.node)
            self._sql = f"({text})" if is_loose(self.node) else text
        return self._sql

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SqlExpr) and self.type == other.type and bool(self.node == other.node)

    def __hash__(self) -> int:
        return hash((self.node, self.type))

    def __repr__(self) -> str:
        return f"SqlExpr({self.sql!r}, {self.type!r}, {self.constant!r})"


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a result. TIMESTAMP columns come out of the SQL as BIGINT and are turned into timestamps last."""

    name: str
    type: DataType


@dataclass(frozen=True, slots=True)
class PlanNode:
    """A node of the tree that EXPLAIN prints: an operator, its properties in a fixed order, its inputs."""

    operator: str
    properties: tuple[tuple[str, str], ...] = ()
    inputs: tuple[PlanNode, ...] = ()


def render_tree(node: PlanNode, indent: str = "") -> list[str]:
    """Returns the lines of a stable text tree: no object ids, properties in the order given."""
    text = node.operator
    if node.properties:
        text += ": " + ", ".join(f"{key}={value}" for key, value in node.properties)
    lines = [indent + text]
    for child in node.inputs:
        lines += render_tree(child, indent + "  ")
    return lines
