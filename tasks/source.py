"""The source task: follows one vnode's WAL, judges rows by time, and makes partials (or results) of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import InvalidValueError
from penstock.planner.windows import end_of, grid_of
from penstock.sql.types import UNITS_PER_SECOND
from penstock.tasks.base_task import BaseSourceTask
from penstock.tasks.compute import (
    ADD,
    GROUP,
    REPLACE,
    REPLAYED,
    ROWS,
    WINDOW_START,
    partial_schema,
    result_schema,
    with_operation,
)
from penstock.tasks.dead_letters import DeadLetters, dead_from_json, dead_rows, dead_to_json, retried
from penstock.tasks.first_stage import FirstStage
from penstock.tasks.history import HistoryReader
from penstock.tasks.judging import (
    LATE,
    NEVER,
    UPDATED,
    Judged,
    judge,
    may_be_late,
    never_late,
    source_rows,
    updated,
    without_rows,
)
from penstock.tasks.messages import (
    Block,
    Cleared,
    DeadRow,
    LeftOutRow,
    Reason,
    Recalculate,
    Replay,
    Settled,
    TaskEvent,
    TaskId,
    TaskStatus,
    Watermark,
)
from penstock.tasks.outbox import Outbox
from penstock.tasks.quarantine import Quarantine, TableTimes
from penstock.tasks.queues import ChannelQueue
from penstock.tasks.range_recalculation import RangeRecalculation, within
from penstock.tasks.recalculation import Change, Recalculation
from penstock.tasks.runs import runs
from penstock.tasks.task import StreamDeployment, TaskEnvironment
from penstock.tasks.time_ledger import TimeLedger, left_out_rows
from penstock.tasks.windower import Windower
from penstock.tasks.writer_times import WriterTimes
from penstock.vnode.snapshot import TimeSpan
from penstock.wal.record import DeleteRecord, MetaRecord, Record, RowsRecord, TimeMarkRecord

_RESERVED_VERSIONS = 10_000
_NO_DATA = pa.record_batch([pa.array([], pa.uint8())], names=["_"])


@dataclass(frozen=True, slots=True)
class WalBlock(Block):
    """Consecutive WAL records, as the input queue of a source task holds them; `data` is not used."""

    records: tuple[Record, ...]
    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", self.size)


class SourceTask(BaseSourceTask):
    """One vnode's source task. Its input queue holds WAL blocks read ahead; its output goes to agg or sink tasks."""

    def __init__(
        self, deployment: StreamDeployment, index: int, downstream: Sequence[TaskId], environment: TaskEnvironment
    ) -> None:
        super().__init__(index, deployment, environment)
        plan, settings = deployment.plan, deployment.settings
        self.output: ChannelQueue[TaskId] = ChannelQueue(settings.queue_bytes, list(downstream), environment.wake)
        self._outbox = Outbox(self.output, settings.block_bytes_max)
        self._read: WalBlock | None = None
        self._max_ts: int | None = None
        self._idle, self._quiet_s = False, 0.0
        self._idle_since_ms = self._clock.now_ms()
        self._sent_watermark: Watermark | None = None
        self._quiet_since = self._clock.monotonic()
        self._ledger = TimeLedger()
        self._table_times = TableTimes()
        timeout_ms = plan.time.writer_timeout_ms
        self._writers = None if timeout_ms is None else WriterTimes(
            timeout_ms, UNITS_PER_SECOND[plan.source.precision] // 1_000)
        # Rows of the DLQ that are tried once more, by (table id, time), and the records that are processed now.
        self._retries: dict[tuple[int, int], DeadRow] = {}
        self._block: Sequence[RowsRecord] = ()
        self._bytes_in = 0
        self._history = None if plan.history is None else HistoryReader(
            plan.history, self._version, settings.block_rows_max, self._time_span, self._read_range, self._clock)
        self._ranges = RangeRecalculation(
            plan.agg, settings.block_rows_max, self._time_span, self._read_range)
        self._live_had_its_turn = False
        agg = plan.agg
        self._grid = (grid_of(agg.window, agg.precision, agg.time_zone)
                      if agg is not None and agg.window is not None else None)
        self._unseen: list[tuple[int, int]] = [(0, self._version)] if plan.history is None else []
        meta = self._restore_store(deployment.checkpoint_id)
        if meta is not None:
            self._restore(meta)
        self._quarantine = Quarantine(self._store)
        self._dead = self._open_dead_letters(deployment)
        self._open_wal()
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
            self._windower = Windower(plan, self._schema, self._first_stage, self._recalculation, self._read_rows,
                                      self._store)
            self._windower.restore()

    def _open_dead_letters(self, deployment: StreamDeployment) -> DeadLetters | None:
        if self._plan.dlq is None:
            return None
        return DeadLetters(self._plan.dlq, deployment.stream_id, deployment.name, deployment.attempt, self.id,
                           self._vgroup_id, self._source.precision, self._environment.result_writer(self.id))

    # -- what the runtime calls ------------------------------------------------------------------------------

    def step(self) -> bool:
        progressed = self._handle_events()
        if not self._outbox.flush():
            self._tracker.enter("BACKPRESSURED", "its output queue is full", str(self._outbox.blocked_channel))
            return self._read_ahead() or progressed
        if self._dead is not None:
            progressed |= self._dead.step()
            if self._dead.full or (self._checkpoints and not self._dead.settled):
                self._tracker.enter("WRITING", "waits for the dnode to acknowledge rows of its DLQ")
                return progressed
        if self._checkpoints:
            self._checkpoint(self._checkpoints.popleft(), self._outbox, self._needed_version())
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
            for run in runs(item.records, self._plan, self._max_ts):
                self._process(run)
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
        if self._paused or self._plan.agg is None:
            return None
        deadlines = [] if self._idle else [self._quiet_since + self._idle_timeout_s]
        if self._writers is not None:
            now_ms = self._clock.now_ms()
            at_ms = self._writers.next_timeout_ms(now_ms)
            deadlines += [] if at_ms is None else [self._clock.monotonic() + (at_ms - now_ms) / 1000]
        return min(deadlines, default=None)

    def status(self) -> TaskStatus:
        return self._status(
            self.output, rows_in=self._rows_in, rows_out=self._outbox.rows_out, bytes_in=self._bytes_in,
            bytes_out=self._outbox.bytes_out, processed_version=self._version,
            wal_version=self._wal.acknowledged_version, watermark=self._watermark(), max_event_time=self._max_ts,
            upper_bound=self._max_ts if self._writers is None else self._writers.upper,
            idle=self._idle, idle_since_ms=self._idle_since_ms if self._idle else None,
            late_rows=self._ledger.count("late"), future_rows=self._ledger.count("future"),
            error_rows=self._ledger.count("error"),
            lateness=self._ledger.lateness(), left_out=self._ledger.sample,
            history=None if self._history is None else self._history.progress())

    # -- reading ---------------------------------------------------------------------------------------------

    def _handle(self, event: TaskEvent) -> None:
        if isinstance(event, Recalculate):
            self._ranges.add(event.first_ts, event.last_ts)
        elif isinstance(event, Replay):
            self._replay([row for vgroup_id, row in event.rows if vgroup_id == self._vgroup_id])
        else:
            super()._handle(event)

    def _replay(self, rows: Sequence[DeadRow]) -> None:
        """Orders the windows of rows that were left out to be computed with them."""
        self._quarantine.release((row.row.tuid, row.row.ts) for row in rows)
        self._retries.update(((row.row.tuid, row.row.ts), row) for row in rows)
        self._ranges.add_instants(sorted({row.row.ts for row in rows}))

    def _skip_to_end(self) -> None:
        while self.input.take(self.id) is not None:
            continue
        self._read = None
        self._wal.close()
        skipped_from, self._version = self._version, self._wal.acknowledged_version
        self._unseen.append((skipped_from, self._version))
        self._open_wal()

    def _read_ahead(self) -> bool:
        """Reads one block of WAL records into the input queue, or keeps it until there is room."""
        if self._paused:
            return False
        if self._read is None:
            if not self.input.fits(self.id, self._settings.block_bytes_max):
                return False
            before = self._wal.bytes_read
            records = self._wal.read(self._settings.block_rows_max, self._settings.block_bytes_max)
            if not records:
                return False
            size = self._wal.bytes_read - before
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
            self._emit_history(rows, history.as_of)
        self._quiet_since = self._clock.monotonic()
        self._outbox.flush()
        return True

    def _emit_history(self, rows: pa.Table, as_of: int) -> None:
        """Sends rows from before the stream; what is in the future of its creation isn't taken for time."""
        time_plan = self._plan.time
        judged = never_late(rows, self._source.time_column, as_of)
        if time_plan.max_future is not None and judged.ts[-1] > time_plan.created + time_plan.max_future:
            bound = time_plan.created + time_plan.max_future
            first = int(np.searchsorted(judged.ts, bound, side="right"))
            tuids = judged.rows.column("_tuid").to_pylist()[first:]
            self._leave_out("future", [LeftOutRow(tuid, ts, bound - ts, "future", as_of, self._clock.now_ms())
                                       for tuid, ts in zip(tuids, judged.ts[first:].tolist(), strict=True)])
            self._table_times.watch(set(tuids), judged.rows.column("_tuid").to_numpy()[:first], judged.ts[:first])
            judged = never_late(judged.rows.slice(0, first), self._source.time_column, as_of)
        if len(judged.ts):
            self._block = ()
            self._emit_computable(judged, (), as_of, as_of)
            self._advance(judged.newest)

    # -- rows that are left out --------------------------------------------------------------------------------

    def _leave_out(self, reason: Reason, rows: Sequence[LeftOutRow], message: str = "") -> None:
        """Counts rows that can't be used, and keeps them out of what is read back from the store."""
        self._ledger.leave_out(reason, rows)
        self._quarantine.add((row.tuid, row.ts) for row in rows)
        if self._plan.dlq is not None and self._plan.dlq.errors:
            self._bury(rows, message)

    def _bury(self, rows: Sequence[LeftOutRow], message: str) -> None:
        """Hands rows to the DLQ; those of history, whose records are gone, have no content there."""
        assert self._dead is not None
        assert self._plan.dlq is not None
        again = [retried(self._retries.pop((row.tuid, row.ts)), message) for row in rows
                 if (row.tuid, row.ts) in self._retries]
        known = {(row.row.tuid, row.row.ts) for row in again}
        fresh = [row for row in rows if (row.tuid, row.ts) not in known]
        names = self._children.names()
        self._dead.add([*again, *dead_rows(fresh, self._block, self._plan, names, message)])

    def _emit_computable(self, judged: Judged | None, deletes: Sequence[DeleteRecord], before: int, after: int) -> None:
        """Sends what a block changes; rows that can't be computed are left out, if the stream's ON_ERROR says so."""
        try:
            self._emit(judged, deletes, before, after)
        except InvalidValueError as error:
            if judged is None or self._plan.on_error not in ("skip", "dlq"):
                raise
            judged = self._computable(judged, error)
            if judged is not None or deletes:
                self._emit(judged, deletes, before, after)

    def _computable(self, judged: Judged, error: InvalidValueError) -> Judged | None:
        """Returns the rows without those that fail by themselves, which are left out; raises `error` if none does."""
        failures = self._failures(judged.rows)
        if not failures:
            raise error
        for message in dict.fromkeys(failures.values()):
            rows = [row for row, text in failures.items() if text == message]
            self._leave_out("error", left_out_rows(
                judged, rows, "error", self._plan.closing_delay, len(rows)), message)
        return without_rows(judged, sorted(failures))

    def _failures(self, rows: pa.Table, first: int = 0) -> dict[int, str]:
        """Returns which rows can't be computed, by their numbers, and why; tries halves down to single rows."""
        try:
            self._first_stage.compute(rows)
        except InvalidValueError as error:
            message = str(self._functions.failure or error)
            self._functions.failure = None
            if rows.num_rows == 1:
                return {first: message}
            half = rows.num_rows // 2
            return self._failures(rows.slice(0, half), first) | self._failures(rows.slice(half), first + half)
        return {}

    def _recalculate_piece(self) -> bool:
        """Computes the next piece of a range again that RECALCULATE STREAM named."""
        self._live_had_its_turn = False
        self._tracker.enter("RUNNING", "recalculates a range of time")
        piece = self._ranges.next(self._version, self._max_ts)
        if piece is None:
            return True
        if self._windower is not None:
            self._first_stage.register_children()
            replayed = self._replayed_until > 0
            partials = self._windower.recalculate(
                piece.rows, piece.first, piece.last, self._version, self._max_ts, replayed=replayed)
            if partials is not None:
                self._send(REPLAYED if replayed else ADD, partials)
            self._outbox.flush()
            return True
        fresh = self._recomputed(piece.rows)
        if self._plan.agg is None:
            self._send(ADD, fresh)
        else:
            self._outbox.signal(Cleared(piece.first, piece.last))
            self._send(ADD, within(fresh, piece))
            self._outbox.signal(Settled())
        self._outbox.flush()
        return True

    def _recomputed(self, rows: pa.Table) -> pa.RecordBatch:
        """Returns what stored rows yield; those that can't be computed are left out as those of the WAL are."""
        try:
            return self._first_stage.compute(rows)
        except InvalidValueError as error:
            if self._plan.on_error not in ("skip", "dlq"):
                raise
            self._block = ()
            judged = self._computable(never_late(rows, self._source.time_column, self._version), error)
            kept = rows.slice(0, 0) if judged is None else judged.rows
            return self._first_stage.compute(kept)

    @property
    def _idle_timeout_s(self) -> float:
        own = self._plan.time.idle_timeout_s
        return self._settings.idle_timeout_s if own is None else own

    def _become_idle(self) -> bool:
        if self._writers is not None:
            self._writers.advance_by_clock(self._clock.now_ms())
            if self._send_watermark():
                return self._outbox.flush()
        if self._idle or self._plan.agg is None:
            return False
        if self._clock.monotonic() < self._quiet_since + self._idle_timeout_s:
            return False
        self._idle = True
        self._quiet_s = self._clock.monotonic() - self._quiet_since
        self._idle_since_ms = self._clock.now_ms()
        self._send_watermark()
        return self._outbox.flush()

    # -- computing -------------------------------------------------------------------------------------------

    def _process(self, records: Sequence[Record]) -> None:
        rows: list[RowsRecord] = []
        deletes: list[DeleteRecord] = []
        noted: list[int | None] = []
        for record in records:
            match record:
                case TimeMarkRecord() if self._writers is not None:
                    self._writers.note(record)
                    self._idle, self._quiet_s = False, 0.0
                case MetaRecord(body=body):
                    self._children.apply(body)
                case RowsRecord(table_uid=uid) if uid == self._source.storage_uid:
                    rows.append(record)
                    if self._writers is not None:
                        noted.append(self._writers.advance(record.ingest_time_ms))
                case DeleteRecord(table_uid=uid) if uid == self._source.storage_uid:
                    deletes.append(record)
        if not rows and not deletes:
            self._send_watermark()
            return
        self._first_stage.register_children()
        self._block = rows
        judged, future = judge(rows, self._plan, self._max_ts, self._table_times,
                               noted if self._writers is not None else None) if rows else (None, [])
        if future:
            self._leave_out("future", future, "is too far in the future")
            self._rows_in += len(future)
        if judged is not None:
            self._rows_in += len(judged.ts)
            self._ledger.note(judged, self._plan.closing_delay)
            if self._quarantine:
                judged = self._released(judged)
        if judged is None and not deletes:
            self._send_watermark()
            return
        self._emit_computable(judged, deletes, before=records[0].version - 1, after=records[-1].version)
        self._quarantine.forget(deletes)
        if judged is not None:
            self._advance(judged.newest)

    def _released(self, judged: Judged) -> Judged:
        """Returns the rows with those that were left out when they came first as new ones: for the stream they are."""
        if judged.change is None or not (judged.change == UPDATED).any():
            return judged
        tuids = judged.rows.column("_tuid").to_numpy()
        known = (judged.change == UPDATED) & self._quarantine.holds(tuids, judged.ts)
        self._quarantine.release(zip(tuids[known].tolist(), judged.ts[known].tolist(), strict=True))
        return replace(judged, change=np.where(known, np.uint8(LATE), judged.change))

    def _advance(self, newest: int) -> None:
        """Takes note of the greatest event time of rows that were sent."""
        self._idle, self._quiet_s = False, 0.0
        self._max_ts = newest if self._max_ts is None else max(newest, self._max_ts)
        self._send_watermark()

    def _emit(self, judged: Judged | None, deletes: Sequence[DeleteRecord], before: int, after: int) -> None:
        """Sends what a block of rows and deletes changes: additions, and recalculated parts in their place.

        Windows older than DELETE_MARK, which agg tasks may have forgotten, are left as they are.

        `before` and `after` are the WAL versions between which the block lies.
        """
        if self._windower is not None:
            newest = self._max_ts if judged is None else max(
                judged.newest, NEVER if self._max_ts is None else self._max_ts)
            replayed = before < self._replayed_until
            if after > self._reserved:
                self._reserved = self._store.reserve(after + _RESERVED_VERSIONS)
            partials, late = self._windower.process(judged, deletes, (before, after), newest, replayed=replayed)
            if judged is not None and len(late):
                self._count_late(judged, late)
            if partials is not None:
                self._send(REPLAYED if replayed else ADD, partials)
            return
        added: list[pa.RecordBatch] = []
        expired: npt.NDArray[np.int64] | None = None
        if judged is not None and self._source.late_sql is not None and may_be_late(judged):
            added, expired = self._first_stage.compute_timely(judged)
            self._count_late(judged, expired)
        elif judged is not None:
            added = [self._first_stage.compute(judged.rows)]
        rewritten = updated(judged, expired) if judged is not None and not self._plan.ignore_update else None
        if rewritten is None and not deletes:
            for batch in added:
                self._send(ADD, self._remembered(batch))
            return
        change = Change(judged.rows if judged is not None else None, rewritten, tuple(deletes), before, after)
        if self._plan.agg is None:
            for operation, batch in self._recalculation.rows(change, added[0] if added else None):
                self._send(operation, batch)
            return
        rest, replaced = self._recalculation.windows(change, added)
        for batch in rest:
            self._send(ADD, self._remembered(batch))
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
            self._ledger.leave_out("late", (), sum(
                rows for rows, keep in zip(partials.column(ROWS.name).to_pylist(), kept, strict=True) if not keep))
        return partials.filter(pa.array(kept, pa.bool_()))

    def _count_late(self, judged: Judged, rows: npt.NDArray[np.int64]) -> None:
        kept = left_out_rows(judged, rows.tolist(), "late", self._plan.closing_delay)
        self._ledger.leave_out("late", kept, len(rows) - len(kept))
        if self._plan.dlq is not None and self._plan.dlq.late:
            self._bury(left_out_rows(judged, rows.tolist(), "late", self._plan.closing_delay, len(rows)),
                       "came too late: all its windows were closed")

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
        return source_rows(self._quarantine.without(stored, stored.column_names[1]), self._plan)

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
        self._outbox.spread(place.astype(np.int64), batch)

    def _watermark(self) -> int | None:
        if self._writers is not None:
            return self._writers.shown
        return None if self._max_ts is None else self._max_ts - self._plan.watermark

    def _send_watermark(self) -> bool:
        """Tells downstream what time it is, if that is news; returns whether it was."""
        if self._plan.agg is None:
            return False
        watermark = Watermark(self._watermark(), self._idle, self._quiet_s)
        if watermark == self._sent_watermark:
            return False
        self._outbox.signal(watermark)
        self._sent_watermark = watermark
        return True

    def _state(self) -> Mapping[str, Any]:
        if self._windower is not None:
            self._windower.save()
        return {"version": self._version, "max_ts": self._max_ts, "idle": self._idle,
                "ledger": self._ledger.save(self._store), "table_times": self._table_times.save(),
                "unseen": self._unseen, "history": None if self._history is None else self._history.save(),
                "ranges": self._ranges.save(),
                "writers": None if self._writers is None else self._writers.save(),
                "retries": [dead_to_json(row) for row in self._retries.values()]}

    def _restore(self, meta: Mapping[str, Any]) -> None:
        self._unseen = [(first, last) for first, last in meta["unseen"]]
        self._version, self._max_ts = meta["version"], meta["max_ts"]
        self._idle = meta["idle"]
        if "ledger" in meta:  # checkpoints of older versions have none
            self._ledger.restore(meta["ledger"], self._store)
            self._table_times.restore(meta["table_times"])
        if self._writers is not None:
            self._writers.restore(meta["writers"])
        retries = [dead_from_json(row) for row in meta.get("retries", ())]
        self._retries = {(row.row.tuid, row.row.ts): row for row in retries}
        self._ranges.restore(meta["ranges"])
        if self._history is not None:
            self._history.restore(meta["history"])

    def _needed_version(self) -> int:
        """Returns the version that WAL and store must still be readable from for a restart from now."""
        if self._history is None or self._history.done:
            return self._version
        return min(self._version, self._history.as_of)
