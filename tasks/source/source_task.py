"""The source task: follows one vnode's WAL, classifies rows by time, and makes partials (or results) of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.tasks.compute.child_tables import MOVES, moves_tables
from penstock.tasks.compute.first_stage import FirstStage
from penstock.tasks.compute.lateness import NEVER, UPDATED, ClassifiedRows, classify, never_late, what_is_read
from penstock.tasks.compute.quarantine import TableTimes
from penstock.tasks.dropped.computable_rows import ComputableRows
from penstock.tasks.dropped.dead_letter_writer import DeadLetters
from penstock.tasks.dropped.dropped_rows import DroppedRows
from penstock.tasks.dropped.time_leader import TimeLeader
from penstock.tasks.dropped.time_ledger import TimeLedger, dropped_rows
from penstock.tasks.operators.base_task import ROWS_TOTAL
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.block_schema import block_schema
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import Recalculate, Replay, TaskEvent, TaskId, UseConnection
from penstock.tasks.protocol.task_status import ConnectionStatus, TaskProgress, TaskStatus
from penstock.tasks.recalculation.history_reader import HistoryReader
from penstock.tasks.recalculation.range_recalculation import RangeRecalculation
from penstock.tasks.recalculation.recent_rows import RecentRows
from penstock.tasks.recalculation.stored_rows import StoredRows
from penstock.tasks.source.base_source_task import BaseSourceTask
from penstock.tasks.source.change_emitter import ChangeEmitter
from penstock.tasks.source.log_input import LogInput
from penstock.tasks.source.lookup_copy import LookupCopy
from penstock.tasks.source.record_runs import runs
from penstock.tasks.source.source_rates import SourceRates
from penstock.tasks.source.source_time import SourceTime
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN
from penstock.wal.record import (
    AnyDelete,
    DeletePointsRecord,
    DeleteRecord,
    MetaRecord,
    Record,
    RowsRecord,
    TimeMarkRecord,
)

_TOO_NEW = "is too far in the future"
_RECENT_PART = 4
"""Rows that may be rewritten take this part of what a queue may hold at most."""


def inherited(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the checkpoint of a source task for one that takes over part of its tables: it has counted nothing."""
    return {**meta, "ledger": TimeLedger().counts(), "leader": TimeLeader.inherited(meta.get("leader")), ROWS_TOTAL: 0}


