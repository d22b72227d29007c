"""Plain data of plans that people see: columns of results, and the tree that EXPLAIN prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.sql.types import DataType


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a result. TIMESTAMP columns come out of the SQL as BIGINT and are turned into timestamps last.

    `alias`: what a table that is made of the result calls it, for `a.v` that is `v`; None: nothing but its name.
    """

    name: str
    type: DataType
    alias: str | None = None


def names_in_tables(columns: Sequence[ResultColumn]) -> list[str]:
    """Returns what a table that is made of a result calls its columns: their aliases, unless two have the same."""
    aliases = [column.alias or column.name for column in columns]
    return [column.name if aliases.count(alias) > 1 else alias for column, alias in zip(columns, aliases, strict=True)]


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
