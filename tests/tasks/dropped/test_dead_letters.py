"""Rows that a stream cannot use: what ON_ERROR and LATE make of them, and how they are tried again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import combined, in_turn
from kits.engines.sandboxes import T0 as SHOWN_ZERO
from kits.engines.sandboxes import TestBed

from penstock.common.errors import InvalidStatementError, InvalidStreamError, InvalidValueError, PenstockError

MINUTE = 60_000
SHIFT = 40_000  # from the zero of what is shown to the next full minute
T0 = SHOWN_ZERO + SHIFT


FUNCTIONS = '''
import pyarrow as pa
import pyarrow.compute as pc

def picky(x):
    if pc.any(pc.greater(x, 1000)).as_py():
        raise ValueError("too big")
    return pc.multiply(x, 4)

def alone(x):
    if len(x) > 1 or x[0].as_py() == 9:
        raise ValueError("not these")
    return x

def texts(x):
    return pa.array([b"\\xff" if value == 9 else b"fine" for value in x.to_pylist()]).cast(pa.string(), safe=False)

class Sum:
    def init(self):
        return 0
    def accumulate(self, state, x):
        if pc.any(pc.greater(x, 1000)).as_py():
            raise ValueError("too big")
        return state + pc.sum(x).as_py()
    def merge(self, left, right):
        return left + right
    def finish(self, state):
        return state
'''


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestBed]:
    (tmp_path / "dlq_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    with TestBed(now_ms=T0) as bed:
        bed.execute("CREATE FUNCTION picky (BIGINT) RETURNS BIGINT LANGUAGE PYTHON AS 'dlq_functions:picky'")
        bed.execute("CREATE AGGREGATE FUNCTION picky_sum (BIGINT) RETURNS BIGINT LANGUAGE PYTHON AS "
                    "'dlq_functions:Sum'")
        bed.all("CREATE DATABASE d VGROUPS 1", "USE d", "CREATE TABLE t (ts TIMESTAMP, v BIGINT, s VARCHAR(20))",
                "CREATE STABLE st (ts TIMESTAMP, v BIGINT) TAGS (g INT)", "CREATE TABLE c0 USING st TAGS (0)",
                "CREATE TABLE c1 USING st TAGS (1)")
        yield bed


def put(bed: TestBed, table: str, *rows: tuple[Any, ...]) -> None:
    """Inserts rows one by one; the first value is minutes after T0."""
    for minutes, *values in rows:
        text = ", ".join("NULL" if value is None else repr(value) for value in values)
        bed.execute(f"INSERT INTO {table} VALUES ({T0 + round(minutes * MINUTE)}, {text})")
        bed.run()


HUGE = 2**62
SUM = "SELECT _wstart ts, count(*) n, sum(picky(v)) s FROM t INTERVAL(1m)"
SCALAR = "SELECT ts, picky(v) AS w FROM t"


def test_fail_ends_the_attempt_where_null_is_the_default(bed: TestBed) -> None:
    """Without ON_ERROR what a function can't compute is NULL; with FAIL the stream stops there, visibly."""
    bed.execute(f"CREATE STREAM s1 TRIGGER AT_ONCE INTO o1 AS {SCALAR}")
    put(bed, "t", (0, 1, "a"), (0.1, HUGE, "b"))
    assert bed.rows("SELECT w FROM o1") == [(4,), (None,)]
    bed.execute(f"CREATE STREAM s2 TRIGGER AT_ONCE ON_ERROR FAIL INTO o2 AS {SCALAR}")
    with pytest.raises(InvalidValueError, match="too big"):
        put(bed, "t", (0.2, HUGE, "b"))
    assert [row[0] for row in bed.rows("SELECT reason FROM information_schema.ins_streams") if row[0]]


@pytest.mark.parametrize("query", [SCALAR, SUM])
def test_skip_leaves_out_the_row_and_nothing_else(bed: TestBed, query: str) -> None:
    """ON_ERROR SKIP counts the row and shows why; the rows beside it in the same record are computed."""
    bed.execute(f"CREATE STREAM s TRIGGER AT_ONCE ON_ERROR SKIP INTO o AS {query}")
    bed.execute(f"INSERT INTO t VALUES ({T0}, 1, 'a') ({T0 + 1}, {HUGE}, 'b') ({T0 + 2}, 3, 'c')")
    bed.run()
    put(bed, "t", (0, 2, "a"))
    shown = bed.rows("SELECT * FROM o")
    if query == SUM:
        assert [row[1:3] for row in shown] == [(2, 20)]
    else:
        assert [row[1] for row in shown] == [8, 12]
    assert bed.rows("SELECT error_rows FROM information_schema.ins_watermarks WHERE error_rows > 0") == [(1,)]
    shown = bed.rows("SELECT table_name, ts, reason FROM information_schema.ins_late_rows")
    assert shown == [("t", SHIFT + 1, "error")]


ROW_WINDOWS = {
    "SESSION(ts, 30s)": [(2, 20), (1, 8)],
    "STATE_WINDOW(v)": [(1, 4), (1, 16), (1, 8)],
    "EVENT_WINDOW START WITH v > 0 END WITH v = 2": [(3, 28)],
    "COUNT_WINDOW(2)": [(2, 20), (1, 8)],
}


