"""Dense numbers for the child tables and groups of one vnode: what a kernel computes with instead of ids and keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.errors import InvalidValueError
from penstock.planner.task_plans.stream_plan import Field
from penstock.tasks.compiled.compiled_loops import row_loops
from penstock.tasks.compute.duckdb_computer import Computer
from penstock.tasks.compute.failing_rows import failing_rows
from penstock.tasks.compute.id_table import IdTable
from penstock.tasks.compute.kernel_vectors import Columns, NotInKernelError, Vector, vector_of
from penstock.tasks.protocol.block_schema import GROUP, fields_schema

_SPARSE = 16
_ALWAYS_DENSE = 65_536
_MEMBERS_PART = 4
"""Tables that are more than this part of all are read with the others."""


class RowGroups(Protocol):
    """The groups of rows, numbered."""

    @property
    def gids(self) -> npt.NDArray[np.uint64]:
        """The ids of groups by their numbers."""

    def of_rows(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Returns the group number of each row; raises NotInKernelError."""

    def keys_of(self, groups: npt.NDArray[np.int64]) -> list[pa.Array]:
        """Returns the keys of groups, column by column."""

    def column(self, name: str, tuids: npt.NDArray[np.uint64]) -> Vector:
        """Returns `tbname` or a tag of each row."""


class IdIndex:
    """Finds a number for each of some distinct 64-bit ids: `numbers`, or their places (None)."""

    def __init__(self, ids: npt.NDArray[np.uint64], numbers: npt.NDArray[np.int64] | None = None) -> None:
        numbers = np.arange(len(ids)) if numbers is None else numbers
        self._low = ids.min() if len(ids) else np.uint64(0)
        span = int(ids.max()) - int(self._low) + 1 if len(ids) else 1
        if span <= max(_ALWAYS_DENSE, _SPARSE * len(ids)):
            self._sparse: IdTable | None = None
            self._numbers = np.full(span, -1)
            self._numbers[(ids - self._low).view(np.int64)] = numbers
        else:
            self._sparse, self._numbers = IdTable(), numbers
            self._sparse.add(ids)

    def find(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Returns the number of each id; raises NotInKernelError for unknown ones."""
        found: npt.NDArray[np.int64]
        if self._sparse is not None:
            places = self._sparse.find(ids)
            if (places < 0).any():
                raise NotInKernelError
            return self._numbers[places]
        found = np.empty(len(ids), np.int64)
        if not row_loops().look_up(ids, self._low, self._numbers, found):
            raise NotInKernelError
        return found


class Groups:
    """The groups of one vnode's child tables, as `SourceKernel.groups_sql` gives them for one state of `children`.

    A table whose group can't be computed is unknown here: what its rows come to is for DuckDB to say.
    """

    def __init__(self, sql: str | None, keys: Sequence[Field], children: pa.Table, computer: Computer) -> None:
        self._tables = IdIndex(children.column("_tuid").to_numpy())
        self._children = children
        self._vectors: dict[str, Vector] = {}
        self._sql = sql
        if sql is None:
            self.gids = np.zeros(1, np.uint64)
            self._keys: list[pa.Array] = []
            return
        schema = pa.schema([pa.field("_tuid", pa.uint64()), GROUP, *fields_schema(keys)])
        found = _found(sql, schema, children, computer)
        self.gids, first, group_of = np.unique(
            found.column(GROUP.name).to_numpy(), return_index=True, return_inverse=True)
        self._members: npt.NDArray[np.uint64] = found.column("_tuid").to_numpy()
        self._numbers = group_of.astype(np.int64)
        self._group_of = IdIndex(self._members, self._numbers)
        self._keys = [column.take(pa.array(first)) for column in found.columns[2:]]

    def of_rows(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Returns the group number of each row; raises NotInKernelError for unknown tables."""
        return self.of(columns("_tuid").values)

    def keys_of(self, groups: npt.NDArray[np.int64]) -> list[pa.Array]:
        """Returns the keys of groups, column by column."""
        places = pa.array(groups)
        return [key.take(places) for key in self._keys]

    def of(self, tuids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Returns the group number of each row, given their tables; raises NotInKernelError for unknown tables."""
        if self._sql is None:
            return np.zeros(len(tuids), np.int64)
        return self._group_of.find(tuids)

    def tables_of(self, gids: npt.NDArray[np.uint64]) -> pa.Array | None:
        """Returns the tables of some groups; None where they are too many for that to be of use."""
        tables = self._members[np.isin(self.gids, gids)[self._numbers]]
        return pa.array(tables) if len(tables) * _MEMBERS_PART <= len(self._members) else None

    def column(self, name: str, tuids: npt.NDArray[np.uint64]) -> Vector:
        """Returns `tbname` or a tag of each row."""
        vector = self._vectors.get(name)
        if vector is None:
            vector = self._vectors[name] = vector_of(self._children.column(name))
        return vector.take(self._tables.find(tuids))

    def places(self, tuids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Returns the places of tables among the child tables; raises NotInKernelError for unknown ones."""
        return self._tables.find(tuids)


def _found(sql: str, schema: pa.Schema, children: pa.Table, computer: Computer) -> pa.RecordBatch:
    """Returns the groups of those child tables that have one."""
    def error_of(tables: pa.Table) -> str | None:
        try:
            computer.run(sql, schema, children=tables)
        except InvalidValueError as error:
            return str(error)
        return None

    try:
        return computer.run(sql, schema, children=children)
    except InvalidValueError:
        failing = np.array(list(failing_rows(children, error_of)), np.int64)
        having = np.ones(children.num_rows, bool)
        having[failing] = False
        return computer.run(sql, schema, children=children.filter(pa.array(having)))
