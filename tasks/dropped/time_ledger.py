"""What one source task counts of lateness: how late rows were, how many were dropped, and the last of these."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.planner.task_plans.stream_plan import StreamPlan
from penstock.tasks.compute.lateness import NEVER, ClassifiedRows, record_of
from penstock.tasks.protocol.messages import DroppedRow, Reason
from penstock.tasks.protocol.task_status import Lateness
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.state.stored_values import damaged, pack, unpack

SAMPLE_ROWS = 1_000
_SAMPLE_KEY = b"left out"
# A bucket per eighth of an octave: the sign-less exponent of a float64 with the first three bits of its mantissa.
_PER_OCTAVE, _SHIFT, _ONE = 8, 49, 1023 << 3
_BUCKETS = 64 * _PER_OCTAVE


class TimeLedger:
    """Counts of one source task. `rows` of any lateness; `left_out` by reason; `sample` are the last rows left out.

    `late_kept`: rows that were older than time but count; only of windows that rows define, others' agg tasks know.
    """

    def __init__(self) -> None:
        self.late_kept = 0
        self._rows = 0
        self._buckets: npt.NDArray[np.int64] = np.zeros(_BUCKETS, np.int64)
        self._dropped: dict[Reason, int] = {}
        self._future: tuple[int, int, int] | None = None
        self._sample: deque[DroppedRow] = deque(maxlen=SAMPLE_ROWS)
        self._shown: tuple[DroppedRow, ...] = ()
        self._changed = False

    def note(self, classified: ClassifiedRows, closing_delay: int) -> None:
        """Takes note of how late the rows of a block were, each against what its vnode had seen before its record."""
        self._rows += len(classified.ts)
        if int(classified.limits.max()) + closing_delay <= int(classified.ts.min()):
            return  # as for most blocks: none of the rows is older than what came before
        limits, ends = classified.limits, np.array(classified.ends)
        firsts = np.concatenate([[0], ends[:-1]])
        known = np.flatnonzero((ends > firsts) & (limits != NEVER))
        if not len(known):
            return
        oldest = np.minimum.reduceat(classified.ts, firsts[known])
        behind = known[limits[known] + closing_delay > oldest]
        if not len(behind):
            return
        late = np.concatenate([limits[record] + closing_delay - classified.ts[firsts[record] : ends[record]]
                               for record in behind.tolist()])
        late = late[late > 0]
        if len(late):
            bits = late.astype(np.float64).view(np.int64) >> _SHIFT
            self._buckets += np.bincount(bits - _ONE, minlength=_BUCKETS)

    def drop(self, reason: Reason, rows: Iterable[DroppedRow], more: int = 0) -> None:
        """Counts rows that the stream leaves out and keeps the last of them; `more` are counted only."""
        count = more
        for row in rows:
            self._sample.append(row)
            self._changed = True
            count += 1
            if reason == "future":
                since_ms = row.ingest_time_ms if self._future is None else self._future[2]
                self._future = row.tuid, row.ts, since_ms
        self._dropped[reason] = self._dropped.get(reason, 0) + count

    def count(self, reason: Reason) -> int:
        return self._dropped.get(reason, 0)

    @property
    def future(self) -> tuple[int, int, int] | None:
        """The table and the time of the last row from the future, and when the log got the first one (ms)."""
        return self._future

    @property
    def sample(self) -> tuple[DroppedRow, ...]:
        """The same object until another row is left out."""
        if self._changed:
            self._shown, self._changed = tuple(self._sample), False
        return self._shown

    def lateness(self) -> Lateness:
        found = np.flatnonzero(self._buckets)
        return Lateness(self._rows, tuple(zip(map(_upper_edge, found.tolist()), self._buckets[found].tolist(),
                                              strict=True)))

    def save(self, store: StateStore) -> dict[str, Any]:
        """Hands the sample to the store; returns the counts."""
        if self._sample:
            store.put_many([(_SAMPLE_KEY, pack([astuple(row) for row in self.sample]))])
        return self.counts()

    def counts(self) -> dict[str, Any]:
        """Returns what `restore` needs besides the sample."""
        found = np.flatnonzero(self._buckets)
        return {"rows": self._rows, "left_out": self._dropped, "late_kept": self.late_kept,
                "future": self._future, "buckets": [[int(n), int(self._buckets[n])] for n in found]}

    def restore(self, saved: dict[str, Any], store: StateStore) -> None:
        self._rows, self._dropped = saved["rows"], dict(saved["left_out"])
        self.late_kept = saved["late_kept"]
        future = saved.get("future")  # checkpoints of 1.0.0 have none
        self._future = None if future is None else (future[0], future[1], future[2])
        for bucket, count in saved["buckets"]:
            self._buckets[bucket] = count
        (sample,) = store.get_many([_SAMPLE_KEY])
        if sample is not None:
            what = "the rows that a task left out last"
            try:
                self._sample.extend(DroppedRow(*fields) for fields in unpack(sample, what))
            except TypeError as error:
                raise damaged(what, str(error)) from error
            self._changed = True


def dropped_rows(
    classified: ClassifiedRows, rows: Sequence[int], reason: Reason, plan: StreamPlan, most: int = SAMPLE_ROWS
) -> list[DroppedRow]:
    """Returns the last `most` of the rows of a block, by their numbers, as the ledger keeps them."""
    found = []
    tuids = classified.rows.column("_tuid")
    second = None if plan.source.key_column is None else classified.rows.column(plan.source.key_column)
    for row in rows[-most:] if most else ():
        record = record_of(classified, row)
        ts = int(classified.ts[row])
        limit = int(classified.limits[record])
        lateness = 0 if limit == NEVER else limit + plan.policies.closing_delay - ts
        found.append(DroppedRow(tuids[row].as_py(), ts, lateness, reason, classified.versions[record],
                                classified.ingest_times_ms[record], None if second is None else second[row].as_py()))
    return found


def _upper_edge(bucket: int) -> int:
    octave, part = divmod(bucket, _PER_OCTAVE)
    return int(2**octave * (1 + (part + 1) / _PER_OCTAVE))
