"""Attacks on a running engine beside streams that must not feel them: `python -m bench.attacks`; a JSON line for each.

Five streams pass the rows of a table on, which come on a fixed schedule; their latency is from the moment at which a
row should have been sent to its result being visible. First nobody attacks, the measure of all; then each attack goes
on, from a process of its own, for as long. A line has the latencies, their ratios to those of the quiet run, which
streams aren't RUNNING afterwards, whether all results came, and what the attacker says that it has got.
"""

from __future__ import annotations

import argparse
import base64
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.figures import percentiles
from bench.isolated import SPAWN, Phase, end_with_parent, measured
from bench.load import Schedule, play
from bench.neighbours import ratios
from bench.node import Node
from bench.setup import DATABASE
from penstock import __version__

_STREAMS = 5
_T0 = 1_700_000_000_000
_WARM_S = 3.0
_SETTLE_S = 60.0
_IDLE, _HALF_SENT, _LOGINS = 1100, 600, 60


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
    return _hold(target.worker_ports, _IDLE, b"", until)


def half_a_handshake(target: Target, until: float) -> dict[str, int]:
    """Says one byte to the ports for workers."""
    return _hold(target.worker_ports, _HALF_SENT, b"\0", until)


def half_sent_headers(target: Target, until: float) -> dict[str, int]:
    """Keeps connections to the HTTP port with a header that never ends, a byte at a time."""
    return _hold((target.http_port,), _HALF_SENT, b"G", until)


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

    threads = [threading.Thread(target=guess, args=(number,)) for number in range(_LOGINS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


ATTACKS: Mapping[str, Attack] = {
    "idle": idle_connections, "handshake": half_a_handshake, "headers": half_sent_headers, "logins": wrong_logins}


def _hold(ports: Sequence[int], count: int, drip: bytes, until: float) -> dict[str, int]:
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


def _attacker(name: str, target: Target, seconds: float, told: Connection) -> None:
    end_with_parent()
    told.send(dict(ATTACKS[name](target, time.monotonic() + seconds)))


def under(folder: Path, phase: Phase, attack: str, schedule: Schedule, seconds: int, http_port: int) -> dict[str, Any]:
    """Returns the latency of the streams under an attack; "none" is none."""
    with Node(folder / "data", {"httpPort": http_port}, keep=True) as node:
        for statement in (f"CREATE DATABASE {DATABASE} VGROUPS 1 KEEP 36500d", f"USE {DATABASE}",
                          "CREATE USER ada PASS 'correct horse' ROLE admin",
                          "CREATE STABLE m (ts TIMESTAMP, v BIGINT) TAGS (g INT)", "CREATE TABLE t0 USING m TAGS (0)"):
            node.execute(statement)
        for n in range(_STREAMS):
            node.execute(f"CREATE STREAM s{n} TRIGGER AT_ONCE INTO o{n} AS SELECT ts, v FROM m PARTITION BY tbname")
        node.wait_running()
        ports = tuple(info.port for info in node.engine.activity.ports() if info.purpose != "HTTP")
        ours, theirs = SPAWN.Pipe()
        attacker = None
        if attack != "none":
            attacker = SPAWN.Process(target=_attacker, args=(attack, Target(http_port, ports), seconds, theirs))
            attacker.start()
        phase.begin()
        due = _send(node, schedule, seconds)
        phase.end()
        rows = _STREAMS * len(due) * schedule.rows_per_tick
        node.wait_until(lambda: _shown(node) == rows, _SETTLE_S)
        got = {} if attacker is None else ours.recv()
        states = {stream: info.state for stream, info in node.status().infos.items()}
        return {"measure": "attacks", "attack": attack, "streams": _STREAMS, "seconds": seconds,
                "rows_per_second": schedule.rows_per_second, "complete": _shown(node) == rows, "attacker": got,
                "not_running": [str(stream) for stream, state in states.items() if state != "RUNNING"],
                "refused": {info.purpose: dict(info.counts.refused) for info in node.engine.activity.ports()},
                "latency_from_schedule_ms": percentiles(_latencies(node, due, schedule))}


def _send(node: Node, schedule: Schedule, seconds: int) -> list[int]:
    """Writes rows on schedule; returns when each tick was due (ns)."""
    pause, due_ns = threading.Event(), []

    def send(tick: int, due: int) -> None:
        numbers = np.arange(tick * schedule.rows_per_tick, (tick + 1) * schedule.rows_per_tick, dtype=np.int64)
        node.insert(f"{DATABASE}.m", pa.record_batch({
            "tbname": pa.repeat("t0", len(numbers)), "ts": pa.array(_T0 + numbers, pa.timestamp("ms")),
            "v": pa.array(numbers)}))
        due_ns.append(due)

    ticks = seconds * 1000 // schedule.tick_ms
    play(schedule, 0, ticks, time.monotonic_ns(), send, time.monotonic_ns, lambda left: bool(pause.wait(left / 1e9)))
    return due_ns


def _shown(node: Node) -> int:
    return sum(write.rows.num_rows for _, write in node.results.writes())


def _latencies(node: Node, due: Sequence[int], schedule: Schedule) -> np.ndarray[Any, Any]:
    """Returns the latency of each row of each stream in ms, without those of the first seconds."""
    due_ns = np.array(due, np.int64)
    warm = int(_WARM_S * 1000 / schedule.tick_ms)
    found = []
    for at, write in node.results.writes():
        ticks = (write.rows.column("ts").cast(pa.int64()).to_numpy() - _T0) // schedule.rows_per_tick
        found.append((at - due_ns[ticks[ticks >= warm]]) / 1e6)
    return np.concatenate(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a JSON line per run, and one with the ratios."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.attacks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows-per-second", type=int, default=5000)
    parser.add_argument("--tick-ms", type=int, default=10, help="from one INSERT to the next (default 10)")
    parser.add_argument("--seconds", type=int, default=60, help="how long each run lasts (default 60)")
    parser.add_argument("--attacks", nargs="+", choices=sorted(ATTACKS), default=list(ATTACKS))
    options = parser.parse_args(arguments)
    schedule = Schedule(options.rows_per_second, options.tick_ms)
    latency: dict[str, dict[str, float]] = {}
    for attack in ("none", *options.attacks):
        line = measured(under, None, attack=attack, schedule=schedule, seconds=options.seconds, http_port=_free_port())
        latency[attack] = line["latency_from_schedule_ms"]
        print(json.dumps({"version": __version__, **line}), flush=True)
    print(json.dumps({"measure": "attacks", "version": __version__, "ratios": {
        attack: ratios(latency["none"], latency[attack]) for attack in options.attacks}}), flush=True)
    return 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
