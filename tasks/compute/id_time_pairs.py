"""Sets of (id, time) pairs, such as the keys of rows or the windows of groups, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.tasks.compiled.compiled_loops import row_loops
from penstock.tasks.compiled.loops import FREE


def among(
    ids: npt.NDArray[Any], times: npt.NDArray[np.int64], some_ids: npt.NDArray[Any], some_times: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Returns which of the (id, time)s are among some others."""
    found: npt.NDArray[np.bool_] = np.zeros(len(ids), bool)
    if not len(ids) or not len(some_ids):
        return found
    row_loops().among(*map(_unsigned, (ids, times, some_ids, some_times)), *_places(len(some_ids)), found)
    return found


def last_ones(ids: npt.NDArray[Any], times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Returns which of the (id, time)s have no equal one behind them."""
    last: npt.NDArray[np.bool_] = np.ones(len(ids), bool)
    row_loops().last_ones(_unsigned(ids), _unsigned(times), *_places(len(ids)), last)
    return last


def _places(count: int) -> tuple[npt.NDArray[np.int32], np.uint64]:
    """Returns an empty hash table for so many, and its shift; see `loops`."""
    bits = max(2 * count, 2).bit_length()
    return np.full(1 << bits, FREE, np.int32), np.uint64(64 - bits)


def _unsigned(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(numbers).view(np.uint64)
