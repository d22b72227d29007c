"""Copies the state of tasks while they work. A program of its own, since LMDB opens an environment once per process.

`copy_states` starts it: it reads JSON from standard input, a checkpoint's id and pairs of directories, and copies each
environment as of one moment, page by page, if the copy has the checkpoint whole.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import lmdb

from penstock.common.errors import CheckpointDamagedError, PenstockError, StorageError
from penstock.common.private import UMASK
from penstock.tasks.state.state_store import StateStore

_TIMEOUT_S = 3600.0
_DAMAGED = 3


def copy_states(checkpoint_id: int, pairs: Sequence[tuple[Path, Path]]) -> None:
    """Copies the environments in the first directories into the second ones, which must exist and be empty.

    Raises CheckpointDamagedError if one doesn't have the checkpoint (any more), StorageError if it can't be copied.
    """
    order = json.dumps([checkpoint_id, [[str(source), str(target)] for source, target in pairs]])
    try:
        done = subprocess.run([sys.executable, "-m", "penstock.tasks.state.state_copy"], input=order, text=True,
                              capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StorageError(f"task states could not be copied: {error}") from error
    text = done.stderr.strip().rpartition("\n")[2]
    if done.returncode == _DAMAGED:
        raise CheckpointDamagedError(text)
    if done.returncode != 0:
        raise StorageError(f"task states could not be copied: {text or f'exit code {done.returncode}'}")


def main() -> int:
    """Does what standard input says; returns the exit code."""
    os.umask(UMASK)  # LMDB's copies take no mode
    checkpoint_id, pairs = json.loads(sys.stdin.read())
    try:
        for source, target in pairs:
            environment = lmdb.open(source, readonly=True, max_dbs=0)
            try:
                environment.copy(target)  # pages keep their places, so that copies of later checkpoints resemble it
            finally:
                environment.close()
            store = StateStore(Path(target), environment_size(Path(target)))
            try:
                store.verify(checkpoint_id)
            finally:
                store.close()
    except CheckpointDamagedError as error:
        sys.stderr.write(f"{error}\n")
        return _DAMAGED
    except (PenstockError, lmdb.Error, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def environment_size(directory: Path) -> int:
    """Returns a map size that an environment of this size can be opened with."""
    return max(2 * (directory / "data.mdb").stat().st_size, 1 << 20)


if __name__ == "__main__":
    sys.exit(main())
