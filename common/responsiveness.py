"""What keeps a process with many threads responsive: short pauses for garbage, short turns, one long computation."""

from __future__ import annotations

import atexit
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_COLLECTED_AFTER = 50_000
_TURN_S = 5.0
_SWITCH_S = 0.0005
LONG_TEXT = 16_384
"""Characters from which on a statement takes long enough to read to wait for its turn."""
_turn = threading.RLock()
_collecting = threading.Lock()
_uncollected_in, _collects = 0, True


def leave_out_what_stays() -> None:
    """Has the garbage collector never look again at what exists now: mostly modules, which last as long as the process.

    A look at all of it stops every thread for as long as hundreds of small blocks take. It looks at everything again
    when the process ends: libraries complain of what is left over then. What comes later makes few cycles, but
    thousands of small objects per block, row or statement: it isn't looked at after every few hundred.
    """
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER)
    atexit.register(gc.unfreeze)


def change_threads_often() -> None:
    """Has the interpreter change threads ten times as often as by default while several of them compute.

    A thread with little to do releases the interpreter dozens of times, at each call to files and sockets. Each time it
    may wait for a whole switch interval until it gets it back.
    """
    sys.setswitchinterval(min(_SWITCH_S, sys.getswitchinterval()))


@contextmanager
def one_at_a_time(*, unless: bool = False) -> Iterator[None]:
    """Lets long computations in Python, which hold the interpreter, run one after the other; not this one if `unless`.

    A thread with little to do waits for every computing thread whenever it wants the interpreter back. So only one of
    them computes at a time, however many clients there are. Who has waited for some seconds goes on all the same, so
    that no two threads can wait for each other for ever.

    Garbage isn't collected meanwhile. A long computation makes many objects that live as long as it does: the collector
    would run again and again, stop every thread, and find nothing.
    """
    if unless:
        yield
        return
    taken = _turn.acquire(timeout=_TURN_S)
    try:
        with uncollected():
            yield
    finally:
        if taken:
            _turn.release()


@contextmanager
def uncollected() -> Iterator[None]:
    """Has garbage not collected meanwhile: the collector would look at many objects that stay, and find nothing."""
    global _uncollected_in, _collects
    with _collecting:
        if not _uncollected_in:
            _collects = gc.isenabled()
        _uncollected_in += 1
        gc.disable()
    try:
        yield
    finally:
        with _collecting:
            _uncollected_in -= 1
            if not _uncollected_in and _collects:
                gc.enable()
