"""Compares what the streams wrote with two batch answers: Penstock's own, and pandas' over the rows that are stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd

import penstock

if TYPE_CHECKING:
    from penstock.shell.api.dbapi import Connection

from examples.shared.replay import vnode_of_children
from examples.shared.verdict import Verdict, compare

MINUTE_MS = 60_000
HOUR_MS, DAY_MS = 60 * MINUTE_MS, 1440 * MINUTE_MS
QUARTER_MS, STEP_MS, WATERMARK_MS = 15 * MINUTE_MS, 5 * MINUTE_MS, HOUR_MS
Answer = Callable[[pd.DataFrame], pd.DataFrame]


@dataclass(frozen=True, slots=True)
class Expectation:
    """One stream: its result table, which tag of that says the group, the query over rows, and pandas' answer.

    `closes`: how long after its start a window must be there; None: at once.
    """

    stream: str
    result: str
    group: str
    query: str
    answer: Answer
    closes: int | None = None


def _grouped(rows: pd.DataFrame, group: str, start: pd.Series[int], **aggregates: tuple[str, str]) -> pd.DataFrame:
    named = {name: pd.NamedAgg(column, how) for name, (column, how) in aggregates.items()}
    return rows.groupby([rows[group].rename("group"), start.rename("start")]).agg(**named).sort_index()


def _floor(rows: pd.DataFrame, width: int, offset: int = 0) -> pd.Series[int]:
    return (rows["ts"] - offset) // width * width + offset


def hourly_peaks(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.assign(error=(rows["angle"] - rows["target"]).abs())
    return _grouped(rows, "device", _floor(rows, HOUR_MS), peak=("power", "max"), worst_error=("error", "max"),
                    readings=("ts", "size"))


def daily_peaks(rows: pd.DataFrame) -> pd.DataFrame:
    site = rows.groupby("device")["site"].first()
    hours = hourly_peaks(rows).reset_index().rename(columns={"start": "ts"})
    hours["site"] = hours["group"].map(site)
    return _grouped(hours, "site", _floor(hours, DAY_MS, 5 * HOUR_MS), peak=("peak", "max"), mean_peak=("peak", "mean"),
                    worst_error=("worst_error", "max"), readings=("readings", "sum"))


def quarters(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.assign(sunny=(rows["power"] > 1).astype("int64"))
    shifts = range(0, QUARTER_MS, STEP_MS)
    every = pd.concat([rows.assign(start=_floor(rows, STEP_MS) - shift) for shift in shifts], ignore_index=True)
    return _grouped(every, "site", every["start"], mean_power=("power", "mean"), sunny=("sunny", "sum"),
                    readings=("ts", "size"))


def modes(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.sort_values(["tbname", "ts"])
    changed = (rows["mode"] != rows["mode"].shift()) | (rows["tbname"] != rows["tbname"].shift())
    start = rows["ts"].groupby(changed.cumsum()).transform("min")
    answer = _grouped(rows, "tbname", start, last=("ts", "max"), mode=("mode", "first"), strongest_wind=("wind", "max"),
                      readings=("ts", "size"))
    answer.insert(0, "lasted", answer.pop("last") - answer.index.get_level_values("start"))
    return answer


EXPECTATIONS = (
    Expectation(
        "hourly_peaks", "peaks_per_hour", "device",
        "SELECT _wstart AS start, device AS `group`, max(power) AS peak, max(abs(angle - target)) AS worst_error, "
        "count(*) AS readings FROM solar.trackers PARTITION BY device INTERVAL(1h)", hourly_peaks),
    Expectation(
        "daily_peaks", "peaks_per_day", "site",
        "SELECT _wstart AS start, site AS `group`, max(peak) AS peak, avg(peak) AS mean_peak, "
        "max(worst_error) AS worst_error, sum(readings) AS readings "
        "FROM (SELECT _wstart AS ts, site, device, max(power) AS peak, max(abs(angle - target)) AS worst_error, "
        "count(*) AS readings FROM solar.trackers PARTITION BY site, device INTERVAL(1h)) hours "
        "PARTITION BY site INTERVAL(1d, 5h)", daily_peaks),
    Expectation(
        "quarters", "power_per_quarter", "site",
        "SELECT _wstart AS start, site AS `group`, avg(power) AS mean_power, "
        "sum(CASE WHEN power > 1 THEN 1 ELSE 0 END) AS sunny, count(*) AS readings "
        "FROM solar.trackers PARTITION BY site INTERVAL(15m) SLIDING(5m)", quarters, QUARTER_MS + WATERMARK_MS),
    Expectation(
        "modes", "mode_changes", "name",
        "SELECT _wstart AS start, tbname AS `group`, _wduration AS lasted, first(mode) AS mode, "
        "max(wind) AS strongest_wind, count(*) AS readings "
        "FROM solar.trackers PARTITION BY tbname STATE_WINDOW(CAST(mode AS INT))", modes),
)


def check(expectation: Expectation, rows: pd.DataFrame, connection: Connection, path: str) -> Verdict:
    """Reads the result table with plain DuckDB and compares it with both batch answers; `rows` are those stored."""
    wanted = expectation.answer(rows)
    found = _result_rows(expectation, list(wanted.columns), path)
    batch = _batch_answer(expectation, connection)
    must_be_there = _closed_windows(expectation, rows, connection)
    differences = [
        *compare("pandas", wanted, "Penstock's batch query", batch, lambda key: True, "UTC"),
        *compare("the batch answer", wanted, "the stream", found, must_be_there, "UTC"),
    ]
    return Verdict(expectation.stream, len(found), tuple(differences))


def _result_rows(expectation: Expectation, columns: list[str], path: str) -> pd.DataFrame:
    with penstock.duckdb(path) as views:
        try:
            rows = views.sql(f'SELECT {expectation.group} AS "group", epoch_ms(ts) AS start, {", ".join(columns)} '
                             f"FROM solar.{expectation.result}").df()
        except duckdb.CatalogException:  # nothing has been written yet
            return pd.DataFrame(columns=["group", "start", *columns]).set_index(["group", "start"])
    return rows.set_index(["group", "start"]).sort_index()


def _batch_answer(expectation: Expectation, connection: Connection) -> pd.DataFrame:
    with connection.cursor() as cursor:
        cursor.execute(expectation.query)
        rows = cursor.fetch_arrow().to_pandas()
    rows["start"] = rows["start"].dt.as_unit("ms").astype("int64")
    return rows.set_index(["group", "start"]).sort_index()


def _closed_windows(
    expectation: Expectation, rows: pd.DataFrame, connection: Connection
) -> Callable[[tuple[str, Any]], bool]:
    """Returns which windows the stream must have written: a closed one ends before every vnode's watermark."""
    closes = expectation.closes
    if closes is None:
        return lambda key: True
    vnodes = vnode_of_children(connection, "solar", "trackers")
    newest = int(rows.groupby(rows["tbname"].map(vnodes))["ts"].max().min())
    return lambda key: bool(key[1] + closes <= newest)
