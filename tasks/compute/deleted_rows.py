"""Which rows of a block deletes concern."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.tasks.compute.id_time_pairs import among
from penstock.wal.record import AnyDelete, DeletePointsRecord


def covered(
    delete: AnyDelete, tuids: npt.NDArray[np.uint64], ts: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Returns which rows, by child table and time, lie where a delete says; in any order."""
    if isinstance(delete, DeletePointsRecord):
        return among(tuids, ts, delete.tuids, delete.times)
    inside: npt.NDArray[np.bool_] = (ts >= delete.first_ts) & (ts <= delete.last_ts)
    if delete.tuids is not None:
        inside &= np.isin(tuids, np.array(delete.tuids, np.uint64))
    return inside
