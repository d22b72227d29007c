"""SPLIT VGROUP and ALTER DATABASE ... VGROUPS: tables move, streams go on, and nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed
from kits.engines.verdicts import verify_running

from penstock.common.clock import SystemClock
from penstock.common.errors import (
    InUseError,
    InvalidStatementError,
    NotFoundError,
    PenstockError,
    StorageError,
    UnavailableError,
)
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.mnode.admin.fsck import Fsck
from penstock.mnode.catalog import catalog_store
from penstock.mnode.checkpoints import commit_records
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.tasks.worker.state_repartition import Repartition
from penstock.vnode import vnode
from penstock.vnode.dnode import Dnode
from penstock.vnode.read.views import open_duckdb
from penstock.vnode.store import manifest

TABLES = 8
OPTIONS = "TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0"
STREAMS = {
    "per_table": ("SELECT _wstart ts, count(*) n, sum(v) s, max(v) m FROM meters PARTITION BY tbname INTERVAL(10s)",
                  "SELECT tag_tbname, ts, n, s, m FROM per_table",
                  "SELECT tbname, _wstart, count(*), sum(v), max(v) FROM meters PARTITION BY tbname INTERVAL(10s)"),
    "per_site": ("SELECT _wstart ts, count(*) n, sum(v) s, max(v) m FROM meters PARTITION BY g "
                 "INTERVAL(20s) SLIDING(10s)",
                 "SELECT g, ts, n, s, m FROM per_site",
                 "SELECT g, _wstart, count(*), sum(v), max(v) FROM meters PARTITION BY g INTERVAL(20s) SLIDING(10s)"),
    "overall": ("SELECT _wstart ts, count(*) n, avg(v) a FROM meters INTERVAL(10s)",
                "SELECT 0, ts, n, a FROM overall",
                "SELECT 0, _wstart, count(*), avg(v) FROM meters INTERVAL(10s)"),
    "plain": ("SELECT ts, v + 1 w FROM meters WHERE v > 0 PARTITION BY tbname",
              "SELECT tag_tbname, ts, w FROM plain",
              "SELECT tbname, ts, v + 1 FROM meters WHERE v > 0"),
    "sessions": ("SELECT _wstart ts, count(*) n, sum(v) s FROM meters PARTITION BY tbname SESSION(ts, 12s)",
                 "SELECT tag_tbname, ts, n, s FROM sessions",
                 "SELECT tbname, _wstart, count(*), sum(v) FROM meters PARTITION BY tbname SESSION(ts, 12s)"),
    "parities": ("SELECT _wstart ts, count(*) n, sum(v) s FROM meters PARTITION BY tbname, v % 2 INTERVAL(10s)",
                 "SELECT tag_tbname, ts, sum(n), sum(s) FROM parities GROUP BY tag_tbname, ts",
                 "SELECT tbname, _wstart, count(*), sum(v) FROM meters PARTITION BY tbname INTERVAL(10s)"),
    "states": ("SELECT _wstart ts, count(*) n, sum(v) s FROM meters PARTITION BY tbname STATE_WINDOW(v > 0)",
               "SELECT tag_tbname, ts, n, s FROM states",
               "SELECT tbname, _wstart, count(*), sum(v) FROM meters PARTITION BY tbname STATE_WINDOW(v > 0)"),
}
"""By name: what the stream computes, its results, and the batch query that must give the same."""


def create(name: str, options: str = OPTIONS) -> str:
    by_table = "tag_tbname" in STREAMS[name][1]
    tags = {True: "TAGS (tag_tbname VARCHAR(20))", False: "TAGS (g INT)" if name == "per_site" else ""}[by_table]
    query = STREAMS[name][0]
    if by_table:
        query = query.replace("PARTITION BY tbname", "PARTITION BY tbname tag_tbname")
    return f"CREATE STREAM {name} {options} INTO {name} {tags} AS {query}"


def make(vgroups: int, *streams: str, directory: Path | None = None) -> TestBed:
    bed = TestBed() if directory is None else TestBed(directory=directory)
    bed.all(f"CREATE DATABASE d VGROUPS {vgroups} KEEP 36500", "USE d",
            "CREATE STABLE meters (ts timestamp, v int) TAGS (g int)",
            *(f"CREATE TABLE t{n} USING meters TAGS ({n % 3})" for n in range(TABLES)), "CREATE TABLE alone "
            "(ts timestamp, v int)", *map(create, streams))
    return bed


def check(bed: TestBed, *streams: str) -> None:
    """Every stream's results are the batch answer."""
    for name in streams:
        _, results, batch = STREAMS[name]
        assert sorted(map(rounded, bed.rows(results))) == sorted(map(rounded, bed.rows(batch))), name


