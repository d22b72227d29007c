"""Sets of (id, time) pairs, such as the keys of rows or the windows of groups, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def among(
    ids: npt.NDArray[Any], times: npt.NDArray[np.int64], some_ids: npt.NDArray[Any], some_times: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Returns which of the (id, time)s are among some others."""
    found: npt.NDArray[np.bool_] = np.zeros(len(ids), bool)
    if not len(ids) or not len(some_ids):
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
