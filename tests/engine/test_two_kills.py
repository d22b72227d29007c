"""Two kill -9 within two seconds, of any two kinds of processes, while nothing is written: the streams come back."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
from functools import partial
from pathlib import Path

import psutil
import pytest
from conftest import by_night
from kits.basics.waiting import wait_until
from kits.engines.engine_process import daemons_below
from kits.engines.killed_engine import KilledEngine, RunningTasks

KINDS = ("engine", "java", "daemon", "worker")
PAIRS = [(*pair, paused) for pair in itertools.permutations(KINDS, 2) for paused in (False, True)]
PATIENCE_S = 180.0

pytestmark = [pytest.mark.slow, by_night]


def processes(child: KilledEngine, kind: str) -> list[psutil.Process]:
    """Returns the processes of a kind that an engine has now."""
    engine = psutil.Process(child.process.pid)
    if kind == "engine":
        return [engine]
    if kind == "java":
        return [process for process in engine.children() if "java" in process.name()]
    return daemons_below(engine.pid) if kind == "daemon" else child.workers()


def kill_two(child: KilledEngine, first: str, second: str, chance: random.Random) -> None:
    """Kills a process of one kind, and within two seconds one of the other, if any is left then."""
    victims = {kind: processes(child, kind) for kind in KINDS}
    chance.choice(victims[first]).kill()
    threading.Event().wait(chance.uniform(0.0, 2.0))
    if child.process.poll() is None:
        victims[second] = processes(child, second) or victims[second]
    with contextlib.suppress(psutil.NoSuchProcess):  # it went with the first
        chance.choice(victims[second]).kill()


def have_new_attempts(child: KilledEngine, before: RunningTasks) -> bool:
    """Tells whether all streams run, or rest, as later attempts, and nobody is left of those before."""
    attempts = child.tasks().attempts
    return (all(attempts[name] > attempt for name, attempt in before.attempts.items())
            and not any(worker.is_running() for worker in before.workers))


def ask(child: KilledEngine, command: str, answer: str) -> None:
    child.tell(command)
    child.expect(answer)


def test_streams_come_back_after_two_kills(tmp_path: Path, children: list[KilledEngine]) -> None:
    """Those that emit at once and those that emit when windows close, paused or not; no old worker lives on."""
    seed = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 32)))
    chance = random.Random(seed)
    print(f"seed {seed}")
    child = KilledEngine(tmp_path / "data", 0)
    children.append(child)
    for first, second, paused in PAIRS:
        print(f"{first}, then {second}{', paused' if paused else ''}")
        ask(child, "insert 3", "inserted")
        ask(child, "check", "equal")
        if paused:
            ask(child, "pause", "paused")
        before = child.tasks()
        kill_two(child, first, second, chance)
        if "engine" in (first, second):
            child.kill()
            child = KilledEngine(tmp_path / "data", child.acked + 1)
            children.append(child)
        wait_until(partial(have_new_attempts, child, before), PATIENCE_S)
        if paused:
            ask(child, "resume", "resumed")
    ask(child, "insert 3", "inserted")
    ask(child, "check", "equal")
    child.close()
