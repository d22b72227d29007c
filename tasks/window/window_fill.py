"""FILL by event time: rows for the windows between two windows of a group that have results.

A change of one window touches the gaps beside it only. The rows are made in chunks, so that a gap of any length takes
bounded memory; whoever asks for them decides when the next chunk is made. It knows neither queues nor triggers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.logging import logger
from penstock.planner.duckdb_sql.fill import MAX_FILLED
from penstock.planner.duckdb_sql.interval_windows import Grid, starts_between
from penstock.planner.task_plans.stream_plan import Field, FillPlan
from penstock.tasks.compute.duckdb_computer import Computer
from penstock.tasks.protocol.block_schema import GROUP, OPERATION, WINDOW_START, fields_schema
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.window.result_index import ResultIndex
from penstock.tasks.window.value_index import ValueIndex

CHUNK_ROWS = 16_384
REFILLED_MAX = 65_536
_UPSERT, _DELETE = 0, 1

Places = Sequence[Sequence[int]]
"""Of a gap: rows of a pool with what each column takes from before it, and from after it (-1: none)."""

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
    """Keeps track of which windows have results, and makes the rows between them.

    `problem`: the result column that names what doesn't fit, if there is one; such results aren't written.
    """

    problem: str | None = None

    def __init__(
        self, plan: FillPlan, grid: Grid, keys: Sequence[Field], schema: pa.Schema, store: StateStore,
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
        self._index = ResultIndex(store)
        # PREV and NEXT look past NULLs; LINEAR doesn't, nor do queries.
        self._forward = plan.mode == "next"
        self._values = {place: ValueIndex(store, self._index, place)
                        for place in (*plan.before, *plan.after) if plan.mode in ("prev", "next")}
        self._taken = 0
        self._computer = computer
        self._results = results
        self._gap_schema = gap_schema(plan, keys, schema)
        # Which gaps were filled since this attempt began, as far as an earlier attempt may have emptied them.
        self._refilled: set[Gap] = set()

    def save(self) -> None:
        """Hands what changed to the store."""
        self._index.save()
        for values in self._values.values():
            values.save()
        if self._withdrawn is not None:
            self._withdrawn.save()

    def take(
        self, results: pa.RecordBatch, starts: Sequence[int]
    ) -> tuple[pa.RecordBatch, Iterator[pa.RecordBatch]]:
        """Takes note of results, returns them as they are to be sent, and what must follow them, made chunk by chunk.

        `results` has one row per (group, window), `starts` their windows. Results that are deleted count as well.
        """
        rows: dict[tuple[int, int], int] = {}
        for row, (gid, start) in enumerate(zip(results.column(GROUP.name).to_pylist(), starts, strict=True)):
            rows[(gid, start)] = row
        self._taken += 1
        operations = results.column(OPERATION.name).to_pylist()
        new = set()
        columns = {place: results.column(f"r{place}") for place in self._values}
        nulls = {place: column.is_null().to_pylist() for place, column in columns.items()
                 if column.null_count or self._values[place].has_nulls}
        changed: list[tuple[int, int, int]] = []
        for (gid, start), row in rows.items():
            if operations[row] == _DELETE:
                self._index.remove(gid, start)
                if self._withdrawn is not None:
                    self._withdrawn.add(gid, start)
            elif self._index.add(gid, start):
                new.add((gid, start))
                if self._withdrawn is not None and self._withdrawn.has(gid, start):
                    self._withdrawn.remove(gid, start)
            unsure = bool(nulls) and self._is_unsure(Gap(gid, start, start, True))
            for place, column in nulls.items():
                null = None if operations[row] == _DELETE else column[row]
                if self._values[place].note(gid, start, null, fresh=(gid, start) in new) or unsure:
                    changed.append((place, gid, start))
        results = self._completed(results, list(rows))
        depending = sorted(self._depending(changed) - rows.keys())
        again = self._completed(self._results(depending), depending) if depending else None
        gaps = self._gaps(rows, operations, new, depending)
        members = {gid: row for (gid, _), row in rows.items()}
        sources = [self._around(gap, nulls) for gap in gaps] if self._plan.before or self._plan.after else []
        missing = sorted({(gap.gid, start) for gap, around in zip(gaps, sources, strict=False) for starts in around
                          for start in starts if start is not None} - rows.keys())
        pool = results
        if missing:
            pool = pa.concat_batches([results, self._results(missing)])
            rows.update((window, results.num_rows + n) for n, window in enumerate(missing))
        places: list[Places] = [
            tuple(tuple(-1 if start is None else rows[gap.gid, start] for start in starts) for starts in around)
            for gap, around in zip(gaps, sources, strict=True)] if sources else [((), ())] * len(gaps)
        chunks = self._chunks(gaps, places, pool, members, self._taken)
        if again is None:
            return results, chunks
        sent = pc.equal(again.column(OPERATION.name), _UPSERT)
        if self.problem is not None:  # it has been refused once, and counted
            sent = pc.and_(sent, again.column(self.problem).is_null())
        return results, chain([again.filter(sent)], chunks)

    # -- what stands in for NULL -------------------------------------------------------------------------------

    def _completed(self, results: pa.RecordBatch, windows: Sequence[tuple[int, int]]) -> pa.RecordBatch:
        """Returns results of windows with the nearest values instead of NULLs."""
        sources: dict[int, dict[int, tuple[int, int]]] = {}
        operations = results.column(OPERATION.name)
        for place, values in self._values.items():
            column = results.column(f"r{place}")
            if not column.null_count:
                continue
            lacking = pc.and_(column.is_null(), pc.equal(operations, _UPSERT))
            for row in np.flatnonzero(lacking.to_numpy(zero_copy_only=False)).tolist():
                gid, start = windows[row]
                source = values.nearest(gid, start, forward=self._forward)
                if source is not None:
                    sources.setdefault(place, {})[row] = gid, source
        if not sources:
            return results
        needed = sorted({window for each in sources.values() for window in each.values()})
        rows = {window: results.num_rows + n for n, window in enumerate(needed)}
        pool = pa.concat_batches([results, self._results(needed)])
        for place, each in sources.items():
            chosen = np.arange(results.num_rows)
            chosen[list(each)] = [rows[window] for window in each.values()]
            at = results.schema.get_field_index(f"r{place}")
            results = results.set_column(at, results.schema.field(at), pool.column(at).take(pa.array(chosen)))
        return results

    def _depending(self, changed: Iterable[tuple[int, int, int]]) -> set[tuple[int, int]]:
        """Returns the windows with NULL that take their value from changed (column, group id, start)s, or took it."""
        found: set[tuple[int, int, int]] = set()
        for place, gid, start in changed:
            until = self._values[place].nearest(gid, start, forward=not self._forward)
            at = self._neighbour(gid, start)
            while at is not None and at != until and (place, gid, at) not in found:
                found.add((place, gid, at))
                at = self._neighbour(gid, at)
        return {(gid, start) for _, gid, start in found}

    def _neighbour(self, gid: int, start: int) -> int | None:
        """Returns the next window in the direction in which values are copied."""
        return self._index.before(gid, start) if self._forward else self._index.after(gid, start)

    def _around(self, gap: Gap, nulls: Collection[int]) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
        """Returns the windows from which the columns of a gap take what is before it, and what is after it.

        `nulls`: the columns in which windows have NULL.
        """
        if not gap.filled:
            return (None,) * len(self._plan.before), (None,) * len(self._plan.after)
        before = tuple(
            self._values[place].nearest(gap.gid, gap.last, forward=False) if place in nulls else gap.first
            for place in self._plan.before)
        after = tuple(
            self._values[place].nearest(gap.gid, gap.first, forward=True) if place in nulls else gap.last
            for place in self._plan.after)
        return before, after

    # -- which gaps --------------------------------------------------------------------------------------------

    def _gaps(
        self, rows: Iterable[tuple[int, int]], operations: Sequence[int], new: set[tuple[int, int]],
        depending: Iterable[tuple[int, int]],
    ) -> list[Gap]:
        gaps: dict[Gap, None] = {}
        for gid, start in depending:
            beyond = self._neighbour(gid, start)
            if beyond is not None:
                gaps[Gap(gid, min(start, beyond), max(start, beyond), True)] = None
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
        if (gap.last - gap.first) // self._grid.shortest_step <= MAX_FILLED:
            return True
        _log.warning("a gap of more than %d windows is not filled: group %d, from %d to %d",
                     MAX_FILLED, gap.gid, gap.first, gap.last)
        return False

    # -- their rows --------------------------------------------------------------------------------------------

    def _chunks(
        self, gaps: Sequence[Gap], places: Sequence[Places], pool: pa.RecordBatch, members: dict[int, int], taken: int
    ) -> Iterator[pa.RecordBatch]:
        batch = _Chunk()
        for gap, (before, after) in zip(gaps, places, strict=True):
            # Windows may have come since: results may be sent in several portions before what follows the first.
            there = self._between(gap) if not gap.filled or self._taken != taken else set()
            if gap.filled and there:
                continue  # what brought them fills the gaps beside them
            windows = (start for start in starts_between(gap.first, gap.last, self._grid) if start not in there)
            while True:
                starts = list(islice(windows, CHUNK_ROWS - len(batch.starts)))
                if not starts:
                    break
                batch.add(gap, starts, members[gap.gid], before, after)
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

    `member`, `before` and `after` are rows of a pool: those with its group and, for each column of the plan's,
    with what is before and after it (-1: none).
    """

    operations: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    member: npt.NDArray[np.int64]
    before: Sequence[npt.NDArray[np.int64]]
    after: Sequence[npt.NDArray[np.int64]]


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
        columns += [pool.column(f"r{n}").take(pa.array(chosen, mask=chosen < 0))
                    for n, chosen in zip(places, around, strict=True)]
    table = pa.Table.from_arrays(columns, schema=gaps)
    return computer.run(plan.sql, results, gaps=table)


class _Chunk:
    """Rows of several gaps, collected."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self._rest: list[tuple[int, tuple[int, ...]]] = []
        self._before = 0

    def add(self, gap: Gap, starts: list[int], member: int, before: Sequence[int], after: Sequence[int]) -> None:
        self.starts += starts
        self._before = len(before)
        operation = _UPSERT if gap.filled else _DELETE
        self._rest.append((len(starts), (operation, gap.first, gap.last, member, *before, *after)))

    def source(self) -> GapRows:
        counts = [count for count, _ in self._rest]
        columns = [np.repeat(np.array(values, np.int64), counts)
                   for values in zip(*(values for _, values in self._rest), strict=True)]
        operations, first, last, member, *around = columns
        return GapRows(operations.astype(np.uint8), np.array(self.starts, np.int64), first, last, member,
                       around[:self._before], around[self._before:])
