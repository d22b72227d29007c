"""Seeded histories of the whole system in one thread: the batch answer, nothing acknowledged lost, no standstill."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import in_turn, times
from kits.basics.waiting import wait_until
from simulation.run import run_seed

SEEDS = times(6, 500)
SEEDS_WITH_SNODES = times(2, 50)

#: Seeds that once failed, and what they showed. Profiles change over time; each stays as a history worth playing.
PAST = {
    3: "a checkpoint order that came twice made its source task fail",
    7: "a task that failed to be built kept its state open: no later attempt could open it",
    14: "a full disk while the catalog was opened was no named error",
    45: "a task that failed in its store kept it open",
    59: "a crash in the middle of CREATE STREAM left its result table behind",
    64: "rows lost by a power cut (WAL_LEVEL 1) were counted by a checkpoint, and their versions given out again",
    72: "a store whose first commit failed was never closed",
    2332: "a stream that a disk kept from starting was asked for a checkpoint",
    30043: "a statement that dropped a left-over table was refused, and the stream created all the same",
    40072: "a power cut spared a later sector of unsynced records: the log was refused instead of cut",
    50479: "a MANIFEST whose rename was not durable came back after what it needs was deleted",
    174: "a commit record whose directory could not be synced was taken for unwritten, and was there at the next start",
    160: "a file that could not be removed after a flush had it undone in memory: rows came twice",
    304: "a power cut (WAL_LEVEL 1) took back versions behind which a stream was created: they were given out again",
    40179: "an attempt was prepared while a commit record was being written: it dropped the state of that checkpoint",
    12937: "a log couldn't be synced, and then the power was cut (WAL_LEVEL 1): more than a period's rows were lost",
}


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory, where a disk may be as slow as the seed wants, not as the machine is."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="simulation-", dir=shared if shared.is_dir() else None) as name:
        yield Path(name)


@pytest.mark.parametrize("seed", list(PAST)[::times(4, 1)])
def test_past_failures_stay_away(memory: Path, seed: int) -> None:
    """Seeds that once failed go well."""
    outcome = run_seed(seed, memory)
    assert not outcome.problem, f"seed {seed}: {outcome.problem}\n" + "\n".join(outcome.trace)


@pytest.mark.parametrize(("seed", "snodes"), in_turn(range(2001, 2001 + SEEDS_WITH_SNODES), [1, 2]))
def test_some_histories_with_snodes(memory: Path, seed: int, snodes: int) -> None:
    """Also with agg tasks on workers of their own, which die like the others, the streams come to the batch answer."""
    outcome = run_seed(seed, memory, snodes)
    assert not outcome.problem, f"seed {seed}: {outcome.problem}\n" + "\n".join(outcome.trace)
    assert outcome.rows


@pytest.mark.parametrize("seed", range(1000, 1000 + SEEDS))
def test_some_histories(memory: Path, seed: int) -> None:
    """Whatever the seed does to disk, network, clock and processes, the streams come to the batch answer."""
    outcome = run_seed(seed, memory)
    assert not outcome.problem, f"seed {seed}: {outcome.problem}\n" + "\n".join(outcome.trace)


def test_the_same_seed_is_the_same_history(memory: Path) -> None:
    """A seed replays to the last call: same events, same faults, same order."""
    first, second = run_seed(16, memory), run_seed(16, memory)
    assert (first.digest, first.events, first.faults) == (second.digest, second.events, second.faults)
    assert first.events > 300


def test_nothing_is_left_of_a_history(memory: Path) -> None:
    """Thousands are played in one process: none may leave an engine, and what hangs on it, to a thread."""
    before = set(threading.enumerate())  # engines that other tests share may have some
    run_seed(59, memory)
    wait_until(lambda: not any(thread.name == "penstock-statements" for thread in threading.enumerate()
                               if thread not in before))
