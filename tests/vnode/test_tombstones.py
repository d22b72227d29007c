"""Deletes as columns hide what a plain list of them hides, whoever reads; none stays that nobody needs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs

from penstock.common.clock import ManualClock
from penstock.common.errors import CorruptionError
from penstock.common.fs import OsFs
from penstock.common.sealed import seal, unseal
from penstock.vnode.store import manifest as manifests
from penstock.vnode.store.manifest import Manifest, TableManifest
from penstock.vnode.store.points import NEWEST, Extent, PointDeletes, PointRun
from penstock.vnode.store.sorted_keys import I64, TS_MAX, TS_MIN, U64
from penstock.vnode.store.tombstones import TableDeletes, Tombstone, Tombstones, to_table
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode
from penstock.vnode.write import vnode_writer
from penstock.vnode.write.vnode_writer import Change, DeletedRows, WrittenRows
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalReader
from penstock.wal.record import DeletePointsRecord

TABLE = 77
SCHEMA = pa.schema([("ts", pa.timestamp("ms")), ("v", pa.int64())])

Row = tuple[int, int, int]
"""Child table, time, version."""

Drawn = tuple[int, set[tuple[int, int]] | Tombstone, bool]
"""How much newer a delete is than the one before, what goes, and whether somebody then looks."""

TUIDS = st.integers(1, 3) | st.sampled_from([2**64 - 1])
MOMENTS = st.integers(-2, 4) | st.sampled_from([TS_MIN, TS_MAX])
POINTS = st.sets(st.tuples(TUIDS, MOMENTS), min_size=1, max_size=12)
SOME = st.lists(TUIDS, min_size=1, max_size=2, unique=True).map(tuple)
RANGES = st.builds(Tombstone, st.just(0), st.none() | SOME, MOMENTS, MOMENTS)
DROPPED = st.builds(
    Tombstone, st.just(0), st.tuples(TUIDS), st.just(TS_MIN), st.just(TS_MAX), st.just(True))
DELETES = st.lists(st.tuples(st.integers(1, 3), POINTS | RANGES | DROPPED, st.booleans()), max_size=12)
VERSIONS = st.integers(0, 24)
ROWS = st.lists(st.tuples(TUIDS, MOMENTS, VERSIONS), max_size=30).map(sorted)


def columns(rows: Sequence[Row]) -> tuple[U64, I64, U64]:
    tuid, ts, version = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(tuid, np.uint64), np.array(ts, np.int64), np.array(version, np.uint64)


class Both:
    """The same deletes as a plain list, and as a table has them."""

    def __init__(self, drawn: Iterable[Drawn]) -> None:
        self.plain: list[Tombstone] = []
        self.deletes = TableDeletes()
        version = 0
        for newer, what, looked in drawn:
            version += newer
            if isinstance(what, Tombstone):
                self.plain.append(replace(what, version=version))
                self.deletes.add_range(self.plain[-1])
            else:
                self.plain += [Tombstone(version, (tuid,), ts, ts) for tuid, ts in what]
                tuid, ts, _ = columns(sorted((*point, version) for point in what))
                self.deletes.add_points(tuid, ts, version)
            if looked:
                assert len(self.deletes.told) == len(self.deletes)

    def hidden(self, rows: Sequence[Row], as_of: int) -> list[bool]:
        return [any(t.hides_for(as_of) and t.touches(ts, ts) and version < t.version
                    and (t.tuids is None or tuid in t.tuids) for t in self.plain) for tuid, ts, version in rows]


@settings(max_examples=times(150, 5_000), deadline=None)
@given(DELETES, ROWS, VERSIONS | st.just(NEWEST))
def test_columns_hide_what_a_list_hides(drawn: list[Drawn], rows: list[Row], as_of: int) -> None:
    """As of any version, also when read back from text."""
    both = Both(drawn)
    expected = both.hidden(rows, as_of)
    told = both.deletes.told
    runs = tuple(PointRun.of_text(len(run), run.to_text()) for run in told.points.runs())
    for tombstones in (told, Tombstones(told.ranges, PointDeletes(runs))):
        assert tombstones.seen(as_of).hidden(*columns(rows)).tolist() == expected
        one_by_one = [bool(tombstones.seen(as_of).hidden(*columns([row]))[0]) for row in rows]
        assert one_by_one == expected
        assert tombstones.count_until(as_of) == sum(t.version <= as_of for t in tombstones.ranges) + len(
            {(tuid, t.first_ts, t.version) for t in both.plain for tuid in t.tuids or () if t.is_of_points
             and t not in tombstones.ranges and t.version <= as_of})


EXTENTS = st.builds(Extent, MOMENTS, MOMENTS, TUIDS, TUIDS, VERSIONS)


@settings(max_examples=times(150, 5_000), deadline=None)
@given(DELETES, EXTENTS, VERSIONS | st.just(NEWEST))
def test_deletes_near_some_rows_are_found(drawn: list[Drawn], extent: Extent, as_of: int) -> None:
    """Those that may hide a row where the rows lie, and no other."""
    both = Both(drawn)
    seen = both.deletes.told.seen(as_of)
    expected = sorted({(tuid, t.first_ts, t.version) for t in both.plain if t not in seen.ranges and t.is_of_points
                       and t.hides_for(as_of) and t.reaches(extent) for tuid in t.tuids or ()
                       if extent.first_tuid <= tuid <= extent.last_tuid})
    near = [point for run in seen.points.near(extent) for point in zip(
        run.tuid.tolist(), run.ts.tolist(), run.version.tolist(), strict=True)]
    assert sorted(near) == expected
    assert seen.reach(extent) == any(t.hides_for(as_of) and t.reaches(extent) for t in both.plain)


@settings(max_examples=times(150, 5_000), deadline=None)
@given(DELETES, st.lists(EXTENTS, max_size=2), VERSIONS, ROWS, VERSIONS)
def test_nobody_misses_what_is_not_needed(drawn: list[Drawn], extents: list[Extent], horizon: int, rows: list[Row],
                                          newer: int) -> None:
    """Rows of the extents, and rows behind the horizon, are hidden as before, for readers as of then and later."""
    both = Both(drawn)
    needed, forgotten = both.deletes.told.needed(extents, horizon)
    rows = [row for row in rows if row[2] > horizon or any(
        extent.first_tuid <= row[0] <= extent.last_tuid and extent.first_ts <= row[1] <= extent.last_ts
        and row[2] >= extent.behind for extent in extents)]
    as_of = horizon + newer
    assert needed.seen(as_of).hidden(*columns(rows)).tolist() == both.hidden(rows, as_of)
    kept = {(tuid, t.first_ts, t.version) for t in of_plain(needed) for tuid in t.tuids or (0,)}
    gone = [t.version for t in both.plain for tuid in t.tuids or (0,) if (tuid, t.first_ts, t.version) not in kept]
    assert max(gone, default=0) >= forgotten
    assert forgotten <= horizon
    assert not gone or needed != both.deletes.told
    # Once more there is nothing to do.
    again, _ = needed.needed(extents, horizon)
    assert again == needed


def of_plain(tombstones: Tombstones) -> list[Tombstone]:
    return [*tombstones.ranges, *(Tombstone(version, (tuid,), ts, ts) for run in tombstones.points.runs()
                                  for tuid, ts, version in zip(run.tuid.tolist(), run.ts.tolist(),
                                                               run.version.tolist(), strict=True))]


@settings(max_examples=times(50, 1_000), deadline=None)
@given(DELETES, st.sampled_from(["ms", "us", "ns"]))
def test_files_for_others_have_all_deletes(drawn: list[Drawn], unit: str) -> None:
    """A row per child table, with times that DuckDB can hold."""
    both = Both(drawn)
    table = to_table(both.deletes.told, pa.timestamp(unit), [1, 2])
    first, last = (table.column(place).cast(pa.int64()).to_pylist() for place in (1, 2))
    limit = 9_223_372_036_854_000 * (1 if unit == "ms" else 1000)
    assert sorted(zip(table.column(0).to_pylist(), first, last, table.column(3).to_pylist(), strict=True)) == sorted(
        (tuid, max(t.first_ts, -limit), min(t.last_ts, limit), t.version)
        for t in both.plain for tuid in (t.tuids or [1, 2]))


# -- what is stored ----------------------------------------------------------------------------------------------------


def manifest_with(tombstones: Tombstones) -> Manifest:
    return Manifest(1, 9, tables={TABLE: TableManifest(TABLE, SCHEMA, 1, tombstones=tombstones)})


@settings(max_examples=times(25, 500), deadline=None)
@given(DELETES, VERSIONS)
def test_a_manifest_has_the_deletes_that_its_parts_need(drawn: list[Drawn], persisted: int) -> None:
    """It comes back as it was written, without those that are newer."""
    both = Both(drawn)
    content = manifests.encode(manifest_with(both.deletes.told.seen(persisted)))
    rows = [(tuid, ts, version) for tuid in (1, 2) for ts in (-1, 0, 1, 4) for version in range(0, 20, 3)]
    loaded = loaded_from(content)
    assert loaded.tombstones.hidden(*columns(rows)).tolist() == both.hidden(rows, persisted)


def loaded_from(content: bytes) -> TableManifest:
    class Holding(OsFs):
        def read(self, path: Path) -> bytes:
            return content

    found = manifests.load(Holding(), Path("/store"), 1)
    assert found is not None
    return found.tables[TABLE]


def changed(content: bytes, **fields: object) -> bytes:
    """Returns a MANIFEST of another content, that of its table included."""
    body = json.loads(unseal(content, "", ""))
    (table,) = body["tables"]
    table |= fields
    return seal(json.dumps(body).encode())


@pytest.mark.parametrize("points", ["other", [[1]], [[2, "AAAA"]], [[1, 5]], [[-1, ""]], "order", "count"])
def test_points_that_make_no_sense_are_named(points: object) -> None:
    """A MANIFEST is damaged if they aren't what it says they are."""
    run = PointRun(*columns([(1, 5, 3), (2, 4, 3)]))
    if points == "order":
        points = [[2, PointRun(*columns([(2, 4, 3), (1, 5, 3)])).to_text()]]
    elif points == "count":
        points = [[1, run.to_text()]]
    content = manifests.encode(manifest_with(Tombstones((), PointDeletes((run,)))))
    assert len(loaded_from(content).tombstones) == 2
    with pytest.raises(CorruptionError, match="MANIFEST is damaged"):
        loaded_from(changed(content, points=points))


