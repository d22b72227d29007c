"""Ctrl+C while the engine in this process computes."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

_COMPUTES = re.compile(r"[\s(]*(?:select|explain)\b", re.IGNORECASE)


def may_take_long(statement: str) -> bool:
    """Tells whether a statement computes, so that somebody may want to interrupt it."""
    return _COMPUTES.match(statement) is not None


class Interrupts:
    """Has Ctrl+C end what the main thread computes.

    Python runs handlers of signals in its main thread, between two steps of its own, of which a query is one. But it
    writes the number of a signal into a socket as soon as it comes; a thread that waits there cancels the query.
    """

    def __init__(self) -> None:
        self._process = 0
        self._cancel: Callable[[], None] = _nothing
        self._others = -1
        self._pressed = False
        self._written: socket.socket | None = None

    def during(self, work: Callable[[], T], cancel: Callable[[], None]) -> T:
        """Returns what `work` returns, or raises what it raises.

        Upon Ctrl+C `cancel` is called by another thread, and KeyboardInterrupt raised when `work` has ended; upon the
        second at once. Threads besides the main thread, and programs with a handler of their own, just do the work.
        """
        if threading.current_thread() is not threading.main_thread() or (
                signal.getsignal(signal.SIGINT) is not signal.default_int_handler):
            return work()
        written = self._socket()
        self._pressed, self._cancel = False, cancel
        self._others = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, self._note)
        try:
            return work()
        finally:
            self._cancel = _nothing
            signal.set_wakeup_fd(self._others)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if self._pressed:
                raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._pressed:
            signal.default_int_handler(number, frame)
        self._pressed = True

    def _socket(self) -> socket.socket:
        """What signals are written into; whoever waits there is started anew in a process that was forked."""
        if self._written is None or self._process != os.getpid():
            self._process = os.getpid()
            read, self._written = socket.socketpair()
            self._written.setblocking(False)
            threading.Thread(target=self._wait, args=(read,), name="penstock-interrupts", daemon=True).start()
        return self._written

    def _wait(self, read: socket.socket) -> None:
        while numbers := read.recv(64):
            if signal.SIGINT in numbers:
                self._cancel()
            others = bytes(number for number in numbers if number != signal.SIGINT)
            if others and self._others >= 0:
                os.write(self._others, others)


def _nothing() -> None:
    """What is cancelled while nothing runs."""


INTERRUPTS = Interrupts()
