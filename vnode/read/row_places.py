"""RowPlaces of rows, as child table and range of times, and the rows of chunks that lie at them or have some values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.masks import all_set
from penstock.vnode.store.chunk_reader import Chunk
from penstock.vnode.store.memtable import whole_numbers
from penstock.vnode.store.sorted_keys import I64, U64, Index, each_once, expand, find_ranges

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)

Values = Mapping[str, pa.Array]
"""Values of columns, by their physical names, of the columns' types; NULL may be one."""


_SEARCHED_FROM = 16
"""Where a chunk has so many times as many rows as are wanted, these are searched for in the order of their values."""


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Where rows are, in the order of their keys: from `first` to `last`, both included.

    `are_times`: each of them is a single time. `are_of_one`: all are of one child table.
    """

    tuid: U64
    first: I64
    last: I64
    are_times: bool
    are_of_one: bool

    @classmethod
    def of(cls, tuid: U64, first: I64, last: I64) -> RowPlaces:
        """Returns places that may come in any order, and several times."""
        are_times, are_of_one = all_set(first == last), all_set(tuid[1:] == tuid[:-1])
        if are_times and are_of_one:
            first = each_once(first)
            return cls(tuid[:len(first)], first, first, are_times, are_of_one)
        order = np.lexsort((last, first, tuid))
        tuid, first, last = tuid[order], first[order], last[order]
        new = np.ones(len(order), bool)
        new[1:] = (tuid[1:] != tuid[:-1]) | (first[1:] != first[:-1]) | (last[1:] != last[:-1])
        return cls(tuid[new], first[new], last[new], are_times, are_of_one)

    @classmethod
    def at(cls, tuids: pa.UInt64Array, times: pa.Int64Array) -> RowPlaces:
        """Returns places of single times, which may come in any order, and several times."""
        ts = times.to_numpy()
        return cls.of(tuids.to_numpy(), ts, ts)

    def rows_of(self, chunk: Chunk) -> Index:
        """Returns the positions of the rows of a chunk that lie here, ascending."""
        if self.are_times:
            return chunk.keys().rows_at(self.tuid, self.first)[1]
        return np.unique(expand(*find_ranges(chunk.tuid, chunk.ts, self.tuid, self.first, self.last))[1])


def rows_with(chunks: Sequence[Chunk], values: Values) -> list[Index]:
    """Returns of each chunk the positions of the rows that have one of the values in each column, ascending."""
    (first, wanted), *others = values.items()
    # To make a table of the values that are wanted takes long; so it is made once for all chunks.
    near = [_near(chunk, first, wanted) for chunk in chunks]
    found = _having(chunks, near, first, wanted)
    for name, wanted in others:
        found = _having(chunks, found, name, wanted)
    return found


def _having(chunks: Sequence[Chunk], rows: Sequence[Index], name: str, wanted: pa.Array) -> list[Index]:
    """Returns of each chunk those of some rows that have one of the values."""
    columns = [_taken(chunk, some, name, wanted.type) for chunk, some in zip(chunks, rows, strict=True)]
    have = pc.is_in(pa.concat_arrays([pa.array([], wanted.type), *columns]), value_set=wanted)
    pieces = np.split(have.to_numpy(zero_copy_only=False), np.cumsum(np.array(list(map(len, columns)), np.intp)))
    return [some[piece] for some, piece in zip(rows, pieces[:-1], strict=True)]


def _taken(chunk: Chunk, rows: Index, name: str, type_: pa.DataType) -> pa.Array:
    column = chunk.column(name)
    if column is None:
        return pa.nulls(len(rows), type_)
    return column if len(rows) == chunk.num_rows else column.take(pa.array(rows))


def _near(chunk: Chunk, name: str, wanted: pa.Array) -> Index:
    """Returns the positions, ascending, of all rows that have some values, and of some or all others."""
    column = chunk.column(name)
    if column is None or not pa.types.is_integer(wanted.type) or chunk.num_rows <= _SEARCHED_FROM * len(wanted):
        return np.arange(chunk.num_rows)
    order, numbers = chunk.order(name), whole_numbers(column)
    some = each_once(whole_numbers(wanted))
    start, stop = (np.searchsorted(numbers, some, side, sorter=order) for side in ("left", "right"))
    return np.sort(order[expand(start, stop)[1]]).astype(np.intp)


def values_array(values: Sequence[pa.Array], type_: pa.DataType) -> pa.Array:
    """Returns the values of some arrays as one of a column's type, none twice, without those that this can't hold."""
    fitting = [_fitting(some, type_) for some in values]
    return fitting[0] if len(fitting) == 1 else pa.concat_arrays([pa.array([], type_), *fitting]).unique()


def _fitting(values: pa.Array, type_: pa.DataType) -> pa.Array:
    if values.type == type_ or not pa.types.is_integer(values.type):
        return values.cast(type_)
    found = values.cast(type_, safe=False)
    same = pc.equal(found.cast(values.type, safe=False), values)
    signs = pc.equal(*(pc.less(side, pa.scalar(0, side.type)) for side in (found, values)))
    return found.filter(pc.fill_null(pc.and_(same, signs), True))


def having(rows: Rows, values: Values) -> Rows:
    """Returns those of some rows that have one of the values in each column."""
    return rows.filter(_have(rows, values))


def not_having(rows: Rows, values: Values) -> Rows:
    """Returns the other rows."""
    return rows.filter(pc.invert(_have(rows, values)))


def _have(rows: Rows, values: Values) -> pa.Array:
    return reduce(pc.and_, (pc.is_in(rows.column(name), value_set=wanted) for name, wanted in values.items()))


def values_of(chunk: Chunk, rows: Index, fields: Sequence[pa.Field]) -> pa.Table:
    """Returns columns of some rows of a chunk; NULL where it is older than a column."""
    places, columns = pa.array(rows), [chunk.column(field.name) for field in fields]
    return pa.table([pa.nulls(len(rows), field.type) if column is None else column.take(places)
                     for field, column in zip(fields, columns, strict=True)], schema=pa.schema(fields))
