"""The source task: follows one vnode's WAL, judges rows by time, and makes partials (or results) of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.errors import InvalidValueError
from penstock.planner.duckdb_sql.interval_windows import end_of
from penstock.sql.types import UNITS_PER_SECOND
from penstock.tasks.compute.first_stage import FirstStage
from penstock.tasks.compute.lateness import (
    NEVER,
    ClassifiedRows,
    classify,
    late_rows,
    may_be_late,
    never_late,
    source_rows,
    updated,
)
from penstock.tasks.compute.quarantine import Quarantine, TableTimes, keys_of
from penstock.tasks.flow.outbox import Outbox
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.flow.token_bucket import TokenBucket, burst
from penstock.tasks.operators.base_task import ROWS_TOTAL, BaseSourceTask
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.block_schema import (
    ADD,
    GROUP,
    REPLACE,
    REPLAYED,
    ROWS,
    WINDOW_START,
    block_schema,
    with_operation,
)
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import (
    Block,
    DeadRow,
    DroppedRow,
    Reason,
    Recalculate,
    Replay,
    Retract,
    RetractEnd,
    RowKey,
    TaskEvent,
    TaskId,
    TaskStatus,
    UseConnection,
    Watermark,
)
from penstock.tasks.source.dead_letter_writer import DeadLetters, dead_from_json, dead_rows, dead_to_json, retried
from penstock.tasks.source.history_reader import HistoryReader
from penstock.tasks.source.lookup_copy import LookupCopy
from penstock.tasks.source.range_recalculation import Piece, RangeRecalculation, within
from penstock.tasks.source.recalculation import Change, Recalculation
from penstock.tasks.source.record_runs import runs
from penstock.tasks.source.row_windower import TimeRange, Windower
from penstock.tasks.source.time_ledger import TimeLedger, dropped_rows
from penstock.tasks.source.uncomputable_rows import failing_rows, without_dropped
from penstock.tasks.source.writer_times import WriterTimes
from penstock.vnode.read.snapshot import TimeSpan
from penstock.wal.record import DeleteRecord, MetaRecord, Record, RowsRecord, TimeMarkRecord

_RESERVED_VERSIONS = 10_000
_ROWS_AT_ONCE_S = 0.1
"""So many seconds' worth of rows may pass at once under a rate limit."""
_UNKNOWN_VERSION = 0  # that of the record of a row that is read back
_TOO_NEW = "is too far in the future"
_NO_DATA = pa.record_batch([pa.array([], pa.uint8())], names=["_"])


