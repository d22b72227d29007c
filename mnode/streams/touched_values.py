"""Which values changed rows had and have in the columns that keep rows of an answer apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.streams.refresh_groups import Logs
from penstock.planner.streams.touched_keys import TouchedValues, ValuesOfColumn
from penstock.planner.task_plans.stream_plan import RefreshPlan

_ROWS_MAX = 1_000_000
"""So many rows are looked at, at most, of one table in one vnode: those that have changed, and all older versions of
them, of which there are many where rows are rewritten often."""

_VALUES_MAX = 100_000
"""With more values of a column the answer is computed as a whole."""


def touched_values(plan: RefreshPlan, reached: Logs, versions: Mapping[int, int], storage: Storage) -> (
        TouchedValues | None):
    """Returns the values of each touched column of an answer that rows have which were written behind `reached`, up to
    the versions of a cut, and those that rows had which were rewritten or deleted there.

    None if any may be, or they are too many. Raises SnapshotTooOldError.
    """
    values: TouchedValues | None = ((),) * len(plan.touched)
    for (vgroup_id, uid), since in reached.items():
        logged = storage.logged(vgroup_id, uid)
        if logged is None or logged.version <= since:
            continue
        scans, steady = _origins(plan, uid)
        names = list(dict.fromkeys(name for columns in scans for name in columns))
        found = storage.snapshot(vgroup_id, uid, as_of=versions[vgroup_id]).changed_since(
            since, names, rewritten=not steady, most=_ROWS_MAX) if names else None
        values = None if found is None or values is None else with_values_of(values, plan, uid, found.to_batches())
        if values is None:
            return None
    return values


def with_values_of(
    values: TouchedValues, plan: RefreshPlan, table_uid: int, changed: Sequence[pa.RecordBatch]
) -> TouchedValues | None:
    """Returns values of touched columns, and those that rows of a table have; None if they are too many."""
    found = [[*some] for some in values]
    for columns in _origins(plan, table_uid)[0]:
        for some, name in zip(found, columns, strict=True):
            some += [rows.column(name) for rows in changed]
    known = tuple(_each_once(some) for some in found)
    return None if max(sum(map(len, some)) for some in known) > _VALUES_MAX else known


def _each_once(arrays: Sequence[pa.Array]) -> ValuesOfColumn:
    """Returns the values of some arrays, of each type none twice."""
    by_type: dict[pa.DataType, list[pa.Array]] = {}
    for array in arrays:
        by_type.setdefault(array.type, []).append(array)
    return tuple(pa.concat_arrays(some).unique() for some in by_type.values())


def _origins(plan: RefreshPlan, table_uid: int) -> tuple[tuple[tuple[str, ...], ...], bool]:
    """Returns of the scans of a source the columns that touched values are of, and whether rewritten rows keep them."""
    place = next(place for place, source in enumerate(plan.sources) if source.storage_uid == table_uid)
    return plan.origins[place], plan.steady[place]
