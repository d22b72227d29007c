"""The port of taosAdapter's clients, of an engine in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.mnode.engine import Engine
from penstock.mnode.http.http_server import HttpListener
from penstock.mnode.http.http_sessions import HttpSessions
from penstock.mnode.http.taos_rest import TaosRest
from penstock.shell.taos_socket.socket_route import socket_routes


@contextmanager
def taos_port(engine: Engine) -> Iterator[int]:
    """Serves an engine's clients; yields the number of the port."""
    listener = HttpListener("127.0.0.1", 0, {**TaosRest(engine, HttpSessions(engine.logins, "UTC"), 1 << 20).routes(),
                                             **socket_routes(engine, "UTC", 1 << 20, 10.0)})
    try:
        yield listener.port
    finally:
        listener.close()
