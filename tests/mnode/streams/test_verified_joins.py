"""VERIFY STREAM of streams over joins: what rows of both sides give is compared, and rows of both sides are known."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import in_turn, times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed
from kits.streams.verified_streams import STEPS, insert, made, play, verified

AT_ONCE = "TRIGGER AT_ONCE IGNORE EXPIRED 0"
CLOSED = "WATERMARK 4s IGNORE EXPIRED 0"
NEAR = "a.ts BETWEEN b.ts - 2s AND b.ts + 3s"
#: Joins of all kinds.
INNER = f"SELECT a.ts, a.v x, b.v y, b.f z FROM m a JOIN m b ON a.g = b.g AND {NEAR} PARTITION BY a.tbname"
JOINS = {
    "inner": INNER,
    "left": INNER.replace(" JOIN", " LEFT JOIN"),
    "right": f"SELECT b.ts, a.v x, b.v y FROM m a RIGHT JOIN m b ON a.g = b.g AND a.v > b.v AND {NEAR} "
             "PARTITION BY b.tbname",
    "full": "SELECT CASE WHEN a.ts IS NULL THEN b.ts ELSE a.ts END t, a.v x, b.v y FROM t0 a FULL JOIN t1 b ON "
            "a.ts = b.ts",
    "semi": f"SELECT a.ts, a.v x FROM m a LEFT SEMI JOIN m b ON a.g = b.g AND a.v > b.v AND {NEAR} "
            "PARTITION BY a.tbname",
    "anti": f"SELECT a.ts, a.v x FROM m a LEFT ANTI JOIN m b ON a.g = b.g AND a.v > b.v AND {NEAR} "
            "PARTITION BY a.tbname",
    "asof": "SELECT a.ts, a.v x, b.v y FROM m a LEFT ASOF JOIN m b ON a.g = b.g AND a.ts > b.ts PARTITION BY a.tbname",
    "window": "SELECT a.ts, a.v x, count(b.v) n, sum(b.f) y FROM m a LEFT WINDOW JOIN m b ON a.g = b.g "
              "WINDOW_OFFSET(-2s, 2s) PARTITION BY a.tbname",
    "interval": f"SELECT _wstart, count(*) n, sum(b.v) y FROM m a JOIN m b ON a.g = b.g AND {NEAR} WHERE a.v >= b.v "
                "PARTITION BY a.g INTERVAL(5s)",
    "sliding": f"SELECT _wend e, count(*) n FROM m a LEFT JOIN m b ON a.tbname = b.tbname AND {NEAR} "
               "PARTITION BY a.tbname INTERVAL(5s) SLIDING(2s)",
}


def wrong(bed: TestBed, name: str = "s0") -> list[tuple[Any, ...]]:
    return [(*line[:2], line[4]) for line in verified(bed, name)]


@settings(max_examples=times(3, 400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(streams=st.lists(st.tuples(st.sampled_from([AT_ONCE, CLOSED]), st.sampled_from([*JOINS.values()])),
                        min_size=2, max_size=3, unique=True), steps=STEPS)
def test_right_streams_are_equal(streams: list[tuple[str, str]], steps: list[Any]) -> None:
    """Late and rewritten rows, deletes, kills: no result of any stream is told, before the end neither."""
    with made(*streams) as bed:
        for kind, what in steps:
            play(bed, kind, what)
            for n in range(len(streams)):
                assert verified(bed, f"s{n}") == []
        for n in range(len(streams)):
            assert verified(bed, f"s{n}", f"FROM {T0 + 10_000} TO {T0 + 20_000}") == []


@pytest.mark.parametrize(("options", "kind"), in_turn([AT_ONCE, CLOSED], list(JOINS)))
def test_what_is_wrong_is_told(options: str, kind: str) -> None:
    """A result that was changed, one that was lost, and one that nobody computed."""
    with made((options, JOINS[kind])) as bed:
        for second in (1, 11, 21, 31, 60):
            for table in range(4):
                insert(bed, table, second + table % 2, table + second % 3)
        bed.advance(5)  # sides without rows on a vnode are idle there
        bed.run()
        assert verified(bed) == []
        target = bed.engine.catalog.table("d", "o0")
        assert target is not None
        time, value = target.columns[0].name, target.columns[1].name
        found = [row for row in bed.rows(f"SELECT `{time}`, tbname FROM o0 ORDER BY 1, 2") if row[0] < 30_000]
        (changed, one), (lost, other) = found[0], found[-1]
        bed.forge(f"INSERT INTO `{one}` (`{time}`, `{value}`) VALUES ({T0 + changed}, 77)")
        bed.forge(f"DELETE FROM `{other}` WHERE `{time}` = {T0 + lost}")
        bed.forge(f"INSERT INTO `{one}` (`{time}`) VALUES ({T0 + 17_123})")
        assert {*wrong(bed)} == {("differs", changed, None), ("missing", lost, None), ("extra", 17_123, None)}


def test_tables_of_two_databases_are_read_at_their_cuts() -> None:
    """What the other side gets changes results as well, also such as came before."""
    with made() as bed:
        bed.all("CREATE DATABASE e VGROUPS 3 KEEP 36500", "CREATE STABLE e.n (ts TIMESTAMP, w INT) TAGS (g INT)",
                "CREATE TABLE e.n0 USING e.n TAGS (0)", "CREATE TABLE e.n1 USING e.n TAGS (1)",
                f"INSERT INTO e.n0 VALUES ({T0 + 1_000}, 5)",
                f"CREATE STREAM s0 {AT_ONCE} INTO o0 AS SELECT a.ts, a.v, b.w FROM m a LEFT JOIN e.n b "
                f"ON a.g = b.g AND {NEAR} PARTITION BY a.tbname")
        for table in range(4):
            insert(bed, table, 2)
        bed.all(f"INSERT INTO e.n0 VALUES ({T0 + 3_000}, 6)", f"INSERT INTO e.n1 VALUES ({T0 + 1_000}, 7)",
                f"INSERT INTO e.n1 VALUES ({T0 + 1_000}, 8)", f"DELETE FROM e.n0 WHERE ts = {T0 + 3_000}")
        assert bed.rows("SELECT w FROM o0 ORDER BY w") == [(None,), (None,), (8,), (8,)]
        assert verified(bed) == []
        bed.forge("INSERT INTO o0 (tbname, ts, w) SELECT tbname, ts, 9 FROM o0 WHERE w = 8")
        assert [line[:3] for line in verified(bed)] == [("differs", 2_000, "w = 9")] * 2


def test_new_tags_take_rows_to_other_groups() -> None:
    """Where the key of a join is a group's, results come and go with the rows."""
    with made((AT_ONCE, JOINS["interval"])) as bed:
        for table in range(4):
            insert(bed, table, 2, table)
        play(bed, "retag", (0, 1))
        play(bed, "retag", (2, 7))
        assert verified(bed) == []


