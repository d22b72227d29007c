"""Rows that can't be computed: gives a block without them.

All of it is a function of the WAL alone: where blocks are cut makes no difference.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock.planner.task_plans.stream_plan import SourcePlan
from penstock.tasks.compute.lateness import LATE, UPDATED, ClassifiedRows, record_of, without_rows
from penstock.tasks.compute.quarantine import keys_of
from penstock.tasks.protocol.messages import RowKey
from penstock.wal.record import DeleteRecord


@dataclass(frozen=True, slots=True)
class FilteredBlock:
    """A block without some rows. `classified`: the others (None: there are none).

    `out`: the keys whose newest row is one of those left out, with the version of its record. `back`: those that were
    left out before, and whose newest row is not. `retracted`: rows that count no more since their key was rewritten by
    a row that is left out, as deletes.
    """

    classified: ClassifiedRows | None
    out: Mapping[RowKey, int]
    back: Collection[RowKey]
    retracted: tuple[DeleteRecord, ...]


def without_dropped(
    classified: ClassifiedRows, failing: Collection[int], held: npt.NDArray[np.bool_], source: SourcePlan, *,
    counts_updates: bool,
) -> FilteredBlock:
    """Returns a block without its `failing` rows, by their numbers.

    `held`: which rows have keys that were left out before the block. The first row of such a key that can be computed
    is a new one to the stream, whatever it is to the vnode; the same goes for keys that fail in the block itself.
    `counts_updates`: whether the stream takes note of rewritten rows.
    """
    if not len(failing) and not held.any():
        return FilteredBlock(classified, {}, (), ())
    keys = keys_of(classified.rows, source)
    doubtful = {keys[row] for row in (*failing, *np.flatnonzero(held).tolist())}
    change = None if classified.change is None else classified.change.copy()
    counted: dict[RowKey, bool] = {}
    out: dict[RowKey, int] = {}
    back: dict[RowKey, None] = {}
    retracted: dict[RowKey, DeleteRecord] = {}
    for row, key in enumerate(keys):
        if key not in doubtful:
            continue
        rewrites = change is not None and change[row] == UPDATED
        before = counted.get(key, rewrites and not held[row])
        if row in failing:
            version = classified.versions[record_of(classified, row)]
            if before and counts_updates:
                retracted[key] = DeleteRecord(version, 0, source.storage_uid, (key[0],), key[1], key[1])
            out[key] = version
            back.pop(key, None)
        else:
            if rewrites and not before:
                assert change is not None
                change[row] = LATE
            out.pop(key, None)
            if held[row]:
                back[key] = None
        counted[key] = row not in failing
    kept = without_rows(replace(classified, change=change), sorted(failing)) if len(failing) else replace(
        classified, change=change)
    return FilteredBlock(kept, out, tuple(back), tuple(retracted.values()))
