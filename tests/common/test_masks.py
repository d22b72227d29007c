"""What is asked of masks has the answers of NumPy's own methods."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.common.masks import all_set, any_set


@pytest.mark.parametrize("values", [[], [True], [False], [True, False], [True, True], [0, 3], [2, 3]])
def test_masks_answer_as_numpy_does(values: list[int]) -> None:
    """Also of none, of numbers, and of every second element."""
    for mask in (np.array(values), np.array(values, np.bool_), np.array(values, np.bool_)[::2]):
        assert all_set(mask) is bool(mask.all())
        assert any_set(mask) is bool(mask.any())
