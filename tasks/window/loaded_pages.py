"""Pages of windows on their way into memory: what was stored of many, put into a table of slots by few calls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from penstock.tasks.compute.accumulators import Slots
from penstock.tasks.window import window_pages
from penstock.tasks.window.slot_codec import StoredSlots
from penstock.tasks.window.slot_index import SlotIndex
from penstock.tasks.window.slot_table import SlotTable


def stacked(pages: Sequence[Sequence[StoredSlots]]) -> list[StoredSlots]:
    """Returns the first parts of all pages as one, then the second ones, and so on: a group is once in each."""
    return [_joined([part for part in parts if part is not None]) for parts in zip_longest(*pages)]


def taken_out(table: SlotTable, index: SlotIndex, line: int, groups: Slots) -> list[StoredSlots]:
    """Empties the slots that some groups of a line have, if any; returns what they held."""
    slots = index.find(np.full(len(groups), line), groups)
    here = slots >= 0
    slots = slots[here]
    if not len(slots):
        return []
    taken = StoredSlots(groups[here], table.rows[slots],
                        [(column.data[slots], column.valid[slots]) for column in table.columns])
    table.clear(slots)
    return [taken]


def add_parts(
    table: SlotTable, index: SlotIndex, line: int, chunks: Sequence[int], parts: Sequence[StoredSlots]
) -> None:
    """Combines parts of some pages, one after the other, into a line, where their groups hold nothing.

    `chunks`: those of the pages, ascending.
    """
    size = window_pages.PAGE_GROUPS
    pages = np.array(chunks, np.int64)
    seen = np.zeros(len(pages) * size, bool)
    for part in parts:
        chunk, within = np.divmod(part.groups, size)
        places = np.searchsorted(pages, chunk) * size + within
        _add(table, index, line, part, ~seen[places])
        seen[places] = True


def _add(
    table: SlotTable, index: SlotIndex, line: int, part: StoredSlots, fresh: npt.NDArray[np.bool_]
) -> None:
    """Combines a part, `fresh` groups of which hold nothing yet."""
    lines = np.full(len(part.groups), line)
    slots = index.find(lines, part.groups)
    missing = slots < 0
    slots[missing] = table.take(int(missing.sum()))
    index.put(lines[missing], part.groups[missing], slots[missing])
    table.rows[slots] += part.rows
    table.put(slots, part.values(table.columns), fresh)


def _joined(parts: Sequence[StoredSlots]) -> StoredSlots:
    if len(parts) == 1:
        return parts[0]
    columns = [(np.concatenate([data for data, _ in column]), np.concatenate([valid for _, valid in column]))
               for column in zip(*(part.columns for part in parts), strict=True)]
    return StoredSlots(np.concatenate([part.groups for part in parts]), np.concatenate([part.rows for part in parts]),
                       columns)
