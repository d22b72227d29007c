"""Runs what tests try with compiled loops and without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.tasks.compiled import compiled_loops


@contextmanager
def loops(*, compiled: bool) -> Iterator[None]:
    """Has this process use compiled loops or do without, until the end."""
    if compiled and not compiled_loops.load():
        pytest.skip(compiled_loops.why_not())
    before = compiled_loops._Here.loops
    if not compiled:
        compiled_loops._Here.loops = None
    try:
        yield
    finally:
        compiled_loops._Here.loops = before


#: For tests that must hold for both.
BOTH = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "numpy"])
