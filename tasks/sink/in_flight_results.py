"""Results that a sink couldn't write before a checkpoint: kept in its state, in their order, until they are written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from penstock.common.arrow_data import from_ipc, to_ipc
from penstock.common.errors import InternalError
from penstock.tasks.state.state_store import StateStore

_PREFIX = b"aside/"
_FIRST = 1 << 32
"""Batches are numbered from here on, so that there is room before the first."""


class InFlightResults:
    """First in, first out, on disk: what is in it costs no memory. Part of the task's checkpoints by `save`.

    A batch that was taken is gone from the next checkpoint on; one that wasn't written by then must be put back.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._sizes: dict[int, int] = {}  # bytes of each batch in the store by its number, in ascending order
        self.nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def add(self, batch: pa.RecordBatch) -> None:
        """Appends a batch."""
        self._put(max(self._sizes, default=_FIRST - 1) + 1, batch)

    def put_back(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Puts batches, in their order, before all others."""
        waiting = list(batches)
        first = min(self._sizes, default=_FIRST) - len(waiting)
        for number, batch in enumerate(waiting, first):
            self._put(number, batch)
        self._sizes = dict(sorted(self._sizes.items()))

    def take(self) -> pa.RecordBatch | None:
        """Removes and returns the oldest batch, or returns None."""
        number = next(iter(self._sizes), None)
        if number is None:
            return None
        (stored,) = self._store.get_many([_key(number)])
        if stored is None:
            raise InternalError(f"batch {number} of the results set aside is missing")
        self._store.put_many([(_key(number), None)])
        self.nbytes -= self._sizes.pop(number)
        return from_ipc(stored)

    def save(self) -> list[list[int]]:
        """Returns what `restore` needs besides the store, as JSON can hold it."""
        return [[number, size] for number, size in self._sizes.items()]

    def restore(self, saved: Any) -> None:
        """Takes over what `save` returned; the store is that of the same checkpoint."""
        self._sizes = dict(saved)
        self.nbytes = sum(self._sizes.values())

    def _put(self, number: int, batch: pa.RecordBatch) -> None:
        stored = to_ipc(batch).to_pybytes()
        self._store.put_many([(_key(number), stored)])
        self._sizes[number] = len(stored)
        self.nbytes += len(stored)


def _key(number: int) -> bytes:
    return _PREFIX + number.to_bytes(8, "big")
