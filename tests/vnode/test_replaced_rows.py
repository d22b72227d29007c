"""Rows that are written again and again, as results of streams are: what is read, and where versions are looked for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs
from kits.basics.shared_duckdb import duckdb_with

from penstock.common.clock import ManualClock
from penstock.vnode.read.snapshot import Snapshot, united
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode

TABLE = 9
SCHEMA = pa.schema([("ts", pa.timestamp("ms")), ("v", pa.int64())])
STEPS = st.lists(st.one_of(
    st.tuples(st.just("write"), st.integers(0, 60), st.integers(1, 8)),
    st.tuples(st.just("write"), st.integers(0, 60), st.integers(1, 8)),
    st.tuples(st.sampled_from(["flush", "compact", "full", "pin", "release"]), st.just(0), st.just(0)),
    st.tuples(st.just("delete"), st.integers(0, 60), st.integers(1, 3)),
), min_size=4, max_size=24)


def open_vnode(folder: Path) -> Vnode:
    vnode = Vnode.open(folder, VnodeOptions(1, part_grace_s=0.0, compact_min_parts=3), fs=FaultyFs(),
                       clock=ManualClock())
    vnode.tables.define(TABLE, SCHEMA, 1)
    return vnode


def write(vnode: Vnode, first: int, count: int, value: int) -> None:
    """Writes rows of two child tables at times from `first` on."""
    keys = [(tuid, ts) for tuid in (1, 2) for ts in range(first, first + count)]
    vnode.write(TABLE, pa.record_batch({
        "_tuid": pa.array([key[0] for key in keys], pa.uint64()),
        "ts": pa.array([key[1] for key in keys], pa.timestamp("ms")), "v": pa.array([value] * len(keys), pa.int64())}))


def found(snapshot: Snapshot, first: int | None = None, last: int | None = None) -> list[tuple[int, int, int]]:
    """Returns what DuckDB reads: (_tuid, ts, v), sorted."""
    select = snapshot.to_sql(["ts", "v"], None, first, last, epochs=True)
    with duckdb_with(select.tables) as connection:
        return connection.sql(f"SELECT _tuid, ts, v FROM ({select.sql}) ORDER BY ALL").fetchall()


@settings(max_examples=times(20, 400), deadline=None)
@given(steps=STEPS, bounds=st.tuples(st.integers(0, 60), st.integers(0, 20)))
def test_each_row_is_read_once_as_it_was_written_last(
    steps: list[tuple[str, int, int]], bounds: tuple[int, int]
) -> None:
    """Wherever its older versions are: in memory, in the same part, in others, or kept for a reader of the past."""
    model: dict[tuple[int, int], int] = {}
    with TemporaryDirectory() as folder:
        vnode = open_vnode(Path(folder))
        for number, (kind, first, count) in enumerate(steps):
            match kind:
                case "write":
                    write(vnode, first, count, number)
                    model |= {(tuid, ts): number for tuid in (1, 2) for ts in range(first, first + count)}
                case "delete":
                    vnode.delete(TABLE, [1], first, first + count)
                    model = {key: v for key, v in model.items() if key[0] != 1 or not first <= key[1] <= first + count}
                case "flush":
                    vnode.flush()
                case "pin":
                    vnode.set_pin("p", vnode.acknowledged_version)
                case "release":
                    vnode.release_pin("p")
                case _:
                    vnode.compact(full=kind == "full")
            expected = sorted((*key, value) for key, value in model.items())
            assert found(vnode.reader.snapshot(TABLE)) == expected
        low, high = bounds[0], bounds[0] + bounds[1]
        assert found(vnode.reader.snapshot(TABLE), low, high) == [row for row in expected if low <= row[1] <= high]
        vnode.close()


def parts(vnode: Vnode) -> list[tuple[int, tuple[int, int] | None]]:
    """Returns rows and range of updates of each part."""
    return [(part.info.rows, part.info.updates) for part in vnode.reader.snapshot(TABLE)._parts]


def test_a_flush_leaves_versions_only_where_other_parts_have_some(tmp_path: Path) -> None:
    """What was replaced before it came into a part is nowhere else."""
    vnode = open_vnode(tmp_path)
    for ts in range(10):
        for value in range(3):
            write(vnode, ts, 1, value)
    vnode.flush()
    assert parts(vnode) == [(20, None)]
    write(vnode, 8, 4, 7)
    write(vnode, 8, 4, 8)
    vnode.flush()
    assert parts(vnode) == [(20, None), (8, (8, 9))]
    known, rest = vnode.reader.snapshot(TABLE).counted(last_ts=7)
    assert known is None
    assert len(found(rest, None, 7)) == 16
    vnode.close()


def test_a_part_with_replaced_rows_is_written_again_once_nobody_needs_them(tmp_path: Path) -> None:
    """As long as a reader of the past may come, it stays as it is."""
    vnode = open_vnode(tmp_path)
    vnode.set_pin("reader", 0)
    for value in range(3):
        write(vnode, 0, 10, value)
    vnode.flush()
    assert parts(vnode) == [(60, (0, 9))]
    assert vnode.compact() == 0
    vnode.release_pin("reader")
    assert vnode.compact() == 1
    assert parts(vnode) == [(20, None)]
    assert vnode.compact() == 0
    vnode.close()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)).map(lambda span: (span[0], span[0] + span[1]))),
       st.integers(1, 4))
def test_united_ranges_cover_all_and_are_few(spans: list[tuple[int, int]], most: int) -> None:
    """They ascend, and without a bound they cover nothing else."""
    covered = {at for low, high in spans for at in range(low, high + 1)}
    few, every = united(spans, most), united(spans, 1000)
    assert len(few) <= most
    assert {at for low, high in every for at in range(low, high + 1)} == covered
    assert covered <= {at for low, high in few for at in range(low, high + 1)}
    assert all(before[1] < after[0] for before, after in pairwise(few))


def test_a_few_rows_written_again_and_again_become_one_run() -> None:
    """They wait in the memtable, however often they come, and readers see each write as of its version."""
    with TemporaryDirectory() as folder:
        vnode = open_vnode(Path(folder) / "v")
        vnode.set_pin("reader", 0)
        for value in range(40):
            write(vnode, 6, 1, value)
        write(vnode, 7, 2, 40)
        assert vnode._store.table(TABLE).memtable._waiting == 40 * 2 + 4
        assert found(vnode.reader.snapshot(TABLE)) == [
            (tuid, ts, 39 if ts < 7 else 40) for tuid in (1, 2) for ts in (6, 7, 8)]
        assert [run.num_rows for run in vnode._store.table(TABLE).runs()] == [40 * 2 + 4]
        write(vnode, 6, 1, 41)  # older than the newest of its child table: is looked up
        assert found(vnode.reader.snapshot(TABLE, as_of=20)) == [(tuid, 6, 19) for tuid in (1, 2)]
        assert found(vnode.reader.snapshot(TABLE))[0] == (1, 6, 41)
        vnode.close()
