"""Streams without windows over rows that come and change: groups that tasks keep, and answers that are computed again.

`python -m bench.changes [--keys N] [--changes N]` fills a table with a row per key, and makes a stream. Then it adds
rows to groups (`appended`), and rewrites rows: many at once, a few at a time, and `--rate` a second for some seconds,
beside which single results are awaited. It prints a JSON line per stream and step: changes per second of processors, of
the engine and its workers together, until the result table has all of them, and of the last step how long it takes
until a change is seen. `whole` is a stream of the same answer as `touched` that is computed again as a whole.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from bench.processes import cpu_seconds

_FIRST_MS = 1_700_000_000_000
_AT_ONCE, _FEW, _TICK_S, _TIMEOUT_S = 50_000, 20, 0.05, 600.0
_WRITE_S, _LOOK_S, _LOOKS = 0.01, 0.002, 5
_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_FIRST_MARK = 1_000_000  # above every other value
#: Each stream's columns and query; the result table has a row per key, with the row's value in the last column.
_STREAMS = {
    "groups": ("", "SELECT k, count(*) n, sum(v) v FROM r GROUP BY k"),
    "touched": ("(k PRIMARY KEY, ts, v)",
                "SELECT k, ts, v FROM r QUALIFY row_number() OVER (PARTITION BY k ORDER BY ts DESC) = 1"),
    "joined": ("(k PRIMARY KEY, name, v)", "SELECT n.k, n.name, r.v FROM names n LEFT JOIN r ON n.k = r.k"),
    "whole": ("(k PRIMARY KEY, ts, v)",
              "SELECT k, ts, v FROM r QUALIFY row_number() OVER (PARTITION BY k + 0 ORDER BY ts DESC) = 1"),
}


class Rows:
    """The table `r`: a row per key, which may be rewritten."""

    def __init__(self, cursor: Any, keys: int) -> None:
        self._cursor = cursor
        self._chance = np.random.default_rng(1)
        self.values = np.zeros(keys, np.int64)
        self.appended, self.appended_sum = 0, 0
        self._marks = itertools.count(_FIRST_MARK)

    def write(self, places: _Numbers) -> None:
        """Writes new values into rows, by their numbers."""
        values = self._chance.integers(0, 1000, len(places))
        self.values[places] = values
        self._insert(_FIRST_MS + places, places, values)

    def append(self, count: int) -> None:
        """Writes so many further rows, of any keys but the first."""
        times = _FIRST_MS + len(self.values) + self.appended + np.arange(count)
        values = self._chance.integers(0, 1000, count)
        self._insert(times, self._chance.integers(1, len(self.values), count), values)
        self.appended += count
        self.appended_sum += int(values.sum())

    def _insert(self, times: _Numbers, keys: _Numbers, values: _Numbers) -> None:
        self._cursor.insert_arrow("r", pa.table({
            "ts": pa.array(times).cast(pa.timestamp("ms")), "k": pa.array(keys),
            "v": pa.array(values.astype(np.int32))}))

    def sum(self) -> int:
        """Returns the sum of the values of all rows."""
        return int(self.values.sum()) + self.appended_sum

    def fill(self) -> None:
        for first in range(0, len(self.values), _AT_ONCE):
            self.write(np.arange(first, min(first + _AT_ONCE, len(self.values))))

    def mark(self) -> int:
        """Writes a value that no other row has into the first row, and returns it."""
        value = next(self._marks)
        self.values[0] = value
        self._cursor.execute(f"INSERT INTO r VALUES ({_FIRST_MS}, 0, {value})")
        return value

    def some(self, count: int) -> _Numbers:
        """Returns the numbers of some rows, ascending."""
        return np.sort(self._chance.choice(len(self.values), count, replace=False))

    def some_below(self, count: int) -> _Numbers:
        """Returns about so many numbers of rows, ascending, none of the last row; quicker than `some`."""
        return np.unique(self._chance.integers(0, len(self.values) - 1, count))


def measure(folder: Path, name: str, keys: int, changes: int, rate: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Yields what one stream takes for the rows that are there, for many changes, for few at a time, and all the time.
    """
    columns, query = _STREAMS[name]
    with penstock.connect(folder / "data", {"timezone": "UTC"}) as connection:
        cursor = connection.cursor()
        for statement in ("CREATE DATABASE d VGROUPS 1 KEEP 36500d", "USE d",
                          "CREATE TABLE names (k BIGINT PRIMARY KEY, name VARCHAR(20))",
                          "CREATE TABLE r (ts TIMESTAMP, k BIGINT, v INT)"):
            cursor.execute(statement)
        rows = Rows(cursor, keys)
        rows.fill()
        cursor.insert_arrow("names", pa.table({"k": np.arange(keys), "name": [f"key {key}" for key in range(keys)]}))
        pause = threading.Event()

        def step(what: str, count: int, act: Callable[[], object]) -> dict[str, Any]:
            before, began = cpu_seconds(), time.monotonic()
            act()
            value = rows.mark()
            while _shown(cursor) != value:
                if time.monotonic() > began + _TIMEOUT_S:
                    raise TimeoutError(f"{name}: {what}")
                pause.wait(_TICK_S)
            used = cpu_seconds() - before
            if cursor.execute("SELECT sum(v) FROM o").fetchone() != (rows.sum(),):
                raise AssertionError(f"{name}: {what}: a result is missing")
            return {"measure": "changes", "stream": name, "step": what, "keys": keys, "changes": count,
                    "cpu_seconds": round(used, 2), "seconds": round(time.monotonic() - began, 2),
                    "changes_per_cpu_second": round(count / used)}

        yield step("first", keys, lambda: cursor.execute(f"CREATE STREAM s INTO o {columns} AS {query}"))

        def appended() -> None:
            for first in range(0, changes, _AT_ONCE):
                rows.append(min(_AT_ONCE, changes - first))

        if name == "groups":  # the others have one row of a key
            yield step("appended", changes, appended)

        def many() -> None:
            for first in range(0, changes, _AT_ONCE):
                rows.write(rows.some(min(_AT_ONCE, changes - first, keys)))

        yield step("many", changes, many)

        def few() -> None:
            for _ in range(_FEW):
                rows.write(rows.some(_FEW))
                pause.wait(_TICK_S)

        yield step("few", _FEW * _FEW, few)
        beside = connection.cursor()
        beside.execute("USE d")
        other = Rows(beside, keys)
        yield {"measure": "changes", "stream": name, "step": "steady", "keys": keys, "rate": rate,
               **_steady(rows, other, partial(_shown, cursor), rate, seconds)}


