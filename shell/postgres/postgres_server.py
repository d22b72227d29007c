"""PostgreSQL's protocol on one port: takes connections in, bounds them, and knows whose statements to cancel."""

from __future__ import annotations

import hmac
import socket
import threading
from typing import Any

from penstock.common.admission import ConnectionBounds, PortCounts
from penstock.common.bounded_server import BoundedServer
from penstock.common.config import Config
from penstock.common.errors import UnavailableError
from penstock.common.logging import logger
from penstock.mnode.access.logins import tls_for_clients
from penstock.mnode.engine import Engine
from penstock.mnode.http.hangups import HangUps
from penstock.shell.postgres.catalog_queries import CatalogQueries
from penstock.shell.postgres.postgres_connection import PostgresConnection, PostgresSite

_log = logger(__name__)


class PostgresServer:
    """Serves until `close`."""

    def __init__(self, engine: Engine, config: Config, port: int) -> None:
        """A `port` of 0 is any free one. Raises UnavailableError if the port can't be had, ConfigError for bad TLS."""
        tls = tls_for_clients(config, engine.catalog.users)
        self._engine = engine
        self._lock = threading.Lock()
        self._secrets: dict[int, bytes] = {}
        self._hang_ups = HangUps()
        self._catalog = CatalogQueries(config.query_wait)
        try:
            self._server = BoundedServer((config.host, port), self._handle, ConnectionBounds.of_clients(config))
        except OSError as error:
            self._hang_ups.close()
            raise UnavailableError(
                f"port {port} of {config.host} can't be opened for PostgreSQL's clients: {error.strerror}",
                hint="a PostgreSQL or another engine has it; choose another postgresPort, or 0 for none") from error
        self._site = PostgresSite(
            engine, engine.logins, None if tls is None else tls.context(), self._hang_ups, self._catalog,
            lambda request: self._server.admission.logged_in(id(request)), self._server.replace, self._register,
            self._unregister, self._cancel)
        self._server.start("postgres listener")

    @property
    def port(self) -> int:
        return self._server.port

    def counts(self) -> PortCounts:
        """Returns how many are connected, and how many were sent away."""
        return self._server.counts()

    def close(self) -> None:
        """Takes no more connections; those that are open end with what they answer."""
        self._server.stop()
        self._hang_ups.close()
        self._server.hang_up(socket.SHUT_RD)
        self._catalog.close()

    def _handle(self, *arguments: Any) -> PostgresConnection:
        return PostgresConnection(self._site, *arguments)

    def _register(self, number: int, secret: bytes) -> None:
        with self._lock:
            self._secrets[number] = secret

    def _unregister(self, number: int) -> None:
        with self._lock:
            self._secrets.pop(number, None)

    def _cancel(self, number: int, secret: bytes) -> None:
        """Ends what a connection computes, for who knows its secret; nobody is told whether there was anything."""
        with self._lock:
            known = self._secrets.get(number)
        if known is not None and hmac.compare_digest(known, secret):
            self._engine.activity.end_connection(number)
        else:
            _log.debug("a request to cancel something named nothing that runs")
