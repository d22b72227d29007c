"""Streams on the results of streams, several deep: every level equals the batch query over the level below."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sandboxes import T0, TestBed

from penstock.common.errors import InvalidStreamError

LEVELS = (
    "CREATE STREAM s1 TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 INTO ten SUBTABLE(concat('ten_', tbname)) AS "
    "SELECT _wstart ts, count(*) n, sum(v) total FROM meters PARTITION BY tbname INTERVAL(10s)",
    "CREATE STREAM s2 TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 INTO minute AS "
    "SELECT _wstart ts, sum(n) n, sum(total) total, count(*) parts FROM ten INTERVAL(1m)",
    "CREATE STREAM s3 TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 INTO busy AS "
    "SELECT ts, n, total FROM minute WHERE n > 2 PARTITION BY tbname",
)
CHECKS = (
    ("SELECT ts, n, total FROM ten", "SELECT _wstart, count(*), sum(v) FROM meters PARTITION BY tbname INTERVAL(10s)"),
    ("SELECT ts, n, total, parts FROM minute", "SELECT _wstart, sum(n), sum(total), count(*) FROM ten INTERVAL(1m)"),
    ("SELECT ts, n, total FROM busy", "SELECT ts, n, total FROM minute WHERE n > 2"),
)


def make(vgroups: int, levels: tuple[str, ...] = LEVELS) -> TestBed:
    bed = TestBed()
    bed.all(f"CREATE DATABASE d VGROUPS {vgroups}", "USE d", "CREATE STABLE meters (ts timestamp, v int) TAGS (g int)",
            *(f"CREATE TABLE d{n} USING meters TAGS ({n})" for n in range(3)), *levels)
    return bed


def check(bed: TestBed) -> None:
    for stream, batch in CHECKS:
        assert sorted(bed.rows(stream)) == sorted(bed.rows(batch)), stream


STEP = st.one_of(
    st.tuples(st.just("insert"), st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 180), st.integers(-5, 5)), min_size=1, max_size=5)),
    st.tuples(st.just("delete"), st.tuples(st.integers(0, 2), st.integers(0, 180), st.integers(0, 60))),
    st.tuples(st.just("checkpoint"), st.none()),
    st.tuples(st.just("kill"), st.none()),
)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEP, min_size=1, max_size=7), vgroups=st.integers(1, 3))
def test_three_levels_equal_their_batch_queries(steps: list[tuple[str, Any]], vgroups: int) -> None:
    """Inserts, rewrites, deletes and kills: rows that vanish on one level vanish on the next."""
    with make(vgroups) as bed:
        for kind, what in steps:
            match kind:
                case "insert":
                    bed.execute("INSERT INTO " + " ".join(
                        f"d{table} VALUES ({T0 + second * 1000}, {value})" for table, second, value in what))
                case "delete":
                    table, first, length = what
                    bed.execute(f"DELETE FROM d{table} WHERE ts >= {T0 + first * 1000} "
                                f"AND ts <= {T0 + (first + length) * 1000}")
                case "checkpoint":
                    bed.checkpoint()
                case "kill":
                    bed.kill()
        check(bed)


def test_a_deleted_result_row_is_gone_downstream() -> None:
    """When a window ceases to exist, what was made of its result row is corrected too."""
    with make(2) as bed:
        bed.execute(f"INSERT INTO d0 VALUES ({T0}, 1) ({T0 + 1}, 1) ({T0 + 15_000}, 1) d1 VALUES ({T0}, 1)")
        assert [row[1] for row in bed.rows("SELECT ts, n FROM busy")] == [4]
        bed.execute(f"DELETE FROM d0 WHERE ts <= {T0 + 1}")
        assert bed.rows("SELECT n, parts FROM minute") == [(2, 2)]
        assert bed.rows("SELECT n FROM busy") == []
        bed.execute("DELETE FROM meters")
        assert bed.rows("SELECT * FROM ten") == []
        assert bed.rows("SELECT * FROM minute") == []


def test_history_of_a_cascade() -> None:
    """A stream on results that exist already fills its history from them."""
    with make(2, LEVELS[:1]) as bed:
        bed.execute(f"INSERT INTO d0 VALUES ({T0}, 1) ({T0 + 15_000}, 2) d1 VALUES ({T0}, 3)")
        bed.execute(LEVELS[1].replace("TRIGGER", "FILL_HISTORY 1 TRIGGER", 1))
        bed.execute(LEVELS[2].replace("TRIGGER", "FILL_HISTORY 1 TRIGGER", 1))
        check(bed)
        bed.execute(f"INSERT INTO d2 VALUES ({T0 + 60_000}, 5)")
        check(bed)
        lines = bed.rows("SELECT stream_name, history, history_id FROM information_schema.ins_streams "
                         "ORDER BY stream_name")
        assert lines == [("s1", None, None), ("s2", "done, 3 rows", None), ("s3", "done, 1 rows", None)]


@pytest.mark.parametrize("target", ["meters", "loop"])
def test_a_stream_that_feeds_itself_is_refused(target: str) -> None:
    """Neither a stream nor a chain of streams may write into its own source."""
    with make(1, ()) as bed:
        bed.execute("CREATE STABLE loop (ts timestamp, v int) TAGS (g bigint unsigned)")
        bed.execute("CREATE STREAM a TRIGGER AT_ONCE INTO mid AS SELECT ts, v FROM loop PARTITION BY tbname")
        source = "meters" if target == "meters" else "mid"
        tags = "TAGS (g) " if target == "meters" else ""
        with pytest.raises(InvalidStreamError, match="feed itself"):
            bed.execute(f"CREATE STREAM b TRIGGER AT_ONCE INTO {target} {tags}AS SELECT ts, v FROM {source} "
                        f"PARTITION BY tbname{', g' if tags else ''}")
