"""Event time on a virtual clock: when windows close, what is late, and what is shown of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.streams.stream_kit import Catalog, StreamKit

from penstock.common.errors import InvalidStreamError
from penstock.mnode.show.lateness_text import histogram_text, suggestion
from penstock.planner.streams.stream_planner import plan_stream
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session
from penstock.sql.tree.statements import CreateStream
from penstock.tasks.compute.lateness import ClassifiedRows
from penstock.tasks.dropped.time_ledger import TimeLedger
from penstock.tasks.protocol.deployment import TaskSettings
from penstock.tasks.protocol.task_status import Lateness, LeadingRow
from penstock.tasks.source.writer_times import WriterTimes
from penstock.tasks.window.agg_task import AggTask
from penstock.tasks.worker.runner import drive_once
from penstock.wal.record import TimeMarkRecord

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
    """Returns how many windows are open in all agg tasks; what is kept of closed ones doesn't count."""
    return sum(len(task._open) for task in kit.tasks if isinstance(task, AggTask))


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
        seen.append((minutes, open_windows(stream), len(counts(stream))))
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
    assert sum(status.late.late_rows for status in stream.stream.statuses()) == 1


def test_sessions_close_later_by_the_allowed_lateness(kit: Kit) -> None:
    """Windows that rows define wait as well."""
    stream = kit("ALLOWED_LATENESS 2m", "SELECT _wstart, count(*) AS n FROM meters SESSION(ts, 1m)")
    put(stream, (0, 0))
    put(stream, (0, 2))
    assert counts(stream) == {}
    put(stream, (0, 2.5))
    assert counts(stream) == {0: 1}


# --- TIME ------------------------------------------------------------------------------------------------------------

ARRIVALS = ((0, 0), (1, 3), (2, 5), (1, 6), (6, 7))  # (event time, processing time) in minutes


@pytest.mark.parametrize(("options", "closing", "first_window"), [
    ("", 7, 4), ("TIME PROCESSING", 5, 2), ("TIME INGESTION", 5, 2)])
def test_windows_by_event_time_and_by_arrival(kit: Kit, options: str, closing: float, first_window: int) -> None:
    """By arrival the first window of 5 minutes has two rows; by event time four, and closes when 12:06 arrives."""
    stream = kit(options, COUNTS)
    seen = {}
    for table, (event, arrival) in enumerate(ARRIVALS):
        at(stream, arrival)
        put(stream, (table % 4, event))
        seen[arrival] = counts(stream)
    assert next(arrival for arrival, windows in seen.items() if 0 in windows) == closing
    assert seen[7][0] == first_window


def test_windows_by_arrival_close_by_the_clock(kit: Kit) -> None:
    """Nothing has to arrive for a window by arrival to close, on any vnode."""
    stream = kit("TIME INGESTION", COUNTS, vnodes=3)
    at(stream, 1)
    put(stream, (0, -100), (1, -200))
    at(stream, 4.9)
    assert counts(stream) == {}
    source = next(task for task in stream.tasks if task.id.operator == "source")
    deadline = source.next_deadline()
    assert deadline is not None
    stream.pass_time(deadline - stream.clock.monotonic())
    assert counts(stream) == {0: 2}


def test_ingestion_is_a_function_of_the_log(kit: Kit) -> None:
    """Tasks that start again long after put each row where it had been; by processing time it would be elsewhere."""
    streams = [kit(f"TIME {clock}", COUNTS) for clock in ("INGESTION", "PROCESSING")]
    for stream in streams:
        at(stream, 1)
        put(stream, (0, 0))
        stream.checkpoint()
        at(stream, 6)
        put(stream, (0, 1), (0, 2))
        stream.kill()
        at(stream, 20)
        at(stream, 25)
    assert [counts(stream) for stream in streams] == [{0: 1, 5: 2}, {0: 1, 20: 2}]


