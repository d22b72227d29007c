"""What the planner returns: DuckDB SQL, the scans it reads, result columns, and a tree for EXPLAIN."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from penstock.planner.user_calls import UserCall
from penstock.sql.cuts import Cut
from penstock.sql.schema import Table
from penstock.sql.types import DataType


@dataclass(frozen=True, slots=True)
class SqlExpr:
    """A compiled scalar expression: DuckDB SQL and its type.

    TIMESTAMP values are BIGINT in the SQL: units of `type.precision` since 1970-01-01 UTC.
    `constant` is set if the value is known when planning.
    """

    sql: str
    type: DataType
    constant: object = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Scan:
    """One read of a base table. In the plan's SQL it is the relation `name`, with these columns:

    `_tuid` UBIGINT (the child table), and each name in `columns`: user columns, tags and `tbname`, named as the user
    names them; timestamps are BIGINT in units of the database's precision.
    `first_ts` and `last_ts` are inclusive bounds on the primary timestamp that the WHERE clause implies, or None:
    the relation may leave out rows outside of them (the SQL filters again). So it may with rows of child tables that
    are not in `tuids`, unless that is None: conditions on tags leave only these. `cuts`: only rows that were written
    behind the first and up to the second stream cut, as they were at the second.
    """

    name: str
    table: Table
    columns: tuple[str, ...]
    first_ts: int | None = None
    last_ts: int | None = None
    tuids: tuple[int, ...] | None = None
    cuts: tuple[Cut, Cut] | None = None


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


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A planned query: run `sql` where each scan's relation exists, get `columns` in order.

    `sql` begins with a WITH clause, to which the scans' relations can be added.
    `tables` are relations whose rows were known when planning, by name: the child tables of a super table.
    `functions` are the users' functions that `sql` calls.
    """

    sql: str
    scans: tuple[Scan, ...]
    columns: tuple[ResultColumn, ...]
    tree: PlanNode
    tables: tuple[tuple[str, pa.Table], ...] = field(default=(), compare=False)
    functions: tuple[UserCall, ...] = ()


def render_tree(node: PlanNode, indent: str = "") -> list[str]:
    """Returns the lines of a stable text tree: no object ids, properties in the order given."""
    text = node.operator
    if node.properties:
        text += ": " + ", ".join(f"{key}={value}" for key, value in node.properties)
    lines = [indent + text]
    for child in node.inputs:
        lines += render_tree(child, indent + "  ")
    return lines
