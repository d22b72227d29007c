"""RowPlaces of rows, as child table and range of times, and the rows of chunks that lie at them or have some values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.vnode.store.chunk_reader import Chunk
from penstock.vnode.store.memtable import whole_numbers
from penstock.vnode.store.sorted_keys import I64, U64, Index, expand, find_ranges

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)

Values = Mapping[str, pa.Array]
"""Values of columns, by their physical names, of the columns' types; NULL may be one."""


_SEARCHED_FROM = 16
"""Where a chunk has so many times as many rows as are wanted, these are searched for in the order of their values."""


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Where rows are, in the order of their keys: from `first` to `last`, both included."""

    tuid: U64
    first: I64
    last: I64

    @classmethod
    def of(cls, tuid: U64, first: I64, last: I64) -> RowPlaces:
        """Returns places that may come in any order, and several times."""
        order = np.lexsort((last, first, tuid))
        tuid, first, last = tuid[order], first[order], last[order]
        new = np.ones(len(order), bool)
        new[1:] = (tuid[1:] != tuid[:-1]) | (first[1:] != first[:-1]) | (last[1:] != last[:-1])
        return cls(tuid[new], first[new], last[new])

    @classmethod
    def at(cls, tuids: pa.UInt64Array, times: pa.Int64Array) -> RowPlaces:
        """Returns places of single times, which may come in any order, and several times."""
        ts = times.to_numpy()
        return cls.of(tuids.to_numpy(), ts, ts)

    def rows_of(self, chunk: Chunk) -> Index:
        """Returns the positions of the rows of a chunk that lie here, ascending."""
        rows = expand(*find_ranges(chunk.tuid, chunk.ts, self.tuid, self.first, self.last))[1]
        return np.unique(rows)


def rows_with(chunk: Chunk, values: Values) -> Index:
    """Returns the positions of the rows of a chunk that have one of the values in each column, ascending."""
    rows: Index | None = None
    for name, wanted in values.items():
        column = chunk.column(name)
        if column is None:
            column = pa.nulls(chunk.num_rows, wanted.type)
        elif rows is None and pa.types.is_integer(wanted.type) and chunk.num_rows > _SEARCHED_FROM * len(wanted):
            rows = _near(chunk, name, column, wanted)
        if rows is not None:
            column = column.take(pa.array(rows))
        found = np.flatnonzero(pc.is_in(column, value_set=wanted).to_numpy(zero_copy_only=False))
        rows = found if rows is None else rows[found]
    assert rows is not None
    return rows


def _near(chunk: Chunk, name: str, column: pa.Array, wanted: pa.Array) -> Index:
    """Returns the positions, ascending, of all rows that have some whole numbers, and of some others."""
    order, numbers = chunk.order(name), whole_numbers(column)
    some = np.unique(whole_numbers(wanted))
    start, stop = (np.searchsorted(numbers, some, side, sorter=order) for side in ("left", "right"))
    return np.sort(order[expand(start, stop)[1]]).astype(np.intp)


def values_array(values: Sequence[int | str | None], type_: pa.DataType) -> pa.Array:
    """Returns the values as an array of a column's type, without those that this can't hold."""
    if pa.types.is_integer(type_):
        bits = type_.bit_width - (not pa.types.is_unsigned_integer(type_))
        low = 0 if pa.types.is_unsigned_integer(type_) else -(1 << bits)
        values = [value for value in values if value is None or low <= int(value) < 1 << bits]
    return pa.array(values, type_)


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
