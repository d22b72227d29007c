"""Which child table a group's results go to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.planner.task_plans.column_names import CHILD, PROBLEM
from penstock.planner.task_plans.stream_plan import Field, SinkPlan
from penstock.tasks.compute.duckdb_computer import Computer
from penstock.tasks.compute.id_table import Ids, IdTable, Numbers
from penstock.tasks.protocol.block_schema import GROUP, block_type, fields_schema
from penstock.tasks.protocol.numbered_children import NumberedChildren


class Destinations:
    """Child tables by group: computed once per group by the planner's SQL, from the group's keys.

    `children` grows with every new group: what was said of a place in it stays true. A table with a KEY is in the place
    of its only child.
    """

    def __init__(self, plan: SinkPlan, keys: Sequence[Field], computer: Computer) -> None:
        self._plan = plan
        self._keys = tuple(keys)
        self._computer = computer
        self._groups = IdTable()
        self.children = NumberedChildren()
        self._schema = pa.schema([
            GROUP, pa.field(CHILD, pa.string()),
            *(pa.field(f"t{n}", block_type(tag.type)) for n, tag in enumerate(plan.tags)),
            *([pa.field(PROBLEM, pa.string())] if plan.checks_tags else []),
        ])
        if plan.keyed:
            self.children.add([plan.table], [])
        #: places of child tables that can't be, since a tag takes no value that it would have, and which
        self.problems: dict[int, str] = {}

    def first_of_new(self, batch: pa.RecordBatch) -> Numbers:
        """Returns the first row of each group of a result batch that isn't known yet, in order."""
        if self._plan.keyed:
            return np.zeros(0, np.int64)
        return self._groups.find_or_first(batch.column(GROUP.name).to_numpy())[1]

    def intern(self, batch: pa.RecordBatch) -> Numbers:
        """Returns for each row of a result batch the place of its group's child table in `children`.

        Children of groups that are new are computed first.
        """
        if self._plan.keyed:
            return np.zeros(batch.num_rows, np.int64)
        gids: Ids = batch.column(GROUP.name).to_numpy()
        places, unknown = self._groups.find_or_first(gids)
        if not len(unknown):
            return places
        self._compute(batch, unknown)
        missing = (places < 0).nonzero()[0]
        places[missing] = self._groups.find(gids[missing])
        return places

    def _compute(self, batch: pa.RecordBatch, rows: Numbers) -> None:
        """Computes the children of new groups, each given by one of its rows."""
        index = pa.array(rows)
        columns = [batch.column(name).take(index) for name in (GROUP.name, *(field.name for field in self._keys))]
        groups = pa.Table.from_arrays(columns, schema=pa.schema([GROUP, *fields_schema(self._keys)]))
        found = self._computer.run_by_row(self._plan.children_sql, self._schema, groups=groups)
        names, *tags = (column.to_pylist() for column in found.columns[1:])
        if self._plan.checks_tags:
            first = len(self.children)
            self.problems |= {first + place: problem for place, problem in enumerate(tags.pop()) if problem is not None}
        # Children first: a group that is numbered must have one.
        self.children.add(names, tags)
        self._groups.add(found.column(0).to_numpy())
