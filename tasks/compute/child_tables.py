"""The child tables of a stream's source in one vnode: names and tags by table id, kept current from META records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import pyarrow as pa

from penstock.planner.task_plans.stream_plan import SourcePlan
from penstock.tasks.protocol.block_schema import fields_schema
from penstock.tasks.protocol.child_records import BINARY, NewChildren, binary_tag, new_children
from penstock.vnode.store.sorted_keys import TS_MIN
from penstock.wal.record import MetaRecord, Record

#: What META records say by which child tables may move.
MOVES = frozenset({"set_tags", "drop_children"})

_CHUNKS_MAX = 64

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class MovedTables:
    """Child tables whose rows get out of the groups that they were in: they have other tags, or are gone.

    `before`, `after`: rows of the relation `children`; what is gone is only in the first. `between`: what they were
    meanwhile, if there is more than one record of them: an earlier attempt may have seen each by itself, and written
    results of groups that are over by now. `first_ts`: older rows stay where they are.
    """

    before: pa.Table
    after: pa.Table
    between: tuple[pa.Table, ...] = ()
    first_ts: int = TS_MIN

    @property
    def tuids(self) -> pa.Array:
        return self.before.column("_tuid").combine_chunks()


def moves_tables(record: Record) -> bool:
    """Whether a record may say of child tables that they have other tags, or are gone."""
    return isinstance(record, MetaRecord) and record.body.get("op") in MOVES


class ChildTables:
    """Starts from the deployment's list and follows the WAL; gives the relation `children` of `SourcePlan`."""

    def __init__(self, plan: SourcePlan, deployed: bytes) -> None:
        self._uid, self._only = plan.storage_uid, plan.keep_tuid
        self._schema = pa.schema([
            pa.field("_tuid", pa.uint64()), pa.field("tbname", pa.string()), *fields_schema(plan.tags)])
        self._binary = [place for place, tag in enumerate(plan.tags) if tag.type.kind in BINARY]
        used = plan.used_tags
        self._used = [0, *(place for place, tag in enumerate(plan.tags, 1) if used is None or tag.name in used)]
        self._rows: dict[int, Row] = {}
        self._table: pa.Table | None = None
        self._behind: dict[int, Row] = {}  # rows that come behind those of `_table`
        #: counts up whenever `table` isn't what it was before with new tables behind
        self.renewals = 0
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
                self._tell(*body["child"])
            case "drop_children":
                for uid in body["children"]:
                    self._rows.pop(uid, None)
                self._table = None

    def move(self, bodies: Iterable[dict[str, Any]]) -> MovedTables | None:
        """Applies records for which `moves_tables` is true; returns what moves by that as far as the stream sees."""
        bodies = [body for body in bodies if body.get("table_uid") == self._uid]
        told = [uid for body in bodies for uid in
                (body["children"] if body["op"] == "drop_children" else body["child"][:1])]
        were = {uid: [self._rows[uid]] for uid in told if uid in self._rows and self._only in (None, uid)}
        for body in bodies:
            self.apply(body)
            for uid, rows in were.items():
                row = self._rows.get(uid)
                if row is not None and self._seen(row) != self._seen(rows[-1]):
                    rows.append(row)
        # The last is what they are now, but of those that are gone.
        left = {uid: rows[:-1] if uid in self._rows else rows for uid, rows in were.items()}
        moved = {uid: rows for uid, rows in left.items() if rows}
        if not moved:
            return None
        before, *between = (self._as_table({uid: rows[n] for uid, rows in moved.items() if n < len(rows)})
                            for n in range(max(map(len, moved.values()))))
        after = self._as_table({uid: self._rows[uid] for uid in moved if uid in self._rows})
        return MovedTables(before, after, tuple(between))

    def go_back(self, bodies: Sequence[Mapping[str, Any]]) -> None:
        """Has the child tables be as they were before these records, which are to be applied later."""
        for body in reversed(bodies):
            if body.get("table_uid") == self._uid:
                for told in body.get("before", ()):  # records of older versions don't say it
                    self._tell(*told)

    def names(self) -> dict[int, str]:
        """Returns the names of all child tables by their ids."""
        return {uid: row[0] for uid, row in self._rows.items()}

    def table(self) -> pa.Table:
        """Returns `_tuid`, `tbname` and the tags of all children; timestamps as int64."""
        if self._table is None:
            self._table = self._as_table(self._rows)
            self.renewals += 1
        elif self._behind:
            self._table = pa.concat_tables([self._table, self._as_table(self._behind)])
            if self._table.column(0).num_chunks > _CHUNKS_MAX:
                self._table = self._table.combine_chunks()
        self._behind = {}
        return self._table

    def _as_table(self, rows: Mapping[int, Row]) -> pa.Table:
        columns: list[list[Any]] = [[] for _ in self._schema]
        for uid, row in rows.items():
            columns[0].append(uid)
            for n, value in enumerate(row):
                columns[n + 1].append(value)
        return pa.table([pa.array(values, field.type) for values, field in zip(columns, self._schema, strict=True)],
                        schema=self._schema)

    def _add(self, children: NewChildren) -> None:
        count, wanted = len(children.uids), len(self._schema) - 2
        columns = [*children.tags[:wanted], *[repeat(None, count)] * (wanted - len(children.tags))]
        for place in self._binary:
            columns[place] = list(map(binary_tag, columns[place]))
        added = dict(zip(children.uids, zip(children.names, *columns, strict=True), strict=True))
        if self._table is not None:
            if self._rows.keys().isdisjoint(added):
                self._behind.update(added)
            else:
                self._table = None
        self._rows.update(added)

    def _tell(self, uid: int, name: str, tags: Sequence[Any]) -> None:
        """Takes over what a record says of one child table."""
        row = self._fitted(name, tags)
        self._rows[uid] = tuple(binary_tag(value) if place - 1 in self._binary else value
                                for place, value in enumerate(row)) if self._binary else row
        self._table = None

    def _fitted(self, name: str, tags: Sequence[Any]) -> Row:
        wanted = len(self._schema) - 2
        values = tuple(tags)[:wanted]
        return (name, *values, *(None for _ in range(wanted - len(values))))

    def _seen(self, row: Row | None) -> Row | None:
        """Returns what the stream sees of a child table."""
        return None if row is None else tuple(row[place] for place in self._used)
