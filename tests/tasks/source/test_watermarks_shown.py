"""What SHOW WATERMARKS says of vnodes that are never written, stop, wake, or get rows from other centuries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kits.engines.sandboxes import T0 as SHOWN_ZERO
from kits.engines.sandboxes import TestBed

MINUTE = 60_000
SHIFT = 40_000  # from the zero of what is shown to the next full minute
T0 = SHOWN_ZERO + SHIFT
YEAR_2262_MS = 9_214_646_400_000


@pytest.fixture
def bed() -> Iterator[TestBed]:
    with TestBed(now_ms=T0) as bed:
        bed.all("CREATE DATABASE d VGROUPS 3 KEEP 36500", "USE d",
                "CREATE STABLE st (ts TIMESTAMP, v INT) TAGS (g INT)",
                "CREATE STREAM s WATERMARK 5s IDLE_TIMEOUT 10s INTO o AS "
                "SELECT _wstart ts, count(*) n FROM st INTERVAL(1m)")
        yield bed


def tables(bed: TestBed) -> list[str]:
    """Makes a table on each vnode; returns them in the order of their vnodes."""
    found: dict[int, str] = {}
    for n in range(32):
        bed.execute(f"CREATE TABLE c{n} USING st TAGS ({n})")
    for name, vgroup in bed.rows("SELECT table_name, vgroup_id FROM information_schema.ins_tables WHERE db_name = 'd'"):
        found.setdefault(vgroup, name)
    found.pop(None, None)
    return [found[vgroup] for vgroup in sorted(found)]


def put(bed: TestBed, table: str, minutes: float) -> None:
    bed.execute(f"INSERT INTO {table} VALUES ({T0 + round(minutes * MINUTE)}, 1)")
    bed.run()


def shown(bed: TestBed, columns: str) -> list[tuple[Any, ...]]:
    """Returns a line per vnode, in their order."""
    return bed.rows(f"SELECT {columns} FROM information_schema.ins_watermarks ORDER BY node_id")


def test_who_holds_time_back_is_named(bed: TestBed) -> None:
    """Fault 20: a vnode that is never written holds time back until it counts as idle, and so does one that stops."""
    first, second, _ = tables(bed)
    put(bed, first, 3)
    put(bed, second, 1)
    columns = "holds_back, idle, idle_since, max_event_time, stream_watermark, lag"
    newest = [SHIFT + 3 * MINUTE, SHIFT + MINUTE, None]
    assert shown(bed, columns) == [
        (False, False, None, newest[0], None, 0), (False, False, None, newest[1], None, 0),
        (True, False, None, newest[2], None, 0)]
    bed.advance(11)
    now, closed = SHIFT + 11_000, SHIFT + MINUTE - 5_000
    assert shown(bed, columns) == [(False, True, now, time, closed, 0) for time in newest]
    put(bed, first, 4)
    assert shown(bed, "holds_back, idle, idle_since, event_time_watermark, stream_watermark") == [
        (True, False, None, closed + 3 * MINUTE, closed + 3 * MINUTE), (False, True, now, closed, closed + 3 * MINUTE),
        (False, True, now, None, closed + 3 * MINUTE)]
    assert bed.rows("SELECT ts, n FROM o ORDER BY ts") == [(SHIFT + MINUTE, 1)]


def test_rows_for_closed_windows_are_counted_for_their_vnode(bed: TestBed) -> None:
    """Fault 20: an idle vnode that wakes with old rows: those behind its own time are late, the others count."""
    first, second, _ = tables(bed)
    put(bed, second, 1)
    put(bed, first, 9)
    bed.advance(11)
    put(bed, first, 10.5)
    assert shown(bed, "late_rows, late_kept") == [(0, 0)] * 3
    put(bed, second, 3)
    put(bed, second, 1.2)
    put(bed, second, 5)
    assert shown(bed, "late_rows, late_kept") == [(0, 0), (1, 2), (0, 0)]
    assert bed.rows("SELECT ts, n FROM o ORDER BY ts") == [
        (SHIFT + minutes * MINUTE, 1) for minutes in (1, 3, 5, 9)]
    shown_late = bed.rows("SELECT table_name, ts, reason FROM information_schema.ins_late_rows")
    assert shown_late == [(second, SHIFT + 72_000, "late")]


def test_all_idle_vnodes_let_nothing_wait(bed: TestBed) -> None:
    """Fault 20: all vnodes stop; with CLOSE_WHEN_IDLE the last window closes, and each is shown as idle."""
    bed.execute("CREATE STREAM t WATERMARK 5s IDLE_TIMEOUT 10s CLOSE_WHEN_IDLE 1 INTO p AS "
                "SELECT _wstart ts, count(*) n FROM st INTERVAL(1m)")
    for table in tables(bed):
        put(bed, table, 1)
    bed.advance(66)
    assert shown(bed, "idle") == [(True,)] * 6
    assert bed.rows("SELECT n FROM p") == [(3,)]
    assert bed.rows("SELECT n FROM o") == []


def test_rows_from_other_centuries_are_counted(bed: TestBed) -> None:
    """Faults 19 and 21: a row of 2262 moves nothing, one of 1970 is late, and steps of the clock count for none."""
    first, second, third = tables(bed)
    for table in (first, second, third):
        put(bed, table, 1)
    bed.clock.step_wall(-3_600_000)
    bed.run()
    bed.execute(f"INSERT INTO {first} VALUES ({YEAR_2262_MS}, 1)")
    bed.execute(f"INSERT INTO {second} VALUES (0, 1)")
    bed.clock.step_wall(7_200_000)
    bed.run()
    assert shown(bed, "future_rows, late_rows, error_rows, idle") == [
        (1, 0, 0, False), (0, 1, 0, False), (0, 0, 0, False)]
    put(bed, third, 2.5)
    assert {time for (time,) in shown(bed, "stream_watermark")} == {SHIFT + MINUTE - 5_000}
    assert bed.rows("SELECT table_name, reason FROM information_schema.ins_late_rows ORDER BY reason") == [
        (first, "future"), (second, "late")]
