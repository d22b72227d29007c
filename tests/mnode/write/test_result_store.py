"""What sink tasks write: children on the way, upserts and deletes, stale attempts refused, reads as of a version."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from kits.engines.embedded import Embedded
from kits.engines.sandboxes import TestBed

from penstock.common.errors import AlreadyExistsError, NotFoundError, StaleAttemptError
from penstock.mnode.catalog.catalog_store import Transaction
from penstock.mnode.write.result_store import DELETE, UPSERT, ResultStore
from penstock.tasks.protocol.messages import ResultWrite, TaskId
from penstock.tasks.protocol.numbered_children import NumberedChildren
from penstock.tasks.protocol.store_requests import RowsRequest
from penstock.vnode.write.vnode_writer import VnodeWriter

T0 = 1_700_000_000_000
STREAM = 77


class Crash(BaseException):
    """The engine's process ends here."""


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path)
    embedded.all("CREATE DATABASE d VGROUPS 3", "USE d",
                 "CREATE STABLE out (`_wstart` timestamp, `sum(v)` double) TAGS (group_id bigint unsigned)")
    embedded.engine.results.fence(STREAM, 1)
    yield embedded
    embedded.close()


def write(
    db: Embedded,
    rows: Sequence[tuple[int, int, int, float | None]],
    children: Sequence[str] | NumberedChildren = ("g0", "g1", "g2"),
    attempt: int = 1,
) -> None:
    """Writes rows of (child, operation, ts, value) as sink task 0 would."""
    db.engine.results.write_results(write_of(db, rows, children, attempt))


def write_of(
    db: Embedded | TestBed,
    rows: Sequence[tuple[int, int, int, float | None]],
    children: Sequence[str] | NumberedChildren = ("g0", "g1", "g2"),
    attempt: int = 1,
    sink: int = 0,
) -> ResultWrite:
    target = db.engine.catalog.table("d", "out")
    assert target is not None
    child, operation, ts, value = (list(column) for column in zip(*rows, strict=True))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(child, pa.int32()), pa.array(operation, pa.uint8()), pa.array(ts, pa.int64()),
         pa.array(value, pa.float64())], names=["_child", "_op", "_wstart", "sum(v)"])
    return ResultWrite(
        STREAM, attempt, TaskId(STREAM, "sink", sink), target.uid,
        children if isinstance(children, NumberedChildren) else  # as a sink's, which grows from write to write
        NumberedChildren(list(children), [list(range(len(children)))]), batch)


def rows(db: Embedded) -> list[tuple[object, ...]]:
    query = "SELECT tbname, cast(`_wstart` AS bigint), `sum(v)` FROM out ORDER BY tbname, `_wstart`"
    return [(name, ts - T0, value) for name, ts, value in db.run(query)]


def test_children_come_into_being_with_their_rows(db: Embedded) -> None:
    """Missing children are created with their tags in whatever vnode their name belongs to."""
    write(db, [(0, UPSERT, T0, 1.0), (1, UPSERT, T0, 2.0), (2, UPSERT, T0, 3.0), (0, UPSERT, T0 + 1, 4.0)])
    assert rows(db) == [("g0", 0, 1.0), ("g0", 1, 4.0), ("g1", 0, 2.0), ("g2", 0, 3.0)]
    assert sorted(db.run("SELECT TAGS tbname, group_id FROM out")) == [("g0", 0), ("g1", 1), ("g2", 2)]


def test_children_that_come_later_are_created_when_their_rows_come(db: Embedded) -> None:
    """The list of children grows between writes; a child without rows stays away."""
    children = NumberedChildren(["g0"], [[0]])
    write(db, [(0, UPSERT, T0, 1.0)], children)
    children.add(["g2", "g1"], [[2, 1]])
    write(db, [(2, UPSERT, T0, 3.0), (0, UPSERT, T0 + 1, 4.0)], children)
    assert rows(db) == [("g0", 0, 1.0), ("g0", 1, 4.0), ("g1", 0, 3.0)]
    assert db.run("SELECT TAGS tbname, group_id FROM out ORDER BY tbname") == [("g0", 0), ("g1", 1)]


def test_many_children_are_one_change_of_the_catalog(db: Embedded) -> None:
    """However many a write brings; each is announced once in the log of its vnode, before its first row."""
    before = db.engine.catalog.generation
    children = NumberedChildren([f"c{number}" for number in range(5_000)], [list(range(5_000))])
    write(db, [(number, UPSERT, T0, 1.0) for number in range(5_000)], children)
    assert db.engine.catalog.generation == before + 1
    assert db.run("SELECT count(*), max(group_id) FROM out") == [(5_000, 4_999)]
    assert db.run("SELECT count(*) FROM (SELECT DISTINCT tbname FROM out)") == [(5_000,)]


