"""Settings of the whole process that keep what waits for another thread, or for the garbage collector, short."""

from __future__ import annotations

import gc
import sys

#: How long a thread may go on while another one waits for Python's lock. Python's own 5 ms are more than most blocks of
#: a stream take from the log to the result, and are waited again each time that a thread has let go of the lock.
TURN_S = 0.0005


def take_short_turns() -> None:
    """Lets threads that compute take turns more often, unless the process has them do so more often still."""
    sys.setswitchinterval(min(sys.getswitchinterval(), TURN_S))


def leave_out_what_stays() -> None:
    """Has the garbage collector never look again at what exists now: mostly modules, which last as long as the process.

    A look at all of it stops every thread for as long as hundreds of small blocks take.
    """
    gc.freeze()
