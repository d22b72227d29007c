"""Runs a `SourceKernel`: the partials or results of a block of rows, in NumPy instead of DuckDB.

Rows are numbered by (group, pane), aggregated without sorting, and panes are put together to windows last, so that a
sliding window costs by panes and not by rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.planner.task_plans.kernel_spec import FieldKernel, Panes, SourceKernel
from penstock.planner.task_plans.stream_plan import Accumulator
from penstock.tasks.compiled.compiled_loops import row_loops, why_not
from penstock.tasks.compute.accumulators import Values, columns_for, combine
from penstock.tasks.compute.dense_aggregation import Coded, DenseAggregation, Ints
from penstock.tasks.compute.id_table import numbered
from penstock.tasks.compute.kernel_vectors import (
    Bools,
    Columns,
    NotInKernelError,
    Vector,
    evaluate,
    mask_of,
    vector_of,
)
from penstock.tasks.compute.vnode_groups import RowGroups

_DENSE_MIN = 8_192
_DENSE_SHARE = 4
_INTERPRETED_ROWS = 500


@dataclass(frozen=True, slots=True)
class Partials:
    """One partial per (group, window). `groups`: numbers of `Groups`; `fields` in the order of the accumulators'.

    `read`: how many rows they are made of.
    """

    groups: Ints
    starts: Ints
    rows: Ints
    fields: Sequence[Vector]
    read: int


class RowColumns:
    """The columns of some rows, each converted once: those of the table by name, else tags and marks."""

    def __init__(self, rows: pa.Table, groups: RowGroups) -> None:
        self._rows = rows
        self._groups = groups
        self._names = frozenset(rows.column_names)
        self._known: dict[str, Vector] = {}

    def __call__(self, name: str) -> Vector:
        vector = self._known.get(name)
        if vector is None:
            if name in self._names:
                vector = vector_of(self._rows.column(name))
            else:
                vector = self._groups.column(name, self("_tuid").values)
            self._known[name] = vector
        return vector


class Chosen:
    """The columns of some of the rows."""

    def __init__(self, columns: Columns, mask: Bools) -> None:
        self._columns = columns
        self._rows = np.flatnonzero(mask)
        self._known: dict[str, Vector] = {}

    def __call__(self, name: str) -> Vector:
        vector = self._known.get(name)
        if vector is None:
            vector = self._known[name] = self._columns(name).take(self._rows)
        return vector


def decline_many(count: int) -> None:
    """Raises NotInKernelError if there are so many rows that DuckDB is faster than loops that aren't compiled."""
    if count > _INTERPRETED_ROWS and why_not():
        raise NotInKernelError


def window_partials(
    kernel: SourceKernel, accumulators: Sequence[Accumulator], columns: Columns, count: int, groups: RowGroups,
    time: str, keep: Bools | None = None,
) -> Partials:
    """Returns the partials of `count` rows in their INTERVAL windows. `keep`: which rows count. Raises
    NotInKernelError."""
    decline_many(count)
    assert kernel.panes is not None
    if kernel.condition is not None:
        mask = mask_of(kernel.condition, columns, count)
        keep = mask if keep is None else keep & mask
    if keep is not None and not keep.all():
        columns = Chosen(columns, keep)
        count = int(keep.sum())
    return _by_pane(kernel, accumulators, columns, count, groups, time)


def _by_pane(
    kernel: SourceKernel, accumulators: Sequence[Accumulator], columns: Columns, count: int, groups: RowGroups,
    time: str,
) -> Partials:
    panes = kernel.panes
    assert panes is not None
    if not count:
        empty = np.zeros(0, np.int64)
        columns_empty = columns_for([field for accumulator in accumulators for field in accumulator.fields], 0)
        return Partials(empty, empty, empty, [_vector(column) for column in columns_empty], 0)
    numbers, low, high = _pane_numbers(columns(time).values, panes)
    span = high - low + 1
    group = groups.of_rows(columns)
    coded, code_of = _coded(group, numbers, len(groups.gids), low, span, ordered=panes.pane != panes.width)
    fields = aggregate(kernel, coded, columns)
    groups_of = code_of // span
    starts = (code_of - groups_of * span + low) * panes.pane + panes.offset
    found = Partials(groups_of, starts, coded.rows[coded.present], fields, count)
    return found if panes.pane == panes.width else _in_windows(found, panes, accumulators)


def _pane_numbers(times: Ints, panes: Panes) -> tuple[Ints, int, int]:
    """Returns the number of each time's pane, and the least and the greatest of these; there is at least one."""
    if not panes.pane:
        return np.zeros(len(times), np.int64), 0, 0
    numbers, bounds = np.empty(len(times), np.int64), np.empty(2, np.int64)
    row_loops().panes(times, panes.offset, panes.pane, numbers, bounds)
    return numbers, int(bounds[0]), int(bounds[1])


