"""Spark's executors as Penstock sees them: places with slots, in each of which one worker can be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Executor:
    """A process of Spark's that hosts workers. `slots`: how many at once, `busy`: how many of them are taken."""

    id: str
    host: str
    slots: int
    busy: int


@dataclass(frozen=True, slots=True)
class Executors:
    """All executors at one moment. `elastic`: Spark can be asked for more of them, and can take some back."""

    all: tuple[Executor, ...]
    elastic: bool

    @property
    def slots(self) -> int:
        return sum(executor.slots for executor in self.all)
