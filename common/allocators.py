"""Allocators of memory that suit a process with many threads, of which each asks for little."""

from __future__ import annotations

import ctypes
import os
import sys

# Of glibc's <malloc.h>; the sizes are bytes.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_TRIM_THRESHOLD, _MMAP_THRESHOLD = 128 << 20, 32 << 20
_ARENAS = 2


def share_heaps_between_threads() -> None:
    """Has Arrow and the C library take memory from few heaps, instead of one or more for each thread.

    A heap keeps what its thread has freed. Arrow's default, mimalloc, has one per thread, and glibc up to eight per
    core; a server has a thread per connection, so its memory grew with the number of clients. jemalloc shares a few
    heaps, and is as fast (bench/README.md). Processes started later inherit Arrow's part.

    Call it before pyarrow is imported: Arrow looks at its environment once. What the environment says already stays.
    Elsewhere than on Linux it does nothing.
    """
    if sys.platform != "linux":
        return
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ and "GLIBC_TUNABLES" not in os.environ:
        mallopt(_M_ARENA_MAX, _ARENAS)


def keep_freed_memory() -> None:
    """Has malloc, where it is glibc's, reuse what a block's columns took for the next block's, in this process and in
    those that it forks: pages that go back to the system cost more to get again than most columns to compute.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD)
