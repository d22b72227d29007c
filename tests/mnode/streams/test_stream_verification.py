"""VERIFY STREAM: right results are equal, whatever comes; what a fault has made of others is told, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed

from penstock.common.errors import NotFoundError, NotSupportedError, PenstockError, UnavailableError
from penstock.mnode.streams import stream_verification
from penstock.mnode.streams.stream_verification import StreamVerification
from penstock.tasks.compute.dense_aggregation import DenseAggregation
from penstock.tasks.sink.sink_task import SinkTask
from penstock.tasks.source.change_emitter import ChangeEmitter
from penstock.tasks.window.window_table import WindowTable

Line = tuple[Any, ...]
BATCH = "TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0"
#: Streams of all kinds: their options, and their query.
STREAMS = [
    (BATCH, "SELECT ts, v + 1 w, f FROM m WHERE v >= 0 PARTITION BY tbname"),
    (BATCH, "SELECT _wstart, count(*) n, sum(v) s, avg(f) a, last(v) l FROM m PARTITION BY tbname INTERVAL(10s)"),
    (BATCH, "SELECT _wstart, _wend e, g k, stddev(f) d, first(v) l FROM m PARTITION BY g INTERVAL(10s) SLIDING(3s)"),
    ("WATERMARK 4s IGNORE EXPIRED 0", "SELECT _wstart, count(*) n, max(f) x FROM m PARTITION BY v INTERVAL(7s, 2s)"),
    ("WATERMARK 4s IGNORE EXPIRED 0", "SELECT _wstart, _wend e, count(*) n, spread(v) s FROM m SESSION(ts, 2s)"),
    ("TRIGGER MAX_DELAY 5s IGNORE EXPIRED 0", "SELECT _wstart, count(v) n FROM m INTERVAL(5s)"),
    (BATCH, "SELECT _wstart, v k, count(*) n FROM m PARTITION BY tbname, g STATE_WINDOW(v)"),
    (BATCH, "SELECT _wstart, count(*) n FROM m PARTITION BY tbname EVENT_WINDOW START WITH v > 1 END WITH v < 0"),
]
ROW = st.tuples(st.integers(0, 3), st.integers(0, 60), st.sampled_from([None, -2, 0, 1, 2, 3]),
                st.sampled_from([None, 0.1, -1.5, 1e15]))
STEPS = st.lists(st.one_of(
    st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=8)),
    st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=8)),
    st.tuples(st.just("delete"), st.tuples(st.integers(0, 3), st.integers(0, 60))),
    st.tuples(st.just("retag"), st.tuples(st.integers(0, 3), st.integers(0, 2))),
    st.tuples(st.sampled_from(["checkpoint", "kill", "flush"]), st.none())), min_size=1, max_size=8)


def made(*streams: tuple[str, str], **options: Any) -> TestBed:
    bed = TestBed(config={"stateMapSize": "1GiB"}, **options)
    bed.all("CREATE DATABASE d VGROUPS 2 KEEP 36500", "USE d",
            "CREATE STABLE m (ts TIMESTAMP, v INT, f DOUBLE) TAGS (g INT)",
            *(f"CREATE TABLE t{n} USING m TAGS ({n % 2})" for n in range(4)),
            *(f"CREATE STREAM s{n} {options} INTO o{n} AS {query}" for n, (options, query) in enumerate(streams)))
    return bed


def insert(bed: TestBed, table: int, second: float, value: Any = 1, real: Any = 1.0) -> None:
    texts = ", ".join("NULL" if each is None else repr(each) for each in (value, real))
    bed.execute(f"INSERT INTO t{table} VALUES ({T0 + round(second * 1000)}, {texts})")


def play(bed: TestBed, kind: str, what: Any) -> None:
    match kind:
        case "insert":
            for row in what:
                insert(bed, *row)
        case "delete":
            bed.execute(f"DELETE FROM t{what[0]} WHERE ts >= {T0 + what[1] * 1000} AND ts < {T0 + what[1] * 1200}")
        case "retag":
            bed.execute(f"ALTER TABLE t{what[0]} SET TAG g = {what[1]}")
        case "flush":
            bed.execute("FLUSH DATABASE d")
        case _:
            getattr(bed, kind)()


def verified(bed: TestBed, name: str = "s0", more: str = "") -> list[Line]:
    """Returns what is told of results that aren't equal: state, time, both sides' values, what is known."""
    *lines, last = bed.rows(f"VERIFY STREAM {name} {more}")
    assert last[0] == "verified"
    assert f", {len(lines)} aren't" in last[3]
    return [(state, ts, found, wanted, known) for state, _, ts, found, wanted, known in lines]


@settings(max_examples=times(8, 400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
        bed.execute(f"DELETE FROM o0 WHERE _wstart = {T0 + 30_000}")
        assert [line[:2] for line in verified(bed)] == [("missing", 30_000)] * 4


def test_what_is_wrong_is_told() -> None:
    """A result that was changed, one that was deleted and one that nobody computed, in the whole and in ranges."""
    with made(STREAMS[1]) as bed:
        insert(bed, 0, 1, 5)
        insert(bed, 0, 12, 6)
        (child,), = bed.rows("SELECT DISTINCT tbname FROM o0")
        bed.execute(f"INSERT INTO `{child}` (_wstart, n) VALUES ({T0}, 7)")
        bed.execute(f"INSERT INTO `{child}` (_wstart, n) VALUES ({T0 + 20_000}, 1)")
        bed.execute(f"DELETE FROM o0 WHERE _wstart = {T0 + 10_000}")
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
        bed.execute("DELETE FROM o0")
        assert [line[:2] for line in verified(bed)] == [("missing", 0), ("missing", 10_000)]


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


@pytest.mark.parametrize("query", [
    "SELECT ts, length({}) n FROM l", "SELECT _wstart, count(*) n, max(length({})) s FROM l INTERVAL(10s)",
    "SELECT _wstart, count(*) n FROM l WHERE {} <> 'x' INTERVAL(10s)",
    "SELECT _wstart, count(*) n FROM l STATE_WINDOW(length({}))",
    "SELECT _wstart, count(*) n FROM l EVENT_WINDOW START WITH length({}) > 0 END WITH s = 'b'"])
def test_rows_that_fail_are_known(query: str) -> None:
    """Those that ON_ERROR leaves out don't end the statement; where the query counts them, they are named."""
    with made() as bed:
        bed.all("CREATE TABLE l (ts TIMESTAMP, s VARCHAR(16000))",
                f"CREATE STREAM s0 TRIGGER AT_ONCE ON_ERROR SKIP INTO o0 AS {query.format('concat(s, s, s, s, s)')}",
                f"INSERT INTO l VALUES ({T0}, 'a') ({T0 + 1}, '{'x' * 16_000}') ({T0 + 20_000}, 'b')")
        assert all(known == "1 rows of this time were left out: error" for *_, known in verified(bed))
        assert len(verified(bed)) == ("WHERE" not in query and "STATE" not in query)


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
    looked, seconds = StreamVerification._look, iter(range(1, 4))

    def checkpointed(self: StreamVerification, *given: Any) -> Any:
        cut = checkpoint(self, *given)
        for second in seconds:
            insert(bed, 0, second)
            break
        return cut

    checkpoint = StreamVerification._checkpointed
    monkeypatch.setattr(StreamVerification, "_checkpointed", checkpointed)
    with made(STREAMS[1]) as bed:
        insert(bed, 0, 0.5)
        assert verified(bed) == []
        assert bed.rows("SELECT n FROM o0") == [(4,)]
    assert looked is StreamVerification._look


