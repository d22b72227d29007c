"""The row that has brought a vnode to its time, and what became of the rows since: one with a wrong time silences
others, and that is to be told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.planner.task_plans.stream_plan import StreamPlan
from penstock.sql.types import UNITS_PER_SECOND
from penstock.tasks.compute.lateness import ClassifiedRows, record_of
from penstock.tasks.protocol.task_status import LeadingRow

_AHEAD_MS = 60_000
"""Clocks of devices may differ by that: a time that is further ahead of the log's is taken for wrong."""
_TABLES_MAX = 1_000
"""Of more tables with late rows it isn't counted how many there are."""


@dataclass(slots=True)
class _Newest:
    """The newest row. `since_ms`: when time came to where it is, or was first `ahead` of the log's; `late` and
    `timely`: rows since then. `silent`: tables whose last rows were late, while time is ahead.
    """

    tuid: int
    ts: int
    version: int
    since_ms: int
    ahead: bool
    late: int = 0
    timely: int = 0
    silent: set[int] = field(default_factory=set)


class TimeLeader:
    """Follows the newest row of one source task: a function of the log alone, so that a replay tells the same.

    While time is ahead of the log's own, what was counted stays when a row comes that is newer still.
    """

    def __init__(self, plan: StreamPlan) -> None:
        time = plan.policies.time
        self._follows = plan.keeps_time and time.clock == "event" and time.writer_timeout_ms is None
        self._units_per_ms = UNITS_PER_SECOND[plan.source.precision] // 1_000
        self._newest: _Newest | None = None
        # Of the block that is processed now: whether the newest row is in it, how many rows came in later records, and
        # which tables that were silent it has rows of.
        self._in_block = False
        self._rows_since = 0
        self._doubtful: set[int] = set()

    def follow(self, classified: ClassifiedRows, newest: int | None) -> None:
        """Takes note of a block of rows, of which it isn't known yet which are late; `newest`: the time before it."""
        if not self._follows:
            return
        place = int(classified.ts.argmax())
        self._in_block = newest is None or int(classified.ts[place]) > newest
        if self._in_block:
            self._newest = self._led_by(classified, place)
        known = self._newest
        if known is None:
            return  # it came before this was counted
        first = self._first_since(classified)
        self._rows_since = len(classified.ts) - first
        self._doubtful = set()
        if known.silent:
            self._doubtful = known.silent.intersection(classified.rows.column("_tuid").to_numpy()[first:].tolist())
            known.silent -= self._doubtful

    def _led_by(self, classified: ClassifiedRows, place: int) -> _Newest:
        known, record, ts = self._newest, record_of(classified, place), int(classified.ts[place])
        at_ms = classified.ingest_times_ms[record]
        found = _Newest(classified.rows.column("_tuid")[place].as_py(), ts, classified.versions[record], at_ms,
                        self._is_ahead(ts, at_ms))
        if known is not None and self._is_ahead(known.ts, at_ms):
            found.since_ms, found.late, found.timely, found.silent = (
                known.since_ms, known.late, known.timely, known.silent)
        return found

    def _is_ahead(self, ts: int, at_ms: int) -> bool:
        return ts > (at_ms + _AHEAD_MS) * self._units_per_ms

    def _first_since(self, classified: ClassifiedRows) -> int:
        """Returns the first row, by its number, of the records behind that of the newest row."""
        if not self._in_block or self._newest is None:
            return 0
        behind = bisect_right(classified.versions, self._newest.version)
        return classified.ends[behind - 1] if behind else 0

    def count_late(self, classified: ClassifiedRows, rows: npt.NDArray[np.int64]) -> None:
        """Takes note that rows of the block, by their numbers, came too late."""
        known, first = self._newest, self._first_since(classified)
        late = rows[rows >= first] - first
        if known is None or not len(late):
            return
        known.late += len(late)
        self._rows_since -= len(late)
        if not known.ahead:
            return
        tuids = classified.rows.column("_tuid").to_numpy()[first:]
        timely = np.ones(len(tuids), bool)
        timely[late] = False
        for tuid in {*tuids[late].tolist()}.difference(tuids[timely].tolist()):
            if tuid in self._doubtful or len(known.silent) < _TABLES_MAX:
                known.silent.add(tuid)

    def count_timely(self, handed_on: int) -> None:
        """Takes note of how many rows of the block were handed on."""
        if self._newest is not None:
            self._newest.timely += min(handed_on, max(0, self._rows_since))

    def status(self) -> LeadingRow | None:
        """Returns the newest row; None as long as no row was late since."""
        known = self._newest
        if known is None or not known.late:
            return None
        return LeadingRow(known.tuid, known.ts // self._units_per_ms, known.since_ms, known.ahead, known.late,
                          known.timely, min(known.silent, default=None), len(known.silent))

    def save(self) -> dict[str, Any] | None:
        known = self._newest
        return None if known is None else {
            name: sorted(known.silent) if name == "silent" else getattr(known, name) for name in _Newest.__slots__}

    @staticmethod
    def inherited(saved: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Returns what was saved for a task that takes over part of the tables: it has counted nothing."""
        return None if saved is None else {**saved, "late": 0, "timely": 0, "silent": []}

    def restore(self, saved: Mapping[str, Any] | None) -> None:
        self._newest = None if saved is None else _Newest(**{**saved, "silent": set(saved["silent"])})
