"""The dnode's side of task states that workers keep elsewhere: the stores that workers of this machine would open.

One attempt at a time holds the state of a task. Attempts that the mnode knows nothing of, or nothing any more, are
refused, so that a worker which was given up can't change what its successor goes on from.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.common.errors import InternalError, StaleAttemptError
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths
from penstock.tasks.dnode_access.data_access import StateDirectories
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.state.copied_state import (
    CHANGES,
    CheckpointOf,
    EnterState,
    FoldState,
    ReserveState,
    StateOrder,
    StateRequest,
    batches,
)
from penstock.tasks.state.state_cache import StateCache
from penstock.tasks.state.state_store import StateStore

_DONE = pa.table({})


@dataclass(slots=True)
class _Held:
    """The open store of a task. `lock` is held while it is used; a `closed` one is used no more."""

    attempt: int
    store: StateStore
    directories: StateDirectories
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        with self.lock:
            self.closed = True
            self.store.close()
            self.directories.close()


class TaskStates:
    """Holds the states of all tasks whose workers don't reach the data directory. Safe for many threads."""

    def __init__(self, paths: DataPaths, fs: Fs, clock: Clock, map_bytes: int) -> None:
        self._paths = paths
        self._fs = fs
        self._clock = clock
        self._map_bytes = map_bytes
        self._cache = StateCache()
        self._lock = threading.Lock()
        self._attempts: dict[int, int] = {}
        self._held: dict[TaskId, _Held] = {}

    # --- what the mnode says -----------------------------------------------------------------------------------

    def fence(self, stream_id: int, attempt: int) -> None:
        """From now on only this attempt of the stream may use its state, here or on a worker of this machine."""
        with self._lock:
            self._attempts[stream_id] = attempt
        self._let_go(stream_id)

    def forget(self, stream_id: int) -> None:
        """From now on nobody may use the state of the stream."""
        with self._lock:
            self._attempts.pop(stream_id, None)
        self._let_go(stream_id)

    def close(self) -> None:
        """Closes all stores; nobody may use them any more."""
        with self._lock:
            streams = set(self._attempts)
        for stream_id in streams:
            self.forget(stream_id)

    def _let_go(self, stream_id: int) -> None:
        with self._lock:
            gone = [self._held.pop(task) for task in list(self._held) if task.stream_id == stream_id]
        for held in gone:
            held.close()

    # --- what workers say --------------------------------------------------------------------------------------

    def answer(self, order: StateOrder) -> pa.Table:
        """Does what the order's class says and returns its answer.

        Raises StaleAttemptError, CheckpointDamagedError, StorageError; UnavailableError while a worker of this machine
        still holds the state.
        """
        if isinstance(order, EnterState):
            return self._enter(order)
        held = self._holder(order.task, order.attempt)
        with held.lock:
            self._check(held, order.task)
            match order:
                case StateRequest(_, _, after):
                    with closing(held.store.scan(b"" if after is None else after + b"\0")) as found:
                        page = next(batches(found), None)
                    return CHANGES.empty_table() if page is None else pa.Table.from_batches([page])
                case ReserveState(_, _, number):
                    held.store.reserve(number)
                case FoldState(_, _, checkpoint_id, kept):
                    held.store.committed(checkpoint_id, kept)
        return _DONE

    def keep(self, checkpoint: CheckpointOf, changes: Iterable[pa.RecordBatch]) -> None:
        """Takes what a checkpoint has changed, durably. Raises as `answer` does."""
        held = self._holder(checkpoint.task, checkpoint.attempt)
        for batch in changes:  # may wait for a worker that hangs, which must hold up nobody else
            keys, values = (column.to_pylist() for column in batch.columns)
            with held.lock:
                self._check(held, checkpoint.task)
                held.store.put_many(zip(keys, values, strict=True))
        with held.lock:
            self._check(held, checkpoint.task)
            stored = held.store.checkpoint(checkpoint.checkpoint_id, checkpoint.meta)
            if stored.digest != checkpoint.digest:
                raise InternalError(f"checkpoint {checkpoint.checkpoint_id} of {checkpoint.task} isn't what its worker "
                                    f"has sent: {stored.digest} instead of {checkpoint.digest}")

    def _enter(self, order: EnterState) -> pa.Table:
        self._check_attempt(order.task, order.attempt)
        directories = StateDirectories(self._paths, self._fs, self._clock)
        store: StateStore | None = None
        try:
            store = StateStore(directories.open(order.task), self._map_bytes, self._cache)
            store.enter(order.attempt)
            meta, reserved = store.restore(order.checkpoint_id), store.reserved
            with self._lock:
                self._check_attempt(order.task, order.attempt)
                self._held[order.task] = _Held(order.attempt, store, directories)
        except BaseException:
            if store is not None:
                store.close()
            directories.close()
            raise
        return pa.table({"meta": pa.array([None if meta is None else json.dumps(meta)], pa.string()),
                         "reserved": pa.array([reserved], pa.uint64())})

    def _holder(self, task: TaskId, attempt: int) -> _Held:
        held = self._held.get(task)
        if held is None or held.attempt != attempt:
            raise self._stale(task, attempt)
        return held

    def _check(self, held: _Held, task: TaskId) -> None:
        if held.closed:
            raise self._stale(task, held.attempt)

    def _check_attempt(self, task: TaskId, attempt: int) -> None:
        if self._attempts.get(task.stream_id) != attempt:
            raise self._stale(task, attempt)

    def _stale(self, task: TaskId, attempt: int) -> StaleAttemptError:
        known = self._attempts.get(task.stream_id)
        return StaleAttemptError(f"attempt {attempt} may not use the state of {task}: "
                                 + ("the stream is gone" if known is None else f"attempt {known} runs"))
