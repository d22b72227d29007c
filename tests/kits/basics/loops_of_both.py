"""Runs what tests try with loops that are compiled, and as Python runs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.tasks.compiled import compiled_loops


@contextmanager
def loops(*, compiled: bool) -> Iterator[None]:
    """Has loops be compiled, or not, until the end."""
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
BOTH = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "interpreted"])
