"""Many connections over one protocol at once, beside others that attack it: `python -m bench.connections`; a JSON line.

`penstock serve` runs in a process of its own. Each connection has a table, inserts rows into it, one after the other,
at a steady rate, and now and then asks for their number, which must be right. Beside them, once they have logged in,
from a process at the lowest priority: wrong logins, connections that send half of what they should, and messages that
say that they are huge. The line has how many requests there were, what went wrong, how long answers took, the memory of
the server and of its process for queries over time, and what became of the attackers.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import psycopg
from websockets.asyncio.client import connect

import penstock
from bench.attacks import hold
from bench.figures import percentiles
from bench.isolated import SPAWN, end_with_parent
from bench.local_server import BASIC, PASSWORD, USER, free_port
from bench.processes import ask as ask_process
from bench.processes import tree
from bench.request_clients import HttpClient, http_request
from penstock import __version__

_FIRST_MS = 1_700_000_000_000
_QUERY_EVERY = 20
_HALF_OPEN, _LOGINS_AT_ONCE, _SAMPLES, _LAST = 150, 20, 10, 19
_WRONG = base64.b64encode(b"eve:guess").decode()

Ask = Callable[[str], Awaitable[int]]
"""Sends a statement; returns the number of rows it has inserted, or the number that it asks for."""


# --- clients ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _by_rest(port: int) -> AsyncIterator[Ask]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /sql HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {BASIC}\r\n"

    async def ask(text: str) -> int:
        client = HttpClient(iter(()))
        writer.write(http_request(head, text))
        said, is_complete = b"", False
        while not is_complete:
            data = await reader.read(1 << 16)
            if not data:
                raise ConnectionError("the server has closed the connection")
            said += data
            is_complete, _ = client.received(data)
        return int(json.loads(_document(said))["data"][0][0])

    try:
        yield ask
    finally:
        writer.close()


def _document(said: bytes) -> bytes:
    """Returns the body of an answer, whole or in chunks."""
    head, _, rest = said.partition(b"\r\n\r\n")
    if b"chunked" not in head.lower():
        return rest
    document = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        document += rest[:int(size, 16)]
        rest = rest[int(size, 16) + 2:]
    return document


@asynccontextmanager
async def _by_postgres(port: int) -> AsyncIterator[Ask]:
    async with await psycopg.AsyncConnection.connect(
            host="127.0.0.1", port=port, user=USER, password=PASSWORD, autocommit=True) as connection:
        async def ask(text: str) -> int:
            cursor = await connection.execute(text.encode())
            if cursor.description is None:
                return cursor.rowcount
            row = await cursor.fetchone()
            return -1 if row is None else int(row[0])

        yield ask


@asynccontextmanager
async def _by_web_socket(port: int) -> AsyncIterator[Ask]:
    async with connect(f"ws://127.0.0.1:{port}/ws") as connection:
        async def call(action: str, **arguments: str) -> Any:
            await connection.send(json.dumps({"action": action, "args": arguments}))
            answer = json.loads(await connection.recv())
            if answer["code"]:
                raise ValueError(answer["message"])
            return answer

        async def ask(text: str) -> int:
            answer = await call("query", sql=text)
            if answer["is_update"]:
                return int(answer["affected_rows"])
            await connection.send(answer["id"].to_bytes(8, "little") * 2 + b"\7" + bytes(7) + b"\1\0")
            block = await connection.recv()
            assert isinstance(block, bytes)
            return int.from_bytes(block[-9:-1], "little")  # one BIGINT, and a byte that ends the block

        await call("conn", user=USER, password=PASSWORD)
        yield ask


PROTOCOLS: Mapping[str, Callable[[int], Any]] = {
    "rest": _by_rest, "postgres": _by_postgres, "websocket": _by_web_socket}


class Work:
    """What all connections do, and what came of it."""

    def __init__(self, rate: float, connections: int, seconds: float) -> None:
        self._pause_s = connections / rate
        self._connections = connections
        self._seconds = seconds
        self._until = 0.0
        self.inserted = 0
        self.queries = 0
        self.errors: Counter[str] = Counter()
        self.latencies: list[float] = []

    def begin(self) -> None:
        """Lets the time begin."""
        self._until = time.monotonic() + self._seconds

    async def run(self, connection: Any, number: int) -> None:
        """Inserts and asks by one connection until the time is over."""
        table, rows, never = f"bench.c{number}", 0, asyncio.Event()
        due = self._until - self._seconds + self._pause_s * number / self._connections
        for turn in itertools.count():
            due += self._pause_s
            with suppress(TimeoutError):
                await asyncio.wait_for(never.wait(), max(0.0, due - time.monotonic()))
            if time.monotonic() >= self._until:
                return
            is_query = (turn + number) % _QUERY_EVERY == _QUERY_EVERY - 1
            begun = time.perf_counter()
            try:
                if is_query:
                    told = await connection(f"SELECT count(*) FROM {table}")
                    self.queries += 1
                    if told != rows:
                        self.errors[f"{told} rows were told where there are {rows}"] += 1
                else:
                    rows += await connection(f"INSERT INTO {table} VALUES ({_FIRST_MS + turn}, {turn})")
                    self.inserted += 1
            except Exception as error:  # noqa: BLE001 - what goes wrong is what is counted
                self.errors[f"{type(error).__name__}: {str(error)[:100]}"] += 1
                return
            self.latencies.append((time.perf_counter() - begun) * 1e3)


async def _work(work: Work, protocol: str, port: int, connections: int, begin: Callable[[], None]) -> None:
    """Connects, calls `begin` when all are connected, and works."""
    logins, ready, all_ready = asyncio.Semaphore(_LOGINS_AT_ONCE), itertools.count(1), asyncio.Event()

    async def one(number: int) -> None:
        try:
            async with AsyncExitStack() as stack:
                async with logins:
                    ask = await stack.enter_async_context(PROTOCOLS[protocol](port))
                if next(ready) == connections:
                    begin()
                    work.begin()
                    all_ready.set()
                await all_ready.wait()
                await work.run(ask, number)
        except Exception as error:  # noqa: BLE001
            work.errors[f"{type(error).__name__}: {str(error)[:100]}"] += 1
            all_ready.set()

    await asyncio.gather(*map(one, range(connections)))


# --- attackers -------------------------------------------------------------------------------------------------------


def _first_bytes(protocol: str) -> tuple[bytes, Sequence[bytes]]:
    """Returns half of a beginning, and messages that say that they are huge."""
    if protocol == "postgres":
        return b"\0", (b"\x7f\xff\xff\xff\0\3\0\0", b"\0\0\0\x09\0\3\0\0\0" + b"Q\x7f\xff\xff\xff")
    post = b"POST /sql HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic " + BASIC.encode()
    upgrade = (b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
               b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
    if protocol == "rest":
        return b"P", (post + b"\r\nContent-Length: 99999999999\r\n\r\n", post + b"a" * 100_000)
    return b"G", (upgrade + b"\x81\xff\0\0\1\0\0\0\0\0abcd", upgrade + b"\x81\xfe\xff\xffabcd" + b"a" * 65_535)


def _guess(protocol: str, port: int) -> str:
    """Tries a wrong password; returns what was said."""
    if protocol == "postgres":
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="eve", password="guess", connect_timeout=30).close()
        except psycopg.OperationalError as error:
            return "refused" if "FATAL" in str(error) else "closed"
        return "let in"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as stream:
        path = b"/sql" if protocol == "rest" else b"/rest/sql"
        stream.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 8\r\n"
                       b"Authorization: Basic " + _WRONG.encode() + b"\r\n\r\nSELECT 1")
        status = stream.recv(64).split(b" ")[1:2]
        return b"".join(status).decode() or "closed"


def _oversized(port: int, message: bytes) -> str:
    """Sends a message that is too large; returns how it ended."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as stream:
        try:
            stream.sendall(message)
            while stream.recv(1 << 16):
                pass
        except ConnectionError:
            return "reset"
    return "closed"