def rounded(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(round(value, 6) if isinstance(value, float) else value for value in row)


def insert(bed: TestBed, rows: list[tuple[int, int, int]]) -> None:
    """Rows of (table, second, value)."""
    bed.execute("INSERT INTO " + " ".join(
        f"t{table} VALUES ({T0 + second * 1000}, {value})" for table, second, value in rows))


def vgroups(bed: TestBed) -> dict[str, int]:
    """Where the tables are, as SHOW says."""
    return dict(bed.rows("SELECT table_name, vgroup_id FROM information_schema.ins_tables WHERE db_name = 'd' "
                         "AND vgroup_id IS NOT NULL"))


ROWS = [(n % TABLES, n * 3, n % 7 - 3) for n in range(60)]

# --- placement ------------------------------------------------------------------------------------------------------


def test_split_gives_half_of_the_tables_to_a_new_vgroup() -> None:
    """Rows, updates and deletes from before are the same behind it, and rows that follow go where their tables are."""
    with make(2) as bed:
        insert(bed, ROWS)
        bed.all(f"INSERT INTO alone VALUES ({T0}, 7)", f"DELETE FROM t1 WHERE ts <= {T0 + 30_000}",
                f"INSERT INTO t2 VALUES ({T0 + 6_000}, 99)")
        rows, before = sorted(bed.rows("SELECT tbname, ts, v FROM meters")), vgroups(bed)
        for vgroup in sorted(set(before.values())):
            bed.execute(f"SPLIT VGROUP {vgroup}")
        after = vgroups(bed)
        assert [row[:3] for row in bed.rows("SHOW VGROUPS")] == [
            (vgroup, "d", list(after.values()).count(vgroup)) for vgroup in (2, 3, 4, 5)]
        assert {(before[name], after[name]) for name in before} <= {(2, 2), (2, 4), (3, 3), (3, 5)}
        assert before != after
        assert sorted(bed.rows("SELECT tbname, ts, v FROM meters")) == rows
        assert bed.rows("SELECT ts, v FROM alone") == [(0, 7)]
        insert(bed, [(n, 500, n) for n in range(TABLES)])
        bed.execute(f"INSERT INTO alone VALUES ({T0 + 1}, 8)")
        assert bed.rows("SELECT v FROM meters WHERE ts = 1700000500000 ORDER BY v") == [(n,) for n in range(TABLES)]
        assert bed.rows("SELECT count(*) FROM alone") == [(2,)]
        assert "VGROUPS 4" in bed.rows("SHOW CREATE DATABASE d")[0][1]


def test_everything_is_where_it_was_after_a_restart(tmp_path: Path) -> None:
    """What a split has changed is on disk: rows, placement, and the versions at which logs go on."""
    with make(1, "per_table", directory=tmp_path) as bed:
        insert(bed, ROWS)
        bed.execute("ALTER DATABASE d VGROUPS 3")
        known, places = sorted(bed.rows("SELECT tbname, ts, v FROM meters")), vgroups(bed)
        ends = bed.rows("SELECT vgroup_id, wal_version FROM information_schema.ins_vgroups")
    with TestBed(directory=tmp_path) as bed:
        bed.all("USE d")
        assert (sorted(bed.rows("SELECT tbname, ts, v FROM meters")), vgroups(bed)) == (known, places)
        assert bed.rows("SELECT vgroup_id, wal_version FROM information_schema.ins_vgroups") == ends
        bed.execute("CREATE TABLE later USING meters TAGS (1)")
        insert(bed, [(0, 3, 5), (1, 900, 5)])
        check(bed, "per_table")


def test_other_readers_see_every_row_once(tmp_path: Path) -> None:
    """The views for any DuckDB show each row once, before and after a split, also those written anew since."""
    with make(2, directory=tmp_path) as bed:
        insert(bed, ROWS)
        bed.engine.flush()

        def seen() -> list[tuple[Any, ...]]:
            with open_duckdb(bed.engine.paths) as connection:
                return sorted(connection.execute("SELECT tbname, epoch_ms(ts), v FROM d.meters").fetchall())

        known = seen()
        assert len(known) == len(ROWS)
        bed.execute("ALTER DATABASE d VGROUPS 4")
        assert seen() == known
        insert(bed, [(n, 0, 77) for n in range(TABLES)])
        bed.execute(f"DELETE FROM meters WHERE ts >= {T0 + 100_000}")
        bed.engine.flush()
        assert seen() == sorted((name, T0 + at, v) for name, at, v in bed.rows("SELECT tbname, ts, v FROM meters"))


# --- streams ------------------------------------------------------------------------------------------------------

STEP = st.one_of(
    st.tuples(st.just("insert"), st.lists(
        st.tuples(st.integers(0, TABLES - 1), st.integers(0, 90), st.integers(-5, 5)), min_size=1, max_size=8)),
    st.tuples(st.just("delete"), st.tuples(st.integers(0, TABLES - 1), st.integers(0, 90), st.integers(0, 30))),
    st.tuples(st.just("split"), st.integers(0, 9)),
    st.tuples(st.just("grow"), st.integers(1, 3)),
    st.tuples(st.sampled_from(["checkpoint", "kill"]), st.none()),
)


def play(bed: TestBed, steps: list[tuple[str, Any]], *streams: str) -> None:
    """Does the steps; after each the streams' results are the batch answer."""
    for kind, what in steps:
        known = sorted({row[0] for row in bed.rows("SHOW VGROUPS")})
        match kind:
            case "insert":
                insert(bed, what)
            case "delete":
                table, first, length = what
                bed.execute(f"DELETE FROM t{table} WHERE ts >= {T0 + first * 1000} "
                            f"AND ts <= {T0 + (first + length) * 1000}")
            case "split" if len(known) < 8:
                bed.execute(f"SPLIT VGROUP {known[what % len(known)]}")
            case "grow" if len(known) < 8:
                bed.execute(f"ALTER DATABASE d VGROUPS {len(known) + what}")
            case "checkpoint":
                bed.checkpoint()
            case "kill":
                bed.kill()
        check(bed, *streams)


@settings(max_examples=times(2, 8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEP, min_size=2, max_size=8), count=st.integers(1, 3), history=st.booleans(),
       streams=st.lists(st.sampled_from(sorted(STREAMS)), min_size=1, max_size=3, unique=True))
def test_streams_equal_the_batch_answer_whenever_vgroups_are_split(
    steps: list[tuple[str, Any]], count: int, history: bool, streams: list[str]
) -> None:
    """Late rows, updates, deletes, splits, checkpoints and kills in any order; VERIFY STREAM agrees."""
    with make(count) as bed:
        for name in streams:
            bed.execute(create(name, f"{OPTIONS} FILL_HISTORY {int(history)}"))
        insert(bed, ROWS[:20])
        play(bed, steps, *streams)
        assert not verify_running(bed.rows, streams)


@pytest.mark.parametrize("name", sorted(STREAMS)[::times(2, 1)])
def test_windows_from_before_a_split_are_corrected_behind_it(name: str) -> None:
    """Late rows, rows written anew and deletes of windows that were divided among vnodes: each kind of stream."""
    with make(1, name) as bed:
        insert(bed, ROWS)
        play(bed, [
            ("split", 0), ("insert", [(n, 4 + n, 9) for n in range(TABLES)]), ("delete", (0, 0, 30)), ("grow", 2),
            ("insert", [(table, second, -value) for table, second, value in ROWS[::4]]), ("delete", (5, 10, 60)),
            ("kill", None), ("checkpoint", None), ("kill", None), ("insert", [(n, 200 + n, 1) for n in range(TABLES)]),
        ], name)


def test_windows_close_behind_a_split() -> None:
    """WINDOW_CLOSE: windows that were open at the split close by the time of all vnodes, each once and whole."""
    with make(1) as bed:
        for name in ("per_table", "per_site"):
            bed.execute(create(name, "TRIGGER WINDOW_CLOSE IGNORE EXPIRED 0 IGNORE UPDATE 0"))
        insert(bed, [(n, second, 1) for second in range(0, 16, 3) for n in range(TABLES)])
        assert bed.rows("SELECT count(*) FROM per_table") == [(TABLES,)]
        bed.execute("ALTER DATABASE d VGROUPS 4")
        assert bed.rows("SELECT count(*) FROM per_table") == [(TABLES,)]
        bed.advance(10)  # a vnode that no row comes to is waited for until it is idle
        insert(bed, [(n, 40, 1) for n in range(TABLES)])
        assert sorted(bed.rows("SELECT tag_tbname, ts, n FROM per_table")) == sorted(
            (f"t{n}", ts, rows) for n in range(TABLES) for ts, rows in ((0, 4), (10_000, 2)))
        want = [row for row in bed.rows(STREAMS["per_site"][2]) if row[1] <= 20_000]
        assert sorted(bed.rows(STREAMS["per_site"][1])) == sorted(want)


def test_filled_windows_go_along() -> None:
    """FILL(PREV) knows the results before a split, wherever their group is computed behind it."""
    query = "SELECT _wstart ts, sum(v) s FROM meters PARTITION BY {} INTERVAL(10s) FILL(PREV)"
    with make(2) as bed:
        bed.all(f"CREATE STREAM a {OPTIONS} INTO a TAGS (nm VARCHAR(20)) AS {query.format('tbname nm')}",
                f"CREATE STREAM b {OPTIONS} INTO b TAGS (g INT) AS {query.format('g')}")
        insert(bed, [(n, 3, n) for n in range(TABLES)])
        bed.execute("ALTER DATABASE d VGROUPS 5")
        insert(bed, [(n, 45, -1) for n in range(TABLES)])
        assert sorted(bed.rows("SELECT nm, ts, s FROM a")) == sorted(
            (f"t{n}", second * 1000, n if second < 40 else -1) for n in range(TABLES) for second in range(0, 50, 10))
        assert bed.rows("SELECT count(*) FROM b") == [(3 * 5,)]


def test_streams_on_streams_and_into_other_databases_go_on() -> None:
    """Of a chain within the database each stream is moved; one that only writes into it goes on with its tasks."""
    with make(2, "per_table") as bed:
        bed.all(f"CREATE STREAM minutes {OPTIONS} INTO minutes AS SELECT _wstart ts, sum(n) n FROM per_table "
                "INTERVAL(1m)", "CREATE DATABASE far VGROUPS 1 KEEP 36500",
                "CREATE TABLE far.src (ts timestamp, v int)",
                f"CREATE STREAM inward {OPTIONS} INTO d.inward AS SELECT _wstart ts, count(*) n FROM far.src "
                "INTERVAL(10s)")
        for round_ in range(3):
            insert(bed, [(table, second + 70 * round_, v) for table, second, v in ROWS[:16]])
            bed.execute(f"INSERT INTO far.src VALUES ({T0 + round_ * 10_000}, 1)")
            bed.execute(f"ALTER DATABASE d VGROUPS {3 + round_}")
        check(bed, "per_table")
        assert bed.rows("SELECT ts, n FROM minutes ORDER BY ts") == bed.rows(
            "SELECT _wstart, sum(n) FROM per_table INTERVAL(1m)")
        assert bed.rows("SELECT count(*) FROM d.inward") == [(3,)]
        assert bed.rows("SELECT count(*) FROM information_schema.ins_stream_tasks WHERE stream_name = 'per_table'") == [
            (3 * 5,)]


def test_streams_by_arrival_and_by_the_clock_go_on() -> None:
    """What counts by when it came is divided without being read again: rows count once."""
    with make(1) as bed:
        bed.all("CREATE STREAM arrived TRIGGER AT_ONCE TIME INGESTION INTO arrived TAGS (g INT) AS "
                "SELECT _wstart ts, count(*) n FROM meters PARTITION BY g INTERVAL(1m)",
                "CREATE STREAM forced TRIGGER FORCE_WINDOW_CLOSE INTO forced TAGS (nm VARCHAR(20)) AS "
                "SELECT _wstart ts, count(*) n FROM meters PARTITION BY tbname nm INTERVAL(1m)")
        for _ in range(3):
            now = bed.clock.now_ms()
            bed.execute("INSERT INTO " + " ".join(
                f"t{n} VALUES ({now + k}, 1)" for n in range(TABLES) for k in (0, 1)))
            bed.execute(f"ALTER DATABASE d VGROUPS {len(bed.rows('SHOW VGROUPS')) + 1}")
            bed.advance(60)
        assert bed.rows("SELECT sum(n) FROM arrived") == [(3 * 2 * TABLES,)]
        assert bed.rows("SELECT nm, sum(n) FROM forced GROUP BY nm ORDER BY nm") == [
            (f"t{n}", 6) for n in range(TABLES)]


def test_dead_letters_are_replayed_where_their_tables_are() -> None:
    """Rows that came too late before a split count when they are replayed behind it, in the vnode that has them now."""
    with make(1) as bed:
        bed.execute("CREATE STREAM s LATE DLQ dead INTO o TAGS (nm VARCHAR(20)) AS SELECT _wstart ts, count(*) n "
                    "FROM meters PARTITION BY tbname nm INTERVAL(10s)")
        insert(bed, [(n, second, 1) for second in (0, 30) for n in range(TABLES)])
        insert(bed, [(n, 1, 1) for n in range(TABLES)])
        assert bed.rows("SELECT count(*) FROM dead") == [(TABLES,)]
        bed.execute("ALTER DATABASE d VGROUPS 3")
        insert(bed, [(n, 2, 1) for n in range(TABLES)])
        assert bed.rows("SELECT count(*) FROM dead") == [(2 * TABLES,)]
        bed.execute("REPLAY DLQ dead")
        assert bed.rows("SELECT nm, n FROM o WHERE ts = 1700000000000 ORDER BY nm") == [
            (f"t{n}", 3) for n in range(TABLES)]


def test_a_stream_with_history_goes_on() -> None:
    """What FILL_HISTORY has read is state as any other."""
    with make(2) as bed:
        insert(bed, ROWS[:30])
        bed.all(create("per_table", f"{OPTIONS} FILL_HISTORY 1"), create("per_site", f"{OPTIONS} FILL_HISTORY 1"))
        play(bed, [("grow", 1), ("insert", ROWS[20:]), ("delete", (1, 0, 40)), ("split", 0), ("insert", ROWS[:10])],
             "per_table", "per_site")


def test_a_split_says_how_far_it_is_and_leaves_a_sound_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SHOW QUERIES has the progress while it runs; fsck finds nothing behind it."""
    shown = []
    with make(1, "per_table", directory=tmp_path) as bed:
        insert(bed, ROWS)
        found = Storage.found

        def watched(*arguments: Any) -> int:
            running = bed.engine.system_tables.read("performance_schema", "perf_queries")
            shown.extend(running.column("progress").to_pylist())
            return found(*arguments)

        monkeypatch.setattr(Storage, "found", watched)
        bed.execute("ALTER DATABASE d VGROUPS 3")
    assert len(shown) == 2
    assert "1 of 2" in shown[0]
    assert "tables into vnode 4, 2 of 2" in shown[1]
    report = Fsck(tmp_path, OsFs(), SystemClock(), lambda what, size: None, repair=False).run()
    assert report.damages == []


def test_a_split_that_fails_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that refuses, at any call: the streams go on, and the statement can be given again."""
    with make(1, "per_table", "per_site") as bed:
        insert(bed, ROWS[:30])
        before = vgroups(bed)
        for owner, name in ((Storage, "found"), (Repartition, "run"), (commit_records.CommitRecords, "write")):
            with monkeypatch.context() as patch:
                def refuse(*_: Any, **__: Any) -> None:
                    raise StorageError("the disk is full")

                patch.setattr(owner, name, refuse)
                with pytest.raises(PenstockError, match="the disk is full"):
                    bed.execute("SPLIT VGROUP 2")
            assert vgroups(bed) == before
            assert [path.name for path in (bed.engine.paths.root / "vnode").iterdir()] == ["2"]
            insert(bed, ROWS[10:20])
            check(bed, "per_table", "per_site")
        bed.execute("SPLIT VGROUP 2")
        insert(bed, ROWS[30:])
        check(bed, "per_table", "per_site")


def test_checkpoints_from_before_a_split_are_set_aside(tmp_path: Path) -> None:
    """They are of other vnodes, so nobody may go on from them; an event says where they are."""
    with make(1, "per_table", directory=tmp_path) as bed:
        insert(bed, ROWS[:30])
        bed.execute("CHECKPOINT STREAM per_table")
        (checkpoints,) = tmp_path.glob("streams/*/checkpoints")
        before = {path.name: path.read_bytes() for path in checkpoints.iterdir()}
        bed.execute("SPLIT VGROUP 2")
        moved = tmp_path / "damaged" / checkpoints.relative_to(tmp_path)
        kept = {path.name: path.read_bytes() for path in moved.iterdir()}
        assert before.items() <= kept.items()
        assert not kept.keys() & {path.name for path in checkpoints.iterdir()}
        told = [row[2] for row in bed.rows("SELECT * FROM information_schema.ins_stream_events")]
        assert any("for other vnodes than the current ones (2, 3)" in text and str(moved) in text for text in told)


def test_checkpoints_are_left_alone_where_none_is_over_the_vnodes(tmp_path: Path) -> None:
    """If all are of other vnodes, it isn't they that are wrong: the stream says so, and nothing is moved."""
    with make(1, "per_table", directory=tmp_path) as bed:
        insert(bed, ROWS[:30])
        bed.execute("CHECKPOINT STREAM per_table")
    (stream,) = (tmp_path / "streams").iterdir()
    known = commit_records.CommitRecords(DataPaths(tmp_path), OsFs())
    for one in known.all(int(stream.name, 16)):
        assert one.record is not None
        known.write(replace(one.record, versions=((9, 1),)))
    before = {path: path.read_bytes() for path in stream.rglob("*.json")}
    with TestBed(directory=tmp_path) as bed:
        ((state, reason),) = bed.rows("SELECT state, reason FROM information_schema.ins_streams")
        assert state == "FAILED"
        assert "over the vnodes of its tables (2)" in reason
    assert {path: path.read_bytes() for path in stream.rglob("*.json")} == before != {}


# --- refusals -----------------------------------------------------------------------------------------------------


def refused(bed: TestBed, text: str, kind: type[PenstockError]) -> str:
    before = vgroups(bed)
    with pytest.raises(kind) as caught:
        bed.execute(text)
    assert vgroups(bed) == before
    return str(caught.value)


def test_what_cannot_be_done_is_refused_and_changes_nothing() -> None:
    """Fewer vgroups, unknown ones, streams that don't run, have savepoints, or whose windows can't be divided."""
    with make(2, "per_table") as bed:
        insert(bed, ROWS)
        assert "can't be given fewer" in refused(bed, "ALTER DATABASE d VGROUPS 1", InvalidStatementError)
        refused(bed, "ALTER DATABASE d VGROUPS 4 KEEP 100", InvalidStatementError)
        refused(bed, "ALTER DATABASE d VGROUPS 2000", InvalidStatementError)
        refused(bed, "SPLIT VGROUP 99", NotFoundError)
        bed.execute("ALTER DATABASE d VGROUPS 2")
        bed.execute("PAUSE STREAM per_table")
        assert "doesn't run" in refused(bed, "SPLIT VGROUP 2", UnavailableError)
        bed.all("RESUME STREAM per_table", "STOP STREAM per_table WITH SAVEPOINT 'a'", "START STREAM per_table")
        assert "savepoints" in refused(bed, "SPLIT VGROUP 2", InUseError)
        bed.all("DROP SAVEPOINT 'a' FOR per_table",
                f"CREATE STREAM joint {OPTIONS} INTO joint AS SELECT _wstart ts, count(*) n FROM meters "
                "SESSION(ts, 5s)")
        assert "SESSION" in refused(bed, "SPLIT VGROUP 2", InUseError)
        bed.all("DROP STREAM joint", "SPLIT VGROUP 2")
        insert(bed, [(n, 50, 3) for n in range(TABLES)])
        check(bed, "per_table")


# --- crashes ------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """The engine's process ends here."""


class Mortal:
    """Ends the process before, or `after`, the `number`th of the calls that are watched; then nothing is done."""

    def __init__(self, patch: pytest.MonkeyPatch, number: int, *, after: bool) -> None:
        self.calls = 0
        self._number, self._after = number, after
        # What is done right before a commit of the catalog, and right behind it.
        committing = "change_memory" if after else "end"
        for owner, name in ((catalog_store.Transaction, committing), (manifest, "save"),
                            (commit_records.CommitRecords, "write"), (vnode, "begin_log")):
            patch.setattr(owner, name, self._watched(getattr(owner, name)))
        for owner, name in ((Dnode, "drop_vnode"), (commit_records.CommitRecords, "set_aside")):
            patch.setattr(owner, name, self._dead(getattr(owner, name)))

    def _watched(self, what: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls > self._number or (self.calls == self._number and not self._after):
                raise Crash
            result = what(*arguments, **named)
            if self.calls == self._number:
                raise Crash
            return result
        return call

    def _dead(self, what: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self.calls >= self._number:
                raise Crash
            return what(*arguments, **named)
        return call


def test_a_split_that_is_killed_is_done_or_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before or behind each step that changes files: rows, placement and streams are those of before, or of after.

    By day it is every eighth step, by night each.
    """
    names = ("per_table", "per_site")
    found = set()
    for number in range(1, 200, times(8, 1)):
        directory = tmp_path / str(number)
        directory.mkdir()
        with make(1, *names, directory=directory) as bed:
            bed.execute("CREATE MATERIALIZED VIEW sums AS SELECT g, count(*) n, sum(v) s FROM meters GROUP BY g")
            insert(bed, ROWS[:30])
            known = sorted(bed.rows("SELECT tbname, ts, v FROM meters"))
            with monkeypatch.context() as patch:
                mortal = Mortal(patch, number, after=number % 2 == 0)
                try:
                    bed.engine.execute("SPLIT VGROUP 2", bed.session)
                except Crash:
                    bed.engine.abandon()
                    bed.streams.close()
        if mortal.calls < number:
            assert found == {1, 2}
            return
        with TestBed(directory=directory) as bed:
            bed.all("USE d")
            count = len(bed.rows("SHOW VGROUPS"))
            found.add(count)
            assert len([path for path in (directory / "vnode").iterdir() if path.name.isdigit()]) == count
            assert sorted(bed.rows("SELECT tbname, ts, v FROM meters")) == known
            insert(bed, [*ROWS[30:], (0, 3, 5), (3, 9, 5)])
            check(bed, *names)
            assert sorted(bed.rows("SELECT * FROM sums")) == sorted(
                bed.rows("SELECT g, count(*), sum(v) FROM meters GROUP BY g"))
            if number % 4 == 0:
                bed.execute("ALTER DATABASE d VGROUPS 3")
                insert(bed, [(n, 4, 2) for n in range(TABLES)])
                check(bed, *names)
    raise AssertionError("the steps must come to an end")
