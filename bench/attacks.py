"""Attacks on a running engine beside streams that must not feel them: `python -m bench.attacks`; a JSON line for each.

Five streams pass the rows of a table on, which come on a fixed schedule; their latency is from the moment at which a
row should have been sent to its result being visible. First nobody attacks, the measure of all; then each attack goes
on, from a process of its own, for as long; `--together`: all of them at once. Attackers stand for other machines, so
they run at the lowest priority: what counts is the load that they cause in the engine, not their own. A line has the
latencies, which streams were seen in another state than RUNNING, in how many streams the results differ from what
DuckDB says of the table, and what the attackers say that they have got.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.figures import percentiles
from bench.isolated import SPAWN, Phase, end_with_parent, measured
from bench.load import Schedule
from bench.local_server import free_port
from bench.neighbours import ratios, row_latencies, rows_shown, send_rows
from bench.node import Node
from bench.setup import DATABASE
from penstock import __version__

_STREAMS = 5
_SETTLE_S = 60.0
_LOOK_S = 1.0
_LAST = 19
_IDLE, _HALF_SENT, _LOGINS, _READERS = 1100, 600, 60, 4
_READER, _READER_WORD = "bob", "battery staple"
_BATCH_ANSWER = "SELECT _wstart, count(*) AS c, sum(v) AS s, min(v) AS least, max(v) AS most FROM {} INTERVAL(1s)"


@dataclass(frozen=True)
class Target:
    """Where an attacker finds the engine: ports of this machine, and users' names."""

    http_port: int
    worker_ports: tuple[int, ...]
    user: str = "ada"


Attack = Callable[[Target, float], Mapping[str, int]]
"""Goes on until the time (time.monotonic) and returns what came of it."""


def idle_connections(target: Target, until: float) -> dict[str, int]:
    """Keeps more connections open to the ports for workers than there once were descriptors, and says nothing."""
    return hold(target.worker_ports, _IDLE, b"", until)


def half_a_handshake(target: Target, until: float) -> dict[str, int]:
    """Says one byte to the ports for workers."""
    return hold(target.worker_ports, _HALF_SENT, b"\0", until)


def half_sent_headers(target: Target, until: float) -> dict[str, int]:
    """Keeps connections to the HTTP port with a header that never ends, a byte at a time."""
    return hold((target.http_port,), _HALF_SENT, b"G", until)


