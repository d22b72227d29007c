"""VERIFY STREAM: right results are equal, whatever comes; what a fault has made of others is told, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import combined, times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0
from kits.streams.verified_streams import (
    BATCH,
    FAULTS,
    STEPS,
    STREAMS,
    Plant,
    insert,
    made,
    meet_fault,
    play,
    verified,
)

from penstock.common.errors import NotFoundError, NotSupportedError, PenstockError, UnavailableError
from penstock.mnode.streams import stream_verification
from penstock.mnode.streams.stream_comparison import Difference, LeftOut, StreamComparison
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.protocol.task_status import HistoryProgress, LateRows, TaskProgress, TaskStatus

SOURCE = TaskId(1, "source", 0)


@settings(max_examples=times(3, 400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(streams=st.lists(st.sampled_from(STREAMS), min_size=2, max_size=3, unique=True), steps=STEPS)
def test_right_streams_are_equal(streams: list[tuple[str, str]], steps: list[Any]) -> None:
    """Late and rewritten rows, deletes, new tags, kills: no result of any stream is told."""
    with made(*streams) as bed:
        for kind, what in steps:
            play(bed, kind, what)
        for n in range(len(streams)):
            assert verified(bed, f"s{n}") == []
            assert verified(bed, f"s{n}", f"FROM {T0 + 10_000} TO {T0 + 20_000}") == []


def test_the_source_is_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of rows give what all rows at once give; a difference is told in whichever piece it is."""
    monkeypatch.setattr(stream_verification, "ROWS_PER_PIECE", 7)
    with made(STREAMS[1], STREAMS[2]) as bed:
        for second in range(60):
            insert(bed, second % 4, second)
        assert verified(bed) == verified(bed, "s1") == []
        bed.forge(f"DELETE FROM o0 WHERE _wstart = {T0 + 30_000}")
        assert [line[:2] for line in verified(bed)] == [("missing", 30_000)] * 4


def test_what_is_wrong_is_told() -> None:
    """A result that was changed, one that was deleted and one that nobody computed, in the whole and in ranges."""
    with made(STREAMS[1]) as bed:
        insert(bed, 0, 1, 5)
        insert(bed, 0, 12, 6)
        (child,), = bed.rows("SELECT DISTINCT tbname FROM o0")
        bed.forge(f"INSERT INTO `{child}` (_wstart, n) VALUES ({T0}, 7)")
        bed.forge(f"INSERT INTO `{child}` (_wstart, n) VALUES ({T0 + 20_000}, 1)")
        bed.forge(f"DELETE FROM o0 WHERE _wstart = {T0 + 10_000}")
        wrong = [("differs", 0, "n = 7", "n = 1", None),
                 ("missing", 10_000, None, "n = 1, s = 6, a = 1.0, l = 6", None),
                 ("extra", 20_000, "n = 1, s = NULL, a = NULL, l = NULL", None, None)]
        assert verified(bed) == wrong
        assert verified(bed, more=f"FROM {T0 + 1} TO {T0 + 10_000}") == wrong[1:2]
        assert verified(bed, more=f"FROM {T0 + 10_001}") == wrong[2:]


def test_windows_that_are_open_may_be_missing_and_closed_ones_not() -> None:
    """The watermark says which results must be there."""
    with made(("WATERMARK 4s", "SELECT _wstart, count(*) n FROM m PARTITION BY tbname INTERVAL(10s)")) as bed:
        for second in (1, 11, 23):
            insert(bed, 0, second)
        assert bed.rows("SELECT n FROM o0") == [(1,)]
        assert verified(bed) == []
        insert(bed, 0, 24)
        assert verified(bed) == []
        bed.forge("DELETE FROM o0")
        assert [line[:2] for line in verified(bed)] == [("missing", 0), ("missing", 10_000)]


