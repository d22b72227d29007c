"""Dense numbers for the child tables and groups of one vnode: what a kernel computes with instead of ids and keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.planner.stream import Field
from penstock.tasks.compute import GROUP, Computer, fields_schema
from penstock.tasks.vectors import NotInKernelError, Vector, vector_of

_SPARSE = 16
_ALWAYS_DENSE = 65_536


class IdIndex:
    """Finds the places of 64-bit ids in an array of distinct ones."""

    def __init__(self, ids: npt.NDArray[np.uint64]) -> None:
        self._order: npt.NDArray[np.int64] | None = None
        self._low = np.uint64(ids.min()) if len(ids) else np.uint64(0)
        self._span = int(ids.max()) - int(self._low) + 1 if len(ids) else 0
        if self._span <= max(_ALWAYS_DENSE, _SPARSE * len(ids)):
            self._places = np.full(self._span + 1, -1)
            self._places[(ids - self._low).astype(np.int64)] = np.arange(len(ids))
        else:
            self._order = np.argsort(ids)
            self._sorted = ids[self._order]

    def find(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Returns the place of each id, -1 for unknown ones."""
        if self._order is None:
            # Ids below the least one wrap to huge numbers; both ends end up at the spare place.
            found: npt.NDArray[np.int64] = self._places[
                np.minimum(ids - self._low, np.uint64(self._span)).astype(np.int64)]
            return found
        places = np.minimum(np.searchsorted(self._sorted, ids), len(self._sorted) - 1)
        found = np.where(self._sorted[places] == ids, self._order[places], -1)
        return found


class Groups:
    """The groups of one vnode's child tables, as `SourceKernel.groups_sql` gives them for one state of `children`.

    `children` is registered at the computer.
    """

    def __init__(self, sql: str | None, keys: Sequence[Field], children: pa.Table, computer: Computer) -> None:
        self._tables = IdIndex(children.column("_tuid").to_numpy())
        self._children = children
        self._vectors: dict[str, Vector] = {}
        self._sql = sql
        if sql is None:
            self.gids = np.zeros(1, np.uint64)
            self.keys: list[pa.Array] = []
            return
        schema = pa.schema([pa.field("_tuid", pa.uint64()), GROUP, *fields_schema(keys)])
        found = computer.run(sql, schema)
        self.gids, first, group_of = np.unique(
            found.column(GROUP.name).to_numpy(), return_index=True, return_inverse=True)
        self._tuids = found.column("_tuid").to_numpy()
        self._tables_of_sql = IdIndex(self._tuids)
        self._group_of = group_of.astype(np.int64)
        self.keys = [column.take(pa.array(first)) for column in found.columns[2:]]

    def of(self, tuids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Returns the group number of each row, given their tables; raises NotInKernelError for unknown tables."""
        if self._sql is None:
            return np.zeros(len(tuids), np.int64)
        places = self._tables_of_sql.find(tuids)
        if len(places) and places.min() < 0:
            raise NotInKernelError
        return self._group_of[places]

    def column(self, name: str, tuids: npt.NDArray[np.uint64]) -> Vector:
        """Returns `tbname` or a tag of each row."""
        vector = self._vectors.get(name)
        if vector is None:
            vector = self._vectors[name] = vector_of(self._children.column(name))
        places = self._tables.find(tuids)
        if len(places) and places.min() < 0:
            raise NotInKernelError
        return vector.take(places)
