"""An engine's process keeps its modules from the garbage collector."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

import pytest

from penstock.common.responsiveness import change_threads_often, leave_out_what_stays, one_at_a_time, uncollected


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


def test_nothing_seems_left_over_when_the_process_ends() -> None:
    """DuckDB tells users of objects that are still there at the end, if the collector has been kept from them."""
    program = ("import duckdb\nfrom penstock.common.responsiveness import leave_out_what_stays\n"
               "leave_out_what_stays()")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_threads_change_often() -> None:
    """More often than by default; whoever has set it to be even more often keeps that."""
    before = sys.getswitchinterval()
    try:
        change_threads_often()
        often = sys.getswitchinterval()
        sys.setswitchinterval(often / 5)
        change_threads_often()
        assert sys.getswitchinterval() < often < before
    finally:
        sys.setswitchinterval(before)


def test_long_computations_take_turns() -> None:
    """A second one begins once the first has ended; what is short, and what is part of the first, doesn't wait."""
    order: list[str] = []

    def second() -> None:
        with one_at_a_time():
            order.append("second")

    thread = threading.Thread(target=second)
    with one_at_a_time():
        thread.start()
        short = threading.Thread(target=lambda: _short(order))
        short.start()
        short.join()
        with one_at_a_time():
            order.append("first")
    thread.join()
    assert order == ["short", "first", "second"]


def _short(order: list[str]) -> None:
    with one_at_a_time(unless=True):
        order.append("short")


def test_garbage_is_collected_again_once_nobody_minds() -> None:
    """However many want it left alone, and whatever they end by; who has switched it off himself keeps it so."""
    with uncollected():
        with pytest.raises(ValueError, match="x"), uncollected():
            raise ValueError("x")
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
