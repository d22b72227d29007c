"""An engine of this process that serves by all protocols, and rows as what clients of these protocols send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from bench.local_server import BASIC, PASSWORD, USER, free_port
from bench.setup import DATABASE
from penstock.common.config import load_config
from penstock.mnode.access.session import SessionState
from penstock.mnode.admin.engine_registry import open_engine
from penstock.shell.commands.serve_command import open_flight_sql, open_postgres, open_taos_rest
from penstock.shell.flight_sql import protobuf_messages
from penstock.shell.flight_sql.endpoint import SERVICE
from penstock.shell.flight_sql.frames import frames
from penstock.shell.flight_sql.protobuf_messages import make, pack, unpack

_POSTGRES_TYPES = (20, 701, 23)  # bigint, double precision, integer


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows for the child table d{table}, each its time in ms and its values in the order of the columns."""

    table: int
    rows: Sequence[tuple[Any, ...]]

    def values(self) -> str:
        """Returns the rows as INSERT has them behind VALUES."""
        return " ".join(f"({', '.join(map(str, row))})" for row in self.rows)


class ServedEngine:
    """Serves REST, line protocol, Flight SQL, PostgreSQL's and TDengine's protocol in this process, inside of a `with`
    block, for one user with a password.
    """

    def __init__(self, directory: Path, config: Mapping[str, Any] | None = None) -> None:
        self._undo = ExitStack()
        self.http_port, self.postgres_port, self.web_socket_port = free_port(), free_port(), free_port()
        settings = load_config({
            "timezone": "UTC", "httpPort": self.http_port, "flightPort": 0, "postgresPort": self.postgres_port,
            "taosAdapterPort": self.web_socket_port, "trustLoopback": True, **(config or {})}, environment={})
        lease = open_engine(directory, settings)
        self._undo.callback(lease.release)
        self.engine = lease.engine
        flight_sql = open_flight_sql(lease, directory, settings)
        self._undo.callback(flight_sql.close)
        self.flight_port = flight_sql.port
        for server in (open_postgres(self.engine, settings), open_taos_rest(lease, settings)):
            assert server is not None
            self._undo.callback(server.close)
        self.engine.execute(f"CREATE USER {USER} PASS '{PASSWORD}' ROLE admin", SessionState("UTC"))

    def __enter__(self) -> ServedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def rest(self, writes: Sequence[TableRows]) -> dict[str, Any]:
        """Returns the client of `bench.request_clients` that sends an INSERT per write by REST."""
        return {"head": self._head(f"/sql/{DATABASE}"),
                "bodies": [f"INSERT INTO d{write.table} VALUES {write.values()}" for write in writes]}

    def line_protocol(self, writes: Sequence[TableRows]) -> dict[str, Any]:
        """Returns the client that sends each write as lines, of columns v and k of the super table `lines`."""
        return {"head": self._head(f"/write?db={DATABASE}&precision=ms"),
                "bodies": ["".join(f"lines,t=d{write.table} v={v},k={k}i {ts}\n" for ts, v, k in write.rows)
                           for write in writes]}

    def _head(self, path: str) -> str:
        return (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.http_port}\r\nAuthorization: Basic {BASIC}\r\n"
                "User-Agent: bench\r\nAccept: */*\r\nContent-Type: text/plain\r\n")

    def flight_prepared(self, writes: Sequence[TableRows]) -> dict[str, Any]:
        """Returns the client of Flight SQL that has a session with a prepared statement for each table."""
        token = f"Bearer {self.engine.logins.login(USER, PASSWORD).text}"
        options = flight.FlightCallOptions(headers=[(b"authorization", token.encode())])
        with flight.connect(f"grpc://127.0.0.1:{self.flight_port}") as client:
            statements = {table: _prepare(client, options, table) for table in {write.table for write in writes}}
        return {"headers": [(":method", "POST"), (":scheme", "http"), (":path", f"/{SERVICE}/DoPut"),
                            (":authority", "localhost"), ("te", "trailers"), ("content-type", "application/grpc"),
                            ("authorization", token)],
                "calls": [[part.hex() for part in _execution(statements[write.table], write.rows)]
                          for write in writes]}

    def postgres_prepared(self, writes: Sequence[TableRows]) -> dict[str, Any]:
        """Returns the client of PostgreSQL's protocol that has a prepared statement for each table, executed per row.
        """
        return {"login": {"user": USER, "password": PASSWORD}, "types": _POSTGRES_TYPES,
                "executions": [[f"INSERT INTO {DATABASE}.d{write.table} VALUES ($1, $2, $3)", [*map(str, row)]]
                               for write in writes for row in write.rows]}


def _prepare(client: flight.FlightClient, options: flight.FlightCallOptions, table: int) -> bytes:
    request = make("ActionCreatePreparedStatementRequest", query=f"INSERT INTO {DATABASE}.d{table} VALUES (?, ?, ?)")
    [answer] = client.do_action(flight.Action("CreatePreparedStatement", pack(request)), options)
    return bytes(unpack(answer.body.to_pybytes()).prepared_statement_handle)


def _execution(handle: bytes, rows: Sequence[tuple[Any, ...]]) -> Iterator[bytes]:
    descriptor = make("FlightDescriptor", type=protobuf_messages.DESCRIPTOR_OF_COMMAND,
                      cmd=pack(make("CommandPreparedStatementUpdate", prepared_statement_handle=handle)))
    ts, v, k = zip(*rows, strict=True)
    batch = pa.record_batch({"ts": pa.array(ts, pa.int64()), "v": pa.array(v, pa.float64()),
                             "k": pa.array(k, pa.int32())})
    return frames(batch.schema, [batch], 1 << 20, descriptor)
