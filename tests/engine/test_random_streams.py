"""Random streams over random schemas: with nothing ignored, each result equals the batch, after every step.

An example is one stream over one history; a history is played for several streams at once. `make nightly` draws many
more of them (the profile `nightly` in conftest.py) and shows how far it is.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import profile, times
from hypothesis import given, settings
from kits.streams.random_player import Player
from kits.streams.random_streams import STREAMS, History, histories

from penstock.tasks.compiled.compiled_loops import load
from penstock.tasks.window import window_pages

#: Memory, where there is such a folder: state is synced often, and no test cuts the power.
MEMORY = Path("/dev/shm")
REPORT_EVERY_S = 10.0
HISTORIES = times(5, 5_000)


@pytest.fixture(scope="module")
def played() -> Iterator[Callable[[Counter[str]], None]]:
    """Counts histories, and what became of their streams as they were verified, which must not be refused mostly.

    Tells on stderr how far a nightly run is, every ten seconds.
    """
    load()  # as workers do
    begun = shown = time.monotonic()
    count, verdicts = 0, Counter[str]()

    def played(found: Counter[str]) -> None:
        nonlocal count, shown
        count += 1
        verdicts.update(found)
        if profile() == "nightly" and time.monotonic() - shown >= REPORT_EVERY_S:
            shown = time.monotonic()
            wanted = HISTORIES * STREAMS
            sys.stderr.write(f"{count * STREAMS:,} of {wanted:,} examples after {(shown - begun) / 60:.1f} minutes\n")

    yield played
    assert verdicts["verified"] > verdicts["refused"], verdicts
    if profile() == "nightly":
        sys.stderr.write(f"{count * STREAMS:,} examples in {(time.monotonic() - begun) / 60:.1f} minutes\n")


@pytest.fixture(scope="module", autouse=True)
def tiny_pages() -> Iterator[None]:
    """Pages of two groups, whose parts become one when there are two: what may keep little in memory writes many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_pages, "PAGE_GROUPS", 2)
        patch.setattr(window_pages, "_PARTS_MAX", 2)
        yield


@settings(max_examples=HISTORIES)
@given(history=histories())
def test_every_stream_equals_the_batch(played: Callable[[Counter[str]], None], history: History) -> None:
    """Whatever schema, window, trigger, order of rows, updates, deletes, kills and vnodes; VERIFY STREAM agrees."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        player = Player(Path(folder), history)
        try:
            player.play()
        finally:
            player.close()
    played(player.verdicts)
