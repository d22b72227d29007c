"""Sets of (id, time) pairs, such as the keys of rows or the windows of groups, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.tasks.compiled.compiled_loops import compiled
from penstock.tasks.compiled.loops import FREE


def among(
    ids: npt.NDArray[Any], times: npt.NDArray[np.int64], some_ids: npt.NDArray[Any], some_times: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Returns which of the (id, time)s are among some others."""
    found: npt.NDArray[np.bool_] = np.zeros(len(ids), bool)
    if not len(ids) or not len(some_ids):
        return found
    loops = compiled()
    if loops is not None:
        loops.among(*map(_unsigned, (ids, times, some_ids, some_times)), *_places(len(some_ids)), found)
        return found
    distinct, moment_of = np.unique(some_times, return_inverse=True)
    known = np.unique(some_ids)
    # Each id and each time gets its number among the few; what has none in either is not among them.
    near = np.flatnonzero((times >= distinct[0]) & (times <= distinct[-1]))
    moment = np.minimum(np.searchsorted(distinct, times[near]), len(distinct) - 1)
    place = np.minimum(np.searchsorted(known, ids[near]), len(known) - 1)
    both = (distinct[moment] == times[near]) & (known[place] == ids[near])
    codes = place[both] * len(distinct) + moment[both]
    wanted = np.searchsorted(known, some_ids) * len(distinct) + moment_of
    found[near[both]] = np.isin(codes, wanted)
    return found


def last_ones(ids: npt.NDArray[Any], times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Returns which of the (id, time)s have no equal one behind them."""
    last: npt.NDArray[np.bool_] = np.ones(len(ids), bool)
    loops = compiled()
    if loops is not None:
        loops.last_ones(_unsigned(ids), _unsigned(times), *_places(len(ids)), last)
        return last
    order = np.lexsort((times, ids))  # stable: of equal ones the last is the last
    ids, times = ids[order], times[order]
    last[order[:-1]] = (ids[1:] != ids[:-1]) | (times[1:] != times[:-1])
    return last


def _places(count: int) -> tuple[npt.NDArray[np.int32], np.uint64]:
    """Returns an empty hash table for so many, and its shift; see `loops`."""
    bits = max(2 * count, 2).bit_length()
    return np.full(1 << bits, FREE, np.int32), np.uint64(64 - bits)


def _unsigned(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(numbers).view(np.uint64)
