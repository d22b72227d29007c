"""Compares what the streams wrote with two batch answers: Penstock's own, and pandas' over the original rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd

import penstock

if TYPE_CHECKING:
    from penstock.shell.api.dbapi import Connection

from examples.flights.data import TIME_ZONE, Feed
from examples.shared.replay import vnode_of_children
from examples.shared.verdict import Verdict, compare

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Expectation:
    """What one stream must have written: `aggregates` are pandas' names for the stream's columns.

    `window` empty: groups have none, and count as one that starts at 0.
    """

    stream: str
    result: str
    source: str
    group: str
    window: str
    watermark_hours: float
    aggregates: Mapping[str, tuple[str, str]]
    batch_columns: str
    emits_open_windows: bool = False


EXPECTATIONS = (
    Expectation(
        stream="hourly_departures", result="departures_per_hour", source="flights", group="origin", window="1h",
        watermark_hours=1,
        aggregates={"planned": ("ts", "size"), "departed": ("dep_delay", "count"), "mean_delay": ("dep_delay", "mean")},
        batch_columns="count(*) AS planned, count(dep_delay) AS departed, avg(dep_delay) AS mean_delay",
    ),
    Expectation(
        stream="worst_delays", result="worst_delay_per_day", source="flights", group="carrier", window="1d",
        watermark_hours=1, emits_open_windows=True,
        aggregates={"worst_delay": ("dep_delay", "max"), "flights": ("ts", "size")},
        batch_columns="max(dep_delay) AS worst_delay, count(*) AS flights",
    ),
    Expectation(
        stream="weather_extremes", result="weather_per_day", source="weather", group="station", window="1d",
        watermark_hours=3,
        aggregates={"coldest": ("temp", "min"), "warmest": ("temp", "max"), "windiest": ("wind_speed", "max"),
                    "rain": ("precip", "sum")},
        batch_columns="min(temp) AS coldest, max(temp) AS warmest, max(wind_speed) AS windiest, sum(precip) AS rain",
    ),
    Expectation(
        stream="destinations", result="flights_to", source="flights", group="dest", window="", watermark_hours=0,
        aggregates={"flights": ("ts", "size"), "arrived": ("arr_delay", "count"), "miles": ("distance", "sum")},
        batch_columns="count(*) AS flights, count(arr_delay) AS arrived, sum(distance) AS miles",
        emits_open_windows=True,
    ),
)


def check(expectation: Expectation, feed: Feed, connection: Connection, path: str) -> Verdict:
    """Reads the result table with plain DuckDB and compares it with both batch answers."""
    found = _result_rows(expectation, path)
    wanted = pandas_answer(expectation, feed.frame)
    batch = _batch_answer(expectation, connection)
    must_be_there = _closed_windows(expectation, feed, connection)
    differences = [
        *compare("pandas", wanted, "Penstock's batch query", batch, lambda key: True, TIME_ZONE),
        *compare("the batch answer", wanted, "the stream", found, must_be_there, TIME_ZONE),
    ]
    return Verdict(expectation.stream, len(found), tuple(differences))


def pandas_answer(expectation: Expectation, rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the answer by pandas alone, indexed by (group, window start in ms)."""
    times = pd.to_datetime(rows["ts"], unit="ms", utc=True)
    start = times.dt.floor("h") if expectation.window == "1h" else times.dt.tz_convert(TIME_ZONE).dt.normalize()
    starts = _epoch_ms(start) if expectation.window else pd.Series(0, rows.index)
    keys = [rows[expectation.group].rename("group"), starts.rename("start")]
    named = {name: pd.NamedAgg(column, how) for name, (column, how) in expectation.aggregates.items()}
    return rows.groupby(keys).agg(**named).sort_index()


def _epoch_ms(times: pd.Series[Any]) -> pd.Series[int]:
    return times.dt.tz_convert("UTC").dt.as_unit("ms").astype("int64")


def _result_rows(expectation: Expectation, path: str) -> pd.DataFrame:
    columns, start = ", ".join(expectation.aggregates), "epoch_ms(ts)" if expectation.window else "0"
    with penstock.duckdb(path) as views:
        try:
            rows = views.sql(
                f'SELECT {expectation.group} AS "group", {start} AS start, {columns} FROM nyc.{expectation.result}'
            ).df()
        except duckdb.CatalogException:  # nothing has been written yet
            return pd.DataFrame(columns=["group", "start", *expectation.aggregates]).set_index(["group", "start"])
    return rows.set_index(["group", "start"]).sort_index()


def _batch_answer(expectation: Expectation, connection: Connection) -> pd.DataFrame:
    group, window = expectation.group, expectation.window
    by = f"PARTITION BY {group} INTERVAL({window})" if window else f"GROUP BY {group}"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {'_wstart' if window else 0} AS start, {group} AS `group`, "
                       f"{expectation.batch_columns} FROM nyc.{expectation.source} {by}")
        rows = cursor.fetch_arrow().to_pandas()
    rows["start"] = rows["start"].dt.as_unit("ms").astype("int64") if window else rows["start"].astype("int64")
    return rows.set_index(["group", "start"]).sort_index()


def _closed_windows(
    expectation: Expectation, feed: Feed, connection: Connection
) -> Callable[[tuple[str, int]], bool]:
    """Returns which windows the stream must have written: a closed one ends before every vnode's watermark."""
    if expectation.emits_open_windows:
        return lambda key: True
    vnodes = vnode_of_children(connection, "nyc", expectation.source)
    newest = feed.frame.groupby(feed.frame["tbname"].map(vnodes))["ts"].max()
    watermark = int(newest.min()) - round(expectation.watermark_hours * HOUR_MS)
    return lambda key: _window_end(expectation, key[1]) <= watermark


def _window_end(expectation: Expectation, start: int) -> int:
    if expectation.window == "1h":
        return start + HOUR_MS
    midnight = pd.Timestamp(start, unit="ms", tz="UTC").tz_convert(TIME_ZONE)
    return int((midnight + pd.DateOffset(days=1)).timestamp() * 1000)
