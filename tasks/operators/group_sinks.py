"""Which sink task writes a group's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.masks import any_set
from penstock.common.placement import places
from penstock.planner.task_plans.column_names import CHILD
from penstock.planner.task_plans.stream_plan import Field, SinkPlan
from penstock.tasks.compute.duckdb_computer import Computer
from penstock.tasks.compute.id_table import Ids, Numbers
from penstock.tasks.protocol.block_schema import GROUP, fields_schema

_NOT_KNOWN = -1


class GroupSinks:
    """The sink tasks of groups by the numbers that an operator has for them: found once per group, when it is needed.

    It is the one of the vnode that the group's child table is placed on. Once vgroups were split unevenly it may be
    another one: what counts is that a child has one sink task.
    """

    def __init__(self, plan: SinkPlan, keys: Sequence[Field], computer: Computer, sinks: int) -> None:
        self._database = plan.database
        self._count = sinks
        self._computer = computer
        self._sql = f"SELECT {GROUP.name}, {CHILD} FROM ({plan.children_sql})"
        self._given = pa.schema([GROUP, *fields_schema(keys)])
        self._found = pa.schema([GROUP, pa.field(CHILD, pa.string())])
        self._sinks: npt.NDArray[np.int16] = np.zeros(0, np.int16)

    def of(
        self, groups: Numbers, known: int, number_of: Callable[[Ids], Numbers],
        columns_of: Callable[[Numbers], Sequence[pa.Array]],
    ) -> npt.NDArray[np.int16]:
        """Returns for each of some groups the index of its sink task.

        There are `known` groups; `number_of` returns their numbers by their ids, `columns_of` their ids and keys.
        """
        if known > len(self._sinks):
            more = max(known - len(self._sinks), len(self._sinks))
            self._sinks = np.concatenate([self._sinks, np.full(more, _NOT_KNOWN, np.int16)])
        found = self._sinks[groups]
        missing = found == _NOT_KNOWN
        if any_set(missing):
            wanted = np.zeros(known, bool)
            wanted[groups[missing]] = True
            self._find(wanted.nonzero()[0], number_of, columns_of)
            found = self._sinks[groups]
        return found

    def _find(
        self, groups: Numbers, number_of: Callable[[Ids], Numbers], columns_of: Callable[[Numbers], Sequence[pa.Array]]
    ) -> None:
        given = pa.Table.from_arrays(columns_of(groups), schema=self._given)
        found = self._computer.run_by_row(self._sql, self._found, groups=given)
        sinks = places(self._database, found.column(1).to_pylist(), self._count)
        self._sinks[number_of(found.column(0).to_numpy())] = sinks
