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


# --- idle vnodes -----------------------------------------------------------------------------------------------------

IDLE_COUNTS = "SELECT _wstart, count(*) AS n FROM meters INTERVAL(3m)"


def children_on(kit: StreamKit, vgroup: int) -> list[int]:
    """Returns the tables of a vnode, by their numbers."""
    return [n for n, child in enumerate(kit.catalog.child_list) if child.vgroup_id == vgroup]


def late_rows(kit: StreamKit) -> int:
    return sum(status.late_rows for status in kit.stream.statuses())


def test_the_last_window_closes_by_the_clock_when_all_is_idle(kit: Kit) -> None:
    """3-minute windows, idle after 1 minute: no close while the source is idle inside of the window, but at its end."""
    stream = kit("IDLE_TIMEOUT 1m CLOSE_WHEN_IDLE 1", IDLE_COUNTS)
    put(stream, (0, 0))
    at(stream, 1)
    put(stream, (0, 1))
    at(stream, 2.9)
    assert counts(stream) == {}
    at(stream, 4)
    assert counts(stream) == {0: 2}


def test_a_window_that_is_over_closes_only_after_the_idle_timeout(kit: Kit) -> None:
    """Where the timeout is longer than what is left of the window, the timeout counts."""
    stream = kit("IDLE_TIMEOUT 10m CLOSE_WHEN_IDLE 1", IDLE_COUNTS)
    put(stream, (0, 2))
    at(stream, 9)
    assert counts(stream) == {}
    at(stream, 10)
    assert counts(stream) == {0: 1}


def test_without_close_when_idle_the_last_window_stays_open(kit: Kit) -> None:
    """TDengine's way stays the default: time doesn't go on by the clock."""
    stream = kit("IDLE_TIMEOUT 1m", IDLE_COUNTS)
    put(stream, (0, 2))
    at(stream, 600)
    assert counts(stream) == {}


def test_the_task_asks_to_be_woken_when_the_clock_closes_a_window(kit: Kit) -> None:
    """Nothing polls: the deadline of an idle stream is the end of its window."""
    stream = kit("IDLE_TIMEOUT 1m CLOSE_WHEN_IDLE 1", IDLE_COUNTS)
    put(stream, (0, 0.5))
    at(stream, 1)
    agg = next(task for task in stream.tasks if task.id.level == "agg")
    deadline = agg.next_deadline()
    assert deadline is not None
    stream.pass_time(deadline - stream.clock.monotonic() - 0.001)
    assert counts(stream) == {}
    stream.pass_time(0.001)
    assert counts(stream) == {0: 1}
    assert agg.next_deadline() is None


@pytest.mark.parametrize("query", [
    "SELECT _wstart, count(*) AS n FROM meters SESSION(ts, 1m)",
    "SELECT _wstart, count(*) AS n FROM meters PARTITION BY tbname INTERVAL(3m)",
])
def test_other_windows_close_by_the_clock_too(kit: Kit, query: str) -> None:
    """Sessions end a gap after their last row; streams per table have a vnode's own time."""
    stream = kit("IDLE_TIMEOUT 10s CLOSE_WHEN_IDLE 1", query, vnodes=2)
    put(stream, (0, 0))
    at(stream, 0.9)
    assert counts(stream) == {}
    at(stream, 3)
    assert counts(stream) == {0: 1}


def test_a_vnode_that_was_never_written_holds_nothing_back(kit: Kit) -> None:
    """Fault 20: one of three vnodes never gets a row; windows close once it counts as idle."""
    stream = kit("IDLE_TIMEOUT 1m", IDLE_COUNTS, vnodes=3, tables=9)
    active = [children_on(stream, 1)[0], children_on(stream, 2)[0]]
    put(stream, *((table, 0) for table in active))
    put(stream, *((table, 4) for table in active))
    assert counts(stream) == {}
    at(stream, 0.5)
    put(stream, *((table, 4.5) for table in active))
    at(stream, 1)
    assert counts(stream) == {0: 2}


