"""Copies the states of tasks while they work. A program of its own, since LMDB opens an environment once per process.

`copy_states` starts it: it reads JSON from standard input, a list of orders, each a checkpoint's id and pairs of
directories, and copies each environment as of one moment, page by page, if the copy has the checkpoint whole. What
became of the orders it writes as JSON, in their order: "", or what failed how. Nobody waits for it, so it goes last.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb

from penstock.common.errors import CheckpointDamagedError, PenstockError, StorageError
from penstock.common.private import UMASK
from penstock.tasks.state.state_store import StateStore

_TIMEOUT_S = 3600.0
_DAMAGED = "damaged: "


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """A checkpoint, and the environments of its tasks: where each is, and the empty directory that gets its copy."""

    checkpoint_id: int
    pairs: Sequence[tuple[Path, Path]]


def copy_states(orders: Sequence[CopyOrder]) -> list[PenstockError | None]:
    """Copies all, and returns what each order failed with: None; CheckpointDamagedError if an environment doesn't have
    the checkpoint (any more); StorageError if it can't be copied.
    """
    text = json.dumps([[order.checkpoint_id, [[str(source), str(target)] for source, target in order.pairs]]
                       for order in orders])
    try:
        done = subprocess.run([sys.executable, "-m", "penstock.tasks.state.state_copy"], input=text, text=True,
                              capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [StorageError(f"task states could not be copied: {error}") for _ in orders]
    if done.returncode != 0:
        told = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        return [StorageError(f"task states could not be copied: {told}") for _ in orders]
    return [_error(problem) for problem in json.loads(done.stdout)]


def _error(problem: str) -> PenstockError | None:
    if problem.startswith(_DAMAGED):
        return CheckpointDamagedError(problem.removeprefix(_DAMAGED))
    return StorageError(f"task states could not be copied: {problem}") if problem else None


def main() -> int:
    """Does what standard input says; returns the exit code."""
    os.umask(UMASK)  # LMDB's copies take no mode
    os.nice(10)
    told = [_copy(checkpoint_id, pairs) for checkpoint_id, pairs in json.loads(sys.stdin.read())]
    sys.stdout.write(json.dumps(told))
    return 0


def _copy(checkpoint_id: int, pairs: list[tuple[str, str]]) -> str:
    """Returns what went wrong, "" if nothing did."""
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
        return f"{_DAMAGED}{error}"
    except (PenstockError, lmdb.Error, OSError) as error:
        return str(error) or type(error).__name__
    return ""


def environment_size(directory: Path) -> int:
    """Returns a map size that an environment of this size can be opened with."""
    return max(2 * (directory / "data.mdb").stat().st_size, 1 << 20)


if __name__ == "__main__":
    sys.exit(main())
