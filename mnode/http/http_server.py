"""Answers HTTP on one port, from a table of paths: takes connections in, bounds them, and cuts them off."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from penstock.common.admission import ConnectionBounds, PortCounts
from penstock.common.bounded_server import BoundedServer
from penstock.common.errors import UnavailableError
from penstock.common.tls import Tls
from penstock.mnode.http.hangups import HangUps
from penstock.mnode.http.http_handler import Handler, Site
from penstock.mnode.http.http_messages import HttpBounds, Route

USUAL_BOUNDS = HttpBounds(ConnectionBounds(strangers=256, login_timeout_s=10.0, per_address=512, total=1024), 16 * 1024)


class HttpListener:
    """Serves `routes` by their paths until `close`; a path that ends in a slash stands for all below it too."""

    def __init__(
        self,
        host: str,
        port: int,
        routes: Mapping[str, Route],
        *,
        bounds: HttpBounds = USUAL_BOUNDS,
        tls: Tls | None = None,
        any_name: Callable[[], bool] = lambda: False,
    ) -> None:
        """A `port` of 0 is any free one. `any_name` tells whether requests may call this machine by any name, since
        something that foreign pages don't have is needed for an answer.

        Raises UnavailableError if the port can't be had, ConfigError if `tls` is none.
        """
        context = None if tls is None else tls.context()
        try:
            self._server = _Server((host, port), context, routes, any_name, bounds)
        except OSError as error:
            raise UnavailableError(f"port {port} of {host} can't be opened: {error.strerror}",
                                   hint="another engine or program has it; choose another one") from error
        self._server.start("http listener")

    @property
    def port(self) -> int:
        return self._server.port

    def counts(self) -> PortCounts:
        """Returns how many are connected, and how many were sent away."""
        return self._server.counts()

    def close(self) -> None:
        """Takes no more requests; who is being answered is cut off when the process ends."""
        self._server.stop()
        self._server.hang_ups.close()
        self._server.hang_up()


class _Server(BoundedServer):
    """Answers requests on each connection."""

    def __init__(
        self, address: tuple[str, int], context: ssl.SSLContext | None, routes: Mapping[str, Route],
        any_name: Callable[[], bool], bounds: HttpBounds,
    ) -> None:
        self._context = context
        self.hang_ups = HangUps()
        super().__init__(address, self._handle, bounds.connections)
        self._site = Site(routes, address[0], any_name, bounds, self.admission, self.hang_ups)

    def _handle(self, *arguments: Any) -> Handler:
        return Handler(self._site, *arguments)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self._context is not None:
            # The handshake is the handler's thread's: one slow client must not keep the others waiting.
            connection = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address
