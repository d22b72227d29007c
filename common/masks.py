"""Questions to arrays of NumPy that a pass over a few rows asks a dozen times: its methods take four times as long."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_count = np.count_nonzero
_TRUE = np.ones(4096, np.bool_)
_TRUE.flags.writeable = False


def all_set(mask: npt.NDArray[Any]) -> bool:
    """Returns whether no element of an array with one dimension is false or 0; true if there is none."""
    return bool(_count(mask) == len(mask))


def any_set(mask: npt.NDArray[Any]) -> bool:
    """Returns whether an element of an array is true, or not 0."""
    return bool(_count(mask))


def all_true(count: int) -> npt.NDArray[np.bool_]:
    """Returns an array that is true everywhere, for those who only read it: NumPy takes longer to make a short one."""
    return _TRUE[:count] if count <= len(_TRUE) else np.ones(count, np.bool_)