@pytest.mark.parametrize("window", ROW_WINDOWS)
@pytest.mark.parametrize("aggregate", ["sum(picky(v))", "4 * picky_sum(v)"])
def test_rows_are_left_out_of_windows_that_rows_define(bed: TestBed, window: str, aggregate: str) -> None:
    """A row that can't be computed is in no window, opens and ends none, and has its line in the DLQ."""
    bed.execute("CREATE STREAM s TRIGGER AT_ONCE IGNORE EXPIRED 1 WATERMARK 1h ON_ERROR DLQ dead INTO o AS "
                f"SELECT _wstart ts, count(*) n, {aggregate} s FROM t {window}")
    bed.execute(f"INSERT INTO t VALUES ({T0}, 1, 'a') ({T0 + 20_000}, {HUGE}, 'b') ({T0 + 30_000}, 4, 'c')")
    bed.run()
    put(bed, "t", (0.5, HUGE, "d"), (0.5, 4, "e"), (2, 2, "f"), (1.2, HUGE, "g"))
    assert bed.rows("SELECT n, s FROM o ORDER BY ts") == ROW_WINDOWS[window]
    assert bed.rows("SELECT error_rows FROM information_schema.ins_watermarks WHERE error_rows > 0") == [(3,)]
    assert bed.rows("SELECT event_time, reason, state FROM dead ORDER BY event_time") == [
        (SHIFT + seconds * 1000, "error", "dead") for seconds in (20, 30, 72)]


def test_marks_of_windows_may_fail_too(bed: TestBed) -> None:
    """What opens, ends or divides windows is computed for single rows, as aggregates are."""
    bed.execute("CREATE STREAM s1 TRIGGER AT_ONCE ON_ERROR SKIP INTO o1 AS "
                "SELECT _wstart ts, count(*) n FROM t STATE_WINDOW(picky(v))")
    bed.execute("CREATE STREAM s2 TRIGGER AT_ONCE ON_ERROR SKIP INTO o2 AS "
                "SELECT _wstart ts, count(*) n FROM t EVENT_WINDOW START WITH picky(v) > 0 END WITH picky(v) = 8")
    put(bed, "t", (0, 1, "a"), (1, HUGE, "b"), (2, 1, "c"), (3, 2, "d"))
    assert bed.rows("SELECT n FROM o1 ORDER BY ts") == [(2,), (1,)]
    assert bed.rows("SELECT n FROM o2") == [(3,)]


@pytest.mark.parametrize("query", [SCALAR, SUM.replace(" s ", " w "),
                                   SUM.replace(" s ", " w ").replace("INTERVAL(1m)", "SESSION(ts, 1m)")])
def test_a_row_that_is_written_anew_and_fails_is_gone(bed: TestBed, query: str) -> None:
    """What its key held before doesn't count any more, and the next version that can be computed does."""
    bed.execute(f"CREATE STREAM s TRIGGER AT_ONCE IGNORE UPDATE 0 ON_ERROR SKIP INTO o AS {query}")
    put(bed, "t", (0, 1, "a"), (0.1, 2, "b"), (0.1, HUGE, "b"))
    assert bed.rows("SELECT w FROM o") == [(4,)]
    put(bed, "t", (0.1, 3, "b"))
    assert bed.rows("SELECT sum(w) FROM o") == [(16,)]


def test_a_result_without_a_key_is_an_error(bed: TestBed) -> None:
    """Where the target's primary key may not be NULL, such a row is left out and counted, or fails the stream."""
    query = "SELECT ts, CAST(v AS INT) k, v FROM t"
    bed.execute(f"CREATE STREAM s1 TRIGGER AT_ONCE ON_ERROR SKIP INTO o1 (ts, k PRIMARY KEY, v) AS {query}")
    put(bed, "t", (0, 1, "a"), (1, None, "b"), (2, 3, "c"))
    assert bed.rows("SELECT k FROM o1 ORDER BY ts") == [(1,), (3,)]
    assert bed.rows("SELECT error_rows FROM information_schema.ins_watermarks") == [(1,)]
    bed.execute(f"CREATE STREAM s2 TRIGGER AT_ONCE ON_ERROR FAIL INTO o2 (ts, k PRIMARY KEY, v) AS {query}")
    with pytest.raises(InvalidValueError, match="key column k would be NULL"):
        put(bed, "t", (3, None, "b"))


def test_rows_of_one_time_are_told_apart_by_their_second_key(bed: TestBed) -> None:
    """Of rows of a composite key only the one that fails is left out, also when its window is computed anew."""
    bed.execute("CREATE TABLE ck (ts TIMESTAMP, k INT PRIMARY KEY, v BIGINT)")
    bed.execute("CREATE STREAM s TRIGGER AT_ONCE IGNORE UPDATE 0 ON_ERROR DLQ dead INTO o AS "
                "SELECT _wstart ts, count(*) n, sum(picky(v)) s FROM ck INTERVAL(1m)")
    put(bed, "ck", (0, 1, 1), (0, 2, HUGE), (0, 3, 3))
    assert bed.rows("SELECT n, s FROM o") == [(2, 16)]
    put(bed, "ck", (0, 1, 2))
    assert bed.rows("SELECT n, s FROM o") == [(2, 20)]
    assert bed.rows("SELECT content FROM dead") == [(f'{{"ts": {T0}, "k": 2, "v": {HUGE}}}',)]
    bed.execute("REPLAY DLQ dead")
    bed.run()
    assert bed.rows("SELECT n, s FROM o") == [(2, 20)]
    assert bed.rows("SELECT attempts, state FROM dead") == [(2, "dead")]


