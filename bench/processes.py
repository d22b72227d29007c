"""Adds up what a process and all its descendants use: seconds of processors, and memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
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


def cpu_of_each(apart: Collection[int] = ()) -> dict[int, float]:
    """Returns the seconds of processors (user and system) that this process and each of its descendants has taken, by
    process id; without the processes `apart` and theirs.
    """
    outside = {process.pid for pid in apart for process in tree(psutil.Process(pid))}
    found = {process.pid: ask(process.cpu_times) for process in tree(psutil.Process()) if process.pid not in outside}
    taken = {pid: times.user + times.system for pid, times in found.items() if times is not None}
    return {**taken, os.getpid(): time.process_time()}  # which is finer than the system's hundredths of a second


def cpu_since(before: Mapping[int, float], now: Mapping[int, float]) -> float:
    """Returns what the processes that there are now have taken since `before`, both of `cpu_of_each`.

    Spark's workers end without a parent that counts what they took: in a sum such an end looks like less than nothing.
    """
    return sum(max(0.0, seconds - before.get(pid, 0.0)) for pid, seconds in now.items())


def tree(root: psutil.Process) -> list[psutil.Process]:
    """Returns a process and its descendants, or nothing if it has ended."""
    return [root, *(ask(lambda: root.children(recursive=True)) or [])]


@dataclass(frozen=True, slots=True)
class Memory:
    """Sums over all processes, or their peaks, in MiB. `pss` shares pages between those that map them; `rss` counts
    them for each."""

    rss: int
    pss: int


def memory_of(root: psutil.Process | None = None) -> Memory:
    """Returns what a process and its descendants hold now; nothing if it has ended. None: this process."""
    found = [ask(process.memory_full_info) for process in tree(root or psutil.Process())]
    used = [each for each in found if each is not None]
    return Memory(sum(each.rss for each in used) >> 20, sum(each.pss for each in used) >> 20)


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
        return Memory(self._rss, self._pss)

    def _run(self) -> None:
        while True:
            now = memory_of(self._root)
            self._rss, self._pss = max(self._rss, now.rss), max(self._pss, now.pss)
            if self._stop.wait(_SAMPLE_S):
                return


def ask(question: Callable[[], T]) -> T | None:
    """Returns the answer, or None if the process has ended meanwhile."""
    try:
        return question()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
