"""Allocators of memory that suit a process with many threads, of which each asks for little."""

from __future__ import annotations

import ctypes
import os
import sys

_M_ARENA_MAX = -8  # of glibc's <malloc.h>
_ARENAS = 2


def share_heaps_between_threads() -> None:
    """Has Arrow and the C library take memory from few heaps, instead of one or more for each thread.

    A heap keeps what its thread has freed. Arrow's default, mimalloc, has one per thread, and glibc up to eight per
    core; a server has a thread per connection, so its memory grew with the number of clients. jemalloc shares a few
    heaps, and is as fast (docs/performance.md, "Many connections"). Processes started later inherit Arrow's part.

    Call it before pyarrow is imported: Arrow looks at its environment once. What the environment says already stays.
    Elsewhere than on Linux it does nothing.
    """
    if sys.platform != "linux":
        return
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ and "GLIBC_TUNABLES" not in os.environ:
        mallopt(_M_ARENA_MAX, _ARENAS)