# -- a table whose rows come and go ------------------------------------------------------------------------------------


def opened(directory: Path) -> tuple[Vnode, ManualClock]:
    clock = ManualClock()
    vnode = Vnode.open(directory, VnodeOptions(1, part_grace_s=0.0), fs=FaultyFs(), clock=clock)
    vnode.tables.define(TABLE, SCHEMA, 1)
    return vnode, clock


def written(moments: Sequence[int], value: int) -> WrittenRows:
    return WrittenRows(TABLE, pa.record_batch([
        pa.array([TABLE] * len(moments), pa.uint64()), pa.array(moments, pa.timestamp("ms")),
        pa.array([value] * len(moments), pa.int64())], names=["_tuid", "ts", "v"]))


def deleted(moments: Sequence[int]) -> DeletedRows:
    return DeletedRows(TABLE, np.full(len(moments), TABLE, np.uint64), np.array(moments, np.int64))


def done(vnode: Vnode, *changes: Change) -> int:
    begun = vnode.writer.begin_together(changes)
    assert begun is not None
    return begun.wait()


def test_many_deletes_are_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a bound that readers can hold: all of them are seen at once."""
    vnode, _ = opened(tmp_path)
    monkeypatch.setattr(vnode_writer, "_POINTS_MAX", 40)
    done(vnode, written(range(100), 1))
    version = vnode.acknowledged_version
    assert done(vnode, deleted(range(0, 200, 2)), written([1, 2], 2)) == version + 3
    first, second, _ = WalReader(LogFiles(tmp_path / "wal", OsFs()), version + 1).read()
    assert isinstance(first, DeletePointsRecord)
    assert isinstance(second, DeletePointsRecord)
    assert first.times.tolist() + second.times.tolist() == list(range(0, 100, 2))
    assert (first.first_ts, first.last_ts) == (0, 78)
    assert set(first.tuids.tolist()) == {TABLE}
    found = vnode.reader.snapshot(TABLE).to_arrow()
    assert found.column("ts").cast(pa.int64()).to_pylist() == [1, 2, *range(3, 100, 2)]
    vnode.close()


def test_deletes_of_rows_that_come_and_go_do_not_pile_up(tmp_path: Path) -> None:
    """However often the rows of a table were replaced, no more deletes stay than since the last compaction."""
    vnode, _ = opened(tmp_path)
    places = range(3_000)
    done(vnode, written(places, 0))
    for cycle in range(1, 6):
        done(vnode, deleted(places[:2_500]), written(places[:2_000], cycle))
        done(vnode, deleted(places[:2_000]), written(places[:2_500], cycle))
        vnode.flush()
        vnode.compact()  # writes parts without what is hidden
        vnode.maintain()  # deletes those that it replaced
        vnode.compact()
        assert vnode.reader.stats().tombstones == 0, cycle
    assert vnode.reader.stats().part_rows == 3_000
    vnode.close()


def test_of_deletes_of_one_place_the_newest_stays(tmp_path: Path) -> None:
    """Readers of old versions keep all of them; then only parts that they hide rows of, and one per place."""
    vnode, _ = opened(tmp_path)
    done(vnode, written(range(10), 0))
    vnode.flush()
    vnode.set_pin("reader", vnode.acknowledged_version)
    for cycle in range(1, 6):
        done(vnode, deleted([3]), written([3], cycle))
        vnode.flush()
    vnode.compact()
    assert vnode.reader.stats().tombstones == 5
    vnode.release_pin("reader")
    vnode.compact()
    assert vnode.reader.stats().tombstones == 1
    expected = [0, 0, 0, 5, 0, 0, 0, 0, 0, 0]
    assert vnode.reader.snapshot(TABLE).to_arrow().column("v").to_pylist() == expected
    vnode.close()
    vnode, _ = opened(tmp_path)
    assert vnode.reader.snapshot(TABLE).to_arrow().column("v").to_pylist() == expected
    vnode.close()
