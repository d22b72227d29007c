"""What a source task computes over rows: by its kernel where the plan has one, by the planner's SQL otherwise.

Both give the same partials; the SQL also takes over the blocks that a kernel declines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import InvalidValueError
from penstock.planner.task_plans.stream_plan import LOOKUP, StreamPlan, WindowsPlan
from penstock.tasks.compute.child_tables import ChildTables
from penstock.tasks.compute.dense_aggregation import Ints
from penstock.tasks.compute.duckdb_computer import Computer, as_batch
from penstock.tasks.compute.kernel_vectors import Bools, NotInKernelError, mask_of
from penstock.tasks.compute.lateness import ClassifiedRows, expired_rows, suspects
from penstock.tasks.compute.partial_columns import PartialsBlock, PartialTypes
from penstock.tasks.compute.row_segments import TIME_COLUMN
from penstock.tasks.compute.segment_kernel import segment_partials, sorted_rows, sorted_schema
from penstock.tasks.compute.source_kernel import RowColumns, partials_batch, projected, window_partials
from penstock.tasks.compute.value_groups import ValueGroups
from penstock.tasks.compute.vnode_groups import Groups, RowGroups
from penstock.tasks.protocol.block_schema import ROWS, WINDOW_START

_ROW_NUMBERS = pa.schema([("_row", pa.int64())])


class FirstStage:
    """One source task's `SourcePlan.sql`, in the schema of its blocks."""

    def __init__(self, plan: StreamPlan, schema: pa.Schema, computer: Computer, children: ChildTables) -> None:
        self._plan = plan
        self._source = plan.source
        self._kernel = plan.source.kernel
        self._schema = schema
        self._computer = computer
        self._children = children
        #: whether each row is in one INTERVAL window
        self.windows_are_apart = plan.time_windows is not None and plan.time_windows.grid.tumbling
        self._types: PartialTypes | None = None
        self._known: pa.Table | None = None
        self._renewals = -1
        self._told = False
        self._groups: Groups | ValueGroups | None = None
        self._looked_up: pa.Table | None = None

    def note_children(self) -> None:
        """Sees to it that the child tables are those that the log has told of so far."""
        if not self._source.needs_children or self._told:
            return
        children = self._children.table()
        if children is self._known:
            return
        if self._children.renewals != self._renewals:
            self._groups = None
        elif self._groups is not None:
            self._groups.add_tables(children)
        self._known, self._renewals = children, self._children.renewals

    @contextmanager
    def told(self, children: pa.Table) -> Iterator[None]:
        """Has child tables be those of this relation for a while."""
        before = self._known, self._groups
        self._known, self._groups, self._told = children, None, True
        try:
            yield
        finally:
            self._known, self._groups = before
            self._told = False

    @property
    def groups_are_of_tables(self) -> bool:
        """Whether the group of a row is known from its child table."""
        kernel = self._kernel
        return self._source.group_is_table or (
            kernel is not None and kernel.values is None and kernel.groups_sql is not None)

    def gids_of(self, tuids: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Returns the group of each row, given their tables, where `groups_are_of_tables`."""
        if self._source.group_is_table:
            return tuids
        groups = self._groups_of_tables
        return groups.gids[groups.of(tuids)]

    def tables_of(self, gids: npt.NDArray[np.uint64]) -> pa.Array | None:
        """Returns the child tables whose rows may be in some groups; None: that of any, or of so many that all do."""
        if self._source.group_is_table:
            return pa.array(np.unique(gids))
        return self._groups_of_tables.tables_of(gids) if self.groups_are_of_tables else None

    def _table(self, sql: str, **rows: pa.Table) -> pa.Table:
        """Returns the result of SQL over rows and the child tables that these are of.

        What can't be computed of other tables' tags must not fail these rows, and DuckDB may compute what depends on
        tags alone before it joins.
        """
        relations = rows if self._looked_up is None else {**rows, LOOKUP: self._looked_up}
        if self._known is None:
            return self._computer.table(sql, **relations)
        ((_, table),) = rows.items()
        own = pc.is_in(self._known.column("_tuid"), pc.unique(table.column("_tuid")))
        return self._computer.table(sql, **relations, children=self._known.filter(own))

    def look_up_in(self, table: pa.Table) -> None:
        """Has rows look up in this copy from now on."""
        self._looked_up = table

    def _run(self, sql: str, schema: pa.Schema, **rows: pa.Table) -> pa.RecordBatch:
        return as_batch(self._table(sql, **rows), schema)

    def compute(self, rows: pa.Table) -> pa.RecordBatch:
        """Returns the partials, or the results of a scalar stream, of rows none of which is expired."""
        if not rows.num_rows:
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        self.note_children()
        found = self._by_kernel(rows)
        if found is None:
            found = self._run(self._source.sql, self._schema, rows=rows)
        if not self._plan.sends_partials and self._plan.policies.on_error != "null":
            self._check_keys(found)
        return found

    def partials(self, rows: pa.Table, keep: Bools | None = None) -> PartialsBlock | None:
        """Returns the partials of rows in INTERVAL windows, without making Arrow of them; None: DuckDB must compute.

        None of the rows may be expired, or `keep` tells which aren't.
        """
        kernel, computation = self._kernel, self._plan.computation
        if kernel is None or kernel.panes is None or self._plan.row_window is not None or not isinstance(
                computation, WindowsPlan):
            return None
        groups = self.groups
        try:
            found = window_partials(kernel, computation.accumulators, RowColumns(rows, groups), rows.num_rows, groups,
                                    self._source.time_column, keep)
        except NotInKernelError:
            return None
        if self._types is None:
            self._types = PartialTypes(self._schema)
        return PartialsBlock(found, groups, self._types)

    def rows_in(self, found: Sequence[pa.RecordBatch], rows: int) -> int:
        """Returns how many of so many rows their partials, or results, were made of.

        Where windows overlap partials don't tell: then it is all rows.
        """
        if not self._plan.sends_partials:
            return sum(batch.num_rows for batch in found)
        if not self.windows_are_apart:
            return rows
        return sum(int(batch.column(ROWS.name).to_numpy().sum()) for batch in found)

    def _check_keys(self, results: pa.RecordBatch) -> None:
        """Raises InvalidValueError if a result has no place in the target, for its primary key lacks a part."""
        for column in (self._plan.sink.columns[0], self._plan.sink.key_column):
            if column is not None and results.column(f"r{self._plan.sink.columns.index(column)}").null_count:
                raise InvalidValueError(f"a row cannot be written: the target's key column {column.name} would be NULL")

    def compute_timely(self, classified: ClassifiedRows) -> tuple[list[pa.RecordBatch], Ints]:
        """Returns the partials of rows some of which may be expired, without what is, and the numbers of those that are
        for all their windows. Of these only the ones that WHERE lets through are named.
        """
        assert self._source.late_sql is not None
        assert self._source.expired_sql is not None
        self.note_children()
        if self._kernel is not None and self._kernel.panes is not None:
            expired, partly = expired_rows(classified, self._kernel.panes)
            timely = self._by_kernel(classified.rows, ~(expired | partly))
            if timely is not None:
                batches = [timely]
                if partly.any():
                    doubtful = suspects(classified).filter(pa.array(partly))
                    batches.append(self._run(self._source.late_sql, self._schema, rows=doubtful))
                return batches, np.flatnonzero(self._counted(classified, expired))
        doubtful = suspects(classified)
        numbers = self._run(self._source.expired_sql, _ROW_NUMBERS, rows=doubtful).column(0).to_numpy()
        return [self._run(self._source.late_sql, self._schema, rows=doubtful)], np.sort(numbers)

    def attempt(self, rows: pa.Table) -> None:
        """Raises InvalidValueError if any of the rows can't be computed, be they in a window or not."""
        if not rows.num_rows:
            return
        if self._plan.row_window is None:
            self.compute(rows)
        else:
            self.segments_by_row(self.in_windows(rows))

    def segments_by_row(self, rows: pa.Table) -> pa.RecordBatch:
        """Returns the partials of rows from `in_windows`, as if those of one time were a window."""
        return self.segments(rows.append_column(WINDOW_START.name, rows.column(TIME_COLUMN)))

    def in_windows(self, rows: pa.Table, *, in_order: bool = False) -> pa.Table:
        """Returns the rows that may be in row windows, sorted by group and time, with their marks.

        `in_order`: those of each table are sorted by time already.
        """
        self.note_children()
        kernel = self._kernel
        if kernel is None:
            return self._table(self._source.rows_sql, rows=rows)
        try:
            return sorted_rows(kernel, rows, self._groups_of_tables, self._source.time_column,
                               in_order=in_order and self._source.group_is_table)
        except NotInKernelError:
            schema = sorted_schema(kernel, rows.schema)
            found = self._table(self._source.rows_sql, rows=rows)
            return found.select(schema.names).cast(schema)

    def segments(self, windowed: pa.Table) -> pa.RecordBatch:
        """Returns the partials of rows from `in_windows`, each with the `_wstart` of its window."""
        self.note_children()
        kernel = self._kernel
        if kernel is None:
            return self._run(self._source.sql, self._schema, windowed=windowed)
        try:
            groups = self._groups_of_tables
            return partials_batch(segment_partials(kernel, windowed, groups), groups, self._schema)
        except NotInKernelError:
            if not self._source.needs_children:
                return self._run(self._source.sql, self._schema, windowed=windowed)
            joined = "SELECT r.*, c.* EXCLUDE (_tuid) FROM narrow r LEFT JOIN children c USING (_tuid)"
            return self._run(f"WITH windowed AS ({joined}) {self._source.sql}", self._schema, narrow=windowed)

    def _counted(self, classified: ClassifiedRows, expired: Bools) -> Bools:
        """Returns which of the expired rows the stream would have read."""
        assert self._kernel is not None
        if self._kernel.condition is None or not expired.any():
            return expired
        rows = classified.rows.filter(pa.array(expired))
        counted = expired.copy()
        counted[expired] = mask_of(self._kernel.condition, RowColumns(rows, self.groups), rows.num_rows)
        return counted

    @property
    def groups(self) -> RowGroups:
        """The groups of the tables that are known now, or of the values that came so far."""
        kernel = self._kernel
        assert kernel is not None
        self.note_children()
        if isinstance(self._groups, ValueGroups) and self._groups.full:
            self._groups = None
        if self._groups is None:
            keys = self._plan.grouping.keys
            children = self._children.table() if self._known is None else self._known
            if kernel.values is not None:
                self._groups = ValueGroups(kernel.values, keys, children, self._computer)
                return self._groups
            self._groups = Groups(kernel.groups_sql, keys, children, self._computer)
        return self._groups

    @property
    def _groups_of_tables(self) -> Groups:
        groups = self.groups
        assert isinstance(groups, Groups)  # windows of rows have a kernel for no others
        return groups

    def _by_kernel(self, rows: pa.Table, keep: Bools | None = None) -> pa.RecordBatch | None:
        kernel = self._kernel
        if kernel is None or self._plan.row_window is not None:
            return None
        if isinstance(self._plan.computation, WindowsPlan):
            partials = self.partials(rows, keep)
            return None if partials is None else partials.batch()
        groups = self.groups
        try:
            return projected(kernel, RowColumns(rows, groups), rows.num_rows, groups, self._schema)
        except NotInKernelError:
            return None

