"""One engine per data directory and process, shared by everyone who opens it; it stops with its last user."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from penstock.common.config import Config
from penstock.common.errors import PenstockError
from penstock.common.logging import logger
from penstock.mnode.admin.engine_lease import EngineLease
from penstock.mnode.admin.sandbox import dry_run
from penstock.mnode.engine import Engine

_log = logger(__name__)

EngineFactory = Callable[[Path, Config], Engine]


@dataclass(slots=True)
class _Slot:
    """What is open of one data directory. Engines open and close under its lock, and only theirs."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    engine: Engine | None = None
    users: int = 0


_slots: dict[Path, _Slot] = {}
_slots_lock = threading.Lock()


def new_engine(path: Path, config: Config) -> Engine:
    """Opens the engine of a data directory that belongs to no cluster; raises as `Engine` does."""
    return Engine(path, replace(config, cluster_node=0), dry_run=dry_run)


def new_member(path: Path, config: Config) -> Engine:
    """Opens the engine of a node of the configured cluster; raises as `Engine` does, and ConfigError."""
    return Engine(path, config, dry_run=dry_run)


def open_engine(path: Path, config: Config, make: EngineFactory = new_engine) -> EngineLease:
    """Returns a hold on the engine of a data directory, opening it if this process hasn't yet.

    `config` only counts for the one who opens it. `DataDirectoryInUseError` if another process has it open.
    """
    root = path.expanduser().resolve()
    with _slots_lock:
        slot = _slots.setdefault(root, _Slot())
    with slot.lock:
        if slot.engine is None:
            slot.engine = make(root, config)
        slot.users += 1
        return EngineLease(slot.engine, partial(_release, slot))


def _release(slot: _Slot) -> None:
    """Ends one use of an engine; the last one closes it."""
    with slot.lock:
        slot.users -= 1
        if slot.users == 0:
            engine, slot.engine = slot.engine, None
            if engine is not None:
                engine.close()


@atexit.register
def close_engines() -> None:
    """Closes what the process has left open when it ends, streams after a last checkpoint; bounded as `Engine.close`.

    An engine that a thread is still opening or closing at that moment is left to it.
    """
    for slot in list(_slots.values()):
        if not slot.lock.acquire(blocking=False):
            continue
        try:
            engine, slot.engine, slot.users = slot.engine, None, 0
            if engine is not None:
                engine.close()
        except PenstockError as error:
            _log.warning("an engine did not close well when the process ended: %s", error)
        finally:
            slot.lock.release()
