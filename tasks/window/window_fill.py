"""FILL by event time: rows for the windows between two windows of a group that have results.

A change of one window touches the gaps beside it only. The rows are made in chunks, so that a gap of any length takes
bounded memory; whoever asks for them decides when the next chunk is made. It knows neither queues nor triggers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.logging import logger
from penstock.planner.duckdb_sql.fill import MAX_FILLED
from penstock.planner.duckdb_sql.interval_windows import Grid, starts_between
from penstock.planner.task_plans.stream_plan import Field, FillPlan
from penstock.tasks.compute.duckdb_computer import Computer
from penstock.tasks.protocol.block_schema import GROUP, OPERATION, WINDOW_START, fields_schema
from penstock.tasks.window.result_index import ResultIndex

CHUNK_ROWS = 16_384
REFILLED_MAX = 65_536
_UPSERT, _DELETE = 0, 1

_log = logger(__name__)

Results = Callable[[Sequence[tuple[int, int]]], pa.RecordBatch]
"""Result rows of windows, given and returned as (group id, start), in that order."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The windows of a group between two starts, both excluded: to be filled, or to be emptied."""

    gid: int
    first: int
    last: int
    filled: bool


class Filler:
    """Keeps track of which windows have results, and makes the rows between them."""

    def __init__(
        self, plan: FillPlan, grid: Grid, keys: Sequence[Field], schema: pa.Schema, index: ResultIndex,
        computer: Computer, results: Results, withdrawn: ResultIndex | None = None,
    ) -> None:
        """`withdrawn` keeps windows whose results were deleted; needed if an earlier attempt has filled gaps.

        This attempt doesn't know what that one wrote after the checkpoint. Two windows may have come and gone: then
        filled rows between them may be left. A window may have gone and come back: then filled rows may be missing.
        """
        self._plan = plan
        self._withdrawn = withdrawn
        self._grid = grid
        self._schema = schema
        self._index = index
        self._computer = computer
        self._results = results
        self._gap_schema = gap_schema(plan, keys, schema)
        # Which gaps were filled since this attempt began, as far as an earlier attempt may have emptied them.
        self._refilled: set[Gap] = set()

    def save(self) -> None:
        """Hands what changed to the store."""
        self._index.save()
        if self._withdrawn is not None:
            self._withdrawn.save()

    def take(self, results: pa.RecordBatch, starts: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Takes note of results that are being sent, and returns what must follow them, made chunk by chunk.

        `results` has one row per (group, window), `starts` their windows. Results that are deleted count as well.
        """
        rows: dict[tuple[int, int], int] = {}
        for row, (gid, start) in enumerate(zip(results.column(GROUP.name).to_pylist(), starts, strict=True)):
            rows[(gid, start)] = row
        operations = results.column(OPERATION.name).to_pylist()
        new = set()
        for (gid, start), row in rows.items():
            if operations[row] == _DELETE:
                self._index.remove(gid, start)
                if self._withdrawn is not None:
                    self._withdrawn.add(gid, start)
            elif self._index.add(gid, start):
                new.add((gid, start))
                if self._withdrawn is not None and self._withdrawn.has(gid, start):
                    self._withdrawn.remove(gid, start)
        gaps = self._gaps(rows, operations, new)
        if not gaps:
            return iter(())
        missing = [] if not (self._plan.before or self._plan.after) else sorted({
            (gap.gid, start) for gap in gaps if gap.filled for start in (gap.first, gap.last)} - rows.keys())
        pool = results
        if missing:
            pool = pa.concat_batches([results, self._results(missing)])
            rows.update((window, results.num_rows + n) for n, window in enumerate(missing))
        members = {gid: row for (gid, _), row in rows.items()}
        return self._chunks(gaps, pool, rows, members)

    # -- which gaps --------------------------------------------------------------------------------------------

    def _gaps(
        self, rows: Iterable[tuple[int, int]], operations: Sequence[int], new: set[tuple[int, int]]
    ) -> list[Gap]:
        gaps: dict[Gap, None] = {}
        emptied: dict[int, tuple[int, int]] = {}
        for row, (gid, start) in enumerate(rows):
            if operations[row] == _DELETE:
                before, after = self._index.before(gid, start), self._index.after(gid, start)
                if before is not None and after is not None:
                    gaps[Gap(gid, before, after, True)] = None
                elif before is not None:
                    gaps[Gap(gid, before, start, False)] = None
                elif after is not None:
                    gaps[Gap(gid, start, after, False)] = None
                else:
                    low, high = emptied.get(gid, (start, start))
                    emptied[gid] = (min(low, start), max(high, start))
                gaps.update(dict.fromkeys(self._left_over(gid, start)))
                continue
            fresh = (gid, start) in new
            if fresh:
                gaps.update(dict.fromkeys(self._left_over(gid, start)))
            unsure = self._withdrawn is not None
            if (fresh or unsure or self._plan.after) and (before := self._index.before(gid, start)) is not None:
                gap = Gap(gid, before, start, True)
                if fresh or self._plan.after or self._is_unsure(gap):
                    gaps[gap] = None
            if (fresh or unsure or self._plan.before) and (after := self._index.after(gid, start)) is not None:
                gap = Gap(gid, start, after, True)
                if fresh or self._plan.before or self._is_unsure(gap):
                    gaps[gap] = None
        for gid, (low, high) in emptied.items():
            gaps[Gap(gid, low, high, False)] = None
        # What is emptied first may lie inside of what is filled then.
        return sorted((gap for gap in gaps if self._counts(gap)), key=lambda gap: (gap.filled, gap.gid, gap.first))

    def _is_unsure(self, gap: Gap) -> bool:
        """Tells whether an earlier attempt may have emptied a gap that this one hasn't filled yet; from now on it has.

        A window that went and came back since the checkpoint is only a change to this attempt. What is forgotten here
        is filled once more.
        """
        if self._withdrawn is None or gap in self._refilled:
            return False
        if len(self._refilled) >= REFILLED_MAX:
            self._refilled.clear()
        self._refilled.add(gap)
        return True

    def _left_over(self, gid: int, start: int) -> Iterator[Gap]:
        """Yields what an earlier attempt may have filled beside a window, where no window with a result is any more."""
        if self._withdrawn is None:
            return
        if self._index.before(gid, start) is None and (gone := self._withdrawn.before(gid, start)) is not None:
            yield Gap(gid, gone, start, False)
        if self._index.after(gid, start) is None and (gone := self._withdrawn.after(gid, start)) is not None:
            yield Gap(gid, start, gone, False)

    def _counts(self, gap: Gap) -> bool:
        """Tells whether there are windows in a gap, and not too many of them."""
        if next(starts_between(gap.first, gap.last, self._grid), None) is None:
            return False
        step = self._grid.step or 28 * self._grid.step_months * self._grid.day
        if (gap.last - gap.first) // step <= MAX_FILLED:
            return True
        _log.warning("a gap of more than %d windows is not filled: group %d, from %d to %d",
                     MAX_FILLED, gap.gid, gap.first, gap.last)
        return False

    # -- their rows --------------------------------------------------------------------------------------------

    def _chunks(
        self, gaps: Sequence[Gap], pool: pa.RecordBatch, rows: dict[tuple[int, int], int], members: dict[int, int]
    ) -> Iterator[pa.RecordBatch]:
        batch = _Chunk()
        for gap in gaps:
            # Windows may have come since: results may be sent in several portions before what follows the first.
            there = self._between(gap)
            if gap.filled and there:
                continue  # what brought them fills the gaps beside them
            windows = (start for start in starts_between(gap.first, gap.last, self._grid) if start not in there)
            while True:
                starts = list(islice(windows, CHUNK_ROWS - len(batch.starts)))
                if not starts:
                    break
                batch.add(gap, starts, members[gap.gid],
                          rows.get((gap.gid, gap.first), -1), rows.get((gap.gid, gap.last), -1))
                if len(batch.starts) >= CHUNK_ROWS:
                    yield self._filled(batch, pool)
                    batch = _Chunk()
        if batch.starts:
            yield self._filled(batch, pool)

    def _between(self, gap: Gap) -> set[int]:
        """Returns the windows with results in a gap, of which mostly there are none."""
        found: set[int] = set()
        start = self._index.after(gap.gid, gap.first)
        while start is not None and start < gap.last:
            found.add(start)
            start = self._index.after(gap.gid, start)
        return found

    def _filled(self, chunk: _Chunk, pool: pa.RecordBatch) -> pa.RecordBatch:
        return filled_rows(self._plan, self._gap_schema, self._schema, self._computer, chunk.source(), pool)


@dataclass(frozen=True, slots=True)
class GapRows:
    """Rows to be filled: the operation and the start of each, and the starts of the windows around it.

    `member`, `before` and `after` are rows of a pool: those with its group and with the results before and after it
    (-1: none).
    """

    operations: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    member: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]


def gap_schema(plan: FillPlan, keys: Sequence[Field], results: pa.Schema) -> pa.Schema:
    """Returns the schema of the relation `gaps`."""
    return pa.schema([
        OPERATION, GROUP, *fields_schema(keys), WINDOW_START, pa.field("_t0", pa.int64()), pa.field("_t1", pa.int64()),
        *(pa.field(f"b{n}", results.field(f"r{n}").type) for n in plan.before),
        *(pa.field(f"a{n}", results.field(f"r{n}").type) for n in plan.after)])


def filled_rows(
    plan: FillPlan, gaps: pa.Schema, results: pa.Schema, computer: Computer, rows: GapRows, pool: pa.RecordBatch
) -> pa.RecordBatch:
    """Returns result rows for windows without rows. `pool` has result rows to take groups and values from."""
    keys = results.names[2:2 + gaps.get_field_index(WINDOW_START.name) - 2]
    member = pa.array(rows.member)
    columns = [pa.array(rows.operations), *(pool.column(name).take(member) for name in (GROUP.name, *keys)),
               pa.array(rows.starts), pa.array(rows.first), pa.array(rows.last)]
    for places, around in ((plan.before, rows.before), (plan.after, rows.after)):
        chosen = pa.array(around, mask=around < 0)
        columns += [pool.column(f"r{n}").take(chosen) for n in places]
    table = pa.Table.from_arrays(columns, schema=gaps)
    return computer.run(plan.sql, results, gaps=table)


class _Chunk:
    """Rows of several gaps, collected."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self._rest: list[tuple[int, tuple[int, int, int, int, int, int]]] = []

    def add(self, gap: Gap, starts: list[int], member: int, before: int, after: int) -> None:
        self.starts += starts
        operation = _UPSERT if gap.filled else _DELETE
        self._rest.append((len(starts), (operation, gap.first, gap.last, member, before, after)))

    def source(self) -> GapRows:
        counts = [count for count, _ in self._rest]
        columns = [np.repeat(np.array(values, np.int64), counts)
                   for values in zip(*(values for _, values in self._rest), strict=True)]
        operations, first, last, member, before, after = columns
        return GapRows(operations.astype(np.uint8), np.array(self.starts, np.int64), first, last, member, before, after)
