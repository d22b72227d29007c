"""An engine that serves requests of one row each: how many per second, and what each costs the server."""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from bench.request_clients import driven
from bench.setup import DATABASE
from penstock.common.config import load_config
from penstock.mnode.access.session import SessionState
from penstock.mnode.admin.engine_registry import open_engine
from penstock.shell.commands.serve_command import open_flight_sql
from penstock.shell.flight_sql import protobuf_messages
from penstock.shell.flight_sql.endpoint import SERVICE
from penstock.shell.flight_sql.frames import frames
from penstock.shell.flight_sql.protobuf_messages import make, pack, unpack

_FIRST_MS = 1_700_000_000_000
_CHILDREN = 100
_USER = ("bench", "a long password")
_LOGIN = "Basic " + base64.b64encode(":".join(_USER).encode()).decode()


class ServedEngine:
    """Serves REST and Flight SQL in this process, inside of a `with` block, for one user with a password."""

    def __init__(self, directory: Path) -> None:
        self._undo = ExitStack()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.http_port = free.getsockname()[1]
        config = load_config({"timezone": "UTC", "httpPort": self.http_port, "flightPort": 0, "trustLoopback": True},
                             environment={})
        lease = open_engine(directory, config)
        self._undo.callback(lease.release)
        server = open_flight_sql(lease, directory, config)
        self._undo.callback(server.close)
        self.flight_port = server.port
        self._engine = lease.engine
        self._first = _FIRST_MS
        state = SessionState("UTC")
        for text in (f"CREATE USER {_USER[0]} PASS '{_USER[1]}' ROLE admin", f"CREATE DATABASE {DATABASE}",
                     f"USE {DATABASE}", "CREATE TABLE m (ts TIMESTAMP, v DOUBLE, k INT) TAGS (g INT)",
                     "CREATE TABLE " + " ".join(f"d{n} USING m TAGS ({n})" for n in range(_CHILDREN))):
            self._engine.execute(text, state)

    def __enter__(self) -> ServedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def rows(self, clients: int, requests: int) -> list[list[tuple[int, int, float, int]]]:
        """Returns the rows of each client, with the number of its table: newer than all before."""
        self._first += requests
        share = _CHILDREN // clients
        return [[(client * share + number % share, self._first + number, number * 0.5, number)
                 for number in range(requests // clients)] for client in range(clients)]

    def measure(self, way: str, clients: int, requests: int) -> dict[str, Any]:
        """Returns how fast some clients are, each with a connection of its own and one request under way."""
        port, orders = {"rest": self._rest, "line protocol": self._lines, "flight prepared": self._prepared}[way](
            self.rows(clients, requests))
        cpu = time.process_time()
        done = driven(port, orders)
        spent = time.process_time() - cpu
        return {"measure": "requests", "way": way, "clients": clients, "rows_per_request": 1,
                "requests_per_second": round(done.requests / done.seconds),
                "server_cpu_us_per_request": round(spent / done.requests * 1e6, 1),
                "client_cpu_us_per_request": round(done.client_cpu / done.requests * 1e6, 1)}

    def _rest(self, rows: Sequence[Sequence[tuple[int, int, float, int]]]) -> tuple[int, list[dict[str, Any]]]:
        return self.http_port, [
            {"head": self._head(f"/sql/{DATABASE}"),
             "bodies": [f"INSERT INTO d{table} VALUES ({ts}, {v}, {k})" for table, ts, v, k in of_client]}
            for of_client in rows]

    def _lines(self, rows: Sequence[Sequence[tuple[int, int, float, int]]]) -> tuple[int, list[dict[str, Any]]]:
        return self.http_port, [
            {"head": self._head(f"/write?db={DATABASE}&precision=ms"),
             "bodies": [f"lines,t=d{table} v={v},k={k}i {ts}\n" for table, ts, v, k in of_client]}
            for of_client in rows]

    def _head(self, path: str) -> str:
        return (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.http_port}\r\nAuthorization: {_LOGIN}\r\n"
                "User-Agent: bench\r\nAccept: */*\r\nContent-Type: text/plain\r\n")

    def _prepared(self, rows: Sequence[Sequence[tuple[int, int, float, int]]]) -> tuple[int, list[dict[str, Any]]]:
        """Each client has a session with a statement for each of its tables."""
        orders = []
        with flight.connect(f"grpc://127.0.0.1:{self.flight_port}") as client:
            for of_client in rows:
                token = f"Bearer {self._engine.logins.login(*_USER).text}"
                options = flight.FlightCallOptions(headers=[(b"authorization", token.encode())])
                statements = {table: _prepare(client, options, table) for table in {row[0] for row in of_client}}
                orders.append({
                    "headers": [(":method", "POST"), (":scheme", "http"), (":path", f"/{SERVICE}/DoPut"),
                                (":authority", "localhost"), ("te", "trailers"), ("content-type", "application/grpc"),
                                ("authorization", token)],
                    "calls": [[part.hex() for part in _execution(statements[row[0]], row[1:])] for row in of_client]})
        return self.flight_port, orders


def _prepare(client: flight.FlightClient, options: flight.FlightCallOptions, table: int) -> bytes:
    request = make("ActionCreatePreparedStatementRequest", query=f"INSERT INTO {DATABASE}.d{table} VALUES (?, ?, ?)")
    [answer] = client.do_action(flight.Action("CreatePreparedStatement", pack(request)), options)
    return bytes(unpack(answer.body.to_pybytes()).prepared_statement_handle)


def _execution(handle: bytes, row: Sequence[float]) -> Iterator[bytes]:
    descriptor = make("FlightDescriptor", type=protobuf_messages.DESCRIPTOR_OF_COMMAND,
                      cmd=pack(make("CommandPreparedStatementUpdate", prepared_statement_handle=handle)))
    ts, v, k = row
    batch = pa.record_batch({"ts": pa.array([ts], pa.int64()), "v": pa.array([v], pa.float64()),
                             "k": pa.array([k], pa.int32())})
    return frames(batch.schema, [batch], 1 << 20, descriptor)


def measure_requests(folder: Path, requests: int, clients: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yields what requests of one row cost, by each way and with some numbers of clients."""
    with ServedEngine(folder / "served") as served:
        for way in ("rest", "line protocol", "flight prepared"):
            served.measure(way, clients[0], min(requests, 500))  # until all is warm
            for count in clients:
                yield served.measure(way, count, requests)