def test_a_vnode_that_stops_lets_the_others_go_on(kit: Kit) -> None:
    """Fault 20: a vnode stops; after the timeout the others' windows close without it."""
    stream = kit("IDLE_TIMEOUT 1m", IDLE_COUNTS, vnodes=2, tables=6)
    first, second = children_on(stream, 1)[0], children_on(stream, 2)[0]
    put(stream, (first, 0), (second, 0))
    put(stream, (first, 4))
    assert counts(stream) == {}
    at(stream, 0.5)
    put(stream, (first, 4.5))
    at(stream, 1)
    assert counts(stream) == {0: 2}
    idle = [status.idle for status in stream.stream.statuses() if status.task.level == "source"]
    assert idle == [False, True]


def test_an_idle_vnode_that_wakes_with_old_rows_is_judged_by_its_own_times(kit: Kit) -> None:
    """Fault 20: rows that are newer than their vnode's newest count, also in closed windows; older ones are late."""
    stream = kit("IDLE_TIMEOUT 1m", IDLE_COUNTS, vnodes=2, tables=6)
    first, second = children_on(stream, 1)[0], children_on(stream, 2)[0]
    put(stream, (first, 0), (second, 4))
    put(stream, (first, 13))
    at(stream, 1)
    put(stream, (first, 13.5))
    assert counts(stream) == {0: 1, 3: 1}
    put(stream, (second, 5))
    put(stream, (second, 1))
    assert counts(stream) == {0: 1, 3: 2}
    assert late_rows(stream) == 1


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_restart_changes_nothing_that_the_clock_decided(kit: Kit, checkpoint: bool) -> None:
    """Windows that the clock closed stay as they are when tasks start again, with or without a checkpoint since."""
    stream = kit("IDLE_TIMEOUT 1m CLOSE_WHEN_IDLE 1", IDLE_COUNTS, vnodes=2, tables=6)
    first, second = children_on(stream, 1)[0], children_on(stream, 2)[0]
    put(stream, (first, 1), (second, 2))
    stream.checkpoint()
    at(stream, 5)
    assert counts(stream) == {0: 2}
    if checkpoint:
        stream.checkpoint()
    stream.kill()
    put(stream, (first, 2))
    at(stream, 10)
    assert counts(stream) == {0: 3}
    put(stream, (first, 7), (second, 7))
    at(stream, 30)
    assert counts(stream) == {0: 3, 6: 2}


def test_steps_of_the_wall_clock_change_nothing(kit: Kit) -> None:
    """Fault 21: idleness goes by the monotonic clock, so an NTP step of an hour either way closes nothing."""
    stream = kit("IDLE_TIMEOUT 1m CLOSE_WHEN_IDLE 1", IDLE_COUNTS)
    put(stream, (0, 0))
    for step in (HOUR, -2 * HOUR, HOUR):
        stream.clock.step_wall(step)
        stream.run()
        assert counts(stream) == {}
    stream.pass_time(180)
    assert counts(stream) == {0: 1}


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "query", "message"), [
    ("ALLOWED_LATENESS 1m", "SELECT ts, voltage FROM meters PARTITION BY tbname", "ALLOWED_LATENESS is not for"),
    ("TRIGGER FORCE_WINDOW_CLOSE ALLOWED_LATENESS 1m",
     "SELECT _wstart, count(*) FROM meters PARTITION BY tbname INTERVAL(1m)", "not for FORCE_WINDOW_CLOSE"),
    ("CLOSE_WHEN_IDLE 1", "SELECT ts, voltage FROM meters PARTITION BY tbname", "CLOSE_WHEN_IDLE is not for"),
    ("TIMEZONE 'Mars/Olympus'", COUNTS, "is not a time zone"),
])
def test_options_that_make_no_sense_are_refused(options: str, query: str, message: str) -> None:
    """Each option about time is checked against the stream when it is created."""
    with pytest.raises(InvalidStreamError, match=message):
        plan_of(options, query)
