"""Tells when clients hang up while they are being answered, without anybody waking up for it meanwhile."""

from __future__ import annotations

import errno
import select
import socket
import threading
from collections.abc import Callable

from penstock.common.clock import SystemClock
from penstock.common.logging import logger

_log = logger(__name__)
_MOMENT_S = 0.5


class HangUps:
    """Watches the connections that it is given. Safe for many threads.

    A client that closes its side of a connection counts as gone a moment later: some close it once they have asked, and
    take a quick answer all the same. Elsewhere than on Linux nobody is watched: there it is noticed when an answer is
    sent.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[socket.socket, Callable[[], None]]] = {}
        #: when those count as gone that have closed their side
        self._leaving: dict[int, float] = {}
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._wake, self._woken = socket.socketpair()
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, connection: socket.socket, gone: Callable[[], None]) -> None:
        """Has `gone` called, from another thread and once, when the client is; until `forget`."""
        if self._epoll is None:
            return
        descriptor = connection.fileno()
        with self._lock:
            if self._closed or descriptor < 0:
                return
            before = self._watched.get(descriptor)
            if before is not None and before[0] is not connection:
                self._drop(descriptor)  # that one was closed, and this one has its descriptor
                before = None
            self._watched[descriptor] = connection, gone
            if before is None:
                self._epoll.register(descriptor, select.EPOLLRDHUP)
            if self._thread is None:
                self._epoll.register(self._woken.fileno(), select.EPOLLIN)
                self._thread = threading.Thread(target=self._run, name="hang-ups", daemon=True)
                self._thread.start()

    def forget(self, connection: socket.socket) -> None:
        """Watches a connection no longer; one that isn't watched is no error. For the thread that has it watched."""
        if not self._watched:  # as mostly, for each request
            return
        with self._lock:
            descriptor = connection.fileno()
            if descriptor < 0:  # somebody else has closed it
                descriptor = next((each for each, (known, _) in self._watched.items() if known is connection), -1)
            self._drop(descriptor)

    def close(self) -> None:
        """Watches nobody any more."""
        with self._lock:
            self._closed = True
            for descriptor in list(self._watched):
                self._drop(descriptor)
            thread = self._thread
        self._wake.close()
        if thread is not None:
            thread.join()
        self._woken.close()
        if self._epoll is not None:
            self._epoll.close()

    def _drop(self, descriptor: int) -> Callable[[], None] | None:
        watched = self._watched.pop(descriptor, None)
        left = self._leaving.pop(descriptor, None)
        if watched is None:
            return None
        if left is None:
            self._unregister(descriptor)
        return watched[1]

    def _unregister(self, descriptor: int) -> None:
        assert self._epoll is not None
        try:
            self._epoll.unregister(descriptor)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOENT):  # closing a descriptor unregisters it
                raise

    def _run(self) -> None:
        assert self._epoll is not None
        while not self._closed:
            events = self._epoll.poll(_MOMENT_S / 4 if self._leaving else None)
            now = SystemClock.monotonic()
            with self._lock:
                for descriptor, _ in events:
                    if descriptor in self._watched:
                        # What has happened would be told again and again.
                        self._unregister(descriptor)
                        self._leaving[descriptor] = now + _MOMENT_S
                over = [self._drop(descriptor) for descriptor, at in list(self._leaving.items()) if at <= now]
            for gone in filter(None, over):
                try:
                    gone()
                except Exception:  # noqa: BLE001 - the next client must be watched, too
                    _log.exception("what waits for a client that is gone could not be told")