def inherited(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the checkpoint of a source task for one that takes over part of its tables: it has counted nothing."""
    counts = {"ledger": TimeLedger().counts()} if "ledger" in meta else {}
    return {**meta, **counts, ROWS_TOTAL: 0}


def is_reading_back(meta: Mapping[str, Any]) -> bool:
    """Tells of a source task's checkpoint whether history, or a range, is still to be read for it."""
    history = meta.get("history")
    return bool(meta.get("ranges")) or (history is not None and not history["done"])


@dataclass(frozen=True, slots=True)
class WalBlock(Block):
    """Consecutive WAL records, as the input queue of a source task holds them; `data` is not used."""

    records: tuple[Record, ...] = ()


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
        # The block that was taken last: what of it is still to be processed, in parts that may pass at once.
        self._parts: deque[tuple[Record, ...]] = deque()
        now, live, old = self._clock.monotonic(), settings.source_rows_per_second, settings.history_rows_per_second
        self._live_rows = TokenBucket(live, burst(live, _ROWS_AT_ONCE_S), now)
        self._old_rows = TokenBucket(old, burst(old, _ROWS_AT_ONCE_S), now)
        self._allowed_at: float | None = None
        self._max_ts: int | None = None
        self._idle, self._quiet_s = False, 0.0
        self._idle_since_ms = self._clock.now_ms()
        self._sent_watermark: Watermark | None = None
        self._quiet_since = self._clock.monotonic()
        self._ledger = TimeLedger()
        self._table_times = TableTimes()
        timeout_ms = plan.policies.time.writer_timeout_ms
        self._writers = None if timeout_ms is None else WriterTimes(
            timeout_ms, UNITS_PER_SECOND[plan.source.precision] // 1_000)
        # Rows of the DLQ that are tried once more, and the records that are processed now.
        self._retries: dict[RowKey, DeadRow] = {}
        self._block: Sequence[RowsRecord] = ()
        # While rows that are read back are tried as well: the keys that the block writes, else None.
        self._rewritten: frozenset[RowKey] | None = None
        self._bytes_in = 0
        self._history = None if plan.source.history is None else HistoryReader(
            plan.source.history, self._version, self._rows_of_piece, self._time_span, self._read_range, self._clock)
        self._ranges = RangeRecalculation(plan.time_windows, self._rows_of_piece, self._time_span, self._read_piece)
        self._live_had_its_turn = False
        self._grid = None if plan.time_windows is None else plan.time_windows.grid
        self._unseen: list[tuple[int, int]] = [(0, self._version)] if plan.source.history is None else []
        meta = self._restore_store(deployment.checkpoint_id)
        if meta is not None:
            self._restore(meta)
        self._quarantine = Quarantine(self._store, plan.source)
        looks_up = plan.source.lookup
        self._lookup = None if looks_up is None else LookupCopy(
            looks_up, deployment.lookup_connection, environment.read_lookup, environment.in_background,
            settings.lookup_freshness_s, self._clock, environment.wake)
        self._dead = self._open_dead_letters(deployment)
        self._open_wal()
        self._schema = block_schema(plan)
        self._first_stage = FirstStage(plan, self._schema, self._computer, self._children)
        self._recalculation = Recalculation(plan, self._first_stage, self._schema, self._read_rows)
        self._windower: Windower | None = None
        self._reserved = 0
        # Up to here an earlier attempt may have come; without its store, no one knows how far it did.
        self._replayed_until = 0
        if deployment.attempt > 1:
            reserved = self._store.reserved
            self._replayed_until = self._wal.acknowledged_version if reserved is None else reserved
        if plan.row_window is not None:
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
        self._allowed_at = None
        if not self._outbox.flush():
            self._enter_blocked(self._outbox)
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
        if self._lookup is not None:
            progressed |= self._read_ahead()
            if self._has_work and not self._may_look_up(self._lookup):
                return progressed
            if self._lookup.outage is not None:
                self._lookup.current()  # also without rows: that the server is well again is to be seen
        if self._history is not None and not self._history.done:
            return self._read_history(self._history) if self._old_rows_may_pass() else progressed
        if self._ranges.pending and self._live_had_its_turn and self._old_rows_may_pass():
            return self._recalculate_piece()
        self._live_had_its_turn = True
        read = self._read_ahead()
        part = self._next_part()
        if part:
            self._tracker.enter("RUNNING")
            for run in runs(part, self._plan, self._max_ts):
                self._process(run)
            self._version = part[-1].version
            self._quiet_since = self._clock.monotonic()
            self._outbox.flush()
            return True
        if self._ranges.pending and self._old_rows_may_pass():
            return self._recalculate_piece()
        if self._rate_limited:
            return read or progressed
        if not read and not progressed:
            progressed = self._become_idle()
            self._tracker.enter("IDLE", "caught up with the end of the WAL")
        return read or progressed

    @property
    def _has_work(self) -> bool:
        """Whether there are rows to be computed, from the log or read back."""
        history = self._history is not None and not self._history.done
        return history or bool(self._ranges.pending or self._parts or self.input.used_bytes)

    def _may_look_up(self, lookup: LookupCopy) -> bool:
        """Takes the copy of what rows look up in; returns whether it is fresh enough."""
        table = lookup.current()
        if table is not None:
            self._first_stage.look_up_in(table)
            return True
        if lookup.outage is not None:
            self._tracker.enter("RETRYING", str(lookup.outage))
        else:
            self._tracker.enter("IDLE", f"waits for the rows of {lookup.text}")
        return False

    def next_deadline(self) -> float | None:
        if self._paused or self._outbox.blocked_channel is not None:
            return None
        due = self._due_by_clock() if self._allowed_at is None else self._allowed_at
        if self._lookup is None or self._lookup.next_try is None:
            return due
        return self._lookup.next_try if due is None else min(due, self._lookup.next_try)

    def _due_by_clock(self) -> float | None:
        """Returns when the clock alone gives the task something to do, or None."""
        if not self._plan.keeps_time:
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
            wal_version=self._wal.acknowledged_version, wal_access=self._wal.access,
            watermark=self._watermark(), max_event_time=self._max_ts,
            upper_bound=self._max_ts if self._writers is None else self._writers.upper,
            idle=self._idle, idle_since_ms=self._idle_since_ms if self._idle else None,
            late_rows=self._ledger.count("late"), future_rows=self._ledger.count("future"),
            error_rows=self._ledger.count("error"), late_kept=((self.id.index, self._ledger.late_kept),),
            lateness=self._ledger.lateness(), dropped=self._ledger.sample,
            history=None if self._history is None else self._history.progress(), **self._lookup_status())

    def _lookup_status(self) -> dict[str, Any]:
        lookup = self._lookup
        if lookup is None:
            return {}
        return {"table_bytes": lookup.memory_bytes, "health": lookup.health}

    # -- rates -----------------------------------------------------------------------------------------------

    def _apply_rates(self) -> None:
        now, live, old = (self._clock.monotonic(), self._settings.source_rows_per_second,
                          self._settings.history_rows_per_second)
        self._live_rows.change(live, burst(live, _ROWS_AT_ONCE_S), now)
        self._old_rows.change(old, burst(old, _ROWS_AT_ONCE_S), now)
        self._parts = self._parts_of([record for part in self._parts for record in part])

    def _next_part(self) -> tuple[Record, ...]:
        """Returns the records to process next; none if there are none, or if the rate limit doesn't let them pass."""
        if not self._parts:
            item = self.input.take(self.id)
            if not isinstance(item, WalBlock):
                return ()
            self._parts = self._parts_of(item.records)
        rows, now = sum(map(self._rows_of, self._parts[0])), self._clock.monotonic()
        if not self._live_rows.try_take(rows, now):
            self._wait_until(self._live_rows.available_at(rows, now),
                             f"its rate limit of {self._settings.source_rows_per_second:.12g} rows/s")
            return ()
        return self._parts.popleft()

    def _parts_of(self, records: Sequence[Record]) -> deque[tuple[Record, ...]]:
        """Cuts a block's records into parts of as many rows as may pass at once, or of one record with more."""
        if self._live_rows.unlimited:
            return deque([tuple(records)] if records else ())
        parts: deque[tuple[Record, ...]] = deque()
        part: list[Record] = []
        rows, most = 0, burst(self._settings.source_rows_per_second, _ROWS_AT_ONCE_S)
        for record in records:
            size = self._rows_of(record)
            if part and rows + size > most:
                parts.append(tuple(part))
                part, rows = [], 0
            part.append(record)
            rows += size
        if part:
            parts.append(tuple(part))
        return parts

    def _rows_of(self, record: Record) -> int:
        """Returns how many rows of the stream's own source a record has."""
        if isinstance(record, RowsRecord) and record.table_uid == self._source.storage_uid:
            return int(record.batch.num_rows)
        return 0

    def _rows_of_piece(self) -> int:
        """Returns about how many rows from the store are read at once."""
        rate = self._settings.history_rows_per_second
        most = self._settings.block_rows_max
        return most if rate == 0 else min(most, int(burst(rate, _ROWS_AT_ONCE_S)))

    def _old_rows_may_pass(self) -> bool:
        """Whether the next piece may be read from the store. How many rows it has is known, and counts, afterwards."""
        now = self._clock.monotonic()
        at = self._old_rows.available_at(1, now)
        if at > now:
            self._wait_until(at, f"its history rate limit of {self._settings.history_rows_per_second:.12g} rows/s")
        return at <= now

    @property
    def _rate_limited(self) -> bool:
        return self._allowed_at is not None

    def _wait_until(self, at: float, limit: str) -> None:
        self._allowed_at = at if self._allowed_at is None else min(at, self._allowed_at)
        self._tracker.enter("RATE_LIMITED", limit)

    # -- reading ---------------------------------------------------------------------------------------------

    def _handle(self, event: TaskEvent) -> None:
        if isinstance(event, Recalculate):
            self._ranges.add(event.first_ts, event.last_ts)
        elif isinstance(event, Replay):
            self._replay(event)
        elif isinstance(event, UseConnection):
            if self._lookup is not None:
                self._lookup.use(event.connection)
        else:
            super()._handle(event)

    def _replay(self, order: Replay) -> None:
        """Orders the windows of rows that were left out to be computed with those of them that can be computed.

        INTERVAL windows of other vnodes' rows are computed too: the agg task may have forgotten what they hold of ours.
        """
        own = [row for vgroup_id, row in order.rows if vgroup_id == self._vgroup_id]
        self._retries.update((row.row.row_key, row) for row in own)
        rows = own if self._grid is None or self._plan.grouping.colocated else [row for _, row in order.rows]
        self._ranges.add_retries(sorted({row.row.ts for row in rows}))

    def _skip_to_end(self) -> None:
        while self.input.take(self.id) is not None:
            continue
        self._read = None
        self._parts.clear()
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
            self._read = WalBlock(_NO_DATA, size, tuple(records))
            self._bytes_in += size
        if self._read.nbytes > self.input.share_bytes:
            # Rows stay where the WAL is mapped: one record that is larger than the queue costs no memory here.
            self._read = replace(self._read, nbytes=self.input.share_bytes)
        if not self.input.try_put(self.id, self._read):
            return False
        self._read = None
        return True

    def _read_history(self, history: HistoryReader) -> bool:
        """Processes the next rows from before the stream; they are never late."""
        self._tracker.enter("RUNNING", "reads the history of its vnode")
        rows = history.read()
        if rows is not None and rows.num_rows:
            self._old_rows.take(rows.num_rows, self._clock.monotonic())
            self._first_stage.note_children()
            self._rows_in += rows.num_rows
            self._bytes_in += rows.nbytes
            self._emit_history(rows, history.as_of)
        self._quiet_since = self._clock.monotonic()
        self._outbox.flush()
        return True

    def _emit_history(self, rows: pa.Table, as_of: int) -> None:
        """Sends rows from before the stream; what is in the future of its creation isn't taken for time."""
        time_plan = self._plan.policies.time
        self._block = ()
        classified = never_late(rows, self._plan, as_of)
        if time_plan.max_future is not None and classified.ts[-1] > time_plan.created + time_plan.max_future:
            bound = time_plan.created + time_plan.max_future
            first = int(np.searchsorted(classified.ts, bound, side="right"))
            ahead = dropped_rows(classified, range(first, len(classified.ts)), "future", self._plan, len(classified.ts))
            self._drop("future", [replace(row, lateness=bound - row.ts) for row in ahead], _TOO_NEW)
            self._table_times.watch({row.tuid for row in ahead}, classified.rows.column("_tuid").to_numpy()[:first],
                                    classified.ts[:first])
            classified = never_late(classified.rows.slice(0, first), self._plan, as_of)
        if len(classified.ts):
            self._emit_computable(classified, (), as_of, as_of)
            self._advance(classified.newest)

    # -- rows that are left out --------------------------------------------------------------------------------

    def _drop(self, reason: Reason, rows: Sequence[DroppedRow], message: str) -> None:
        """Counts rows that can't be used, and keeps them out of what is read back from the store."""
        self._quarantine.add((row.row_key, row.version) for row in rows)
        self._report(reason, rows, message)

    def _report(self, reason: Reason, rows: Sequence[DroppedRow], message: str) -> None:
        """Counts rows that can't be used, and hands them to the DLQ, if that is for them."""
        self._ledger.drop(reason, rows)
        if self._plan.dlq is not None and self._plan.dlq.errors:
            self._dead_letter(rows, message)

    def _dead_letter(self, rows: Sequence[DroppedRow], message: str) -> None:
        """Hands rows to the DLQ; of those that are read back only the key is known there."""
        assert self._dead is not None
        assert self._plan.dlq is not None
        new = {record.version for record in self._block}
        again = {key: self._retries.pop(key) for row in rows
                 if row.version not in new and (key := row.row_key) in self._retries}
        fresh = [row for row in rows if row.row_key not in again]
        names = self._children.names()
        self._dead.add([*(retried(row, message) for row in again.values()),
                        *dead_rows(fresh, self._block, self._plan, names, message)])

    def _emit_computable(
        self, classified: ClassifiedRows | None, deletes: Sequence[DeleteRecord], before: int, after: int
    ) -> None:
        """Sends what a block changes, without rows that can't be computed if the stream's ON_ERROR says so."""
        failing: dict[int, str] = {}
        if self._plan.policies.leaves_out_errors:
            if self._emitted_whole(classified, deletes, before, after):
                return
            # Rows that are read back may have come before the stream: nobody has tried them.
            self._rewritten = frozenset(() if classified is None else keys_of(classified.rows, self._source))
            failing = {} if classified is None else failing_rows(classified.rows, self._error_of)
        self._emit_without(failing, classified, deletes, before, after)
        self._rewritten = None

    def _emitted_whole(
        self, classified: ClassifiedRows | None, deletes: Sequence[DeleteRecord], before: int, after: int
    ) -> bool:
        """Sends what a block changes if all of its rows can be computed; returns whether it did.

        Rows in windows that rows define are tried first, since a failure would leave their state half changed, and an
        EVENT window may not come to compute a row. So are rows that may be late: such a row is an error first.
        """
        if classified is not None:
            first = classified.rows if self._windower is not None else late_rows(classified)
            if self._error_of(first) is not None:
                return False
        try:
            self._emit_without({}, classified, deletes, before, after)
        except InvalidValueError:
            if self._windower is not None:
                raise
            return False
        return True

    def _emit_without(
        self, failing: Mapping[int, str], classified: ClassifiedRows | None, deletes: Sequence[DeleteRecord],
        before: int, after: int
    ) -> None:
        """Sends what a block changes without its `failing` rows, and what they make void."""
        if classified is not None and (failing or self._quarantine):
            for message in dict.fromkeys(failing.values()):
                rows = [row for row, text in failing.items() if text == message]
                self._report("error", dropped_rows(classified, rows, "error", self._plan, len(rows)), message)
            filtered = without_dropped(classified, failing, self._quarantine.holds(classified.rows), self._source,
                          counts_updates=self._plan.counts_updates)
            self._quarantine.add(filtered.out.items())
            self._quarantine.release(filtered.back, after)
            classified, deletes = filtered.classified, [*deletes, *filtered.voided]
        if classified is not None or deletes:
            self._emit(classified, deletes, before, after)

    def _error_of(self, rows: pa.Table) -> str | None:
        """Returns why rows can't be computed, None if they can."""
        self._functions.failure = None
        try:
            self._first_stage.attempt(rows)
        except InvalidValueError as error:
            return str(self._functions.failure or error)
        finally:
            self._functions.failure = None
        return None

    def _computable(self, rows: pa.Table, rewritten: frozenset[RowKey] = frozenset()) -> pa.Table:
        """Returns stored rows without those that can't be computed, which are left out as those of the WAL are.

        What stands for `rewritten` keys is over with the block.
        """
        failing = failing_rows(rows, self._error_of)
        numbers = np.array(list(failing), np.int64)
        lasting = [row for row, key in zip(failing, keys_of(rows.take(numbers), self._source), strict=True)
                   if key not in rewritten]
        for message in dict.fromkeys(failing[row] for row in lasting):
            found = rows.take([row for row in lasting if failing[row] == message])
            dropped = dropped_rows(never_late(found, self._plan, _UNKNOWN_VERSION), range(found.num_rows), "error",
                                     self._plan, found.num_rows)
            self._drop("error", dropped, message)
        kept = np.ones(rows.num_rows, bool)
        kept[list(failing)] = False
        return rows.filter(pa.array(kept))

    def _recalculate_piece(self) -> bool:
        """Computes the next piece of a range again that RECALCULATE STREAM named."""
        self._live_had_its_turn = False
        self._tracker.enter("RUNNING", "recalculates a range of time")
        self._block = ()
        piece = self._ranges.next(self._version, self._max_ts)
        if piece is not None:
            self._old_rows.take(piece.rows.num_rows, self._clock.monotonic())
            self._send_piece(piece)
            self._outbox.flush()
        if not self._ranges.pending:
            self._retries = {}
        return True

    def _send_piece(self, piece: Piece) -> None:
        rows, readmitted = self._retried(piece.rows)
        if self._windower is not None:
            self._first_stage.note_children()
            replayed = self._replayed_until > 0
            late: list[TimeRange] = [(None, piece.first, piece.last)] if not piece.retries else [
                ((tuid,), ts, ts) for tuid, ts, _ in self._retries if piece.first <= ts <= piece.last]
            partials = self._windower.recalculate(
                rows, late, lambda: self._quarantine.forget(readmitted), self._version, self._max_ts,
                replayed=replayed)
            if partials is not None:
                self._send(REPLAYED if replayed else ADD, partials)
            return
        self._quarantine.forget(readmitted)
        fresh = self._recomputed(rows)
        if not self._plan.sends_partials:
            self._send(ADD, fresh)
        else:
            self._outbox.signal(Retract(piece.first, piece.last))
            self._send(ADD, within(fresh, piece))
            self._outbox.signal(RetractEnd())

    def _retried(self, rows: pa.Table) -> tuple[pa.Table, list[RowKey]]:
        """Returns a piece's rows without those that were tried once more in vain, and the keys of the others tried."""
        held = self._quarantine.holds(rows)
        if not held.any():
            return rows, []
        tried = rows.filter(pa.array(held))
        if self._plan.policies.leaves_out_errors:
            tried = self._computable(tried)
        return pa.concat_tables([rows.filter(pa.array(~held)), tried]), keys_of(tried, self._source)

    def _recomputed(self, rows: pa.Table) -> pa.RecordBatch:
        """Returns what stored rows yield, but for those that can't be computed."""
        try:
            return self._first_stage.compute(rows)
        except InvalidValueError:
            if not self._plan.policies.leaves_out_errors:
                raise
            return self._first_stage.compute(self._computable(rows))

    @property
    def _idle_timeout_s(self) -> float:
        own = self._plan.policies.time.idle_timeout_s
        return self._settings.idle_timeout_s if own is None else own

    def _become_idle(self) -> bool:
        if self._writers is not None:
            self._writers.advance_by_clock(self._clock.now_ms())
            if self._send_watermark():
                return self._outbox.flush()
        if self._idle or not self._plan.keeps_time:
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
        self._first_stage.note_children()
        self._block = rows
        classified, future = classify(rows, self._plan, self._max_ts, self._table_times,
                               noted if self._writers is not None else None) if rows else (None, [])
        if future:
            self._drop("future", future, _TOO_NEW)
            self._rows_in += len(future)
        if classified is not None:
            self._rows_in += len(classified.ts)
            self._ledger.note(classified, self._plan.policies.closing_delay)
        if classified is None and not deletes:
            self._send_watermark()
            return
        self._quarantine.release_deleted(deletes)
        self._emit_computable(classified, deletes, before=records[0].version - 1, after=records[-1].version)
        self._quarantine.settle()
        if classified is not None:
            self._advance(classified.newest)

    def _advance(self, newest: int) -> None:
        """Takes note of the greatest event time of rows that were sent."""
        self._idle, self._quiet_s = False, 0.0
        self._max_ts = newest if self._max_ts is None else max(newest, self._max_ts)
        self._send_watermark()

    def _emit(
        self, classified: ClassifiedRows | None, deletes: Sequence[DeleteRecord], before: int, after: int
    ) -> None:
        """Sends what a block of rows and deletes changes: additions, and recalculated parts in their place.

        With IGNORE EXPIRED 1 windows older than DELETE_MARK, which agg tasks may have forgotten, are left as they are.

        `before` and `after` are the WAL versions between which the block lies.
        """
        if self._windower is not None:
            newest = self._max_ts if classified is None else max(
                classified.newest, NEVER if self._max_ts is None else self._max_ts)
            replayed = before < self._replayed_until
            if after > self._reserved:
                self._reserved = self._store.reserve(after + _RESERVED_VERSIONS)
            cut = self._windower.process(classified, deletes, (before, after), newest, replayed=replayed)
            self._ledger.late_kept += cut.late_kept
            if classified is not None and len(cut.late):
                self._count_late(classified, cut.late)
            if cut.partials is not None:
                self._send(REPLAYED if replayed else ADD, cut.partials)
            return
        added: list[pa.RecordBatch] = []
        expired: npt.NDArray[np.int64] | None = None
        if classified is not None and self._source.late_sql is not None and may_be_late(classified):
            added, expired = self._first_stage.compute_timely(classified)
        elif classified is not None:
            added = [self._first_stage.compute(classified.rows)]
        rewritten = updated(classified, expired) if classified is not None and self._plan.counts_updates else None
        rest: Sequence[pa.RecordBatch] = added
        replaced: Sequence[pa.RecordBatch] = []
        if rewritten is not None or deletes:
            rows = None if classified is None else classified.rows
            change = Change(rows, rewritten, tuple(deletes), before, after)
            if not self._plan.sends_partials:
                for operation, batch in self._recalculation.rows(change, added[0] if added else None):
                    self._send(operation, batch)
                return
            rest, replaced = self._recalculation.windows(change, added)
        # Nothing is said or counted before all is computed: rows that can't be would be tried without others once more.
        if classified is not None and expired is not None:
            self._count_late(classified, expired)
        for batch in rest:
            self._send(ADD, self._remembered(batch))
        for batch in replaced:
            self._send(REPLACE, self._remembered(batch, added=False))

    def _remembered(self, partials: pa.RecordBatch, *, added: bool = True) -> pa.RecordBatch:
        """Returns the partials; with IGNORE EXPIRED 1 without those of windows that DELETE_MARK lets agg tasks forget.

        Rows that would have been `added` to them are late. Where they count, agg tasks ask for what they forgot.
        """
        if self._grid is None or self._max_ts is None or partials.num_rows == 0 or self._plan.recalls:
            return partials
        limit = self._max_ts - self._plan.policies.delete_mark
        if partials.column(WINDOW_START.name).to_numpy().min() > limit:
            return partials
        grid = self._grid
        kept = [end_of(start, grid) > limit for start in partials.column(WINDOW_START.name).to_pylist()]
        if added:
            self._ledger.drop("late", (), sum(
                rows for rows, keep in zip(partials.column(ROWS.name).to_pylist(), kept, strict=True) if not keep))
        return partials.filter(pa.array(kept, pa.bool_()))

    def _count_late(self, classified: ClassifiedRows, rows: npt.NDArray[np.int64]) -> None:
        kept = dropped_rows(classified, rows.tolist(), "late", self._plan)
        self._ledger.drop("late", kept, len(rows) - len(kept))
        if self._plan.dlq is not None and self._plan.dlq.late:
            self._dead_letter(dropped_rows(classified, rows.tolist(), "late", self._plan, len(rows)),
                       "came too late: all its windows were closed")

    def _read_rows(self, tuids: pa.Array | None, first_ts: int, last_ts: int, as_of: int) -> pa.Table:
        """Returns rows of the vnode's store as the relation `rows`, without those that are left out for good."""
        rows = self._stored(tuids, first_ts, last_ts, as_of)
        held = self._quarantine.holds(rows, as_of)
        rows = rows.filter(pa.array(~held)) if held.any() else rows
        return rows if self._rewritten is None else self._computable(rows, self._rewritten)

    def _stored(self, tuids: pa.Array | None, first_ts: int, last_ts: int, as_of: int) -> pa.Table:
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

    def _read_piece(self, first_ts: int, last_ts: int, as_of: int) -> pa.Table:
        """Returns what `_read_rows` does, and those rows that are to be tried once more."""
        rows = self._stored(None, first_ts, last_ts, as_of)
        held = self._quarantine.holds(rows, as_of)
        places = np.flatnonzero(held)
        for place, key in zip(places.tolist(), keys_of(rows.take(places), self._source), strict=True):
            held[place] = key not in self._retries
        return rows.filter(pa.array(~held)) if held.any() else rows

    def _read_range(self, first_ts: int, last_ts: int, as_of: int) -> pa.Table:
        return self._read_rows(None, first_ts, last_ts, as_of)

    def _time_span(self, first_ts: int, last_ts: int, as_of: int) -> TimeSpan | None:
        return self._environment.time_span(self._vgroup_id, self._source.storage_uid, first_ts, last_ts, as_of)

    def contributions(self, windows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Returns what the stored rows of its vnode come to in some (group, window)s: what it should have sent.

        `windows`: one partial of each, sorted by start. For windows on a grid, while the task rests.
        """
        self._first_stage.note_children()
        return self._recalculation.contributions(windows, self._version)

    # -- sending ---------------------------------------------------------------------------------------------

    def _send(self, operation: int, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if not self._plan.sends_partials:
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
        return None if self._max_ts is None else self._max_ts - self._plan.policies.watermark

    def _send_watermark(self) -> bool:
        """Tells downstream what time it is, if that is news; returns whether it was."""
        if not self._plan.keeps_time:
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
                "retried": [dead_to_json(row) for row in self._retries.values()]}

    def _restore(self, meta: Mapping[str, Any]) -> None:
        self._unseen = [(first, last) for first, last in meta["unseen"]]
        self._version, self._max_ts = meta["version"], meta["max_ts"]
        self._idle = meta["idle"]
        if "ledger" in meta:  # checkpoints of older versions have none
            self._ledger.restore(meta["ledger"], self._store)
            self._table_times.restore(meta["table_times"])
        if self._writers is not None:
            self._writers.restore(meta["writers"])
        retries = [dead_from_json(row) for row in meta.get("retried", ())]  # checkpoints of older versions have none
        self._retries = {row.row.row_key: row for row in retries}
        self._ranges.restore(meta["ranges"])
        if self._history is not None:
            self._history.restore(meta["history"])

    def _needed_version(self) -> int:
        """Returns the version that WAL and store must still be readable from for a restart from now."""
        if self._history is None or self._history.done:
            return self._version
        return min(self._version, self._history.as_of)