def test_open_windows_may_be_behind_where_results_are_delayed() -> None:
    """MAX_DELAY writes them now and then: a row more, or all rows gone, is no difference before the window is over."""
    query = "SELECT _wstart, count(*) n FROM m PARTITION BY tbname INTERVAL(10s)"
    with made(("TRIGGER MAX_DELAY 5s IGNORE EXPIRED 0", query)) as bed:
        insert(bed, 0, 1)
        insert(bed, 0, 11)
        bed.advance(6)
        insert(bed, 0, 12)
        assert bed.rows("SELECT n FROM o0 ORDER BY _wstart") == [(1,), (1,)]
        assert verified(bed) == []
        play(bed, "delete", (0, 11))
        assert verified(bed) == []
        bed.forge("DELETE FROM o0")
        assert [line[:2] for line in verified(bed)] == [("missing", 0)]


def test_rows_that_were_left_out_are_known() -> None:
    """A late row that is dropped makes a difference, and is named; so is what IGNORE UPDATE 1 counts twice."""
    query = "SELECT _wstart, count(*) n FROM m PARTITION BY tbname INTERVAL(10s)"
    with made(("IGNORE EXPIRED 1", query), (f"{BATCH.replace('UPDATE 0', 'UPDATE 1')}", query)) as bed:
        for second in (1, 2, 11, 12, 25, 3):
            insert(bed, 0, second)
        insert(bed, 0, 12)
        assert verified(bed) == [("differs", 0, "n = 2", "n = 3", "1 rows of this time were left out: late")]
        assert verified(bed, "s1") == [
            ("differs", 10_000, "n = 3", "n = 2", "rewritten rows count once more: IGNORE UPDATE 1")]


def test_rows_that_may_count_twice_are_known() -> None:
    """AT_LEAST_ONCE may be why a result differs: after a restart rows count again."""
    with made((f"GUARANTEE AT_LEAST_ONCE {BATCH}", "SELECT _wstart, count(*) n FROM m INTERVAL(10s)")) as bed:
        insert(bed, 0, 1)
        assert verified(bed) == []
        bed.forge("DELETE FROM o0")
        assert [line[4] for line in verified(bed)] == ["rows may count again after a restart: GUARANTEE AT_LEAST_ONCE"]


@pytest.mark.parametrize("query", [
    "SELECT ts, length({}) n FROM l", "SELECT _wstart, count(*) n, max(length({})) s FROM l INTERVAL(10s)",
    "SELECT _wstart, count(*) n, apercentile(length({}), 50) p FROM l INTERVAL(10s)",
    "SELECT _wstart, count(*) n FROM l WHERE {} <> 'x' INTERVAL(10s)",
    "SELECT _wstart, count(*) n FROM l STATE_WINDOW(length({}))",
    "SELECT _wstart, count(*) n FROM l EVENT_WINDOW START WITH length({}) > 0 END WITH s = 'b'"])
def test_rows_that_fail_are_known(query: str) -> None:
    """Those that ON_ERROR leaves out don't end the statement; where the query counts them, they are named."""
    with made() as bed:
        bed.all("CREATE TABLE l (ts TIMESTAMP, s VARCHAR(16000))",
                f"CREATE STREAM s0 TRIGGER AT_ONCE ON_ERROR SKIP INTO o0 AS {query.format('concat(s, s, s, s, s)')}",
                f"INSERT INTO l VALUES ({T0}, 'a') ({T0 + 1}, '{'x' * 16_000}') ({T0 + 20_000}, 'b')")
        where = "" if "EVENT" in query else " of this time"
        assert all(known == f"1 rows{where} were left out: error" for *_, known in verified(bed))
        assert len(verified(bed)) == ("WHERE" not in query and "STATE" not in query)


