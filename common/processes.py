"""Processes of this machine: whose a connection is, and ending with one's parent."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil

Address = tuple[str, int]

_PR_SET_PDEATHSIG = 1  # of Linux' <sys/prctl.h>


def kill_holder(pid: int, own: Address, peer: Address) -> bool:
    """Kills the process with this id if it holds the other end of a connection between two addresses.

    `own`: this process's end of it. The process must be of this machine, and another than this one. An id alone would
    prove nothing: it may be of another machine, or be somebody else's by now. Returns whether it was killed; takes
    milliseconds.
    """
    if pid == os.getpid():
        return False
    try:
        process = psutil.Process(pid)
        if not any(found.laddr == peer and found.raddr == own for found in process.net_connections("tcp")):
            return False
        process.kill()
    except psutil.Error:
        return False  # it has ended, or is another account's
    return True


def end_with_parent() -> None:
    """Has the system kill this process once the one that started it is gone; elsewhere than on Linux it can't.

    Holds in whatever state this process is, stopped or stuck ones included.
    """
    parent = os.getppid()
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None:
        return
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was faster
        os.kill(os.getpid(), signal.SIGKILL)


def end_first_when_memory_is_short() -> None:
    """Has the system kill this process before others that it could, when it runs out of memory; on Linux only."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", "ascii")
