"""Makes the rows that benchmarks feed in: always the same for the same `Shape`, in their order of arrival.

Each of `tables` devices reports once per `period_ms` of event time. Rows may come late, be written a second time with
other values, or be missing while a device pauses. All is decided by the seed, so that any process can make the rows
again: the one that sends them, and the one that computes what the answer must be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

FIRST_MS = 1_700_000_000_000  # divides by the widths of all windows that are measured
GROUPS, CAMPAIGNS = 10, 100
LATE_MAX = 60  # a late or second write comes up to so many periods after its time
_PAUSE_CYCLE, _PAUSE_MIN, _PAUSE_MAX = 64, 6, 20  # in each cycle half of the devices pause, for so many periods
_BLOCK_PERIODS = 64
_EVENTS = pa.array(["view", "click", "purchase"])

Source = Literal["meters", "ads", "accounts"]
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shape:
    """What the rows are like. `late` and `updated` are shares of the rows (0 to 1).

    meters: current, voltage, phase. ads: event_type, visitor. accounts: account (one of `accounts` values), amount.
    """

    tables: int = 1000
    rows: int = 2_000_000
    source: Source = "meters"
    late: float = 0.0
    updated: float = 0.0
    pauses: bool = False
    accounts: int = 100_000
    period_ms: int = 1000
    seed: int = 7

    @property
    def periods(self) -> int:
        """How often each device reports, pauses included."""
        return max(1, self.rows // self.tables)

    @property
    def last_ms(self) -> int:
        """The newest event time; every device that pauses nowhere has a row then."""
        return FIRST_MS + (self.periods - 1) * self.period_ms


def names(shape: Shape) -> list[str]:
    """Returns the names of the child tables, in the order of their numbers."""
    return [f"d{number}" for number in range(shape.tables)]


def tag_of(shape: Shape, number: int) -> int:
    """Returns the group (of a meter), the campaign (of an ad) or the region (of an account's table)."""
    return number % (CAMPAIGNS if shape.source == "ads" else GROUPS)


def arrivals(shape: Shape, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yields batches of exactly `batch_rows` rows (the last may have fewer) in order of arrival.

    Columns: tbname (dictionary of int32 and string), ts (timestamp in ms), and those of the source.
    """
    pending: list[pa.RecordBatch] = []
    waiting = 0
    for block in _blocks(shape):
        pending.append(block)
        waiting += block.num_rows
        if waiting >= batch_rows:
            joined = pa.concat_batches(pending)
            whole = waiting - waiting % batch_rows
            for start in range(0, whole, batch_rows):
                yield joined.slice(start, batch_rows)
            pending, waiting = [joined.slice(whole)], waiting - whole
    if waiting:
        yield pa.concat_batches(pending)


def all_rows(shape: Shape) -> pa.Table:
    """Returns all rows with `seq`, their place in the order of arrival, `tbname` as a string and the tag as `tag`."""
    table = pa.Table.from_batches(list(arrivals(shape, 1 << 20)))
    tags = np.array([tag_of(shape, number) for number in range(shape.tables)], np.int32)
    numbers = np.concatenate([chunk.indices.to_numpy() for chunk in table.column("tbname").chunks])
    return table.append_column("seq", pa.array(np.arange(table.num_rows))).append_column("tag", pa.array(tags[numbers]))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows on their way: `arrival` is the period in which they come, `period` the one that they are of."""

    arrival: _Ints
    table: _Ints
    period: _Ints
    values: tuple[npt.NDArray[Any], ...]

    def take(self, places: npt.NDArray[Any]) -> _Rows:
        return _Rows(self.arrival[places], self.table[places], self.period[places],
                     tuple(column[places] for column in self.values))


def _blocks(shape: Shape) -> Iterator[pa.RecordBatch]:
    dictionary = pa.array(names(shape))
    held: _Rows | None = None
    for first in range(0, shape.periods, _BLOCK_PERIODS):
        end = min(first + _BLOCK_PERIODS, shape.periods)
        rows = _of_periods(shape, first, end)
        if held is not None:
            rows = _joined(held, rows)
        if shape.late or shape.updated:
            rows = rows.take(np.argsort(rows.arrival, kind="stable"))
        here = int(np.searchsorted(rows.arrival, end)) if end < shape.periods else len(rows.arrival)
        held = rows.take(np.arange(here, len(rows.arrival))) if here < len(rows.arrival) else None
        yield _batch(shape, dictionary, rows.take(np.arange(here)) if held is not None else rows)


def _of_periods(shape: Shape, first: int, end: int) -> _Rows:
    """Returns the rows of the periods [first, end) with when they arrive, which may be later."""
    rng = np.random.default_rng([shape.seed, first])
    period = np.repeat(np.arange(first, end), shape.tables)
    table = np.tile(np.arange(shape.tables), end - first)
    if shape.pauses:
        present = _present(shape, period, table, rng)
        period, table = period[present], table[present]
    arrival = period.copy()
    if shape.late:
        late = np.flatnonzero(rng.random(len(period)) < shape.late)
        arrival[late] += rng.integers(1, LATE_MAX, len(late), endpoint=True)
    rows = _Rows(arrival, table, period, _values(shape, rng, len(period)))
    if shape.updated:
        again = np.flatnonzero(rng.random(len(period)) < shape.updated)
        later = arrival[again] + rng.integers(1, LATE_MAX, len(again), endpoint=True)
        rows = _joined(rows, _Rows(later, table[again], period[again], _values(shape, rng, len(again))))
    return rows


def _present(shape: Shape, period: _Ints, table: _Ints, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Returns which rows there are: blocks begin with a cycle, and at the end of it some devices pause."""
    lengths = rng.integers(_PAUSE_MIN, _PAUSE_MAX, shape.tables, endpoint=True)
    lengths[rng.random(shape.tables) < 0.5] = 0
    return (period % _PAUSE_CYCLE < _PAUSE_CYCLE - lengths[table]) | (period == shape.periods - 1)


def _values(shape: Shape, rng: np.random.Generator, count: int) -> tuple[npt.NDArray[Any], ...]:
    if shape.source == "ads":
        return rng.integers(0, len(_EVENTS), count).astype(np.int32), rng.integers(0, 1 << 30, count).astype(np.int32)
    if shape.source == "accounts":
        return (rng.integers(0, shape.accounts, count).astype(np.int32),
                rng.integers(1, 1000, count).astype(np.int32))
    return ((10 + rng.standard_normal(count, np.float32)), rng.integers(210, 230, count).astype(np.int32),
            rng.random(count, np.float32))


def _batch(shape: Shape, dictionary: pa.Array, rows: _Rows) -> pa.RecordBatch:
    columns = [
        pa.DictionaryArray.from_arrays(pa.array(rows.table.astype(np.int32)), dictionary),
        pa.array(FIRST_MS + rows.period * shape.period_ms, pa.timestamp("ms")),
        *(pa.array(column) for column in rows.values),
    ]
    named = ["tbname", "ts", *columns_of(shape.source)]
    if shape.source == "ads":
        columns[2] = pa.DictionaryArray.from_arrays(columns[2], _EVENTS).cast(pa.string())
    return pa.RecordBatch.from_arrays(columns, names=named)


def columns_of(source: Source) -> tuple[str, ...]:
    """Returns the names of the columns behind tbname and ts."""
    return {"meters": ("current", "voltage", "phase"), "ads": ("event_type", "visitor"),
            "accounts": ("account", "amount")}[source]


def _joined(first: _Rows, second: _Rows) -> _Rows:
    return _Rows(
        np.concatenate([first.arrival, second.arrival]), np.concatenate([first.table, second.table]),
        np.concatenate([first.period, second.period]),
        tuple(np.concatenate(pair) for pair in zip(first.values, second.values, strict=True)))
