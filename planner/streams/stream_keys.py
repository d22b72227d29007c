"""What PARTITION BY of a stream gives, while it is bound."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from penstock.planner.bind.scopes import GroupKey, Mark
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.stream import StreamKey
from penstock.planner.logical.written import text_of
from penstock.planner.lower.targets import key_field
from penstock.planner.task_plans.stream_plan import Field
from penstock.sql.tree.statements import PartitionItem


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionKey(GroupKey):
    """The n-th value that all rows of a group share: `value` over a source row.

    `names`: how SUBTABLE and TAGS may refer to it (alias, text). `item`: what stands in PARTITION BY, None for values
    that follow from the others, such as the tags where the stream is partitioned by tbname.
    """

    place: int
    value: SqlExpr
    names: tuple[str, ...]
    item: PartitionItem | None = None

    @property
    def field(self) -> Field:
        """The column of blocks that holds it."""
        return key_field(self.place, self.type)

    @property
    def source(self) -> str | None:
        """The column or tag of the row that it is, `tbname`, or None if it is computed."""
        node = self.value.node
        return str(node.name) if isinstance(node, exp.Column) else None

    @property
    def stream_key(self) -> StreamKey:
        return StreamKey(self.column, self.type, self.names[-1], self.partitions)


def names_of(item: PartitionItem) -> tuple[str, ...]:
    """Returns how SUBTABLE and TAGS may refer to an item of PARTITION BY."""
    node = item.expression
    own = (item.alias,) if item.alias else (item.text, *((node.name,) if isinstance(node, exp.Column) else ()))
    return *own, text_of(node)


def partition_key(place: int, item: PartitionItem, value: SqlExpr, mark: Mark) -> PartitionKey:
    """Returns the key that an item of PARTITION BY is. `mark`: see `fingerprint`."""
    names = names_of(item)
    return PartitionKey(f"#g{place}", value.type, mark, item.alias, names[0], place=place, value=value, names=names,
                        item=item)


def following_key(place: int, name: str, value: SqlExpr, mark: Mark) -> PartitionKey:
    """Returns the key for a column whose value follows from the other keys."""
    return PartitionKey(f"#g{place}", value.type, mark, None, name, partitions=False, place=place, value=value,
                        names=(name,))