def _attack(protocol: str, port: int, seconds: float, told: Connection) -> None:
    end_with_parent()
    os.nice(_LAST)
    until, answers, lock = time.monotonic() + seconds, Counter[str](), threading.Lock()
    half, messages = _first_bytes(protocol)
    turns = itertools.cycle(messages)

    def again(name: str, attack: Callable[[], str]) -> None:
        over = False
        while not over:  # once at least, however late threads of the last priority begin
            try:
                answer = attack()
            except OSError as error:
                answer = type(error).__name__
            with lock:
                answers[f"{name}: {answer}"] += 1
            over = time.monotonic() >= until

    def half_open() -> None:
        held = hold((port,), _HALF_OPEN, half, until)
        with lock:
            answers.update({f"half-open: {name}": count for name, count in held.items()})

    tasks = [half_open, *[partial(again, "login", partial(_guess, protocol, port))] * 4,
             *[partial(again, "oversized", lambda: _oversized(port, next(turns)))] * 2]
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.send(dict(answers))


# --- the server ------------------------------------------------------------------------------------------------------


class _Server:
    """`penstock serve` in a process of its own."""

    def __init__(self, data: Path) -> None:
        self.ports = {"rest": free_port(), "postgres": free_port(), "websocket": free_port()}
        settings = {"timezone": "UTC", "flightPort": 0, "httpPort": self.ports["rest"],
                    "postgresPort": self.ports["postgres"], "taosAdapterPort": self.ports["websocket"]}
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self._errors = (data.parent / "errors").open("w+")
        self.process = subprocess.Popen([sys.executable, "-m", "penstock", "--data", str(data), *words, "serve"],
                                        stdout=subprocess.PIPE, stderr=self._errors, text=True)
        assert self.process.stdout is not None
        if "serves" not in self.process.stdout.readline():
            self._errors.seek(0)
            raise RuntimeError(self._errors.read())
        self.socket = f"unix:{data}/penstock.sock"

    def memory_mib(self) -> tuple[int, int]:
        """Returns the memory of the server, and of its process for queries; pages that are shared count half."""
        server, *others = tree(psutil.Process(self.process.pid))
        found = [ask_process(each.memory_full_info) for each in others if ask_process(each.name) != "java"]
        own = ask_process(server.memory_full_info)
        return (own.pss if own else 0) >> 20, sum(each.pss for each in found if each is not None) >> 20

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        self._errors.close()


