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
from penstock.tasks.compute.group_keys import GroupKeys
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
    """Finds a number for each of some distinct 64-bit ids: in an array by id, or in a table where they are sparse."""

    def __init__(self, ids: npt.NDArray[np.uint64], numbers: npt.NDArray[np.int64] | None = None) -> None:
        """`numbers`: those of the ids; None: their places."""
        self._held = 0
        self._sparse: IdTable | None = None
        self._low = np.uint64(0)
        self._span = 0  # from the least id to the greatest
        self._numbers: npt.NDArray[np.int64] = np.full(1, -1)
        self.add(ids, numbers)

    def __len__(self) -> int:
        return self._held

    def add(self, ids: npt.NDArray[np.uint64], numbers: npt.NDArray[np.int64] | None = None) -> None:
        """Takes in further ids; `numbers`: theirs, None: they are counted on."""
        if not len(ids):
            return
        numbers = np.arange(self._held, self._held + len(ids)) if numbers is None else numbers
        self._held += len(ids)
        if self._sparse is not None:
            self._add_sparse(ids, numbers)
            return
        low, high = int(ids.min()), int(ids.max())
        if self._span:
            low, high = min(low, int(self._low)), max(high, int(self._low) + self._span - 1)
        if high - low < max(_ALWAYS_DENSE, _SPARSE * self._held):
            self._spread(low, high - low + 1)
            self._numbers[(ids - self._low).view(np.int64)] = numbers
        else:
            known = np.flatnonzero(self._numbers >= 0)
            before = known.astype(np.uint64) + self._low, self._numbers[known]
            self._sparse, self._numbers = IdTable(), np.zeros(0, np.int64)
            self._add_sparse(*before)
            self._add_sparse(ids, numbers)

    def _spread(self, low: int, span: int) -> None:
        """Has the array begin with this id and be long enough for so many."""
        before, shift = self._numbers, int(self._low) - low if self._span else 0
        if shift or span > len(before):
            self._numbers = np.full(span if not self._span else max(span, 2 * len(before)), -1)
            if self._span:
                self._numbers[shift:shift + self._span] = before[:self._span]
        self._low, self._span = np.uint64(low), span

    def _add_sparse(self, ids: npt.NDArray[np.uint64], numbers: npt.NDArray[np.int64]) -> None:
        assert self._sparse is not None
        first = len(self._sparse)
        self._sparse.add(ids)
        missing = first + len(ids) - len(self._numbers)
        if missing > 0:
            self._numbers = np.concatenate((self._numbers, np.zeros(max(missing, len(self._numbers)), np.int64)))
        self._numbers[first:first + len(ids)] = numbers

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
    """The groups of one vnode's child tables, as `SourceKernel.groups_sql` gives them.

    What is numbered keeps its number when further tables come. A table whose group can't be computed is unknown here:
    what its rows come to is for DuckDB to say.
    """

    def __init__(self, sql: str | None, keys: Sequence[Field], children: pa.Table, computer: Computer) -> None:
        self._sql = sql
        self._computer = computer
        self._schema = pa.schema([pa.field("_tuid", pa.uint64()), GROUP, *fields_schema(keys)])
        self._tables = IdIndex(np.zeros(0, np.uint64))
        self._vectors: dict[str, Vector] = {}
        self._ids = IdTable()
        self._keys = GroupKeys(() if sql is None else keys)
        self._group_of = IdIndex(np.zeros(0, np.uint64))
        self._members: list[npt.NDArray[np.uint64]] = []
        self._numbers: list[npt.NDArray[np.int64]] = []
        if sql is None:
            self._ids.add(np.zeros(1, np.uint64))
        self.add_tables(children)

    def add_tables(self, children: pa.Table) -> None:
        """Takes in further child tables: `children` are those that there were, in the same order, and these behind."""
        added = children.slice(len(self._tables))
        self._tables.add(added.column("_tuid").to_numpy())
        self._children = children
        self._vectors = {}
        if self._sql is None:
            return
        found = _found(self._sql, self._schema, added, self._computer)
        numbers, new = self._ids.intern(found.column(GROUP.name).to_numpy())
        members = found.column("_tuid").to_numpy()
        self._keys.add([column.take(pa.array(new)) for column in found.columns[2:]], len(new))
        self._group_of.add(members, numbers)
        self._members.append(members)
        self._numbers.append(numbers)

    @property
    def gids(self) -> npt.NDArray[np.uint64]:
        """The ids of groups by their numbers."""
        return self._ids.ids

    def numbers_of(self, gids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Returns the numbers of groups that there are."""
        return self._ids.find(gids)

    def of_rows(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Returns the group number of each row; raises NotInKernelError for unknown tables."""
        return self.of(columns("_tuid").values)

    def keys_of(self, groups: npt.NDArray[np.int64]) -> list[pa.Array]:
        """Returns the keys of groups, column by column."""
        return self._keys.take(groups)

    def of(self, tuids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Returns the group number of each row, given their tables; raises NotInKernelError for unknown tables."""
        if self._sql is None:
            return np.zeros(len(tuids), np.int64)
        return self._group_of.find(tuids)

    def tables_of(self, gids: npt.NDArray[np.uint64]) -> pa.Array | None:
        """Returns the tables of some groups; None where they are too many for that to be of use."""
        self._members, self._numbers = [np.concatenate(self._members)], [np.concatenate(self._numbers)]
        [members], [numbers] = self._members, self._numbers
        tables = members[np.isin(self.gids, gids)[numbers]]
        return pa.array(tables) if len(tables) * _MEMBERS_PART <= len(members) else None

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
