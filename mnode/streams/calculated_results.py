"""What queries give for windows, as the result table stores it and as it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.arrow_data import one_array
from penstock.common.errors import InvalidValueError
from penstock.mnode.streams.fired_windows import FiredWindow, Times
from penstock.sql.rows.constants import Constants
from penstock.sql.rows.fitting import fitted, row_number
from penstock.sql.schema import Column, Table
from penstock.sql.tree.fired_queries import OF_GROUP, OF_START, TOLD
from penstock.sql.types import FLOATS
from penstock.tasks.external.emit.result_events import json_text, plain_values
from penstock.tasks.protocol.block_schema import DELETE, OPENED, UPSERT
from penstock.tasks.protocol.refreshing import FIRED
from penstock.vnode.store.sorted_keys import U64

Places = npt.NDArray[np.int64]
_NO_TIMES: Times = np.zeros(0, np.int64)
_NO_PLACES: Places = np.zeros(0, np.int64)


@dataclass(slots=True)
class ComputedWindows:
    """The rows that a query has given, of each the place of its window; of each window how long that took, and why it
    has none if the query failed."""

    windows: Sequence[FiredWindow]
    took_us: list[int]
    problems: list[str | None]
    tables: list[pa.Table] = field(default_factory=list)
    owners: list[Places] = field(default_factory=list)

    @classmethod
    def nothing(cls, windows: Sequence[FiredWindow]) -> ComputedWindows:
        return cls(windows, [0] * len(windows), [None] * len(windows))

    def add(self, place: int, rows: pa.Table, took_s: float) -> None:
        """Adds the rows of one window."""
        self.took_us[place] += int(took_s * 1e6)
        if rows.num_rows:
            self.tables.append(rows)
            self.owners.append(np.full(rows.num_rows, place, np.int64))

    def add_handed(self, places: Sequence[int], names: Sequence[str]) -> None:
        """Adds results that windows were handed over with, a row of columns with these names for each."""
        rows: dict[int, tuple[pa.RecordBatch, list[int], list[int]]] = {}
        for place in places:
            batch, row = self.windows[place].handed
            _, of_batch, owners = rows.setdefault(id(batch), (batch, [], []))
            of_batch.append(row)
            owners.append(place)
        for batch, of_batch, owners in rows.values():
            self.tables.append(pa.table(batch.select(names)).take(pa.array(of_batch)))
            self.owners.append(np.array(owners, np.int64))

    def add_many(self, places: Sequence[int], rows: pa.Table, each_s: float) -> None:
        """Adds the rows of several windows, whose first columns say of which each is."""
        known = {(self.windows[place].group.id, self.windows[place].start): place for place in places}
        starts = rows.column(OF_START).cast(pa.int64()).to_pylist()
        groups = rows.column(OF_GROUP).to_pylist()
        owners = np.array([known[place] for place in zip(groups, starts, strict=True)], np.int64)
        for place in places:
            self.took_us[place] += int(each_s * 1e6)
        if rows.num_rows:
            order = np.argsort(owners, kind="stable")
            self.tables.append(rows.drop_columns([OF_START, OF_GROUP]).take(pa.array(order)))
            self.owners.append(owners[order])

    def fail(self, place: int, problem: str, took_s: float) -> None:
        """Notes why the query has failed for a window."""
        self.took_us[place] += int(took_s * 1e6)
        self.problems[place] = problem

    def has_rows(self) -> frozenset[int]:
        """Returns the places of windows for which there are rows, or the query failed."""
        found = {int(each) for owners in self.owners for each in np.unique(owners)}
        return frozenset(found | {place for place, problem in enumerate(self.problems) if problem is not None})


@dataclass(frozen=True, slots=True)
class Results:
    """Results of windows as they are stored, with the child table of each and the window that gives it; and of each
    window how many, at which times, how long computing took, and why there are none."""

    rows: pa.RecordBatch | None
    children: Places
    times: Sequence[Times]
    counts: Sequence[int]
    took_us: Sequence[int]
    problems: Sequence[str | None]

    def followed_by(self, others: Results) -> Results:
        """Returns what these and other windows, which have no results, have together."""
        return replace(self, times=[*self.times, *others.times], counts=[*self.counts, *others.counts],
                       took_us=[*self.took_us, *others.took_us], problems=[*self.problems, *others.problems])

    def and_before(self, windows: Sequence[FiredWindow], known: Mapping[tuple[int, int], Times]) -> Results:
        """Returns the same, with the times of what there was besides."""
        return replace(self, times=[
            times if (before := known.get(window.place)) is None else np.union1d(times, before)
            for window, times in zip(windows, self.times, strict=True)])

    def of(self, places: Sequence[int]) -> Results:
        """Returns what some of the windows have."""
        return Results(
            None, _NO_PLACES, [self.times[place] for place in places], [self.counts[place] for place in places],
            [self.took_us[place] for place in places], [self.problems[place] for place in places])

    def gone(
        self, windows: Sequence[FiredWindow], retracted: Sequence[FiredWindow],
        known: Mapping[tuple[int, int], Times], *, every: bool,
    ) -> tuple[Places, Times]:
        """Returns the child tables and times of results that there were, and aren't any more.

        `windows`: those that these results are of; `retracted`: those that have none. `every`: also what has rows
        again, since rows of one time may have other keys.
        """
        before = [(window.group.child, time) for window in (*windows, *retracted)
                  for time in known.get(window.place, _NO_TIMES).tolist()]
        if not before:
            return _NO_PLACES, _NO_TIMES
        now = set() if every else {
            (window.group.child, time) for window, times in zip(windows, self.times, strict=True)
            for time in times.tolist()}
        found = sorted(set(before) - now)
        children, times = zip(*found, strict=True) if found else ((), ())
        return np.array(children, np.int64), np.array(times, np.int64)


def no_results(windows: int, computed: ComputedWindows | None = None) -> Results:
    """Returns that windows have no results that are kept; `computed`: how long that took."""
    took = [0] * windows if computed is None else computed.took_us
    problems: Sequence[str | None] = [None] * windows if computed is None else computed.problems
    return Results(None, _NO_PLACES, [_NO_TIMES] * windows, [0] * windows, took, problems)


def stored_results(target: Table, computed: ComputedWindows, constants: Constants) -> Results:
    """Returns results as the table stores them. A window has none, and its problem says why, if one doesn't fit."""
    windows = computed.windows
    problems = list(computed.problems)
    parts: list[tuple[pa.RecordBatch, Places]] = []
    for table, owners in zip(computed.tables, computed.owners, strict=True):
        try:
            parts.append((_stored(target, table, constants), owners))
        except InvalidValueError:
            for place in np.unique(owners).tolist():
                own = owners == place
                try:
                    parts.append((_stored(target, table.filter(pa.array(own)), constants), owners[own]))
                except InvalidValueError as error:
                    problems[place] = str(error)
    nothing = [_NO_TIMES] * len(windows)
    if not parts:
        return Results(None, _NO_PLACES, nothing, [0] * len(windows), computed.took_us, problems)
    rows = pa.concat_batches([batch for batch, _ in parts])
    owners = np.concatenate([owners for _, owners in parts])
    children = np.array([windows[place].group.child for place in owners.tolist()], np.int64)
    kept = last_of_each(target, rows, children)
    rows, owners, children = rows.take(pa.array(kept)), owners[kept], children[kept]
    times = rows.column(0).cast(pa.int64()).to_numpy()
    of_windows = list(nothing)
    for place in np.unique(owners).tolist():
        of_windows[place] = np.unique(times[owners == place])
    counts = np.bincount(owners, minlength=len(windows)).tolist()
    return Results(rows, children, of_windows, counts, computed.took_us, problems)