@pytest.mark.parametrize("step", [(Transaction, "end"), (Transaction, "change_memory"), (VnodeWriter, "begin_meta"),
                                  (VnodeWriter, "begin_write")])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_crash_leaves_all_new_children_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[type, str], number: int
) -> None:
    """The engine ends at a step of a write that brings children of three vnodes; the same write then completes it."""
    names = [f"c{place}" for place in range(300)]
    lines = [(place, UPSERT, T0, float(place)) for place in range(300)]
    wanted = [(name, 0, float(place)) for place, name in enumerate(names)]
    with TestBed(directory=tmp_path) as bed:
        bed.all("CREATE DATABASE d VGROUPS 3", "CREATE STABLE d.out (`_wstart` timestamp, `sum(v)` double) "
                "TAGS (group_id bigint unsigned)")
        bed.engine.results.fence(STREAM, 1)
        kind, name = step
        done, calls = getattr(kind, name), count(1)

        def crash(*arguments: object, **named: object) -> object:
            if next(calls) == number:
                raise Crash
            return done(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(kind, name, crash)
            with contextlib.suppress(Crash):  # there aren't so many steps of each kind
                bed.engine.results.write_results(write_of(bed, lines, names))
        bed.engine.abandon()
    with TestBed(directory=tmp_path) as bed:
        table = bed.engine.catalog.table("d", "out")
        assert table is not None
        assert bed.engine.catalog.child_count(table.uid) in (0, 300)
        bed.engine.results.fence(STREAM, 1)
        bed.engine.results.write_results(write_of(bed, lines, names))
        assert sorted(bed.rows("SELECT tbname, cast(`_wstart` AS bigint), `sum(v)` FROM d.out")) == sorted(
            (name, T0 + ts, value) for name, ts, value in wanted)
        assert bed.engine.catalog.child_count(table.uid) == 300


def test_a_child_that_was_dropped_comes_back_with_its_next_row(db: Embedded) -> None:
    """What is remembered of a child does not outlive it; the rows of the dropped table stay gone."""
    children = NumberedChildren(["g0", "g1", "g2"], [[0, 1, 2]])
    write(db, [(0, UPSERT, T0, 1.0), (1, UPSERT, T0, 2.0), (2, UPSERT, T0, 3.0)], children)
    db.all("DROP TABLE g1", "DROP TABLE g2")
    write(db, [(1, UPSERT, T0 + 1, 4.0), (0, UPSERT, T0 + 1, 5.0)], children)
    assert rows(db) == [("g0", 0, 1.0), ("g0", 1, 5.0), ("g1", 1, 4.0)]


def test_of_groups_that_share_a_child_the_row_that_came_last_stays(db: Embedded) -> None:
    """SUBTABLE may give two groups the same name."""
    children = NumberedChildren(["g0", "g1", "g0"], [[0, 1, 2]])
    write(db, [(2, UPSERT, T0, 1.0), (1, UPSERT, T0, 2.0), (0, UPSERT, T0, 3.0)], children)
    assert rows(db) == [("g0", 0, 3.0), ("g1", 0, 2.0)]


def test_rows_in_any_order_reach_their_children(db: Embedded) -> None:
    """Many children in several vnodes, later times first."""
    children = NumberedChildren([f"c{number}" for number in range(40)], [list(range(40))])
    wanted = [(child, UPSERT, T0 + ts, float(child * 10 + ts)) for ts in (3, 1, 2) for child in range(39, -1, -1)]
    write(db, wanted, children)
    assert rows(db) == sorted((f"c{child}", ts - T0, value) for child, _, ts, value in wanted)


def test_writing_again_changes_nothing(db: Embedded) -> None:
    """A write that is replayed after a restart leaves the same rows."""
    batch = [(0, UPSERT, T0, 1.0), (1, UPSERT, T0, 2.0), (1, DELETE, T0 + 5, None)]
    write(db, batch)
    write(db, batch)
    assert rows(db) == [("g0", 0, 1.0), ("g1", 0, 2.0)]


def test_the_order_within_a_write_counts(db: Embedded) -> None:
    """Deleted and written again is there; written and deleted again is not."""
    write(db, [(0, UPSERT, T0, 1.0), (1, UPSERT, T0, 1.0)])
    write(db, [(0, DELETE, T0, None), (0, UPSERT, T0, 2.0), (1, UPSERT, T0, 2.0), (1, DELETE, T0, None),
               (2, UPSERT, T0, 9.0)])
    assert rows(db) == [("g0", 0, 2.0), ("g2", 0, 9.0)]


def test_nulls_replace_values(db: Embedded) -> None:
    """A result column that became NULL is NULL, not what it was."""
    write(db, [(0, UPSERT, T0, 1.0)])
    write(db, [(0, UPSERT, T0, None)])
    assert rows(db) == [("g0", 0, None)]


def test_older_attempts_are_fenced_off(db: Embedded) -> None:
    """Once attempt 2 is known, attempt 1 may not write; a forgotten stream may not at all."""
    results: ResultStore = db.engine.results
    results.fence(STREAM, 2)
    with pytest.raises(StaleAttemptError):
        write(db, [(0, UPSERT, T0, 1.0)], attempt=1)
    results.fence(STREAM, 1)
    with pytest.raises(StaleAttemptError):
        write(db, [(0, UPSERT, T0, 1.0)], attempt=1)
    write(db, [(0, UPSERT, T0, 2.0)], attempt=2)
    results.forget(STREAM)
    with pytest.raises(StaleAttemptError):
        write(db, [(0, UPSERT, T0, 3.0)], attempt=2)
    assert rows(db) == [("g0", 0, 2.0)]


def test_names_of_other_tables_are_not_taken_over(db: Embedded) -> None:
    """A child's name that belongs to another super table fails the write, and says so."""
    db.all("CREATE STABLE other (ts timestamp, v int) TAGS (a int)", "CREATE TABLE g1 USING other TAGS (1)")
    with pytest.raises(AlreadyExistsError, match="other"):
        write(db, [(0, UPSERT, T0, 1.0), (1, UPSERT, T0, 1.0)])
    assert rows(db) == []


def test_writes_that_are_begun_are_acknowledged_together(db: Embedded) -> None:
    """Nobody sees one before it is waited for, and who waits for the last one has waited for all in its vnode."""
    write(db, [(0, UPSERT, T0, 1.0)], children=("g0",))
    results: ResultStore = db.engine.results
    waits = [results.begin_write(write_of(db, [(0, UPSERT, T0 + sink, 2.0)], children=("g0",), sink=sink))
             for sink in range(3)]
    assert rows(db) == [("g0", 0, 1.0)]
    waits[-1]()
    assert rows(db) == [("g0", 0, 2.0), ("g0", 1, 2.0), ("g0", 2, 2.0)]
    for wait in waits:
        wait()


def test_many_deletes_wait_for_a_cluster_once(db: Embedded) -> None:
    """Once for each vnode, and its rows: each wait takes as long as another node takes to answer."""
    vnodes = db.engine.parts.directory.dnode.vnodes().values()
    write(db, [(place % 3, UPSERT, T0 + place, 1.0) for place in range(60)])
    waits = list[int]()
    for vnode in vnodes:
        vnode.copying.set_cluster_wait(waits.append)
    write(db, [(place % 3, DELETE if place < 30 else UPSERT, T0 + place, 2.0) for place in range(60)])
    assert 1 <= len(waits) <= 2 * len(vnodes)
    assert [value for _, _, value in rows(db)] == [2.0] * 30


def test_what_may_have_been_written_is_deleted_where_it_was(db: Embedded) -> None:
    """A stream that goes on from a checkpoint names every row's time: of those without a result nothing is written,
    of the others one record in each vnode."""
    vnodes = db.engine.parts.directory.dnode.vnodes().values()
    write(db, [(place % 3, UPSERT, T0 + 10 * place, 1.0) for place in range(6)])
    before = {vnode: vnode.acknowledged_version for vnode in vnodes}
    write(db, [(place % 3, DELETE, T0 + place, None) for place in range(-40, 100) if place % 20])
    assert sorted(vnode.acknowledged_version - version for vnode, version in before.items()) == [0, 1, 1]
    assert sum(vnode.reader.stats().tombstones for vnode in vnodes) == 3
    assert sorted(ts for _, ts, _ in rows(db)) == [0, 20, 40]


def test_a_dropped_result_table_is_told(db: Embedded) -> None:
    """Writing into a table that is gone is an error, not a new table."""
    target = db.engine.catalog.table("d", "out")
    assert target is not None
    db.execute("DROP STABLE out")
    batch = pa.RecordBatch.from_pydict({"_child": pa.array([], pa.int32()), "_op": pa.array([], pa.uint8())})
    with pytest.raises(NotFoundError):
        db.engine.results.write_results(
            ResultWrite(STREAM, 1, TaskId(STREAM, "sink", 0), target.uid, (), batch))


def test_rows_are_read_as_of_a_version(db: Embedded) -> None:
    """Recalculation sees the rows of the version it asks for, not later ones."""
    write(db, [(0, UPSERT, T0, 1.0)], children=("g0",))
    child = db.engine.catalog.child("d", "g0")
    assert child is not None
    version = db.engine.storage.wal_version(child.vgroup_id)
    assert version is not None
    write(db, [(0, UPSERT, T0, 2.0), (0, UPSERT, T0 + 1, 3.0)], children=("g0",))

    def read(as_of: int, last_ts: int = T0 + 10) -> list[float]:
        request = RowsRequest(child.vgroup_id, child.super_uid, pa.array([child.uid], pa.uint64()), T0, last_ts, as_of)
        return db.engine.results.read(request).column("sum(v)").to_pylist()

    assert read(version) == [1.0]
    assert read(version + 1) == [2.0, 3.0]
    assert read(version + 1, last_ts=T0) == [2.0]