class SourceTask(BaseSourceTask):
    """One vnode's source task. Its input queue holds WAL blocks read ahead; its output goes to agg or sink tasks.

    It reads its vnode's history first, then follows the log; ranges that are to be recalculated take turns with that.
    """

    def __init__(
        self, deployment: StreamDeployment, index: int, downstream: Sequence[TaskId], environment: TaskEnvironment
    ) -> None:
        super().__init__(deployment, index, downstream, environment)
        plan, settings, start_version = deployment.plan, deployment.settings, self._version
        self._rates = SourceRates(settings, self._clock, self._tracker)
        self._log = LogInput(self.input, self.id, self._source.storage_uid, settings, self._rates)
        self._time = SourceTime(plan, settings.idle_timeout_s, self._clock, self._outbox)
        self._table_times = TableTimes()
        self._reads = what_is_read(self._source)
        self._history_bytes = 0
        self._live_had_its_turn = False
        #: the greatest time of rows that were stored without the task reading them then; None: nobody has looked
        self._newest_before: int | None = None
        meta = self._restore_store(deployment.checkpoint_id)
        self._dead_letters = self._open_dead_letters(deployment)
        self._dropped = DroppedRows(plan, self._store, self._children, self._dead_letters)
        self._first_stage = FirstStage(plan, block_schema(plan), self._computer, self._children)
        computable = ComputableRows(plan, self._first_stage, self._functions, self._dropped)
        self._recent = RecentRows(settings.queue_bytes // _RECENT_PART)
        self._stored = StoredRows(plan, environment, self._vgroup_id, computable, start_version, self._recent)
        self._history = None if plan.source.history is None else HistoryReader(
            plan.source.history, start_version, self._rates.old_rows_at_once, self._stored.time_span,
            self._stored.read_range, self._clock)
        self._ranges = RangeRecalculation(plan.time_windows, self._rates.old_rows_at_once, self._stored.time_span,
                                          self._stored.read_piece)
        looks_up = plan.source.lookup
        self._lookup = None if looks_up is None else LookupCopy(
            looks_up, deployment.lookup_connection, environment.read_lookup, environment.in_background,
            settings.lookup_freshness_s, self._clock, environment.wake)
        if meta is not None:
            self._restore(meta)
        self._keeps_recent = plan.counts_updates and plan.row_window is None and self._source.key_column is None
        if self._keeps_recent and self._newest_before is None:
            self._look_for_newest()
        self._open_wal()
        if self._source.needs_children:
            self._children.go_back([record.body for record in self._wal.told(MOVES)])
        self._emitter = self._new_emitter(computable)
        if deployment.attempt > 1:
            # Without the earlier attempt's store, no one knows how far it came.
            reserved = self._store.reserved
            self._emitter.replayed_until = self._wal.acknowledged_version if reserved is None else reserved

    def _new_emitter(self, computable: ComputableRows) -> ChangeEmitter:
        return ChangeEmitter(self._plan, self._outbox, self._first_stage, computable, self._stored, self._time,
                             self._store)

    def _open_dead_letters(self, deployment: StreamDeployment) -> DeadLetters | None:
        if self._plan.dlq is None:
            return None
        return DeadLetters(self._plan.dlq, deployment.stream_id, deployment.name, deployment.attempt, self.id,
                           self._vgroup_id, self._source.precision, self._environment.result_writer(self.id))

    # -- what the runtime calls ------------------------------------------------------------------------------

    def step(self) -> bool:
        self._rates.allowed_at = None
        return super().step()

    def _work(self, progressed: bool) -> bool:
        if self._lookup is not None:
            progressed |= self._read_ahead()
            if self._has_work and not self._may_look_up(self._lookup):
                return progressed
            if self._lookup.outage is not None:
                self._lookup.current()  # also without rows: that the server is well again is to be seen
        if self._history is not None and not self._history.done:
            return self._read_history(self._history) if self._rates.old_rows_may_pass() else progressed
        if self._ranges.pending and self._live_had_its_turn and self._rates.old_rows_may_pass():
            return self._recalculate_piece()
        return self._follow_log(progressed)

    def _follow_log(self, progressed: bool) -> bool:
        """Processes the next records; where there are none, recalculates, or lets the clock do its part."""
        self._live_had_its_turn = True
        read = self._read_ahead()
        part = self._log.next_part()
        if part:
            self._tracker.enter("RUNNING")
            for run in runs(part, self._plan, self._time.newest):
                self._process(run)
            self._version = part[-1].version
            self._time.note_work()
            self._outbox.flush()
            return True
        if self._ranges.pending and self._rates.old_rows_may_pass():
            return self._recalculate_piece()
        if self._rates.allowed_at is not None:
            return read or progressed
        if not read and not progressed:
            progressed = self._become_idle()
            self._tracker.enter("IDLE", "caught up with the end of the WAL")
        return read or progressed

    @property
    def _has_work(self) -> bool:
        """Whether there are rows to be computed, from the log or read back."""
        history = self._history is not None and not self._history.done
        return history or self._ranges.pending or self._log.pending

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

    def _due(self) -> float | None:
        allowed_at = self._rates.allowed_at
        due = self._due_by_clock() if allowed_at is None else allowed_at
        if self._lookup is None or self._lookup.next_try is None:
            return due
        return self._lookup.next_try if due is None else min(due, self._lookup.next_try)

    def _due_by_clock(self) -> float | None:
        """Returns when the clock alone gives the task something to do, or None."""
        return self._time.due()

    def _become_idle(self) -> bool:
        """Lets the clock do its part where there is nothing to read; returns whether something was sent on."""
        return self._time.become_idle()

    def status(self) -> TaskStatus:
        return self._status(
            TaskProgress(self._rows_in, self._outbox.rows_out, self._log.bytes_read + self._history_bytes,
                         self._outbox.bytes_out, recalculates=self._ranges.pending),
            self.output, log=self._log_progress()._replace(rows_read=self._log.rows_read), time=self._time.status(),
            account=self._dropped.counts.account(self._log.rows_read, self._log.rows_waiting),
            late=self._dropped.late_rows(self.id.index), dropped=self._dropped.ledger.sample,
            history=None if self._history is None else self._history.progress(),
            connection=ConnectionStatus(health=None if self._lookup is None else self._lookup.health))

    @property
    def _table_bytes(self) -> int:
        return self._recent.memory_bytes + (0 if self._lookup is None else self._lookup.memory_bytes)

    def contributions(self, windows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Returns what the stored rows of its vnode come to in some (group, window)s: what it should have sent.

        `windows`: one partial of each, sorted by start. For windows on a grid, while the task rests.
        """
        return self._emitter.contributions(windows, self._version)

    # -- events and reading ------------------------------------------------------------------------------------

    def _handle(self, event: TaskEvent) -> None:
        if isinstance(event, Recalculate):
            self._stored.bring_in(*self._ranges.whole(event.first_ts, event.last_ts), self._version)
            self._ranges.add(event.first_ts, event.last_ts)
        elif isinstance(event, Replay):
            self._replay(event)
        elif isinstance(event, UseConnection):
            if self._lookup is not None:
                self._lookup.use(event.connection)
        else:
            super()._handle(event)

    def _replay(self, order: Replay) -> None:
        """Orders the windows of rows that were dropped to be computed with those of them that can be computed.

        INTERVAL windows of other vnodes' rows are computed too: the agg task may have forgotten what they hold of ours.
        """
        own = [row for vgroup_id, row in order.rows if vgroup_id == self._vgroup_id]
        self._dropped.retries.update((row.row.row_key, row) for row in own)
        by_group = self._plan.time_windows is None or self._plan.grouping.colocated
        rows = own if by_group else [row for _, row in order.rows]
        self._ranges.add_retries(sorted({row.row.ts for row in rows}))

    def _apply_rates(self) -> None:
        self._rates.change(self._settings)
        self._log.cut_again()

    def _skip_to_end(self) -> None:
        self._dropped.counts.skipped += self._log.discard()
        self._recent.forget()
        self._wal.close()
        skipped_from, self._version = self._version, self._wal.acknowledged_version
        self._stored.unseen.append((skipped_from, self._version))
        if self._keeps_recent:
            self._look_for_newest()
        self._open_wal()

    def _look_for_newest(self) -> None:
        span = self._stored.time_span(TS_MIN, TS_MAX, self._version)
        self._newest_before = NEVER if span is None else span.last_ts

    def _read_ahead(self) -> bool:
        return not self._paused and self._log.read_ahead(self._wal, self._environment.turn)

    # -- history and ranges that are computed again --------------------------------------------------------------

    def _read_history(self, history: HistoryReader) -> bool:
        """Processes the next rows from before the stream; they are never late."""
        self._tracker.enter("RUNNING", "reads the history of its vnode")
        if self._plan.policies.state_ttl is not None and self._time.newest is None:
            # All that was there before the stream counts as if it came with the last of it.
            span = self._stored.time_span(TS_MIN, TS_MAX, history.as_of)
            if span is not None:
                self._time.advance(span.last_ts)
        rows = history.read()
        if rows is not None and rows.num_rows:
            self._rates.take_old_rows(rows.num_rows)
            self._first_stage.note_children()
            self._rows_in += rows.num_rows
            self._dropped.counts.history += rows.num_rows
            self._history_bytes += rows.nbytes
            self._emit_history(rows, history.as_of)
        self._time.note_work()
        self._outbox.flush()
        return True

    def _emit_history(self, rows: pa.Table, as_of: int) -> None:
        """Sends rows from before the stream; what is in the future of its creation isn't taken for time."""
        time_plan = self._plan.policies.time
        self._dropped.block = ()
        classified = never_late(rows, self._plan, as_of)
        if time_plan.max_future is not None and classified.ts[-1] > time_plan.created + time_plan.max_future:
            bound = time_plan.created + time_plan.max_future
            first = int(np.searchsorted(classified.ts, bound, side="right"))
            ahead = dropped_rows(classified, range(first, len(classified.ts)), "future", self._plan,
                                 len(classified.ts))
            self._dropped.drop("future", [replace(row, lateness=bound - row.ts) for row in ahead], _TOO_NEW)
            self._dropped.counts.dropped += len(ahead)
            self._table_times.watch({row.tuid for row in ahead}, classified.rows.column("_tuid").to_numpy()[:first],
                                    classified.ts[:first])
            classified = never_late(classified.rows.slice(0, first), self._plan, as_of)
        if len(classified.ts):
            self._dropped.leader.follow(classified, self._time.newest)
            self._emitter.emit(classified, (), as_of, as_of)
            self._time.advance(classified.newest)

    def _recalculate_piece(self) -> bool:
        """Computes the next piece of a range again that RECALCULATE STREAM named."""
        self._live_had_its_turn = False
        self._tracker.enter("RUNNING", "recalculates a range of time")
        self._dropped.block = ()
        piece = self._ranges.next(self._version, self._time.newest)
        if piece is not None:
            self._rates.take_old_rows(piece.rows.num_rows)
            self._emitter.emit_piece(piece, self._version)
            self._outbox.flush()
        if not self._ranges.pending:
            self._dropped.retries = {}
        return True

    # -- the log ---------------------------------------------------------------------------------------------

    def _process(self, records: Sequence[Record]) -> None:
        """Classifies the rows of consecutive records and sends what they change."""
        if moves_tables(records[0]):
            self._move([record.body for record in records if isinstance(record, MetaRecord)],
                       records[0].version - 1, records[-1].version)
            return
        rows: list[RowsRecord] = []
        deletes: list[AnyDelete] = []
        noted: list[int | None] = []
        writers = self._time.writers
        for record in records:
            match record:
                case TimeMarkRecord() if writers is not None:
                    writers.note(record)
                    self._time.wake()
                case MetaRecord(body=body):
                    self._children.apply(body)
                case RowsRecord(table_uid=uid) if uid == self._source.storage_uid:
                    rows.append(record)
                    if writers is not None:
                        noted.append(writers.advance(record.ingest_time_ms))
                case DeleteRecord(table_uid=uid) | DeletePointsRecord(table_uid=uid) if uid == self._source.storage_uid:
                    deletes.append(record)
        if deletes:
            self._recent.forget()
        if not rows and not deletes:
            self._time.send()
            return
        self._first_stage.note_children()
        self._dropped.block = rows
        classified = self._classified(rows, None if writers is None else noted) if rows else None
        if classified is None and not deletes:
            self._time.send()
            return
        self._dropped.quarantine.release_deleted(deletes)
        before, after = records[0].version - 1, records[-1].version
        if classified is not None and not deletes:
            self._keep_recent(classified, before, after)
        leader, handed_on = self._dropped.leader, self._dropped.counts.handed_on
        if classified is not None:
            leader.follow(classified, self._time.newest)
        if classified is not None and self._plan.policies.state_ttl is not None:
            self._time.advance(classified.newest)  # the time at which groups change is told before they do
        self._emitter.emit(classified, deletes, before=before, after=after)
        self._recent.settle()
        self._dropped.quarantine.settle()
        self._dropped.block = ()
        if classified is not None:
            leader.count_timely(self._dropped.counts.handed_on - handed_on)
            self._time.advance(classified.newest)

    def _move(self, bodies: Sequence[dict[str, Any]], before: int, after: int) -> None:
        """Has the rows of child tables leave the groups that they were in, for those that their new tags make.

        Where updates are ignored, rows stay in the groups that they came to.
        """
        moved = self._children.move(bodies)
        self._recent.forget()
        if moved is not None and self._source.needs_children and self._plan.counts_updates:
            self._dropped.block = ()
            self._emitter.emit(None, (), before, after, moved)
        self._time.send()

    def _keep_recent(self, classified: ClassifiedRows, before: int, after: int) -> None:
        """Keeps the rows of a block in memory while rows are rewritten, where they are what the store has."""
        updates = classified.change is not None and bool((classified.change == UPDATED).any())
        if not self._keeps_recent or not (updates or self._recent.keeps):
            return
        if not classified.complete:
            self._recent.forget()
            return
        known = (self._newest_before, self._time.newest)
        self._recent.take(classified.rows, classified.ts, before, after, max(ts for ts in known if ts is not None),
                          updates=updates)

    def _classified(self, rows: Sequence[RowsRecord], noted: Sequence[int | None] | None) -> ClassifiedRows | None:
        """Returns the rows of records without those from the future, which are dropped."""
        wal, reads = self._wal, self._reads
        classified, future = classify(rows, self._plan, self._time.newest, self._table_times, noted,
                                      lambda make: wal.derived(rows, reads, make))
        counts, own = self._dropped.counts, len(future) + (0 if classified is None else len(classified.ts))
        if self._source.keep_tuid is not None:
            counts.filtered += sum(record.batch.num_rows for record in rows) - own
        self._rows_in += own
        if future:
            self._dropped.drop("future", future, _TOO_NEW)
            counts.dropped += len(future)
        if classified is not None:
            self._dropped.ledger.note(classified, self._plan.policies.closing_delay)
        return classified

    # -- checkpoints -----------------------------------------------------------------------------------------

    def _state(self) -> Mapping[str, Any]:
        self._emitter.save()
        return {**super()._state(), "table_times": self._table_times.save(), "unseen": self._stored.unseen,
                "brought_in": self._stored.brought_in,
                "history": None if self._history is None else self._history.save(), "ranges": self._ranges.save(),
                "newest_before": self._newest_before, **self._time.save(), **self._dropped.save()}

    def _restore(self, meta: Mapping[str, Any]) -> None:
        self._version = meta["version"]
        self._stored.unseen = [(first, last) for first, last in meta["unseen"]]
        self._stored.brought_in = [(first, last, version) for first, last, version in meta["brought_in"]]
        self._table_times.restore(meta["table_times"])
        self._newest_before = meta["newest_before"]
        self._time.restore(meta)
        self._dropped.restore(meta)
        self._ranges.restore(meta["ranges"])
        if self._history is not None:
            self._history.restore(meta["history"])

    def _needed_version(self) -> int:
        """Returns the version that WAL and store must still be readable from for a restart from now."""
        if self._history is None or self._history.done:
            return self._version
        return min(self._version, self._history.as_of)
