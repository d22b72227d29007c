"""The audit: planted faults are found within a minute and named, right streams give no incident in a day."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import times
from kits.engines.sandboxes import T0, TestBed
from kits.streams.verified_streams import (
    BATCH,
    FAULTS,
    STREAMS,
    Plant,
    a_source_skips_a_record,
    insert,
    made,
    meet_fault,
    play,
)

from penstock.common.errors import StorageError
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.coordinator.stored_plan import StoredPlan
from penstock.mnode.streams import audit_incidents, stream_audit
from penstock.mnode.streams.audit_incidents import Incidents
from penstock.mnode.streams.stream_checkpoints import StreamCheckpoints
from penstock.mnode.streams.stream_comparison import StreamComparison, Subject
from penstock.mnode.streams.stream_planning import StreamPlanning
from penstock.mnode.streams.stream_starts import StreamStarts
from penstock.sql.schema import Session
from penstock.tasks.join.join_task import JoinTask
from penstock.tasks.sink.sink_task import SinkTask

LOOK_S = 4.0
"""A look takes some 40 ms, after which the audit rests so long at the default share."""
INCIDENTS = ("SELECT state, ts, window_end, stream_values, query_values, action, equal_since IS NULL "
             "FROM information_schema.ins_stream_incidents ORDER BY stream_name, incident")
ANY_ROW = "differences are reported only while no rows arrive, since any row may change its results"
COUNTS = "SELECT n FROM o0 ORDER BY _wstart"


def audit(bed: TestBed, looks: int = 8) -> None:
    """Lets the audit work, by default for half a minute."""
    bed.engine.parts.audit._random = Random(11)
    for _ in range(looks):
        bed.engine.parts.audit.step()
        bed.advance(LOOK_S)


def shown(bed: TestBed, columns: str, stream: str = "s0") -> tuple[Any, ...]:
    return bed.rows(f"SELECT {columns} FROM information_schema.ins_streams WHERE stream_name = '{stream}'")[0]


def spoil(bed: TestBed) -> None:
    """Has the result of the first window of s0 be another than it is."""
    (child,), = bed.rows("SELECT DISTINCT tbname FROM o0")
    bed.forge(f"INSERT INTO `{child}` (_wstart, n) VALUES ({T0}, 7)")


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found_within_a_minute(plant: Plant) -> None:
    """It is an incident of its window, and the verdict says so."""
    with made(STREAMS[1]) as bed:
        meet_fault(bed, plant)
        audit(bed)
        assert [line[:3] for line in bed.rows(INCIDENTS)] == [("differs", 0, 10_000)]
        kind = "unbalanced" if plant is a_source_skips_a_record else "mismatch"
        assert shown(bed, "mismatches, verdict_kind") == (1, kind)


def test_a_wrong_column_is_found_within_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Source tasks that take one column for another, whose name differs in case only, give other sums."""
    run = StreamStarts.run

    def run_swapped(self: StreamStarts, stream: StreamRecord, stored: StoredPlan) -> None:
        source = stored.plan.source
        first, second = (column for column in source.columns if column.name.lower() == "v")
        swapped = {first.name: second.physical, second.name: first.physical}
        columns = tuple(replace(one, physical=swapped.get(one.name, one.physical)) for one in source.columns)
        run(self, stream, replace(stored, plan=replace(stored.plan, source=replace(source, columns=columns))))

    with made() as bed:
        bed.all("CREATE STABLE n (ts TIMESTAMP, `V` INT, v INT) TAGS (g INT)", "CREATE TABLE n0 USING n TAGS (0)")
        monkeypatch.setattr(StreamStarts, "run", run_swapped)
        bed.execute(f"CREATE STREAM s0 {BATCH} INTO o0 AS SELECT _wstart, sum(`V`) a, sum(v) b FROM n INTERVAL(10s)")
        bed.execute(f"INSERT INTO n0 VALUES ({T0}, 5, 6)")
        assert bed.rows("SELECT a, b FROM o0") == [(6, 5)]
        audit(bed)
        assert [line[3:5] for line in bed.rows(INCIDENTS)] == [("a = 6, b = 5", "a = 5, b = 6")]


