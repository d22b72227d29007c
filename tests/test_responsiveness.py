"""An engine's process lets threads take short turns, and keeps its modules from the garbage collector."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.common.config import load_config
from penstock.common.responsiveness import TURN_S, leave_out_what_stays, take_short_turns
from penstock.mnode.engine import Engine


@pytest.fixture
def turns() -> Iterator[None]:
    """Gives the process its turns back."""
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("turns")
def test_an_engine_shortens_the_turns_of_its_process(tmp_path: Path) -> None:
    """An embedded engine's INSERTs mustn't wait 5 ms for a thread that computes."""
    sys.setswitchinterval(0.005)
    Engine(tmp_path, load_config(environment={})).close()
    assert sys.getswitchinterval() == pytest.approx(TURN_S, rel=0.05)


@pytest.mark.usefixtures("turns")
def test_shorter_turns_stay_as_they_are() -> None:
    """A program that has set shorter ones itself keeps them."""
    sys.setswitchinterval(TURN_S / 5)
    take_short_turns()
    assert sys.getswitchinterval() == pytest.approx(TURN_S / 5, rel=0.05)


class _Node:
    """Part of a cycle."""

    other: _Node


def test_only_garbage_that_comes_later_is_collected() -> None:
    """What exists is left out, but cycles made afterwards don't pile up."""
    early = _Node()
    early.other = early
    leave_out_what_stays()
    try:
        late = _Node()
        late.other = late
        seen_early, seen_late = weakref.ref(early), weakref.ref(late)
        del early, late
        gc.collect()
        assert seen_early() is not None
        assert seen_late() is None
    finally:
        gc.unfreeze()
