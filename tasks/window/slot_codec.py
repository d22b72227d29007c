"""Slots as stored values: records of a fixed size where all their values have one, else Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.tasks.compute.accumulators import Slots, Values
from penstock.tasks.protocol.block_schema import ROWS
from penstock.tasks.state.stored_values import damaged, pack_batch, unpack_batch
from penstock.tasks.window.slot_table import SlotTable

_GROUP_NUMBER = pa.field("group", pa.int64())
_NO_GROUPS: Slots = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class StoredSlots:
    """What a value holds, slot by slot. `groups`: none if it is one slot. `columns`: values, and which are valid."""

    groups: Slots
    rows: npt.NDArray[np.int64]
    columns: Sequence[tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]]

    def values(self, like: Sequence[Values]) -> list[Values]:
        """Returns the columns as those of a table, whose types they have."""
        # In records they lie between others, at addresses that compiled loops don't take; others need no copy.
        return [Values(column.type, *(np.require(each, requirements=["C", "A"]) for each in (data, valid)))
                for column, (data, valid) in zip(like, self.columns, strict=True)]


class SlotCodec:
    """Writes slots of a table as values, and reads them back. `what` names a value in errors.

    A value has many slots, each with its group (`grouped`), or is one slot.
    """

    def __init__(self, table: SlotTable, what: str, *, grouped: bool) -> None:
        self._table = table
        self._what = what
        self._grouped = grouped
        self._record = _record_of(table.columns, grouped=grouped)
        first = [_GROUP_NUMBER, ROWS] if grouped else [ROWS]
        self._schema = pa.schema([*first, *(pa.field(f"v{n}", column.type) for n, column in enumerate(table.columns))])

    def encoded(
        self, slots: Slots, firsts: Sequence[int], ends: Sequence[int], groups: Slots | None = None
    ) -> Iterator[bytes | None]:
        """Yields the slots from each first to each end as bytes, None for nothing; all are gathered at once."""
        table = self._table
        if self._record is None:
            arrays = [] if groups is None else [pa.array(groups)]
            arrays += [pa.array(table.rows[slots]), *(column.take(slots).arrow() for column in table.columns)]
            batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            for first, end in zip(firsts, ends, strict=True):
                yield pack_batch(batch.slice(first, end - first)) if end > first else None
            return
        records = np.empty(len(slots), self._record)
        if groups is not None:
            records["group"] = groups
        records["rows"] = table.rows[slots]
        for n, column in enumerate(table.columns):
            records[f"v{n}"] = column.data[slots]
            records[f"n{n}"] = column.valid[slots]
        content, size = records.view(np.uint8).data, self._record.itemsize
        for first, end in zip(firsts, ends, strict=True):
            yield content[first * size : end * size].tobytes() if end > first else None

    def decoded(self, value: bytes) -> StoredSlots:
        """Returns what a value holds. Raises CorruptionError."""
        if self._record is not None:
            records = self._records(value)
            groups = records["group"].astype(np.int64) if self._grouped else _NO_GROUPS
            columns = [(records[f"v{n}"], records[f"n{n}"]) for n in range(len(self._table.columns))]
            return StoredSlots(groups, records["rows"], columns)
        found = self._objects(value)
        groups = found.pop(0).data if self._grouped else _NO_GROUPS
        return StoredSlots(groups, found[0].data, [(values.data, values.valid) for values in found[1:]])

    def load(self, slots: Slots, stored: StoredSlots) -> None:
        """Puts what was stored into slots that hold nothing, as many as there are."""
        self._table.rows[slots] = stored.rows
        for column, (data, valid) in zip(self._table.columns, stored.columns, strict=True):
            column.fill(slots, data, valid)

    def _records(self, value: bytes) -> npt.NDArray[Any]:
        assert self._record is not None
        size = self._record.itemsize
        if len(value) % size if self._grouped else len(value) != size:
            multiple = "a multiple of " if self._grouped else ""
            raise damaged(self._what, f"it has {len(value)} bytes instead of {multiple}{size}")
        return np.frombuffer(value, self._record)

    def _objects(self, value: bytes) -> list[Values]:
        """Returns the groups if there are any, the rows, and the columns, of a batch."""
        batch = unpack_batch(value, self._schema, self._what)
        if not self._grouped and batch.num_rows != 1:
            raise damaged(self._what, f"it has {batch.num_rows} rows")
        return [Values.of(array) for array in batch.columns]


def _record_of(columns: Sequence[Values], *, grouped: bool) -> np.dtype[Any] | None:
    """Returns the dtype of a stored slot if all its values have a fixed width, else None."""
    if any(column.dtype == np.dtype(object) for column in columns):
        return None
    fields: list[tuple[str, Any]] = [("group", np.int64)] if grouped else []
    fields.append(("rows", np.int64))
    for n, column in enumerate(columns):
        fields += [(f"v{n}", column.dtype), (f"n{n}", np.bool_)]
    return np.dtype(fields)
