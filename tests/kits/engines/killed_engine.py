"""An engine that is killed under load: how far its inserts are acknowledged, and who hosts its tasks."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

import psutil
from kits.engines.engine_process import EngineProcess

_NEWS = ("acked ", "flow ")


class UnexpectedAnswerError(Exception):
    """The engine said something else than it should."""


@dataclass(frozen=True)
class RunningTasks:
    """The attempts of the streams, all of which run, and the processes that host their tasks."""

    attempts: dict[str, int]
    workers: list[psutil.Process]


class KilledEngine(EngineProcess):
    """kill_child.py on a data directory, to insert from batch `position` on; `acked`: the last acknowledged one."""

    def __init__(self, data: Path, position: int, *options: str) -> None:
        super().__init__("kill_child.py", data, position, *options)
        self.acked = position - 1
        self.expect("ready")

    def next(self) -> str:
        line = super().next()
        self.note(line)
        return line

    def note(self, line: str) -> None:
        """Takes in what a line tells of the way things are."""
        if line.startswith("acked "):
            self.acked = int(line.split()[1])

    def expect(self, start: str) -> str:
        """Returns the next line that is no news. Raises UnexpectedAnswerError unless it begins with `start`."""
        while (line := self.next()).startswith(_NEWS):
            continue
        if not line.startswith(start):
            raise UnexpectedAnswerError(f"the engine said {line!r} instead of {start!r}")
        return line

    def tasks(self) -> RunningTasks:
        """Waits until all streams run, and returns how; a worker that has ended by now isn't among them."""
        self.tell("tasks")
        found = json.loads(self.expect("tasks ").removeprefix("tasks "))
        workers = []
        for pid in found["pids"]:
            with contextlib.suppress(psutil.NoSuchProcess):
                workers.append(psutil.Process(pid))
        return RunningTasks(found["attempts"], workers)

    def kill(self) -> list[str]:
        lines = super().kill()
        for line in lines:
            self.note(line)
        return lines
