"""Which rows of a time line form a window: SESSION, STATE, EVENT and COUNT windows over sorted rows, in NumPy.

A *segment* is a maximal window of one vnode's rows of one group; a *carry* is what earlier rows of a group leave behind
for the next ones. The same code serves rows as they arrive and rows that are read back. Knows nothing of stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.planner.task_plans.stream_plan import RowWindow

GROUP_COLUMN, TIME_COLUMN = "#group", "#ts"

Times = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Carry:
    """What the rows of a group so far mean for later ones.

    `last`: time of the newest row. `start`: start of the window that is open (state, event). `state`: that of the
    newest row (state). `rows`: how many there were; `starts`: position to time of the first row of each window that is
    not full; windows that start before position `floor` take no rows (count).
    """

    last: int
    start: int | None = None
    state: Any = None
    rows: int = 0
    starts: Mapping[int, int] = field(default_factory=dict)
    floor: int = 0


@dataclass(frozen=True, slots=True)
class Assigned:
    """Rows in windows: row `rows[i]` is in the window that starts at `starts[i]`.

    `carries`: what the rows of each group leave behind.
    """

    rows: Times
    starts: Times
    carries: dict[int, Carry]


@dataclass(frozen=True, slots=True)
class TimeLines:
    """Sorted rows, cut into groups: group `gids[g]` has the rows `first[g]` to `last[g]`."""

    gids: list[int]
    first: Times
    last: Times
    ts: Times

    @classmethod
    def of(cls, rows: pa.Table) -> TimeLines:
        gids = rows.column(GROUP_COLUMN).to_numpy()
        ts = rows.column(TIME_COLUMN).to_numpy()
        if not len(ts):
            empty = np.zeros(0, np.int64)
            return cls([], empty, empty, empty)
        first = np.flatnonzero(np.concatenate([[True], gids[1:] != gids[:-1]]))
        last = np.concatenate([first[1:], [len(ts)]]) - 1
        return cls(gids[first].tolist(), first, last, ts)


def assign(window: RowWindow, rows: pa.Table, carries: Mapping[int, Carry]) -> Assigned:
    """Puts rows into windows.

    `rows`: `SourcePlan.rows_sql`'s, sorted by group and time. `carries`: of the groups that had rows before.
    """
    lines = TimeLines.of(rows)
    if not lines.gids:
        return Assigned(lines.ts, lines.ts, {})
    before = [carries.get(gid) for gid in lines.gids]
    match window.kind:
        case "session":
            return _sessions(window.gap, lines)
        case "state":
            return _states(as_array(rows.column("#state")), lines, before)
        case "event":
            return _events(flags(rows, "#opens"), flags(rows, "#ends"), lines, before)
        case "count":
            return _counts(window.count, window.sliding, lines, before)


def flags(rows: pa.Table, name: str) -> Bools:
    """Returns a column of booleans without NULL."""
    return np.asarray(as_array(rows.column(name)).to_numpy(zero_copy_only=False), bool)


def differs(states: pa.Array) -> Bools:
    """Returns for every row but the first whether its state differs from that of the row before it."""
    if len(states) < 2:
        return np.zeros(0, bool)
    different = pc.not_equal(states.slice(1), states.slice(0, len(states) - 1))
    return np.asarray(different.to_numpy(zero_copy_only=False), bool)


def as_array(column: pa.ChunkedArray) -> pa.Array:
    """Returns a column as one array."""
    array = column.combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def _sessions(gap: int, lines: TimeLines) -> Assigned:
    ts = lines.ts
    new = np.ones(len(ts), bool)
    new[1:] = np.diff(ts) > gap
    new[lines.first] = True
    return Assigned(np.arange(len(ts)), _held(new, ts), {})


def _states(states: pa.Array, lines: TimeLines, before: list[Carry | None]) -> Assigned:
    ts = lines.ts
    new = np.ones(len(ts), bool)
    new[1:] = differs(states)
    new[lines.first] = True
    starts = ts.copy()
    for first, carry in zip(lines.first.tolist(), before, strict=True):
        if carry is not None and carry.start is not None and carry.state == states[first].as_py():
            starts[first] = carry.start
    starts = _held(new, starts)
    carries = {gid: Carry(int(ts[last]), int(starts[last]), states[last].as_py())
               for gid, last in zip(lines.gids, lines.last.tolist(), strict=True)}
    return Assigned(np.arange(len(ts)), starts, carries)


def _events(opens: Bools, ends: Bools, lines: TimeLines, before: list[Carry | None]) -> Assigned:
    """After a row that ends no window is open: the rows up to the next such row hold at most one window."""
    ts, count = lines.ts, len(lines.ts)
    index = np.arange(count)
    cut = np.zeros(count, bool)
    cut[1:] = ends[:-1]
    cut[lines.first] = True
    stretches = np.flatnonzero(cut)
    stretch_of = np.cumsum(cut) - 1
    opened = np.minimum.reduceat(np.where(opens, index, count), stretches)
    start = ts[np.minimum(opened, count - 1)]
    for first, carry in zip(lines.first.tolist(), before, strict=True):
        if carry is not None and carry.start is not None:
            opened[stretch_of[first]] = first
            start[stretch_of[first]] = carry.start
    inside = np.flatnonzero(index >= opened[stretch_of])
    carries = {}
    for gid, last in zip(lines.gids, lines.last.tolist(), strict=True):
        stretch = stretch_of[last]
        still_open = not ends[last] and opened[stretch] <= last
        carries[gid] = Carry(int(ts[last]), int(start[stretch]) if still_open else None)
    return Assigned(inside, start[stretch_of[inside]], carries)


def _counts(count: int, sliding: int, lines: TimeLines, before: list[Carry | None]) -> Assigned:
    ts = lines.ts
    sizes = lines.last - lines.first + 1
    had = np.array([carry.rows if carry is not None else 0 for carry in before], np.int64)
    floors = np.array([carry.floor // sliding if carry is not None else 0 for carry in before], np.int64)
    shift = np.repeat(lines.first - had, sizes)  # of a group: row index minus position
    position = np.arange(len(ts)) - shift
    newest = position // sliding
    oldest = np.maximum(np.repeat(floors, sizes), -((count - 1 - position) // sliding))
    members = newest - oldest + 1
    rows = np.repeat(np.arange(len(ts)), members)
    rank = np.arange(len(rows)) - np.repeat(np.cumsum(members) - members, members)
    first_position = (oldest[rows] + rank) * sliding
    first_row = first_position + shift[rows]
    groups = np.repeat(np.arange(len(sizes)), sizes)[rows]
    earlier = first_row < lines.first[groups]
    starts = ts[np.where(earlier, 0, first_row)]
    for place in np.flatnonzero(earlier).tolist():
        carry = before[groups[place]]
        assert carry is not None
        starts[place] = carry.starts[int(first_position[place])]
    carries = {}
    for group, gid in enumerate(lines.gids):
        carry = before[group]
        total = int(had[group] + sizes[group])
        carries[gid] = Carry(int(ts[lines.last[group]]), rows=total, starts={
            start: int(ts[lines.first[group] + start - had[group]]) if start >= had[group]
            else carry.starts[start]  # type: ignore[union-attr]
            for start in range(max(0, (total - count) // sliding + 1) * sliding, total, sliding)
        })
    return Assigned(rows, starts, carries)


def _held(new: Bools, values: Times) -> Times:
    """Returns for each row the value of the newest row up to it that is `new`."""
    held: Times = values[np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))]
    return held
