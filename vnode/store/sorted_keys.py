"""Vectorised work on sorted keys (_tuid, ts[, key column]) and versions: search, order, newest version wins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.masks import all_set

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Index = npt.NDArray[np.intp]

Number = TypeVar("Number", bound=np.integer[Any])

_RUN = 4  # from this mean length on, runs of equal ids are ordered as a whole
_MANY = 1_000  # from so many ids on, looking at their range pays
_FEW = 16  # up to so many searches one by one are faster than all at once
_FIRST = np.zeros(1, np.intp)
TS_MIN = int(np.iinfo(np.int64).min)
TS_MAX = int(np.iinfo(np.int64).max)


def tuids_of(column: Any) -> U64:
    """Returns a uint64 Arrow array without NULLs as numpy, without copying."""
    values: U64 = column.to_numpy()
    return values


def times_of(column: Any) -> I64:
    """Returns a timestamp Arrow array without NULLs as int64 numpy, without copying."""
    values: I64 = column.to_numpy().view(np.int64)
    return values


def key_codes(column: Any) -> I64:
    """Returns integers that order and compare as the values of an integer or string array (no NULLs) do."""
    if pa.types.is_integer(column.type):
        values = column.to_numpy()
        if pa.types.is_uint64(column.type):
            values = (values ^ np.uint64(1 << 63)).view(np.int64)  # shifts the range, keeps the order
        codes: I64 = values.astype(np.int64, copy=False)
        return codes
    ranks: I64 = pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
    return ranks


@dataclass(frozen=True, slots=True)
class KeyBox:
    """Keys between two child tables and two times, all inclusive: each is one number, in the order of the keys."""

    first_tuid: int
    last_tuid: int
    first_ts: int
    last_ts: int

    @classmethod
    def around(cls, tuid: U64, ts: I64) -> KeyBox | None:
        """Returns the smallest one around keys, of which there are some; None if numbers would have to be too great."""
        box = cls(int(tuid.min()), int(tuid.max()), int(ts.min()), int(ts.max()))
        return box if box._tuids == 1 or box._tuids * box._times <= TS_MAX else None

    @property
    def _tuids(self) -> int:
        return self.last_tuid - self.first_tuid + 1

    @property
    def _times(self) -> int:
        return self.last_ts - self.first_ts + 1

    def holds(self, tuid: U64, ts: I64) -> Bools:
        """Tells which keys are in it."""
        inside: Bools = ((tuid >= np.uint64(self.first_tuid)) & (tuid <= np.uint64(self.last_tuid))
                         & (ts >= self.first_ts) & (ts <= self.last_ts))
        return inside

    def numbers(self, tuid: U64, ts: I64) -> I64:
        """Returns the number of each key; those of keys that it doesn't hold are meaningless."""
        if self._tuids == 1:
            return ts
        return (tuid - np.uint64(self.first_tuid)).view(np.int64) * self._times + (ts - self.first_ts)

    def number(self, tuid: int, ts: int) -> int | None:
        """Returns the number of one key, None if it doesn't hold it."""
        if not (self.first_tuid <= tuid <= self.last_tuid and self.first_ts <= ts <= self.last_ts):
            return None
        return ts if self._tuids == 1 else (tuid - self.first_tuid) * self._times + (ts - self.first_ts)


def strictly_ascending(tuid: U64 | I64, ts: I64) -> bool:
    """Tells whether (tuid, ts) are sorted and hold no key twice."""
    if len(tuid) < 2:
        return True
    if tuid[0] == tuid[-1]:
        return all_set(tuid[1:] == tuid[:-1]) and all_set(ts[1:] > ts[:-1])
    same = tuid[1:] == tuid[:-1]
    return all_set((tuid[1:] > tuid[:-1]) | (same & (ts[1:] > ts[:-1])))


def ascending(tuid: U64, ts: I64) -> bool:
    """Tells whether (tuid, ts) are sorted."""
    if len(tuid) < 2:
        return True
    same = tuid[1:] == tuid[:-1]
    return bool(((tuid[1:] > tuid[:-1]) | (same & (ts[1:] >= ts[:-1]))).all())


def run_starts(tuid: U64 | I64) -> Index:
    """Returns the positions at which a new tuid begins."""
    return np.concatenate((_FIRST, (tuid[1:] != tuid[:-1]).nonzero()[0] + 1))


