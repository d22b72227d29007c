"""The streams, the ingests, and the snodes that streams may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from penstock.common.errors import AlreadyExistsError, InternalError, NotFoundError
from penstock.mnode.catalog.catalog_codec import key
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
from penstock.mnode.catalog.catalog_store import CatalogStore, Transaction
from penstock.mnode.catalog.entry_kinds import INGEST, SNODE, STREAM, EntryKind, Repository
from penstock.mnode.catalog.schema_repository import SchemaRepository
from penstock.mnode.catalog.table_index import TableIndex
from penstock.mnode.catalog.unfinished_work import UnfinishedWork
from penstock.sql.cuts import Cut
from penstock.sql.schema import Table

_STREAM_EXISTS = 0x03F0
_STREAM_MISSING = 0x03F1
_ATTEMPTS_SKIPPED = 1000  # more than a copy can be behind: what an attempt has fenced must not come again

S = TypeVar("S", bound=StreamRecord | IngestRecord)


class _RunningRepository(Repository[S]):
    """Streams, or ingests. What a drop leaves of states and rows, the caller removes."""

    def __init__(self, store: CatalogStore, kind: EntryKind[S], known: Iterable[S], unfinished: UnfinishedWork) -> None:
        super().__init__(store, kind, known)
        self._unfinished = unfinished

    def named(self, name: str) -> S | None:
        return next((one for one in self.all() if one.name == name), None)

    def by_id(self, number: int) -> S | None:
        return self._records.get(key(number))

    def next_attempt(self, number: int) -> S:
        """Counts a new attempt, durably, before it is started."""
        with self._store.lock:
            return self._update(number, attempt=self._require(number).attempt + 1)

    def skip_attempts(self, write: Transaction) -> None:
        """Goes on far behind the attempts that may have been given after a copy of the catalog was made."""
        for one in self.all():
            self._put(write, replace(one, attempt=one.attempt + _ATTEMPTS_SKIPPED))

    def _update(self, number: int, **changes: Any) -> S:
        with self._store.transaction() as write:
            changed = replace(self._require(number), **changes)
            self._put(write, changed)
        return changed

    def _remove(self, write: Transaction, record: S) -> None:
        self._delete(write, record)
        self._unfinished.note(write, [Unfinished("remove_stream", record.id)])

    def _require(self, number: int) -> S:
        record = self.by_id(number)
        if record is None:
            raise NotFoundError("it no longer exists", code=_STREAM_MISSING)
        return record


class StreamRepository(_RunningRepository[StreamRecord]):
    """All streams."""

    def __init__(
        self,
        store: CatalogStore,
        known: Iterable[StreamRecord],
        damaged: Mapping[int, str],
        index: TableIndex,
        schema: SchemaRepository,
        unfinished: UnfinishedWork,
    ) -> None:
        #: streams whose entry cannot be read, by id: they are set aside, and everything else works
        self.damaged = damaged
        self._index = index
        self._schema = schema
        self._makers: dict[int, StreamRecord] = {}
        super().__init__(store, STREAM, known, unfinished)

    def maker_of(self, table: Table) -> StreamRecord | None:
        """Returns the stream that has made a table for what it writes, or the super table of a child table."""
        return self._makers.get(table.storage_uid)

    def create(self, record: StreamRecord) -> StreamRecord:
        """Stores a stream, and gives the result table that was made for it its name; its `id` is assigned here."""
        with self._store.transaction() as write:
            if self.named(record.name) is not None:
                raise AlreadyExistsError(f"stream {record.name} already exists", code=_STREAM_EXISTS)
            self._schema.name_table(write, record.target_uid)
            stored = replace(record, id=write.take_ids())
            self._put(write, stored)
        return stored

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
            self._remove(write, record)
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
            self._remove(write, old)
            self._put(write, replace(new, name=old.name, replaces=None))
        return old, stale

    def begin_in_new_vgroups(self, write: Transaction, wanted: Regrouping, begins: Mapping[int, Cut]) -> None:
        """Has streams begin in a new vgroup where they began in the one whose tables it has got, or where `begins` says
        by their ids.
        """
        database = wanted.database
        ids = database.vgroup_ids
        parents = {vgroup_id: ids[parent] for vgroup_id, parent in zip(ids, wanted.parents, strict=True)}
        for stream in self.all():
            source = self._index.table_by_uid(stream.source_uid)
            if stream.id in begins:
                self._put(write, replace(stream, start_cut=begins[stream.id]))
            elif source is not None and source.database == database.name:
                starts = dict(stream.start_cut)
                self._put(write, replace(stream, start_cut=tuple(
                    (vgroup_id, starts[parents[vgroup_id]]) for vgroup_id in ids)))

    def _sort(self) -> None:
        super()._sort()
        before, self._makers = self._makers, {uid: one for one in self.all() for uid in one.made_uids}
        if before.keys() != self._makers.keys():
            self._index.note_change()


class IngestRepository(_RunningRepository[IngestRecord]):
    """All ingests."""

    def __init__(self, store: CatalogStore, known: Iterable[IngestRecord], unfinished: UnfinishedWork) -> None:
        super().__init__(store, INGEST, known, unfinished)

    def create(self, record: IngestRecord) -> IngestRecord:
        """Stores an ingest; its `id` is assigned here."""
        with self._store.transaction() as write:
            if self.named(record.name) is not None:
                raise AlreadyExistsError(f"ingest {record.name} already exists")
            stored = replace(record, id=write.take_ids())
            self._put(write, stored)
        return stored

    def set_wanted(self, ingest_id: int, wanted: WantedState, reason: str = "") -> IngestRecord:
        return self._update(ingest_id, wanted=wanted, wanted_reason=reason)

    def set_text(self, ingest_id: int, text: str, dlq: tuple[str, str] | None) -> IngestRecord:
        """Has an ingest be what another CREATE INGEST says, with the DLQ table of that."""
        return self._update(ingest_id, text=text, dlq=dlq)

    def drop(self, ingest_id: int) -> None:
        with self._store.transaction() as write:
            self._remove(write, self._require(ingest_id))


class SnodeRepository(Repository[Snode]):
    """All snodes."""

    def __init__(self, store: CatalogStore, known: Iterable[Snode]) -> None:
        super().__init__(store, SNODE, known)

    def create(self, dnode_id: int, now_ms: int) -> Snode:
        with self._store.transaction() as write:
            if self._on(dnode_id) is not None:
                raise AlreadyExistsError(f"dnode {dnode_id} has an snode already")
            snode = Snode(write.take_ids(), dnode_id, now_ms)
            self._put(write, snode)
        return snode

    def drop(self, dnode_id: int) -> None:
        with self._store.transaction() as write:
            found = self._on(dnode_id)
            if found is None:
                raise NotFoundError(f"dnode {dnode_id} has no snode")
            self._delete(write, found)

    def _on(self, dnode_id: int) -> Snode | None:
        return next((snode for snode in self.all() if snode.dnode_id == dnode_id), None)