@pytest.mark.parametrize(("window", "before", "after"), [
    ("SESSION(ts, 30s)", [2, 1], [2, 1, 1, 1]),
    ("STATE_WINDOW(v)", [2, 1], [2, 3]),
    ("EVENT_WINDOW START WITH v > 0 END WITH v = 2", [3], [3, 1, 1]),
    ("COUNT_WINDOW(2)", [2, 1], [2, 2, 1]),
])
def test_replayed_rows_come_into_windows_that_rows_define(
    bed: TestBed, window: str, before: list[int], after: list[int]
) -> None:
    """REPLAY DLQ computes the windows around single rows again, with these and no other late rows."""
    bed.execute("CREATE STREAM s TRIGGER AT_ONCE WATERMARK 1s MAX_FUTURE 1h LATE DLQ dead ON_ERROR DLQ dead INTO o AS "
                f"SELECT _wstart ts, count(*) n FROM c1 {window}")
    put(bed, "c1", (0, 1), (0.2, 1), (5, 2), (2, 2), (3, 2), (90, 2))
    shown = "SELECT n FROM o ORDER BY ts"
    assert [n for (n,) in bed.rows(shown)] == before
    bed.execute(f"REPLAY DLQ dead WHERE event_time = {T0 + 2 * MINUTE} OR reason = 'future'")
    bed.streams.checkpoint()
    bed.streams.kill()
    bed.run()
    assert [n for (n,) in bed.rows(shown)] == after
    assert bed.rows("SELECT reason, state FROM dead ORDER BY event_time") == [
        ("late", "replayed"), ("late", "dead"), ("future", "replayed")]


@pytest.mark.parametrize("window", ["SESSION(ts, 30s)", "STATE_WINDOW(v)",
                                    "EVENT_WINDOW START WITH v > 0 END WITH v = 2", "COUNT_WINDOW(2)",
                                    "INTERVAL(10s)"])
@pytest.mark.parametrize("fate", ["DROP", "RECALC", "DLQ dead"])
def test_late_rows_of_any_window_are_seen(bed: TestBed, window: str, fate: str) -> None:
    """What is left out or counts nevertheless is counted and kept, and so is how late rows were."""
    create = (f"CREATE STREAM s TRIGGER AT_ONCE WATERMARK 1s LATE {fate} INTO o AS "
              f"SELECT _wstart ts, count(*) n FROM c1 {window}")
    if "COUNT" in window and fate == "RECALC":
        with pytest.raises(InvalidStreamError, match="EXPIRED"):
            bed.execute(create)
        return
    bed.execute(create)
    put(bed, "c1", (0, 1), (1, 1), (5, 2), (2, 2), (3, 2), (6, 2))
    counts = "late_rows, late_kept, suggested_watermark, lateness"
    left_out = fate != "RECALC"
    assert bed.rows(f"SELECT {counts} FROM information_schema.ins_watermarks") == [(
        *((2, 0) if left_out else (0, 2)), "99.9% of rows were at most 3m late",
        "in time: 4, <= 2.18m: 1, <= 4.37m: 1")]
    assert bed.rows("SELECT table_name, ts, reason, late_by_ms FROM information_schema.ins_late_rows ORDER BY ts") == [
        ("c1", SHIFT + minutes * MINUTE, "late", (5 - minutes) * MINUTE) for minutes in (2, 3) if left_out]
    assert bed.rows("SELECT sum(n) FROM o") == [(4 if left_out else 6,)]
    if fate == "DLQ dead":
        assert bed.rows("SELECT event_time, reason FROM dead ORDER BY event_time") == [
            (SHIFT + minutes * MINUTE, "late") for minutes in (2, 3)]


def test_history_that_fails_is_left_out(bed: TestBed) -> None:
    """Each row of FILL_HISTORY has its own line in the DLQ, however many pieces it was read in."""
    put(bed, "t", (0, 1, "a"), (1, HUGE, "b"), (2, HUGE, "c"), (3, 3, "d"))
    bed.execute("CREATE STREAM s TRIGGER AT_ONCE FILL_HISTORY 1 ON_ERROR DLQ dead INTO o AS "
                "SELECT _wstart ts, sum(picky(v)) s FROM t SESSION(ts, 10m)")
    bed.run()
    assert bed.rows("SELECT s FROM o") == [(16,)]
    assert bed.rows("SELECT event_time, content FROM dead ORDER BY event_time") == [
        (SHIFT + minutes * MINUTE, f'{{"ts": {T0 + minutes * MINUTE}}}') for minutes in (1, 2)]


def test_rows_from_before_the_stream_may_fail(bed: TestBed) -> None:
    """They aren't tried before RECALCULATE STREAM brings them in; what can't be computed then is left out as well."""
    put(bed, "t", (0, HUGE, "a"), (0.2, HUGE, "c"))
    bed.execute(f"CREATE STREAM s TRIGGER AT_ONCE IGNORE UPDATE 0 ON_ERROR SKIP INTO o AS {SUM}")
    put(bed, "t", (0.1, 1, "b"), (0.1, 2, "b"))
    assert bed.rows("SELECT n, s FROM o") == [(1, 8)]
    assert bed.rows("SELECT error_rows FROM information_schema.ins_watermarks") == [(0,)]
    bed.execute(f"RECALCULATE STREAM s FROM {SHOWN_ZERO}")
    bed.run()
    assert bed.rows("SELECT n, s FROM o") == [(1, 8)]
    assert bed.rows("SELECT error_rows FROM information_schema.ins_watermarks") == [(2,)]
    put(bed, "t", (0, 3, "a"))
    assert bed.rows("SELECT n, s FROM o") == [(2, 20)]