def test_time_of_arrival_never_goes_back(kit: Kit) -> None:
    """Fault 21: while the clock is an hour behind, rows belong to the newest window."""
    stream = kit("TIME INGESTION", COUNTS)
    at(stream, 6)
    put(stream, (0, 0))
    stream.clock.step_wall(-HOUR)
    put(stream, (0, 1))
    stream.clock.step_wall(HOUR)
    at(stream, 10)
    assert counts(stream) == {5: 2}


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
    return sum(status.late.late_rows for status in kit.stream.statuses())


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
    agg = next(task for task in stream.tasks if task.id.operator == "agg")
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
    idle = [status.time.idle for status in stream.stream.statuses() if status.task.operator == "source"]
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


# --- MAX_SKEW --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "checkpoint", "least", "most"), [
    ("MAX_SKEW 1m", None, 5, 20), ("MAX_SKEW 1m", 1_000, 5, 200), ("", None, 250, 300)])
def test_a_fast_vnode_waits_for_a_slow_one(
    kit: Kit, options: str, checkpoint: int | None, least: int, most: int
) -> None:
    """With one vnode throttled, MAX_SKEW keeps few windows open; without it hundreds are. No row is lost either way.

    A checkpoint takes in what is in the queues already, which are bounded too, and it doesn't wait for the slow vnode's
    rows behind its barrier.
    """
    settings = TaskSettings(queue_bytes=8_192, block_rows_max=20, block_bytes_max=4_096, sink_bytes_per_second=0,
                            sink_calls_per_second=0, state_map_bytes=1 << 26)
    stream = kit(options, "SELECT _wstart, count(*) AS n FROM meters PARTITION BY site INTERVAL(10s)", vnodes=2,
                 tables=8, settings=settings)
    first, second = children_on(stream, 1)[0], children_on(stream, 2)[0]
    rows = 3_000
    for start in range(0, rows, 10):
        stream.insert([(table, NOON + second_ * 1000, 1) for second_ in range(start, start + 10)
                       for table in (first, second)], columns=("voltage",))
    slow = next(task for task in stream.tasks if task.id.operator == "source" and task.id.index == 1)
    open_most = 0
    for turn in itertools.count():
        tasks = [task for task in stream.tasks if task is not slow or turn % 50 == 0]
        moved = drive_once(tasks, stream.stream.links)
        open_most = max(open_most, open_windows(stream))
        if turn == checkpoint:
            stream.checkpoint_amid()
        if not moved and turn % 50 == 0:
            break
    stream.run()
    total = sum(row["n"] for row in stream.rows())
    assert total == 2 * (rows - 10)
    assert late_rows(stream) == 0
    assert least <= open_most <= most


# --- rows from the future ------------------------------------------------------------------------------------------

YEAR_2262 = 9_214_646_400_000


