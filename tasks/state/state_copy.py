"""Copies the states of tasks while they work, each as of one moment, by another process: see `state_check`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb

from penstock.common.errors import CheckpointDamagedError, PenstockError, StorageError
from penstock.common.private import UMASK
from penstock.tasks.state.state_check import Unreadable, in_another_process
from penstock.tasks.state.state_store import StateStore

_NICE = 10  # nobody waits for it


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """A checkpoint, and the environments of its tasks: where each is, and the empty directory that gets its copy."""

    checkpoint_id: int
    pairs: Sequence[tuple[Path, Path]]


def copy_states(orders: Sequence[CopyOrder]) -> list[PenstockError | None]:
    """Copies all, page by page, and returns what each order failed with: None; CheckpointDamagedError if an environment
    doesn't have the checkpoint whole (any more); StorageError if it can't be copied.
    """
    return [StorageError(f"task states could not be copied: {found.why}") if isinstance(found, Unreadable) else found
            for found in in_another_process(orders, _copy)]


def _copy(order: CopyOrder) -> PenstockError | None:
    os.umask(UMASK)  # LMDB's copies take no mode
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    try:
        for source, target in order.pairs:
            environment = lmdb.open(str(source), readonly=True, max_dbs=0)
            try:
                environment.copy(str(target))  # pages keep their places: copies of later checkpoints resemble it
            finally:
                environment.close()
            store = StateStore(target, environment_size(target))
            try:
                store.verify(order.checkpoint_id)
            finally:
                store.close()
    except CheckpointDamagedError as error:
        return CheckpointDamagedError(error.message)
    except (PenstockError, lmdb.Error, OSError) as error:
        return StorageError(f"task states could not be copied: {str(error) or type(error).__name__}")
    return None


def environment_size(directory: Path) -> int:
    """Returns a map size that an environment of this size can be opened with."""
    return max(2 * (directory / "data.mdb").stat().st_size, 1 << 20)
