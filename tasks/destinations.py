"""Which child table a group's results go to, and which sink task writes it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.common.placement import place
from penstock.planner.stream import Field, SinkPlan
from penstock.tasks.compute import GROUP, Computer, block_type, fields_schema
from penstock.tasks.messages import ResultChild


class Destinations:
    """Child tables by group id: computed once per group by the planner's SQL, from the group's keys."""

    def __init__(self, plan: SinkPlan, keys: Sequence[Field], computer: Computer) -> None:
        self._plan = plan
        self._keys = tuple(keys)
        self._computer = computer
        self._children: dict[int, ResultChild] = {}
        self._schema = pa.schema([
            GROUP, pa.field("_child", pa.string()),
            *(pa.field(f"t{n}", block_type(tag.type)) for n, tag in enumerate(plan.tags)),
        ])

    def learn(self, batch: pa.RecordBatch) -> list[int]:
        """Computes the children of groups that are new in a result batch; returns the batch's group ids."""
        gids: list[int] = batch.column(GROUP.name).to_pylist()
        fresh = {gid: row for row, gid in enumerate(gids) if gid not in self._children}
        if fresh:
            rows = pa.array(list(fresh.values()), pa.int64())
            columns = [batch.column(name).take(rows) for name in (GROUP.name, *(field.name for field in self._keys))]
            groups = pa.Table.from_arrays(columns, schema=pa.schema([GROUP, *fields_schema(self._keys)]))
            found = self._computer.run(self._plan.children_sql, self._schema, groups=groups)
            for row in found.to_pylist():
                tags = tuple(row[f"t{n}"] for n in range(len(self._plan.tags)))
                self._children[row[GROUP.name]] = ResultChild(row["_child"], tags)
        return gids

    def child(self, gid: int) -> ResultChild:
        """Returns the child table of a group that was learnt."""
        return self._children[gid]

    def sink_of(self, gid: int, sinks: int) -> int:
        """Returns the index of the sink task that writes a learnt group: that of the vnode its child is placed on."""
        return place(f"{self._plan.database}.{self._children[gid].name}", sinks)