def test_one_row_of_several_of_a_place_counts() -> None:
    """The greatest result of a time is there, or with a second key all are."""
    with made() as bed:
        bed.execute(f"CREATE STREAM s0 {AT_ONCE} INTO o0 AS SELECT a.ts, b.v FROM t0 a JOIN m b ON {NEAR}")
        bed.execute(f"CREATE STREAM s1 {AT_ONCE} INTO o1 (ts, k PRIMARY KEY, n) AS "
                    f"SELECT a.ts, CAST(b.v AS INT) k, b.f FROM t0 a JOIN m b ON {NEAR}")
        for table in range(4):
            insert(bed, table, 2, table)
        assert bed.rows("SELECT v FROM o0") == [(3,)]
        assert bed.rows("SELECT k FROM o1 ORDER BY k") == [(0,), (1,), (2,), (3,)]
        assert verified(bed) == verified(bed, "s1") == []


def test_rows_left_out_of_either_side_are_known() -> None:
    """Within the range of the join; with ASOF at any time."""
    with made(("WATERMARK 1s", JOINS["left"]), ("WATERMARK 1s", JOINS["asof"])) as bed:
        for second in (1, 50, 100):
            insert(bed, 0, second)
            insert(bed, 2, second)
        insert(bed, 2, 48, 9)
        insert(bed, 0, 5)
        lines = verified(bed)
        assert {line[1] for line in lines} == {5_000, 48_000, 50_000}
        assert all(known == "1 rows of this time were left out: late" for *_, known in lines)
        assert all("rows were left out: late" in why for *_, why in verified(bed, "s1"))


def test_pairs_that_on_error_leaves_out_are_equal() -> None:
    """What ON can't compare doesn't meet in the query either."""
    five = "concat({0}.s, {0}.s, {0}.s, {0}.s, {0}.s)"
    with made() as bed:
        bed.all("CREATE TABLE x (ts TIMESTAMP, s VARCHAR(16000))", "CREATE TABLE y (ts TIMESTAMP, s VARCHAR(16000))",
                f"CREATE STREAM s0 {AT_ONCE} ON_ERROR SKIP INTO o0 AS SELECT a.ts, length({five.format('b')}) n "
                f"FROM x a LEFT JOIN y b ON a.ts = b.ts AND {five.format('a')} = {five.format('b')}")
        for second, text in ((1, "z"), (2, "x" * 16_000), (3, "y")):
            bed.all(*(f"INSERT INTO {table} VALUES ({T0 + second * 1_000}, '{text}')" for table in "xy"))
        assert bed.rows("SELECT n FROM o0 ORDER BY 1") == [(None,), (5,), (5,)]
        assert verified(bed) == []


@pytest.mark.parametrize(("kind", "word"), [("left", "times"), ("interval", "windows"), ("asof", "not")])
def test_samples_are_drawn_of_driving_rows(kind: str, word: str) -> None:
    """Of their windows, or of their times; ASOF joins look at any rows."""
    with made((AT_ONCE, JOINS[kind])) as bed:
        for second in range(0, 60, 3):
            insert(bed, second % 2, second)
        *wrong_lines, last = bed.rows("VERIFY STREAM s0 SAMPLE 4")
        assert wrong_lines == []
        assert f"4 {word} were drawn" in last[5] or f"; {word} drawn" in last[5]