def test_a_failing_row_from_before_the_stream_can_be_mended(bed: TestBed) -> None:
    """The row that takes its place counts, though nobody had tried the old one."""
    put(bed, "t", (0, HUGE, "a"))
    bed.execute(f"CREATE STREAM s TRIGGER AT_ONCE IGNORE UPDATE 0 ON_ERROR SKIP INTO o AS {SUM}")
    put(bed, "t", (0, 1, "a"))
    assert bed.rows("SELECT n, s FROM o") == [(1, 4)]


def test_a_dlq_has_the_row_with_all_that_is_known_of_it(bed: TestBed) -> None:
    """Late rows, such that can't be computed and such from the future go to the table that CREATE STREAM makes."""
    bed.execute("CREATE STREAM s MAX_FUTURE 1h ON_ERROR DLQ dead LATE DLQ dead INTO o AS "
                "SELECT _wstart ts, count(*) n, sum(picky(v)) s FROM st INTERVAL(1m)")
    put(bed, "c0", (0, 1), (5, 1), (0.5, 7), (6, HUGE), (120, 3))
    rows = bed.rows("SELECT event_time, table_name, reason, attempts, state, content, stream_name FROM dead "
                    "ORDER BY ts, id")
    assert [row[:5] for row in rows] == [
        (SHIFT + 30_000, "c0", "late", 1, "dead"), (SHIFT + 6 * MINUTE, "c0", "error", 1, "dead"),
        (SHIFT + 120 * MINUTE, "c0", "future", 1, "dead")]
    assert rows[0][5:] == (f'{{"ts": {T0 + 30_000}, "v": 7}}', "s")
    assert "too big" in bed.rows("SELECT message FROM dead WHERE reason = 'error'")[0][0].lower()
    bed.streams.checkpoint()
    bed.streams.kill()
    bed.run()
    assert len(bed.rows("SELECT * FROM dead")) == 3


def test_a_replay_writes_no_row_twice(bed: TestBed) -> None:
    """After a crash without a checkpoint the same rows come again, under the same keys."""
    bed.execute("CREATE STREAM s LATE DLQ dead INTO o AS SELECT _wstart ts, count(*) n FROM st INTERVAL(1m)")
    put(bed, "c0", (0, 1), (5, 1), (0.5, 7), (1.5, 7))
    before = bed.rows("SELECT * FROM dead ORDER BY ts, id")
    bed.streams.kill()
    bed.run()
    assert bed.rows("SELECT * FROM dead ORDER BY ts, id") == before
    assert len(before) == 2


def test_replay_computes_the_windows_again(bed: TestBed) -> None:
    """REPLAY DLQ takes in what was left out, marks it, and is part of the checkpoint."""
    bed.execute("CREATE STREAM s MAX_FUTURE 1h LATE DLQ dead ON_ERROR DLQ dead INTO o AS "
                "SELECT _wstart ts, count(*) n FROM st INTERVAL(1m)")
    put(bed, "c0", (0, 1), (0.2, 2), (5, 1), (0.5, 7), (1.5, 8), (90, 1))
    assert bed.rows("SELECT ts, n FROM o ORDER BY ts") == [(SHIFT, 2)]
    bed.execute("REPLAY DLQ dead WHERE table_name = 'c0' AND reason = 'late'")
    bed.streams.checkpoint()
    bed.streams.kill()
    bed.run()
    assert bed.rows("SELECT ts, n FROM o ORDER BY ts") == [(SHIFT, 3), (SHIFT + MINUTE, 1)]
    assert bed.rows("SELECT reason, state FROM dead ORDER BY ts, id") == [
        ("late", "replayed"), ("late", "replayed"), ("future", "dead")]
    bed.execute("REPLAY DLQ dead")
    bed.run()
    put(bed, "c0", (100, 1))
    assert bed.rows("SELECT count(*) FROM dead WHERE state = 'dead'") == [(1,)]
    assert bed.rows("SELECT ts, n FROM o ORDER BY ts")[:2] == [(SHIFT, 3), (SHIFT + MINUTE, 1)]


def test_replay_into_a_forgotten_window_takes_all_vnodes() -> None:
    """What DELETE_MARK let go is computed by every vnode, not only by that of the row that is tried again."""
    with TestBed(now_ms=T0) as bed:
        bed.all("CREATE DATABASE d VGROUPS 2", "USE d", "CREATE STABLE st (ts TIMESTAMP, v INT) TAGS (g INT)",
                *(f"CREATE TABLE c{n} USING st TAGS ({n})" for n in range(4)),
                "CREATE STREAM s LATE DLQ dead DELETE_MARK 2m INTO o AS "
                "SELECT _wstart ts, count(*) n FROM st INTERVAL(1m)")
        homes = bed.rows("SELECT vgroup_id FROM information_schema.ins_tables WHERE table_name LIKE 'c_'")
        assert len(set(homes)) == 2
        for minutes in range(8):
            bed.execute("INSERT INTO " + " ".join(f"c{n} VALUES ({T0 + minutes * MINUTE}, 1)" for n in range(4)))
        put(bed, "c0", (0.5, 1))
        bed.checkpoint()
        assert bed.rows("SELECT ts, n FROM o ORDER BY ts")[0] == (SHIFT, 4)
        bed.execute("REPLAY DLQ dead")
        assert bed.rows("SELECT ts, n FROM o ORDER BY ts")[0] == (SHIFT, 5)


