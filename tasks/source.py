"""The source task: follows one vnode's WAL, judges rows by time, and makes partials (or results) of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.planner.windows import end_of, grid_of
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
from penstock.tasks.first_stage import FirstStage
from penstock.tasks.history import HistoryReader
from penstock.tasks.judging import NEVER, Judged, judge, may_be_late, never_late, source_rows, updated
from penstock.tasks.messages import (
    Block,
    Cleared,
    Recalculate,
    Settled,
    TaskEvent,
    TaskId,
    TaskStatus,
    Watermark,
)
from penstock.tasks.outbox import Outbox
from penstock.tasks.queues import ChannelQueue
from penstock.tasks.range_recalculation import RangeRecalculation, within
from penstock.tasks.recalculation import Change, Recalculation
from penstock.tasks.task import StreamDeployment, TaskEnvironment
from penstock.tasks.vectors import Bools
from penstock.tasks.windower import Windower
from penstock.vnode.snapshot import TimeSpan
from penstock.wal.record import DeleteRecord, MetaRecord, Record, RowsRecord

LATE_KEPT = 1_000

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
        self._idle = False
        self._sent_watermark: Watermark | None = None
        self._quiet_since = self._clock.monotonic()
        self._late_rows = 0
        #: (table id, primary timestamp) of the last rows that came too late
        self.late_sample: deque[tuple[int, int]] = deque(maxlen=LATE_KEPT)
        self._rows_in = 0
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
        meta = self._store.restore(deployment.checkpoint_id)
        if meta is not None:
            self._unseen = [(first, last) for first, last in meta["unseen"]]
            self._version, self._max_ts = meta["version"], meta["max_ts"]
            self._idle, self._late_rows = meta["idle"], meta["late_rows"]
            self._ranges.restore(meta["ranges"])
            if self._history is not None:
                self._history.restore(meta["history"])
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

    # -- what the runtime calls ------------------------------------------------------------------------------

    def step(self) -> bool:
        progressed = self._handle_events()
        if not self._outbox.flush():
            self._tracker.enter("BACKPRESSURED", "its output queue is full", str(self._outbox.blocked_channel))
            return self._read_ahead() or progressed
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
        return self._status(
            self.output, rows_in=self._rows_in, rows_out=self._outbox.rows_out, bytes_in=self._bytes_in,
            bytes_out=self._outbox.bytes_out, processed_version=self._version,
            wal_version=self._wal.acknowledged_version, watermark=self._watermark(), max_event_time=self._max_ts,
            idle=self._idle, late_rows=self._late_rows,
            history=None if self._history is None else self._history.progress())

    # -- reading ---------------------------------------------------------------------------------------------

    def _handle(self, event: TaskEvent) -> None:
        if isinstance(event, Recalculate):
            self._ranges.add(event.first_ts, event.last_ts)
        else:
            super()._handle(event)

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
            judged = never_late(rows, self._source.time_column)
            self._emit(judged, (), history.as_of, history.as_of)
            self._advance(judged.newest)
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
        judged = judge(rows, self._plan, self._max_ts) if rows else None
        if judged is not None:
            self._rows_in += len(judged.ts)
        self._emit(judged, deletes, before=records[0].version - 1, after=records[-1].version)
        if judged is not None:
            self._advance(judged.newest)

    def _advance(self, newest: int) -> None:
        """Takes note of the greatest event time of rows that were sent."""
        self._idle = False
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
            partials, late_rows = self._windower.process(judged, deletes, (before, after), newest, replayed=replayed)
            self._late_rows += late_rows
            if partials is not None:
                self._send(REPLAYED if replayed else ADD, partials)
            return
        added: list[pa.RecordBatch] = []
        expired: Bools | None = None
        if judged is not None and self._source.late_sql is not None and may_be_late(judged):
            added, expired = self._first_stage.compute_timely(judged)
            self._note_late(judged, expired)
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

    def _note_late(self, judged: Judged, expired: Bools) -> None:
        """Counts the rows that are expired for all their windows."""
        rows = np.flatnonzero(expired)
        self._late_rows += len(rows)
        newest = rows[-LATE_KEPT:]
        tuids = judged.rows.column("_tuid").take(pa.array(newest)).to_pylist()
        self.late_sample.extend(zip(tuids, judged.ts[newest].tolist(), strict=True))

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

    def _state(self) -> Mapping[str, Any]:
        if self._windower is not None:
            self._windower.save()
        return {"version": self._version, "max_ts": self._max_ts, "idle": self._idle, "late_rows": self._late_rows,
                "unseen": self._unseen, "history": None if self._history is None else self._history.save(),
                "ranges": self._ranges.save()}

    def _needed_version(self) -> int:
        """Returns the version that WAL and store must still be readable from for a restart from now."""
        if self._history is None or self._history.done:
            return self._version
        return min(self._version, self._history.as_of)
