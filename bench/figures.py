"""Arithmetic of measurements: percentiles, and when the row that triggers a result has arrived."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.queries import WATERMARK_MS, Query
from penstock.tasks.protocol.messages import ResultWrite

_SHARES = {"p50": 50.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}


def percentiles(values: npt.NDArray[np.float64]) -> dict[str, float]:
    """Returns p50 to p99.9 (each a value that occurs: at least so many percent are not greater) and the greatest.

    Raises ValueError without values.
    """
    if not len(values):
        raise ValueError("no values to take percentiles of")
    found = {name: float(np.percentile(values, share, method="inverted_cdf")) for name, share in _SHARES.items()}
    return {**{name: round(value, 3) for name, value in found.items()}, "max": round(float(values.max()), 3)}


class NewestRowLatencies:
    """How long rows took to their results, in ms: of each result write the newest row, whose time is `latest` there."""

    def __init__(self, due_ms: Callable[[int], float], streams_max: int) -> None:
        """`due_ms`: when the row of a time was due, by the monotonic clock. `streams_max`: of so many streams, since a
        look at each result would be a load of its own.
        """
        self._due_ms = due_ms
        self._streams_max = streams_max
        self._streams: set[int] = set()
        self.found: list[float] = []

    def note(self, at_ns: int, write: ResultWrite) -> None:
        """Takes note of a result write."""
        if len(self._streams) < self._streams_max:
            self._streams.add(write.stream_id)
        if write.stream_id in self._streams and "latest" in write.rows.schema.names:
            newest = int(write.rows.column("latest").cast(pa.int64()).to_numpy().max())
            self.found.append(at_ns / 1e6 - self._due_ms(newest))


def closing_rows(
    query: Query, source: pa.Table, *, all_vnodes: bool, watermark_ms: int = WATERMARK_MS
) -> pa.Table:
    """Returns for each window the place (in order of arrival, from 0) of the row that closes it.

    `source`: tbname, tag, ts (ms), seq, vnode, all rows in time. Columns: the query's keys and `place`. A window is
    closed by the first row of its table's vnode that lies `watermark_ms` beyond its end; with `all_vnodes` (groups
    that cross vnodes), by the last of those of all vnodes. Windows that nothing closes are missing.
    """
    key = "tbname" if query.keys[0] == "tn" else "tag"
    last = "max" if all_vnodes else "min"
    among = "" if all_vnodes else "AND closer.vnode = span.vnode"
    with duckdb.connect() as connection:
        connection.register("source", source)
        return connection.sql(
            f"WITH firsts AS (SELECT vnode, ts, min(seq) seq FROM source GROUP BY ALL), "
            f"windows AS (SELECT DISTINCT {key} {query.keys[0]}, ts - ts % {query.width_ms} ts, "
            f"{'0' if all_vnodes else 'vnode'} vnode FROM source) "
            f"SELECT span.{query.keys[0]}, span.ts, {last}(closer.seq) place FROM windows span "
            f"JOIN firsts closer ON closer.ts = span.ts + {query.width_ms + watermark_ms} {among} "
            "GROUP BY 1, 2").to_arrow_table()


def closed_latencies(visible: pa.Table, closing: pa.Table, arrived_ns: npt.NDArray[np.int64], query: Query,
                     rows_per_tick: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Returns for each closed window the tick of the row that closed it, and its latency in ms.

    `visible`: the query's keys and `shown_ns` of each time that a window was written; the first counts. `arrived_ns`:
    when the rows of each tick arrived, or should have: then a stall of the sender or receiver counts as well.
    Raises ValueError if a window was never written.
    """
    name = query.keys[0]
    with duckdb.connect() as connection:
        connection.register("visible", visible)
        connection.register("closing", closing)
        joined = connection.sql(
            f"SELECT place, first_at FROM closing LEFT JOIN (SELECT {name}, ts, min(shown_ns) first_at FROM visible "
            f"GROUP BY ALL) USING ({name}, ts)").fetchnumpy()
    if np.ma.is_masked(joined["first_at"]):
        raise ValueError(f"{int(np.ma.count_masked(joined['first_at']))} closed windows were never written")
    ticks = np.asarray(joined["place"], np.int64) // rows_per_tick
    return ticks, (np.asarray(joined["first_at"], np.int64) - arrived_ns[ticks]) / 1e6


def row_latencies(visible: pa.Table, source: pa.Table, arrived_ns: npt.NDArray[np.int64], query: Query,
                  rows_per_tick: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Returns for each row its tick, and the ms until a result that counts it was visible (TRIGGER AT_ONCE).

    `visible` has, besides keys and `shown_ns`, the count `c`: the n-th row of a window (in order of arrival) is visible
    with the first write that counts n rows or more. Every row counts, also those that share a write with later ones.
    Raises ValueError if a row was never counted.
    """
    name = query.keys[0]
    key = "tbname" if name == "tn" else "tag"
    with duckdb.connect() as connection:
        connection.register("visible", visible)
        connection.register("source", source)
        joined = connection.sql(
            f"SELECT one.seq, seen.shown FROM (SELECT seq, {key} {name}, ts - ts % {query.width_ms} ts, "
            f"row_number() OVER (PARTITION BY {key}, ts - ts % {query.width_ms} ORDER BY seq) n FROM source) one "
            f"ASOF LEFT JOIN (SELECT {name}, ts, c, min(shown_ns) shown FROM visible GROUP BY ALL) seen "
            f"ON one.{name} = seen.{name} AND one.ts = seen.ts AND one.n <= seen.c").fetchnumpy()
    if np.ma.is_masked(joined["shown"]):
        raise ValueError(f"{int(np.ma.count_masked(joined['shown']))} rows were never counted in a result")
    ticks = np.asarray(joined["seq"], np.int64) // rows_per_tick
    return ticks, (np.asarray(joined["shown"], np.int64) - arrived_ns[ticks]) / 1e6


def rates(rows: int, seconds: float, cpu: float) -> dict[str, Any]:
    """Returns the figures of a throughput: rows per second of the clock and of processors."""
    return {"rows": rows, "seconds": round(seconds, 3), "cpu_seconds": round(cpu, 3),
            "rows_per_second": round(rows / seconds), "rows_per_cpu_second": round(rows / cpu)}