def test_a_row_that_fails_again_is_dead_again(bed: TestBed) -> None:
    """The attempts count up, and the row keeps its place in the DLQ."""
    bed.execute(f"CREATE STREAM s TRIGGER AT_ONCE ON_ERROR DLQ dead INTO o AS {SUM}")
    put(bed, "t", (0, 1, "a"), (0.1, HUGE, "b"))
    bed.execute("REPLAY DLQ dead")
    bed.run()
    assert bed.rows("SELECT event_time, attempts, state FROM dead") == [(SHIFT + 6_000, 2, "dead")]
    assert bed.rows("SELECT n FROM o") == [(1,)]
    put(bed, "t", (0.1, 5, "b"))
    assert bed.rows("SELECT n, s FROM o") == [(2, 24)]


def test_late_recalc_is_ignore_expired_0(bed: TestBed) -> None:
    """LATE RECALC takes late rows into account, LATE DROP does not."""
    for name, fate in (("s1", "DROP"), ("s2", "RECALC")):
        bed.execute(f"CREATE STREAM {name} LATE {fate} INTO o_{name} AS "
                    "SELECT _wstart ts, count(*) n FROM st INTERVAL(1m)")
    put(bed, "c0", (0, 1), (5, 1), (0.5, 7))
    assert bed.rows("SELECT n FROM o_s1") == [(1,)]
    assert bed.rows("SELECT n FROM o_s2") == [(2,)]


@pytest.mark.parametrize(("statement", "error", "text"), [
    ("CREATE STREAM s LATE DROP IGNORE EXPIRED 1 INTO o AS " + SUM, InvalidStreamError, "say the same"),
    ("CREATE STREAM s LATE DROP INTO o AS " + SCALAR, InvalidStreamError, "LATE is for windows"),
    ("CREATE STREAM s TRIGGER FORCE_WINDOW_CLOSE ON_ERROR SKIP INTO o AS " + SUM, InvalidStreamError,
     "ON_ERROR is for streams by event time"),
    ("CREATE STREAM s TIME INGESTION ON_ERROR SKIP INTO o AS " + SUM, InvalidStreamError,
     "ON_ERROR is for streams by event time"),
    ("CREATE STREAM s TIME INGESTION LATE DLQ dead INTO o AS " + SUM, InvalidStreamError,
     "LATE is for windows by event time"),
    ("CREATE STREAM s ON_ERROR DLQ a LATE DLQ b INTO o AS " + SUM, PenstockError, "one DLQ table"),
    ("CREATE STREAM s ON_ERROR DLQ st INTO o AS " + SUM, InvalidStatementError, "is not a DLQ table"),
    ("REPLAY DLQ st", InvalidStatementError, "is not a DLQ table"),
])
def test_what_is_refused(bed: TestBed, statement: str, error: type[PenstockError], text: str) -> None:
    """Each option is checked against the stream, and a DLQ must be one."""
    with pytest.raises(error, match=text):
        bed.execute(statement)


def test_a_dlq_that_a_stream_writes_cannot_be_dropped(bed: TestBed) -> None:
    """The table is in use until the stream is gone; then it is an ordinary table."""
    bed.execute(f"CREATE STREAM s ON_ERROR DLQ dead INTO o AS {SUM}")
    with pytest.raises(PenstockError, match="in use"):
        bed.execute("DROP TABLE dead")
    bed.all("DROP STREAM s", "DROP TABLE dead")


def test_defaults_of_the_configuration_are_kept_with_the_stream() -> None:
    """What was in force at the creation stays so, and SHOW CREATE STREAM gives a statement that means the same."""
    config = {"lateRows": "recalc", "allowedLateness": "1500ms", "closeWhenIdle": True, "maxFuture": "1h",
              "onError": "skip"}
    with TestBed(now_ms=T0, config=config) as bed:
        bed.all("CREATE DATABASE d VGROUPS 1", "USE d", "CREATE TABLE t (ts TIMESTAMP, v INT)")
        for name, options in (("s1", ""), ("s2", "ALLOWED_LATENESS 0s LATE DROP"), ("s3", "TIME PROCESSING")):
            bed.execute(f"CREATE STREAM {name} {options} INTO o_{name} AS "
                        "SELECT _wstart ts, count(*) n FROM t INTERVAL(1m)")
        bed.execute("CREATE STREAM s4 INTO o_s4 AS SELECT ts, v FROM t")
        shown = [bed.rows(f"SHOW CREATE STREAM s{n}")[0][1].split(" INTO ")[0] for n in (1, 2, 3, 4)]
        assert shown == [
            "CREATE STREAM s1 ALLOWED_LATENESS 1500a CLOSE_WHEN_IDLE 1 MAX_FUTURE 3600s ON_ERROR SKIP LATE RECALC",
            "CREATE STREAM s2 ALLOWED_LATENESS 0s CLOSE_WHEN_IDLE 1 MAX_FUTURE 3600s ON_ERROR SKIP LATE DROP",
            "CREATE STREAM s3 TIME PROCESSING", "CREATE STREAM s4 ON_ERROR SKIP"]
        put(bed, "t", (0, 1), (5, 1), (0.5, 7))
        assert bed.rows("SELECT n FROM o_s1") == [(2,)]
        assert bed.rows("SELECT n FROM o_s2") == [(1,)]


LONG = "x" * 16_000
JOINED = "concat(a, a, a, a, a, b)"  # of LONG it is longer than a text may be


@pytest.mark.parametrize("window", ["INTERVAL(1m)", "SESSION(ts, 1s)", "COUNT_WINDOW(2)",
                                    "EVENT_WINDOW START WITH v > 0 END WITH v = 2"])
