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

from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.coordinator.stored_plan import StoredPlan
from penstock.mnode.streams import audit_incidents, stream_audit
from penstock.mnode.streams.audit_incidents import Incidents
from penstock.mnode.streams.stream_comparison import StreamComparison
from penstock.mnode.streams.stream_starts import StreamStarts
from penstock.tasks.join.join_task import JoinTask
from penstock.tasks.sink.sink_task import SinkTask

LOOK_S = 4.0
"""A look takes some 40 ms, after which the audit rests so long at the default share."""
INCIDENTS = ("SELECT state, ts, window_end, stream_values, query_values, action, equal_since IS NULL "
             "FROM information_schema.ins_stream_incidents ORDER BY stream_name, incident")
COUNTS = "SELECT n FROM o0 ORDER BY _wstart"


def audit(bed: TestBed, looks: int = 15) -> None:
    """Lets the audit work for a minute."""
    bed.engine.parts.audit._random = Random(11)
    for _ in range(looks):
        bed.engine.parts.audit.step()
        bed.advance(LOOK_S)


def shown(bed: TestBed, columns: str, stream: str = "s0") -> tuple[Any, ...]:
    return bed.rows(f"SELECT {columns} FROM information_schema.ins_streams WHERE stream_name = '{stream}'")[0]


def spoil(bed: TestBed) -> None:
    """Has the result of the first window of s0 be another than it is."""
    (child,), = bed.rows("SELECT DISTINCT tbname FROM o0")
    bed.execute(f"INSERT INTO `{child}` (_wstart, n) VALUES ({T0}, 7)")


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


def test_an_incident_has_what_is_needed_to_see_why() -> None:
    """Its folder holds the statement, the plan, the cut, the checkpoints, and the rows of its window."""
    with made(STREAMS[1]) as bed:
        insert(bed, 0, 1, 5)
        insert(bed, 1, 2, 6)
        insert(bed, 0, 22, 7)
        bed.execute(f"DELETE FROM o0 WHERE _wstart = {T0}")
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
        bed.execute(f"DELETE FROM o0 WHERE _wstart = {rare}")
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
        bed.execute(f"DELETE FROM o0 WHERE _wstart = {T0 + 10_000}")
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
        bed.execute("DELETE FROM o0")
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
        bed.execute(f"INSERT INTO `{child}` (_wstart, n) VALUES ({T0 + 50_000_000}, 7)")
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
        bed.execute(f"DELETE FROM o0 WHERE _wstart = {T0 + 10_000}")
        audit(bed)
        assert shown(bed, "mismatches, verdict_kind, audit_note") == (2, "mismatch", None)
        events = [text for (text,) in bed.rows("SELECT event FROM information_schema.ins_stream_events")]
        assert sum("no incident is kept of it" in text for text in events) == (1 if is_full else 2)
        insert(bed, 0, 12, 6)
        audit(bed)
        assert shown(bed, "mismatches")[0] == 1
        if is_full:
            shutil.rmtree(folder)
        else:
            folder.parent.unlink()
        bed.execute(f"DELETE FROM o0 WHERE _wstart = {T0 + 10_000}")
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
        bed.execute(f"DELETE FROM o0 WHERE ts = {T0}")
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
        assert shown(bed, "audit_note", "s1") == ("its results aren't audited: they may come of any of 1 rows",)


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
        for turn in range(96):
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
            bed.advance(900.0)
        assert bed.clock.monotonic() - start >= 24 * 3600
        assert bed.rows(INCIDENTS) == []
        for n in range(4):
            assert shown(bed, "audited_results, mismatches, audit_note", f"s{n}")[1:] == (0, None)
            assert shown(bed, "audited_results", f"s{n}")[0] > 50


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
