"""Event time through real workers: what tasks count and leave out reaches SQL, and orders reach the tasks."""

from __future__ import annotations

from typing import Any

import pytest
from kits.basics.waiting import wait_until

import penstock
from penstock.common.clock import SystemClock

pytestmark = pytest.mark.spark


def test_what_workers_leave_out_is_seen_and_tried_again(con: Any) -> None:
    """Idle vnodes, late and future rows, a DLQ, notes of a writer and windows by arrival, by four statements of SQL."""
    def soon(query: str, wanted: list[tuple[Any, ...]]) -> None:
        wait_until(lambda: con.execute(query).fetchall() == wanted, 60.0, f"{query} never gave {wanted}")

    for statement in (
        "CREATE DATABASE d VGROUPS 2", "USE d", "CREATE STABLE st (ts TIMESTAMP, v INT) TAGS (g INT)",
        "CREATE TABLE c0 USING st TAGS (0)", "CREATE TABLE c1 USING st TAGS (1)",
        "CREATE STREAM s CLOSE_WHEN_IDLE 1 MAX_SKEW 1h LATE DLQ dead ON_ERROR DLQ dead INTO o "
        "AS SELECT _wstart ts, count(*) n FROM st INTERVAL(2s)",
        "CREATE STREAM p TIME INGESTION INTO op AS SELECT _wstart ts, count(*) n FROM st INTERVAL(1s)",
        "CREATE STREAM w WATERMARK FROM WRITERS INTO ow AS SELECT _wstart ts, count(*) n FROM st INTERVAL(2s)",
        "CREATE STREAM m TRIGGER AT_ONCE IGNORE EXPIRED 0 DELETE_MARK 1s INTO om "
        "AS SELECT _wstart ts, count(*) n FROM st INTERVAL(2s)",
    ):
        con.execute(statement)
    soon("SELECT count(*) FROM information_schema.ins_streams WHERE state = 'RUNNING'", [(4,)])
    first = SystemClock().now_ms() // 10_000 * 10_000
    con.execute(f"INSERT INTO c0 VALUES ({first}, 1) c1 VALUES ({first}, 1)")
    for ts in (first + 9_000, first + 100, 9_214_646_400_000):
        con.execute(f"INSERT INTO c0 VALUES ({ts}, 1)")
    soon("SELECT n FROM o ORDER BY ts", [(2,), (1,)])
    soon("SELECT sum(n) FROM op", [(5,)])
    soon("SELECT reason, table_name FROM dead ORDER BY id", [("late", "c0"), ("future", "c0")])
    soon("SELECT sum(late_rows), sum(future_rows) FROM information_schema.ins_watermarks WHERE stream_name = 's'",
         [(1, 1)])
    soon("SELECT table_name, reason FROM information_schema.ins_late_rows WHERE stream_name = 's' ORDER BY version",
         [("c0", "late"), ("c0", "future")])
    penstock.Writer(con, "line 1").note_time(first + 5_000)
    soon("SELECT n FROM ow ORDER BY ts", [(3,)])
    con.execute("REPLAY DLQ dead WHERE reason = 'late'")
    soon("SELECT n FROM o ORDER BY ts", [(3,), (1,)])
    soon("SELECT state FROM dead ORDER BY id", [("replayed",), ("dead",)])
    con.execute(f"INSERT INTO c1 VALUES ({first + 9_000}, 1)")
    soon("SELECT n FROM om ORDER BY ts", [(3,), (2,)])
    con.execute("CHECKPOINT STREAM m")  # forgets the first window, which is read back from both vnodes
    con.execute(f"INSERT INTO c1 VALUES ({first + 200}, 1)")
    soon("SELECT n FROM om ORDER BY ts", [(4,), (2,)])
