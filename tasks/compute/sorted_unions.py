"""Unions of ascending numbers, such as the (window, group)s to which several inputs contributed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.tasks.compiled.compiled_loops import row_loops
from penstock.tasks.compute.id_table import Numbers


def union_of(parts: Sequence[Numbers]) -> tuple[Numbers, list[Numbers]]:
    """Returns the numbers that any part has, each once and ascending, and for each part the places of its own there.

    There is at least one part; the numbers of each ascend.
    """
    both, places = parts[0], [np.arange(len(parts[0]))]
    for part in parts[1:]:
        both, earlier, own = _merged(both, part)
        places = [*(earlier[place] for place in places), own] if len(places) > 1 else [earlier, own]
    return both, places


def _merged(left: Numbers, right: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    both, of_left, of_right = (np.empty(size, np.int64) for size in (len(left) + len(right), len(left), len(right)))
    count = row_loops().merge(left, right, both, of_left, of_right)
    return both[:count], of_left, of_right
