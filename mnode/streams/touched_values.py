"""Which values changed rows had and have in the columns that keep rows of an answer apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.streams.refresh_groups import Logs
from penstock.planner.streams.touched_keys import TouchedValues
from penstock.planner.task_plans.stream_plan import RefreshPlan

_ROWS_MAX = 100_000
"""So many changed rows are looked at, at most, of one table in one vnode."""

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
        values = None if found is None or values is None else with_values_of(values, plan, uid, [found])
        if values is None:
            return None
    return values


def with_values_of(
    values: TouchedValues, plan: RefreshPlan, table_uid: int, changed: Sequence[pa.Table | pa.RecordBatch]
) -> TouchedValues | None:
    """Returns values of touched columns, and those that rows of a table have; None if they are too many."""
    known = [set(some) for some in values]
    for columns in _origins(plan, table_uid)[0]:
        for some, name in zip(known, columns, strict=True):
            for rows in changed:
                some.update(rows.column(name).unique().to_pylist())
    return None if max(map(len, known)) > _VALUES_MAX else tuple(map(tuple, known))


def _origins(plan: RefreshPlan, table_uid: int) -> tuple[tuple[tuple[str, ...], ...], bool]:
    """Returns of the scans of a source the columns that touched values are of, and whether rewritten rows keep them."""
    place = next(place for place, source in enumerate(plan.sources) if source.storage_uid == table_uid)
    return plan.origins[place], plan.steady[place]