def each_once(numbers: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Returns the numbers in order, each once: NumPy's `unique` takes longer, since it makes a table of them first."""
    ordered = np.sort(numbers)
    new = np.ones(len(ordered), np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    return ordered[new]


def run_stops(starts: Index, count: int) -> Index:
    """Returns the positions behind the runs that begin at `starts`, of `count` rows."""
    stops = np.empty_like(starts)
    stops[:-1] = starts[1:]
    stops[-1] = count
    return stops


def stable_order(ids: U64 | I64) -> Index:
    """Returns the order by id; equal ones stay as they are. Cheap where they come in runs: only the runs are sorted."""
    order: Index
    starts = run_starts(ids)
    if _RUN * len(starts) > len(ids):
        return _argsort(ids)
    by_id = _argsort(ids[starts])
    lengths = np.diff(starts, append=len(ids))[by_id]
    order = np.arange(len(ids)) + np.repeat(starts[by_id] - (np.cumsum(lengths) - lengths), lengths)
    return order


def _argsort(ids: U64 | I64) -> Index:
    """Returns the stable order. NumPy sorts numbers of 16 bits digit by digit, which takes a fraction of comparing."""
    if len(ids) >= _MANY:
        low = ids.min()
        if int(ids.max()) - int(low) < 1 << 16:
            return np.argsort((ids - low).astype(np.uint16), kind="stable")
    return np.argsort(ids, kind="stable")


def _search(values: I64, low: Index, high: Index, wanted: I64, *, behind_equal: bool) -> Index:
    """Binary search of wanted[i] in values[low[i]:high[i]], for all i at once."""
    low, high = low.copy(), high.copy()
    last = len(values) - 1
    while True:
        active = low < high
        if not active.any():
            return low
        middle = (low + high) >> 1
        at = values[np.minimum(middle, last)]
        right = active & ((at <= wanted) if behind_equal else (at < wanted))
        low = np.where(right, middle + 1, low)
        high = np.where(active & ~right, middle, high)


def find_ranges(tuid: U64, ts: I64, wanted_tuid: U64, first: I64, last: I64) -> tuple[Index, Index]:
    """Returns for each wanted (tuid, first..last inclusive) the half-open range of positions in sorted keys."""
    low = np.searchsorted(tuid, wanted_tuid, "left")
    high = np.searchsorted(tuid, wanted_tuid, "right")
    if not len(ts):
        return low, low
    if len(wanted_tuid) <= _FEW:
        for i, (begin, end) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            times = ts[begin:end]
            low[i] = begin + times.searchsorted(first[i], "left")
            high[i] = begin + times.searchsorted(last[i], "right")
        return low, np.maximum(low, high)
    if (wanted_tuid == wanted_tuid[0]).all():
        begin, end = int(low[0]), int(high[0])
        times = ts[begin:end]
        start, stop = begin + times.searchsorted(first, "left"), begin + times.searchsorted(last, "right")
        return start, np.maximum(start, stop)
    start = _search(ts, low, high, first, behind_equal=False)
    stop = _search(ts, low, high, last, behind_equal=True)
    return start, np.maximum(start, stop)


def time_ranges(times: I64, most: int) -> list[tuple[int, int]]:
    """Returns at most so many ranges with all these times, apart where these are farthest from each other."""
    ordered = np.sort(times)
    widest = np.argsort(np.diff(ordered), kind="stable")[max(0, len(ordered) - most):]
    last = [*np.sort(widest).tolist(), len(ordered) - 1]
    first = [0, *(place + 1 for place in last[:-1])]
    return list(zip(ordered[first].tolist(), ordered[last].tolist(), strict=True))


def last_not_above(versions: U64, start: Index, stop: Index, limit: int) -> Index:
    """Returns for each range of positions, in which versions ascend, the position behind those up to a limit."""
    # The greatest version that is looked for is smaller than the limit of signed numbers by far.
    wanted = np.full(len(start), min(limit, TS_MAX), np.int64)
    return _search(versions.view(np.int64), start, stop, wanted, behind_equal=True)


def expand(start: Index, stop: Index) -> tuple[Index, Index]:
    """Turns ranges into (number of the range, position) pairs."""
    counts = stop - start
    owner = np.repeat(np.arange(len(start)), counts)
    offsets = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return owner, offsets + np.repeat(start, counts)


def in_key_order(tuid: U64, ts: I64, codes: I64 | None, version: U64) -> bool:
    """Tells whether rows are sorted by key, then version."""
    if len(tuid) < 2:
        return True
    sorted_rows: Bools = version[1:] >= version[:-1]
    for column in (ts, tuid) if codes is None else (codes, ts, tuid):
        sorted_rows = (column[1:] > column[:-1]) | ((column[1:] == column[:-1]) & sorted_rows)
    return bool(sorted_rows.all())


def key_order(tuid: U64, ts: I64, codes: I64 | None, version: U64) -> Index:
    """Returns the order by key, then version; equal ones stay as they are."""
    one = len(tuid) > 0 and tuid[0] == tuid[-1] and bool((tuid == tuid[0]).all())
    order: Index = np.argsort(ts, kind="stable") if one else stable_order(tuid)
    if in_key_order(tuid[order], ts[order], None if codes is None else codes[order], version[order]):
        return order
    box = None if one or codes is not None else KeyBox.around(tuid, ts)
    if box is not None:  # sorting by one number takes a fraction of sorting by three columns
        order = np.argsort(box.numbers(tuid, ts), kind="stable")
        if in_key_order(tuid[order], ts[order], None, version[order]):
            return order
    return np.lexsort((version, ts, tuid) if codes is None else (version, codes, ts, tuid))


def kept_versions(tuid: U64, ts: I64, codes: I64 | None, version: U64, pin: int | None) -> Bools:
    """Tells which rows, ordered by `key_order`, must be kept: the newest of each key, and with a `pin` also those
    that a reader as of `pin` or later may see."""
    count = len(tuid)
    keep = np.ones(count, np.bool_)
    if count < 2:
        return keep
    same = (tuid[1:] == tuid[:-1]) & (ts[1:] == ts[:-1])
    if codes is not None:
        same &= codes[1:] == codes[:-1]
    superseded = same
    if pin is not None:
        superseded = same & ((version[1:] <= np.uint64(max(pin, 0))) | (version[1:] == version[:-1]))
    keep[:-1] = ~superseded
    return keep
