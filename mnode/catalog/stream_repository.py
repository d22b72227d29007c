"""The streams, the ingests, and the snodes that streams may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from penstock.common.errors import AlreadyExistsError, InternalError, NotFoundError
from penstock.mnode.catalog import catalog_codec as codec
from penstock.mnode.catalog.catalog_records import (
    IngestRecord,
    PauseCause,
    Regrouping,
    Savepoint,
    Snode,
    StreamRecord,
    Unfinished,
    Unlike,
    WantedState,
)
from penstock.mnode.catalog.catalog_store import INGESTS, SNODES, STREAMS, CatalogStore, Transaction
from penstock.mnode.catalog.schema_repository import SchemaRepository
from penstock.mnode.catalog.table_index import TableIndex
from penstock.mnode.catalog.unfinished_work import UnfinishedWork
from penstock.sql.cuts import Cut
from penstock.sql.schema import Table

_STREAM_EXISTS = 0x03F0
_STREAM_MISSING = 0x03F1
_ATTEMPTS_SKIPPED = 1000  # more than a copy can be behind: what an attempt has fenced must not come again


class StreamRepository:
    """All streams, in memory and durable. What a drop leaves of states and rows, the caller removes."""

    def __init__(
        self,
        store: CatalogStore,
        known: Iterable[StreamRecord],
        damaged: Mapping[int, str],
        index: TableIndex,
        schema: SchemaRepository,
        unfinished: UnfinishedWork,
    ) -> None:
        self._store = store
        self._streams = {stream.id: stream for stream in known}
        self._makers = {uid: stream.id for stream in self._streams.values() for uid in stream.made_uids}
        #: streams whose entry cannot be read, by id: they are set aside, and everything else works
        self.damaged = damaged
        self._index = index
        self._schema = schema
        self._unfinished = unfinished

    def all(self) -> tuple[StreamRecord, ...]:
        """Returns the streams, in order of creation."""
        with self._store.lock:
            return tuple(self._streams.values())

    def named(self, name: str) -> StreamRecord | None:
        return next((stream for stream in self.all() if stream.name == name), None)

    def by_id(self, stream_id: int) -> StreamRecord | None:
        return self._streams.get(stream_id)

    def maker_of(self, table: Table) -> StreamRecord | None:
        """Returns the stream that has made a table for what it writes, or the super table of a child table."""
        stream_id = self._makers.get(table.storage_uid)
        return None if stream_id is None else self._streams.get(stream_id)

    def create(self, record: StreamRecord) -> StreamRecord:
        """Stores a stream, and gives the result table that was made for it its name; its `id` is assigned here."""
        with self._store.transaction() as write:
            if self.named(record.name) is not None:
                raise AlreadyExistsError(f"stream {record.name} already exists", code=_STREAM_EXISTS)
            self._schema.name_table(write, record.target_uid)
            stored = replace(record, id=write.take_ids())
            self._put(write, stored)
        return stored

    def next_attempt(self, stream_id: int) -> StreamRecord:
        """Counts a new attempt of a stream, durably, before it is started."""
        with self._store.lock:
            return self._update(stream_id, attempt=self._require(stream_id).attempt + 1)

    def set_wanted(self, stream_id: int, wanted: WantedState, pause: PauseCause | None = None) -> StreamRecord:
        return self._update(stream_id, wanted=wanted, pause=pause)

    def set_plan(self, stream_id: int, text: str, plan: str) -> StreamRecord:
        """Sets the statement, and what it was planned to."""
        with self._store.lock:
            asked = replace(self._require(stream_id).asked, text=text)
            return self._update(stream_id, asked=asked, plan=plan)

    def add_unlike(self, stream_id: int, more: Unlike) -> StreamRecord:
        """Notes that more results may differ from what the query says."""
        with self._store.lock:
            return self._update(stream_id, unlike=more.joined(self._require(stream_id).unlike))

    def set_savepoints(self, stream_id: int, savepoints: tuple[Savepoint, ...]) -> StreamRecord:
        return self._update(stream_id, savepoints=savepoints)

    def set_last_checkpoint(self, stream_id: int, checkpoint_id: int) -> StreamRecord:
        return self._update(stream_id, last_checkpoint_id=checkpoint_id)

    def drop(self, stream_id: int, table_uid: int | None = None) -> StreamRecord:
        """Removes a stream and, in the same step, a table with its children."""
        with self._store.transaction() as write:
            record = self._require(stream_id)
            table = None if table_uid is None else self._index.table_by_uid(table_uid)
            if table is not None:
                self._schema.delete_table(write, table)
            self._delete(write, record)
        return record

    def replace(self, stream_id: int) -> tuple[StreamRecord, Table]:
        """Puts a stream and its result table in the place of those that they replace, in one step.

        Returns the old stream and the old table. The table can still be read by its uid, until
        `TableIndex.forget_table`. `AlreadyExistsError` if a name of a new child table was given to something else
        meanwhile.
        """
        with self._store.transaction() as write:
            new = self._require(stream_id)
            old = self._require(new.replaces if new.replaces is not None else stream_id)
            fresh, stale = self._index.table_by_uid(new.target_uid), self._index.table_by_uid(old.target_uid)
            if new.replaces is None or fresh is None or stale is None or fresh.replaces != stale.uid:
                raise InternalError(f"stream {new.name} is no replacement of another")
            self._schema.swap_tables(write, fresh, stale)
            self._delete(write, old)
            self._put(write, replace(new, name=old.name, replaces=None))
        return old, stale

    def begin_in_new_vgroups(self, write: Transaction, wanted: Regrouping, begins: Mapping[int, Cut]) -> None:
        """Has streams begin in a new vgroup where they began in the one whose tables it has got, or where `begins` says
        by their ids.
        """
        database = wanted.database
        ids = database.vgroup_ids
        parents = {vgroup_id: ids[parent] for vgroup_id, parent in zip(ids, wanted.parents, strict=True)}
        for stream in self._streams.values():
            source = self._index.table_by_uid(stream.source_uid)
            if stream.id in begins:
                self._put(write, replace(stream, start_cut=begins[stream.id]))
            elif source is not None and source.database == database.name:
                starts = dict(stream.start_cut)
                self._put(write, replace(stream, start_cut=tuple(
                    (vgroup_id, starts[parents[vgroup_id]]) for vgroup_id in ids)))

    def skip_attempts(self, write: Transaction) -> None:
        """Goes on far behind the attempts that may have been given after a copy of the catalog was made."""
        for stream in self._streams.values():
            self._put(write, replace(stream, attempt=stream.attempt + _ATTEMPTS_SKIPPED))

    def _update(self, stream_id: int, **changes: Any) -> StreamRecord:
        with self._store.transaction() as write:
            changed = replace(self._require(stream_id), **changes)
            self._put(write, changed)
        return changed

    def _put(self, write: Transaction, record: StreamRecord) -> None:
        write.put(STREAMS, codec.key(record.id), codec.dataclass_to_json(record))
        write.afterwards(lambda: self._remember(record))

    def _remember(self, record: StreamRecord) -> None:
        is_new = record.id not in self._streams
        self._streams[record.id] = record
        if is_new:
            self._makers.update(dict.fromkeys(record.made_uids, record.id))
            self._index.note_change()

    def _delete(self, write: Transaction, record: StreamRecord) -> None:
        write.delete(STREAMS, codec.key(record.id))
        self._unfinished.note(write, [Unfinished("remove_stream", record.id)])
        write.afterwards(lambda: self._forget(record.id))

    def _forget(self, stream_id: int) -> None:
        for uid in self._streams.pop(stream_id).made_uids:
            self._makers.pop(uid, None)
        self._index.note_change()

    def _require(self, stream_id: int) -> StreamRecord:
        record = self._streams.get(stream_id)
        if record is None:
            raise NotFoundError("the stream no longer exists", code=_STREAM_MISSING)
        return record


class IngestRepository:
    """All ingests, in memory and durable. What a drop leaves of states, the caller removes."""

    def __init__(self, store: CatalogStore, known: Iterable[IngestRecord], unfinished: UnfinishedWork) -> None:
        self._store = store
        self._ingests = {ingest.id: ingest for ingest in known}
        self._unfinished = unfinished

    def all(self) -> tuple[IngestRecord, ...]:
        """Returns the ingests, in order of creation."""
        with self._store.lock:
            return tuple(self._ingests[ingest_id] for ingest_id in sorted(self._ingests))

    def named(self, name: str) -> IngestRecord | None:
        return next((ingest for ingest in self.all() if ingest.name == name), None)

    def by_id(self, ingest_id: int) -> IngestRecord | None:
        return self._ingests.get(ingest_id)

    def create(self, record: IngestRecord) -> IngestRecord:
        """Stores an ingest; its `id` is assigned here."""
        with self._store.transaction() as write:
            if self.named(record.name) is not None:
                raise AlreadyExistsError(f"ingest {record.name} already exists")
            stored = replace(record, id=write.take_ids())
            self._put(write, stored)
        return stored

    def next_attempt(self, ingest_id: int) -> IngestRecord:
        """Counts a new attempt of an ingest, durably, before it is started."""
        with self._store.lock:
            return self._update(ingest_id, attempt=self._require(ingest_id).attempt + 1)

    def set_wanted(self, ingest_id: int, wanted: WantedState, reason: str = "") -> IngestRecord:
        return self._update(ingest_id, wanted=wanted, wanted_reason=reason)

    def set_text(self, ingest_id: int, text: str, dlq: tuple[str, str] | None) -> IngestRecord:
        """Has an ingest be what another CREATE INGEST says, with the DLQ table of that."""
        return self._update(ingest_id, text=text, dlq=dlq)

    def drop(self, ingest_id: int) -> None:
        with self._store.transaction() as write:
            self._require(ingest_id)
            write.delete(INGESTS, codec.key(ingest_id))
            self._unfinished.note(write, [Unfinished("remove_stream", ingest_id)])
            write.afterwards(lambda: self._forget(ingest_id))

    def skip_attempts(self, write: Transaction) -> None:
        """Goes on far behind the attempts that may have been given after a copy of the catalog was made."""
        for ingest in self._ingests.values():
            self._put(write, replace(ingest, attempt=ingest.attempt + _ATTEMPTS_SKIPPED))

    def _update(self, ingest_id: int, **changes: Any) -> IngestRecord:
        with self._store.transaction() as write:
            changed = replace(self._require(ingest_id), **changes)
            self._put(write, changed)
        return changed

    def _put(self, write: Transaction, record: IngestRecord) -> None:
        write.put(INGESTS, codec.key(record.id), codec.dataclass_to_json(record))
        write.afterwards(lambda: self._ingests.update({record.id: record}))

    def _forget(self, ingest_id: int) -> None:
        del self._ingests[ingest_id]

    def _require(self, ingest_id: int) -> IngestRecord:
        ingest = self._ingests.get(ingest_id)
        if ingest is None:
            raise NotFoundError(f"there is no ingest {ingest_id:x}")
        return ingest


class SnodeRepository:
    """All snodes, in memory and durable."""

    def __init__(self, store: CatalogStore, known: Iterable[Snode]) -> None:
        self._store = store
        self._snodes = {snode.dnode_id: snode for snode in known}

    def all(self) -> tuple[Snode, ...]:
        with self._store.lock:
            return tuple(self._snodes.values())

    def create(self, dnode_id: int, now_ms: int) -> Snode:
        with self._store.transaction() as write:
            if dnode_id in self._snodes:
                raise AlreadyExistsError(f"dnode {dnode_id} has an snode already")
            snode = Snode(write.take_ids(), dnode_id, now_ms)
            write.put(SNODES, codec.key(snode.id), codec.dataclass_to_json(snode))
            write.afterwards(lambda: self._snodes.update({dnode_id: snode}))
        return snode

    def drop(self, dnode_id: int) -> None:
        with self._store.transaction() as write:
            found = self._snodes.get(dnode_id)
            if found is None:
                raise NotFoundError(f"dnode {dnode_id} has no snode")
            write.delete(SNODES, codec.key(found.id))
            write.afterwards(lambda: self._forget(dnode_id))

    def _forget(self, dnode_id: int) -> None:
        del self._snodes[dnode_id]
