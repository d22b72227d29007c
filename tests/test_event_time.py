"""Event time on a virtual clock: when windows close, what is late, and what is shown of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stream_kit import Catalog, StreamKit

from penstock.common.errors import InvalidStreamError
from penstock.planner.stream_planner import plan_stream
from penstock.sql.parser import parse_one
from penstock.sql.schema import Session
from penstock.sql.statements import CreateStream

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
NOON = 19_000 * DAY + 12 * HOUR

Kit = Callable[..., StreamKit]


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    """Makes streams over `meters`, their virtual clock at noon."""
    made: list[StreamKit] = []

    def make(options: str, query: str, **more: Any) -> StreamKit:
        stream = StreamKit(tmp_path / str(len(made)), f"CREATE STREAM s {options} INTO o AS {query}", **more)
        stream.clock.step_wall(NOON - stream.clock.now_ms())
        made.append(stream)
        return stream

    yield make
    for stream in made:
        stream.close()


def at(kit: StreamKit, minutes: float) -> None:
    """Lets the clock go on until so many minutes after noon."""
    kit.pass_time((NOON + minutes * MINUTE - kit.clock.now_ms()) / 1000)


def put(kit: StreamKit, *rows: tuple[int, float]) -> None:
    """Inserts rows (table, minutes after noon) and lets the stream work."""
    kit.insert([(table, NOON + round(minutes * MINUTE), 1) for table, minutes in rows], columns=("voltage",))
    kit.run()


def counts(kit: StreamKit) -> dict[float, int]:
    """Returns the count of each window that was written, by its start in minutes after noon."""
    time, count = (column.name for column in kit.plan.sink.columns[:2])
    return {(row[time].timestamp() * 1000 - NOON) / MINUTE: row[count] for row in kit.rows()}


def open_windows(kit: StreamKit) -> int:
    return sum(status.windows_open or 0 for status in kit.stream.statuses())


def plan_of(options: str, query: str = "SELECT _wstart, count(*) FROM meters INTERVAL(5m)") -> Any:
    statement = parse_one(f"CREATE STREAM s {options} INTO o AS {query}")
    assert isinstance(statement, CreateStream)
    return plan_stream(statement, Catalog(1, 4), Session("p", "UTC", 0))


COUNTS = "SELECT _wstart, count(*) AS n FROM meters INTERVAL(5m)"


# --- ALLOWED_LATENESS ------------------------------------------------------------------------------------------------


def test_a_window_stays_open_for_the_allowed_lateness(kit: Kit) -> None:
    """With 2 minutes both windows of 5 are open from watermark 12:05 on, and the first one closes at 12:07."""
    stream = kit("ALLOWED_LATENESS 2m", COUNTS)
    seen = []
    for minutes in (0, 3, 4, 5, 6, 7):
        put(stream, (0, minutes))
        closed = len(counts(stream))
        starts = {minute // 5 for minute in (0, 3, 4, 5, 6, 7) if minute <= minutes}
        seen.append((minutes, len(starts) - closed, closed))
    assert seen == [(0, 1, 0), (3, 1, 0), (4, 1, 0), (5, 2, 0), (6, 2, 0), (7, 1, 1)]
    assert counts(stream) == {0: 3}


def test_rows_within_the_allowed_lateness_count_and_later_ones_are_late(kit: Kit) -> None:
    """A row for a window that time has passed counts as long as the window is kept open, not after that."""
    stream = kit("ALLOWED_LATENESS 2m", COUNTS)
    put(stream, (0, 0))
    put(stream, (0, 6.9))
    put(stream, (0, 1))
    put(stream, (0, 7))
    put(stream, (0, 2))
    assert counts(stream) == {0: 2}
    assert sum(status.late_rows for status in stream.stream.statuses()) == 1


def test_sessions_close_later_by_the_allowed_lateness(kit: Kit) -> None:
    """Windows that rows define wait as well."""
    stream = kit("ALLOWED_LATENESS 2m", "SELECT _wstart, count(*) AS n FROM meters SESSION(ts, 1m)")
    put(stream, (0, 0))
    put(stream, (0, 2))
    assert counts(stream) == {}
    put(stream, (0, 2.5))
    assert counts(stream) == {0: 1}


# --- TIMEZONE --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("day", "hours"), [("2024-03-31", 23), ("2024-10-27", 25), ("2024-06-01", 24)])
def test_days_follow_the_zone_of_the_stream(kit: Kit, day: str, hours: int) -> None:
    """Days of a stream with TIMEZONE begin at local midnight and last 23 or 25 hours where the clock is changed."""
    import datetime
    from zoneinfo import ZoneInfo

    midnight = datetime.datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("Europe/Berlin"))
    first = int(midnight.timestamp() * 1000)
    stream = kit("TIMEZONE 'Europe/Berlin'", "SELECT _wstart, count(*) AS n, _wduration AS d FROM meters INTERVAL(1d)")
    stream.insert([(0, first - 1, 1), (0, first, 1), (0, first + hours * HOUR - 1, 1), (0, first + hours * HOUR, 1)],
                  columns=("voltage",))
    stream.run()
    rows = {int(row["_wstart"].timestamp() * 1000): (row["n"], row["d"]) for row in stream.rows()}
    assert rows[first] == (2, hours * HOUR)
    assert len(rows) == 2


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "query", "message"), [
    ("ALLOWED_LATENESS 1m", "SELECT ts, voltage FROM meters PARTITION BY tbname", "ALLOWED_LATENESS is not for"),
    ("TRIGGER FORCE_WINDOW_CLOSE ALLOWED_LATENESS 1m",
     "SELECT _wstart, count(*) FROM meters PARTITION BY tbname INTERVAL(1m)", "not for FORCE_WINDOW_CLOSE"),
    ("TIMEZONE 'Mars/Olympus'", COUNTS, "is not a time zone"),
])
def test_options_that_make_no_sense_are_refused(options: str, query: str, message: str) -> None:
    """Each option about time is checked against the stream when it is created."""
    with pytest.raises(InvalidStreamError, match=message):
        plan_of(options, query)
