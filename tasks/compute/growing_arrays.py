"""Arrays that become longer without being copied: large ones have pages of their own, which the system moves."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

_MAPPED_MIN = 1 << 20


def grown(held: list[npt.NDArray[Any]], length: int) -> npt.NDArray[Any]:
    """Takes the array out of `held`, and returns one of `length` elements that begins with those that it had.

    Further ones are zero (None for objects), and take memory only once they are written to. Nobody else should have the
    array: its memory may become that of the result, and is copied if somebody has.
    """
    array = held.pop()
    if array.dtype == np.dtype(object):
        longer = np.full(length, None, object)
    elif length * array.itemsize < _MAPPED_MIN:
        longer = np.zeros(length, array.dtype)
    else:
        memory = getattr(array.base, "obj", None)
        if isinstance(memory, mmap.mmap):
            dtype = array.dtype
            del array
            with contextlib.suppress(BufferError):
                memory.resize(length * dtype.itemsize)
                return np.frombuffer(memory, dtype)
            array = np.frombuffer(memory, dtype)
        longer = np.frombuffer(_pages(length * array.itemsize), array.dtype)
    longer[: len(array)] = array
    return longer


def _pages(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # not every system has large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
