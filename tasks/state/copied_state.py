"""A task's state where the worker doesn't reach the data directory: kept here, and after each checkpoint there as well.

The dnode's side is `penstock.mnode.dnode.tasks`. What it keeps is the same store that a worker of its own machine
would have written: so streams go on wherever their workers come back, and backups and fsck know of no difference.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.state.state_cache import StateCache
from penstock.tasks.state.state_store import StateStore, StoredCheckpoint

_BATCH_BYTES = 1 << 20
CHANGES = pa.schema([("key", pa.binary()), ("value", pa.large_binary())])
"""What crosses the network of a state: keys in order, each with its value, or NULL where it is deleted."""


@dataclass(frozen=True, slots=True)
class EnterState:
    """The ticket of an attempt's first question: take the task's state back to a checkpoint; None: to nothing.

    The answer is one row: the checkpoint's `meta` as JSON and the number that was `reserved` last, NULL for none.
    """

    task: TaskId
    attempt: int
    checkpoint_id: int | None


@dataclass(frozen=True, slots=True)
class StateRequest:
    """The ticket of a read: keys and values behind `after` (None: from the first on), as many as fit one answer."""

    task: TaskId
    attempt: int
    after: bytes | None


@dataclass(frozen=True, slots=True)
class ReserveState:
    """The ticket of an order: note the number durably, see `StateStore.reserve`."""

    task: TaskId
    attempt: int
    number: int


@dataclass(frozen=True, slots=True)
class FoldState:
    """The ticket of an order: a checkpoint is committed, of older ones only `kept` stay."""

    task: TaskId
    attempt: int
    checkpoint_id: int
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckpointOf:
    """Whose changes a connection carries: what a checkpoint's delta has, `digest` being the checksum over it."""

    task: TaskId
    attempt: int
    checkpoint_id: int
    meta: dict[str, Any]
    digest: str


StateOrder = EnterState | StateRequest | ReserveState | FoldState


class StateKeeper(Protocol):
    """The way to the dnode. Both methods raise what it raises, or UnavailableError."""

    def ask(self, request: StateOrder, /) -> pa.Table: ...

    def keep_state(self, checkpoint: CheckpointOf, changes: Iterable[pa.RecordBatch]) -> None:
        """Returns once the dnode has the checkpoint durably."""
        ...


class CopiedState(StateStore):
    """A store that begins with what the dnode has, and whose checkpoints count once the dnode has them, too."""

    def __init__(self, directory: Path, map_bytes: int, cache: StateCache, keeper: StateKeeper, task: TaskId) -> None:
        super().__init__(directory, map_bytes, cache)
        self._keeper = keeper
        self._task = task
        self._attempt = 0

    def enter(self, attempt: int) -> None:
        super().enter(attempt)
        self._attempt = attempt

    def restore(self, checkpoint_id: int | None) -> dict[str, Any] | None:
        (entered,) = self._keeper.ask(EnterState(self._task, self._attempt, checkpoint_id)).to_pylist()
        super().restore(None)
        if entered["reserved"] is not None:
            super().reserve(entered["reserved"])
        if checkpoint_id is None:
            return None
        after: bytes | None = None
        while rows := self._keeper.ask(StateRequest(self._task, self._attempt, after)).to_pylist():
            self.put_many((row["key"], row["value"]) for row in rows)
            after = rows[-1]["key"]
        meta: dict[str, Any] = json.loads(entered["meta"])
        super().checkpoint(checkpoint_id, meta)
        return meta

    def checkpoint(self, checkpoint_id: int, meta: dict[str, Any]) -> StoredCheckpoint:
        stored = super().checkpoint(checkpoint_id, meta)
        self._keeper.keep_state(
            CheckpointOf(self._task, self._attempt, checkpoint_id, meta, stored.digest),
            batches(self.changes(checkpoint_id)))
        return stored

    def committed(self, checkpoint_id: int, kept: Collection[int] = ()) -> None:
        super().committed(checkpoint_id)
        self._keeper.ask(FoldState(self._task, self._attempt, checkpoint_id, tuple(kept)))

    def reserve(self, number: int) -> int:
        self._keeper.ask(ReserveState(self._task, self._attempt, number))
        return super().reserve(number)


def batches(items: Iterable[tuple[bytes, bytes | None]]) -> Iterator[pa.RecordBatch]:
    """Yields keys and values, None for one that is deleted, as batches of about a megabyte."""
    keys: list[bytes] = []
    values: list[bytes | None] = []
    size = 0
    for key, value in items:
        keys.append(key)
        values.append(value)
        size += len(key) + (0 if value is None else len(value))
        if size >= _BATCH_BYTES:
            yield _batch(keys, values)
            keys, values, size = [], [], 0
    if keys:
        yield _batch(keys, values)


def _batch(keys: list[bytes], values: list[bytes | None]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(keys, pa.binary()), pa.array(values, pa.large_binary())], schema=CHANGES)
