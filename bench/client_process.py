"""Clients in a process of their own, so that what they cost isn't the engine's: `ClientProcess`.

The process gets orders as lines of JSON and answers each with a line. An order says a way, where to connect to, and
what to send, one thing after the other; connections stay open from one order to the next, but those of sockets.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.request_clients import Client, GrpcClient, HttpClient, PostgresClient, drive, http_request

_ROOT = Path(__file__).resolve().parent.parent

Send = Callable[[], list[float]]
"""Sends all, and returns the µs that each took to its answer; none where there are no answers."""
Prepare = Callable[[Sequence[Any]], Send]
"""Connects, where that isn't done for all orders together."""


@dataclass(frozen=True, slots=True)
class Driven:
    """What an order has taken: all seconds, those of the clients' processor, and the µs of each request."""

    seconds: float
    client_cpu: float
    latencies_us: list[float]


def order(way: str, connect: Mapping[str, Any], work: Sequence[Any]) -> str:
    """Returns a line for `ClientProcess.run`. `work` by `way`:

    sockets: fields of clients of `bench.request_clients`; postgres: [statement, parameters]; websocket: statements;
    kafka and mqtt: [topic, key, message]. `connect` has the arguments of what opens the way, such as `port`.
    """
    return json.dumps({"way": way, "connect": connect, "work": work})


class ClientProcess:
    """The process; a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", "bench.client_process"], cwd=_ROOT, text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid

    def run(self, line: str) -> Driven:
        """Has an order done. Raises RuntimeError if it fails, BrokenPipeError if one before did; the process has said
        why on standard error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the clients' process ended with {self._process.wait()}")
        return Driven(**json.loads(answer))

    def __enter__(self) -> ClientProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input, with which it ends


# --- in the process --------------------------------------------------------------------------------------------------


def _sockets(stack: ExitStack, port: int) -> Prepare:
    def client(fields: Mapping[str, Any]) -> Client:
        if "bodies" in fields:
            # Made before the clock runs.
            return HttpClient(iter([http_request(fields["head"], body) for body in fields["bodies"]]))
        if "executions" in fields:
            return PostgresClient(lambda port: _logged_in(port, **fields["login"]), fields["types"],
                                  iter(fields["executions"]))
        return GrpcClient(fields["headers"], ([bytes.fromhex(part) for part in call] for call in fields["calls"]))

    return lambda work: partial(drive, {each: each.connect(port) for each in map(client, work)})


def _logged_in(port: int, user: str, password: str) -> Any:
    import psycopg

    return psycopg.connect(host="127.0.0.1", port=port, user=user, password=password, autocommit=True)


def _postgres(stack: ExitStack, port: int, user: str, password: str) -> Prepare:
    connection = stack.enter_context(_logged_in(port, user, password))
    connection.prepared_max = None
    cursor = connection.cursor()

    def send(work: Sequence[Any]) -> list[float]:
        found = []
        for text, parameters in work:
            begun = time.perf_counter()
            cursor.execute(text, parameters, prepare=True)
            found.append((time.perf_counter() - begun) * 1e6)
        return found

    return partial(partial, send)


def _web_socket(stack: ExitStack, port: int) -> Prepare:
    from bench.connections import PROTOCOLS

    runner = stack.enter_context(asyncio.Runner())
    opened = AsyncExitStack()
    ask: Callable[[str], Awaitable[int]] = runner.run(opened.enter_async_context(PROTOCOLS["websocket"](port)))
    stack.callback(lambda: runner.run(opened.aclose()))

    async def send(work: Sequence[Any]) -> list[float]:
        found = []
        for text in work:
            begun = time.perf_counter()
            await ask(text)
            found.append((time.perf_counter() - begun) * 1e6)
        return found

    return lambda work: lambda: runner.run(send(work))


def _kafka(stack: ExitStack, servers: str) -> Prepare:
    from bench.external import KafkaSender

    return _messages(stack, KafkaSender(servers))


def _mqtt(stack: ExitStack, port: int, username: str, password: str) -> Prepare:
    from bench.external import MqttSender

    return _messages(stack, MqttSender(port, username, password))


def _messages(stack: ExitStack, sender: Any) -> Prepare:
    stack.callback(sender.close)

    def send(work: Sequence[Any]) -> list[float]:
        for topic, key, text in work:
            sender.send(topic, key, text)
        sender.flush()
        return []

    return partial(partial, send)


_WAYS: Mapping[str, Callable[..., Prepare]] = {
    "sockets": _sockets, "postgres": _postgres, "websocket": _web_socket, "kafka": _kafka, "mqtt": _mqtt}


def main() -> None:
    """Does what the orders on standard input say, until it ends."""
    with ExitStack() as stack:
        opened: dict[str, Prepare] = {}
        for line in sys.stdin:
            asked = json.loads(line)
            place = json.dumps([asked["way"], asked["connect"]])
            if place not in opened:
                opened[place] = _WAYS[asked["way"]](stack, **asked["connect"])
            send = opened[place](asked["work"])
            begun, cpu = time.perf_counter(), time.process_time()
            latencies = send()
            done = Driven(time.perf_counter() - begun, time.process_time() - cpu,
                          [round(each, 1) for each in latencies])
            sys.stdout.write(json.dumps(asdict(done)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
