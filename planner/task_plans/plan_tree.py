"""Plain data of plans that people see: columns of results, and the tree that EXPLAIN prints."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.sql.types import DataType


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
