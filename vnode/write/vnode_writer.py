"""The writes of a vnode: rows, deletes and what else goes into the log get their version and reach the memtable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.vnode.store.delivery import IngestDelivery
from penstock.vnode.store.row_preparation import PreparedRows, prepare
from penstock.vnode.store.sorted_keys import I64, U64
from penstock.vnode.store.table_state import PackedRows, PackedVerdict, Row, TableState
from penstock.vnode.store.table_store import TableStore
from penstock.vnode.store.tombstones import Tombstone
from penstock.wal.pending_records import Ticket
from penstock.wal.record import IngestOrigin, RecordKind, delete_points_payload
from penstock.wal.writer import WalWriter

_PACKED_ROWS = 8  # of a write that comes as columns: more are cheaper as they are
_FEW_ROWS = 32  # of a write: more are cheaper to look at column by column
_POINTS_MAX = 1 << 16  # of a record: readers hold a record as a whole
_STALL_FACTOR = 4  # a memtable of so many times its bound makes the writer flush


class BegunWrite:
    """A write that has its place in log and memtable. Nobody sees it before it is acknowledged."""

    __slots__ = ("_flush", "_ticket", "_wal")

    def __init__(self, wal: WalWriter, ticket: Ticket | None, flush: Callable[[], None] | None) -> None:
        """`ticket` None: nothing of it is new, but whoever has written it may still wait for the log. `flush`: what the
        writer does behind it."""
        self._wal = wal
        self._ticket = ticket
        self._flush = flush

    @property
    def version(self) -> int:
        """The version that it has when all of it is acknowledged; 0 if nothing of it is new."""
        return 0 if self._ticket is None else self._ticket.version

    def settle(self) -> None:
        """Waits as `wait` does, for somebody who reads what is written."""
        if self._ticket is not None:
            self._wal.commit(self._ticket)

    def wait(self) -> int:
        """Returns its version, or the last one, once it is acknowledged, with all that were begun before.

        Raises StorageError.
        """
        if self._ticket is None:
            return self._wal.commit_written()
        self._wal.commit(self._ticket)
        if self._flush is not None:
            flush, self._flush = self._flush, None
            flush()
        return self._ticket.version


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Rows to be upserted into a table; see `Vnode.write`. Of a `delivery` the table must have none of the rows."""

    table_uid: int
    batch: pa.RecordBatch
    delivery: IngestDelivery | None = None


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """Places of a table, as child table and time, none twice, from which the rows are to go."""

    table_uid: int
    tuids: U64
    times: I64


class FewRows(NamedTuple):
    """A few rows of a table, as `begin_few` takes them; `batch` returns them for `Vnode.write`, if need be."""

    table_uid: int
    columns: Sequence[str]
    rows: Sequence[Row]
    partial: bool
    batch: Callable[[], pa.RecordBatch]


Change = WrittenRows | FewRows | DeletedRows


