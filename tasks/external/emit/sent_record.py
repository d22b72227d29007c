"""What a sink task has sent to an external target, in its state: results of a stream are compared with it.

The record is a log of rows, so that a write costs no search for what it replaces. Its oldest parts go first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.planner.task_plans.column_names import OPERATION
from penstock.planner.task_plans.external_rows import REFUSED
from penstock.tasks.external.emit.result_events import ExternalRows
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.state.stored_values import pack_batch, unpack_batch

ANY_TIME = (1 << 63) - 1
_PREFIX = b"sent/"
_PARTS = 16
"""A record has about so many parts when it is full: it loses one at a time."""
_WRITES = 64
"""The rows of so many writes are put together: as batches of their own, small ones take more than their rows do."""


class _StoredRows(NamedTuple):
    """A part of the record: where it is in the store, how much it has, and the greatest time of a result in it."""

    key: int
    rows: int
    nbytes: int
    last: int


class SentRecord:
    """The record of one sink task, part of its checkpoints by `save`. One thread calls it, another one may note rows.

    Rows are as `ExternalRows.of` makes them, in the order in which they were sent; the last one of a key counts.
    """

    def __init__(self, store: StateStore, rows: ExternalRows, bytes_max: int, tasks: int) -> None:
        """`bytes_max`: how much it may have; 0: nothing is recorded. `tasks`: how many sink tasks the stream has."""
        self._store = store
        self._rows = rows
        self._bytes_max = bytes_max
        self._tasks = tasks
        self._noted: deque[pa.RecordBatch] = deque()
        self._open: list[pa.RecordBatch] = []
        self._open_bytes = 0
        self._parts: deque[_StoredRows] = deque()
        self._next_key = 0
        self._behind: int | None = None
        self.nbytes = 0

    # -- by whoever delivers ------------------------------------------------------------------------------------------

    def note(self, rows: pa.RecordBatch) -> None:
        """Takes rows that the target has taken."""
        if self._bytes_max:
            self._noted.append(rows)

    def note_refused(self, rows: pa.RecordBatch) -> None:
        """Takes rows that went to the DLQ instead."""
        refused = pa.array(np.full(rows.num_rows, REFUSED, np.uint8))
        self.note(rows.set_column(0, OPERATION, refused))

    # -- by the task's thread -----------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Moves what was noted into the store once it makes a part, so that memory holds no more."""
        while self._noted:
            rows = self._noted.popleft()
            self._open.append(rows)
            self._open_bytes += rows.get_total_buffer_size()  # exactly would take longer than all else here
        if self._open_bytes > self._bytes_max // _PARTS:
            self._store_open()
        elif len(self._open) > _WRITES:
            self._open = [pa.concat_batches(self._open)]

    def save(self) -> Any:
        """Returns what `restore` needs besides the store, as JSON can hold it; None where nothing is recorded."""
        if not self._bytes_max:
            return None
        self.settle()
        if self._open:
            self._store_open()
        return {"tasks": self._tasks, "next": self._next_key, "parts": [list(part) for part in self._parts],
                "behind": self._behind}

    def restore(self, saved: Any) -> None:
        """Takes over what `save` returned at the checkpoint that the store is at.

        Nobody knows what was sent before where nothing was recorded, nor, once a vgroup was split, which of two tasks
        has sent the last result of a group. So the record begins anew.
        """
        if saved is not None:
            self._next_key = saved["next"]
            self._parts = deque(_StoredRows(*part) for part in saved["parts"])
            self._behind = saved["behind"]
            self.nbytes = sum(part.nbytes for part in self._parts)
        if saved is None or saved["tasks"] != self._tasks:
            self._behind = ANY_TIME
            self._forget(0)
        self._forget(self._bytes_max)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _store_open(self) -> None:
        """Puts rows into the store, together with the last parts while these are small.

        Checkpoints may come often: a part that grew by each of them would be written again and again, and parts that
        never do would be too many.
        """
        whole = self._bytes_max // _PARTS
        rows = pa.concat_batches(self._open)
        self._open, self._open_bytes = [], 0
        while self._parts and self._parts[-1].rows <= rows.num_rows and self._parts[-1].nbytes + rows.nbytes <= whole:
            last = self._parts.pop()
            self.nbytes -= last.nbytes
            rows = pa.concat_batches([_read(self._store, last.key, self._rows.schema), rows])
            self._store.put_many([(_key(last.key), None)])
        most = max(1, rows.num_rows * whole // rows.nbytes)
        for first in range(0, rows.num_rows, most):
            batch = rows.slice(first, most)
            stored = pack_batch(batch)
            assert self._rows.time_place is not None
            times = batch.column(1 + self._rows.time_place).view(pa.int64())
            self._store.put_many([(_key(self._next_key), stored)])
            self._parts.append(_StoredRows(self._next_key, batch.num_rows, len(stored), pc.max(times).as_py()))
            self._next_key += 1
            self.nbytes += len(stored)
        self._forget(self._bytes_max)

    def _forget(self, bytes_max: int) -> None:
        """Removes the oldest parts until the others have at most so many bytes."""
        while self.nbytes > bytes_max:
            part = self._parts.popleft()
            self.nbytes -= part.nbytes
            self._store.put_many([(_key(part.key), None)])
            self._behind = part.last if self._behind is None else max(self._behind, part.last)


def recorded(store: StateStore, saved: Mapping[str, Any], schema: pa.Schema) -> list[pa.RecordBatch]:
    """Returns the rows of a record, oldest first. `saved`: what `SentRecord.save` returned. Raises CorruptionError."""
    return [_read(store, key, schema) for key, *_ in saved["parts"]]


def _read(store: StateStore, key: int, schema: pa.Schema) -> pa.RecordBatch:
    (stored,) = store.get_many([_key(key)])
    return unpack_batch(stored or b"", schema, f"part {key} of the record of what was sent")


def _key(number: int) -> bytes:
    return _PREFIX + number.to_bytes(8, "big")
