"""A listener with a thread per connection, which bounds connections and cuts off those that must go."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from socketserver import ThreadingTCPServer
from typing import Any

from penstock.common.admission import Admission, ConnectionBounds, PortCounts
from penstock.common.clock import SystemClock
from penstock.common.logging import logger

_log = logger(__name__)
_monotonic = SystemClock.monotonic


class BoundedServer(ThreadingTCPServer):
    """Who is one too many is cut off, whatever it waits for."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], handler: Callable[..., Any], bounds: ConnectionBounds) -> None:
        """Raises OSError if the address can't be had."""
        self._lock = threading.Lock()
        self._open: dict[int, socket.socket] = {}
        self.admission: Admission[int] = Admission(bounds)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def counts(self) -> PortCounts:
        """Returns how many are connected, and how many were sent away."""
        return self.admission.counts()

    def start(self, name: str) -> None:
        """Serves in a thread of this name until `stop`."""
        self._thread = threading.Thread(
            target=self.serve_forever, name=name, daemon=True, kwargs={"poll_interval": 0.1})
        self._thread.start()

    def stop(self) -> None:
        """Takes no more connections."""
        self.shutdown()
        self.server_close()
        if self._thread is not None:
            self._thread.join()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        key = id(request)
        with self._lock:
            self._open[key] = request
        self.admission.opened(key, client_address[0], _monotonic())
        self.service_actions()
        with self._lock:
            return key in self._open

    def replace(self, request: socket.socket, by: socket.socket) -> None:
        """Takes note that a connection has another socket from now on, as when TLS begins in its midst."""
        with self._lock:
            if id(request) in self._open:
                self._open[id(request)] = by

    def service_actions(self) -> None:
        """Cuts off who must go; called after each connection, and every now and then."""
        now = _monotonic()
        for key in self.admission.over(now):
            with self._lock:
                connection = self._open.pop(key, None)
                if connection is not None:
                    shut(connection, socket.SHUT_RDWR)
        if (text := self.admission.report(now)) is not None:
            _log.warning("connections to port %d were closed: %s", self.server_address[1], text)

    def shutdown_request(self, request: Any) -> None:
        self.admission.closed(id(request))
        with self._lock:
            connection = self._open.pop(id(request), request)
        super().shutdown_request(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if isinstance(sys.exc_info()[1], OSError):
            _log.debug("a connection broke", exc_info=True)
        else:
            _log.exception("a request could not be handled")

    def hang_up(self, how: int = socket.SHUT_RD) -> None:
        """Lets connections end, by default with the answer that they wait for."""
        with self._lock:
            for connection in self._open.values():
                shut(connection, how)


def shut(connection: socket.socket, how: int) -> None:
    """Ends one or both ways of a connection; one that is gone already is no error."""
    try:
        # Not the method of an SSLSocket, which would send what follows in clear.
        socket.socket.shutdown(connection, how)
    except OSError as error:
        _log.debug("a connection was gone already: %s", error)