def _coded(group: Ints, codes: Ints, groups: int, low: int, span: int, *, ordered: bool) -> tuple[Coded, Ints]:
    """Returns the rows by code, and group * span + pane - low of each code that has rows; `ordered`: ascending.

    `codes`: the panes, which are changed.
    """
    if groups * span >= 1 << 63:
        raise NotInKernelError
    row_loops().combine(group, span, low, codes)
    if groups * span <= max(_DENSE_MIN, _DENSE_SHARE * len(group)):
        coded = Coded.of(codes, groups * span)
        return coded, coded.present
    keys = codes
    codes, firsts = numbered(keys.view(np.uint64))
    distinct = keys[firsts]
    if ordered:
        order = np.argsort(distinct)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        codes, distinct = rank[codes], distinct[order]
    return Coded.of(codes, len(distinct)), distinct


def aggregate(kernel: SourceKernel, coded: Coded, columns: Columns) -> list[Vector]:
    """Returns the fields of all accumulators for the codes that have rows."""
    aggregation = DenseAggregation(coded, columns)
    fields: list[Vector] = []
    for part in kernel.aggregates:
        if isinstance(part, FieldKernel):
            fields.append(aggregation.field(part))
        else:
            fields += aggregation.pick(part)
    return fields


def _in_windows(found: Partials, panes: Panes, accumulators: Sequence[Accumulator]) -> Partials:
    """Puts the panes of a sliding window together: each of its panes in turn is combined into all windows at once."""
    behind = (found.starts - panes.offset) % panes.step
    newest = found.starts - behind
    counts = -(-(panes.width - behind) // panes.step)
    low = int(newest.min()) - (panes.width // panes.step) * panes.step
    span = (int(newest.max()) - low) // panes.step + 1
    most = int(counts.max())
    back = np.arange(most)
    starts = newest[:, None] - back[None, :] * panes.step
    codes = (found.groups[:, None] * span + (starts - low) // panes.step)[back[None, :] < counts[:, None]]
    distinct = np.unique(codes)
    groups, window = distinct // span, (distinct % span) * panes.step + low
    # Where the pane of (group, start) is among the partials, which are sorted by both.
    first = int(found.starts.min())
    pane_span = (int(found.starts.max()) - first) // panes.pane + 1
    keys = found.groups * pane_span + (found.starts - first) // panes.pane
    rows = np.zeros(len(distinct), np.int64)
    fields = [field for accumulator in accumulators for field in accumulator.fields]
    target = columns_for(fields, len(distinct))
    source = [_values(vector, column.type, len(keys)) for vector, column in zip(found.fields, target, strict=True)]
    for pane in range(panes.width // panes.pane):
        number = (window - first) // panes.pane + pane
        inside = np.flatnonzero((number >= 0) & (number < pane_span))
        wanted = groups[inside] * pane_span + number[inside]
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        hit = keys[place] == wanted
        slots, place = inside[hit], place[hit]
        rows[slots] += found.rows[place]
        position = 0
        for accumulator in accumulators:
            end = position + len(accumulator.fields)
            combine(accumulator, target[position:end], slots, source[position:end], place)
            position = end
    return Partials(groups, window, rows, [_vector(column) for column in target], found.read)


def _values(vector: Vector, type_: pa.DataType, count: int) -> Values:
    return Values.of(vector.arrow(type_, count))


def _vector(column: Values) -> Vector:
    if column.dtype == np.dtype(object):
        return Vector(column.arrow())
    return Vector(column.data, None if column.valid.all() else column.valid)


def partials_batch(found: Partials, groups: RowGroups, schema: pa.Schema) -> pa.RecordBatch:
    """Returns partials as a block: `_gid`, keys, `_wstart`, `_rows`, the accumulators' fields."""
    count = len(found.starts)
    arrays = [pa.array(groups.gids[found.groups]), *groups.keys_of(found.groups),
              pa.array(found.starts), pa.array(found.rows)]
    place = len(arrays)
    arrays += [vector.arrow(schema.field(place + n).type, count) for n, vector in enumerate(found.fields)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def projected(
    kernel: SourceKernel, columns: Columns, count: int, groups: RowGroups, schema: pa.Schema
) -> pa.RecordBatch:
    """Returns the results of a scalar stream: `_row`, `_gid`, keys, the result columns. Raises NotInKernelError."""
    if kernel.condition is not None:
        mask = mask_of(kernel.condition, columns, count)
        if not mask.all():
            columns = Chosen(columns, mask)
            count = int(mask.sum())
    tuids: npt.NDArray[np.uint64] = columns("_tuid").values
    group = groups.of_rows(columns)
    arrays = [pa.array(tuids), pa.array(groups.gids[group]), *groups.keys_of(group)]
    place = len(arrays)
    arrays += [evaluate(part, columns).arrow(schema.field(place + n).type, count)
               for n, part in enumerate(kernel.projections)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
