"""Which values changed rows had and have in the columns that keep rows of an answer apart."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.streams.refresh_groups import Logs
from penstock.planner.streams.touched_keys import TouchedValues
from penstock.planner.task_plans.stream_plan import RefreshPlan

_ROWS_MAX = 100_000
"""So many changed rows are looked at, at most, of one table in one vnode."""

_VALUES_MAX = 20_000
"""With more values of a column the answer is computed as a whole."""


def touched_values(plan: RefreshPlan, reached: Logs, versions: Mapping[int, int], storage: Storage) -> (
        TouchedValues | None):
    """Returns the values of each touched column of an answer that rows have which were written behind `reached`, up to
    the versions of a cut, and those that rows had which were rewritten or deleted there.

    None if any may be, or they are too many. Raises SnapshotTooOldError.
    """
    values: list[set[int | str | None]] = [set() for _ in plan.touched]
    origins = {source.storage_uid: (scans, steady)
               for source, scans, steady in zip(plan.sources, plan.origins, plan.steady, strict=True)}
    for (vgroup_id, uid), since in reached.items():
        logged = storage.logged(vgroup_id, uid)
        if logged is None or logged.version <= since:
            continue
        scans, steady = origins[uid]
        names = list(dict.fromkeys(name for columns in scans for name in columns))
        if not names:
            return None
        found = storage.snapshot(vgroup_id, uid, as_of=versions[vgroup_id]).changed_since(
            since, names, rewritten=not steady, most=_ROWS_MAX)
        if found is None:
            return None
        for columns in scans:
            for known, name in zip(values, columns, strict=True):
                known.update(found.column(name).unique().to_pylist())
    return None if max(map(len, values)) > _VALUES_MAX else tuple(map(tuple, values))
