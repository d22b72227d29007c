"""An engine's process keeps its modules from the garbage collector."""

from __future__ import annotations

import gc
import weakref

from penstock.common.responsiveness import leave_out_what_stays


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
