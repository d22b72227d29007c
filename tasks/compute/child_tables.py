"""The child tables of a stream's source in one vnode: names and tags by table id, kept current from META records."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import pyarrow as pa

from penstock.planner.task_plans.stream_plan import SourcePlan
from penstock.tasks.protocol.block_schema import fields_schema
from penstock.tasks.protocol.child_records import NewChildren, new_children


class ChildTables:
    """Starts from the deployment's list and follows the WAL; gives the relation `children` of `SourcePlan`."""

    def __init__(self, plan: SourcePlan, deployed: bytes) -> None:
        self._uid = plan.storage_uid
        self._schema = pa.schema([
            pa.field("_tuid", pa.uint64()), pa.field("tbname", pa.string()), *fields_schema(plan.tags)])
        self._rows: dict[int, tuple[Any, ...]] = {}
        self._table: pa.Table | None = None
        with pa.ipc.open_stream(deployed) as reader:
            table = reader.read_all()
        for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
            self._rows[row[0]] = self._fitted(row[1], row[2:])

    def apply(self, body: dict[str, Any]) -> None:
        """Takes over what a META record says of this table; records of other tables are not its business."""
        if body.get("table_uid") != self._uid:
            return
        match body["op"]:
            case "create_children":
                self._add(new_children(body))
            case "set_tags":
                uid, name, tags = body["child"]
                self._rows[uid] = self._fitted(name, tags)
            case "drop_children":
                for uid in body["children"]:
                    self._rows.pop(uid, None)
        self._table = None

    def names(self) -> dict[int, str]:
        """Returns the names of all child tables by their ids."""
        return {uid: row[0] for uid, row in self._rows.items()}

    def table(self) -> pa.Table:
        """Returns `_tuid`, `tbname` and the tags of all children; timestamps as int64."""
        if self._table is None:
            width = len(self._schema)
            columns: list[list[Any]] = [[] for _ in range(width)]
            for uid, row in self._rows.items():
                columns[0].append(uid)
                for n, value in enumerate(row):
                    columns[n + 1].append(value)
            self._table = pa.table(
                [pa.array(values, field.type) for values, field in zip(columns, self._schema, strict=True)],
                schema=self._schema)
        return self._table

    def _add(self, children: NewChildren) -> None:
        count, wanted = len(children.uids), len(self._schema) - 2
        columns = [*children.tags[:wanted], *[repeat(None, count)] * (wanted - len(children.tags))]
        self._rows.update(zip(children.uids, zip(children.names, *columns, strict=True), strict=True))

    def _fitted(self, name: str, tags: Any) -> tuple[Any, ...]:
        wanted = len(self._schema) - 2
        values = tuple(tags)[:wanted]
        return (name, *values, *(None for _ in range(wanted - len(values))))
