"""The list beside a log of who wrote from where on: (epoch, first version), both ascending. One small file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from penstock.common.errors import CorruptionError
from penstock.common.fs import Fs
from penstock.common.sealed import seal, unseal

EPOCHS_NAME = "EPOCHS"


def load_epochs(fs: Fs, directory: Path) -> tuple[tuple[int, int], ...]:
    """Returns the list of the log in `directory`; none if nobody has noted any. Raises CorruptionError."""
    if EPOCHS_NAME not in fs.list(directory):
        return ()
    path = directory / EPOCHS_NAME
    text = unseal(fs.read(path), str(path), hint="make the log anew, as a copy of another node's")
    try:
        found = tuple((int(epoch), int(first)) for epoch, first in json.loads(text))
    except (ValueError, TypeError) as error:
        raise CorruptionError(f"{path} is no list of epochs: {error}") from error
    if list(found) != sorted(set(found)) or [first for _, first in found] != sorted(first for _, first in found):
        raise CorruptionError(f"{path}: the epochs don't follow each other")
    return found


def save_epochs(fs: Fs, directory: Path, epochs: Sequence[tuple[int, int]]) -> None:
    """Replaces the list; it is durable on return. Raises StorageError; then the old or the new one is there."""
    fs.make_dirs(directory)
    fs.write_atomic(directory / EPOCHS_NAME, seal(json.dumps([list(one) for one in epochs]).encode()))
