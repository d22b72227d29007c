"""Windows of INTERVAL and SLIDING: the SQL and the Python code agree, and both follow the calendar."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import duckdb
import pytest
from conftest import times
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.common.errors import InvalidStatementError
from penstock.planner.duckdb_sql.duckdb_tree import column, render
from penstock.planner.duckdb_sql.interval_windows import (
    auto_offset,
    check_interval,
    end_of,
    expanded_windows,
    grid_of,
    interval_end,
    interval_start,
    starts_between,
    window_bounds,
)
from penstock.sql.tree.statements import Duration, IntervalWindow
from penstock.sql.types import UNITS_PER_SECOND, Precision

ZONES = ["UTC", "Europe/Berlin", "America/St_Johns", "America/Sao_Paulo", "America/Havana", "Asia/Shanghai",
         "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Kwajalein"]
WINDOWS = [
    IntervalWindow(Duration(10, "s")),
    IntervalWindow(Duration(10, "s"), Duration(3, "s")),
    IntervalWindow(Duration(10, "s"), Duration(7, "s"), Duration(4, "s")),
    IntervalWindow(Duration(24, "h"), None, Duration(5, "h")),
    IntervalWindow(Duration(1, "d")),
    IntervalWindow(Duration(3, "d"), Duration(150, "m")),
    IntervalWindow(Duration(1, "d"), None, Duration(1, "h")),
    IntervalWindow(Duration(1, "d"), None, Duration(30, "m")),
    IntervalWindow(Duration(1, "w"), Duration(1, "d"), Duration(1, "d")),
    IntervalWindow(Duration(1, "n")),
    IntervalWindow(Duration(5, "n"), Duration(30, "d")),
    IntervalWindow(Duration(1, "y"), Duration(3, "n")),
    IntervalWindow(Duration(1, "n"), None, Duration(7, "d")),
]


@pytest.fixture(scope="module")
def connection() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def at(text: str, zone: str = "UTC") -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


# Seconds around changes of the clock (2018 to 2024), days that a zone left out or had twice, and anywhere between 1960
# and 2060.
SECONDS = st.one_of(
    st.integers(-315_000_000, 2_840_000_000),
    st.sampled_from([1711846800, 1729990800, 1541300400, 1550368800, 1710054000, 1728142200, 1162693860]).flatmap(
        lambda t: st.integers(t - 10_000, t + 10_000)),
    st.sampled_from([1325239200, 745848000, -7988400]).flatmap(lambda t: st.integers(t - 200_000, t + 200_000)),
)


@settings(max_examples=times(48, 1200), deadline=None)
@example(1325240400, 0, WINDOWS[6], "Pacific/Apia", "ms", "ts")
@example(745900000, 0, WINDOWS[8], "Pacific/Kwajalein", "us", "k")
@given(SECONDS, st.integers(0, 10**9 - 1), st.sampled_from(WINDOWS), st.sampled_from(ZONES),
       st.sampled_from(["ms", "us", "ns"]), st.sampled_from(["ts", "k", "s", "l"]))
def test_sql_and_python_give_the_same_windows(
    connection: duckdb.DuckDBPyConnection, seconds: int, nanos: int, window: IntervalWindow, zone: str,
    precision: Precision, name: str,
) -> None:
    """Every instant is in the same windows by SQL and by Python, and each of them holds it."""
    unit = UNITS_PER_SECOND[precision]
    ts = seconds * unit + nanos * unit // 10**9
    want = window_bounds(ts, window, precision, zone)
    starts = render(expanded_windows(column(name), window, precision, zone))
    start = render(interval_start(column(name), window, precision, zone))
    end = render(interval_end(column("start"), window, precision, zone))
    got = connection.execute(
        f"SELECT start, {end}, {start} FROM (SELECT {name}, unnest({starts}) AS start "
        f"FROM (SELECT {ts}::BIGINT AS {name})) ORDER BY start"
    ).fetchall()
    assert [(row[0], row[1]) for row in got] == want
    assert got[0][2] == want[-1][0]
    grid = grid_of(window, precision, zone)
    near = starts_between(ts - grid.longest - 4 * grid.day, ts + 1, grid)
    assert want == [(first, last) for first in near if (last := end_of(first, grid)) > ts]
    if window.sliding is None:
        assert len(want) == 1
        following = window_bounds(want[0][1], window, precision, zone)
        assert following[0][0] == want[0][1]


def test_days_follow_the_clock_changes() -> None:
    """A local day lasts 23 hours in spring and 25 in autumn, and begins at local midnight."""
    day = IntervalWindow(Duration(1, "d"))
    for date, hours in (("2024-03-31", 23), ("2024-07-01", 24), ("2024-10-27", 25)):
        start, end = window_bounds(at(f"{date}T12:00", "Europe/Berlin"), day, "ms", "Europe/Berlin")[0]
        assert start == at(f"{date}T00:00", "Europe/Berlin")
        assert end - start == hours * 3_600_000


def test_hours_ignore_the_zone() -> None:
    """An interval of 24h begins at UTC midnight in every zone."""
    start = window_bounds(at("2024-07-01T12:00"), IntervalWindow(Duration(24, "h")), "ms", "Asia/Shanghai")[0][0]
    assert start == at("2024-07-01T00:00")


def test_weeks_begin_on_thursday() -> None:
    """Weeks are blocks of seven local days counted from Thursday, 1970-01-01."""
    start, end = window_bounds(at("2024-07-01T12:00"), IntervalWindow(Duration(1, "w")), "ms", "UTC")[0]
    assert (start, end) == (at("2024-06-27T00:00"), at("2024-07-04T00:00"))


def test_months_are_anchored_in_1900() -> None:
    """Five-month windows are counted from January 1900."""
    start, end = window_bounds(at("2024-07-01T12:00"), IntervalWindow(Duration(5, "n")), "ms", "UTC")[0]
    assert (2024 - 1900) * 12 // 5 * 5 + 5 == (2024 - 1900) * 12 + 2
    assert (start, end) == (at("2024-03-01T00:00"), at("2024-08-01T00:00"))


def test_sliding_windows_start_before_the_first_row() -> None:
    """One instant in interval(1d) sliding(1h) is in 24 windows."""
    window = IntervalWindow(Duration(1, "d"), None, Duration(1, "h"))
    assert len(window_bounds(at("2024-07-01T12:30"), window, "ms", "UTC")) == 24


def test_automatic_offset_starts_a_window_at_the_bound() -> None:
    """With the AUTO offset a window starts at the lower bound of the time range."""
    window = auto_offset(IntervalWindow(Duration(1, "h"), "auto"), at("2024-07-01T12:17"), "ms", "UTC")
    assert window_bounds(at("2024-07-01T13:00"), window, "ms", "UTC")[0][0] == at("2024-07-01T12:17")


@pytest.mark.parametrize(("window", "precision", "code"), [
    (IntervalWindow(Duration(0, "s")), "ms", 0x2615),
    (IntervalWindow(Duration(10, "u")), "ms", 0x2615),
    (IntervalWindow(Duration(1001, "y")), "ms", 0x2615),
    (IntervalWindow(Duration(10, "s"), Duration(10, "s")), "ms", 0x262F),
    (IntervalWindow(Duration(10, "s"), Duration(0, "s")), "ms", 0x262D),
    (IntervalWindow(Duration(10, "n"), Duration(1, "y")), "ms", 0x262E),
    (IntervalWindow(Duration(10, "s"), None, Duration(11, "s")), "ms", 0x2631),
    (IntervalWindow(Duration(1, "n"), None, Duration(1, "n")), "ms", 0x2630),
    (IntervalWindow(Duration(1000, "s"), None, Duration(9, "s")), "ms", 0x2632),
    (IntervalWindow(Duration(1000, "b"), None, Duration(100, "b")), "ns", 0x2632),
])
def test_bad_parameters_have_their_codes(window: IntervalWindow, precision: Precision, code: int) -> None:
    """Each bad interval, offset or slide is refused with its own code."""
    with pytest.raises(InvalidStatementError) as caught:
        check_interval(window, precision)
    assert caught.value.code == code
