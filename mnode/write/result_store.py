"""The dnode's side of sink tasks: writes their results, creates child tables, and refuses what is out of date."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import NotFoundError, StaleAttemptError
from penstock.common.masks import any_set
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.name_lookup import TABLE_MISSING
from penstock.mnode.ddl.child_creation import ChildCreator
from penstock.mnode.dnode.vnode_storage import Storage, storage_schema
from penstock.mnode.write.keyed_results import keyed_changes, stored_rows
from penstock.mnode.write.keyed_writes import KeyedResults
from penstock.mnode.write.result_children import Places, ResultChildren
from penstock.mnode.write.row_placement import by_vgroup, order_of, pays_threads, write_at_once
from penstock.planner.bind.binder import children_table
from penstock.planner.task_plans.column_names import CHILD, KEPT, OFFSET, OPERATION
from penstock.sql.rows.keyed_rows import keyed
from penstock.sql.schema import KEY_TEXT, Table
from penstock.tasks.protocol.messages import REPLACE, ResultWrite, TaskId
from penstock.tasks.protocol.refreshing import AnswerRequest, FireRequest, RefreshRequest
from penstock.tasks.protocol.store_requests import NamesRequest, RowsRequest, SpanRequest, StoreRequest, TableRequest
from penstock.vnode.read.row_places import RowPlaces
from penstock.vnode.store.delivery import IngestDelivery
from penstock.vnode.write.vnode_writer import BegunWrite, Change, DeletedRows, WrittenRows
from penstock.wal.record import TUID_COLUMN

UPSERT, DELETE = 0, 1
_SPAN = pa.schema([("first_ts", pa.int64()), ("last_ts", pa.int64()), ("rows", pa.int64())])

_Index = Places

_Place = tuple[int, int]
"""A child table's number in a write, and a time."""