@pytest.mark.parametrize("trigger", ["AT_ONCE", "WINDOW_CLOSE"])
def test_what_fails_of_a_window_is_null(bed: TestBed, window: str, trigger: str) -> None:
    """Aggregates of rows that can all be computed may not go together: that is no row's fault, and stops nobody."""
    bed.execute("CREATE TABLE long (ts TIMESTAMP, v INT, s VARCHAR(50000))")
    bed.execute(f"CREATE STREAM s TRIGGER {trigger} WATERMARK 1s ON_ERROR SKIP INTO o AS SELECT _wstart ts, "
                f"sum(v) n, length(concat(first(s), last(s))) l, rand() < 2 r FROM long {window}")
    put(bed, "long", (0, 1, "a"), (0.01, 2, "b"), (2, 1, LONG + LONG + "x"), (2.01, 2, LONG + LONG + LONG),
        (4, 1, "c"), (4.01, 2, "d"), (9, 1, "e"))
    assert bed.rows("SELECT n, l, r FROM o ORDER BY ts")[:3] == [(3, 2, True), (3, None, True), (3, 2, True)]


@pytest.mark.parametrize("query", [
    f"SELECT _wstart ts, count(*) n FROM long PARTITION BY {JOINED} k INTERVAL(1m)",
    f"SELECT _wstart ts, count(*) n FROM long PARTITION BY tbname, {JOINED} k SESSION(ts, 1s)",
    f"SELECT _wstart ts, count(*) n FROM long WHERE {JOINED} <> '' PARTITION BY tbname STATE_WINDOW(v)",
    f"SELECT ts, v n FROM long PARTITION BY tbname, {JOINED} k",
])
def test_tags_that_fail_are_of_their_own_rows_only(bed: TestBed, query: str) -> None:
    """Rows of other tables are computed, and a tag that is changed takes rows out that fail with it."""
    bed.all("CREATE STABLE long (ts TIMESTAMP, v INT) TAGS (a VARCHAR(16000), b VARCHAR(100))",
            "CREATE TABLE l0 USING long TAGS ('a', 'b')", f"CREATE TABLE l1 USING long TAGS ('{LONG}', 'c')",
            f"CREATE STREAM s TRIGGER AT_ONCE ON_ERROR DLQ dead INTO o AS {query}")
    put(bed, "l1", (0, 1))
    bed.execute(f"INSERT INTO l0 VALUES ({T0}, 1) l1 VALUES ({T0 + MINUTE}, 1)")
    assert bed.rows("SELECT ts, n FROM o ORDER BY ts") == [(SHIFT, 1)]
    bed.execute(f"ALTER TABLE l0 SET TAG a = '{LONG}'")
    assert bed.rows("SELECT ts, n FROM o ORDER BY ts") == []
    bed.checkpoint()
    bed.kill()
    bed.execute("ALTER TABLE l1 SET TAG a = 'd'")
    put(bed, "l1", (2, 1))
    put(bed, "l0", (3, 1))
    assert bed.rows("SELECT ts, n FROM o ORDER BY ts") == [(SHIFT + 2 * MINUTE, 1)]
    assert bed.rows("SELECT event_time, table_name, reason FROM dead ORDER BY event_time, table_name") == [
        (SHIFT, "l0", "error"), (SHIFT, "l1", "error"), (SHIFT + MINUTE, "l1", "error"),
        (SHIFT + 3 * MINUTE, "l0", "error")]


def test_a_name_that_fails_is_made_of_the_group(bed: TestBed) -> None:
    """SUBTABLE is asked once per group: a group for which it fails has the child table that it has without it."""
    bed.all("CREATE STABLE long (ts TIMESTAMP, v INT) TAGS (a VARCHAR(16000), b VARCHAR(100))",
            "CREATE TABLE l0 USING long TAGS ('a', 'b')", f"CREATE TABLE l1 USING long TAGS ('{LONG}', 'c')",
            f"CREATE STREAM s TRIGGER AT_ONCE ON_ERROR SKIP INTO o SUBTABLE({JOINED}) AS "
            "SELECT _wstart ts, count(*) n FROM long PARTITION BY a, b INTERVAL(1m)")
    bed.execute(f"INSERT INTO l1 VALUES ({T0}, 1) l0 VALUES ({T0}, 1)")
    assert [(name[:2], n) for name, n in bed.rows("SELECT tbname, n FROM o ORDER BY 1")] == [("aa", 1), ("t_", 1)]


@pytest.mark.parametrize(("function", "returned", "shown"), [("alone", "BIGINT", [1, 2, 3]),
                                                             ("texts", "VARCHAR(9)", ["fine"] * 3)])
@pytest.mark.parametrize("query", ["SELECT ts, {}(v) w FROM t", "SELECT _wstart ts, last({}(v)) w FROM t INTERVAL(1s)",
                                   "SELECT _wstart ts, last({}(v)) w FROM t STATE_WINDOW(v)"])
def test_a_function_fails_for_single_rows(
    bed: TestBed, function: str, returned: str, shown: list[Any], query: str
) -> None:
    """What it can't do for several rows at once it is asked for each, and what it returns must be what it says."""
    bed.execute(f"CREATE FUNCTION {function} (BIGINT) RETURNS {returned} LANGUAGE PYTHON AS "
                f"'dlq_functions:{function}'")
    bed.execute(f"CREATE STREAM s TRIGGER AT_ONCE ON_ERROR SKIP INTO o AS {query.format(function)}")
    bed.execute("INSERT INTO t VALUES " + " ".join(
        f"({T0 + place * MINUTE}, {value}, 'a')" for place, value in enumerate((1, 2, 9, 3))))
    assert bed.rows("SELECT w FROM o ORDER BY ts") == [(value,) for value in shown]
    assert bed.rows("SELECT error_rows FROM information_schema.ins_watermarks") == [(1,)]