@pytest.mark.parametrize("window", ["COUNT_WINDOW(2)", "STATE_WINDOW(v)", "SESSION(ts, 4s)"])
def test_a_row_that_was_left_out_changes_windows_of_other_times(window: str) -> None:
    """Where rows define windows, those behind it begin elsewhere without it: that is known as well."""
    with made(("WATERMARK 1s", f"SELECT _wstart, count(*) n FROM m PARTITION BY tbname {window}")) as bed:
        for second in (1, 5, 9, 30, 60, 3, 7):
            insert(bed, 0, second, int(second != 7))
        lines = verified(bed)
        where = " of this time" if "SESSION" in window else ""
        assert lines
        assert all(known == f"2 rows{where} were left out: late" for *_, known in lines)


def test_rows_from_before_the_stream_do_not_count() -> None:
    """Without FILL_HISTORY the query is over what came behind the stream's start."""
    with made() as bed:
        insert(bed, 0, 1)
        bed.all("CREATE STREAM s0 TRIGGER AT_ONCE INTO o0 AS SELECT _wstart, count(*) n FROM m INTERVAL(10s)",
                "CREATE STREAM s1 TRIGGER AT_ONCE FILL_HISTORY 1 INTO o1 AS SELECT _wstart, count(*) n FROM m "
                "INTERVAL(10s)")
        insert(bed, 1, 2)
        assert bed.rows("SELECT n FROM o0") == [(1,)]
        assert bed.rows("SELECT n FROM o1") == [(2,)]
        assert verified(bed) == verified(bed, "s1") == []


