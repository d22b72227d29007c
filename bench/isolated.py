"""Runs a measurement in a process of its own, so that none inherits the memory, threads or caches of another."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.processes import Memory, MemoryWatch

SPAWN = multiprocessing.get_context("spawn")


class Phase:
    """How a measuring process says when the part begins and ends whose memory counts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self) -> None:
        """Gives back what the preparations have left free, and lets memory count from now on."""
        pa.default_memory_pool().release_unused()
        self._connection.send("begin")

    def end(self) -> None:
        """Lets nothing that is used from now on count."""
        self._connection.send("end")


class MeasurementFailedError(Exception):
    """The measuring process failed; the text is its traceback."""


def measured(
    measurement: Callable[..., dict[str, Any]], directory: Path | None, **arguments: Any
) -> dict[str, Any]:
    """Returns what `measurement(folder=..., phase=..., **arguments)` returns, with its peak memory as `memory_mib`.

    It runs in a process of its own with an empty folder, which is removed. All must be picklable. Raises
    MeasurementFailedError.
    """
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=directory))
    ours, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=_run, args=(theirs, measurement, {"folder": folder, **arguments}))
    process.start()
    theirs.close()
    assert process.pid is not None
    try:
        with MemoryWatch(process.pid) as memory:
            answer, peak = _listen(ours, memory)
        process.join()
    finally:
        if process.is_alive():
            process.kill()
            process.join()
        shutil.rmtree(folder, ignore_errors=True)
    if isinstance(answer, str):
        raise MeasurementFailedError(answer)
    return {**answer, "memory_mib": asdict(peak)}


def _listen(connection: Connection, memory: MemoryWatch) -> tuple[dict[str, Any] | str, Memory]:
    """Returns the answer (an error as text) and the peak between `begin` and `end`."""
    peak: Memory | None = None
    while True:
        try:
            message = connection.recv()
        except EOFError:
            message = ("failed", "the process ended without an answer")
        if message == "begin":
            memory.restart()
        elif message == "end":
            peak = memory.peak
        else:
            return message[1], peak or memory.peak


def end_with_parent() -> None:
    """Lets this process end at once when its parent does, so that nothing is left of a run that was broken off."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def _run(answers: Connection, measurement: Callable[..., dict[str, Any]], arguments: dict[str, Any]) -> None:
    end_with_parent()
    try:
        answers.send(("done", measurement(phase=Phase(answers), **arguments)))
    except BaseException:
        answers.send(("failed", traceback.format_exc()))
        raise
