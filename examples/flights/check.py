"""Compares what the streams wrote with two batch answers: Penstock's own, and pandas' over the original rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd

import penstock

if TYPE_CHECKING:
    from penstock.shell.dbapi import Connection

from examples.flights.data import TIME_ZONE, Feed

HOUR_MS = 3_600_000
DIFFERENCES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Expectation:
    """What one stream must have written: `aggregates` are pandas' names for the stream's columns."""

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
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of one stream: its rows, and the differences found, of which there should be none."""

    stream: str
    rows: int
    differences: tuple[str, ...]

    @property
    def matches(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        if self.matches:
            return f"{self.stream}: matches the batch answer ({self.rows} rows)"
        shown = "\n  ".join(self.differences[:DIFFERENCES_SHOWN])
        more = len(self.differences) - DIFFERENCES_SHOWN
        return f"{self.stream}: differs from the batch answer\n  {shown}" + (f"\n  and {more} more" if more > 0 else "")


def check(expectation: Expectation, feed: Feed, connection: Connection, path: str) -> Verdict:
    """Reads the result table with plain DuckDB and compares it with both batch answers."""
    found = _result_rows(expectation, path)
    wanted = pandas_answer(expectation, feed.frame)
    batch = _batch_answer(expectation, connection)
    must_be_there = _closed_windows(expectation, feed, connection)
    differences = [
        *_compare("pandas", wanted, "Penstock's batch query", batch, lambda key: True),
        *_compare("the batch answer", wanted, "the stream", found, must_be_there),
    ]
    return Verdict(expectation.stream, len(found), tuple(differences))


def pandas_answer(expectation: Expectation, rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the answer by pandas alone, indexed by (group, window start in ms)."""
    times = pd.to_datetime(rows["ts"], unit="ms", utc=True)
    start = times.dt.floor("h") if expectation.window == "1h" else times.dt.tz_convert(TIME_ZONE).dt.normalize()
    keys = [rows[expectation.group].rename("group"), _epoch_ms(start).rename("start")]
    named = {name: pd.NamedAgg(column, how) for name, (column, how) in expectation.aggregates.items()}
    return rows.groupby(keys).agg(**named).sort_index()


def _epoch_ms(times: pd.Series[Any]) -> pd.Series[int]:
    return times.dt.tz_convert("UTC").dt.as_unit("ms").astype("int64")


def _result_rows(expectation: Expectation, path: str) -> pd.DataFrame:
    columns = ", ".join(expectation.aggregates)
    with penstock.duckdb(path) as views:
        try:
            rows = views.sql(
                f'SELECT {expectation.group} AS "group", epoch_ms(ts) AS start, {columns} FROM nyc.{expectation.result}'
            ).df()
        except duckdb.CatalogException:  # nothing has been written yet
            return pd.DataFrame(columns=["group", "start", *expectation.aggregates]).set_index(["group", "start"])
    return rows.set_index(["group", "start"]).sort_index()


def _batch_answer(expectation: Expectation, connection: Connection) -> pd.DataFrame:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT _wstart AS start, {expectation.group} AS `group`, {expectation.batch_columns} "
            f"FROM nyc.{expectation.source} PARTITION BY {expectation.group} INTERVAL({expectation.window})"
        )
        rows = cursor.fetch_arrow().to_pandas()
    rows["start"] = rows["start"].dt.as_unit("ms").astype("int64")
    return rows.set_index(["group", "start"]).sort_index()


def _closed_windows(
    expectation: Expectation, feed: Feed, connection: Connection
) -> Callable[[tuple[str, int]], bool]:
    """Returns which windows the stream must have written: a closed one ends before every vnode's watermark."""
    if expectation.emits_open_windows:
        return lambda key: True
    vnodes = _vnode_of_children(expectation.source, connection)
    newest = feed.frame.groupby(feed.frame["tbname"].map(vnodes))["ts"].max()
    watermark = int(newest.min()) - round(expectation.watermark_hours * HOUR_MS)
    return lambda key: _window_end(expectation, key[1]) <= watermark


def _window_end(expectation: Expectation, start: int) -> int:
    if expectation.window == "1h":
        return start + HOUR_MS
    midnight = pd.Timestamp(start, unit="ms", tz="UTC").tz_convert(TIME_ZONE)
    return int((midnight + pd.DateOffset(days=1)).timestamp() * 1000)


def _vnode_of_children(source: str, connection: Connection) -> dict[str, int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, vgroup_id FROM information_schema.ins_tables "
            f"WHERE db_name = 'nyc' AND stable_name = '{source}'"
        )
        return dict(cursor.fetchall())


def _compare(
    left_name: str, left: pd.DataFrame, right_name: str, right: pd.DataFrame, required: Callable[[Any], bool]
) -> list[str]:
    """Returns differences in words; rows of `left` that aren't `required` may be missing from `right`."""
    differences = [f"{right_name} has {_row(key)}, {left_name} has not" for key in right.index.difference(left.index)]
    missing = [key for key in left.index.difference(right.index) if required(key)]
    differences += [f"{left_name} has {_row(key)}, {right_name} has not" for key in missing]
    common = left.index.intersection(right.index)
    for column in left.columns:
        wanted = left.loc[common, column].astype("float64")
        found = right.loc[common, column].astype("float64")
        tolerance = 1e-9 * wanted.abs().clip(lower=1)
        wrong = ~((wanted - found).abs() <= tolerance) & ~(wanted.isna() & found.isna())
        differences += [
            f"{_row(key)}: {column} is {found[key]} by {right_name}, {wanted[key]} by {left_name}"
            for key in common[wrong]
        ]
    return differences


def _row(key: tuple[str, int]) -> str:
    group, start = key
    return f"{group} at {pd.Timestamp(start, unit='ms', tz='UTC').tz_convert(TIME_ZONE):%Y-%m-%d %H:%M}"
