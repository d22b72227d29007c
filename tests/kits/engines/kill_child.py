"""The process that test_kill_nine.py kills: an engine that replays flights and checks itself, as told on stdin.

Commands, one per line: `insert N [MS]` inserts the next N batches, MS ms apart, and prints `acked I` after each; `check
[S]` waits until the streams equal the batch answer, which VERIFY STREAM must find, too, and prints `equal`, or `differs
...` after S (90) seconds; `tasks` waits until all streams run, or are paused, and prints `tasks {"attempts": {stream:
attempt}, "pids": [...]}`; `pause` and `resume` do so with all streams and print `paused` and `resumed`; `exit` closes
the engine. Prints `ready` first. With a third argument `watch` it also prints `flow {stream: attempt}` when an attempt
has written results.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from pathlib import Path
from typing import Any

from examples.flights.data import TIME_ZONE, batches, load_feeds
from kits.basics.places import ROOT

import penstock
from penstock.common.clock import SystemClock
from penstock.shell.terminal.script import SqlText, split_all

CONFIG = {"timezone": TIME_ZONE, "idleTimeout": "1h", "checkpointInterval": "1s",
          "restartDelayMax": "1s", "spark.ui.enabled": False}
STREAMS = {
    "worst_delay_per_day": (
        "SELECT carrier, ts, worst_delay, flights FROM nyc.worst_delay_per_day",
        "SELECT carrier, _wstart, max(dep_delay), count(*) FROM nyc.flights PARTITION BY carrier INTERVAL(1d)", True),
    "departures_per_hour": (
        "SELECT origin, ts, planned, departed FROM nyc.departures_per_hour",
        "SELECT origin, _wstart, count(*), count(dep_delay) FROM nyc.flights PARTITION BY origin INTERVAL(1h)", False),
    "weather_per_day": (
        "SELECT station, ts, coldest, warmest FROM nyc.weather_per_day",
        "SELECT station, _wstart, min(temp), max(temp) FROM nyc.weather PARTITION BY station INTERVAL(1d)", False),
    "destinations": (  # of all time
        "SELECT dest, 0, flights, arrived, miles FROM nyc.flights_to",
        "SELECT dest, 0, count(*), count(arr_delay), sum(distance) FROM nyc.flights GROUP BY dest", True),
}
PATIENCE_S = 240.0


def main() -> None:
    """Runs the commands of stdin on the data directory `argv[1]`, from batch `argv[2]` on."""
    path, position = sys.argv[1], int(sys.argv[2])
    feeds = load_feeds(seed=2013, months=2)
    with penstock.connect(path, CONFIG) as connection:
        cursor = connection.cursor()
        if not Path(path, "FORMAT").exists() or not _rows(cursor, "SHOW DATABASES LIKE 'nyc'"):
            _create(cursor)
        say("ready")
        if sys.argv[3:] == ["watch"]:
            threading.Thread(target=_watch, args=(connection.cursor(),), daemon=True).start()
        waiting = itertools.islice(enumerate(batches(feeds)), position, None)
        for line in sys.stdin:
            command, _, count = line.strip().partition(" ")
            if command == "insert":
                number_of, _, pause_ms = count.partition(" ")
                for number, (table, rows) in itertools.islice(waiting, int(number_of)):
                    cursor.insert_arrow(f"nyc.{table}", rows)
                    say(f"acked {number}")
                    if pause_ms:
                        SystemClock().wait(threading.Event(), int(pause_ms) / 1000)
                say("inserted")
            elif command == "tasks":
                say(f"tasks {json.dumps(_tasks(cursor))}")
            elif command in ("pause", "resume"):
                for name in _stream_names(cursor):
                    cursor.execute(f"{command} STREAM {name}")
                say(f"{command}d")
            elif command == "check":
                say(_verdict(cursor, float(count or PATIENCE_S)))
            elif command == "exit":
                break


def _watch(cursor: Any) -> None:
    """Prints `flow {stream: attempt}` whenever an attempt of a stream has written its first results."""
    clock, known = SystemClock(), {}
    while True:
        found = dict(_rows(cursor, "SELECT stream_name, min(attempt) FROM information_schema.ins_stream_tasks "
                                   "WHERE level = 'sink' AND rows_out > 0 GROUP BY stream_name"))
        if found != known:
            known = found
            say(f"flow {json.dumps(found)}")
        clock.wait(threading.Event(), 0.02)


_saying = threading.Lock()


def say(text: str) -> None:
    """Prints a line whole, whoever else prints."""
    with _saying:
        print(text, flush=True)


def _tasks(cursor: Any) -> dict[str, Any]:
    """Returns the attempts of the streams, all of which run or rest, and the processes of the workers that host any."""
    running = "SELECT stream_name, attempt FROM information_schema.ins_streams WHERE state IN ('RUNNING', 'PAUSED')"
    clock = SystemClock()
    while len(attempts := dict(_rows(cursor, running))) < len(STREAMS):
        clock.wait(threading.Event(), 0.05)
    pids = [pid for (pid,) in _rows(cursor, "SELECT pid FROM information_schema.ins_stream_workers WHERE streams > 0")]
    return {"attempts": attempts, "pids": pids}


def _stream_names(cursor: Any) -> list[str]:
    return [name for (name,) in _rows(cursor, "SELECT stream_name FROM information_schema.ins_streams")]


def _create(cursor: Any) -> None:
    script = ROOT / "examples" / "flights" / "streams.sql"
    text = script.read_text("utf-8").replace("KEEP 36500d", "KEEP 36500d WAL_LEVEL 2")
    for piece in split_all(text):
        assert isinstance(piece, SqlText)
        cursor.execute(piece.text)


def _rows(cursor: Any, sql: str) -> list[tuple[Any, ...]]:
    cursor.execute(sql)
    rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def _verdict(cursor: Any, patience_s: float) -> str:
    """Compares until all streams equal the batch answer, or patience is over."""
    clock = SystemClock()
    deadline = clock.monotonic() + patience_s
    while True:
        differences = [text for name in STREAMS for text in _differences(cursor, name)]
        differences = differences or [text for name in _stream_names(cursor) for text in _verified(cursor, name)]
        if not differences:
            counts = [str(_rows(cursor, f"SELECT count(*) FROM nyc.{table}")[0][0]) for table in ("flights", "weather")]
            return f"equal {' '.join(counts)}"
        if clock.monotonic() > deadline:
            return f"differs {differences[:5]} {_rows(cursor, 'SHOW STREAMS')}"
        clock.wait(threading.Event(), 0.05)


def _differences(cursor: Any, name: str) -> list[str]:
    result, batch, open_too = STREAMS[name]
    found = {row[:2]: row[2:] for row in _rows(cursor, result)}
    wanted = {row[:2]: row[2:] for row in _rows(cursor, batch)}
    texts = [f"{name}: {key} is {found[key]}, not {wanted.get(key)}" for key in found if found[key] != wanted.get(key)]
    if open_too:
        texts += [f"{name}: {key} is missing" for key in wanted if key not in found]
    elif wanted:
        # All windows that ended long before the newest row are closed; which of the last are depends on all vnodes.
        newest = max(key[1] for key in wanted)
        texts += [f"{name}: {key} is missing" for key in wanted
                  if key not in found and (newest - key[1]).total_seconds() > 3 * 86_400]
    return texts


def _verified(cursor: Any, name: str) -> list[str]:
    """Asks the second judge, who says too that a stream isn't there yet."""
    try:
        return [f"{name}: {line}" for line in _rows(cursor, f"VERIFY STREAM {name}") if line[0] != "verified"]
    except penstock.Error as error:
        return [f"{name}: {error}"]


if __name__ == "__main__":
    main()
