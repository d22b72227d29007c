"""kill -9 of workers and of the engine, at random moments under load: same answer, nothing acknowledged is lost."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_process import EngineProcess
from examples.flights.data import batches, load_feeds

KILLS = int(os.environ.get("KILLS", "20"))

pytestmark = pytest.mark.slow


class Child(EngineProcess):
    """One engine process (tests/kill_child.py), and how far its inserts are acknowledged."""

    def __init__(self, data: Path, position: int) -> None:
        super().__init__("kill_child.py", data, position)
        self.acked = position - 1
        self.expect("ready")

    def next(self) -> str:
        line = super().next()
        self._note(line)
        return line

    def _note(self, line: str) -> None:
        if line.startswith("acked "):
            self.acked = int(line.split()[1])

    def expect(self, start: str) -> str:
        """Returns the next line that is not an acknowledgement; it must begin with `start`."""
        while (line := self.next()).startswith("acked "):
            continue
        assert line.startswith(start), line
        return line

    def run_until(self, acknowledgements: int) -> None:
        """Returns after so many further batches were acknowledged, in the middle of the next."""
        for _ in range(acknowledgements):
            if not self.next().startswith("acked "):
                return

    def kill_amid(self) -> int:
        """Kills the engine and returns the first batch that wasn't acknowledged."""
        for line in self.kill():
            self._note(line)
        return self.acked + 1


@pytest.fixture
def children() -> Iterator[list[Child]]:
    """Engines that a test starts; all are ended after it."""
    started: list[Child] = []
    yield started
    for child in started:
        child.end()


def test_engine_killed_again_and_again(tmp_path: Path, children: list[Child]) -> None:
    """After each kill -9 of the engine: the streams equal the batch answer and all acknowledged rows are there."""
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    arrived = [0, *itertools.accumulate(rows.num_rows for _, rows in batches(load_feeds(seed=2013, months=2)))]
    child = Child(tmp_path / "data", 0)
    children.append(child)
    for _ in range(KILLS):
        child.tell("insert 100000")
        child.run_until(chance.randint(1, 12))
        position = child.kill_amid()
        child = Child(tmp_path / "data", position)
        children.append(child)
        child.tell("check")
        rows = sum(int(count) for count in child.expect("equal").split()[1:])
        assert arrived[position] <= rows <= arrived[position + 1]
    assert child.acked + 1 >= KILLS
    child.close()


def test_workers_killed_again_and_again(tmp_path: Path, children: list[Child]) -> None:
    """After each kill -9 of a Python worker the streams come back by themselves and equal the batch answer."""
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    child = Child(tmp_path / "data", 0)
    children.append(child)
    child.tell("insert 2")
    child.expect("inserted")
    child.tell("check")
    child.expect("equal")
    for _ in range(KILLS):
        child.tell("insert 10")
        child.run_until(chance.randint(0, 9))
        victims = child.workers()
        if victims:
            chance.choice(victims).send_signal(signal.SIGKILL)
        child.expect("inserted")
        child.tell("check")
        child.expect("equal")
    child.close()