def wrong_logins(target: Target, until: float) -> dict[str, int]:
    """Tries wrong passwords, many at once, as fast as they are answered."""
    answers: dict[str, int] = {}
    lock = threading.Lock()

    def guess(number: int) -> None:
        while time.monotonic() < until:
            number += _LOGINS
            word = base64.b64encode(f"{target.user}:guess {number}".encode())
            with suppress(OSError), socket.create_connection(("127.0.0.1", target.http_port), timeout=60) as stream:
                stream.sendall(b"POST /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                               b"Authorization: Basic " + word + b"\r\n\r\n")
                status = stream.recv(64).split(b" ")[1:2]
                key = b"".join(status).decode() or "closed"
                with lock:
                    answers[key] = answers.get(key, 0) + 1

    _run_all([partial(guess, number) for number in range(_LOGINS)])
    return answers


def long_texts(target: Target, until: float) -> dict[str, int]:
    """Asks, as a user who may read, for texts of a third of a gigabyte."""
    return _ask(target, until, lambda: "SELECT length(replace(repeat('a',60000),'a',repeat('b',6000))) FROM m LIMIT 2")


def long_statements(target: Target, until: float) -> dict[str, int]:
    """Sends statements of several kinds, as a user who may read: far too long, and about as long as they may be."""
    texts = itertools.cycle([text for values, terms in ((100_000, 20_000), (9_900, 4_900)) for text in (
        f"SELECT count(*) FROM m WHERE v IN ({', '.join(map(str, range(values)))})",
        f"SELECT CASE v {' '.join(f'WHEN {n} THEN {n}' for n in range(terms))} END FROM m LIMIT 1",
        f"SELECT {', '.join(f'v + {n}' for n in range(terms))} FROM m LIMIT 1")])
    return _ask(target, until, lambda: next(texts))


def long_answers(target: Target, until: float) -> dict[str, int]:
    """Takes millions of windows that FILL makes up, as a user who may read."""
    return _ask(target, until, lambda: _FILLED)


def gone_clients(target: Target, until: float) -> dict[str, int]:
    """Asks for the same, and hangs up soon after."""
    return _ask(target, until, lambda: _FILLED, stays_s=0.5)


_FILLED = ("SELECT _wstart, sum(v) FROM m WHERE ts >= '2023-11-14 22:13:20' AND ts < '2023-11-15 00:13:20' "
           "PARTITION BY tbname INTERVAL(1a) FILL(VALUE, 0)")
ATTACKS: Mapping[str, Attack] = {
    "idle": idle_connections, "handshake": half_a_handshake, "headers": half_sent_headers, "logins": wrong_logins,
    "texts": long_texts, "statements": long_statements, "answers": long_answers, "gone": gone_clients}


def _ask(target: Target, until: float, text: Callable[[], str], stays_s: float = 120.0) -> dict[str, int]:
    """Sends statements over a few connections, one after the other on each; counts answers by status."""
    answers: dict[str, int] = {}
    lock = threading.Lock()
    word = base64.b64encode(f"{_READER}:{_READER_WORD}".encode()).decode()

    def run() -> None:
        while time.monotonic() < until:
            with lock:
                body = text()
            client = http.client.HTTPConnection("127.0.0.1", target.http_port, timeout=stays_s)
            try:
                client.request("POST", f"/sql/{DATABASE}", body, {"Authorization": f"Basic {word}"})
                answer = client.getresponse()
                key = str(answer.status)
                left_at = time.monotonic() + stays_s
                while time.monotonic() < min(left_at, until) and answer.read(1 << 20):
                    pass
            except (OSError, http.client.HTTPException) as error:
                key = type(error).__name__
            finally:
                client.close()
            with lock:
                answers[key] = answers.get(key, 0) + 1

    _run_all([run] * _READERS)
    return answers


def hold(ports: Sequence[int], count: int, drip: bytes, until: float) -> dict[str, int]:
    """Holds `count` connections, opens new ones for those that are closed, and sends `drip` to each again and again."""
    held: list[socket.socket] = []
    opened, pause = 0, threading.Event()
    while time.monotonic() < until:
        for stream in list(held):
            try:
                if drip:
                    stream.send(drip)
                if stream.recv(1000) == b"":
                    raise ConnectionResetError
            except BlockingIOError:
                continue
            except OSError:
                held.remove(stream)
                stream.close()
        while len(held) < count and time.monotonic() < until:
            try:
                stream = socket.create_connection(("127.0.0.1", ports[opened % len(ports)]), timeout=5)
            except OSError:
                break
            stream.setblocking(False)
            held.append(stream)
            opened += 1
        pause.wait(0.1)
    for stream in held:
        stream.close()
    return {"opened": opened, "held": len(held)}


def _run_all(tasks: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _attacker(name: str, target: Target, seconds: float, told: Connection) -> None:
    end_with_parent()
    os.nice(_LAST)
    told.send(dict(ATTACKS[name](target, time.monotonic() + seconds)))


class _Attackers:
    """Processes that attack, one for each name."""

    def __init__(self, names: Sequence[str], target: Target, seconds: float) -> None:
        self._told: dict[str, Connection] = {}
        for name in names:
            ours, theirs = SPAWN.Pipe()
            SPAWN.Process(target=_attacker, args=(name, target, seconds, theirs), daemon=True).start()
            self._told[name] = ours

    def got(self) -> dict[str, Any]:
        """Waits until they have ended; returns what each has got."""
        return {name: told.recv() for name, told in self._told.items()}


class _States:
    """Looks again and again whether all streams run."""

    def __init__(self, node: Node) -> None:
        self.others: dict[str, int] = {}
        self._node = node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(_LOOK_S):
            for stream, info in self._node.status().infos.items():
                if info.status.state != "RUNNING":
                    key = f"{stream} {info.status.state}"
                    self.others[key] = self.others.get(key, 0) + 1

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def under(folder: Path, phase: Phase, attacks: Sequence[str], schedule: Schedule, seconds: int, http_port: int
          ) -> dict[str, Any]:
    """Returns the latency of the streams under attacks, which may be none."""
    with Node(folder / "data", {"httpPort": http_port}, keep=True) as node:
        for statement in (f"CREATE DATABASE {DATABASE} VGROUPS 1 KEEP 36500d", f"USE {DATABASE}",
                          "CREATE USER ada PASS 'correct horse' ROLE admin",
                          f"CREATE USER {_READER} PASS '{_READER_WORD}' ROLE read",
                          "CREATE STABLE m (ts TIMESTAMP, v BIGINT) TAGS (g INT)", "CREATE TABLE t0 USING m TAGS (0)"):
            node.execute(statement)
        for n in range(_STREAMS):
            node.execute(f"CREATE STREAM s{n} TRIGGER AT_ONCE INTO o{n} AS SELECT ts, v FROM m PARTITION BY tbname")
        node.wait_running()
        watched = {stream.id for stream in node.engine.catalog.streams.all()}
        ports = tuple(info.port for info in node.engine.activity.ports() if info.purpose != "HTTP")
        states = _States(node)
        attackers = _Attackers(attacks, Target(http_port, ports), seconds)
        phase.begin()
        due = send_rows(node, schedule, seconds)
        phase.end()
        node.wait_until(lambda: rows_shown(node, watched) == _STREAMS * len(due) * schedule.rows_per_tick, _SETTLE_S)
        got = attackers.got()
        states.close()
        wanted = node.rows(_BATCH_ANSWER.format("m"))
        return {"measure": "attacks", "attacks": attacks, "streams": _STREAMS, "seconds": seconds,
                "rows_per_second": schedule.rows_per_second, "tick_ms": schedule.tick_ms, "attackers": got,
                "rows": len(due) * schedule.rows_per_tick, "not_running_s": states.others,
                "streams_that_differ": sum(node.rows(_BATCH_ANSWER.format(f"o{n}")) != wanted for n in range(_STREAMS)),
                "refused": {info.purpose: dict(info.counts.refused) for info in node.engine.activity.ports()},
                "latency_from_schedule_ms": percentiles(row_latencies(node, watched, due, schedule))}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a JSON line per run, and one with the ratios."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.attacks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows-per-second", type=int, default=5000)
    parser.add_argument("--tick-ms", type=int, default=100, help="from one INSERT to the next (default 100)")
    parser.add_argument("--seconds", type=int, default=60, help="how long each run lasts (default 60)")
    parser.add_argument("--attacks", nargs="+", choices=sorted(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--together", action="store_true", help="all these attacks at once, instead of one by one")
    options = parser.parse_args(arguments)
    schedule = Schedule(options.rows_per_second, options.tick_ms)
    runs = [options.attacks] if options.together else [[attack] for attack in options.attacks]
    found = []
    for attacks in ([], *runs):
        line = measured(
            under, None, attacks=attacks, schedule=schedule, seconds=options.seconds, http_port=free_port())
        found.append(line["latency_from_schedule_ms"])
        print(json.dumps({"version": __version__, **line}), flush=True)
    quiet, *others = found
    print(json.dumps({"measure": "attacks", "version": __version__, "ratios": {
        " ".join(attacks): ratios(quiet, latency) for attacks, latency in zip(runs, others, strict=True)}}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
