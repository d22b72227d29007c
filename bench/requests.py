"""An engine that serves requests of one row each: how many per second, and what each costs the server.

`python -m bench.requests` prints one JSON line per way in and number of clients, which have a connection each.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.client_process import ClientProcess, order
from bench.figures import percentiles
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
        before = resource.getrusage(resource.RUSAGE_SELF)
        done = self._clients.run(sent)
        after = resource.getrusage(resource.RUSAGE_SELF)
        count = len(done.latencies_us)
        user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
        switches = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw
        shares = percentiles(np.asarray(done.latencies_us))
        return {"measure": "requests", "way": way, "clients": clients, "rows_per_request": 1,
                "requests_per_second": round(count / done.seconds),
                "server_cpu_us_per_request": round((user + system) / count * 1e6, 1),
                "of_these_in_the_system": round(system / count * 1e6, 1),
                "client_cpu_us_per_request": round(done.client_cpu / count * 1e6, 1),
                "context_switches_per_request": round(switches / count, 2),
                "p50_us": shares["p50"], "p99_us": shares["p99"]}

    def _rows(self, clients: int, requests: int) -> list[Sequence[TableRows]]:
        """Returns the rows of each client."""
        self._first += requests
        share = _CHILDREN // clients
        return [[TableRows(client * share + number % share, [(self._first + number, number * 0.5, number)])
                 for number in range(requests // clients)] for client in range(clients)]


def measure_requests(
    folder: Path, requests: int, clients: Sequence[int], ways: Sequence[str] = _WAYS
) -> Iterator[dict[str, Any]]:
    """Yields what requests of one row cost, by each way and with some numbers of clients."""
    with ServedEngine(folder / "served") as served, ClientProcess() as process:
        sent = _Requests(served, process)
        for way in ways:
            sent.measure(way, clients[0], min(requests, 500))  # until all is warm
            for count in clients:
                yield sent.measure(way, count, requests)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one JSON line per measurement."""
    parser = argparse.ArgumentParser(prog="python -m bench.requests", description=__doc__)
    parser.add_argument("--ways", nargs="+", choices=_WAYS, default=list(_WAYS))
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--requests", type=int, default=20_000, help="of all clients together (default 20,000)")
    parser.add_argument("--rounds", type=int, default=1, help="how often all is measured (default 1)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=Path.cwd()) as folder:
        for number in range(options.rounds):
            for found in measure_requests(
                    Path(folder) / str(number), options.requests, options.clients, options.ways):
                sys.stdout.write(json.dumps(found) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
