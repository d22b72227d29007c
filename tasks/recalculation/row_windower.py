"""Cuts one vnode's rows into segments of SESSION, STATE, EVENT or COUNT windows: partials for the agg task.

Rows newer than all of their group extend what is there (`segments.Carry`). Everything else, such as late rows, updates
and deletes, is recalculated: a stretch of the time line whose ends the change cannot have moved is read back from the
store as of the block's last version, and its segments take the place of all that were sent for it. For sessions a late
row is no change: the agg task merges segments that are close.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.planner.task_plans.stream_plan import LAST_ROW, StreamPlan
from penstock.tasks.compute.child_tables import MovedTables
from penstock.tasks.compute.first_stage import FirstStage
from penstock.tasks.compute.lateness import LATE, UPDATED, ClassifiedRows
from penstock.tasks.compute.row_segments import (
    GROUP_COLUMN,
    TIME_COLUMN,
    Assigned,
    Bools,
    Carry,
    TimeLines,
    Times,
    as_array,
    assign,
    differs,
    flags,
)
from penstock.tasks.protocol.block_schema import GROUP, ROWS, WINDOW_START
from penstock.tasks.recalculation.expired_rows import EXPIRED, ExpiredRows, TimeRange
from penstock.tasks.recalculation.recalculation import Change, Recalculation
from penstock.tasks.recalculation.stored_rows import ReadRows
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.state.stored_values import damaged, pack, unpack
from penstock.wal.record import AnyDelete

ROW_COLUMN = "#row"
DOUBTFUL = -1
TS_MIN, TS_MAX = -(2**63), 2**63 - 1
_CARRY, _OLDEST = b"c", b"o"
_GROUP_KEY = struct.Struct(">cQ")
_FIRST_REACH_MS = 60_000
_REACH_GROWTH = 8


@dataclass(frozen=True, slots=True)
class _Span:
    """Part of a group's time line that changed: from `first` to `last`, and once it is `found`, what that drags along.

    All segments from `low` to `high` (None: to the end) are to be replaced by those of `rows`. `needed`: how many
    rows before `first` belong to it (count). `position`: that of its first row (count).
    """

    gid: int
    first: int
    last: int
    needed: int = 0
    position: int = 0
    low: int = 0
    high: int | None = None
    rows: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class WindowedBlock:
    """What a block of rows and deletes comes to. `rows`: how many of its rows may be in windows. `late`: the numbers of
    those that are left out since they came too late; `late_kept`: how many that are in windows were as late, but count.
    """

    partials: pa.RecordBatch | None
    rows: int
    late: npt.NDArray[np.int64]
    late_kept: int


class Windower:
    """One source task's windows. `read_rows` must leave out rows that are older than the stream."""

    def __init__(self, plan: StreamPlan, schema: pa.Schema, first_stage: FirstStage, recalculation: Recalculation,
                 read_rows: ReadRows, store: StateStore) -> None:
        assert plan.row_window is not None
        self._plan = plan
        self._window = plan.row_window
        self._schema = schema
        self._first_stage = first_stage
        self._recalculation = recalculation
        self._read_rows = read_rows
        self._store = store
        self._carries: dict[int, Carry] = {}
        self._changed: set[int] = set()
        self._oldest: int | None = None
        self._expired_rows = ExpiredRows(store)
        per_ms = {"ms": 1, "us": 1_000, "ns": 1_000_000}[plan.source.precision]
        self._reach = max(_FIRST_REACH_MS * per_ms, 4 * self._window.gap)

    # -- what the source task calls ----------------------------------------------------------------------------

    def process(
        self, classified: ClassifiedRows | None, deletes: Sequence[AnyDelete], versions: tuple[int, int],
        newest: int | None, *, replayed: bool, moved: MovedTables | None = None,
    ) -> WindowedBlock:
        """Cuts a block of rows and deletes into partials, or what child tables come to that `moved`.

        A partial without rows says: all segments of its group between `_wstart` and `_wlast` are void. `versions`: the
        WAL versions around the block. `newest`: the newest time of the vnode, this block included. If the block is
        `replayed`, partials with `DOUBTFUL` rows name all starts of windows that an earlier attempt may have seen: it
        may have processed the same records in other blocks, and died before it withdrew what is now never made.
        """
        rows = expired = updated = None
        late: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        late_kept = 0
        if classified is not None:
            expired = self._expired(classified)
            updated = self._updated(classified, expired)
            numbers = pa.array(np.arange(len(classified.ts)))
            numbered_rows = classified.rows.append_column(ROW_COLUMN, numbers)
            kept = self._in_windows(numbered_rows, in_order=classified.change is None)
            numbered = kept.column(ROW_COLUMN).to_numpy()
            if expired is not None:
                dropped = expired[numbered]
                late = np.sort(numbered[dropped])
                new_keys = kept.filter(pa.array(dropped & (_of(classified.change, numbered) == LATE)))
                kept = kept.filter(pa.array(~dropped))
            else:
                new_keys = kept.slice(0, 0)
            rows = kept
            older = classified.ts < classified.limit
            late_kept = int(older[rows.column(ROW_COLUMN).to_numpy()].sum()) if older.any() else 0
            self._note_oldest(rows)
        change = Change(classified.rows if classified is not None else None, updated, tuple(deletes), *versions, moved)
        sources = self._changed_rows(change, classified, rows)
        moving = self._moved_rows(change) if moved is not None else []
        changed = _times_of([*sources, *(table for table, _ in moving)])
        if self._window.kind == "count" and rows is not None:
            # All positions behind a change are in doubt: also those of rows that only follow in the same block.
            groups = pc.is_in(rows.column(GROUP_COLUMN), changed.column(GROUP_COLUMN).combine_chunks())
            changed = pa.concat_tables([changed, _times_of([rows.filter(groups)])])
        stretches = self._stretches(changed, change)
        self._expired_rows.forget_deleted(deletes)
        if classified is not None and new_keys.num_rows:
            self._expired_rows.add(new_keys)
        tuids = self._tables_of(changed)
        stretches = self._found(stretches, tuids, change.after, newest)
        batches = self._partials(rows, stretches)
        if replayed:
            sources += [stretch.rows for stretch in stretches if stretch.rows is not None]
            batches += self._doubtful(sources if rows is None else [*sources, rows])
            for table, children in moving:
                with self._first_stage.told(children):
                    batches += self._doubtful([table])
        taken = 0 if rows is None else rows.num_rows
        if not batches:
            return WindowedBlock(None, taken, late, late_kept)
        partials = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        return WindowedBlock(partials, taken, late, late_kept)

    def recalculate(
        self, rows: pa.Table, late: Sequence[TimeRange], readmit: Callable[[], None], version: int, newest: int | None,
        *, replayed: bool
    ) -> pa.RecordBatch | None:
        """Returns partials that take the place of all segments around `rows`, or None.

        `rows`: the relation `rows` of all that is stored in some range as of a version of the WAL. Rows of the ranges
        `late` that came expired count from now on, and so does what `readmit` makes `read_rows` return: it is called
        once the windows that there are have been found.
        """
        rows = self._in_windows(rows)
        changed = _times_of([rows])
        stretches = self._stretches(changed, Change(None, None, (), version, version))
        readmit()
        self._expired_rows.forget(late)
        stretches = self._found(stretches, self._tables_of(changed), version, newest)
        if not stretches:
            return None
        batches = self._partials(None, stretches)
        if replayed:
            batches += self._doubtful([rows, *(stretch.rows for stretch in stretches if stretch.rows is not None)])
        return pa.concat_batches(batches)

    def save(self) -> None:
        """Hands what changed since the last call to the store."""
        for gid in self._changed:
            carry = self._carries.get(gid)
            value = None if carry is None else _packed(carry)
            self._store.put_many([(_GROUP_KEY.pack(_CARRY, gid), value)])
        self._changed = set()
        if self._oldest is not None:
            self._store.put_many([(_OLDEST, pack(self._oldest))])

    def restore(self) -> None:
        """Takes over what the store holds."""
        for key, value in self._store.items():
            if key.startswith(_CARRY):
                self._carries[_GROUP_KEY.unpack(key)[1]] = _carry(value)
            elif key.startswith(EXPIRED):
                self._expired_rows.found()
            elif key == _OLDEST:
                self._oldest = int(unpack(value, "the oldest time of a task"))

    # -- which rows --------------------------------------------------------------------------------------------

    def _in_windows(self, rows: pa.Table, *, in_order: bool = False) -> pa.Table:
        """Returns the rows that may be in windows, sorted by group and time, with their marks."""
        return self._first_stage.in_windows(rows, in_order=in_order)

    def _expired(self, classified: ClassifiedRows) -> Bools | None:
        """Returns which rows are expired: older than their table's newest row and than the watermark."""
        if not self._plan.policies.ignore_expired or classified.change is None or classified.last is None:
            return None
        ts = classified.ts
        expired: Bools = (classified.change != 0) & (ts < classified.limit) & (ts < classified.last)
        return expired if expired.any() else None

    def _updated(self, classified: ClassifiedRows, expired: Bools | None) -> Bools | None:
        """Returns which rows rewrite a key and count as changes, or None if none do."""
        if classified.change is None or not self._plan.counts_updates:
            return None
        updated: Bools = classified.change == UPDATED
        if expired is not None:
            updated &= ~expired
        return updated if updated.any() else None

    def _read(self, tuids: pa.Array | None, first_ts: int, last_ts: int, as_of: int) -> pa.Table:
        """Returns the stored rows in windows of that version, without those that came expired."""
        rows = self._in_windows(self._read_rows(tuids, first_ts, last_ts, as_of))
        return self._expired_rows.removed_from(rows, first_ts, last_ts)

    def _note_oldest(self, rows: pa.Table) -> None:
        if rows.num_rows:
            oldest = int(rows.column(TIME_COLUMN).to_numpy().min())
            self._oldest = oldest if self._oldest is None else min(oldest, self._oldest)

    # -- what changed ------------------------------------------------------------------------------------------

    def _changed_rows(self, change: Change, classified: ClassifiedRows | None, rows: pa.Table | None) -> list[pa.Table]:
        """Returns all rows that are gone, rewritten or came late, old and new ones, where they are in windows."""
        found = []
        touched = self._recalculation.changed_rows(change)
        if touched is not None:
            found.append(self._in_windows(touched))
        if change.updated is not None or change.deletes:
            found.append(self._in_windows(self._recalculation.old_rows(change)))
        if self._window.kind != "session" and classified is not None and classified.change is not None:
            assert rows is not None
            found.append(rows.filter(pa.array(classified.change[rows.column(ROW_COLUMN).to_numpy()] != 0)))
        return found

    def _moved_rows(self, change: Change) -> list[tuple[pa.Table, pa.Table]]:
        """Returns the rows of child tables that move, where they are in windows, and the tags that they have then."""
        assert change.moved is not None
        found = []
        for rows, children in self._recalculation.rows_of_moved(change, change.moved):
            with self._first_stage.told(children):
                found.append((self._in_windows(rows), children))
        return found

    def _tables_of(self, changed: pa.Table) -> pa.Array | None:
        """Returns the tables that the changed groups consist of, or None if a group may have rows of any."""
        if not self._plan.grouping.colocated:
            return None
        return pa.array(np.unique(changed.column("_tuid").to_numpy()), pa.uint64())

    def _stretches(self, changed: pa.Table, change: Change) -> list[_Span]:
        """Returns the changes as stretches: those of a group that are close together become one."""
        order = np.lexsort((changed.column(TIME_COLUMN).to_numpy(), changed.column(GROUP_COLUMN).to_numpy()))
        lines = TimeLines.of(changed.select([GROUP_COLUMN, TIME_COLUMN]).take(pa.array(order)))
        stretches = []
        for gid, first, last in zip(lines.gids, lines.first.tolist(), lines.last.tolist(), strict=True):
            ts = lines.ts[first : last + 1]
            cuts = np.flatnonzero(np.diff(ts) > 2 * self._reach) + 1
            if self._window.kind == "count":
                cuts = cuts[:0]
            stretches += [_Span(gid, int(part[0]), int(part[-1])) for part in np.split(ts, cuts)]
        if self._window.kind != "count":
            return stretches
        if change.moved is not None:  # what is counted behind a change is not what was counted there before
            return [replace(stretch, first=TS_MIN) for stretch in stretches]
        return self._positioned(stretches, self._tables_of(changed), change.before) if stretches else []

    def _positioned(self, stretches: list[_Span], tuids: pa.Array | None, before: int) -> list[_Span]:
        """Finds the position of each change by counting the rows behind it, as of before the block.

        The store may disagree with what was counted, after a change of a tag that WHERE asks for, say: then the group
        is computed anew from its beginning.
        """
        old = TimeLines.of(self._read(tuids, min(s.first for s in stretches), TS_MAX, before))
        lines = {gid: old.ts[first : last + 1] for gid, first, last in
                 zip(old.gids, old.first.tolist(), old.last.tolist(), strict=True)}
        count, sliding = self._window.count, self._window.sliding
        result = []
        for stretch in stretches:
            carry = self._carries.get(stretch.gid)
            behind = int((lines[stretch.gid] >= stretch.first).sum()) if stretch.gid in lines else 0
            position = (carry.rows if carry is not None else 0) - behind
            if position < 0:
                result.append(replace(stretch, first=TS_MIN))
                continue
            start = max(0, -((count - 1 - position) // sliding)) * sliding
            result.append(replace(stretch, needed=position - start, position=start))
        return result

    # -- how far changes reach ---------------------------------------------------------------------------------

    def _found(
        self, stretches: list[_Span], tuids: pa.Array | None, as_of: int, newest: int | None
    ) -> list[_Span]:
        """Returns the stretches with their ends and rows, those that overlap as one."""
        found: list[_Span] = []
        while stretches:
            found += self._read_stretches(stretches, tuids, as_of, newest)
            found, stretches = self._merged(found)
        return found

    def _read_stretches(
        self, stretches: Sequence[_Span], tuids: pa.Array | None, as_of: int, newest: int | None
    ) -> list[_Span]:
        """Reads around stretches, further each time, until the ends of all of them are seen."""
        found: list[_Span] = []
        reach = self._reach
        pending = sorted(stretches, key=lambda stretch: stretch.first)
        while pending:
            unseen: list[_Span] = []
            for near in _runs(pending, 2 * reach):
                low = max(TS_MIN, near[0].first - reach)
                high = min(TS_MAX, max(stretch.last for stretch in near) + reach)
                if self._window.kind == "count":
                    high = TS_MAX
                rows = self._read(tuids, low, high, as_of)
                whole_past = low == TS_MIN or self._oldest is None or low <= self._oldest
                whole_future = high == TS_MAX or newest is None or high >= newest
                lines = TimeLines.of(rows)
                spans = {gid: (first, last + 1) for gid, first, last in
                         zip(lines.gids, lines.first.tolist(), lines.last.tolist(), strict=True)}
                for stretch in near:
                    first, end = spans.get(stretch.gid, (0, 0))
                    part = rows.slice(first, end - first)
                    seen = self._ends(stretch, part, None if whole_past else low, None if whole_future else high)
                    (unseen if seen is None else found).append(stretch if seen is None else seen)
            pending, reach = unseen, reach * _REACH_GROWTH
        return found

    def _ends(self, stretch: _Span, rows: pa.Table, low: int | None, high: int | None) -> _Span | None:
        """Returns the stretch with its ends, or None if they lie outside of `rows`.

        `rows`: those of the group from `low` (None: from the beginning) to `high` (None: to the end).
        """
        ts = rows.column(TIME_COLUMN).to_numpy()
        before = int(np.searchsorted(ts, stretch.first, "left"))
        after = int(np.searchsorted(ts, stretch.last, "right"))
        match self._window.kind:
            case "session":
                return _session_ends(stretch, rows, ts, self._window.gap, before, after, low, high)
            case "count":
                start = before - stretch.needed
                if start >= 0:
                    return _cut(stretch, rows, ts, start, len(ts), None)
                if low is not None:
                    return None
                return _cut(replace(stretch, first=TS_MIN, position=0), rows, ts, 0, len(ts), None)
        carry = self._carries.get(stretch.gid)
        settled = carry.last if carry is not None else TS_MIN
        if self._window.kind == "state":
            new = differs(as_array(rows.column("#state")))  # new[n]: row n + 1 has another state than row n
            starts = np.flatnonzero(new[: max(0, before - 1)]) + 1
            nexts = np.flatnonzero(new[after:]) + after + 1
        else:
            ends = flags(rows, "#ends")
            starts = np.flatnonzero(ends[:before]) + 1
            nexts = np.flatnonzero(ends[after:]) + after + 1
        if not len(starts) and low is not None:
            return None
        start = int(starts[-1]) if len(starts) else 0
        # Rows of this very block cannot end a stretch: the carry, which they build on, is from before.
        if len(nexts):
            end = int(nexts[0])
            border = int(ts[end]) if self._window.kind == "state" else int(ts[end - 1])
            if border <= settled:
                return _cut(stretch, rows, ts, start, end, border - 1 if self._window.kind == "state" else border)
        return None if high is not None else _cut(stretch, rows, ts, start, len(ts), None)

    def _merged(self, found: list[_Span]) -> tuple[list[_Span], list[_Span]]:
        """Returns the stretches that stand apart, and unions of those that overlap, to be read again."""
        apart: list[_Span] = []
        unions: list[_Span] = []
        found = sorted(found, key=lambda stretch: (stretch.gid, stretch.low))
        place = 0
        while place < len(found):
            members = [found[place]]
            high = _high(members[0])
            place += 1
            while (place < len(found) and found[place].gid == members[0].gid
                   and found[place].low <= min(high, TS_MAX - self._window.gap) + self._window.gap):
                members.append(found[place])
                high = max(high, _high(found[place]))
                place += 1
            if len(members) == 1:
                apart += members
            else:
                unions.append(_Span(members[0].gid, members[0].first, max(member.last for member in members)))
        return apart, unions

    # -- partials ----------------------------------------------------------------------------------------------

    def _partials(self, rows: pa.Table | None, stretches: Sequence[_Span]) -> list[pa.RecordBatch]:
        parts: list[pa.Table] = []
        if rows is not None:
            rows = self._not_within(rows, stretches)
            assigned = assign(self._window, rows, self._carries)
            parts.append(self._windowed(rows, assigned))
            self._carry(assigned.carries)
        for stretch in stretches:
            assert stretch.rows is not None
            carries = {stretch.gid: Carry(stretch.low - 1, rows=stretch.position, floor=stretch.position)}
            assigned = assign(self._window, stretch.rows, carries)
            parts.append(self._windowed(stretch.rows, assigned))
            if stretch.high is None:
                self._carry(assigned.carries or (carries if stretch.position else {stretch.gid: None}))
        parts = [part for part in parts if part.num_rows]
        batches = [self._void(stretches)] if stretches else []
        if parts:
            windowed = pa.concat_tables(parts)
            batches.append(self._first_stage.segments(windowed))
        return batches

    def _doubtful(self, sources: Sequence[pa.Table]) -> list[pa.RecordBatch]:
        """Returns partials that name the times of all these rows."""
        rows = pa.concat_tables([_unnumbered(table) for table in sources]) if sources else None
        if rows is None or not rows.num_rows:
            return []
        named = self._first_stage.segments_by_row(rows)
        place = self._schema.get_field_index(ROWS.name)
        return [named.set_column(place, ROWS, pa.array(np.full(named.num_rows, DOUBTFUL)))]

    def _not_within(self, rows: pa.Table, stretches: Sequence[_Span]) -> pa.Table:
        """Returns the rows that no stretch contains."""
        if not stretches or not rows.num_rows:
            return rows
        lines = TimeLines.of(rows)
        outside = np.ones(len(lines.ts), bool)
        spans = {gid: (first, last + 1) for gid, first, last in
                 zip(lines.gids, lines.first.tolist(), lines.last.tolist(), strict=True)}
        for stretch in stretches:
            first, end = spans.get(stretch.gid, (0, 0))
            ts = lines.ts[first:end]
            outside[first:end] &= (ts < stretch.low) | (ts > _high(stretch))
        return rows.filter(pa.array(outside))

    def _windowed(self, rows: pa.Table, assigned: Assigned) -> pa.Table:
        """Returns the relation `windowed`."""
        taken = _unnumbered(rows)
        if len(assigned.rows) != rows.num_rows or self._window.kind in ("event", "count"):
            taken = taken.take(pa.array(assigned.rows))
        return taken.append_column(WINDOW_START.name, pa.array(assigned.starts))

    def _carry(self, carries: Mapping[int, Carry | None]) -> None:
        for gid, carry in carries.items():
            if carry is None:
                self._carries.pop(gid, None)
            else:
                self._carries[gid] = carry
            self._changed.add(gid)

    def _void(self, stretches: Sequence[_Span]) -> pa.RecordBatch:
        """Returns partials without rows, each of which makes a stretch void."""
        values: dict[str, pa.Array] = {
            GROUP.name: pa.array([stretch.gid for stretch in stretches], pa.uint64()),
            WINDOW_START.name: pa.array([stretch.low for stretch in stretches], pa.int64()),
            ROWS.name: pa.array([0] * len(stretches), pa.int64()),
            LAST_ROW: pa.array([_high(stretch) for stretch in stretches], pa.int64()),
        }
        columns = [values[field.name] if field.name in values else pa.nulls(len(stretches), field.type)
                   for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _times_of(sources: Sequence[pa.Table]) -> pa.Table:
    """Returns group, time and table of rows from several tables."""
    schema = pa.schema([(GROUP_COLUMN, pa.uint64()), (TIME_COLUMN, pa.int64()), ("_tuid", pa.uint64())])
    return pa.concat_tables([schema.empty_table(), *(table.select(schema.names) for table in sources)])


def _unnumbered(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([ROW_COLUMN]) if ROW_COLUMN in rows.column_names else rows


def _session_ends(
    stretch: _Span, rows: pa.Table, ts: Times, gap: int, before: int, after: int, low: int | None, high: int | None
) -> _Span | None:
    """Returns the stretch out to the next gaps in the rows around it."""
    start, first = before, stretch.first
    if before and first - int(ts[before - 1]) <= gap:
        breaks = np.flatnonzero(np.diff(ts[:before]) > gap)
        start = int(breaks[-1]) + 1 if len(breaks) else 0
        first = int(ts[start])
    if start == 0 and low is not None and first - gap <= low:
        return None
    end, last = after, stretch.last
    if after < len(ts) and int(ts[after]) - last <= gap:
        breaks = np.flatnonzero(np.diff(ts[after:]) > gap)
        end = after + int(breaks[0]) + 1 if len(breaks) else len(ts)
        last = int(ts[end - 1])
    if end == len(ts) and high is not None and last + gap >= high:
        return None
    return replace(stretch, low=first, high=last, rows=rows.slice(start, end - start))


def _cut(
    stretch: _Span, rows: pa.Table, ts: Times, start: int, end: int, high: int | None
) -> _Span:
    low = min(stretch.first, int(ts[start])) if start < len(ts) else stretch.first
    return replace(stretch, low=low, high=high, rows=rows.slice(start, end - start))


def _runs(stretches: Iterable[_Span], apart: int) -> list[list[_Span]]:
    """Returns sorted stretches in runs of those that lie less than `apart` from each other."""
    runs: list[list[_Span]] = []
    last = TS_MIN
    for stretch in stretches:
        if runs and stretch.first - last <= apart:
            runs[-1].append(stretch)
        else:
            runs.append([stretch])
        last = max(last, stretch.last)
    return runs


def _high(stretch: _Span) -> int:
    return TS_MAX if stretch.high is None else stretch.high


def _of(values: npt.NDArray[np.uint8] | None, rows: Times) -> npt.NDArray[np.uint8]:
    return np.zeros(len(rows), np.uint8) if values is None else values[rows]


def _packed(carry: Carry) -> bytes:
    return pack([carry.last, carry.start, carry.state, carry.rows, list(carry.starts.items()), carry.floor])


def _carry(stored: bytes) -> Carry:
    """Raises CorruptionError if it isn't what `_packed` made."""
    what = "where a group of a task stands"
    try:
        last, start, state, rows, starts, floor = unpack(stored, what)
        if not all(isinstance(number, int) for number in (last, rows, floor)):
            raise damaged(what, "it has no time")
        return Carry(last, start, state, rows, dict(starts), floor)
    except (TypeError, ValueError) as error:
        raise damaged(what, str(error)) from error
