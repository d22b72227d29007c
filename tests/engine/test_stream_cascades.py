"""Streams on the results of streams, several deep: every level equals the batch query over the level below."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed
from kits.engines.verdicts import verify_running

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
    assert verify_running(bed.rows, ["s1", "s2", "s3"]) == {}


STEP = st.one_of(
    st.tuples(st.just("insert"), st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 180), st.integers(-5, 5)), min_size=1, max_size=5)),
    st.tuples(st.just("delete"), st.tuples(st.integers(0, 2), st.integers(0, 180), st.integers(0, 60))),
    st.tuples(st.just("checkpoint"), st.none()),
    st.tuples(st.just("kill"), st.none()),
)


@settings(max_examples=times(3, 50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


def test_columns_are_called_as_they_are_typed() -> None:
    """Whatever comes first, and streams and queries compute with what is called as pseudo columns are."""
    levels = (
        "CREATE STREAM s1 TRIGGER AT_ONCE IGNORE EXPIRED 0 INTO ten AS "
        "SELECT tbname, _wstart, _wend, count(*), max(v) FROM meters PARTITION BY tbname INTERVAL(10s)",
        "CREATE STREAM s2 TRIGGER AT_ONCE IGNORE EXPIRED 0 INTO minute AS "
        "SELECT sum(`count(*)`) n, max(cast(_wstart as bigint)) latest, max(_wend - _wstart), max(`max(v)`) "
        f"FROM ten WHERE _wstart > {T0} INTERVAL(1m)",
        "CREATE STREAM s3 TRIGGER AT_ONCE IGNORE EXPIRED 0 INTO lines AS "
        "SELECT _wstart, latest - cast(_wstart as bigint) behind, `max(_wend - _wstart)` FROM minute "
        f"WHERE _wstart >= {T0 - 60_000} PARTITION BY tbname",
    )
    with make(2, levels) as bed:
        assert {table: [row[0] for row in bed.rows(f"DESCRIBE {table}")] for table in ("ten", "minute", "lines")} == {
            "ten": ["ts", "tbname_", "_wstart", "_wend", "count(*)", "max(v)", "group_id"],
            "minute": ["_wstart", "n", "latest", "max(_wend - _wstart)", "max(`max(v)`)", "group_id"],
            "lines": ["_wstart", "behind", "max(_wend - _wstart)", "group_id"],
        }
        bed.execute(f"INSERT INTO d0 VALUES ({T0}, 9) ({T0 + 11_000}, 1) ({T0 + 12_000}, 2) "
                    f"d1 VALUES ({T0 + 13_000}, 5) ({T0 + 71_000}, 7)")
        assert bed.rows("SELECT tbname_, _wend - ts, _wstart - ts, `count(*)`, `max(v)` FROM ten "
                        "ORDER BY ts, tbname_") == [
            ("d0", 10_000, 0, 1, 9), ("d0", 10_000, 0, 2, 2), ("d1", 10_000, 0, 1, 5), ("d1", 10_000, 0, 1, 7)]
        found = bed.rows("SELECT n, latest - cast(_wstart as bigint), `max(_wend - _wstart)`, `max(``max(v)``)` "
                         "FROM minute ORDER BY _wstart")
        assert found == bed.rows(
            "SELECT sum(`count(*)`), max(cast(ts as bigint)) - cast(_wstart as bigint), max(_wend - ts), max(`max(v)`) "
            f"FROM ten WHERE ts > {T0} INTERVAL(1m)")
        assert len(found) == 2
        assert bed.rows("SELECT behind, `max(_wend - _wstart)` FROM lines ORDER BY _wstart") == [
            (behind, length) for _, behind, length, _ in found]


#: Clauses behind FROM, over a table whose columns are called as tasks call theirs.
CLAUSES = (
    "INTERVAL(1m)", "INTERVAL(1m) SLIDING(20s)", "PARTITION BY k0 INTERVAL(1m)",
    "PARTITION BY tbname SESSION(_wstart, 20s)", "PARTITION BY tbname STATE_WINDOW(k0)",
    "WHERE length(cast(_rows AS VARCHAR(10))) > 0 INTERVAL(1m)",
    "PARTITION BY tbname, `_limit` EVENT_WINDOW START WITH k0 = 0 END WITH _rows > 5",
)


@pytest.mark.parametrize("clause", CLAUSES)
def test_columns_may_be_called_as_tasks_call_theirs(clause: str) -> None:
    """Results of streams have a time called `_wstart`; the names of windows and groups inside of tasks are others."""
    values = "count(*) n, sum(_rows) total, first(_rows) a, last(_rows) z, max(_rowts) newest, max(k0 + _rows) k"
    with TestBed() as bed:
        bed.all("CREATE DATABASE d VGROUPS 2", "USE d",
                "CREATE STABLE t (`_wstart` TIMESTAMP, k0 INT, `_rows` INT, `_gid` INT, r0 INT) TAGS (`_limit` INT)",
                f"CREATE STREAM s TRIGGER AT_ONCE IGNORE EXPIRED 0 INTO o AS SELECT _wstart, {values} FROM t {clause}",
                *(f"CREATE TABLE t{n} USING t TAGS ({n})" for n in range(3)))
        for n in range(40):
            bed.execute(f"INSERT INTO t{n % 3} VALUES ({T0 + 7_000 * n}, {n // 3 % 2}, {n % 7}, {n}, {-n})")
        bed.execute(f"DELETE FROM t1 WHERE _wstart BETWEEN {T0 + 30_000} AND {T0 + 60_000}")
        found = sorted(bed.rows("SELECT _wstart, n, total, a, z, newest, k FROM o"))
        assert found == sorted(bed.rows(f"SELECT _wstart, {values} FROM t {clause}"))
        assert len(found) > 2


def test_rows_may_have_columns_called_as_tasks_call_theirs() -> None:
    """So may those of streams without windows, of joins, and of lookups."""
    with TestBed() as bed:
        bed.all("CREATE DATABASE d VGROUPS 2", "USE d",
                "CREATE STABLE t (`_wstart` TIMESTAMP, r0 INT, `_gid` INT) TAGS (`_limit` INT)",
                "CREATE TABLE names (ts TIMESTAMP, `_gid` INT, `_rows` INT)",
                f"INSERT INTO names VALUES ({T0}, 1, 10) ({T0 + 1}, 2, 20)",
                "CREATE TABLE t0 USING t TAGS (5)", "CREATE TABLE t1 USING t TAGS (6)",
                "CREATE STREAM a TRIGGER AT_ONCE INTO plain AS SELECT _wstart, r0 + _gid AS x, _limit, tbname FROM t "
                "WHERE _gid > 0 PARTITION BY tbname",
                "CREATE STREAM b TRIGGER AT_ONCE INTO looked AS SELECT t._wstart, t._gid, n._rows FROM t "
                "JOIN names n ON t._gid = n._gid PARTITION BY tbname",
                "CREATE STREAM c TRIGGER AT_ONCE IGNORE EXPIRED 0 INTO joined AS "
                "SELECT x._wstart, x._gid one, y.r0 other FROM t0 x JOIN t1 y ON x._wstart = y._wstart")
        bed.execute(f"INSERT INTO t0 VALUES ({T0}, 3, 1) ({T0 + 1000}, 4, 0) ({T0 + 9000}, 0, 0) "
                    f"t1 VALUES ({T0}, 7, 2) ({T0 + 9000}, 0, 0)")
        assert sorted(bed.rows("SELECT x, `_limit`, tbname_ FROM plain")) == [(4.0, 5, "t0"), (9.0, 6, "t1")]
        assert sorted(bed.rows("SELECT `_gid`, `_rows` FROM looked")) == [(1, 10), (2, 20)]
        assert bed.rows(f"SELECT one, other FROM joined WHERE _wstart < {T0 + 500}") == [(1, 7)]
