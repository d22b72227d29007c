"""What PARTITION BY of a stream gives, while it is bound."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import column
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.stream import StreamKey
from penstock.planner.lower.targets import key_field
from penstock.planner.task_plans.stream_plan import Field
from penstock.sql.tree.statements import PartitionItem


@dataclass(frozen=True, slots=True)
class GroupKey:
    """One value that all rows of a group share, the n-th of them: `value` over a source row.

    `names`: how expressions may refer to it (alias, text). `partitions`: False for values that follow from the others,
    such as the tags where the stream is partitioned by tbname. `item`: what stands in PARTITION BY.
    """

    place: int
    value: SqlExpr
    names: tuple[str, ...]
    partitions: bool
    item: PartitionItem | None = None

    @property
    def name(self) -> str:
        """What it is called as a column of rows and groups."""
        return f"#g{self.place}"

    @property
    def field(self) -> Field:
        """The column of blocks that holds it."""
        return key_field(self.place, self.value.type)

    @property
    def column(self) -> str | None:
        """The column or tag of the row that it is, `tbname`, or None if it is computed."""
        node = self.value.node
        return str(node.name) if isinstance(node, exp.Column) else None

    @property
    def key(self) -> StreamKey:
        return StreamKey(self.name, self.value.type, self.names[-1], self.partitions)

    def use(self) -> SqlExpr:
        """Returns the key as an expression over groups."""
        return SqlExpr(column(self.name), self.value.type)