def _shown(cursor: Any) -> int | None:
    """Returns the result of the first key; None if there is none yet."""
    found = cursor.execute("SELECT v FROM o WHERE k = 0").fetchone()
    return None if found is None else found[0]


def _steady(marks: Rows, others: Rows, seen: Callable[[], int | None], rate: int, seconds: float) -> dict[str, Any]:
    """Rewrites rows all the time, and looks how long it takes until a row of its own is seen."""
    ended, pause, written = threading.Event(), threading.Event(), [0]

    def write() -> None:
        due = time.monotonic()
        while not ended.is_set():
            others.write(1 + others.some_below(int(rate * _WRITE_S)))
            written[0] += int(rate * _WRITE_S)
            due += _WRITE_S
            pause.wait(max(0.0, due - time.monotonic()))

    writer = threading.Thread(target=write)
    before, began = cpu_seconds(), time.monotonic()
    writer.start()
    took: list[float] = []
    while time.monotonic() < began + seconds:
        start = time.monotonic()
        value = marks.mark()
        while seen() != value:
            pause.wait(max(_LOOK_S, (time.monotonic() - start) / _LOOKS))
        took.append((time.monotonic() - start) * 1000)
    ended.set()
    writer.join()
    used, passed = cpu_seconds() - before, time.monotonic() - began
    return {"changes_per_second": round(written[0] / passed), "cores": round(used / passed, 2), "looks": len(took),
            "p50_ms": round(float(np.percentile(took, 50)), 1), "p99_ms": round(float(np.percentile(took, 99)), 1)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000, help="rows of the table, of a key each")
    parser.add_argument("--changes", type=int, default=500_000, help="rows that are rewritten in the second step")
    parser.add_argument("--rate", type=int, default=20_000, help="rows that are rewritten per second in the last step")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long")
    parser.add_argument("--streams", nargs="+", choices=_STREAMS, default=list(_STREAMS), help="which streams")
    options = parser.parse_args(arguments)
    for name in options.streams:
        with tempfile.TemporaryDirectory() as folder:
            for measured in measure(
                    Path(folder), name, options.keys, options.changes, options.rate, options.seconds):
                print(json.dumps(measured), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
