"""Time, chance and the order of everything that happens: a heap of events, taken one after the other.

An event belongs to a process. It is skipped if the process is dead, and waits if the process is stopped.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from penstock.common.clock import ManualClock
from simulation.disk import Disk, PowerLost, ProcessDied
from simulation.seams import LmdbSeam

START_MS = 1_700_000_000_000
_TRACE_KEPT = 400
Action = Callable[[], None]


class SimulationError(AssertionError):
    """What a run must never come to; the text says what and where."""


class SimClock(ManualClock):
    """The clock of all processes. Who waits on it lets the others go on."""

    def __init__(self, world: World) -> None:
        super().__init__(START_MS)
        self._world = world

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self._world.pump(event.is_set, timeout_s)
        return event.is_set()


class World:
    """The simulated machine: its clock, its disk, its processes, and what is going to happen."""

    def __init__(self, seed: int, root: Path) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.clock = SimClock(self)
        self.disk = Disk(root, Random(seed ^ 0x5EED))
        self.lmdb = LmdbSeam(lambda: self.current, self._before_commit, self._after_commit)
        self.current = "world"
        self.dead: set[str] = set()
        self.trace: deque[str] = deque(maxlen=_TRACE_KEPT)
        self.events = 0
        self.on_death: list[Callable[[str], None]] = []
        self.on_power_loss: Action = lambda: None
        self.commit_fault: Callable[[], None] = lambda: None
        self.after_commit_fault: Callable[[], None] = lambda: None
        self._heap: list[tuple[float, int, str, Action]] = []
        self._numbers = itertools.count()
        self._stopped: dict[str, float] = {}
        self._hash = hashlib.sha256()

    # --- what happens when -------------------------------------------------------------------------------------

    def later(self, delay_s: float, process: str, action: Action) -> None:
        """Has `action` happen in `process` after `delay_s` seconds."""
        heapq.heappush(self._heap, (self.clock.monotonic() + delay_s, next(self._numbers), process, action))

    def soon(self, process: str, action: Action, longest_s: float = 0.01) -> None:
        """Has `action` happen in `process` after a moment of random length."""
        self.later(self.chance.random() * longest_s, process, action)

    def tell(self, text: str) -> None:
        """Notes what happened; the digest of all notes shows that two runs are the same."""
        line = f"{self.clock.monotonic():9.4f} {self.disk.calls:5d} {text}"
        self._hash.update(line.encode())
        self.trace.append(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]

    def alive(self, process: str) -> bool:
        return process not in self.dead

    def stop(self, process: str, seconds: float) -> None:
        """Stops a process for a while, as SIGSTOP does."""
        self._stopped[process] = self.clock.monotonic() + seconds

    def kill(self, process: str, why: str) -> None:
        """Ends a process at once."""
        if not self.alive(process):
            return
        self.tell(f"{process} dies: {why}")
        self.dead.add(process)
        self.disk.kill(process)
        self.lmdb.kill(process)
        for hook in self.on_death:
            hook(process)

    def step(self) -> bool:
        """Lets the next event happen; returns False if there is none."""
        if not self._heap:
            return False
        at, _, process, action = heapq.heappop(self._heap)
        now = self.clock.monotonic()
        if at > now:
            self.clock.advance(at - now)
        if not self.alive(process):
            return True
        if self._stopped.get(process, 0.0) > self.clock.monotonic():
            self.later(self._stopped[process] - self.clock.monotonic(), process, action)
            return True
        self.events += 1
        with self.inside(process):
            try:
                action()
            except ProcessDied as death:
                self.kill(death.process, "in the middle of a call")
            except PowerLost:
                self.on_power_loss()
        return True

    @contextmanager
    def inside(self, process: str) -> Iterator[None]:
        """Whatever is done in here is done by `process`."""
        before, self.current = self.current, process
        try:
            yield
        finally:
            self.current = before

    def pump(self, done: Callable[[], bool], seconds: float) -> None:
        """Lets the others go on until something is done or time has passed; the waiting process may die meanwhile."""
        process, deadline = self.current, self.clock.monotonic() + seconds
        while not done() and self._heap and self._heap[0][0] <= deadline:
            self.step()
            if not self.alive(process):
                raise ProcessDied(process)
        if not done() and self.clock.monotonic() < deadline:
            self.clock.advance(deadline - self.clock.monotonic())

    def _before_commit(self) -> None:
        if self.disk.off:
            raise PowerLost
        if self.current in self.disk.dead:
            raise ProcessDied(self.current)
        self.commit_fault()

    def _after_commit(self) -> None:
        self.after_commit_fault()
