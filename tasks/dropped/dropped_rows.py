"""The rows that a source task drops: it counts them, hands them to the DLQ, and keeps them out of what is read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.planner.task_plans.stream_plan import StreamPlan
from penstock.sql.types import UNITS_PER_SECOND
from penstock.tasks.compute.child_tables import ChildTables
from penstock.tasks.compute.lateness import ClassifiedRows
from penstock.tasks.compute.quarantine import Quarantine
from penstock.tasks.dropped.dead_letter_writer import DeadLetters, dead_from_json, dead_rows, dead_to_json, retried
from penstock.tasks.dropped.row_counts import RowCounts
from penstock.tasks.dropped.time_leader import TimeLeader
from penstock.tasks.dropped.time_ledger import TimeLedger, dropped_rows
from penstock.tasks.protocol.messages import DeadRow, DroppedRow, Reason, RowKey
from penstock.tasks.protocol.task_status import FutureRows, LateRows
from penstock.tasks.state.state_store import StateStore
from penstock.wal.record import RowsRecord


class DroppedRows:
    """What one source task drops. `block`: the records that are processed now.

    `retries`: rows of the DLQ that are tried once more. `dead_letters`: None for streams without a DLQ.
    """

    def __init__(
        self, plan: StreamPlan, store: StateStore, children: ChildTables, dead_letters: DeadLetters | None
    ) -> None:
        self._plan = plan
        self._store = store
        self._children = children
        self._dead_letters = dead_letters
        self.ledger = TimeLedger()
        self.leader = TimeLeader(plan)
        self.counts = RowCounts()
        self.quarantine = Quarantine(store, plan.source)
        self.retries: dict[RowKey, DeadRow] = {}
        self.block: Sequence[RowsRecord] = ()

    def drop(self, reason: Reason, rows: Sequence[DroppedRow], message: str) -> None:
        """Counts rows that can't be used, and keeps them out of what is read back from the store."""
        self.quarantine.add((row.row_key, row.version) for row in rows)
        self.report(reason, rows, message)

    def report(self, reason: Reason, rows: Sequence[DroppedRow], message: str) -> None:
        """Counts rows that can't be used, and hands them to the DLQ, if that is for them."""
        self.ledger.drop(reason, rows)
        if self._plan.dlq is not None and self._plan.dlq.errors:
            self._dead_letter(rows, message)

    def drop_late(self, classified: ClassifiedRows, rows: npt.NDArray[np.int64]) -> None:
        """Counts rows, by their numbers, that came too late; they stay in what is read back."""
        kept = dropped_rows(classified, rows.tolist(), "late", self._plan)
        self.ledger.drop("late", kept, len(rows) - len(kept))
        self.leader.count_late(classified, rows)
        self.counts.late += len(rows)
        if self._plan.dlq is not None and self._plan.dlq.late:
            self._dead_letter(dropped_rows(classified, rows.tolist(), "late", self._plan, len(rows)),
                              "came too late: all its windows were closed")

    def _dead_letter(self, rows: Sequence[DroppedRow], message: str) -> None:
        """Hands rows to the DLQ; of those that are read back only the key is known there."""
        assert self._dead_letters is not None
        new = {record.version for record in self.block}
        again = {key: self.retries.pop(key) for row in rows
                 if row.version not in new and (key := row.row_key) in self.retries}
        fresh = [row for row in rows if row.row_key not in again]
        self._dead_letters.add([*(retried(row, message) for row in again.values()),
                                *dead_rows(fresh, self.block, self._plan, self._children.names(), message)])

    def late_rows(self, place: int) -> LateRows:
        """Returns how many rows were late or dropped, of the vnode at `place`."""
        ledger = self.ledger
        units_per_ms = UNITS_PER_SECOND[self._plan.source.precision] // 1_000
        future = None
        if ledger.future is not None:
            tuid, ts, since_ms = ledger.future
            future = FutureRows(tuid, ts // units_per_ms, since_ms)
        return LateRows(ledger.count("late"), late_kept=((place, ledger.late_kept),),
                        future_rows=ledger.count("future"), error_rows=ledger.count("error"),
                        lateness=ledger.lateness(), leading=self.leader.status(), future=future)

    def save(self) -> dict[str, Any]:
        return {"ledger": self.ledger.save(self._store), "leader": self.leader.save(),
                "retried": [dead_to_json(row) for row in self.retries.values()]}

    def restore(self, meta: Mapping[str, Any]) -> None:
        self.leader.restore(meta.get("leader"))  # checkpoints of 1.0.0 have none
        self.ledger.restore(meta["ledger"], self._store)
        retries = [dead_from_json(row) for row in meta["retried"]]
        self.retries = {row.row.row_key: row for row in retries}