class VnodeWriter:
    """Puts records into log and tables in the same order: both under the store's `lock`, which orders all writes.

    What can be done before is done without the lock, and commits wait outside of it: writers that come meanwhile are
    written by one of them as one group (see `WalWriter`).
    """

    def __init__(self, store: TableStore, flush: Callable[[], None]) -> None:
        """`flush` is called without `lock` by a writer that finds the memtable far too full."""
        self._store = store
        self._wal = store.wal
        self._flush = flush

    def begin_write(self, table_uid: int, batch: pa.RecordBatch, delivery: IngestDelivery | None = None,
                    ingest_time_ms: int | None = None) -> BegunWrite:
        """Begins what `Vnode.write` does with some rows, and raises what it does.

        Who waits for the last of several writes waits for the log once.
        """
        store = self._store
        table = store.table(table_uid)
        columns = table.columns
        if batch.num_rows <= _FEW_ROWS:
            begun = self._begin_packed(table, batch, delivery) if ingest_time_ms is None else None
            begun = begun or self._begin_batch(table_uid, batch, ingest_time_ms, delivery)
            if begun is not None:
                return begun
        rows = prepare(batch, columns, table.key_columns)
        with store.lock:
            store.require_writable()
            table = store.table(table_uid)
            again = delivery is not None and not delivery.is_new_to(table.places)
            if delivery is not None and again:
                batch, delivery = delivery.cut(batch, table.places)
            if again or table.columns is not columns:
                rows = prepare(batch, table.columns, table.key_columns)
            ticket = self._enqueue(table, rows, ingest_time_ms, delivery) if rows.num_rows else None
            return self._begun(table, ticket)

    def _begin_packed(self, table: TableState, batch: pa.RecordBatch, delivery: IngestDelivery | None
                      ) -> BegunWrite | None:
        """Begins to write a few rows one by one; None, with nothing begun, where that isn't cheaper, or can't be."""
        few = _few_rows(table, batch)
        return None if few is None else self.begin_few(
            table.uid, few.columns, few.rows, partial=few.partial, delivery=delivery)

    def _begin_batch(self, table_uid: int, batch: pa.RecordBatch, ingest_time_ms: int | None,
                     delivery: IngestDelivery | None) -> BegunWrite | None:
        """Begins to write a few rows if it is known without a look at others what they are; None, with nothing begun,
        if not."""
        store = self._store
        with store.lock:
            store.require_writable()
            table = store.table(table_uid)
            if delivery is not None and not delivery.is_new_to(table.places):
                return None
            known = table.decide_on_few(batch)
            if known is None:
                return None
            decided, keys = known
            origin = None if delivery is None else delivery.origin
            now = store.clock.now_ms() if ingest_time_ms is None else ingest_time_ms
            schema = table.schema_in_log(decided)
            ticket = self._wal.enqueue_rows(
                table.uid, batch if decided.change is None else table.wal_batch(decided, schema), now, origin, schema)
            table.append_few(batch, keys, ticket.version, decided.updates, ticket.size)
            if origin is not None:
                table.note_place(origin, ticket.version)
            return self._begun(table, ticket)

    def begin_few(self, table_uid: int, columns: Sequence[str], rows: Sequence[Row], *, partial: bool = False,
                  delivery: IngestDelivery | None = None) -> BegunWrite | None:
        """Begins to upsert a few rows at a fraction of what `begin_write` costs.

        Each row has the uid of its child table, its time as an integer, and the values of all other `columns`.
        `partial`: of some columns these aren't given, and NULL; where a row is there already, they keep what is stored.
        Returns None, and writes nothing, where only `begin_write` will do: the table has other columns by now, or what
        is stored counts; many rows are older than the newest of their child table; a key comes twice, or is NULL; some
        rows of a `delivery` are here. Raises struct.error for a value that doesn't fit its column, UnicodeEncodeError
        for text that is none, NotFoundError, StorageError.
        """
        store = self._store
        with store.lock:
            store.require_writable()
            table = store.table(table_uid)
            if table.column_names != columns or (delivery is not None and not delivery.is_new_to(table.places)):
                return None
            packed = table.packed(rows)
            verdict = None if packed is None else table.decide_on_packed(packed, store.cache, partial=partial)
            if packed is None or verdict is None:
                return None
            origin = None if delivery is None else delivery.origin
            ticket = self._enqueue_packed(table, packed, verdict, origin)
            if origin is not None:
                table.note_place(origin, ticket.version)
            return self._begun(table, ticket)

    def _enqueue_packed(self, table: TableState, rows: PackedRows, verdict: PackedVerdict,
                        origin: IngestOrigin | None, continues: bool = False) -> Ticket:
        """Puts packed rows into the memtable and on their way into the log."""
        ticket = self._wal.enqueue_packed(
            table.uid, *table.packed_in_log(rows, verdict), self._store.clock.now_ms(), origin, continues=continues)
        table.append_packed(rows, verdict, ticket.version)
        return ticket

    def _begun(self, table: TableState, ticket: Ticket | None) -> BegunWrite:
        stalled = table.memtable.num_bytes > _STALL_FACTOR * self._store.options.memtable_bytes
        return BegunWrite(self._wal, ticket, self._flush if stalled else None)

    def _enqueue(self, table: TableState, rows: PreparedRows, ingest_time_ms: int | None,
                 delivery: IngestDelivery | None, continues: bool = False) -> Ticket:
        """Puts rows into the memtable and on their way into the log."""
        decided = table.decide(rows, self._store.cache)
        now = self._store.clock.now_ms() if ingest_time_ms is None else ingest_time_ms
        origin = None if delivery is None else delivery.origin
        schema = table.schema_in_log(decided)
        ticket = self._wal.enqueue_rows(
            table.uid, table.wal_batch(decided, schema), now, origin, schema, continues=continues)
        table.append(decided.arrays, table.run_schema, ticket.version, decided.updates, ticket.size, rows.starts)
        if origin is not None:
            table.note_place(origin, ticket.version)
        return ticket

    def begin_delete(self, table_uid: int, tuids: Sequence[int] | None, first_ts: int, last_ts: int) -> BegunWrite:
        """Begins what `Vnode.delete` does; see `begin_write`."""
        store = self._store
        uids = None if tuids is None else tuple(sorted(set(tuids)))
        with store.lock:
            store.require_writable()
            table = store.table(table_uid)
            ticket = self._wal.enqueue_delete(table_uid, uids, first_ts, last_ts, store.clock.now_ms())
            if first_ts <= last_ts and (uids is None or uids):
                table.delete(Tombstone(ticket.version, uids, first_ts, last_ts))
        return BegunWrite(self._wal, ticket, None)

    def begin_together(self, changes: Sequence[Change]) -> BegunWrite | None:
        """Begins to write and to delete rows of some tables, in this order: all of it or nothing is seen and kept.

        Readers see none of it until it is acknowledged as a whole, and a crash leaves all or nothing. Of rows to be
        deleted only those are that were there before. None, with nothing written, where there is nothing to do. Who
        else writes to the vnode waits meanwhile. Raises as `Vnode.write` does; then nothing is written.
        """
        store = self._store
        prepared = [self._prepared(change) for change in changes]
        with store.lock:
            store.require_writable()
            # What is done is known first: of each record it is said whether another one follows.
            steps: list[_Step] = []
            for change in prepared:
                steps += self._steps(change)
            ticket = None
            try:
                for place, step in enumerate(steps, 1):
                    ticket = step(place < len(steps))
            except BaseException:
                self._undo()
                raise
            return None if ticket is None else self._begun(self._fullest(changes), ticket)

    def _undo(self) -> None:
        """Takes back what tables have of changes of which a later one can't be begun."""
        self._wal.drop_held()
        if self._wal.failed is None and self._wal.refused is None:
            self._wal.commit_all()
            self._store.reload()

    def _fullest(self, changes: Sequence[Change]) -> TableState:
        return max((self._store.table(change.table_uid) for change in changes),
                   key=lambda table: table.memtable.num_bytes)

    def _prepared(self, change: Change) -> _Prepared | FewRows | DeletedRows:
        """Does what needs no lock."""
        table = self._store.table(change.table_uid)
        if isinstance(change, FewRows):
            return change
        if isinstance(change, WrittenRows):
            few = _few_rows(table, change.batch) if change.delivery is None else None
            if few is not None:
                return few
            columns = table.columns
            return _Prepared(change, columns, prepare(change.batch, columns, table.key_columns))
        order = np.lexsort((change.times, change.tuids))
        return DeletedRows(change.table_uid, change.tuids[order], change.times[order])

    def _steps(self, change: _Prepared | FewRows | DeletedRows) -> list[_Step]:
        """Returns what is to be done for a change, each of which puts one record into the log; under the lock."""
        if isinstance(change, DeletedRows):
            table = self._store.table(change.table_uid)
            there = table.exist(change.tuids, change.times, self._store.cache)
            tuids, times = change.tuids[there], change.times[there]
            records = (slice(start, start + _POINTS_MAX) for start in range(0, len(times), _POINTS_MAX))
            return [partial(self._delete_points, table, tuids[some], times[some]) for some in records]
        if isinstance(change, FewRows):
            table = self._store.table(change.table_uid)
            packed = table.packed(change.rows) if table.column_names == change.columns else None
            if packed is not None:
                return [partial(self._write_packed, table, change, packed)]
            prepared = prepare(change.batch(), table.columns, table.key_columns)
            return [partial(self._enqueue, table, prepared, None, None)]
        table = self._store.table(change.of.table_uid)
        rows = change.rows
        if table.columns is not change.columns:
            rows = prepare(change.of.batch, table.columns, table.key_columns)
        return [partial(self._enqueue, table, rows, None, change.of.delivery)] if rows.num_rows else []

    def _write_packed(self, table: TableState, change: FewRows, packed: PackedRows, continues: bool) -> Ticket:
        verdict = table.decide_on_packed(packed, self._store.cache, partial=change.partial)
        if verdict is not None:
            return self._enqueue_packed(table, packed, verdict, None, continues)
        return self._enqueue(table, prepare(change.batch(), table.columns, table.key_columns), None, None, continues)

    def _delete_points(self, table: TableState, tuids: U64, times: I64, continues: bool) -> Ticket:
        ticket = self._wal.enqueue(
            RecordKind.DELETE_POINTS, delete_points_payload(table.uid, tuids, times), self._store.clock.now_ms(),
            continues=continues)
        table.delete_points(tuids, times, ticket.version)
        return ticket

    def begin_meta(self, body: dict[str, Any]) -> BegunWrite:
        """Begins what `Vnode.write_meta` does; see `begin_write`."""
        with self._store.lock:
            self._store.require_writable()
            ticket = self._wal.enqueue_meta(body, self._store.clock.now_ms())
        return BegunWrite(self._wal, ticket, None)

    def write_time_mark(self, writer: str, ts_ms: int) -> int:
        """Puts a TIME_MARK record into the log and returns its version."""
        with self._store.lock:
            self._store.require_writable()
            ticket = self._wal.enqueue_time_mark(writer, ts_ms, self._store.clock.now_ms())
        self._wal.commit(ticket)
        return ticket.version

    def forget_ingest(self, ingest: int) -> None:
        """Forgets how far an ingest is that will never write again; on disk with the next flush."""
        with self._store.lock:
            for table in self._store.tables.values():
                for partition in [one for one in table.places if one[0] == ingest]:
                    del table.places[partition]


def _few_rows(table: TableState, batch: pa.RecordBatch) -> FewRows | None:
    """Returns rows one by one; None where that isn't cheaper, or can't be."""
    # Of composite keys nothing is known without a look at each row.
    if batch.num_rows > (_PACKED_ROWS if table.key_columns == 1 else _FEW_ROWS):
        return None
    columns, rows = table.column_names, table.rows_of(batch)
    if not rows:
        return None
    return FewRows(table.uid, columns, rows, batch.num_columns <= len(columns), lambda: batch)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Rows to be upserted, prepared for a table as its columns were."""

    of: WrittenRows
    columns: Mapping[str, pa.DataType]
    rows: PreparedRows


_Step = Callable[[bool], Ticket]
"""Puts one record into the log and its table; the argument tells whether another one is to be seen with it."""
