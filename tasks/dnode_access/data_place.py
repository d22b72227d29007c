"""Tells whether a worker reaches the engine's data directory as files. Its content decides, not its path.

Files are more than bytes here: the end of a log is shared memory, its bell a futex, LMDB and locks work within one
kernel. So a directory that is mounted from another machine doesn't count, nor does a copy of it.
"""

from __future__ import annotations

import hmac
import os
import platform
from pathlib import Path

from penstock.common.errors import StorageError
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def mark_place(paths: DataPaths, fs: Fs, secret: bytes) -> None:
    """Leaves in the data directory what tells workers that know the secret that they are where the engine is."""
    fs.make_dirs(paths.root)
    fs.write_atomic(paths.place, _mark(secret))


def reaches_files(paths: DataPaths, fs: Fs, secret: bytes) -> bool:
    """Returns whether the data directory is here, may be written, and belongs to the engine with this secret."""
    try:
        found = fs.read(paths.place)
    except (FileNotFoundError, StorageError):
        return False
    return hmac.compare_digest(found, _mark(secret)) and os.access(paths.root, os.R_OK | os.W_OK | os.X_OK)


def _mark(secret: bytes) -> bytes:
    return hmac.digest(secret, b"place " + _kernel(), "sha256").hex().encode()


def _kernel() -> bytes:
    """Returns what tells this running kernel from all others; where there is no such thing, the machine's name."""
    try:
        return _BOOT_ID.read_bytes()
    except OSError:
        return platform.node().encode()