def test_a_result_that_changes_meanwhile_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come behind the cut of each look are ahead of it in the results: nothing is wrong in the end."""
    seconds = iter(range(1, 4))

    def checkpointed(self: StreamComparison, *given: Any) -> Any:
        cut = checkpoint(self, *given)
        for second in seconds:
            insert(bed, 0, second)
            break
        return cut

    checkpoint = StreamComparison._checkpointed
    monkeypatch.setattr(StreamComparison, "_checkpointed", checkpointed)
    with made(STREAMS[1]) as bed:
        insert(bed, 0, 0.5)
        assert verified(bed) == []
        assert bed.rows("SELECT n FROM o0") == [(4,)]
    assert next(seconds, None) is None


# --- faults -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Plant) -> None:
    """What a fault of a task, or of a kernel, makes of a window is told, and that nothing is known that explains it."""
    with made(STREAMS[1]) as bed:
        meet_fault(bed, plant)
        found = verified(bed)
        assert [line[:2] for line in found] == [("differs", 0)]
        assert found[0][4] is None


# --- what was wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("history", "query", "last"), combined(["", "FILL_HISTORY 1"], [
    "SELECT _wstart, g k, count(*) n FROM m PARTITION BY g INTERVAL(10s)",
    "SELECT _wstart, g k, count(*) n FROM m PARTITION BY g, tbname INTERVAL(10s) SLIDING(5s)",
    "SELECT _wstart, g k, count(*) n FROM m PARTITION BY g SESSION(ts, 2s)",
    "SELECT _wstart, g k, v x, count(*) n FROM m PARTITION BY tbname, g STATE_WINDOW(v)",
    "SELECT _wstart, g k, count(*) n FROM m PARTITION BY tbname, g COUNT_WINDOW(2)",
    "SELECT ts, v x FROM m PARTITION BY tbname, g"], ["SET TAG g = 6", "SET TAG g = 0", None]))
def test_groups_that_were_left_again_after_a_kill_are_gone(history: str, query: str, last: str | None) -> None:
    """An earlier attempt has written results of a group that later records of the same block have a table leave."""
    with made() as bed:
        for second in range(0, 12, 4):
            insert(bed, 0, second, second % 8)
        options = BATCH.replace("EXPIRED 0", "EXPIRED 1") if "COUNT" in query else BATCH
        bed.execute(f"CREATE STREAM s0 {options} WATERMARK 1s {history} INTO o0 AS {query}")
        for second in range(12, 24, 4):
            insert(bed, 0, second, second % 8)
        bed.checkpoint()
        bed.execute("ALTER TABLE t0 SET TAG g = 5")
        bed.engine.execute("DROP TABLE t0" if last is None else f"ALTER TABLE t0 {last}", bed.session)
        bed.kill()
        assert verified(bed) == []


# --- what can't be verified -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "query", "why"), [
    ("TRIGGER FORCE_WINDOW_CLOSE", "SELECT _wstart, count(*) n FROM m PARTITION BY tbname INTERVAL(10s)", "clock"),
    ("TRIGGER CONTINUOUS_WINDOW_CLOSE", "SELECT _wstart, count(*) n FROM m INTERVAL(10s)", "recalculation"),
    ("TIME INGESTION", "SELECT _wstart, count(*) n FROM m INTERVAL(10s)", "INGESTION"),
    (BATCH, "SELECT ts, rand() r FROM m PARTITION BY tbname", "rand"),
    (BATCH, "SELECT a.ts, a.v x, b.g y FROM m a JOIN (SELECT TAGS tbname, g FROM m) b ON a.g = b.g "
            "PARTITION BY a.tbname", "lookups"),
])
def test_streams_whose_rows_do_not_tell_are_refused(options: str, query: str, why: str) -> None:
    """The error says why."""
    with made((options, query)) as bed, pytest.raises(NotSupportedError, match=why):
        bed.execute("VERIFY STREAM s0")


def test_only_streams_that_run_are_verified() -> None:
    """Unknown and paused streams, and a range that ends before it begins, are refused."""
    with made(STREAMS[0]) as bed:
        with pytest.raises(NotFoundError):
            bed.execute("VERIFY STREAM other")
        with pytest.raises(PenstockError, match="ends before it begins"):
            bed.execute("VERIFY STREAM s0 FROM 5 TO 3")
        bed.execute("PAUSE STREAM s0")
        with pytest.raises(UnavailableError, match="doesn't run"):
            bed.execute("VERIFY STREAM s0")
        bed.execute("RESUME STREAM s0")
        assert verified(bed) == []


@pytest.mark.parametrize("query", [
    "SELECT _wstart, count(*) n, sum(v) s FROM m PARTITION BY tbname INTERVAL(10s)",
    "SELECT _wstart, g k, count(*) n FROM m PARTITION BY g INTERVAL(10s) SLIDING(5s)",
    "SELECT _wstart, count(*) n FROM m PARTITION BY tbname SESSION(ts, 2s)",
    "SELECT ts, v w FROM m PARTITION BY tbname"])
def test_rows_from_before_the_stream_stay_out_whatever_changes(query: str) -> None:
    """Rows of their windows that are rewritten, deleted, late or re-tagged don't bring them in."""
    with made() as bed:
        for table in range(4):
            for second in (1, 2, 3, 14):
                insert(bed, table, second)
        bed.execute(f"CREATE STREAM s0 {BATCH} INTO o0 AS {query}")
        for table in range(4):
            insert(bed, table, 4)
            insert(bed, table, 2, 7)
        bed.run()
        assert verified(bed) == []
        insert(bed, 0, 4, 9)
        play(bed, "delete", (1, 4))
        play(bed, "delete", (2, 1))
        play(bed, "retag", (3, 0))
        bed.run()
        assert verified(bed) == []
        bed.kill()
        insert(bed, 0, 4, 5)
        bed.run()
        assert verified(bed) == []


@pytest.mark.parametrize(("status", "why"), [
    (TaskStatus(SOURCE, "RUNNING", history=HistoryProgress(0, 9, 5, 5, 0.5, None, done=False)),
     "history is still being read"),
    (TaskStatus(SOURCE, "RUNNING", progress=TaskProgress(recalculates=True)), "a recalculation is under way"),
    (TaskStatus(SOURCE, "RUNNING", late=LateRows(late_rows=3)),
     "3 rows were left out whose times are no longer known")])
