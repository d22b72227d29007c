"""kill -9 of workers and of the engine, at random moments under load: same answer, nothing acknowledged is lost."""

from __future__ import annotations

import itertools
import os
import queue
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from examples.flights.data import batches, load_feeds

ROOT = Path(__file__).parent.parent
KILLS = int(os.environ.get("KILLS", "20"))
ANSWER_S = 180.0

pytestmark = pytest.mark.slow


class Child:
    """One engine process (tests/kill_child.py) and what it says."""

    def __init__(self, data: Path, position: int) -> None:
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "src")]))
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "kill_child.py"), str(data), str(position)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
            env=environment)
        self.acked = position - 1
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.expect("ready")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put("ended")

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def next(self) -> str:
        line = self._lines.get(timeout=ANSWER_S)
        if line.startswith("acked "):
            self.acked = int(line.split()[1])
        return line

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

    def kill(self) -> int:
        """Kills the engine and returns the first batch that wasn't acknowledged."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        while (line := self._lines.get(timeout=ANSWER_S)) != "ended":
            if line.startswith("acked "):
                self.acked = int(line.split()[1])
        return self.acked + 1

    def workers(self) -> list[psutil.Process]:
        """Returns the Python workers of the engine's Spark: children of the daemon."""
        tree = psutil.Process(self.process.pid).children(recursive=True)
        daemons = {process.pid for process in tree if _is_daemon(process)}
        return [process for process in tree if process.ppid() in daemons]

    def close(self) -> None:
        if self.process.poll() is None:
            self.tell("exit")
            self.process.wait(timeout=ANSWER_S)


def _is_daemon(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return "penstock.tasks.daemon" in words and process.parent() is not None and "java" in process.parent().name()


@pytest.fixture
def children() -> Iterator[list[Child]]:
    """Engines that a test starts; all are ended after it."""
    started: list[Child] = []
    yield started
    for child in started:
        if child.process.poll() is None:
            child.process.kill()
            child.process.wait()


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
        position = child.kill()
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