@pytest.mark.parametrize("option", ["SKIP", "DLQ dead"])
@pytest.mark.parametrize(("query", "shown"), [
    ("SELECT a.ts, length({}) n FROM la a JOIN lb b ON a.ts = b.ts", [(SHIFT, None), (SHIFT + MINUTE, 5)]),
    ("SELECT a.ts, length({}) n FROM la a LEFT ASOF JOIN lb b ON a.ts >= b.ts", [(SHIFT, None), (SHIFT + MINUTE, 5)]),
    ("SELECT a.ts, 1 n FROM la a JOIN lb b ON a.ts = b.ts WHERE {} <> 'x'", [(SHIFT + MINUTE, 1)]),
    ("SELECT _wstart ts, sum(length({})) n FROM la a JOIN lb b ON a.ts = b.ts INTERVAL(1m)",
     [(SHIFT, None), (SHIFT + MINUTE, 5)]),
    ("SELECT _wstart ts, count(*) n, max(length({})) m FROM la a JOIN lb b ON a.ts = b.ts INTERVAL(1m)",
     [(SHIFT, 1), (SHIFT + MINUTE, 1)]),
])
def test_pairs_of_a_join_that_fail_are_null(bed: TestBed, option: str, query: str, shown: list[Any]) -> None:
    """No row of either side can be left out for them; the stream goes on, and other pairs are computed."""
    bed.all("CREATE TABLE la (ts TIMESTAMP, s VARCHAR(16000))", "CREATE TABLE lb (ts TIMESTAMP, s VARCHAR(16000))",
            f"CREATE STREAM s TRIGGER AT_ONCE ON_ERROR {option} INTO o AS "
            f"{query.format('concat(a.s, b.s, a.s, b.s, a.s)')}")
    for minutes, text in ((0, "x" * 16_000), (1, "y")):
        bed.all(*(f"INSERT INTO {table} VALUES ({T0 + minutes * MINUTE}, '{text}')" for table in ("la", "lb")))
    assert bed.rows("SELECT ts, n FROM o ORDER BY ts") == shown


FIVE = "concat({0}.s, {0}.s, {0}.s, {0}.s, {0}.s)"  # of LONG it is longer than a text may be
WITHIN = "a.ts BETWEEN b.ts - 1s AND b.ts + 1s"


def joined_tables(bed: TestBed, vgroups: int) -> None:
    """Makes two super tables in a database of their own, with a child table each."""
    bed.all(f"CREATE DATABASE e VGROUPS {vgroups}", "USE e",
            *(f"CREATE STABLE l{name} (ts TIMESTAMP, v INT, s VARCHAR(16000)) TAGS (g INT)" for name in "ab"),
            *(f"CREATE TABLE l{name}0 USING l{name} TAGS (0)" for name in "ab"))


def put_pair(bed: TestBed, minutes: float, left: str, right: str) -> None:
    """Inserts a row of either side; `v` of the right one is its minute."""
    bed.all(*(f"INSERT INTO l{name}0 VALUES ({T0 + round(minutes * MINUTE)}, {round(minutes)}, '{text}')"
              for name, text in (("a", left), ("b", right))))


#: Queries of what meets where a row of a pair fails, and what they show of it.
MEETINGS = (
    (f"SELECT a.ts, b.v p FROM la a JOIN lb b ON {WITHIN} AND {{}}", [0, 2]),
    ("SELECT a.ts, b.v p FROM la a LEFT JOIN lb b ON {} AND a.ts = b.ts", [0, None, 2]),
    (f"SELECT a.ts, b.v p FROM la a LEFT JOIN lb b ON {WITHIN} AND {{}} PARTITION BY a.tbname", [0, None, 2]),
    ("SELECT CASE WHEN a.ts IS NULL THEN b.ts ELSE a.ts END ts, CASE WHEN a.ts IS NULL THEN NULL ELSE b.v END p "
     "FROM la a FULL JOIN lb b ON a.ts = b.ts AND {}", [0, None, 2]),
    ("SELECT a.ts, a.v p FROM la a LEFT SEMI JOIN lb b ON a.ts = b.ts AND {}", [0, 2]),
    ("SELECT a.ts, a.v p FROM la a LEFT ANTI JOIN lb b ON a.ts = b.ts AND {}", [1]),
    ("SELECT a.ts, b.v p FROM la a LEFT ASOF JOIN lb b ON a.ts >= b.ts AND {}", [0, None, 2]),
    ("SELECT a.ts, sum(b.v) p FROM la a LEFT WINDOW JOIN lb b ON {} WINDOW_OFFSET(-1s, 1s)", [0, None, 2]),
    ("SELECT _wstart ts, sum(b.v) p FROM la a JOIN lb b ON a.ts = b.ts AND {} INTERVAL(1m)", [0, 2]),
)


