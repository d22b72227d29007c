"""A small data directory with running streams of every kind, for tests that a later version goes on with them."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

from kits.engines.data_directories import CONFIG
from kits.engines.sandboxes import T0, TestBed

STARTED = T0 - T0 % 60_000
"""When the streams were made, and the time of their first rows: a full minute, which windows of any length begin at."""
STEP_MS, STEPS = 700, 3
"""Time between two rows of a table, and how many steps of time are written at once."""
BEFORE, AFTER = 20, 16
"""How many rounds of rows were written by the version of the directory, and how many come behind them."""
STOPPED = STARTED + BEFORE * STEPS * STEP_MS
ENDED = STOPPED + AFTER * STEPS * STEP_MS
AGREED = ENDED - 15_000
"""Windows that begin before it have ended when all rows are written."""

_EXACT = "IGNORE EXPIRED 0 IGNORE UPDATE 0"
_ALL = ("count(*) n, sum(v) total, avg(a) mean, min(a) least, max(note) most, spread(v) wide, first(a) f, last(v) l, "
        "stddev(a) sd, apercentile(a, 50) half, hyperloglog(note) kinds")
_WRITTEN = f"WHERE ts >= {STARTED} AND ts < {ENDED}"
_PICKED = "max(a) most, ts at, v beside, note"

STREAMS: dict[str, tuple[str, str]] = {
    "closes": (
        f"TRIGGER WINDOW_CLOSE {_EXACT}",
        f"SELECT _wstart ts, {_ALL} FROM m PARTITION BY tbname INTERVAL(10s)"),
    "strict": (
        "TRIGGER WINDOW_CLOSE",
        "SELECT _wstart ts, _wend ended, count(*) n, sum(v) total FROM calm WHERE a > 1 PARTITION BY tbname "
        "INTERVAL(7s)"),
    "slides": (
        f"TRIGGER AT_ONCE {_EXACT}",
        f"SELECT _wstart ts, {_ALL} FROM m PARTITION BY site INTERVAL(20s) SLIDING(5s)"),
    "picks": (
        f"TRIGGER AT_ONCE {_EXACT}",
        f"SELECT _wstart ts, {_PICKED} FROM m PARTITION BY tbname INTERVAL(10s)"),
    "whole": (
        f"TRIGGER AT_ONCE {_EXACT}",
        "SELECT _wstart ts, count(*) n, sum(v * 2 + site) total, max(a) - min(a) span, first(note) f FROM m "
        "WHERE note <> 'c' INTERVAL(1m, 10s) SLIDING(15s)"),
    "by_case": (
        f"TRIGGER AT_ONCE {_EXACT}",
        "SELECT _wstart ts, CASE WHEN v > 4 THEN 'high' ELSE 'low' END level, count(a) n, avg(v) mean FROM m "
        "PARTITION BY CASE WHEN v > 4 THEN 'high' ELSE 'low' END, place INTERVAL(10s)"),
    "sessions": (
        f"TRIGGER WINDOW_CLOSE {_EXACT}",
        f"SELECT _wstart ts, {_ALL} FROM m PARTITION BY tbname SESSION(ts, 2s)"),
    "states": (
        f"TRIGGER AT_ONCE {_EXACT}",
        "SELECT _wstart ts, first(ok) ok, count(*) n, sum(v) total FROM m PARTITION BY tbname "
        "STATE_WINDOW(ok)"),
    "events": (
        f"TRIGGER WINDOW_CLOSE {_EXACT}",
        "SELECT _wstart ts, count(*) n, avg(a) mean, last(v) l FROM m PARTITION BY tbname EVENT_WINDOW START "
        "WITH v > 6 END WITH v < 3"),
    "counts": (
        "TRIGGER AT_ONCE WATERMARK 1s IGNORE EXPIRED 1 IGNORE UPDATE 0",
        "SELECT _wstart ts, count(*) n, sum(v) total, max(a) most FROM calm PARTITION BY tbname "
        "COUNT_WINDOW(5, 2)"),
    "previous": (
        f"TRIGGER WINDOW_CLOSE {_EXACT}",
        f"SELECT _wstart ts, count(*) n, last(v) l FROM sparse {_WRITTEN} PARTITION BY tbname INTERVAL(1s) "
        "FILL(PREV)"),
    "lines": (
        f"TRIGGER WINDOW_CLOSE {_EXACT}",
        f"SELECT _wstart ts, avg(a) mean FROM sparse {_WRITTEN} PARTITION BY tbname INTERVAL(1s) FILL(LINEAR)"),
    "joined": (
        f"TRIGGER WINDOW_CLOSE {_EXACT}",
        "SELECT m.ts, m.v, b.speed FROM m m JOIN b b ON m.site = b.line AND m.ts BETWEEN b.ts - 1s AND b.ts "
        "+ 1s PARTITION BY m.tbname"),
    "newest": (
        f"TRIGGER AT_ONCE {_EXACT}",
        "SELECT m.ts, m.v, b.speed FROM m m LEFT ASOF JOIN b b ON m.site = b.line PARTITION BY m.tbname"),
    "joined_windows": (
        f"TRIGGER AT_ONCE {_EXACT}",
        "SELECT _wstart ts, max(m.a) most, min(b.speed) least FROM m m JOIN b b ON m.site = b.line AND m.ts "
        "BETWEEN b.ts - 1s AND b.ts + 1s PARTITION BY m.site INTERVAL(10s)"),
    "sited": (
        f"TRIGGER AT_ONCE {_EXACT}",
        "SELECT _wstart ts, d.owner, max(m.a) most, count(*) n FROM m m JOIN devices d ON m.site = d.id "
        "WHERE m.v < d.most PARTITION BY d.owner INTERVAL(10s)"),
    "scalars": (
        f"TRIGGER AT_ONCE {_EXACT}",
        "SELECT ts, v * 2 + 1 twice, upper(note) note, CAST(a AS INT) whole, CASE WHEN ok THEN a END good "
        "FROM m WHERE v > 2 PARTITION BY tbname"),
    "forced": (
        "TRIGGER FORCE_WINDOW_CLOSE",
        "SELECT _wstart ts, count(*) n, sum(v) total FROM calm PARTITION BY tbname INTERVAL(10s)"),
    "delayed": (
        f"TRIGGER MAX_DELAY 5s WATERMARK 1s {_EXACT}",
        "SELECT _wstart ts, sum(v) total FROM m PARTITION BY site INTERVAL(10s)"),
    "with_history": (
        f"TRIGGER AT_ONCE {_EXACT} FILL_HISTORY 1",
        "SELECT _wstart ts, sum(v) total, count(note) n FROM m PARTITION BY tbname INTERVAL(30s)"),
    "on_results": (
        f"TRIGGER AT_ONCE {_EXACT}",
        "SELECT _wstart ts, sum(n) n, max(least) least FROM closes_out INTERVAL(30s)"),
}
"""By name: the options of a stream and its query."""

SETUP = (
    "CREATE DATABASE d VGROUPS 2 WAL_RETENTION_PERIOD -1 KEEP 36500d", "USE d",
    "CREATE STABLE m (ts TIMESTAMP, v INT, a DOUBLE, note VARCHAR(8), ok BOOL) TAGS (site INT, place VARCHAR(8))",
    *(f"CREATE TABLE t{n} USING m TAGS ({n % 3}, 'p{n % 2}')" for n in range(4)),
    "CREATE STABLE sparse (ts TIMESTAMP, v INT, a DOUBLE) TAGS (g INT)",
    *(f"CREATE TABLE s{n} USING sparse TAGS ({n})" for n in range(2)),
    "CREATE STABLE calm (ts TIMESTAMP, v INT, a DOUBLE) TAGS (g INT)",
    *(f"CREATE TABLE c{n} USING calm TAGS ({n})" for n in range(2)),
    "CREATE STABLE b (ts TIMESTAMP, speed DOUBLE) TAGS (line INT)",
    *(f"CREATE TABLE b{n} USING b TAGS ({n})" for n in range(3)),
    "CREATE TABLE devices (since TIMESTAMP, id INT, owner VARCHAR(16), most INT)",
    f"INSERT INTO devices VALUES ({STARTED}, 0, 'north', 9) "
    f"({STARTED + 1}, 1, 'south', 8) ({STARTED + 2}, 2, 'north', 5)",
    f"INSERT INTO t0 VALUES ({STARTED - 40_000}, 1, 2, 'old', true)",
)


def open_streams(directory: Path, now_ms: int, **config: Any) -> TestBed:
    """Opens a directory of `write` at a time in ms, without Spark."""
    bed = TestBed(directory=directory, now_ms=now_ms, config={**CONFIG, "checkpointInterval": "1h", **config})
    if directory.joinpath("vnode").is_dir() and any(directory.glob("vnode/*")):
        bed.execute("USE d")
    return bed


def write(directory: Path) -> None:
    """Makes the directory: streams with two checkpoints, rows behind the last of them, and open windows."""
    with open_streams(directory, STARTED) as bed:
        bed.all(*SETUP, *(f"CREATE STREAM {name} {options} INTO {name}_out AS {query}"
                          for name, (options, query) in STREAMS.items()))
        begin(bed)


def begin(bed: TestBed) -> None:
    """Inserts the rows of the directory, with two checkpoints; some rows are behind the last of them."""
    for number in range(BEFORE):
        insert_rounds(bed, range(number, number + 1))
        if number in (BEFORE // 3, BEFORE - 4):
            bed.checkpoint()
            bed.execute("FLUSH DATABASE d")


def go_on(bed: TestBed, together: int) -> None:
    """Inserts the rows that come behind those of the directory, some rounds at once."""
    for first in range(BEFORE, BEFORE + AFTER, together):
        insert_rounds(bed, range(first, first + together))


def insert_rounds(bed: TestBed, rounds: range) -> None:
    """Inserts the rows of some steps of time; some are late, some are written anew, one goes."""
    bed.execute(f"INSERT INTO {' '.join(part for number in rounds for part in _round(number))}")
    for number in rounds:
        if number % 8 == 7:
            bed.execute(f"DELETE FROM t2 WHERE ts = {_late(number) + 20}")
    bed.clock.advance(len(rounds) * STEPS * STEP_MS / 1000)
    bed.run()


def _round(number: int) -> list[str]:
    parts = [part for step in range(number * STEPS, (number + 1) * STEPS) for part in _rows(step)]
    late = _late(number)
    if number % 5 == 4:
        parts.append(f"t1 VALUES ({late + 10}, {number % 10}, 0.5, 'a', true) ({late + 300}, 9, 1.5, 'b', false)")
    return parts


def _late(number: int) -> int:
    return STARTED + (number * STEPS - 12) * STEP_MS


def _rows(step: int) -> list[str]:
    at = STARTED + step * STEP_MS
    parts = [f"c{table} VALUES ({at + table}, {(step * 3 + table) % 8}, {step % 6})" for table in range(2)]
    for table in range(4):
        if (step + table) % 11 >= 3:  # gaps end sessions
            value = (step * 7 + table * 3) % 10
            ok = str((step // 4 + table) % 3 > 0).lower()
            parts.append(f"t{table} VALUES ({at + table * 10}, {value}, {value * 1.25 + table}, "
                         f"'{'abc'[value % 3]}', {ok})")
    if step % 5 == 0:
        parts.append(f"s0 VALUES ({at}, {step}, {step / 4}) s1 VALUES ({at + 50}, {step % 7}, {step / 2})")
    if step % 3 == 0:
        parts += [f"b{line} VALUES ({at + 20 * line}, {step + line * 0.5})" for line in range(3)]
    return parts


def compare(bed: TestBed, name: str) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Returns the results of a stream and what the same query gives at once, where windows have ended."""
    first = -(10**9) if name == "with_history" else STARTED - T0
    return compared(bed, f"SELECT * FROM {name}_out", STREAMS[name][1], first)


def compared(
    bed: TestBed, results: str, query: str, first: int = STARTED - T0
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Returns what two queries give in windows that have ended; of the first one the columns that the second has.

    `first`: the beginning of the first window, in ms after T0.
    """
    batch = bed.rows(query)
    width = len(batch[0])
    found, wanted = ([row[:width] for row in rows if first <= row[0] < AGREED - T0]
                     for rows in (bed.rows(results), batch))
    return sorted(map(_rounded, found), key=repr), sorted(map(_rounded, wanted), key=repr)


def _rounded(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(round(value, 9) if isinstance(value, float) else value for value in row)


def extract(archive: Path, directory: Path) -> Path:
    """Unpacks a stored directory; returns where it is."""
    with tarfile.open(archive) as file:
        file.extractall(directory, filter="data")
    return directory / "data"
