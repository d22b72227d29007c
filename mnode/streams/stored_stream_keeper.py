"""What the engine does for its running streams: their child tables, attempts, backups and connections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from penstock.common.arrow_data import to_ipc
from penstock.common.connection import OpenedConnection
from penstock.common.errors import NotFoundError
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.coordinator.running_stream import StreamKeeper
from penstock.mnode.coordinator.stored_plan import StoredPlan
from penstock.mnode.query.table_scans import tag_array
from penstock.mnode.streams.stream_services import StreamServices
from penstock.planner.task_plans.stream_plan import RefreshPlan
from penstock.sql.schema import ChildTable, Column, Table
from penstock.tasks.protocol.task_status import ConnectionHealth


class StoredStreamKeeper(StreamKeeper):
    """Looks after one stream of the catalog, which runs by a stored plan."""

    def __init__(self, stream: StreamRecord, stored: StoredPlan, services: StreamServices) -> None:
        self._stream = stream
        self._stored = stored
        self._services = services
        self._user = f"stream {stream.name}"

    def next_attempt(self) -> int:
        attempt = self._services.catalog.streams.next_attempt(self._stream.id).attempt
        self._services.stores.fence(self._stream.id, attempt)
        return attempt

    def children(self) -> tuple[bytes, ...]:
        graph = self._stored.graph
        if isinstance(self._stored.plan.computation, RefreshPlan):
            return (tables_ipc((), ()),) * len(graph.source_vgroup_ids)
        left = children_of(self._services.catalog, self._stream.source_uid, graph.vgroup_ids)
        if not graph.right_vgroup_ids:
            return left
        return left + children_of(self._services.catalog, self._stream.source_uids[1], graph.right_vgroup_ids)

    def connection(self) -> OpenedConnection | None:
        external = self._stored.plan.sink.external
        return None if external is None else self._services.connections.open_for(self._user, external.connection)

    def lookup_connection(self) -> OpenedConnection | None:
        lookup = self._stored.plan.source.lookup
        if lookup is None or lookup.connection is None:
            return None
        return self._services.connections.open_for(self._user, lookup.connection)

    def recover(self) -> bool:
        vnode = self._services.storage.vnode
        ends = {vgroup_id: vnode(vgroup_id).copying.written_version for vgroup_id in self._stored.graph.read_vgroup_ids}
        return self._services.stores.backups.restore(self._stream.id, ends)

    def savepoints(self) -> frozenset[int]:
        stream = self._services.catalog.streams.by_id(self._stream.id)
        if stream is None:
            return frozenset()
        return self._services.stores.held(stream.id).union(one.checkpoint_id for one in stream.savepoints)

    def note_health(self, contact: ConnectionHealth) -> None:
        self._services.connections.note_health(self._user, contact)


def children_of(
    catalog: Catalog, source_uid: int, vgroup_ids: Iterable[int], homes: Mapping[int, int] | None = None
) -> tuple[bytes, ...]:
    """Returns the child tables of a table per vnode, as a deployment carries them.

    `homes`: the vgroups of child tables that are not where the catalog says. Raises NotFoundError.
    """
    if not source_uid:  # the clock alone fires the stream
        return tuple(tables_ipc((), []) for _ in vgroup_ids)
    table = catalog.table_by_uid(source_uid)
    if table is None:
        raise NotFoundError("the source table of the stream was dropped")
    by_vgroup: dict[int, list[ChildTable]] = {}
    for child in catalog.children(source_uid):
        by_vgroup.setdefault((homes or {}).get(child.uid, child.vgroup_id), []).append(child)
    return tuple(children_ipc(table, by_vgroup.get(vgroup_id, ())) for vgroup_id in vgroup_ids)


def children_ipc(table: Table, children: Iterable[ChildTable]) -> bytes:
    """Returns child tables as a deployment carries them: an Arrow IPC stream of uid, name and the tags by name."""
    return tables_ipc(table.tags, list(children))


def tables_ipc(tags: Sequence[Column], members: Sequence[ChildTable]) -> bytes:
    """Returns child tables with these tags as `children_ipc` does."""
    arrays = [pa.array([child.uid for child in members], pa.uint64()),
              pa.array([child.name for child in members], pa.string())]
    arrays += [tag_array(tag, [child.tag_values[place] for child in members]) for place, tag in enumerate(tags)]
    batch = pa.RecordBatch.from_arrays(arrays, names=["uid", "name", *(f"tag_{n}" for n in range(len(tags)))])
    data: bytes = to_ipc(batch).to_pybytes()
    return data