@pytest.mark.parametrize(("place", "fails"), in_turn([("SKIP", 1), ("DLQ dead{}", 2)], [
    ("a", f"{FIVE.format('a')} = {FIVE.format('b')}"),
    ("b", f"{FIVE.format('a')} = {FIVE.format('b')}"),
    ("a", f"length({FIVE.format('a')}) + 1 > length(b.s)"),
    ("a", f"({FIVE.format('a')} LIKE 'x%' OR b.s = 'xx')"),
]))
def test_pairs_of_a_join_whose_on_fails_do_not_meet(
    bed: TestBed, place: tuple[str, int], fails: tuple[str, str]
) -> None:
    """Rows with which ON can't be computed stand alone, as with NULL, wherever rows meet; others find each other."""
    (option, vgroups), (failing, condition) = place, fails
    joined_tables(bed, vgroups)
    bed.all(*(f"CREATE STREAM s{number} TRIGGER AT_ONCE ON_ERROR {option.format(number)} INTO o{number} AS "
              f"{query.format(condition)}" for number, (query, _) in enumerate(MEETINGS)))
    put_pair(bed, 0, "x", "x")
    put_pair(bed, 1, *((LONG, "y") if failing == "a" else ("y", LONG)))
    put_pair(bed, 2, "xx", "xx")
    for number, (query, shown) in enumerate(MEETINGS):
        assert [row[0] for row in bed.rows(f"SELECT p FROM o{number} ORDER BY ts")] == shown, query


@pytest.mark.parametrize(("option", "vgroups", "trigger"), combined(
    ["SKIP", "DLQ dead"], [1, 2], ["AT_ONCE", "WINDOW_CLOSE"]))
def test_pairs_of_a_join_meet_once_on_can_be_computed(bed: TestBed, option: str, vgroups: int, trigger: str) -> None:
    """Late rows and such that are written anew, so that they fail or don't any more, change what was emitted."""
    joined_tables(bed, vgroups)
    bed.execute(f"CREATE STREAM s TRIGGER {trigger} IGNORE EXPIRED 0 DELETE_MARK 1h ON_ERROR {option} INTO o AS SELECT "
                f"a.ts, b.v p FROM la a LEFT JOIN lb b ON {FIVE.format('a')} = {FIVE.format('b')} AND {WITHIN}")

    def shown() -> list[int | None]:
        bed.run()
        bed.advance(5)  # the other vnode has no rows
        return [row[0] for row in bed.rows("SELECT p FROM o WHERE p IS NULL OR p < 60 ORDER BY ts")]

    for minutes, text in ((0, "x"), (2, LONG), (4, "z"), (60, "end"), (1, LONG), (3, "late")):
        put_pair(bed, minutes, text, text)
    assert shown() == [0, None, None, 3, 4]
    put_pair(bed, 1, "y", "y")
    put_pair(bed, 4, LONG, "z")
    bed.checkpoint()
    put_pair(bed, 2, LONG, "y")
    bed.kill()
    assert shown() == [0, 1, None, 3, None]
    bed.execute(f"DELETE FROM la WHERE ts = {T0 + 2 * MINUTE}")
    put_pair(bed, 4, "z", "z")
    assert shown() == [0, 1, 3, 4]
    assert bed.rows("SELECT error_rows FROM information_schema.ins_watermarks WHERE error_rows > 0") == []


def test_pairs_of_a_join_whose_on_fails_end_the_attempt_by_default(bed: TestBed) -> None:
    """Without ON_ERROR the stream stops there, visibly."""
    joined_tables(bed, 1)
    bed.execute(f"CREATE STREAM s TRIGGER AT_ONCE INTO o AS SELECT a.ts, b.v FROM la a LEFT JOIN lb b "
                f"ON a.ts = b.ts AND {FIVE.format('a')} = b.s")
    with pytest.raises(InvalidValueError, match="longer"):
        put_pair(bed, 0, LONG, "x")


@pytest.mark.parametrize("option", ["SKIP", "DLQ dead"])
def test_pairs_of_a_join_that_looks_up_do_not_meet_where_on_fails(bed: TestBed, option: str) -> None:
    """A row of either table with which ON can't be computed is found by none, or finds none."""
    joined_tables(bed, 1)
    bed.all("CREATE TABLE known (ts TIMESTAMP, v INT, s VARCHAR(16000))",
            f"INSERT INTO known VALUES ({T0}, 1, 'x') ({T0 + 1}, 2, '{LONG}')",
            f"CREATE STREAM s TRIGGER AT_ONCE ON_ERROR {option} INTO o AS SELECT a.ts, k.v p FROM la a "
            f"LEFT JOIN known k ON {FIVE.format('a')} = {FIVE.format('k')} PARTITION BY a.tbname")
    for minutes, text in enumerate(("x", LONG, "y")):
        put_pair(bed, minutes, text, "")
    assert bed.rows("SELECT p FROM o ORDER BY ts") == [(1,), (None,), (None,)]


def test_late_rows_of_a_join_are_counted_once_beside_rows_that_fail(bed: TestBed) -> None:
    """A block is tried as a whole first, then without the rows that fail: its late rows are late once."""
    bed.all("CREATE TABLE u (ts TIMESTAMP, w BIGINT)", "CREATE STREAM s ON_ERROR SKIP INTO o AS "
            "SELECT a.ts, a.v, b.w FROM t a JOIN u b ON a.ts = b.ts WHERE picky(a.v) > 0")
    put(bed, "t", (10, 1, "a"))
    bed.execute(f"INSERT INTO t VALUES ({T0}, 1, 'late'), ({T0 + 11 * MINUTE}, {HUGE}, 'fails')")
    assert bed.rows("SELECT node_id, late_rows, error_rows FROM information_schema.ins_watermarks") == [(2, 1, 1)]