class ResultStore:
    """Performs result writes of all streams; safe for many threads, and cheap for child tables that exist."""

    def __init__(self, catalog: Catalog, storage: Storage, children: ChildCreator, pool: Executor) -> None:
        """`pool` runs the parts of one write that go to different vnodes."""
        self.keyed = KeyedResults(storage)
        self._catalog = catalog
        self._storage = storage
        self._children = children
        self._lock = threading.Lock()
        self._attempts: dict[int, int] = {}
        #: a task may write into another table besides, for what it can't use
        self._known: dict[tuple[TaskId, int], ResultChildren] = {}
        self._pool = pool
        #: answers those whose results aren't sent but compared
        self.refresh: Callable[[RefreshRequest], pa.Table]
        #: tells those whose results leave Penstock what their answer is
        self.answer: Callable[[AnswerRequest], pa.Table]
        #: takes windows of streams with a trigger of their own, and tells whether it has; computes what they are for
        self.take_fired: Callable[[ResultWrite], bool]
        self.fire: Callable[[FireRequest], pa.Table]

    def close(self) -> None:
        """Waits for writes under way."""
        self._pool.shutdown(wait=True)

    def fence(self, stream_id: int, attempt: int) -> None:
        """From now on only this attempt of the stream (or a later one) may write."""
        with self._lock:
            self._attempts[stream_id] = max(attempt, self._attempts.get(stream_id, 0))

    def forget(self, stream_id: int) -> None:
        """From now on no attempt of the stream may write."""
        with self._lock:
            self._attempts.pop(stream_id, None)
            for known in [known for known in self._known if known[0].stream_id == stream_id]:
                del self._known[known]

    def write_results(self, write: ResultWrite) -> None:
        """Performs one write call; returns when all of it is acknowledged by the vnodes. Raises as `begin_write`."""
        self.begin_write(write)()

    def begin_write(self, write: ResultWrite) -> Callable[[], None]:
        """Begins one write call; what it returns is to be called, and returns when all is acknowledged by the vnodes.

        Between writes of several sink tasks nobody need wait: the vnode that they go to puts them into its log
        together. A sink task's next write must not begin before its last one is acknowledged. Both calls may raise
        `StaleAttemptError` if the stream is gone or a later attempt is known, `NotFoundError` if the result table
        is gone, `AlreadyExistsError` if a child's name belongs to another table, `StorageError`.
        """
        self.check_attempt(write.stream_id, write.attempt, write.task)
        if self.take_fired(write):
            return _nothing
        target = self._catalog.table_by_uid(write.target_uid)
        if target is None:
            raise NotFoundError(f"the result table of stream {write.stream_id:x} was dropped", code=TABLE_MISSING)
        if target.keyed:
            if KEPT not in write.rows.schema.names:
                return self._write_keyed(target, write)
            self.keyed.write(target, write, partial(self.check_attempt, write.stream_id, write.attempt, write.task))
            return _nothing
        index = np.asarray(write.rows.column(CHILD).to_numpy(), np.int64)
        children = self._children_of(target, write)
        children.learn(target, index)
        operations = np.asarray(write.rows.column(OPERATION).to_numpy(), np.uint8)
        if not any_set(operations):
            return self._upsert(target, children, write, write.rows, index)
        deleted = np.flatnonzero(operations == DELETE)
        upserted = np.flatnonzero(operations != DELETE)
        replacing = np.flatnonzero(operations == REPLACE)
        gone = self._others(target, children, write.rows, index, replacing) if len(replacing) else set()
        if len(deleted):
            last_delete = _last_deletes(_times(write.rows, target), index, deleted)
            upserted = _not_deleted_behind(_times(write.rows, target), index, last_delete, upserted)
            gone |= last_delete.keys()
        rows = write.rows.take(pa.array(upserted))
        return self._change(target, children, gone, self._parts(target, children, rows, index[upserted]))

    def read(self, request: StoreRequest) -> pa.Table:
        """Returns rows of a vnode's store as of a WAL version: `_tuid`, the physical columns, `_ver`.

        For a NamesRequest: the names. For a SpanRequest: `first_ts`, `last_ts`, `rows` in one row, or no row where
        there is nothing. For a TableRequest: the columns that it names, of all rows there are, or of a super table's
        children. For a RefreshRequest or an AnswerRequest, which the streams' statements answer: what its class says.
        Raises NotFoundError if a table was dropped.
        """
        if isinstance(request, RefreshRequest):
            return self.refresh(request)
        if isinstance(request, AnswerRequest):
            return self.answer(request)
        if isinstance(request, FireRequest):
            return self.fire(request)
        table = self._catalog.table_by_uid(request.table_uid)
        if isinstance(request, NamesRequest):
            return pa.table({"name": pa.array(self._foreign(table, request.names), pa.string())})
        if isinstance(request, TableRequest):
            if table is not None and table.kind == "super":
                return children_table(table, self._catalog).select(request.columns)
            if table is None or table.vgroup_id is None:
                raise NotFoundError("the table that is looked up in was dropped", hint="DROP the stream")
            return self._storage.snapshot(table.vgroup_id, table.storage_uid).to_arrow(list(request.columns))
        if table is not None and table.vgroup_id not in (None, request.vgroup_id):
            return _nothing_of(table, request)
        snapshot = self._storage.snapshot(request.vgroup_id, request.table_uid, as_of=request.as_of)
        if isinstance(request, SpanRequest):
            span = snapshot.span(request.first_ts, request.last_ts)
            return pa.Table.from_pylist([] if span is None else [asdict(span)], schema=_SPAN)
        if request.tuids is not None and request.times is not None:
            return snapshot.rows_at(None, RowPlaces.at(request.tuids, request.times))
        return snapshot.to_arrow(None, request.tuids, request.first_ts, request.last_ts)

    def _foreign(self, table: Table | None, names: Iterable[str]) -> list[str]:
        if table is None:
            raise NotFoundError("the table of the ingest was dropped", code=TABLE_MISSING)
        return [name for name in names if (found := self._catalog.table(table.database, name)) is not None
                and found.super_uid != table.uid]

    # --- inside ------------------------------------------------------------------------------------------------

    def check_attempt(self, stream_id: int, attempt: int, task: object) -> None:
        """Raises StaleAttemptError unless this attempt of a stream may write."""
        known = self._attempts.get(stream_id)
        if known is None:
            raise StaleAttemptError(f"stream {stream_id:x} is not running: {task} must stop")
        if attempt < known:
            raise StaleAttemptError(
                f"attempt {attempt} of stream {stream_id:x} was superseded by {known}", hint=f"{task} must stop")

    def _children_of(self, target: Table, write: ResultWrite) -> ResultChildren:
        """Returns what is known of the children that a write numbers: the same for all writes with the same list."""
        known = self._known.get((write.task, target.uid))
        if known is None or known.wanted is not write.children:
            known = ResultChildren(target, write.children, self._catalog, self._children)
            self._known[write.task, target.uid] = known
        return known

    def _write_keyed(self, target: Table, write: ResultWrite) -> Callable[[], None]:
        """Begins to write, and to delete, rows of a table with a KEY."""
        known = self._children_of(target, write)
        columns = known.stored_columns(target, write.rows.schema, delivered=False)
        batch = columns.of(write.rows, np.full(write.rows.num_rows, target.uid, np.uint64))
        batch = keyed(target, batch.drop_columns([TUID_COLUMN]))
        operations = np.asarray(write.rows.column(OPERATION).to_numpy(), np.uint8)
        gone = batch.filter(pa.array(operations == DELETE))
        wanted = batch.filter(pa.array((operations == UPSERT) | (operations == REPLACE)))
        if (operations >= REPLACE).any():
            there = stored_rows(target, None, self._storage) if known.only is None else known.only
            known.only = wanted
            gone = there.filter(pc.invert(pc.is_in(
                there.column(KEY_TEXT.physical), value_set=wanted.column(KEY_TEXT.physical))))
        changes = keyed_changes(self._storage, target, wanted, gone)
        assert target.vgroup_id is not None
        return partial(self._storage.whole_writes.begin([
            (target.vgroup_id, partial(self._storage.begin_changes, target.vgroup_id, changes))]), None)

    def _others(
        self, target: Table, children: ResultChildren, rows: pa.RecordBatch, index: _Index, replacing: _Index
    ) -> set[_Place]:
        """Returns the places at which there is a row with another key than the one that is to be the only one there."""
        key = target.key_column
        assert key is not None
        times = _times(rows, target)
        keys = rows.column(key.name).to_pylist()
        wanted = {(int(children.uids[index[row]]), int(times[row])): (int(index[row]), keys[row])
                  for row in replacing.tolist()}
        places: dict[int, list[tuple[int, int]]] = {}
        for (uid, ts), (child, _) in wanted.items():
            places.setdefault(int(children.vgroups[child]), []).append((uid, ts))
        stale: set[_Place] = set()
        for vgroup_id, found in places.items():
            uids = pa.array(sorted({uid for uid, _ in found}), pa.uint64())
            first, last = min(ts for _, ts in found), max(ts for _, ts in found)
            stored = self._storage.snapshot(vgroup_id, target.uid).to_arrow(
                [target.time_column.physical, key.physical], uids, first, last)
            for uid, ts, value in zip(stored.column(0).to_pylist(), stored.column(1).cast(pa.int64()).to_pylist(),
                                      stored.column(2).to_pylist(), strict=True):
                child, new = wanted.get((uid, ts), (-1, value))
                if value != new:
                    stale.add((child, ts))
        return stale

    def _change(
        self, target: Table, children: ResultChildren, gone: Collection[_Place],
        parts: Sequence[tuple[int, pa.RecordBatch]],
    ) -> Callable[[], None]:
        """Begins to delete what is there at some places, and behind that to write rows: all of it is seen at once.

        A stream that goes on from a checkpoint deletes what it may have written, of which mostly nothing is there. A
        cluster takes milliseconds to acknowledge: to wait for each by itself takes minutes where windows are many.
        """
        changes: dict[int, list[Change]] = {}
        if gone:
            index, times = (np.array(column, np.int64) for column in zip(*gone, strict=True))
            vgroups, uids = children.vgroups[index], children.uids[index]
            for vgroup_id in np.unique(vgroups).tolist():
                own = vgroups == vgroup_id
                changes[vgroup_id] = [DeletedRows(target.uid, uids[own], times[own])]
        for vgroup_id, part in parts:
            changes.setdefault(vgroup_id, []).append(WrittenRows(target.uid, part))
        return partial(self._storage.whole_writes.begin([
            (vgroup_id, partial(self._storage.begin_changes, vgroup_id, of_vnode))
            for vgroup_id, of_vnode in changes.items()]), None)

    def _parts(
        self, target: Table, children: ResultChildren, rows: pa.RecordBatch, index: _Index, *, delivered: bool = False
    ) -> list[tuple[int, pa.RecordBatch]]:
        """Returns rows by vnode, sorted by child table; vnodes would sort them otherwise."""
        order = order_of(children.ranks[index])
        if order is not None:
            rows, index = rows.take(pa.array(order)), index[order]
        columns = children.stored_columns(target, rows.schema, delivered=delivered)
        return by_vgroup(columns.of(rows, children.uids[index]), children.vgroups[index])

    def _upsert(
        self, target: Table, children: ResultChildren, write: ResultWrite, rows: pa.RecordBatch, index: _Index
    ) -> Callable[[], None]:
        """Begins to write rows to their vnodes."""
        parts = self._parts(target, children, rows, index, delivered=write.delivered is not None)
        database = self._catalog.database(target.database)
        if len(parts) == 1 or database is None or not pays_threads(rows.num_rows, database.options.wal_level):
            return partial(self._storage.whole_writes.begin([
                (vgroup_id, partial(self._begin, vgroup_id, target, write, part)) for vgroup_id, part in parts]), None)
        write_at_once(self._pool, lambda vgroup_id, part: self._begin(vgroup_id, target, write, part).wait(), parts)
        return _nothing

    def _begin(self, vgroup_id: int, target: Table, write: ResultWrite, part: pa.RecordBatch) -> BegunWrite:
        """Begins to write what goes to one vnode; what it has of a delivery, it leaves out."""
        delivery = None
        if write.delivered is not None:
            offsets = part.column(OFFSET).to_numpy()
            part = part.drop_columns([OFFSET])
            delivery = IngestDelivery(write.stream_id, write.delivered.partition, write.delivered.segment, offsets)
        return self._storage.vnode(vgroup_id).writer.begin_write(target.uid, part, delivery)


