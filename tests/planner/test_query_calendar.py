"""Calendar windows in queries against plain datetimes: days that are short, long or missing, in all units."""

from __future__ import annotations

from calendar import monthrange
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import duckdb
import pytest
from conftest import times
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kits.basics.query_harness import Harness

from penstock.sql.types import INT, UNITS_PER_SECOND, Precision

ZONES = (
    "UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata",
    "America/Sao_Paulo",  # had days without midnight
    "America/Havana",  # has days with two midnights
    "Australia/Lord_Howe",  # turns its clock by half an hour
    "Pacific/Apia",  # had no 30 December 2011
)
# Where clocks change: seconds since the epoch of some hours around which bugs live.
CHANGES = (
    datetime(2024, 3, 31, 1), datetime(2024, 10, 27, 1), datetime(2024, 3, 10, 7), datetime(2024, 11, 3, 6),
    datetime(2018, 11, 4, 3), datetime(2018, 2, 18, 2), datetime(2023, 11, 5, 5), datetime(2011, 12, 30, 10),
    datetime(2024, 4, 6, 15), datetime(2024, 2, 29, 23), datetime(2023, 12, 31, 23), datetime(1969, 12, 31, 23),
)
Days = Callable[[date], tuple[date, date]]


def days_of_weeks(day: date) -> tuple[date, date]:
    start = day - timedelta(days=(day - date(1970, 1, 1)).days % 7)
    return start, start + timedelta(days=7)


def days_of_months(count: int) -> Days:
    def block(day: date) -> tuple[date, date]:
        first = ((day.year - 1900) * 12 + day.month - 1) // count * count
        ends = [divmod(months, 12) for months in (first, first + count)]
        start, end = (date(1900 + years, month + 1, 1) for years, month in ends)
        return start, end
    return block


def months_later(day: date, months: int) -> date:
    years, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    return date(years, month + 1, min(day.day, monthrange(years, month + 1)[1]))


WINDOWS: dict[str, Days] = {
    "interval(1d)": lambda day: (day, day + timedelta(days=1)),
    "interval(1w)": days_of_weeks,
    "interval(1n)": days_of_months(1),
    "interval(5n)": days_of_months(5),
    "interval(1y)": days_of_months(12),
    "interval(3y)": days_of_months(36),
}


def midnight(day: date, zone: str) -> int:
    """Seconds since the epoch; of two midnights the first, of none the moment after the gap."""
    return round(datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).timestamp())


def local_day(seconds: int, zone: str) -> date:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).astimezone(ZoneInfo(zone)).date()


INSTANTS = st.one_of(
    st.integers(int(datetime(1960, 1, 1, tzinfo=UTC).timestamp()), int(datetime(2037, 1, 1, tzinfo=UTC).timestamp())),
    st.builds(lambda change, shift: int(change.replace(tzinfo=UTC).timestamp()) + shift, st.sampled_from(CHANGES),
              st.integers(-100_000, 100_000)))
PRECISIONS: st.SearchStrategy[Precision] = st.sampled_from(["ms", "us", "ns"])


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as opened:
        yield opened


def loaded(instants: set[int], precision: Precision, zone: str, connection: duckdb.DuckDBPyConnection) -> Harness:
    harness = Harness(precision=precision, time_zone=zone, connection=connection)
    harness.create("n", {"v": INT})
    unit = UNITS_PER_SECOND[precision]
    # The last unit of each second: windows must not be cut at whole seconds.
    harness.insert("n", [(seconds * unit + unit - 1, 1) for seconds in instants])
    return harness


@settings(max_examples=times(16, 400), deadline=None)
@given(st.sets(INSTANTS, min_size=1, max_size=6), PRECISIONS, st.sampled_from(ZONES), st.sampled_from(sorted(WINDOWS)))
@example({int(change.replace(tzinfo=UTC).timestamp()) for change in CHANGES}, "ns", "Pacific/Apia", "interval(1d)")
@example({int(change.replace(tzinfo=UTC).timestamp()) for change in CHANGES}, "ms", "America/Havana", "interval(1d)")
@example({int(change.replace(tzinfo=UTC).timestamp()) for change in CHANGES}, "us", "Europe/Berlin", "interval(1w)")
def test_calendar_windows(
    connection: duckdb.DuckDBPyConnection, instants: set[int], precision: Precision, zone: str, window: str
) -> None:
    """Each row is in the window of its local day; windows begin and end at local midnights."""
    unit = UNITS_PER_SECOND[precision]
    counts: Counter[tuple[int, int]] = Counter()
    for seconds in instants:
        first, last = WINDOWS[window](local_day(seconds, zone))
        counts[midnight(first, zone), midnight(last, zone)] += 1
    got = loaded(instants, precision, zone, connection).query(
        f"select _wstart, _wend, _wduration, count(*) from n {window} order by 1")
    assert got == [(start * unit, end * unit, (end - start) * unit, number)
                   for (start, end), number in sorted(counts.items())]


@settings(max_examples=times(6, 150), deadline=None)
@given(INSTANTS, PRECISIONS, st.sampled_from(ZONES), st.sampled_from([1, 2]))
@example(1_325_239_200, "ms", "Pacific/Apia", 1)
def test_sliding_months(
    connection: duckdb.DuckDBPyConnection, seconds: int, precision: Precision, zone: str, months: int
) -> None:
    """Windows of months that slide by a day begin at each midnight from which so many months reach the row."""
    unit = UNITS_PER_SECOND[precision]
    today = local_day(seconds, zone)
    days = (today - timedelta(days=back) for back in range(70))
    days = (day for day in days if local_day(midnight(day, zone), zone) == day)  # Samoa had no 30 December 2011
    expected = {(midnight(day, zone) * unit, midnight(months_later(day, months), zone) * unit) for day in days}
    ts = seconds * unit + unit - 1
    got = loaded({seconds}, precision, zone, connection).query(
        f"select _wstart, _wend, count(*) from n interval({months}n) sliding(1d)")
    assert {(start, end) for start, end, _ in got} == {(s, e) for s, e in expected if s <= ts < e}


@settings(max_examples=times(6, 150), deadline=None)
@given(INSTANTS, st.integers(1, 400), PRECISIONS, st.sampled_from(ZONES),
       st.sampled_from(["interval(1d)", "interval(1w)", "interval(1n)"]))
def test_filled_windows_leave_no_gap(
    connection: duckdb.DuckDBPyConnection, seconds: int, days: int, precision: Precision, zone: str, window: str
) -> None:
    """FILL's windows follow each other from the first to the last instant, also over changes of the clock."""
    unit, last = UNITS_PER_SECOND[precision], seconds + days * 86_400
    got = loaded({seconds}, precision, zone, connection).query(
        f"select _wstart, _wend, count(*) from n where ts >= {seconds * unit} and ts <= {last * unit} "
        f"{window} fill(value, 0)")
    first_day, last_day = local_day(seconds, zone), local_day(last, zone)
    starts = sorted({midnight(WINDOWS[window](first_day + timedelta(days=n))[0], zone)
                     for n in range((last_day - first_day).days + 1)})
    assert [row[0] for row in got] == [start * unit for start in starts]
    assert [row[1] for row in got[:-1]] == [row[0] for row in got[1:]]
    assert sum(row[2] for row in got if isinstance(row[2], int)) == 1
