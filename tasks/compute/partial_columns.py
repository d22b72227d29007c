"""Partials by columns, as agg tasks merge them; those of a few rows needn't become Arrow on their way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.planner.task_plans.stream_plan import Accumulator
from penstock.tasks.compute.accumulators import Values, combine, numpy_type
from penstock.tasks.compute.id_table import Ids
from penstock.tasks.compute.kernel_vectors import Bools, Vector
from penstock.tasks.compute.source_kernel import Partials, partials_batch
from penstock.tasks.compute.vnode_groups import RowGroups
from penstock.tasks.protocol.block_schema import ADD, GROUP, ROWS, WINDOW_START, with_operation
from penstock.tasks.protocol.messages import Block

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PartialColumns:
    """One partial per (group, window) that it names.

    `keys` returns the columns of the groups' keys for some partials, by their numbers. `fields`: the accumulators'.
    """

    groups: Ids
    keys: Callable[[Ints], Sequence[pa.Array]]
    starts: Ints
    rows: Ints
    fields: Sequence[Values]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> PartialColumns:
        """Returns the columns of a batch: `_gid`, keys, `_wstart`, `_rows`, the accumulators' fields."""
        start = batch.schema.get_field_index(WINDOW_START.name)

        def keys(places: Ints) -> list[pa.Array]:
            chosen = pa.array(places)
            return [batch.column(1 + n).take(chosen) for n in range(start - 1)]

        return cls(batch.column(GROUP.name).to_numpy(), keys, batch.column(start).to_numpy(),
                   batch.column(ROWS.name).to_numpy(),
                   [Values.of(batch.column(place)) for place in range(start + 2, batch.num_columns)])


def opposite(partials: pa.RecordBatch, accumulators: Sequence[Accumulator]) -> pa.RecordBatch:
    """Returns partials that take back what these add, whose accumulators all add."""
    first = partials.schema.get_field_index(ROWS.name)
    columns = list(partials.columns)
    columns[first] = _negated(columns[first])
    place = first + 1
    for accumulator in accumulators:
        columns[place] = _negated(columns[place])
        if accumulator.kind == "wide_add":
            low, high = columns[place], columns[place + 1]
            # Of the 64 bits only nothing, and the least signed number, are their own opposites within their range.
            left = pc.not_equal(low, pa.scalar(0, low.type)) if pa.types.is_unsigned_integer(low.type) else pc.equal(
                low, pa.scalar(-(1 << 63), low.type))
            carried = pc.fill_null(left, False).cast(pa.int64())
            columns[place + 1] = pc.subtract(_negated(high), carried) if pa.types.is_unsigned_integer(
                low.type) else pc.add(_negated(high), carried)
        place += len(accumulator.fields)
    return pa.RecordBatch.from_arrays(columns, schema=partials.schema)


def united(batches: Sequence[pa.RecordBatch], accumulators: Sequence[Accumulator]) -> pa.RecordBatch:
    """Returns one partial of each (group, window) that any of some batches has, whose accumulators all add.

    All windows are the same one. In each batch a group is there once.
    """
    everything = pa.concat_batches(batches)
    gids, first, which = np.unique(
        everything.column(GROUP.name).to_numpy(), return_index=True, return_inverse=True)
    if len(gids) == len(which):
        return everything
    start = everything.schema.get_field_index(ROWS.name)
    rows = np.zeros(len(gids), np.int64)
    np.add.at(rows, which, everything.column(start).to_numpy())
    columns = [Values.empty(kind, len(gids)) for kind in everything.schema.types[start + 1:]]
    done = 0
    for batch in batches:
        slots, place = which[done:done + batch.num_rows], 0
        done += batch.num_rows
        source = [Values.of(each) for each in batch.columns[start + 1:]]
        for accumulator in accumulators:
            end = place + len(accumulator.fields)
            combine(accumulator, columns[place:end], slots, source[place:end], slice(None))
            place = end
    heads = everything.take(pa.array(first)).columns[:start]
    return pa.RecordBatch.from_arrays(
        [*heads, pa.array(rows), *(each.arrow() for each in columns)], schema=everything.schema)


def _negated(values: pa.Array) -> pa.Array:
    """Returns numbers with the other sign; those of 64 bits wrap around."""
    if not pa.types.is_unsigned_integer(values.type):
        return pc.negate(values)
    return pc.negate(values.view(pa.int64())).view(values.type)


class PartialTypes:
    """What all partials of a source task have in common. `schema`: that of `partials_batch`; `fields`: the types of the
    accumulators' fields, in Arrow and in NumPy."""

    def __init__(self, schema: pa.Schema) -> None:
        first = schema.get_field_index(ROWS.name) + 1
        self.schema = schema
        self.fields = [(type_, numpy_type(type_)) for type_ in schema.types[first:]]


class PartialsBlock(Block):
    """Partials that a kernel has computed, to be added. `data` is made for whoever asks for it."""

    __slots__ = ("_found", "_groups", "_made", "_types")

    _found: Partials
    _groups: RowGroups
    _made: pa.RecordBatch | None
    _types: PartialTypes

    def __init__(self, found: Partials, groups: RowGroups, types: PartialTypes) -> None:
        self._set("_found", found)
        self._set("_groups", groups)
        self._set("_types", types)
        self._set("_made", None)
        self._set("nbytes", 8 * len(found.starts) * len(types.schema))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # a block is frozen

    @property
    def data(self) -> pa.RecordBatch:
        if self._made is None:
            self._set("_made", with_operation(self.batch(), ADD))
        return self._made

    @property
    def rows(self) -> int:
        return len(self._found.starts)

    def batch(self) -> pa.RecordBatch:
        """Returns the partials without an operation."""
        return partials_batch(self._found, self._groups, self._types.schema)

    @property
    def rows_read(self) -> int:
        """How many rows they are made of."""
        return self._found.read

    @property
    def rows_in(self) -> int:
        """How many rows their windows hold, one that is in several of them as often."""
        return int(self._found.rows.sum())

    @property
    def oldest(self) -> int:
        """The least start of their windows; there is at least one."""
        return int(self._found.starts.min())

    def columns(self) -> PartialColumns:
        """Returns the partials for whoever is in the same process."""
        found, groups, count = self._found, self._groups, len(self._found.starts)

        def keys(places: Ints) -> list[pa.Array]:
            return groups.keys_of(found.groups[places])

        valid = np.ones(count, bool)
        return PartialColumns(
            groups.gids[found.groups], keys, found.starts, found.rows,
            [_values(vector, *types, valid) for vector, types in zip(found.fields, self._types.fields, strict=True)])


def _values(vector: Vector, type_: pa.DataType, dtype: np.dtype[Any], valid: Bools) -> Values:
    """Returns a column as `Values.of` would make it of its Arrow array; nobody changes it. `valid`: all are."""
    values = vector.values
    if vector.valid is None and isinstance(values, np.ndarray) and values.dtype == dtype:
        return Values(type_, values, valid)
    return Values.of(vector.arrow(type_, len(valid)))
