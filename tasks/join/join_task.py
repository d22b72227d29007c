"""The join task: keeps the rows of both sides that may still count, and runs the batch query over parts of them.

A result is final, and emitted, when the time of the join says that no partner can come any more (WINDOW_CLOSE). What
changes results that are emitted, or all under AT_ONCE, is computed before and after the change; the difference goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.planner.task_plans.stream_plan import Field, JoinPlan
from penstock.sql.types import UBIGINT
from penstock.tasks.compute.duckdb_computer import as_batch
from penstock.tasks.compute.group_index import GroupIndex
from penstock.tasks.join.side_rows import SideRows
from penstock.tasks.operators.windowed_operator import WindowedOperator
from penstock.tasks.protocol.block_schema import GROUP, OPERATION, REPLAYED_ROWS, result_schema
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import Watermark
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN

_ROWS_AT_ONCE = 1 << 18
"""So many rows of the driving side are computed at once, about, when time makes a leap."""
_ROWS_MERGED = 1 << 16
"""After so many rows results that are final are emitted although there is more to take."""
_SPANS_MAX = 16
_GROUPS_MAX = 1 << 14
_FAR = 1 << 62

Groups = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Span:
    """Results that may change: those at times in (first, last], of some groups (None: of all)."""

    first: int
    last: int
    groups: Groups | None


class JoinTask(WindowedOperator):
    """One join task of a stream: level "agg" of the task graph."""

    @property
    def _groups(self) -> GroupIndex:
        return self._groups_of_results

    def _set_up(self, inputs: int, deployment: StreamDeployment) -> None:
        join = self._plan.computation
        assert isinstance(join, JoinPlan)
        self._join = join
        self._groups_of_results = GroupIndex(self._plan.grouping.keys)
        self._left_sources = len(deployment.graph.vgroup_ids)
        schemas = []
        for side in join.sides:
            fields = [Field(f"r{n}", column.type) for n, column in enumerate(side.columns)]
            schemas.append(pa.schema(list(result_schema([Field("_tuid", UBIGINT)], fields))[1:]))
        self._sides = tuple(
            SideRows(self._store, prefix, schema, keyed=side.source.key_column is not None)
            for prefix, schema, side in zip((b"l", b"r"), schemas, join.sides, strict=True))
        self._schemas = schemas
        self._driver = 0 if join.driver == "left" else 1
        self._reach = (-_FAR if join.start is None else join.start, join.end)
        self._step = max(join.width, 1)
        self._arrived: list[tuple[int, int, pa.RecordBatch]] = []
        # An earlier attempt may have written other results than those that are computed now: while inputs send again
        # what it had, and up to the time that it may have come to.
        self._replaying = set(range(inputs)) if deployment.attempt > 1 else set()
        self._doubtful_until = TS_MAX if self._replaying else TS_MIN
        self._merged = 0
        #: results at times up to this one are emitted; None: none is
        self._settled: int | None = TS_MAX if self._plan.trigger == "at_once" else None
        self._due = False
        places = ["_gid", "r0", *(["r1"] if self._plan.sink.key_column is not None else [])]
        self._place = ", ".join(places)
        names = ", ".join(self._schema.names)
        values = ", ".join(f"{name} DESC NULLS LAST" for name in self._schema.names[1:])
        self._greatest_sql = (f"SELECT {names} FROM results QUALIFY "
                              f"row_number() OVER (PARTITION BY {self._place} ORDER BY {values}) = 1")
        same = " AND ".join(f"b.{name} IS NOT DISTINCT FROM a.{name}" for name in places)
        shown = ", ".join(f"b.{name}" for name in self._schema.names[1:])
        self._gone_sql = f"SELECT 1::UTINYINT AS _op, {shown} FROM before b ANTI JOIN after a ON {same}"
        self._fresh_sql = "SELECT * FROM after EXCEPT SELECT * FROM before"
        self._again_sql = "SELECT a.* FROM after a SEMI JOIN gone b ON a._gid = b._gid AND a.r0 = b.r0"

    # -- changes -----------------------------------------------------------------------------------------------

    def _merge(self, data: pa.RecordBatch, input: int) -> None:
        side = int(self._upstream[input].index >= self._left_sources)
        if data.column(OPERATION.name)[0].as_py() < REPLAYED_ROWS:
            self._note_replayed(input)
        data = self._remembered(data, side, input)
        if data.num_rows:
            self._arrived.append((side, input, data))

    def _remembered(self, data: pa.RecordBatch, side: int, input: int) -> pa.RecordBatch:
        """Returns rows without those that are older than what is kept: time may go on without an idle vnode."""
        until = self._forgotten(side)
        times = data.column("r0").to_numpy()
        if until is None or int(times.min()) >= until:
            return data
        gone = times < until
        put = data.column(OPERATION.name).to_numpy() % REPLAYED_ROWS == 0
        self._late_forgotten[self._upstream[input].index] += int((gone & put).sum())
        return data.filter(pa.array(~gone))

    def _show_merged(self) -> None:
        if not self._arrived:
            return
        changes = [
            pa.concat_batches([data for of, _, data in self._arrived if of == side])
            if any(of == side for of, _, _ in self._arrived) else None for side in (0, 1)]
        spans = self._touched(changes)
        self._arrived.clear()
        before = [self._answer(span) for span in spans]
        doubtful = self._doubtful
        if doubtful:
            if self._settled != TS_MAX:
                self._withdraw_unknown(changes)
            before = [pa.concat_batches([known, self._places(span, *self._involved(span, changes))])
                      for span, known in zip(spans, before, strict=True)]
        for rows, change in zip(self._sides, changes, strict=True):
            if change is not None:
                self._merged += change.num_rows
                rows.apply(change)
        for span, known in zip(spans, before, strict=True):
            self._send_difference(known, self._answer(span), certain=not doubtful)
        for rows in self._sides:
            rows.spill(self._settings.state_memory_bytes // 2)

    def _touched(self, changes: Sequence[pa.RecordBatch | None]) -> list[Span]:
        """Returns which of the results that are emitted some changes may change."""
        settled = self._settled
        if settled is None:
            return []
        firsts, lasts, groups = [], [], []
        for side, change in enumerate(changes):
            if change is None:
                continue
            first, last = self._places_of(side, change.column("r0").to_numpy())
            known = first < settled
            if known.any():
                self._note_late(side, known)
                firsts.append(first[known])
                lasts.append(last[known])
                groups.append(change.column(GROUP.name).to_numpy()[known])
        if not firsts:
            return []
        first, last, gids = np.concatenate(firsts), np.concatenate(lasts), np.concatenate(groups)
        last = np.minimum(last, settled)
        order = np.argsort(first, kind="stable")
        first, last, gids = first[order], last[order], gids[order]
        reached = np.maximum.accumulate(last)
        gaps = np.flatnonzero(first[1:] > reached[:-1]) + 1
        if len(gaps) >= _SPANS_MAX:
            wide = np.argsort(first[gaps] - reached[gaps - 1])[-_SPANS_MAX + 1:]
            gaps = np.sort(gaps[wide])
        bounds = [0, *gaps.tolist(), len(first)]
        return [Span(int(first[a]), int(reached[b - 1]), self._groups_of(gids[a:b]))
                for a, b in pairwise(bounds)]

    def _places_of(self, side: int, times: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns between which times, (first, last], the results are that a row of a side may have part in."""
        start, end = self._reach
        if side == self._driver:
            # It may leave rows of the other side alone, or not.
            reach = (min(start, 0), max(end, 0)) if self._join.both else (0, 0)
        elif self._join.both:
            reach = -max(end, 0), -min(start, 0)
        else:
            reach = -end, -start
        last = np.full(len(times), _FAR) if reach[1] >= _FAR else times + reach[1]
        return times + reach[0], last + self._step

    def _groups_of(self, gids: Groups) -> Groups | None:
        distinct = np.unique(gids)
        return None if len(distinct) > _GROUPS_MAX or not distinct.any() else distinct

    def _note_late(self, side: int, late: npt.NDArray[np.bool_]) -> None:
        """Counts the rows whose results were emitted before they came; under AT_ONCE none is late."""
        if self._plan.trigger == "at_once":
            return
        start = 0
        for of, input, data in self._arrived:
            if of == side:
                put = data.column(OPERATION.name).to_numpy() % REPLAYED_ROWS == 0
                self._late_kept[self._upstream[input].index] += int((late[start:start + data.num_rows] & put).sum())
                start += data.num_rows

    # -- results -----------------------------------------------------------------------------------------------

    def _answer(self, span: Span) -> pa.RecordBatch:
        """Returns the results of a span as the rows are now, one per place in the target."""
        start, end = self._reach
        # Of the driving side, times from `first` on up to `last`.
        first, last = span.first - self._step + 1, span.last - 1
        driving_first, driving_last = first, last
        other_first, other_last = first + start, last + end
        if self._join.both:
            driving_first, driving_last = first - max(end, 0), last - min(start, 0)
            other_first, other_last = first + min(start, 0), last + max(end, 0)
        driving = _of_groups(self._sides[self._driver].between(driving_first, driving_last), span.groups)
        if not driving.num_rows and not self._join.both:
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        others = self._sides[1 - self._driver]
        if start == -_FAR:
            other = _of_groups(others.until(other_last), span.groups)
        else:
            other = _of_groups(others.between(other_first, other_last), span.groups)
        relations = {"left_rows": driving, "right_rows": other}
        if self._driver == 1:
            relations = {"left_rows": other, "right_rows": driving}
        return self._one_per_place(self._in_span(span, self._computer.table(self._join.sql, **relations)))

    # -- what an earlier attempt may have written ----------------------------------------------------------------

    @property
    def _doubtful(self) -> bool:
        if self._replaying:
            return True
        return self._plan.trigger != "at_once" and (self._settled is None or self._settled < self._doubtful_until)

    def _note_replayed(self, input: int) -> None:
        """An input has come to where the earlier attempt can't have been."""
        if input in self._replaying:
            self._replaying.discard(input)
            if not self._replaying:
                self._doubtful_until = max([*self._watermarks.known().values(), self._settled or TS_MIN])

    def _on_watermark(self, input: int, watermark: Watermark) -> None:
        super()._on_watermark(input, watermark)
        if watermark.idle:  # it has read its log to the end
            self._note_replayed(input)

    def _places(self, span: Span, driving: pa.Table, other: pa.Table) -> pa.RecordBatch:
        """Returns results in all places of a span in which rows, which are near it in time, may have some."""
        found = []
        for side, rows in ((self._driver, driving), (1 - self._driver, other)):
            if rows.num_rows and (side == self._driver or self._join.both):
                tables = [pa.Table.from_batches([], schema=schema) for schema in self._schemas]
                tables[side] = rows
                found.append(self._computer.table(
                    self._join.places_sql, left_rows=tables[0], right_rows=tables[1]))
        if not found:
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        return self._in_span(span, pa.concat_tables(found))

    def _involved(self, span: Span, changes: Sequence[pa.RecordBatch | None]) -> tuple[pa.Table, pa.Table]:
        """Returns the rows of both sides, driving ones first, that are there, come, or go at the times of a span."""
        first, last = span.first - self._step + 1, span.last - 1
        found = []
        for side in (self._driver, 1 - self._driver):
            rows, change = self._sides[side].between(first, last), changes[side]
            if change is not None:
                times = change.column("r0")
                near = change.filter(pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last)))
                rows = pa.concat_tables([rows, pa.Table.from_batches([near]).select(rows.schema.names)])
            found.append(_of_groups(rows, span.groups))
        return found[0], found[1]

    def _withdraw_unknown(self, changes: Sequence[pa.RecordBatch | None]) -> None:
        """Withdraws what may be written in places of rows that go, or are written anew, and isn't settled."""
        settled = TS_MIN if self._settled is None else self._settled
        span = Span(max(settled, -_FAR), _FAR, None)
        found = []
        for side in (self._driver, 1 - self._driver):
            change = changes[side]
            if change is None:
                found.append(pa.Table.from_batches([], schema=self._schemas[side]))
                continue
            times = change.column("r0").to_numpy()
            stored = self._sides[side].between(int(times.min()), int(times.max()))
            stored = stored.filter(pa.array(np.isin(stored.column("r0").to_numpy(), times)))
            gone = change.filter(pa.array(change.column(OPERATION.name).to_numpy() % REPLAYED_ROWS == 1))
            rows = pa.concat_tables([stored, pa.Table.from_batches([gone]).select(stored.schema.names)])
            found.append(rows.filter(pc.greater(rows.column("r0"), span.first - self._step)))
        places = self._places(span, found[0], found[1])
        self._send(places.set_column(0, OPERATION, pa.repeat(pa.scalar(1, pa.uint8()), places.num_rows)))

    def _in_span(self, span: Span, found: pa.Table) -> pa.RecordBatch:
        """Returns what the query yields without what is outside of a span."""
        if self._join.both or self._join.windows is not None:
            at = found.column(0)
            found = found.filter(pc.and_(pc.greater(at, span.first), pc.less_equal(at, span.last)))
        return as_batch(found.drop_columns("_at"), self._schema)

    def _one_per_place(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """Returns of results with the same place in the target the greatest one, by its values from left to right."""
        if self._join.windows is not None or results.num_rows < 2:
            return results
        if self._plan.sink.key_column is None:
            gids, times = results.column(GROUP.name).to_numpy(), results.column("r0").fill_null(0).to_numpy()
            order = np.lexsort((gids, times))
            same = (gids[order][1:] == gids[order][:-1]) & (times[order][1:] == times[order][:-1])
            if not same.any():
                return results
        return self._computer.run(self._greatest_sql, self._schema, results=pa.Table.from_batches([results]))

    def _send_difference(self, before: pa.RecordBatch, after: pa.RecordBatch, *, certain: bool) -> None:
        """Sends what makes `after` of the results `before`; of these, if not `certain`, none may be as it is here."""
        if not before.num_rows:
            self._send(after)
            return
        tables = {"before": pa.Table.from_batches([before]), "after": pa.Table.from_batches([after])}
        gone = self._computer.run(self._gone_sql, self._schema, **tables)
        fresh = self._computer.run(self._fresh_sql, self._schema, **tables) if certain else after
        self._send(gone)
        self._send(fresh)
        if self._plan.sink.key_column is not None and gone.num_rows and certain:
            # Where the target's key has two parts, a delete takes all rows of its time along.
            self._send(self._computer.run(self._again_sql, self._schema, after=tables["after"],
                                          gone=pa.Table.from_batches([gone])))

    def _send(self, results: pa.RecordBatch) -> None:
        if results.num_rows:
            self._route(results)

    # -- time --------------------------------------------------------------------------------------------------

    def _close_windows(self) -> None:
        self._due = True

    def _go_on(self) -> bool:
        return self._due and self._merged >= _ROWS_MERGED and self._catch_up()

    def _catch_up(self) -> bool:
        """Emits results that are final by now, as many as are computed at once."""
        if not self._due:
            return False
        self._due = False
        self._merged = 0
        until = self._closed_until
        if until is None:
            return True
        if self._plan.trigger != "at_once":
            self._settle(until - self._join.waits)
        if not self._due:
            self._forget()
        return True

    def _settle(self, until: int) -> None:
        """Emits the results at times up to `until` that aren't emitted yet, or the first of them; the rest is due."""
        settled = self._settled
        if settled is not None and until <= settled:
            return
        first = self._first_open(settled)
        if first is None or self._next_place(first) > until:
            self._settled = until
            return
        start = first if settled is None else max(settled, first)
        last = min(until, self._sides[self._driver].end_of_rows(start, until, _ROWS_AT_ONCE) + 1)
        last = max(last, self._next_place(first))
        if last < until:
            self._due = True
        span = Span(start, last, None)
        results = self._answer(span)
        if self._doubtful:
            self._send_difference(self._places(span, *self._involved(span, (None, None))), results, certain=False)
        else:
            self._send(results)
        self._settled = last

    def _first_open(self, settled: int | None) -> int | None:
        """Returns the least time of a row whose result may not be emitted yet."""
        after = TS_MIN if settled is None else settled - self._step + 1
        sides = self._sides if self._join.both else (self._sides[self._driver],)
        return min((found for rows in sides if (found := rows.first_from(after)) is not None), default=None)

    def _next_place(self, ts: int) -> int:
        """Returns the time of the first result that isn't emitted yet and may have part of rows from `ts` on."""
        if self._join.windows is None:
            return ts + 1
        if self._settled is not None:
            ts = max(ts, self._settled)
        return min(end for _, end in self._join.windows.bounds(ts))

    def _next_closing(self) -> int | None:
        if self._plan.trigger == "at_once":
            return None
        first = self._first_open(self._settled)
        return None if first is None else self._next_place(first) + self._join.waits + self._plan.policies.time.lateness

    def _forgotten(self, side: int) -> int | None:
        """Returns before which time rows of a side count no more, None while all do."""
        until = self._closed_until
        if until is None:
            return None
        return until - self._join.kept_of(side, self._plan.policies.delete_mark)

    def _forget(self) -> None:
        for side, rows in enumerate(self._sides):
            until = self._forgotten(side)
            if until is not None:
                rows.forget(until, self._newest_of(side))

    def _newest_of(self, side: int) -> Callable[[pa.Table], pa.RecordBatch] | None:
        """Returns what chooses of forgotten rows those that may still be found, if any may."""
        sql, schema = self._join.sides[side].newest_sql, self._schemas[side]
        return None if sql is None else lambda rows: self._computer.run(sql, schema, rows=rows)

    def _emit_delayed(self) -> None:
        """Nothing waits by the clock."""

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def _table_bytes(self) -> int:
        return sum(rows.memory_bytes for rows in self._sides)

    def _own_state(self) -> Mapping[str, Any]:
        for rows in self._sides:
            rows.save()
        return {"settled": self._settled}

    def _restore(self, meta: dict[str, Any]) -> None:
        for rows in self._sides:
            rows.restore()
        self._settled = meta["settled"]
        self._due = True


def _of_groups(rows: pa.Table, groups: Groups | None) -> pa.Table:
    if groups is None or not rows.num_rows:
        return rows
    return rows.filter(pa.array(np.isin(rows.column(GROUP.name).to_numpy(), groups)))
