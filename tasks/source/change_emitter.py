"""Sends what rows and deletes change: additions to what was sent, and recalculated parts that replace it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.errors import InvalidValueError
from penstock.planner.duckdb_sql.interval_windows import end_of
from penstock.planner.task_plans.stream_plan import StreamPlan, WindowsPlan
from penstock.tasks.compute.child_tables import MovedTables
from penstock.tasks.compute.failing_rows import failing_rows
from penstock.tasks.compute.first_stage import FirstStage
from penstock.tasks.compute.lateness import NEVER, ClassifiedRows, late_rows, may_be_late, updated
from penstock.tasks.compute.partial_columns import united
from penstock.tasks.compute.quarantine import keys_of
from penstock.tasks.dropped.computable_rows import ComputableRows
from penstock.tasks.dropped.time_ledger import dropped_rows
from penstock.tasks.dropped.uncomputable_rows import without_dropped
from penstock.tasks.flow.outbox import Outbox
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
from penstock.tasks.protocol.messages import Retract, RetractEnd
from penstock.tasks.recalculation.expired_rows import TimeRange
from penstock.tasks.recalculation.range_recalculation import Piece, within
from penstock.tasks.recalculation.recalculation import Change, Recalculation
from penstock.tasks.recalculation.row_windower import Windower
from penstock.tasks.recalculation.stored_rows import StoredRows
from penstock.tasks.source.source_time import SourceTime
from penstock.tasks.state.state_store import StateStore
from penstock.wal.record import AnyDelete

_RESERVED_VERSIONS = 10_000


class ChangeEmitter:
    """Makes partials, or results, of one source task's rows and sends them on. Made when the store is restored.

    `replayed_until`: an earlier attempt may have come up to this version of the WAL; 0: there was none.
    """

    replayed_until = 0

    def __init__(
        self, plan: StreamPlan, outbox: Outbox, first_stage: FirstStage, computable: ComputableRows,
        stored: StoredRows, time: SourceTime, store: StateStore,
    ) -> None:
        self._plan = plan
        self._outbox = outbox
        self._first_stage = first_stage
        self._computable = computable
        self._dropped = computable.dropped
        self._counts = self._dropped.counts
        self._stored = stored
        self._time = time
        self._store = store
        self._grid = None if plan.time_windows is None else plan.time_windows.grid
        schema = block_schema(plan)
        self._recalculation = Recalculation(plan, first_stage, schema, stored)
        self._retracts = isinstance(plan.computation, WindowsPlan) and plan.computation.retracts
        self._accumulators = plan.computation.accumulators if isinstance(plan.computation, WindowsPlan) else ()
        self._reserved = 0
        self._windower: Windower | None = None
        if plan.row_window is not None:
            self._windower = Windower(plan, schema, first_stage, self._recalculation, stored.read, store)
            self._windower.restore()

    def emit(
        self, classified: ClassifiedRows | None, deletes: Sequence[AnyDelete], before: int, after: int,
        moved: MovedTables | None = None,
    ) -> None:
        """Sends what a block changes: of rows and deletes, or of child tables that `moved`.

        Rows that can't be computed are dropped if the stream's ON_ERROR says so. `before` and `after` are the WAL
        versions between which the block lies.
        """
        failing: dict[int, str] = {}
        if self._plan.policies.leaves_out_errors:
            if self._emitted_whole(classified, deletes, before, after, moved):
                return
            # Rows that are read back may have come before the stream: nobody has tried them.
            keys = () if classified is None else keys_of(classified.rows, self._plan.source)
            self._stored.rewritten = frozenset(keys)
            failing = {} if classified is None else failing_rows(classified.rows, self._computable.error_of)
        self._emit_without(failing, classified, deletes, before, after, moved)
        self._stored.rewritten = None

    def _emitted_whole(
        self, classified: ClassifiedRows | None, deletes: Sequence[AnyDelete], before: int, after: int,
        moved: MovedTables | None,
    ) -> bool:
        """Sends what a block changes if all of its rows can be computed; returns whether it did.

        Rows in windows that rows define are tried before anything is changed: a failure in the middle would leave the
        windows' state half changed, and an EVENT window may never compute some row. So are rows that may be late, since
        a row that can't be computed counts as an error, not as late. Rows of tables that `moved` are tried when read.
        """
        if moved is not None and self._windower is not None:
            return False
        if classified is not None:
            first = classified.rows if self._windower is not None else late_rows(classified)
            if self._computable.error_of(first) is not None:
                return False
        try:
            self._emit_without({}, classified, deletes, before, after, moved)
        except InvalidValueError:
            if self._windower is not None:
                raise
            return False
        return True

    def _emit_without(
        self, failing: Mapping[int, str], classified: ClassifiedRows | None, deletes: Sequence[AnyDelete],
        before: int, after: int, moved: MovedTables | None,
    ) -> None:
        """Sends what a block changes without its `failing` rows, and what they make void."""
        quarantine = self._dropped.quarantine
        if classified is not None and (failing or quarantine):
            for message in dict.fromkeys(failing.values()):
                rows = [row for row, text in failing.items() if text == message]
                self._dropped.report(
                    "error", dropped_rows(classified, rows, "error", self._plan, len(rows)), message)
            self._counts.dropped += len(failing)
            filtered = without_dropped(classified, failing, quarantine.holds(classified.rows), self._plan.source,
                                       counts_updates=self._plan.counts_updates)
            quarantine.add(filtered.out.items())
            quarantine.release(filtered.back, after)
            classified, deletes = filtered.classified, [*deletes, *filtered.retracted]
        if classified is not None or deletes or moved is not None:
            self._emit_computable(classified, deletes, before, after, moved)

    def _emit_computable(
        self, classified: ClassifiedRows | None, deletes: Sequence[AnyDelete], before: int, after: int,
        moved: MovedTables | None = None,
    ) -> None:
        """Sends what a block changes whose rows can all be computed.

        With IGNORE EXPIRED 1 windows older than DELETE_MARK, which agg tasks may have forgotten, are left as they are.
        """
        if self._windower is not None:
            self._emit_windowed(self._windower, classified, deletes, before, after, moved)
            return
        if classified is not None and not deletes and self._emit_partials(classified):
            return
        if self._retracts and moved is None:
            self._emit_differences(classified, deletes, before, after)
            return
        added: list[pa.RecordBatch] = []
        expired: npt.NDArray[np.int64] | None = None
        if classified is not None and self._plan.source.late_sql is not None and may_be_late(classified):
            added, expired = self._first_stage.compute_timely(classified)
        elif classified is not None:
            added = [self._first_stage.compute(classified.rows)]
        rewritten = updated(classified, expired) if classified is not None and self._plan.counts_updates else None
        rest: Sequence[pa.RecordBatch] = added
        replaced: Sequence[pa.RecordBatch] = []
        if rewritten is not None or deletes or moved is not None:
            rows = None if classified is None else classified.rows
            change = Change(rows, rewritten, tuple(deletes), before, after, moved)
            if moved is not None and not self._plan.sends_partials:
                for operation, batch in self._recalculation.moved_rows(change, moved):
                    self.send(operation, batch)
                return
            if not self._plan.sends_partials:
                changed = self._recalculation.rows(change, added[0] if added else None)
                self._count(classified, added, expired)
                for operation, batch in changed:
                    self.send(operation, batch)
                return
            rest, replaced = self._recalculation.windows(change, added)
        # Nothing is said or counted before all is computed: rows that can't be would be tried without others once more.
        self._count(classified, added, expired)
        for batch in rest:
            self.send(ADD, self._remembered(batch))
        for batch in replaced:
            self.send(REPLACE, self._remembered(batch, added=False))

    def _emit_differences(
        self, classified: ClassifiedRows | None, deletes: Sequence[AnyDelete], before: int, after: int
    ) -> None:
        """Sends what rows add that came, and takes back what those had added that went."""
        rewritten = None if classified is None else updated(classified, None)
        if classified is not None and rewritten is None and not deletes:
            came = self._first_stage.compute(classified.rows)
            self._count(classified, [came], None)
            self.send(ADD, came)
            return
        rows = None if classified is None else classified.rows
        change = Change(rows, rewritten, tuple(deletes), before, after)
        found, left_out = self._recalculation.differences(
            change, complete=classified is not None and classified.complete)
        if classified is not None:
            self._counts.computed(len(classified.ts), len(classified.ts) - left_out)
        # Together: nobody is to see groups without rows that are rewritten.
        self.send(ADD, united(found, self._accumulators))

    def _count(
        self, classified: ClassifiedRows | None, added: Sequence[pa.RecordBatch], expired: npt.NDArray[np.int64] | None
    ) -> None:
        """Counts the rows of a block, of which `added` was made and which are `expired`, by their numbers, if any."""
        if classified is None:
            return
        timely = len(classified.ts)
        if expired is not None:
            self._dropped.drop_late(classified, expired)
            timely -= len(expired)
        self._counts.computed(timely, self._first_stage.rows_in(added, timely))

    def _emit_partials(self, classified: ClassifiedRows) -> bool:
        """Sends what rows add that are all new, to the only task there is for them, as the kernel has computed it.

        Returns whether it did: what else there may be takes the longer way.
        """
        if classified.change is not None or len(self._outbox.channels) > 1 or not self._plan.sends_partials:
            return False
        block = self._first_stage.partials(classified.rows)
        if block is None:
            return False
        newest = self._time.newest
        limit = None if newest is None or self._plan.recalls else newest - self._plan.policies.delete_mark
        if limit is not None and block.rows and block.oldest <= limit:
            return False
        self._outbox.hand_over(self._outbox.channels[0], block)
        self._counts.filtered += len(classified.ts) - block.rows_read
        self._counts.handed_on += block.rows_in if self._first_stage.windows_are_apart else block.rows_read
        return True

    def _emit_windowed(self, windower: Windower, classified: ClassifiedRows | None, deletes: Sequence[AnyDelete],
                       before: int, after: int, moved: MovedTables | None) -> None:
        """Sends what a block changes of windows that rows define."""
        newest = self._time.newest if classified is None else max(
            classified.newest, NEVER if self._time.newest is None else self._time.newest)
        replayed = before < self.replayed_until
        if after > self._reserved:
            self._reserved = self._store.reserve(after + _RESERVED_VERSIONS)
        windowed = windower.process(classified, deletes, (before, after), newest, replayed=replayed, moved=moved)
        self._dropped.ledger.late_kept += windowed.late_kept
        if classified is not None:
            if len(windowed.late):
                self._dropped.drop_late(classified, windowed.late)
            self._counts.computed(len(classified.ts) - len(windowed.late), windowed.rows)
        if windowed.partials is not None:
            self.send(REPLAYED if replayed else ADD, windowed.partials)

    def _remembered(self, partials: pa.RecordBatch, *, added: bool = True) -> pa.RecordBatch:
        """Returns the partials; with IGNORE EXPIRED 1 without those of windows that DELETE_MARK lets agg tasks forget.

        Rows that would have been `added` to them are late. Where they count, agg tasks ask for what they forgot.
        """
        newest = self._time.newest
        if self._grid is None or newest is None or partials.num_rows == 0 or self._plan.recalls:
            return partials
        limit = newest - self._plan.policies.delete_mark
        if partials.column(WINDOW_START.name).to_numpy().min() > limit:
            return partials
        grid = self._grid
        kept = [end_of(start, grid) > limit for start in partials.column(WINDOW_START.name).to_pylist()]
        if added:
            self._dropped.ledger.drop("late", (), sum(
                rows for rows, keep in zip(partials.column(ROWS.name).to_pylist(), kept, strict=True) if not keep))
        return partials.filter(pa.array(kept, pa.bool_()))

    def emit_piece(self, piece: Piece, version: int) -> None:
        """Sends what a range of time comes to that is computed again, in the place of all that was sent for it."""
        rows, readmitted = self._computable.retried(piece.rows)
        quarantine = self._dropped.quarantine
        if self._windower is not None:
            self._first_stage.note_children()
            replayed = self.replayed_until > 0
            late: list[TimeRange] = [(None, piece.first, piece.last)] if not piece.retries else [
                ((tuid,), ts, ts) for tuid, ts, _ in self._dropped.retries if piece.first <= ts <= piece.last]
            partials = self._windower.recalculate(
                rows, late, lambda: quarantine.forget(readmitted), version, self._time.newest, replayed=replayed)
            if partials is not None:
                self.send(REPLAYED if replayed else ADD, partials)
            return
        quarantine.forget(readmitted)
        fresh = self._computable.compute(rows)
        if not self._plan.sends_partials:
            self.send(ADD, fresh)
        else:
            self._outbox.signal(Retract(piece.first, piece.last))
            self.send(ADD, within(fresh, piece))
            self._outbox.signal(RetractEnd())

    def contributions(self, windows: pa.RecordBatch, version: int) -> list[pa.RecordBatch]:
        """Returns what the stored rows of the vnode come to in some (group, window)s; see `SourceTask`."""
        self._first_stage.note_children()
        return self._recalculation.contributions(windows, version)

    def send(self, operation: int, batch: pa.RecordBatch) -> None:
        """Sends partials or results on, each group's to the task that has the group."""
        if batch.num_rows == 0:
            return
        if not self._plan.sends_partials:
            batch = batch.select(batch.schema.names[1:])
        batch = with_operation(batch, operation)
        channels = self._outbox.channels
        if len(channels) == 1:
            self._outbox.send(channels[0], batch)
            return
        place = batch.column(GROUP.name).to_numpy() % np.uint64(len(channels))
        self._outbox.spread(place.astype(np.int64), batch)

    def save(self) -> None:
        """Hands what changed to the store."""
        if self._windower is not None:
            self._windower.save()
