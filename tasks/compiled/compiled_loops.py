"""The loops of this process: compiled, or, and it says why, as Python runs them: a row takes a microsecond then.

Compiled code is kept per user and machine, in a directory that nobody else can write: whoever reads it runs it. The
process from which workers fork loads it before it forks. Where there is none yet, a process of its own compiles
meanwhile, once per version; workers load it when it is there, so that no rows wait for it.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from penstock.common.logging import logger
from penstock.common.private import cache_directory, make_private, private_umask, writable_by_others, write_private
from penstock.tasks.compiled import loops

_log = logger(__name__)

#: numba's own: a directory in place of the user's cache directory; set to 1, nothing is compiled.
DIRECTORY_VARIABLE, OFF_VARIABLE = "NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT"
_COMPLETE = "complete"
_SWITCHED_OFF = f"{OFF_VARIABLE} is set"
_WAIT_S, _LOOK_EVERY_S = 300.0, 0.5
_COMPILING_NICE = 10
_REASON_CHARACTERS = 300

_NOT_LOADED = "they were not loaded in this process"


class _Here:
    """What this process has. `loops`: functions by the names of `loops.SIGNATURES`."""

    #: They are loaded once, although several workers may be in a process: where each loaded its own, in place of the
    #: ones before, the process crashed now and then when garbage was collected.
    lock = threading.Lock()
    loops: Any = None
    reason: str = _NOT_LOADED
    compiling: subprocess.Popen[bytes] | None = None


def row_loops() -> Any:
    """Returns the loops, each an attribute by the name that it has in `loops`: compiled, unless `why_not` says why."""
    return _Here.loops or _INTERPRETED


def why_not() -> str:
    """Returns why there are no compiled loops in this process; empty if there are."""
    return "" if _Here.loops is not None else _Here.reason


def load() -> bool:
    """Compiles the loops, or reads what was compiled before; returns whether that worked. Takes seconds in the former
    case and a good half in the latter. Any thread; those that come meanwhile wait.
    """
    with _Here.lock:
        return _Here.loops is not None or _load()


def _load() -> bool:
    directory = _usable_directory()
    if directory is None:
        return False
    try:
        _Here.loops = _compiled_in(directory)
        if not (directory / _COMPLETE).exists():
            write_private(directory / _COMPLETE, b"")
    except Exception as error:  # noqa: BLE001 - numba raises anything where it cannot run
        _Here.reason = f"numba cannot compile here: {' '.join(str(error).split())[:_REASON_CHARACTERS]}"
        return False
    return True


def load_or_have_compiled() -> None:
    """Loads what is compiled, else lets another process compile it. For processes that are about to fork."""
    directory = _usable_directory()
    if directory is None:
        return
    if (directory / _COMPLETE).exists():
        load()
        return
    _Here.reason = "they are being compiled"
    try:
        _Here.compiling = subprocess.Popen(
            [sys.executable, "-m", "penstock.tasks.compiled.compiled_loops"], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError as error:
        _Here.reason = f"no process could be started that compiles: {error}"


def load_when_compiled(stopping: threading.Event) -> None:
    """Has a thread load what another process is compiling, unless it is loaded already or cannot be."""
    if _Here.loops is not None:
        return
    directory = _usable_directory()
    if directory is None and _Here.reason == _SWITCHED_OFF:
        return
    if directory is None:
        _log.warning("loops over rows are not compiled, which costs speed: %s", _Here.reason)
        return

    def wait(complete: Path) -> None:
        for _ in range(int(_WAIT_S / _LOOK_EVERY_S)):
            if complete.exists():
                load()
                return
            if stopping.wait(_LOOK_EVERY_S):
                return
        _Here.reason = "compiling them took too long"
        _log.warning("loops over rows are not compiled, which costs speed: %s", _Here.reason)

    threading.Thread(target=wait, args=(directory / _COMPLETE,), name="compiled loops", daemon=True).start()


# -- inside ------------------------------------------------------------------------------------------------------


def _usable_directory() -> Path | None:
    """Returns the directory of compiled code, which exists then; else None, and the reason is noted."""
    chosen = os.environ.get(DIRECTORY_VARIABLE, "")
    if os.environ.get(OFF_VARIABLE, "0") != "0":
        _Here.reason = _SWITCHED_OFF
        return None
    if importlib.util.find_spec("numba") is None:
        _Here.reason = "numba is not installed"
        return None
    try:
        directory = (Path(chosen) if chosen else cache_directory("compiled")) / _fingerprint()
        make_private(directory)
        shared = writable_by_others(directory)
    except (OSError, RuntimeError) as error:
        _Here.reason = f"there is no directory for compiled code: {error}"
        return None
    if shared is not None:
        _Here.reason = f"others may write {shared}, in which compiled code would be"
        return None
    return directory


def _fingerprint() -> str:
    """Names what compiled code depends on: these loops, what compiles them, and the processor."""
    source = Path(loops.__file__)
    parts = [source.read_text("utf-8"), str(source.stat().st_mtime_ns), sys.version, platform.machine(),
             *(metadata.version(name) for name in ("numba", "llvmlite", "numpy"))]
    processor = Path("/proc/cpuinfo")
    if processor.exists():
        lines = processor.read_text("utf-8").splitlines()
        parts += [line for line in dict.fromkeys(lines) if line.startswith(("model name", "flags", "Features"))]
    return sha256("\0".join(parts).encode()).hexdigest()[:24]


def _compiled_in(directory: Path) -> Any:
    """Imports numba, which costs a third of a second, and compiles what isn't in the directory."""
    import numba

    numba.config.CACHE_DIR = str(directory)
    found: dict[str, Callable[..., Any]] = {}
    with private_umask():
        for name, signatures in loops.SIGNATURES.items():
            found[name] = numba.njit(signatures, nogil=True, cache=True)(getattr(loops, name))
    return SimpleNamespace(**found)


#: Numbers wrap and leave their range without a word, as they do where loops are compiled.
_INTERPRETED = SimpleNamespace(**{
    name: np.errstate(over="ignore", invalid="ignore")(getattr(loops, name)) for name in loops.SIGNATURES})


if __name__ == "__main__":
    os.nice(_COMPILING_NICE)
    load()
