"""How much memory processes take, and how much there is, from psutil and the control group; decides nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from penstock.common.quantities import read_size


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that each process of a tree takes, by its id. `java`: those of them that run Java."""

    by_pid: Mapping[int, int]
    java: frozenset[int] = frozenset()

    @property
    def total(self) -> int:
        return sum(self.by_pid.values())


def measure_tree(pid: int, exact_from: float = 0.0) -> Memory:
    """Returns what a process and all that it has started take. Processes that end meanwhile are left out.

    Pages of mapped files aren't counted: the system takes them back when it needs the room. Those that forked workers
    still share with the process they come from count once in all where that matters: from a total of `exact_from`
    bytes on. Below, where they are cheaper to count for each, the total is too high rather than too low.
    """
    memory = _resident(pid)
    if memory.total < exact_from:
        return memory
    return Memory({each: _shared_out(each, nbytes) for each, nbytes in memory.by_pid.items()}, memory.java)


def _shared_out(pid: int, resident: int) -> int:
    """Returns a process's own memory, with its part of what it shares; `resident` where the system doesn't say."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return resident
    found = dict(line.split()[:2] for line in lines[1:])
    parts = [found.get(name) for name in ("Pss_Anon:", "Pss_Shmem:")]
    return sum(int(part) * 1024 for part in parts if part is not None) if None not in parts else resident


def _resident(pid: int) -> Memory:
    root = psutil.Process(pid)
    found: dict[int, int] = {}
    java: set[int] = set()
    for process in (root, *root.children(recursive=True)):
        try:
            info = process.memory_info()
            name = process.name()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        # Elsewhere than on Linux there is no such number.
        found[process.pid] = max(0, info.rss - getattr(info, "shared", 0))
        if name == "java":
            java.add(process.pid)
    return Memory(found, frozenset(java))


def available_bytes(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Returns how much memory this machine has, or this container, if it may have less."""
    limits = [psutil.virtual_memory().total]
    places = [groups / "memory" / "memory.limit_in_bytes"]
    for line in own.read_text().splitlines() if own.is_file() else ():
        if line.startswith("0::/"):
            within = groups / line.removeprefix("0::/")
            places += [folder / "memory.max" for folder in (within, *within.parents) if folder.is_relative_to(groups)]
    for place in places:
        if place.is_file() and (text := place.read_text().strip()).isdigit():
            limits.append(int(text))
    return min(limits)


def share_of(limit: str) -> float | None:
    """Returns `90%` as 0.9, and None for what isn't a share."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", limit)
    return None if match is None else float(match[1]) / 100


def limit_bytes(limit: str, available: int) -> int:
    """Returns the bytes of a limit that is a size or a share of what is available; 0 stays 0."""
    share = share_of(limit)
    return read_size(limit) if share is None else int(share * available)
