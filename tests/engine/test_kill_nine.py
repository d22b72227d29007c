"""kill -9 of workers and of the engine, at random moments under load: same answer, nothing acknowledged is lost."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import pytest
from conftest import by_night
from examples.flights.data import batches, load_feeds
from kits.engines.killed_engine import KilledEngine
from kits.engines.verdicts import verify_at_rest

KILLS = int(os.environ.get("KILLS", 20))
NOT_YET = ("no checkpoint", "weren't written yet", "its tables have changed behind its last checkpoint")
"""Why results can't be verified before an engine has run again; the last of groups, of which there is one answer."""

pytestmark = [pytest.mark.slow, by_night]  # by day processes are killed under the golden streams


def run_until(child: KilledEngine, acknowledgements: int) -> None:
    """Returns after so many further batches were acknowledged, in the middle of the next."""
    for _ in range(acknowledgements):
        if not child.next().startswith("acked "):
            return


def test_engine_killed_again_and_again(tmp_path: Path, children: list[KilledEngine]) -> None:
    """After each kill -9 of the engine: what it has left is right, then the streams equal the batch answer, and all
    acknowledged rows are there."""
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    arrived = [0, *itertools.accumulate(rows.num_rows for _, rows in batches(load_feeds(seed=2013, months=2)))]
    child = KilledEngine(tmp_path / "data", 0)
    children.append(child)
    for _ in range(KILLS):
        child.tell("insert 100000")
        run_until(child, chance.randint(1, 12))
        child.kill()
        refused = verify_at_rest(tmp_path / "data")
        assert all(any(reason in why for reason in NOT_YET) for why in refused.values()), refused
        position = child.acked + 1
        child = KilledEngine(tmp_path / "data", position)
        children.append(child)
        child.tell("check")
        rows = sum(int(count) for count in child.expect("equal").split()[1:])
        assert arrived[position] <= rows <= arrived[position + 1]
    assert child.acked + 1 >= KILLS
    child.close()


def test_workers_killed_again_and_again(tmp_path: Path, children: list[KilledEngine]) -> None:
    """After each kill -9 of a Python worker that hosts tasks the streams come back, and equal the batch answer."""
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    child = KilledEngine(tmp_path / "data", 0)
    children.append(child)
    child.tell("insert 2")
    child.expect("inserted")
    child.tell("check")
    child.expect("equal")
    for _ in range(KILLS):
        hosts = child.tasks().workers
        child.tell("insert 10")
        run_until(child, chance.randint(0, 9))
        chance.choice(hosts).kill()
        child.expect("inserted")
        child.tell("check")
        child.expect("equal")
    child.close()