def _last_deletes(times: _Index, index: _Index, deleted: _Index) -> dict[_Place, int]:
    """Returns for each place that is deleted the last row that says so."""
    return {(int(index[row]), int(times[row])): row for row in deleted.tolist()}


def _not_deleted_behind(
    times: _Index, index: _Index, last_delete: Mapping[_Place, int], upserted: _Index
) -> _Index:
    """Returns the upserts whose place isn't deleted again behind them."""
    deleted_times = np.array([ts for _, ts in last_delete], np.int64)
    perhaps = upserted[np.isin(times[upserted], deleted_times)].tolist()
    gone = [row for row in perhaps if last_delete.get((int(index[row]), int(times[row])), -1) > row]
    return np.setdiff1d(upserted, np.array(gone, np.int64), assume_unique=True)


def _nothing() -> None:
    """Stands for what is to be waited for, where nothing is."""


def _nothing_of(table: Table, request: RowsRequest | SpanRequest) -> pa.Table:
    """Returns the answer for a normal table that has its rows in another vnode."""
    if isinstance(request, SpanRequest):
        return _SPAN.empty_table()
    return pa.schema([("_tuid", pa.uint64()), *storage_schema(table)[0], ("_ver", pa.uint64())]).empty_table()


def _times(rows: pa.RecordBatch, target: Table) -> _Index:
    """Returns the primary timestamps as integers of the database's precision."""
    return np.asarray(rows.column(target.time_column.name).cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)