@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN"])
def test_a_join_that_reads_one_side_is_found_within_a_minute(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A join that gives nothing, or rows without partner, though there are such on both sides."""
    merge = JoinTask._merge

    def merge_left(self: JoinTask, data: pa.RecordBatch, place: int) -> None:
        if self._upstream[place].index < self._left_sources:
            merge(self, data, place)

    query = f"SELECT a.ts, a.v x, b.v y FROM m a {kind} m b ON a.g = b.g AND a.ts = b.ts PARTITION BY a.g, a.tbname"
    monkeypatch.setattr(JoinTask, "_merge", merge_left)
    with made(("TRIGGER AT_ONCE IGNORE EXPIRED 0", query)) as bed:
        insert(bed, 0, 1, 5)
        insert(bed, 2, 1, 6)
        audit(bed)
        assert {line[:2] for line in bed.rows(INCIDENTS)} == {("missing" if kind == "JOIN" else "differs", 1_000)}


def test_a_stream_may_be_dropped_while_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit goes on with the others."""
    with made(STREAMS[1], STREAMS[1]) as bed:
        insert(bed, 0, 1, 5)
        insert(bed, 0, 22, 7)
        look = StreamComparison.reached

        def dropping(self: StreamComparison, subject: Subject) -> Any:
            if bed.rows("SHOW STREAMS LIKE 's0'"):
                bed.execute("DROP STREAM s0")
            return look(self, subject)

        monkeypatch.setattr(StreamComparison, "reached", dropping)
        audit(bed)
        assert shown(bed, "mismatches, last_audit IS NULL", "s1") == (0, False)


def test_an_incident_has_what_is_needed_to_see_why() -> None:
    """Its folder holds the statement, the plan, the cut, the checkpoints, and the rows of its window."""
    with made(STREAMS[1]) as bed:
        insert(bed, 0, 1, 5)
        insert(bed, 1, 2, 6)
        insert(bed, 0, 22, 7)
        bed.forge(f"DELETE FROM o0 WHERE _wstart = {T0}")
        audit(bed)
        assert len(bed.rows(INCIDENTS)) == 2
        found = bed.rows("SELECT folder, rows, table_name FROM information_schema.ins_stream_incidents "
                         "WHERE query_values = 'n = 1, s = 5, a = 1.0, l = 5'")
        folder = Path(found[0][0])
        (incident,) = json.loads((folder / "incident.json").read_text())
        assert incident["statement"].startswith("CREATE STREAM s0")
        assert (incident["moment"], incident["child"]) == (T0, found[0][2])
        assert incident["plan"]
        assert any(line.startswith("checkpoint ") for line in incident["history"])
        rows = pq.read_table(folder / "rows.parquet")
        assert (rows.num_rows, sorted(rows.column("v").to_pylist())) == (2, [5, 6])
        assert found[0][1] == 2


@pytest.mark.parametrize("flushed", [False, True])
def test_child_tables_with_other_tags_are_looked_at_first(flushed: bool) -> None:
    """Their rows are in other groups now; what is wrong there is found among many other windows."""
    rare = T0 + 100_000_000
    with made((BATCH, "SELECT _wstart, g k, count(*) n FROM m PARTITION BY g INTERVAL(10s)")) as bed:
        bed.execute("CREATE TABLE t4 USING m TAGS (0)")
        for table in range(4):
            rows = " ".join(f"({T0 + 10_000 * n}, 1, 1.0)" for n in range(20_000))
            bed.execute(f"INSERT INTO t{table} VALUES {rows} t4 VALUES ({rare}, 1, 1.0)")
        if flushed:
            bed.execute("FLUSH DATABASE d")
        audit(bed, looks=5)
        bed.execute("ALTER TABLE t4 SET TAG g = 7")
        bed.forge(f"DELETE FROM o0 WHERE _wstart = {rare}")
        audit(bed, looks=5)
        assert {line[1] for line in bed.rows(INCIDENTS)} == {100_000_000}


def test_what_differs_once_is_no_incident() -> None:
    """The second look is behind a checkpoint of its own; what is right then is forgotten."""
    with made(STREAMS[1]) as bed:
        insert(bed, 0, 1, 5)
        spoil(bed)
        audit(bed, looks=1)
        bed.execute(f"INSERT INTO t0 VALUES ({T0 + 1_000}, 6, 1.0)")
        audit(bed)
        assert bed.rows(INCIDENTS) == []
        assert shown(bed, "mismatches, verdict_kind") == (0, "idle")
        assert shown(bed, "audited_results")[0] > 0


def test_rows_that_come_meanwhile_are_no_incident() -> None:
    """Results of windows with rows behind the cut that is compared are ahead of it."""
    with made(STREAMS[1]) as bed:
        insert(bed, 0, 1, 5)
        bed.checkpoint()
        for second in range(2, 9):
            insert(bed, 0, second, 5)
            audit(bed, looks=1)
        assert bed.rows(INCIDENTS) == []


def test_what_is_known_to_differ_is_no_incident() -> None:
    """Late rows that are dropped, rows that RESUME passes over, and those that RECALCULATE STREAM brings in."""
    query = "SELECT _wstart, count(*) n FROM m PARTITION BY tbname INTERVAL(10s)"
    with made(("IGNORE EXPIRED 1", query), (BATCH, query), (BATCH, query)) as bed:
        for second in (1, 2, 11, 12, 25, 3):
            insert(bed, 0, second)
        bed.execute("PAUSE STREAM s1")
        insert(bed, 0, 26)
        bed.all("RESUME STREAM IGNORE UNTREATED s1", "CREATE STREAM s3 INTO o3 AS " + query,
                f"RECALCULATE STREAM s3 FROM {T0}")
        audit(bed, looks=24)
        assert bed.rows(INCIDENTS) == []
        assert all(shown(bed, "audited_results", f"s{n}")[0] for n in range(3))


def test_a_mismatch_is_recalculated_if_that_is_asked_for() -> None:
    """ON_MISMATCH RECALCULATE, given late too, puts the result right behind its incident, which says so."""
    with made(STREAMS[1]) as bed:
        insert(bed, 0, 1, 5)
        insert(bed, 0, 12, 5)
        spoil(bed)
        audit(bed)
        assert [line[3:] for line in bed.rows(INCIDENTS)] == [("n = 7", "n = 1", None, True)]
        bed.forge(f"DELETE FROM o0 WHERE _wstart = {T0 + 10_000}")
        bed.execute("ALTER STREAM s0 SET ON_MISMATCH RECALCULATE")
        audit(bed, looks=12)
        assert [line[5:] for line in bed.rows(INCIDENTS)] == [(None, True), ("recalculated", False)]
        assert bed.rows(COUNTS) == [(7,), (1,)]


def test_a_result_that_is_right_again_is_told() -> None:
    """The incident stays, with the time from which on its result is what the query says."""
    with made(STREAMS[1]) as bed:
        insert(bed, 0, 1, 5)
        spoil(bed)
        audit(bed)
        insert(bed, 0, 1, 6)
        audit(bed)
        assert [line[0::6] for line in bed.rows(INCIDENTS)] == [("differs", False)]
        assert shown(bed, "mismatches")[0] == 0
        events = [text for (text,) in bed.rows("SELECT event FROM information_schema.ins_stream_events")]
        assert sum("audit, incident 1" in text for text in events) == 2


def test_incidents_outlive_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start reads them; one that is damaged or forged is passed over, and they are bounded."""
    monkeypatch.setattr(audit_incidents, "KEPT", 3)
    with made(STREAMS[1], directory=tmp_path) as bed:
        for second in range(0, 60, 10):
            insert(bed, 0, second, 5)
        bed.forge("DELETE FROM o0")
        audit(bed, looks=12)
        before = bed.rows(INCIDENTS)
        assert len(before) == 3
        folders = [Path(line[0]) for line in bed.rows("SELECT folder FROM information_schema.ins_stream_incidents")]
    (folders[0] / "incident.json").write_text('[{"class": "Incident", "number": 1}]')
    with TestBed(directory=tmp_path) as bed:
        assert bed.rows(INCIDENTS) == before[1:]
        assert Incidents(bed.engine.paths, bed.engine.fs).of(1) == []


def test_results_without_rows_are_found() -> None:
    """One that is left, or made up, where the source has nothing any more, also in a table without rows."""
    with made(STREAMS[1]) as bed:
        for second in (1, 12, 100_000):
            insert(bed, 0, second, 5)
        (child,), = bed.rows("SELECT DISTINCT tbname FROM o0")
        bed.execute("DELETE FROM t0")
        assert bed.rows(COUNTS) == []
        audit(bed)
        bed.forge(f"INSERT INTO `{child}` (_wstart, n) VALUES ({T0 + 50_000_000}, 7)")
        audit(bed)
        assert [line[:2] for line in bed.rows(INCIDENTS)] == [("extra", 50_000_000)]


@pytest.mark.parametrize("is_full", [True, False])
def test_what_there_is_no_room_for_is_told_and_counted(is_full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of results whose incidents can't be kept the verdict and the events tell; moved folders make room."""
    with made(STREAMS[1]) as bed:
        insert(bed, 0, 1, 5)
        spoil(bed)
        audit(bed)
        folder = Path(bed.rows("SELECT folder FROM information_schema.ins_stream_incidents")[0][0])
        if is_full:
            monkeypatch.setattr(audit_incidents, "KEPT", 1)
        else:
            shutil.rmtree(folder.parent)
            folder.parent.write_text("")
        insert(bed, 0, 12, 5)
        bed.forge(f"DELETE FROM o0 WHERE _wstart = {T0 + 10_000}")
        audit(bed)
        assert shown(bed, "mismatches, verdict_kind, audit_note") == (2, "mismatch", None)
        events = [text for (text,) in bed.rows("SELECT event FROM information_schema.ins_stream_events")]
        assert sum("no incident was stored" in text for text in events) == (1 if is_full else 2)
        insert(bed, 0, 12, 6)
        audit(bed)
        assert shown(bed, "mismatches")[0] == 1
        if is_full:
            shutil.rmtree(folder)
        else:
            folder.parent.unlink()
        bed.forge(f"DELETE FROM o0 WHERE _wstart = {T0 + 10_000}")
        audit(bed)
        assert folder.exists()


@pytest.mark.parametrize("number", ["moment", "found_ms", "rows"])
def test_forged_incidents_are_passed_over(number: str, tmp_path: Path) -> None:
    """Numbers without a column, texts that are none, and files without an end keep no other from being shown."""
    with made(STREAMS[1], directory=tmp_path) as bed:
        insert(bed, 0, 1, 5)
        spoil(bed)
        audit(bed)
        before = bed.rows(INCIDENTS)
        folder = Path(bed.rows("SELECT folder FROM information_schema.ins_stream_incidents")[0][0])
    text = (folder / "incident.json").read_text()
    for place, forged in enumerate(({number: 2**64}, {"found": "\ud800"}), 2):
        (folder.parent / str(place)).mkdir()
        parts = [{**json.loads(text)[0], "number": place, **forged}, *json.loads(text)[1:]]
        (folder.parent / str(place) / "incident.json").write_text(json.dumps(parts))
    (folder.parent / "4").mkdir()
    (folder.parent / "4" / "incident.json").symlink_to("/dev/null")
    with TestBed(directory=tmp_path) as bed:
        assert bed.rows(INCIDENTS) == before


def test_calendar_windows_are_audited_where_all_rows_were_deleted() -> None:
    """Few rows, and deletes of all times, lead to no day that no calendar has."""
    query = "SELECT _wstart, count(*) n FROM m INTERVAL(1d)"
    with made((BATCH, query), time_zone="Europe/Berlin") as bed:
        insert(bed, 0, 1)
        bed.execute("DELETE FROM m")
        insert(bed, 0, 2)
        for _ in range(9):
            audit(bed, looks=1)
            assert "checkpoint" in (shown(bed, "audit_note")[0] or "checkpoint")
        assert shown(bed, "audited_results")[0] > 0


def test_rows_that_are_late_for_some_windows_are_no_incident() -> None:
    """With IGNORE EXPIRED 1 a row counts in those of its windows that are open."""
    query = "SELECT _wstart, count(*) n FROM m INTERVAL(10s) SLIDING(4s)"
    with made(("TRIGGER AT_ONCE", query)) as bed:
        for second in (0.5, 15.8, 11.1):
            insert(bed, 0, second)
        assert bed.rows(COUNTS) == [(1,), (1,), (1,), (2,), (1,)]
        audit(bed)
        assert bed.rows(INCIDENTS) == []
        assert shown(bed, "audited_results")[0] > 0


def test_rows_of_others_in_the_result_table_are_no_incident() -> None:
    """A stream may write into a table that was there before, with what it holds."""
    with made() as bed:
        bed.all("CREATE STABLE o0 (ts TIMESTAMP, n BIGINT) TAGS (g INT)", "CREATE TABLE mine USING o0 TAGS (1)",
                f"INSERT INTO mine VALUES ({T0}, 3)",
                f"CREATE STREAM s0 {BATCH} INTO o0 TAGS (g) AS SELECT _wstart, count(*) n FROM m PARTITION BY g "
                "INTERVAL(10s)")
        insert(bed, 0, 1)
        audit(bed)
        assert bed.rows(INCIDENTS) == []
        bed.forge(f"DELETE FROM o0 WHERE ts = {T0}")
        audit(bed)
        assert [line[:2] for line in bed.rows(INCIDENTS)] == [("missing", 0)]


def test_tags_that_change_while_it_looks_are_no_incident(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query goes by the tags of now, the results by those of the cut."""
    with made(STREAMS[2]) as bed:
        insert(bed, 0, 1, 5)
        tags = iter(range(5, 50))
        for name in ("reached", "committed"):
            cut_of = getattr(StreamComparison, name)

            def retagged(self: StreamComparison, *given: Any, cut_of: Any = cut_of) -> Any:
                cut = cut_of(self, *given)
                bed.engine.execute(f"ALTER TABLE t0 SET TAG g = {next(tags)}", bed.session)
                return cut

            monkeypatch.setattr(StreamComparison, name, retagged)
        audit(bed, looks=8)
        assert next(tags) > 6
        assert bed.rows(INCIDENTS) == []


def test_what_cannot_be_audited_is_said() -> None:
    """Streams that VERIFY STREAM refuses, those that don't run, and windows of too many rows have a note."""
    with made(("TRIGGER FORCE_WINDOW_CLOSE", "SELECT _wstart, count(*) n FROM m PARTITION BY tbname INTERVAL(10s)"),
              STREAMS[6]) as bed, pytest.MonkeyPatch.context() as patch:
        insert(bed, 0, 1)
        patch.setattr(stream_audit, "ROWS_MAX", 0)
        audit(bed)
        assert "clock" in shown(bed, "audit_note")[0]
        assert "ON_MISMATCH" not in shown(bed, "audit_note")[0]
        bed.execute("ALTER STREAM s0 SET ON_MISMATCH RECALCULATE")
        audit(bed)
        assert "; so ON_MISMATCH changes nothing" in shown(bed, "audit_note")[0]
        assert shown(bed, "audit_note", "s1") == ("its results aren't audited: they may come of any of 1 rows",)


@pytest.mark.parametrize(("options", "windows", "note"), [
    (BATCH, "INTERVAL(10s) SLIDING(4s)", None), ("TRIGGER AT_ONCE", "INTERVAL(10s)", None),
    ("TRIGGER AT_ONCE", "INTERVAL(10s) SLIDING(4s)", "SLIDING with IGNORE EXPIRED 1"),
    ("TRIGGER AT_ONCE IGNORE UPDATE 1", "INTERVAL(10s)", "IGNORE UPDATE 1"),
    (f"{BATCH} GUARANTEE AT_LEAST_ONCE", "INTERVAL(10s)", "AT_LEAST_ONCE"),
    (BATCH, "SESSION(ts, 2s)", None), (BATCH, "STATE_WINDOW(v)", ANY_ROW)])
def test_it_is_said_of_which_streams_differences_are_not_told(options: str, windows: str, note: str | None) -> None:
    """Where what differs may be right, or any row may change any result."""
    with made((options, f"SELECT _wstart, count(*) n FROM m PARTITION BY tbname {windows}")) as bed:
        insert(bed, 0, 1)
        audit(bed, looks=2)
        told, = shown(bed, "audit_note")
        assert told is None if note is None else note in told


def test_sessions_are_judged_while_rows_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows behind the cut that are farther away than the gap change nothing of a session."""
    with made((BATCH, "SELECT _wstart, count(*) n FROM m PARTITION BY tbname SESSION(ts, 2s)")) as bed:
        for second in (1, 2, 20, 30):
            insert(bed, 0, second)
        bed.forge(f"DELETE FROM o0 WHERE _wstart = {T0 + 1_000}")
        compare, seconds = StreamComparison.compare, iter(range(40, 1_000, 10))

        def compare_late(self: StreamComparison, *given: Any) -> Any:
            second = next(seconds)
            bed.engine.execute(f"INSERT INTO t0 VALUES ({T0 + 1_000 * second}, 1, 1.0)", bed.session)
            return compare(self, *given)

        monkeypatch.setattr(StreamComparison, "compare", compare_late)
        audit(bed)
        assert [line[:2] for line in bed.rows(INCIDENTS)] == [("missing", 1_000)]


def test_a_late_row_hides_no_other_window() -> None:
    """Rows behind the cut lie in narrow ranges: what is between a late one and the others is judged."""
    with made(STREAMS[1]) as bed, pytest.MonkeyPatch.context() as patch:
        for second in (1, 100, 200, 300):
            insert(bed, 0, second, 5)
        bed.forge(f"DELETE FROM o0 WHERE _wstart = {T0 + 100_000}")
        compare = StreamComparison.compare

        def compare_late(self: StreamComparison, *given: Any) -> Any:
            rows = " ".join(f"({T0 + 1_000 * second}, 5, 1.0)" for second in (2, 301))
            bed.engine.execute(f"INSERT INTO t0 VALUES {rows}", bed.session)
            return compare(self, *given)

        patch.setattr(StreamComparison, "compare", compare_late)
        audit(bed)
        assert [line[:2] for line in bed.rows(INCIDENTS)] == [("missing", 100_000)]


def test_windows_of_rows_that_come_meanwhile_are_no_suspects() -> None:
    """Rows behind the cut make windows that the query doesn't have, wherever in these they are."""
    with made(STREAMS[1], STREAMS[1]) as bed:
        insert(bed, 0, 1)
        insert(bed, 0, 30)
        audit(bed, looks=3)
        insert(bed, 0, 18)  # behind what was read before the rest
        audit(bed, looks=1)
        assert not any(audited.suspects for audited in bed.engine.parts.audit._audited.values())


def test_a_look_waits_for_no_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """What differs is looked at again once there is one; meanwhile other streams have their turns."""
    with made(STREAMS[1], STREAMS[2]) as bed:
        insert(bed, 0, 1, 5)
        spoil(bed)
        with monkeypatch.context() as patch:
            waited: list[float] = []
            patch.setattr(StreamCheckpoints, "begin_checkpoint",
                          lambda self, stream, timeout_s: waited.append(timeout_s))
            audit(bed)
        assert set(waited) == {0.0}
        assert "once there is a checkpoint" in shown(bed, "audit_note")[0]
        assert shown(bed, "audited_results", "s1")[0] > 0
        assert bed.rows(INCIDENTS) == []
        audit(bed)
        assert [line[3:5] for line in bed.rows(INCIDENTS)] == [("n = 7", "n = 1")]


def test_spans_are_compared_in_one_query() -> None:
    """Those whose rows overlap as one: no row counts twice."""
    with made(STREAMS[2]) as bed:
        for second in range(0, 100, 5):
            insert(bed, 0, second, 5)
        comparison = bed.engine.parts.audit._comparison
        subject = comparison.subject(bed.engine.catalog.streams.all()[0])

        def equal(*spans: tuple[int, int]) -> int:
            found = comparison.compare(subject, [(T0 + 1_000 * first, T0 + 1_000 * last) for first, last in spans],
                                       comparison.reached(subject), Session())
            assert not found.differences
            return found.equal

        assert equal((10, 19), (60, 69)) == equal((10, 19)) + equal((60, 69))
        assert equal((60, 69), (10, 30), (25, 40)) == equal((10, 40)) + equal((60, 69))


def test_a_stream_whose_looks_are_dear_has_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream has the same share of the audit's time."""
    with made(STREAMS[1], STREAMS[2]) as bed:
        insert(bed, 0, 1)
        audited = bed.engine.parts.audit
        compare, looks = audited._comparison.compare, {"s0": 0, "s1": 0}

        def compare_slowly(subject: Subject, *given: Any) -> Any:
            looks[subject.stream.name] += 1
            bed.clock.compute(1.0 if subject.stream.name == "s0" else 0.1)
            return compare(subject, *given)

        monkeypatch.setattr(audited._comparison, "compare", compare_slowly)
        for _ in range(22):
            bed.advance(audited.step())
        assert looks["s1"] >= 9 * looks["s0"] > 0


def test_new_child_tables_leave_the_query_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is planned anew when a table has another column; not for each change of the catalog."""
    with made(STREAMS[1]) as bed:
        insert(bed, 0, 1)
        planned: list[StreamRecord] = []
        results_of = StreamPlanning.results_of
        monkeypatch.setattr(StreamPlanning, "results_of", lambda self, stream: planned.append(stream) or results_of(
            self, stream))
        audit(bed, looks=2)
        bed.execute("CREATE TABLE t9 USING m TAGS (1)")
        audit(bed, looks=2)
        assert len(planned) == 1
        bed.execute("ALTER STABLE m ADD COLUMN more INT")
        audit(bed, looks=2)
        assert len(planned) == 2


@pytest.mark.parametrize("crashed", [False, True])
def test_unfinished_incidents_take_no_place(crashed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk nothing is left of one; what a crash has left doesn't count towards those that are kept."""
    monkeypatch.setattr(audit_incidents, "KEPT", 1)
    with made(STREAMS[1]) as bed:
        insert(bed, 0, 1, 5)
        spoil(bed)
        folder = bed.engine.paths.incidents(bed.engine.catalog.streams.all()[0].id)
        if crashed:
            (folder / "1").mkdir(parents=True)
            (folder / "1" / "rows.parquet").write_text("")
        else:
            with monkeypatch.context() as patch:
                def refuse(*given: Any) -> None:
                    raise StorageError("the disk is full")

                patch.setattr(Incidents, "_write", refuse)
                audit(bed, looks=2)
            assert shown(bed, "mismatches") == (1,)
            assert list(folder.iterdir()) == []
            bed.execute(f"INSERT INTO t0 VALUES ({T0 + 1_000}, 5, 1.0)")
            audit(bed, looks=2)
            spoil(bed)
        audit(bed)
        assert len(bed.rows(INCIDENTS)) == 1


def test_a_look_that_fails_keeps_no_other_stream_from_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is noted, and the next one is taken."""
    with made(STREAMS[1], STREAMS[2]) as bed:
        insert(bed, 0, 1)
        comparison = bed.engine.parts.audit._comparison
        compare = comparison.compare
        monkeypatch.setattr(comparison, "compare", lambda subject, *given: compare(
            subject, *given) if subject.stream.name == "s1" else 1 / 0)
        audit(bed)
        assert "ZeroDivisionError" in shown(bed, "audit_note")[0]
        assert shown(bed, "audited_results", "s1")[0] > 0


def test_a_share_of_the_time_is_for_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a look it rests for so long that looks take their share of the time, whatever others do meanwhile."""
    with made(STREAMS[1]) as bed:
        insert(bed, 0, 1)
        comparison = bed.engine.parts.audit._comparison
        compare = comparison.compare

        def compare_slowly(*given: Any) -> Any:
            bed.clock.compute(0.5)
            bed.clock.advance(20.0)  # the others'
            return compare(*given)

        monkeypatch.setattr(comparison, "compare", compare_slowly)
        for _ in range(3):
            assert bed.engine.parts.audit.step() == pytest.approx(0.5 * 99)


# --- a day ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(times(1, 20)))
def test_right_streams_give_no_incident_in_a_day(seed: int) -> None:
    """Rows that are late, rewritten, deleted, tables that are new or get other tags, columns, kills: all is as it is to
    be, and each stream was looked at all the while.
    """
    random = Random(seed)
    streams = random.sample(STREAMS, 4)
    with made(*streams) as bed:
        bed.engine.parts.audit._random = random
        start = bed.clock.monotonic()
        tables = 4
        turns = times(48, 96)
        for turn in range(turns):
            second = turn * 4
            for _ in range(random.randrange(4)):
                late = random.choice([0, 0, 1, 5, 60])
                insert(bed, random.randrange(tables), max(0, second - late), random.choice([None, -2, 0, 1, 2]),
                       random.choice([None, 0.1, 1e15]))
            kind = random.choice(["kill", "delete", "retag", "flush", "checkpoint", "child", "column", *[""] * 20])
            if kind == "child":
                bed.execute(f"CREATE TABLE t{tables} USING m TAGS ({tables % 3})")
                tables += 1
            elif kind == "column":
                bed.execute(f"ALTER STABLE m ADD COLUMN c{turn} INT")
            elif kind:
                play(bed, kind, {"delete": (random.randrange(4), max(1, second - 30)),
                                 "retag": (random.randrange(4), random.randrange(3))}.get(kind))
            bed.engine.parts.audit.step()
            bed.advance(24 * 3600 / turns)
        assert bed.clock.monotonic() - start >= 24 * 3600
        assert bed.rows(INCIDENTS) == []
        for n in range(4):
            results, mismatches, note = shown(bed, "audited_results, mismatches, audit_note", f"s{n}")
            assert (mismatches, note or ANY_ROW) == (0, ANY_ROW)
            assert results > 20


def test_a_sink_that_drops_writes_now_and_then_is_found_in_a_day() -> None:
    """The day would show a fault: without one write of many, it does."""
    with made(STREAMS[1]) as bed, pytest.MonkeyPatch.context() as patch:
        calls = iter(range(10_000))
        add = SinkTask._add
        patch.setattr(SinkTask, "_add", lambda self, *given, **named: None if next(calls) % 20 == 19 else add(
            self, *given, **named))
        for turn in range(60):
            insert(bed, 0, turn * 4)
            bed.engine.parts.audit.step()
            bed.advance(900.0)
        assert bed.rows(INCIDENTS)
