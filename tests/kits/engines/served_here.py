"""A server of Flight SQL in this process, over an engine without Spark whose clock the test sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from kits.engines.embedded import NOW_MS, NoRuntime, StandingClock

import penstock
from penstock.common.config import Config, load_config
from penstock.mnode.admin.engine_registry import open_engine
from penstock.mnode.engine import Engine
from penstock.shell.api.dbapi import Connection
from penstock.shell.commands.serve_command import open_flight_sql
from penstock.shell.flight_sql.endpoint import method as path_of


class ServedHere:
    """Serves a data directory inside of a `with` block."""

    def __init__(self, data: Path, config: Mapping[str, Any] | None = None) -> None:
        self.clock = StandingClock(NOW_MS)
        self.data = data
        self.config = load_config(
            {"timezone": "UTC", "flightPort": 0, "trustLoopback": True, **(config or {})}, environment={})
        self.lease = open_engine(data, self.config, self._engine)
        try:
            self.server = open_flight_sql(self.lease, data, self.config)
        except BaseException:
            self.lease.release()
            raise

    def _engine(self, path: Path, config: Config) -> Engine:
        return Engine(path, config, clock=self.clock, runtime=lambda config, root: NoRuntime())

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def uri(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def own(self) -> Connection:
        """Returns a connection to the engine that doesn't go through the server."""
        return penstock.connect(str(self.data), self.config)

    def connect(self, user: str | None = None, password: str | None = None, **config: Any) -> Connection:
        """Returns a connection through the server."""
        return penstock.connect(config={"timezone": "UTC", **config}, host="127.0.0.1", port=self.port, user=user,
                                password=password)

    @contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        """Gives a bare channel, for messages that no client sends."""
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            yield channel

    def unary(self, method: str, request: bytes, metadata: list[tuple[str, str]] | None = None) -> bytes:
        """Calls a method that takes and gives one message. Raises grpc.RpcError."""
        with self.channel() as channel:
            return bytes(channel.unary_unary(path_of(method))(request, metadata=metadata))

    def stream(self, method: str, requests: list[bytes], metadata: list[tuple[str, str]] | None = None) -> list[bytes]:
        """Calls a method that takes and gives streams of messages. Raises grpc.RpcError."""
        with self.channel() as channel:
            return list(channel.stream_stream(path_of(method))(iter(requests), metadata=metadata))

    def __enter__(self) -> ServedHere:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.close()
        self.lease.release()
