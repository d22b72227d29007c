"""`penstock serve`: an engine as a service in the foreground. At SIGTERM or SIGINT streams write a last checkpoint."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

from penstock import __version__
from penstock.common.admission import ConnectionBounds
from penstock.common.config import Config
from penstock.common.errors import ConfigError, StorageError, UnavailableError
from penstock.common.logging import logger
from penstock.common.private import exposed, write_private
from penstock.common.tls import tls_of
from penstock.mnode.access.logins import tls_for_clients
from penstock.mnode.access.roles import Identity
from penstock.mnode.admin.engine_lease import EngineLease
from penstock.mnode.admin.engine_registry import new_engine, new_member, open_engine
from penstock.mnode.engine import Engine
from penstock.mnode.http.http_ports import open_listener
from penstock.mnode.http.http_server import HttpListener
from penstock.mnode.http.http_sessions import HttpSessions
from penstock.mnode.http.taos_rest import TaosRest
from penstock.shell.api.dbapi import Connection
from penstock.shell.commands.sd_notify import READY, STOPPING, notify
from penstock.shell.postgres.postgres_server import PostgresServer
from penstock.shell.server.client_sessions import Sessions
from penstock.shell.server.flight_server import FlightAddress, FlightBounds, FlightSqlServer
from penstock.shell.server.flight_service import FlightSql
from penstock.shell.taos_socket.socket_route import socket_routes

_log = logger(__name__)
_SOCKET_PATH_BYTES = 107
POSTGRES_PORT = 5432
"""The port that PostgreSQL's clients take by themselves, and the default: one PostgreSQL may well have."""
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: no signal has this number
_DEMOTED = b"\xff"


def run_serve(options: argparse.Namespace, config: Config) -> int:
    """Serves until a signal comes, and returns the exit code. Raises PenstockErrors if it can't begin."""
    data = Path(options.data)
    signals, wake = _catch_signals()
    with ExitStack() as last, ExitStack() as undo:
        lease = open_engine(data, config, new_member if config.cluster_node else new_engine)
        undo.callback(lease.release)
        member = lease.engine.member
        if member is not None:
            member.on_demoted = partial(_wake_up, wake)
        server = open_flight_sql(lease, data, config)
        undo.callback(server.close)
        adapter = open_taos_rest(lease, config)
        if adapter is not None:
            undo.callback(adapter.close)
        if options.pid_file is not None:
            last.enter_context(_pid_file(Path(options.pid_file).expanduser()))
        postgres = open_postgres(lease.engine, config)
        if postgres is not None:
            undo.callback(postgres.close)
        http = f", HTTP on {config.host}:{config.http_port}" if config.http_port else ""
        taos = f", TDengine's REST on {config.host}:{adapter.port}" if adapter is not None else ""
        socket = server.socket
        _say(f"penstock {__version__} serves {data}: Flight SQL on {config.host}:{server.port}{http}{taos}"
             f"{f', PostgreSQL on {config.host}:{postgres.port}' if postgres is not None else ''}"
             f"{f', socket {socket}' if socket is not None else ''}, process {os.getpid()}")
        if not lease.engine.catalog.users.all():
            _say("WARNING: there are no users, and trustLoopback is set: every account of this machine is an admin"
                 if config.trust_loopback else
                 f"there are no users yet, so only the socket answers: penstock --host unix:{socket} -c \"CREATE USER "
                 "name PASS '...' ROLE admin\"")
        problem = exposed(data)
        if problem is not None:
            _say(f"WARNING: {problem}")
        notify(READY)
        if _wait_for_signal(signals) == _DEMOTED[0]:
            _start_anew()
        notify(STOPPING)
        _say("closing: streams write a last checkpoint")
    _say("closed")
    return 0


