"""The source task: follows one vnode's WAL, judges rows by time, and makes partials (or results) of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.planner.stream import StreamPlan
from penstock.planner.windows import end_of, grid_of
from penstock.tasks.children import Children
from penstock.tasks.compute import (
    GROUP,
    ROWS,
    WINDOW_START,
    Computer,
    partial_schema,
    result_schema,
    with_operation,
)
from penstock.tasks.first_stage import FirstStage
from penstock.tasks.history import HistoryReader
from penstock.tasks.messages import (
    Barrier,
    Block,
    CheckpointCommitted,
    Cleared,
    Pause,
    Recalculate,
    Resume,
    Settled,
    StartCheckpoint,
    TaskCheckpoint,
    TaskEvent,
    TaskId,
    TaskStatus,
    Watermark,
)
from penstock.tasks.outbox import Outbox
from penstock.tasks.queues import ChannelQueue
from penstock.tasks.range_recalculation import RangeRecalculation, within
from penstock.tasks.recalculation import Change, Recalculation
from penstock.tasks.state_store import StateStore
from penstock.tasks.status import StateTracker
from penstock.tasks.task import StreamDeployment, TaskEnvironment
from penstock.tasks.user_functions import UserFunctions
from penstock.tasks.window_table import ADD, REPLACE, REPLAYED
from penstock.tasks.windower import Windower
from penstock.vnode.snapshot import TimeSpan
from penstock.wal.record import CHANGE_COLUMN, LAST_COLUMN, DeleteRecord, MetaRecord, Record, RowsRecord

UPDATED = 2
LATE_KEPT = 1_000
_KEYS = pa.schema([("_tuid", pa.uint64()), ("ts", pa.int64())])
_NEVER = np.iinfo(np.int64).min
_RESERVED_VERSIONS = 10_000
_NO_DATA = pa.record_batch([pa.array([], pa.uint8())], names=["_"])


@dataclass(frozen=True, slots=True)
class WalBlock(Block):
    """Consecutive WAL records, as the input queue of a source task holds them; `data` is not used."""

    records: tuple[Record, ...]
    size: int

    @property
    def nbytes(self) -> int:
        return self.size


@dataclass(frozen=True, slots=True)
class Judged:
    """Rows of one block with what is known of their time.

    `rows`: the relation `rows` of `SourcePlan`. `change`: per row append, late or update (None: all appends).
    `limit`: per row the newest event time of the vnode before the row's record, minus the watermark.
    `last`: per row the newest event time of its table before the record (None: all appends).
    """

    rows: pa.Table
    ts: npt.NDArray[np.int64]
    change: npt.NDArray[np.uint8] | None
    limit: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64] | None


class SourceTask:
    """One vnode's source task. Its input queue holds WAL blocks read ahead; its output goes to agg or sink tasks."""

    def __init__(
        self, deployment: StreamDeployment, index: int, downstream: Sequence[TaskId], environment: TaskEnvironment
    ) -> None:
        plan, settings = deployment.plan, deployment.settings
        self.id = TaskId(deployment.stream_id, "source", index)
        self.input: ChannelQueue[TaskId] = ChannelQueue(settings.queue_bytes, [self.id], environment.wake)
        self.output: ChannelQueue[TaskId] = ChannelQueue(settings.queue_bytes, list(downstream), environment.wake)
        self._plan: StreamPlan = plan
        self._source = plan.source
        self._settings = settings
        self._environment = environment
        self._clock = environment.clock
        self._vgroup_id = deployment.vgroup_ids[index]
        self._store = StateStore(environment.state_directory(self.id), settings.state_map_bytes)
        self._functions = UserFunctions(plan.functions, settings.functions_directory, strict=False)
        self._computer = Computer(self._functions)
        self._outbox = Outbox(self.output, settings.block_bytes_max)
        self._children = Children(plan.source, deployment.children[index])
        self._tracker = StateTracker(self._clock)
        self._events: deque[TaskEvent] = deque()
        self._checkpoints: deque[int] = deque()
        self._paused = deployment.paused
        self._read: WalBlock | None = None
        self._max_ts: int | None = None
        self._unseen: list[tuple[int, int]] = []
        self._idle = False
        self._sent_watermark: Watermark | None = None
        self._quiet_since = self._clock.monotonic()
        self._late_rows = 0
        #: (table id, primary timestamp) of the last rows that came too late
        self.late_sample: deque[tuple[int, int]] = deque(maxlen=LATE_KEPT)
        self._rows_in = 0
        self._bytes_in = 0
        self._checkpoint_id = deployment.checkpoint_id
        self._checkpoint_time_ms: int | None = None
        self._version = deployment.start_versions[index]
        self._history = None if plan.history is None else HistoryReader(
            plan.history, self._version, settings.block_rows_max, self._time_span, self._read_range, self._clock)
        self._ranges = RangeRecalculation(
            plan.agg, settings.block_rows_max, self._time_span, self._read_range)
        self._live_had_its_turn = False
        agg = plan.agg
        self._grid = (grid_of(agg.window, agg.precision, agg.time_zone)
                      if agg is not None and agg.window is not None else None)
        self._unseen = [(0, self._version)] if plan.history is None else []
        meta = self._store.restore(deployment.checkpoint_id)
        if meta is not None:
            self._unseen = [(first, last) for first, last in meta["unseen"]]
            self._version, self._max_ts = meta["version"], meta["max_ts"]
            self._idle, self._late_rows = meta["idle"], meta["late_rows"]
            self._ranges.restore(meta["ranges"])
            if self._history is not None:
                self._history.restore(meta["history"])
        self._wal = environment.open_wal(self._vgroup_id, self._version)
        if plan.agg is not None:
            self._schema = partial_schema(plan.keys, plan.agg.fields)
        else:
            scalar = result_schema(plan.keys, plan.result_fields)
            self._schema = pa.schema([pa.field("_row", pa.uint64()), *list(scalar)[1:]])
        self._first_stage = FirstStage(plan, self._schema, self._computer, self._children)
        self._recalculation = Recalculation(plan, self._first_stage, self._schema, self._read_rows)
        self._windower: Windower | None = None
        self._reserved = 0
        # Up to here an earlier attempt may have come; without its store, no one knows how far it did.
        self._replayed_until = 0
        if deployment.attempt > 1:
            reserved = self._store.reserved
            self._replayed_until = self._wal.acknowledged_version if reserved is None else reserved
        if plan.source.row_window is not None:
            self._windower = Windower(plan, self._schema, self._computer, self._recalculation, self._read_rows,
                                      self._store)
            self._windower.restore()

    # -- what the runtime calls ------------------------------------------------------------------------------

    def post(self, event: TaskEvent) -> None:
        self._events.append(event)
        self._environment.wake()

    def step(self) -> bool:
        progressed = self._handle_events()
        if not self._outbox.flush():
            self._tracker.enter("BACKPRESSURED", "its output queue is full", str(self._outbox.blocked_channel))
            return self._read_ahead() or progressed
        if self._checkpoints:
            self._checkpoint(self._checkpoints.popleft())
            return True
        if self._paused:
            self._tracker.enter("PAUSED", "paused by PAUSE STREAM")
            return progressed
        if self._history is not None and not self._history.done:
            return self._read_history(self._history)
        if self._ranges.pending and self._live_had_its_turn:
            return self._recalculate_piece()
        self._live_had_its_turn = True
        read = self._read_ahead()
        item = self.input.take(self.id)
        if isinstance(item, WalBlock):
            self._tracker.enter("RUNNING")
            self._process(item.records)
            self._version = item.records[-1].version
            self._quiet_since = self._clock.monotonic()
            self._outbox.flush()
            return True
        if self._ranges.pending:
            return self._recalculate_piece()
        if not read and not progressed:
            progressed = self._become_idle()
            self._tracker.enter("IDLE", "caught up with the end of the WAL")
        return read or progressed

    def next_deadline(self) -> float | None:
        if self._paused or self._idle or not self._tells_idleness:
            return None
        return self._quiet_since + self._settings.idle_timeout_s

    def status(self) -> TaskStatus:
        state = self._tracker.current
        return TaskStatus(
            task=self.id, state=state.name, reason=state.reason, since_ms=state.since_ms, blocked_by=state.blocked_by,
            input_bytes=self.input.used_bytes, input_capacity=self.input.capacity_bytes,
            input_peak=self.input.peak_bytes, output_bytes=self.output.used_bytes,
            output_capacity=self.output.capacity_bytes, output_peak=self.output.peak_bytes,
            rows_in=self._rows_in, rows_out=self._outbox.rows_out, bytes_in=self._bytes_in,
            bytes_out=self._outbox.bytes_out, processed_version=self._version,
            wal_version=self._wal.acknowledged_version, watermark=self._watermark(), max_event_time=self._max_ts,
            idle=self._idle, late_rows=self._late_rows, checkpoint_id=self._checkpoint_id,
            checkpoint_time_ms=self._checkpoint_time_ms, udf_errors=self._functions.errors,
            udf_report=self._functions.report, state_bytes=self._store.used_bytes,
            history=None if self._history is None else self._history.progress(),
        )

    def close(self) -> None:
        self._wal.close()
        self._computer.close()
        self._store.close()

    # -- reading ---------------------------------------------------------------------------------------------

    def _handle_events(self) -> bool:
        handled = False
        while self._events:
            handled = True
            match self._events.popleft():
                case StartCheckpoint(checkpoint_id):
                    self._checkpoints.append(checkpoint_id)
                case CheckpointCommitted(checkpoint_id):
                    self._store.committed(checkpoint_id)
                    self._checkpoint_id = checkpoint_id
                    self._checkpoint_time_ms = self._clock.now_ms()
                case Recalculate(first_ts, last_ts):
                    self._ranges.add(first_ts, last_ts)
                case Pause():
                    self._paused = True
                case Resume(skip_to_end):
                    self._paused = False
                    if skip_to_end:
                        self._skip_to_end()
        return handled

    def _skip_to_end(self) -> None:
        while self.input.take(self.id) is not None:
            continue
        self._read = None
        self._wal.close()
        skipped_from, self._version = self._version, self._wal.acknowledged_version
        self._unseen.append((skipped_from, self._version))
        self._wal = self._environment.open_wal(self._vgroup_id, self._version)

    def _read_ahead(self) -> bool:
        """Reads one block of WAL records into the input queue, or keeps it until there is room."""
        if self._paused:
            return False
        if self._read is None:
            if not self.input.fits(self.id, self._settings.block_bytes_max):
                return False
            records = self._wal.read(self._settings.block_rows_max, self._settings.block_bytes_max)
            if not records:
                return False
            size = sum(record.batch.nbytes for record in records if isinstance(record, RowsRecord))
            # Rows stay where the WAL is mapped: one record that is larger than the queue costs no memory here.
            self._read = WalBlock(_NO_DATA, tuple(records), min(size, self.input.share_bytes))
            self._bytes_in += size
        if not self.input.try_put(self.id, self._read):
            return False
        self._read = None
        return True

    def _read_history(self, history: HistoryReader) -> bool:
        """Processes the next rows from before the stream; they are never late."""
        self._tracker.enter("RUNNING", "reads the history of its vnode")
        rows = history.read()
        if rows is not None and rows.num_rows:
            self._first_stage.register_children()
            self._rows_in += rows.num_rows
            self._bytes_in += rows.nbytes
            rows = rows.sort_by(self._source.time_column)
            ts = rows.column(self._source.time_column).to_numpy()
            judged = Judged(rows, ts, None, np.full(len(ts), _NEVER, np.int64), None)
            self._emit(judged, (), history.as_of, history.as_of)
            self._advance(int(ts[-1]))
        self._quiet_since = self._clock.monotonic()
        self._outbox.flush()
        return True

    def _recalculate_piece(self) -> bool:
        """Computes the next piece of a range again that RECALCULATE STREAM named."""
        self._live_had_its_turn = False
        self._tracker.enter("RUNNING", "recalculates a range of time")
        piece = self._ranges.next(self._version, self._max_ts)
        if piece is None:
            return True
        fresh = self._first_stage.compute(piece.rows)
        if self._plan.agg is None:
            self._send(ADD, fresh)
        else:
            self._outbox.signal(Cleared(piece.first, piece.last))
            self._send(ADD, within(fresh, piece))
            self._outbox.signal(Settled())
        self._outbox.flush()
        return True

    @property
    def _tells_idleness(self) -> bool:
        """Only a downstream task with several inputs needs to know that this one is idle."""
        return not self._plan.colocated and self._plan.agg is not None

    def _become_idle(self) -> bool:
        if self._idle or not self._tells_idleness:
            return False
        if self._clock.monotonic() < self._quiet_since + self._settings.idle_timeout_s:
            return False
        self._idle = True
        self._send_watermark()
        return self._outbox.flush()

    # -- computing -------------------------------------------------------------------------------------------

    def _process(self, records: Sequence[Record]) -> None:
        rows: list[RowsRecord] = []
        deletes: list[DeleteRecord] = []
        for record in records:
            match record:
                case MetaRecord(body=body):
                    self._children.apply(body)
                case RowsRecord(table_uid=uid) if uid == self._source.storage_uid:
                    rows.append(record)
                case DeleteRecord(table_uid=uid) if uid == self._source.storage_uid:
                    deletes.append(record)
        if not rows and not deletes:
            return
        self._first_stage.register_children()
        judged = self._judge(rows) if rows else None
        if judged is not None and len(judged.ts) == 0:
            judged = None
        if judged is not None:
            self._rows_in += len(judged.ts)
        self._emit(judged, deletes, before=records[0].version - 1, after=records[-1].version)
        if judged is not None:
            self._advance(int(judged.ts.max()))

    def _advance(self, newest: int) -> None:
        """Takes note of the greatest event time of rows that were sent."""
        self._idle = False
        self._max_ts = newest if self._max_ts is None else max(newest, self._max_ts)
        self._send_watermark()

    def _judge(self, records: Sequence[RowsRecord]) -> Judged:
        """Returns the rows of some records, each with what its vnode and table had seen before its record."""
        source = self._source
        time_name = records[0].batch.schema.names[1]
        tables, limits, changes, lasts = [], [], [], []
        newest = self._max_ts
        for record in records:
            batch = record.batch
            if source.keep_tuid is not None:
                batch = batch.filter(pc.equal(batch.column("_tuid"), pa.scalar(source.keep_tuid, pa.uint64())))
            if batch.num_rows == 0:
                continue
            ts = _as_int64(batch.column(time_name))
            limit = np.iinfo(np.int64).min if newest is None else newest - self._plan.watermark
            limits.append(np.full(len(ts), limit, np.int64))
            highest = pc.max(ts).as_py()
            newest = highest if newest is None else max(newest, highest)
            changes.append(_verdict(batch, CHANGE_COLUMN))
            lasts.append(_verdict(batch, LAST_COLUMN))
            tables.append(pa.Table.from_batches([batch]))
        if not tables:
            empty = np.zeros(0, np.int64)
            return Judged(pa.table({}), empty, None, empty, None)
        merged = pa.concat_tables(tables, promote_options="default")
        rows = source_rows(merged, self._plan)
        ts = _as_int64(merged.column(time_name).combine_chunks()).to_numpy()
        change = np.concatenate(changes).astype(np.uint8)
        plain = not change.any()
        return Judged(rows, ts, None if plain else change, np.concatenate(limits),
                      None if plain else np.concatenate(lasts))

    def _emit(self, judged: Judged | None, deletes: Sequence[DeleteRecord], before: int, after: int) -> None:
        """Sends what a block of rows and deletes changes: additions, and recalculated parts in their place.

        Windows older than DELETE_MARK, which agg tasks may have forgotten, are left as they are.

        `before` and `after` are the WAL versions between which the block lies.
        """
        if self._windower is not None:
            newest = self._max_ts if judged is None else max(
                int(judged.ts.max()), _NEVER if self._max_ts is None else self._max_ts)
            replayed = before < self._replayed_until
            if after > self._reserved:
                self._reserved = self._store.reserve(after + _RESERVED_VERSIONS)
            partials, late_rows = self._windower.process(judged, deletes, (before, after), newest, replayed=replayed)
            self._late_rows += late_rows
            if partials is not None:
                self._send(REPLAYED if replayed else ADD, partials)
            return
        suspects = self._suspects(judged) if judged is not None and self._source.late_sql is not None else None
        expired = self._expired_keys(suspects) if suspects is not None else None
        updated = self._updated(judged, expired) if judged is not None else None
        added = self._compute(judged, suspects) if judged is not None else None
        if updated is None and not deletes:
            if added is not None:
                self._send(ADD, self._remembered(added))
            return
        rows = suspects if suspects is not None else (judged.rows if judged is not None else None)
        change = Change(rows, updated, tuple(deletes), before, after)
        if self._plan.agg is None:
            for operation, batch in self._recalculation.rows(change, added):
                self._send(operation, batch)
            return
        rest, replaced = self._recalculation.windows(change, added)
        if rest is not None:
            self._send(ADD, self._remembered(rest))
        for batch in replaced:
            self._send(REPLACE, self._remembered(batch, added=False))

    def _remembered(self, partials: pa.RecordBatch, *, added: bool = True) -> pa.RecordBatch:
        """Returns the partials without those of windows that DELETE_MARK lets agg tasks forget.

        Rows that would have been `added` to them are late.
        """
        if self._grid is None or self._max_ts is None or partials.num_rows == 0:
            return partials
        limit = self._max_ts - self._plan.delete_mark
        if pc.min(partials.column(WINDOW_START.name)).as_py() > limit:
            return partials
        grid = self._grid
        kept = [end_of(start, grid) > limit for start in partials.column(WINDOW_START.name).to_pylist()]
        if added:
            self._late_rows += sum(
                rows for rows, keep in zip(partials.column(ROWS.name).to_pylist(), kept, strict=True) if not keep)
        return partials.filter(pa.array(kept, pa.bool_()))

    def _updated(self, judged: Judged, expired: set[tuple[int, int]] | None) -> npt.NDArray[np.bool_] | None:
        """Returns which rows rewrite a key that existed and count as updates, or None if none do."""
        if judged.change is None or self._plan.ignore_update:
            return None
        updated = judged.change == UPDATED
        if expired:
            tuids = judged.rows.column("_tuid").to_pylist()
            for row in np.flatnonzero(updated).tolist():
                updated[row] = (tuids[row], int(judged.ts[row])) not in expired
        return updated if updated.any() else None

    def _suspects(self, judged: Judged) -> pa.Table | None:
        """Returns the rows with `_row`, `_limit` and `_last` if any of them may be expired, else None."""
        if judged.change is None or judged.last is None:
            return None
        if not bool(((judged.change != 0) & (judged.ts < judged.limit)).any()):
            return None
        # An append is the newest row of its table, so it never is expired: it gets no limit.
        appended = judged.change == 0
        limit = pa.array(judged.limit, mask=appended)
        last = pa.array(judged.last, mask=appended)
        rows = judged.rows.append_column("_row", pa.array(np.arange(len(judged.ts))))
        return rows.append_column("_limit", limit).append_column("_last", last)

    def _expired_keys(self, suspects: pa.Table) -> set[tuple[int, int]]:
        """Returns (table id, time) of the rows that are expired for all their windows, and counts them."""
        assert self._source.expired_sql is not None
        keys = self._computer.run(self._source.expired_sql, _KEYS, rows=suspects)
        self._late_rows += keys.num_rows
        late = list(zip(keys.column(0).to_pylist(), keys.column(1).to_pylist(), strict=True))
        self.late_sample.extend(late)
        return set(late)

    def _compute(self, judged: Judged, suspects: pa.Table | None) -> pa.RecordBatch:
        if suspects is None:
            return self._first_stage.compute(judged.rows)
        assert self._source.late_sql is not None
        return self._computer.run(self._source.late_sql, self._schema, rows=suspects)

    def _read_rows(self, tuids: pa.Array | None, first_ts: int, last_ts: int, as_of: int) -> pa.Table:
        """Returns rows of the vnode's store as the relation `rows`, plus their key columns."""
        if self._source.keep_tuid is not None:
            tuids = pa.array([self._source.keep_tuid], pa.uint64())
        stored = self._environment.read_rows(
            self._vgroup_id, self._source.storage_uid, tuids, first_ts, last_ts, as_of)
        if self._windower is not None:
            versions = stored.column("_ver").to_numpy()
            seen = np.ones(len(versions), bool)
            for first, last in self._unseen:
                seen &= (versions <= first) | (versions > last)
            stored = stored.filter(pa.array(seen))
        return source_rows(stored, self._plan)

    def _read_range(self, first_ts: int, last_ts: int, as_of: int) -> pa.Table:
        return self._read_rows(None, first_ts, last_ts, as_of)

    def _time_span(self, first_ts: int, last_ts: int, as_of: int) -> TimeSpan | None:
        return self._environment.time_span(self._vgroup_id, self._source.storage_uid, first_ts, last_ts, as_of)

    # -- sending ---------------------------------------------------------------------------------------------

    def _send(self, operation: int, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if self._plan.agg is None:
            batch = batch.select(batch.schema.names[1:])
        batch = with_operation(batch, operation)
        channels = self.output.channels
        if len(channels) == 1:
            self._outbox.send(channels[0], batch)
            return
        place = batch.column(GROUP.name).to_numpy() % np.uint64(len(channels))
        for n, channel in enumerate(channels):
            self._outbox.send(channel, batch.filter(pa.array(place == n)))

    def _watermark(self) -> int | None:
        return None if self._max_ts is None else self._max_ts - self._plan.watermark

    def _send_watermark(self) -> None:
        if self._plan.agg is None:
            return
        watermark = Watermark(self._watermark(), self._idle)
        if watermark != self._sent_watermark:
            self._outbox.signal(watermark)
            self._sent_watermark = watermark

    def _checkpoint(self, checkpoint_id: int) -> None:
        started = time.perf_counter()
        meta = {"version": self._version, "max_ts": self._max_ts, "idle": self._idle, "late_rows": self._late_rows,
                "unseen": self._unseen, "history": None if self._history is None else self._history.save(),
                "ranges": self._ranges.save()}
        if self._windower is not None:
            self._windower.save()
        stored = self._store.checkpoint(checkpoint_id, meta)
        self._outbox.signal(Barrier(checkpoint_id))
        self._outbox.flush()
        duration_ms = (time.perf_counter() - started) * 1000
        self._environment.acknowledge(TaskCheckpoint(
            self.id, checkpoint_id, stored.bytes_written, duration_ms, self._needed_version(), stored.digest))

    def _needed_version(self) -> int:
        """Returns the version that WAL and store must still be readable from for a restart from now."""
        if self._history is None or self._history.done:
            return self._version
        return min(self._version, self._history.as_of)


def source_rows(table: pa.Table, plan: StreamPlan) -> pa.Table:
    """Returns stored rows as the relation `rows`: `_tuid` and the plan's columns by name, timestamps as int64."""
    names, columns = ["_tuid"], [table.column("_tuid")]
    for column in plan.source.columns:
        if column.physical in table.column_names:
            stored = table.column(column.physical)
        else:
            stored = pa.nulls(table.num_rows, column.type.arrow())
        if pa.types.is_timestamp(stored.type):
            stored = stored.cast(pa.int64())
        names.append(column.name)
        columns.append(stored)
    return pa.table(dict(zip(names, columns, strict=True)))


def _as_int64(array: pa.Array) -> pa.Array:
    return array.view(pa.int64()) if isinstance(array, pa.Array) else array.cast(pa.int64())


def _verdict(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    """Returns the column `_change` or `_last`: zeros if all rows are appends."""
    if name not in batch.schema.names:
        return np.zeros(batch.num_rows, np.int64)
    return np.asarray(batch.column(name)).astype(np.int64)
