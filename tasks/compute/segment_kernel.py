"""Row windows without DuckDB: which rows are in windows, sorted by group and time, and partials of their segments."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.planner.task_plans.kernel_spec import SourceKernel
from penstock.sql.types import DataType
from penstock.tasks.compute.dense_aggregation import Coded, Ints
from penstock.tasks.compute.kernel_vectors import Vector, evaluate, mask_of
from penstock.tasks.compute.row_segments import GROUP_COLUMN, TIME_COLUMN
from penstock.tasks.compute.source_kernel import Partials, RowColumns, aggregate, decline_many
from penstock.tasks.compute.vnode_groups import Groups
from penstock.tasks.protocol.block_schema import WINDOW_START, block_type

_RADIX = 1 << 16


def sorted_schema(kernel: SourceKernel, rows: pa.Schema) -> pa.Schema:
    """Returns the schema of `sorted_rows` for rows of a schema."""
    marks = [pa.field(name, block_type(DataType(mark.type))) for name, mark in kernel.marks]
    return pa.schema([*rows, pa.field(GROUP_COLUMN, pa.uint64()), pa.field(TIME_COLUMN, pa.int64()), *marks])


def sorted_rows(kernel: SourceKernel, rows: pa.Table, groups: Groups, time: str, *, in_order: bool) -> pa.Table:
    """Returns what `SourcePlan.rows_sql` does, without `tbname` and tags. Raises NotInKernelError.

    `in_order`: the rows of each group are sorted by time already.
    """
    columns = RowColumns(rows, groups)
    tuids: npt.NDArray[np.uint64] = columns("_tuid").values
    ts: Ints = columns(time).values
    group = groups.of(tuids)
    known = {name: evaluate(mark, columns) for name, mark in kernel.marks}
    order = _order(group, ts, tuids, in_order=in_order)
    keep: npt.NDArray[np.bool_] | None = None
    if kernel.condition is not None:
        keep = mask_of(kernel.condition, columns, rows.num_rows)
    if kernel.mark_condition is not None:
        marked = mask_of(kernel.mark_condition, lambda name: known[name] if name in known else columns(name),
                         rows.num_rows)
        keep = marked if keep is None else keep & marked
    if keep is not None and not keep.all():
        order = order[keep[order]]
    schema = sorted_schema(kernel, rows.schema)
    vectors = [columns(name) for name in rows.column_names]
    vectors += [Vector(groups.gids[group]), Vector(ts), *known.values()]
    arrays = [vector.take(order).arrow(field.type, len(order)) for vector, field in zip(vectors, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _order(group: Ints, ts: Ints, tuids: npt.NDArray[np.uint64], *, in_order: bool) -> Ints:
    if not in_order or (len(group) and int(group.max()) >= _RADIX):
        return np.lexsort((tuids, ts, group))
    # NumPy sorts 16-bit numbers by radix.
    return np.argsort(group.astype(np.uint16), kind="stable")


def segment_partials(kernel: SourceKernel, windowed: pa.Table, groups: Groups) -> Partials:
    """Returns the partials of rows with the `_wstart` of their windows. Raises NotInKernelError."""
    decline_many(windowed.num_rows)
    gids = windowed.column(GROUP_COLUMN).to_numpy()
    starts = windowed.column(WINDOW_START.name).to_numpy()
    heads = np.ones(len(gids), bool)
    heads[1:] = (gids[1:] != gids[:-1]) | (starts[1:] != starts[:-1])
    first = np.flatnonzero(heads)
    group, start = groups.numbers_of(gids[first]), starts[first]
    # A window may come in several runs: count windows overlap.
    order = np.lexsort((start, group))
    new = np.ones(len(order), bool)
    new[1:] = (group[order][1:] != group[order][:-1]) | (start[order][1:] != start[order][:-1])
    code_of_run = np.empty(len(order), np.int64)
    code_of_run[order] = np.cumsum(new) - 1
    coded = Coded.of(code_of_run[np.cumsum(heads) - 1], int(new.sum()))
    fields = aggregate(kernel, coded, RowColumns(windowed, groups))
    chosen = order[new]
    return Partials(group[chosen], start[chosen], coded.rows, fields, len(gids))