@contextmanager
def _sampled(server: _Server, seconds: float) -> Iterator[list[tuple[int, int]]]:
    """Gives the server's memory in MiB, over time."""
    samples, over = [server.memory_mib()], threading.Event()

    def sample() -> None:
        while not over.wait(seconds / _SAMPLES):
            samples.append(server.memory_mib())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def measure(protocol: str, connections: int, rate: float, seconds: float, *, attacked: bool) -> dict[str, Any]:
    """Returns what came of many connections, with attackers beside them or without."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        server = _Server(Path(folder) / "data")
        try:
            with penstock.connect(host=server.socket) as owner:
                owner.execute(f"CREATE USER {USER} PASS '{PASSWORD}' ROLE admin")
                owner.execute("CREATE DATABASE bench VGROUPS 1 KEEP 36500d")
                owner.execute("CREATE STABLE bench.m (ts TIMESTAMP, v BIGINT) TAGS (g INT)")
                owner.execute("CREATE TABLE " + " ".join(
                    f"bench.c{number} USING bench.m TAGS ({number})" for number in range(connections)))
                port, ours, theirs = server.ports[protocol], *SPAWN.Pipe()
                attackers = SPAWN.Process(target=_attack, args=(protocol, port, seconds, theirs), daemon=True)
                work = Work(rate, connections, seconds)
                with _sampled(server, seconds) as samples:
                    asyncio.run(_work(work, protocol, port, connections, attackers.start if attacked else lambda: None))
                got = ours.recv() if attacked else {}
                [(rows,)] = owner.execute("SELECT count(*) FROM bench.m").fetchall()
        finally:
            server.close()
    return {"measure": "connections", "version": __version__, "protocol": protocol, "connections": connections,
            "seconds": seconds, "inserts": work.inserted, "queries": work.queries, "errors": dict(work.errors),
            "rows_missing": work.inserted - rows, "latency_ms": percentiles(np.array(work.latencies)),
            "memory_mib": {"server": [server for server, _ in samples], "queries": [queries for _, queries in samples]},
            "attackers": got}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a JSON line per protocol; returns 1 if there was an error."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.connections", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocols", nargs="+", choices=list(PROTOCOLS), default=list(PROTOCOLS))
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--rate", type=float, default=400.0, help="requests a second, of all together (default 400)")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long each lasts (default 300)")
    parser.add_argument("--alone", action="store_true", help="without attackers")
    options = parser.parse_args(arguments)
    failed = False
    for protocol in options.protocols:
        line = measure(protocol, options.connections, options.rate, options.seconds, attacked=not options.alone)
        failed = failed or bool(line["errors"]) or line["rows_missing"] != 0
        print(json.dumps(line), flush=True)
    return int(failed)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
