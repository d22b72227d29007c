"""What is to be computed for windows that have fired: the order, what it needs, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.streams.calculated_results import ComputedWindows, Results
from penstock.mnode.streams.fired_windows import FiredWindow, Times, bounds_of, packed_times
from penstock.mnode.streams.periods import Tick
from penstock.mnode.streams.stream_planning import AskedCalculation
from penstock.planner.streams.calculated_target import PROBLEM_MAX
from penstock.planner.task_plans.stream_plan import CalculationPlan, StreamPlan
from penstock.sql.schema import Table
from penstock.sql.tree.fired_queries import (
    BOUNDS,
    END,
    FIRED,
    ID,
    NEXT,
    PREVIOUS,
    ROWS,
    START,
    Values,
    group_column,
)
from penstock.sql.types import DataType, Precision
from penstock.tasks.protocol.messages import ResultWrite
from penstock.tasks.protocol.refreshing import FireRequest
from penstock.vnode.write.vnode_writer import WrittenRows
from penstock.wal.record import TUID_COLUMN

_EXECUTION_BYTES = 200
"""What the row of an execution takes, about."""
_TOO_MANY_TIMES = "its results have too many times to be found again: they stay if the window gives others"


@dataclass(frozen=True, slots=True)
class Execution:
    """What is known of an execution: when it was first fired (ns), and at which times its results are."""

    fired_ns: int
    times: Times


@dataclass(slots=True)
class Job:
    """One order: the stream, what it asks for, its tables, and windows."""

    stream: StreamRecord
    plan: StreamPlan
    calculation: CalculationPlan
    asked: AskedCalculation
    executions: Table
    target: Table | None
    now_ns: int
    catalog_changes: int
    known: dict[tuple[int, int], Execution] = field(default_factory=dict)
    ticks: Mapping[int, Tick] = field(default_factory=dict)

    def is_whole(self, window: FiredWindow) -> bool:
        """Whether the stream has read all rows of a window, and was to compute its results of them.

        Of a group with a NULL it may have read more: a query that compares with `=` finds none.
        """
        first = self.stream.newest_at_start
        return (self.calculation.values > 0 and window.rows > 0 and not window.opened and self.stream.unlike is None
                and (first is None or window.start > first) and None not in window.group.values)

    def fired_ns(self, window: FiredWindow) -> int:
        """Returns when a window fired first; of PERIOD when it was to."""
        if window.start in self.ticks:
            return self.ticks[window.start].at_ns
        found = self.known.get(window.place)
        return self.now_ns if found is None else found.fired_ns

    def clock_of(self, window: FiredWindow) -> Values:
        """Returns what PERIOD gives besides."""
        tick = self.ticks.get(window.start)
        return {} if tick is None else tick.values()

    def values_of(self, window: FiredWindow) -> dict[str, object]:
        """Returns what the plan of the query for one window is given."""
        groups = {group_column(place): value for place, value in enumerate(window.group.values, 1)}
        return {START: window.start, END: window.start if window.end is None else window.end, ROWS: window.rows,
                ID: window.group.id, FIRED: self.fired_ns(window), **groups, **self._given_clock(window)}

    def values_of_many(self, windows: Sequence[FiredWindow]) -> dict[str, object]:
        """Returns what the plan of the query for many windows is given."""
        return {**dict(zip(BOUNDS, bounds_of(windows), strict=True)), **self._given_clock(windows[0])}

    def _given_clock(self, window: FiredWindow) -> dict[str, object]:
        tick = self.ticks.get(window.start)
        return {} if tick is None else {PREVIOUS: tick.previous_ns, NEXT: tick.next_ns}

    @property
    def precision(self) -> Precision:
        """That of the windows' times."""
        return self.executions.time_column.type.precision

    @property
    def group_types(self) -> list[DataType]:
        """The types of what PARTITION BY gives."""
        kinds = {column.name: column.type for column in self.executions.columns}
        return [kinds[group_column(place)] for place in range(1, len(self.asked.trigger.partition_by) + 1)]

    def rows_of(self, windows: Sequence[FiredWindow], results: Results, now_ms: int) -> WrittenRows:
        """Returns the rows of executions as they are stored; `now_ms`: when their results are written."""
        now = now_ms * self.asked.units_per_ms
        packed = [packed_times(times) for times in results.times]
        problems = [_TOO_MANY_TIMES if times is None and problem is None else problem
                    for times, problem in zip(packed, results.problems, strict=True)]
        values: list[Sequence[object]] = [
            [window.start for window in windows], [window.group.id for window in windows],
            [window.end for window in windows], [0 if window.gone else window.rows for window in windows],
            *([window.group.values[place] for window in windows]
              for place in range(len(self.asked.trigger.partition_by))),
            [self.fired_ns(window) for window in windows],
            [now] * len(windows), results.took_us, results.counts,
            [None if problem is None else problem.encode()[:PROBLEM_MAX].decode(errors="ignore")
             for problem in problems], packed,
            [None if (tick := self.ticks.get(window.start)) is None else tick.cut for window in windows]]
        arrays = [pa.array(column, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(column, kind)
                  for column, kind in zip(values, (each.type.arrow() for each in self.executions.columns), strict=True)]
        tuids = pa.repeat(pa.scalar(self.executions.uid, pa.uint64()), len(windows))
        return WrittenRows(self.executions.uid, pa.RecordBatch.from_arrays(
            [tuids, *arrays], names=[TUID_COLUMN, *(column.physical for column in self.executions.columns)]))


@dataclass(frozen=True, slots=True)
class Order:
    """A request, with the windows that were handed over."""

    request: FireRequest
    writes: Sequence[ResultWrite]


@dataclass(frozen=True, slots=True)
class ComputedOrder:
    """What an order's windows give: those that have `fired`, of which some have `gone`, and some are `computed`."""

    order: Order
    job: Job
    fired: Sequence[FiredWindow]
    gone: Sequence[FiredWindow]
    computed: ComputedWindows
    results: Results

    @property
    def windows(self) -> Sequence[FiredWindow]:
        return self.computed.windows

    @property
    def begun(self) -> Sequence[FiredWindow]:
        """What tells since when rows of the table of PERIOD count."""
        return [window for window in self.fired if window.opened and window.start in self.job.ticks]

    @property
    def nbytes(self) -> int:
        """How much is to be written, about."""
        return len(self.fired) * _EXECUTION_BYTES + (0 if self.results.rows is None else self.results.rows.nbytes)
