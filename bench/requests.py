"""An engine that serves requests of one row each: how many per second, and what each costs the server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.client_process import ClientProcess, order
from bench.served_engine import ServedEngine, TableRows
from bench.setup import DATABASE
from penstock.mnode.access.session import SessionState

_FIRST_MS = 1_700_000_000_000
_CHILDREN = 100
_WAYS = ("rest", "line protocol", "flight prepared", "postgresql prepared")


class _Requests:
    """Measures requests by an engine, each way's rows newer than all before."""

    def __init__(self, served: ServedEngine, clients: ClientProcess) -> None:
        self._served = served
        self._clients = clients
        self._first = _FIRST_MS
        state = SessionState("UTC")
        for text in (f"CREATE DATABASE {DATABASE}", f"USE {DATABASE}",
                     "CREATE TABLE m (ts TIMESTAMP, v DOUBLE, k INT) TAGS (g INT)",
                     "CREATE TABLE " + " ".join(f"d{n} USING m TAGS ({n})" for n in range(_CHILDREN))):
            served.engine.execute(text, state)

    def measure(self, way: str, clients: int, requests: int) -> dict[str, Any]:
        """Returns how fast some clients are, each with a connection of its own and one request under way."""
        served = self._served
        client_of, port = {"rest": (served.rest, served.http_port),
                           "line protocol": (served.line_protocol, served.http_port),
                           "flight prepared": (served.flight_prepared, served.flight_port),
                           "postgresql prepared": (served.postgres_prepared, served.postgres_port)}[way]
        sent = order("sockets", {"port": port}, [client_of(rows) for rows in self._rows(clients, requests)])
        cpu = time.process_time()
        done = self._clients.run(sent)
        spent = time.process_time() - cpu
        count = len(done.latencies_us)
        return {"measure": "requests", "way": way, "clients": clients, "rows_per_request": 1,
                "requests_per_second": round(count / done.seconds),
                "server_cpu_us_per_request": round(spent / count * 1e6, 1),
                "client_cpu_us_per_request": round(done.client_cpu / count * 1e6, 1)}

    def _rows(self, clients: int, requests: int) -> list[Sequence[TableRows]]:
        """Returns the rows of each client."""
        self._first += requests
        share = _CHILDREN // clients
        return [[TableRows(client * share + number % share, [(self._first + number, number * 0.5, number)])
                 for number in range(requests // clients)] for client in range(clients)]


def measure_requests(folder: Path, requests: int, clients: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yields what requests of one row cost, by each way and with some numbers of clients."""
    with ServedEngine(folder / "served") as served, ClientProcess() as process:
        sent = _Requests(served, process)
        for way in _WAYS:
            sent.measure(way, clients[0], min(requests, 500))  # until all is warm
            for count in clients:
                yield sent.measure(way, count, requests)
