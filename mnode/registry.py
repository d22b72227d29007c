"""One engine per data directory and process, shared by everyone who opens it; it stops with its last user."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from penstock.common.config import Config
from penstock.mnode.engine import Engine

EngineFactory = Callable[[Path, Config], Engine]

_lock = threading.Lock()
_open: dict[Path, tuple[Engine, int]] = {}


class EngineLease:
    """One user's hold on an engine."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self._path = path
        self.engine = engine
        self._released = False

    def release(self) -> None:
        """Gives the engine up; the last one to do so closes it. A second call does nothing."""
        with _lock:
            if self._released:
                return
            self._released = True
            engine, users = _open[self._path]
            if users > 1:
                _open[self._path] = (engine, users - 1)
                return
            del _open[self._path]
            # Closed under the lock: who opens the directory at this moment must find it unlocked.
            engine.close()


def open_engine(path: Path, config: Config, make: EngineFactory = Engine) -> EngineLease:
    """Returns a hold on the engine of a data directory, opening it if this process hasn't yet.

    `config` only counts for the one who opens it. `DataDirectoryInUseError` if another process has it open.
    """
    root = path.expanduser().resolve()
    with _lock:
        known = _open.get(root)
        engine, users = known if known is not None else (make(root, config), 0)
        _open[root] = (engine, users + 1)
        return EngineLease(root, engine)