# --- faults -----------------------------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def once(patch: pytest.MonkeyPatch, owner: type, name: str, fault: Callable[..., Any]) -> None:
    """Has one call of a method do what `fault` does: it is given the method, and what that was given."""
    method, calls = getattr(owner, name), iter([True])
    patch.setattr(owner, name, lambda self, *given, **named: fault(method, self, *given, **named) if next(
        calls, False) else method(self, *given, **named))


def a_source_skips_a_record(patch: pytest.MonkeyPatch) -> None:
    once(patch, ChangeEmitter, "emit", lambda *given, **named: None)


def a_window_forgets_what_was_kept(patch: pytest.MonkeyPatch) -> None:
    restore = WindowTable.restore
    patch.setattr(WindowTable, "restore", lambda self, meta, closed: restore(
        self, {**meta, "newest_stored": None}, closed))


def a_sink_drops_a_write(patch: pytest.MonkeyPatch) -> None:
    once(patch, SinkTask, "_add", lambda *given, **named: None)


def a_kernel_adds_otherwise(patch: pytest.MonkeyPatch) -> None:
    summed = DenseAggregation._sum
    patch.setattr(DenseAggregation, "_sum", lambda self, values, codes: summed(self, np.minimum(values, 3), codes))


FAULTS: list[Plant] = [
    a_source_skips_a_record, a_window_forgets_what_was_kept, a_sink_drops_a_write, a_kernel_adds_otherwise]


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Plant) -> None:
    """What a fault of a task, or of a kernel, makes of a window is told, and that nothing is known that explains it."""
    with pytest.MonkeyPatch.context() as patch, made(STREAMS[1]) as bed:
        insert(bed, 0, 1, 5)
        bed.checkpoint()
        bed.loses_rows = True
        plant(patch)
        bed.kill()
        insert(bed, 0, 2, 6)
        patch.undo()
        insert(bed, 0, 12, 7)
        found = verified(bed)
        assert [line[:2] for line in found] == [("differs", 0)]
        assert found[0][4] is None


# --- what can't be verified -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "query", "why"), [
    ("TRIGGER FORCE_WINDOW_CLOSE", "SELECT _wstart, count(*) n FROM m PARTITION BY tbname INTERVAL(10s)", "clock"),
    ("TRIGGER CONTINUOUS_WINDOW_CLOSE", "SELECT _wstart, count(*) n FROM m INTERVAL(10s)", "recalculation"),
    ("TIME INGESTION", "SELECT _wstart, count(*) n FROM m INTERVAL(10s)", "INGESTION"),
    ("", "SELECT _wstart, count(*) n FROM m PARTITION BY tbname INTERVAL(10s) FILL(NULL)", "FILL"),
    (BATCH, "SELECT ts, rand() r FROM m PARTITION BY tbname", "rand"),
    (BATCH, "SELECT a.ts, a.v x, b.v y FROM t0 a JOIN t1 b ON a.ts = b.ts", "joins"),
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
        bed.checkpoint()
        bed.kill()
        insert(bed, 0, 3, 9)
        insert(bed, 0, 15, 9)
        bed.run()
        assert bed.rows(counts) == [(3,), (1,)]
