"""What a source task computes over rows: by its kernel where the plan has one, by the planner's SQL otherwise.

Both give the same partials; the SQL also takes over the blocks that a kernel declines.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.planner.stream import StreamPlan
from penstock.tasks.children import Children
from penstock.tasks.compute import Computer
from penstock.tasks.groups import Groups
from penstock.tasks.source_kernel import RowColumns, partials_batch, projected, window_partials
from penstock.tasks.vectors import NotInKernelError


class FirstStage:
    """One source task's `SourcePlan.sql`, in the schema of its blocks."""

    def __init__(self, plan: StreamPlan, schema: pa.Schema, computer: Computer, children: Children) -> None:
        self._plan = plan
        self._source = plan.source
        self._kernel = plan.source.kernel
        self._schema = schema
        self._computer = computer
        self._children = children
        self._registered: pa.Table | None = None
        self._groups: Groups | None = None

    def register_children(self) -> None:
        """Sees to it that the relation `children` is what the log has said so far."""
        if not self._source.needs_children:
            return
        children = self._children.table()
        if children is not self._registered:
            self._computer.register("children", children)
            self._registered = children
            self._groups = None

    def compute(self, rows: pa.Table) -> pa.RecordBatch:
        """Returns the partials, or the results of a scalar stream, of rows none of which is expired."""
        if not rows.num_rows:
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        self.register_children()
        found = self._by_kernel(rows)
        return found if found is not None else self._computer.run(self._source.sql, self._schema, rows=rows)

    @property
    def groups(self) -> Groups:
        """The groups of the tables that are known now."""
        assert self._kernel is not None
        self.register_children()
        if self._groups is None:
            self._groups = Groups(self._kernel.groups_sql, self._plan.keys, self._children.table(), self._computer)
        return self._groups

    def _by_kernel(self, rows: pa.Table) -> pa.RecordBatch | None:
        kernel, agg = self._kernel, self._plan.agg
        if kernel is None or self._source.row_window is not None:
            return None
        groups = self.groups
        columns = RowColumns(rows, groups)
        try:
            if agg is None:
                return projected(kernel, columns, rows.num_rows, groups, self._schema)
            found = window_partials(
                kernel, agg.accumulators, columns, rows.num_rows, groups, self._source.time_column)
        except NotInKernelError:
            return None
        return partials_batch(found, groups, self._schema)