def open_flight_sql(lease: EngineLease, data: Path, config: Config) -> FlightSqlServer:
    """Returns a server of Flight SQL for an engine. Raises ConfigError or UnavailableError."""
    engine = lease.engine
    tls = tls_for_clients(config, engine.catalog.users)

    def connect(identity: Identity) -> Connection:
        return Connection(open_engine(data, config), config.timezone, identity)

    sessions = Sessions(connect, engine.clock, config.token_lifetime)
    needs_socket = not config.trust_loopback and not engine.catalog.users.all()
    at = FlightAddress(config.host, config.flight_port, tls.pem() if tls is not None else None,
                       _socket_of(data, config, needed=needs_socket))
    bounds = FlightBounds(config.flight_message_max, config.flight_calls_max, ConnectionBounds.of_clients(config))
    server = FlightSqlServer(FlightSql(engine), engine.logins, sessions, at, bounds, engine.clock)
    engine.activity.port_opened(server.port, "Flight SQL", server.guard.admission.counts)
    return server


def open_taos_rest(lease: EngineLease, config: Config) -> HttpListener | None:
    """Returns what answers as TDengine's adapter does, None if it isn't wanted; on the host of `open_flight_sql`.

    Raises ConfigError or UnavailableError.
    """
    if not config.taos_adapter_port:
        return None
    engine = lease.engine
    rest = TaosRest(engine, HttpSessions(engine.logins, config.timezone), config.request_size_max)
    routes = {**rest.routes(), **socket_routes(engine, config.timezone, config.request_size_max, config.login_timeout)}
    listener = open_listener(config, config.taos_adapter_port, routes, engine.catalog.users, tls_of(config))
    engine.activity.port_opened(listener.port, "TDengine's REST", listener.counts)
    return listener


def open_postgres(engine: Engine, config: Config) -> PostgresServer | None:
    """Returns a server of PostgreSQL's protocol, or None if it is configured away, or another program has the usual
    port. Raises ConfigError or UnavailableError.
    """
    port = config.postgres_port
    if not port:
        return None
    try:
        server = PostgresServer(engine, config, port)
    except UnavailableError as error:
        if port != POSTGRES_PORT:
            raise
        _say(f"WARNING: {error}")
        return None
    engine.activity.port_opened(server.port, "PostgreSQL", server.counts)
    return server


def _socket_of(data: Path, config: Config, *, needed: bool) -> Path | None:
    """Returns where the socket is to be, None if no socket can be there. Raises ConfigError if it is `needed`."""
    path = (data / config.socket_path.expanduser()).absolute()
    size = len(os.fsencode(path))
    if size <= _SOCKET_PATH_BYTES:
        return path
    problem = f"the path of the socket, {path}, has {size} bytes; {_SOCKET_PATH_BYTES} are possible"
    if needed:
        raise ConfigError(f"there are no users, and {problem}", hint="choose a shorter socketPath")
    _log.warning("%s: there is no socket", problem)
    return None


def _catch_signals() -> tuple[int, int]:
    """Returns the ends of a pipe from which SIGTERM and SIGINT can be read, and into which more can be written.

    The system's own handler writes into it. One of Python's only runs between two steps of the main thread: after a
    signal that came just before that begins to wait, it would wait for ever.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda caught, frame: None)
    return reading, writing


def _wake_up(writing: int, reason: str) -> None:
    os.write(writing, _DEMOTED)


def _wait_for_signal(reading: int) -> int:
    """Returns the signal that came, or `_DEMOTED`."""
    while (came := os.read(reading, 1)[0]) not in (*_STOP_SIGNALS, *_DEMOTED):
        pass
    return came


def _start_anew() -> NoReturn:
    """Replaces this process by one that is started as it was: a node of a cluster that is active no more, or has got
    another node's catalog.

    What it has in memory, and what its workers do, belongs to what is over. As after a crash, nothing of it is
    written down any more: what was acknowledged is in the logs.
    """
    _say("this node restarts as a standby")
    os.execv(sys.executable, sys.orig_argv)


@contextmanager
def _pid_file(path: Path) -> Iterator[None]:
    """Keeps the process id in a file. Which process has a data directory, the lock in it tells, not this file."""
    try:
        write_private(path, b"%d\n" % os.getpid())
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