def test_what_tasks_say_is_known(status: TaskStatus, why: str) -> None:
    """What is still to be computed, and rows that nobody remembers, explain any difference; else nothing does."""
    difference = Difference("missing", "t", 0, 10, None, "n = 1")
    assert LeftOut.of([status]).reasons(difference) == [why]
    assert LeftOut.of([TaskStatus(SOURCE, "RUNNING")]).reasons(difference) == []


def test_rows_that_resume_has_passed_over_are_known() -> None:
    """The stream will never have them, and the query has."""
    with made(STREAMS[1]) as bed:
        insert(bed, 0, 1)
        bed.execute("PAUSE STREAM s0")
        insert(bed, 0, 12)
        bed.execute("RESUME STREAM IGNORE UNTREATED s0")
        assert [(*line[:2], line[4]) for line in verified(bed)] == [
            ("missing", 10_000, "RESUME STREAM IGNORE UNTREATED has left rows out")]


def test_recalculate_brings_in_rows_from_before_the_stream() -> None:
    """They count in its range from then on, also when something of it is rewritten, and behind a restart."""
    with made() as bed:
        for second in (1, 2, 14):
            insert(bed, 0, second)
        bed.execute(f"CREATE STREAM s0 {BATCH} INTO o0 AS SELECT _wstart, count(*) n FROM m INTERVAL(10s)")
        insert(bed, 0, 3)
        insert(bed, 0, 15)
        bed.execute(f"RECALCULATE STREAM s0 FROM {T0} TO {T0 + 5_000}")
        bed.run()
        counts = "SELECT n FROM o0 ORDER BY _wstart"
        assert bed.rows(counts) == [(3,), (1,)]
        brought = "RECALCULATE STREAM has brought in rows from before the stream"
        assert verified(bed) == [("differs", 0, "n = 3", "n = 1", brought)]
        bed.checkpoint()
        bed.kill()
        insert(bed, 0, 3, 9)
        insert(bed, 0, 15, 9)
        bed.run()
        assert bed.rows(counts) == [(3,), (1,)]


@pytest.mark.parametrize("query", [
    "SELECT _wstart, sum(f) s, avg(f) a, floor(sum(f)) x, cast(sum(f) as int) c, count(*) n FROM m INTERVAL(1m)",
    "SELECT _wstart, stddev(f) d, var_pop(f) p, sum(f * f) q, CASE WHEN sum(f) > 0 THEN 1 ELSE 2 END c FROM m "
    "INTERVAL(1m)"])
def test_sums_that_nearly_cancel_are_equal(query: str) -> None:
    """What is left of large values of both signs depends on their order, and what follows from its sign even more."""
    values = [round(((n * 7_919) % 20_011 - 10_000) * 999.37, 2) for n in range(200)]
    values += [-value for value in values]
    with made((BATCH, query), (BATCH, query)) as bed:
        for n, value in enumerate(values):
            bed.engine.execute(f"INSERT INTO t{n % 4} VALUES ({T0 + n * 7_001 % 30_000}, 1, {value})", bed.session)
            if n % 50 == 0:
                bed.run()
        assert verified(bed) == []
        bed.execute(f"DELETE FROM t0 WHERE ts = {T0}")
        bed.forge("DELETE FROM o0")
        assert {line[0] for line in verified(bed)} == {"missing"}


def test_columns_that_the_stream_does_not_write_are_not_compared() -> None:
    """Somebody else may keep notes there."""
    with made() as bed:
        bed.all("CREATE STABLE o0 (ts TIMESTAMP, n BIGINT, note INT) TAGS (g INT)",
                f"CREATE STREAM s0 {BATCH} INTO o0 (ts, n) TAGS (g) AS SELECT _wstart, count(*) FROM m PARTITION BY g "
                "INTERVAL(10s)")
        insert(bed, 0, 1)
        (child,), = bed.rows("SELECT DISTINCT tbname FROM o0")
        bed.forge(f"INSERT INTO `{child}` (ts, note) VALUES ({T0}, 4)")
        assert verified(bed) == []