def left_out(kit: StreamKit) -> list[tuple[int, str, int]]:
    """Returns (minutes after noon, reason, how many minutes late) of the rows left out."""
    return [((row.ts - NOON) // MINUTE, row.reason, row.lateness // MINUTE)
            for status in kit.stream.statuses() for row in status.dropped or ()]


@pytest.mark.parametrize("query", [
    IDLE_COUNTS,
    "SELECT _wstart, count(*) AS n FROM meters PARTITION BY tbname INTERVAL(3m)",
    "SELECT _wstart, count(*) AS n FROM meters SESSION(ts, 1m)",
])
def test_a_row_from_2262_moves_nothing(kit: Kit, query: str) -> None:
    """Fault 19: by default a row from another century is left out and counted, and all others count as before."""
    stream = kit("", query)
    put(stream, (0, 0))
    stream.insert([(0, YEAR_2262, 1), (0, NOON + 1000, 1)], columns=("voltage",))
    put(stream, (0, 1), (1, 1))
    put(stream, (0, 1.5))
    put(stream, (0, 5), (1, 5))
    put(stream, (0, 12), (1, 12))
    expected = {row[0]: row[1] for row in ((0, 5), (3, 2))} if "SESSION" not in query else {0: 5, 5: 2}
    if "tbname" in query:
        assert sum(row["n"] for row in stream.rows()) == 7
    else:
        assert counts(stream) == expected
    assert late_rows(stream) == 0
    assert [reason for _, reason, _ in left_out(stream)] == ["future"]
    assert sum(status.late.future_rows for status in stream.stream.statuses()) == 1


def test_max_future_is_measured_from_the_ingestion(kit: Kit) -> None:
    """A replay gives the same verdict, since it is the WAL record's time that counts, not the clock's."""
    stream = kit("MAX_FUTURE 10m", IDLE_COUNTS)
    stream.checkpoint()
    put(stream, (0, 0), (0, 9), (0, 11))
    assert counts(stream) == {0: 1}
    at(stream, 60)
    stream.kill()
    stream.run()
    assert counts(stream) == {0: 1}
    assert left_out(stream) == [(11, "future", -1)]


def test_rows_from_the_future_stay_out_of_recalculated_windows(kit: Kit) -> None:
    """What is left out is left out everywhere, until the row is written again when its time has come."""
    stream = kit("MAX_FUTURE 1m", IDLE_COUNTS)
    put(stream, (0, 0), (0, 4), (1, 0))
    at(stream, 4)
    put(stream, (0, 3), (1, 3))
    put(stream, (1, 3))
    put(stream, (0, 4))
    at(stream, 7)
    put(stream, (0, 7), (1, 7))
    assert counts(stream) == {0: 2, 3: 3}


def test_a_lagging_table_isn_t_late_because_of_its_row_from_the_future(kit: Kit) -> None:
    """A table's own newest row decides whether its rows are late; one from the future isn't that."""
    stream = kit("", IDLE_COUNTS)
    stream.insert([(0, NOON, 1), (0, YEAR_2262, 1), (1, NOON + 10 * MINUTE, 1)], columns=("voltage",))
    put(stream, (0, 1))
    put(stream, (0, 0.5))
    put(stream, (0, 5))
    put(stream, (0, 2))
    assert counts(stream) == {0: 3, 3: 1}
    assert late_rows(stream) == 1


def test_rows_of_1970_are_late_and_counted(kit: Kit) -> None:
    """Fault 19: a row from 1970 of a table that has newer ones changes nothing but the count."""
    stream = kit("", IDLE_COUNTS)
    put(stream, (0, 0))
    put(stream, (0, 4))
    stream.insert([(0, 0, 1)], columns=("voltage",))
    stream.run()
    assert counts(stream) == {0: 1}
    assert [reason for _, reason, _ in left_out(stream)] == ["late"]


def leading(kit: StreamKit) -> LeadingRow | None:
    """Returns what is told of the row that makes others late, of the first vnode."""
    return next(status.late.leading for status in kit.stream.statuses() if status.task.operator == "source")


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_row_that_silences_all_others_is_told_as_are_they(kit: Kit, checkpoint: bool) -> None:
    """Within MAX_FUTURE a row moves time. Who did it is known, also after a restart, until the clock has come there."""
    stream = kit("MAX_FUTURE 1d", IDLE_COUNTS)
    put(stream, (0, 0))
    assert leading(stream) is None
    at(stream, 1)
    put(stream, (0, 60))
    for minute in (2, 3, 4):
        at(stream, minute)
        put(stream, (0, minute))
    if checkpoint:
        stream.checkpoint()
    stream.kill()
    stream.run()
    found = leading(stream)
    assert found is not None
    tuid = stream.catalog.child_list[0].uid
    assert found == LeadingRow(tuid, NOON + 60 * MINUTE, NOON + MINUTE, True, 3, 0, tuid, 1)
    at(stream, 61)
    put(stream, (0, 61))
    assert leading(stream) is None


def test_a_table_that_is_silenced_is_told_while_others_count(kit: Kit) -> None:
    """A table with newer rows of its own is late as a whole; the others' rows are newer than theirs before."""
    stream = kit("", IDLE_COUNTS)
    put(stream, (0, 0), (1, 0), (2, 0))
    at(stream, 1)
    put(stream, (0, 60))
    at(stream, 2)
    put(stream, (0, 2), (1, 2), (2, 2))
    put(stream, (0, 3), (1, 5), (2, 3))
    put(stream, (1, 1))
    found = leading(stream)
    assert found is not None
    assert (found.ahead, found.late, found.timely, found.silent) == (True, 3, 4, 2)
    put(stream, (1, 6))
    found = leading(stream)
    assert found is not None
    assert (found.silent_tuid, found.silent) == (stream.catalog.child_list[0].uid, 1)


def test_disorder_leads_nobody(kit: Kit) -> None:
    """Rows that are late for once are no case: the next one that is newer is the one that others are compared with."""
    stream = kit("", IDLE_COUNTS)
    put(stream, (0, 0))
    put(stream, (0, 4))
    put(stream, (0, 1))
    found = leading(stream)
    assert found is not None
    assert (found.ahead, found.late, found.timely) == (True, 1, 0)
    at(stream, 5)
    put(stream, (0, 5))
    assert leading(stream) is None


def test_by_default_a_day_is_the_bound() -> None:
    """What nobody said anything of is protected."""
    assert plan_of("").policies.time.max_future == DAY
    assert plan_of("MAX_FUTURE 0s").policies.time.max_future is None


def test_history_from_the_future_is_left_out(kit: Kit) -> None:
    """FILL_HISTORY doesn't take a row that is newer than the stream can have for the time."""
    def before(kit: StreamKit) -> None:
        kit.insert([(0, NOON, 1), (0, NOON + MINUTE, 1), (1, YEAR_2262, 1)], columns=("voltage",))

    stream = kit("FILL_HISTORY 1", IDLE_COUNTS, before=before, now_ms=NOON)
    stream.run()
    assert counts(stream) == {}
    put(stream, (0, 3))
    assert counts(stream) == {0: 2}
    assert sum(status.late.future_rows for status in stream.stream.statuses()) == 1


# --- WATERMARK FROM WRITERS ------------------------------------------------------------------------------------------


def note(kit: StreamKit, writer: str, minutes: float) -> None:
    """Puts a writer's promise into all logs, as NOTE TIME does."""
    for vnode in kit.vnodes.values():
        vnode.writer.write_time_mark(writer, NOON + round(minutes * MINUTE))
    kit.run()


def test_time_is_the_least_that_live_writers_have_noted(kit: Kit) -> None:
    """Rows don't move time, notes do: windows close when the slowest writer has passed their end, on every vnode."""
    stream = kit("WATERMARK FROM WRITERS", IDLE_COUNTS, vnodes=3, tables=6)
    put(stream, (0, 0), (1, 1), (2, 50))
    note(stream, "a", 40)
    assert counts(stream) == {0: 2}
    note(stream, "b", 2)
    put(stream, (3, 45))
    note(stream, "a", 60)
    assert counts(stream) == {0: 2}
    note(stream, "b", 49)
    assert counts(stream) == {0: 2, 45: 1}
    sources = [status for status in stream.stream.statuses() if status.task.operator == "source"]
    assert {status.time.watermark for status in sources} == {NOON + 49 * MINUTE}
    assert {status.time.upper_bound for status in sources} == {NOON + 60 * MINUTE}


def test_rows_are_late_by_what_was_noted_before_them(kit: Kit) -> None:
    """A row that is older than its writer's promise is late if its table had newer windows; others never are."""
    stream = kit("WATERMARK FROM WRITERS", IDLE_COUNTS)
    put(stream, (0, 100))
    put(stream, (0, 1), (1, 2))
    note(stream, "a", 10)
    put(stream, (0, 2))
    put(stream, (0, 11))
    assert counts(stream) == {0: 2}
    assert left_out(stream) == [(2, "late", 8)]


def test_a_writer_that_is_silent_is_left_out(kit: Kit) -> None:
    """After WRITER_TIMEOUT the others' notes count alone, also when nothing is written any more."""
    stream = kit("WATERMARK FROM WRITERS WRITER_TIMEOUT 30s IDLE_TIMEOUT 1h", IDLE_COUNTS)
    put(stream, (0, 0))
    note(stream, "slow", 1)
    note(stream, "fast", 9)
    at(stream, 0.4)
    note(stream, "fast", 10)
    assert counts(stream) == {}
    source = next(task for task in stream.tasks if task.id.operator == "source")
    deadline = source.next_deadline()
    assert deadline is not None
    stream.pass_time(deadline - stream.clock.monotonic())
    assert counts(stream) == {0: 1}


def test_writers_survive_a_restart(kit: Kit) -> None:
    """What was noted is part of the checkpoint, and a replay judges as before."""
    stream = kit("WATERMARK FROM WRITERS", IDLE_COUNTS)
    put(stream, (0, 0))
    note(stream, "a", 2)
    note(stream, "b", 30)
    stream.checkpoint()
    put(stream, (0, 20))
    note(stream, "a", 10)
    put(stream, (0, 1))
    before = counts(stream), left_out(stream)
    stream.kill()
    stream.run()
    assert (counts(stream), left_out(stream)) == before == ({0: 1}, [(1, "late", 9)])


def test_silent_writers_stop_time() -> None:
    """When none is heard of, time stands still; a promise that goes back is none."""
    times = WriterTimes(1_000, 1)
    assert times.advance(5) is None
    times.note(TimeMarkRecord(1, 10, "a", 100))
    times.note(TimeMarkRecord(2, 20, "a", 50))
    assert (times.lower, times.upper) == (100, 100)
    times.note(TimeMarkRecord(3, 30, "b", 60))
    assert times.lower == 100
    times.note(TimeMarkRecord(4, 40, "b", 300))
    assert times.advance(1_020) == 100
    assert times.advance(1_021) == 300
    assert times.advance(9_999) == 300


# --- what is counted -------------------------------------------------------------------------------------------------


def test_lateness_is_counted_row_by_row(kit: Kit) -> None:
    """The histogram has every row, each against what its vnode had seen before its record."""
    stream = kit("IGNORE EXPIRED 0", IDLE_COUNTS)
    put(stream, (0, 0))
    put(stream, (0, 10))
    put(stream, *((0, minutes / 100) for minutes in range(1, 11)))
    put(stream, *((1, 10 + minutes / 100) for minutes in range(1, 989)))
    (lateness,) = (status.late.lateness for status in stream.stream.statuses() if status.task.operator == "source")
    assert lateness.rows == 1000
    assert sum(count for _, count in lateness.late) == 10
    assert 9.9 * MINUTE <= lateness.quantile(1) <= 10 * MINUTE * 1.13
    assert lateness.quantile(0.99) == 0
    assert lateness.quantile(0.9911) > 9 * MINUTE


def test_rows_for_closed_windows_are_counted(kit: Kit) -> None:
    """A row that changes the result of a closed window is counted by the agg task."""
    stream = kit("IGNORE EXPIRED 0", IDLE_COUNTS)
    put(stream, (0, 0))
    put(stream, (0, 4))
    put(stream, (0, 1), (1, 1))
    assert counts(stream) == {0: 3}
    kept = [status.late.late_kept for status in stream.stream.statuses() if status.task.operator == "agg"]
    assert kept == [((0, 2),)]


def test_the_sample_and_the_counts_survive_a_restart(kit: Kit) -> None:
    """What is shown of rows left out comes back with the checkpoint, and is not counted twice by a replay."""
    stream = kit("", IDLE_COUNTS)
    put(stream, (0, 0))
    put(stream, (0, 9))
    put(stream, (0, 1))
    stream.checkpoint()
    put(stream, (0, 2))
    before = left_out(stream), late_rows(stream), [status.late.lateness for status in stream.stream.statuses()]
    assert before[0] == [(1, "late", 8), (2, "late", 7)]
    stream.kill()
    stream.run()
    lateness = [status.late.lateness for status in stream.stream.statuses()]
    assert (left_out(stream), late_rows(stream), lateness) == before


@given(lateness=st.lists(st.integers(1, 2**62), min_size=1, max_size=50), share=st.floats(0, 1))
def test_quantiles_are_never_too_small(lateness: list[int], share: float) -> None:
    """A suggested watermark covers at least its share of the rows, and is at most an eighth too long."""
    ledger = TimeLedger()
    ts = -np.array(lateness, np.int64)
    zero = np.zeros(1, np.int64)
    ledger.note(ClassifiedRows(pa.table({}), ts, None, None, zero, (len(ts),), (1,), (0,)), 0)
    ordered = sorted(lateness)
    exact = ordered[max(0, math.ceil(share * len(ordered)) - 1)]
    assert exact <= ledger.lateness().quantile(share) * (1 + 2**-50) or share == 0
    assert ledger.lateness().quantile(share) <= exact * 1.125 + 1 or share == 0


def test_text_of_lateness() -> None:
    """Durations are told in their largest unit."""
    lateness = Lateness(100_000, ((7_200, 60), (20_000, 10), (900, 30)))
    lateness = Lateness(100_000, tuple(sorted(lateness.late)))
    assert suggestion(lateness, 1000) == "99.9% of rows were at most 0s late"
    assert suggestion(Lateness(1000, ((7_200, 2),)), 1000) == "99.9% of rows were at most 7.2s late"
    assert histogram_text(lateness, 1000) == "in time: 99900, <= 1.02s: 30, <= 8.19s: 60, <= 32.77s: 10"
    assert suggestion(Lateness(), 1000) is None


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "query", "message"), [
    ("ALLOWED_LATENESS 1m", "SELECT ts, voltage FROM meters PARTITION BY tbname", "ALLOWED_LATENESS is not for"),
    ("TRIGGER FORCE_WINDOW_CLOSE ALLOWED_LATENESS 1m",
     "SELECT _wstart, count(*) FROM meters PARTITION BY tbname INTERVAL(1m)", "not for FORCE_WINDOW_CLOSE"),
    ("CLOSE_WHEN_IDLE 1", "SELECT ts, voltage FROM meters PARTITION BY tbname", "CLOSE_WHEN_IDLE is not for"),
    ("MAX_SKEW 1m", "SELECT _wstart, count(*) FROM meters PARTITION BY tbname INTERVAL(1m)", "MAX_SKEW is not for"),
    ("TIME PROCESSING WATERMARK 1s", COUNTS, "WATERMARK is not for TIME PROCESSING"),
    ("TIME INGESTION ALLOWED_LATENESS 1s", COUNTS, "ALLOWED_LATENESS is not for TIME INGESTION"),
    ("TIME INGESTION IDLE_TIMEOUT 1s", COUNTS, "IDLE_TIMEOUT is not for TIME INGESTION"),
    ("TIME INGESTION FILL_HISTORY 1", COUNTS, "FILL_HISTORY 1 is not for"),
    ("TIME INGESTION IGNORE UPDATE 0", COUNTS, "IGNORE UPDATE 0 is not for"),
    ("TIME INGESTION", "SELECT _wstart, count(*) FROM meters SESSION(ts, 1m)", "needs an INTERVAL window"),
    ("TIME INGESTION TRIGGER CONTINUOUS_WINDOW_CLOSE", COUNTS, "is not for CONTINUOUS_WINDOW_CLOSE"),
    ("TIME PROCESSING", "SELECT ts, voltage FROM meters PARTITION BY tbname", "needs an INTERVAL window"),
    ("WRITER_TIMEOUT 1m", COUNTS, "WRITER_TIMEOUT needs WATERMARK FROM WRITERS"),
    ("WATERMARK FROM WRITERS", "SELECT ts, voltage FROM meters PARTITION BY tbname", "is not for a stream without"),
    ("TIMEZONE 'Mars/Olympus'", COUNTS, "is not a time zone"),
])
def test_options_that_make_no_sense_are_refused(options: str, query: str, message: str) -> None:
    """Each option about time is checked against the stream when it is created."""
    with pytest.raises(InvalidStreamError, match=message):
        plan_of(options, query)