def _stored(target: Table, table: pa.Table, constants: Constants) -> pa.RecordBatch:
    """Returns rows as they are stored, without those that have no time."""
    arrays = []
    for column, values in zip(target.columns, table.columns, strict=False):
        found = one_array(values)
        same = column.type.kind in FLOATS and found.type == column.type.arrow()
        arrays.append(found if same else fitted(column, found, constants, row_number, checks_text=True))
    batch = pa.RecordBatch.from_arrays(arrays, names=[column.physical for column in target.columns])
    return batch.filter(pc.is_valid(batch.column(0))) if batch.column(0).null_count else batch


def last_of_each(target: Table, rows: pa.RecordBatch, children: Places | U64) -> Places:
    """Returns the rows that no later one of the same child table, time and key takes the place of."""
    times = rows.column(0).cast(pa.int64()).to_pylist()
    key = target.key_column
    keys = [None] * len(times) if key is None else rows.column(key.physical).to_pylist()
    last = {place: row for row, place in enumerate(zip(children.tolist(), times, keys, strict=True))}
    return np.array(sorted(last.values()), np.int64)


def told_results(
    windows: Sequence[FiredWindow], computed: ComputedWindows, columns: Sequence[Column]
) -> pa.Table:
    """Returns what is told of windows, see `FireRequest`; of those that were computed with the results.

    Where a condition of NOTIFY is given, only results count that meet it, and windows without any aren't told of.
    """
    results = _texts(computed, columns)
    conditional = any(TOLD in table.schema.names for table in computed.tables)
    known = {window.place: place for place, window in enumerate(computed.windows)}
    found = []
    for window in windows:
        kind = DELETE if window.gone else OPENED if window.opened else UPSERT
        place = known.get(window.place)
        result = None if place is None or window.gone or window.opened else results.get(place)
        if conditional and kind == UPSERT and place is not None and result is None:
            continue
        found.append((window.group.child, kind, window.start, window.end, result))
    columns_of = zip(*found, strict=True) if found else ((),) * len(FIRED)
    return pa.table([pa.array(values, kind.type) for values, kind in zip(columns_of, FIRED, strict=True)],
                    schema=FIRED)


def _texts(computed: ComputedWindows, columns: Sequence[Column]) -> dict[int, str]:
    """Returns the results of each window as JSON: an object, or a list if there are several."""
    rows: dict[int, list[dict[str, object]]] = {}
    for table, owners in zip(computed.tables, computed.owners, strict=True):
        told = table.column(TOLD).to_pylist() if TOLD in table.schema.names else [True] * table.num_rows
        values = [plain_values(one_array(table.column(place)), column) for place, column in enumerate(columns)]
        for row, (owner, is_told) in enumerate(zip(owners.tolist(), told, strict=True)):
            if is_told:
                rows.setdefault(owner, []).append({
                    column.name: one[row] for column, one in zip(columns, values, strict=True)})
    return {owner: json_text(found[0] if len(found) == 1 else found) for owner, found in rows.items()}
