"""What keeps the pauses of a process short that the garbage collector makes."""

from __future__ import annotations

import atexit
import gc


def leave_out_what_stays() -> None:
    """Has the garbage collector never look again at what exists now: mostly modules, which last as long as the process.

    A look at all of it stops every thread for as long as hundreds of small blocks take. It looks at everything again
    when the process ends: libraries complain of what is left over then.
    """
    gc.freeze()
    atexit.register(gc.unfreeze)
