"""Adds up what a process and all its descendants use: seconds of processors, and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import psutil

from bench.background import Background

_SAMPLE_S = 0.25

T = TypeVar("T")


def cpu_seconds(pid: int | None = None) -> float:
    """Returns the seconds of processors (user and system) of a process and its descendants until now.

    Descendants that have ended count with the parent that has reaped them. `pid` None: this process.
    """
    total = 0.0
    for process in tree(psutil.Process(pid)):
        times = ask(process.cpu_times)
        if times is not None:
            total += times.user + times.system + times.children_user + times.children_system
    return total


def tree(root: psutil.Process) -> list[psutil.Process]:
    """Returns a process and its descendants, or nothing if it has ended."""
    return [root, *(ask(lambda: root.children(recursive=True)) or [])]


@dataclass(frozen=True, slots=True)
class Memory:
    """Peaks of sums over all processes, in MiB. `pss` shares pages between those that map them; `rss` counts twice."""

    rss: int
    pss: int


class MemoryWatch(Background):
    """Samples the memory of a process and its descendants four times a second; a context manager."""

    def __init__(self, pid: int) -> None:
        super().__init__("memory watch")
        self._root = psutil.Process(pid)
        self._rss = self._pss = 0

    def restart(self) -> None:
        """Forgets the peaks so far."""
        self._rss = self._pss = 0

    @property
    def peak(self) -> Memory:
        """The greatest sums so far."""
        return Memory(self._rss >> 20, self._pss >> 20)

    def _run(self) -> None:
        while True:
            used = [ask(process.memory_full_info) for process in tree(self._root)]
            self._rss = max(self._rss, sum(each.rss for each in used if each is not None))
            self._pss = max(self._pss, sum(each.pss for each in used if each is not None))
            if self._stop.wait(_SAMPLE_S):
                return


def ask(question: Callable[[], T]) -> T | None:
    """Returns the answer, or None if the process has ended meanwhile."""
    try:
        return question()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
