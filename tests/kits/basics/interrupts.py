"""What ends long runs: SIGTERM as Ctrl-C does."""

from __future__ import annotations

import signal


def interrupt_on_sigterm() -> None:
    """Lets SIGTERM raise KeyboardInterrupt in the main thread, so that a run can report what it has done until then."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
