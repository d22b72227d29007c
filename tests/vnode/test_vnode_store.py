"""A vnode's store: faults, restarts, schema changes, retention with pins, dropped tables, the dnode around it."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import threading
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.duckdb_plans import join_conditions
from kits.basics.faulty_fs import FaultyFs
from kits.basics.shared_duckdb import duckdb_with

from penstock.common.clock import ManualClock, SystemClock
from penstock.common.errors import (
    CorruptionError,
    DataDirectoryInUseError,
    InvalidStatementError,
    InvalidValueError,
    NotFoundError,
    StorageError,
    UnavailableError,
)
from penstock.common.fs import AppendFile, Fs, OsAppendFile, OsFs
from penstock.common.paths import DataPaths
from penstock.vnode.dnode import Dnode, lock_data_directory
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode
from penstock.vnode.write import compaction, flushing
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalGapError, WalReader
from penstock.wal.record import RowsRecord

TABLE = 9
SCHEMA = pa.schema([("ts", pa.timestamp("ms")), ("v", pa.int64())])


def rows(*keys: tuple[int, int], value: int | None = 0) -> pa.RecordBatch:
    """Returns rows with these (_tuid, ts) and one value."""
    return pa.record_batch({"_tuid": pa.array([k[0] for k in keys], pa.uint64()),
                            "ts": pa.array([k[1] for k in keys], pa.timestamp("ms")),
                            "v": pa.array([value] * len(keys), pa.int64())})


def open_vnode(directory: Path, fs: Fs | None = None, clock: ManualClock | None = None, **options: Any) -> Vnode:
    """Opens a vnode with the test table defined."""
    vnode = Vnode.open(directory, VnodeOptions(1, **options), fs=fs or FaultyFs(), clock=clock or ManualClock())
    vnode.tables.define(TABLE, SCHEMA, 1)
    return vnode


def content(vnode: Vnode, as_of: int | None = None, table: int = TABLE) -> dict[tuple[int, int], int]:
    """Returns {(_tuid, ts): v}; no row is there twice."""
    found = vnode.reader.snapshot(table, as_of=as_of).to_arrow()
    keys = list(zip(found["_tuid"].to_pylist(), found["ts"].cast(pa.int64()).to_pylist(), strict=True))
    assert len(keys) == len(set(keys))
    return dict(zip(keys, found["v"].to_pylist(), strict=True))


@pytest.mark.parametrize("fault", ["error", "short"])
@pytest.mark.parametrize("level", [1, 2])
def test_whatever_call_fails_acknowledged_rows_stay(tmp_path: Path, fault: str, level: int) -> None:
    """One failing call anywhere: each write is either refused with StorageError or there, also after a restart."""
    for fail_at in range(times(level, 1), 250, times(3, 1)):
        directory = tmp_path / str(fail_at)
        fs = FaultyFs(fault=fault)
        vnode = open_vnode(directory, fs, wal_level=level, segment_bytes=1500, compact_min_parts=2,
                           part_grace_s=0.0, wal_retention_period_s=0)
        fs.calls, fs.fail_at = 0, fail_at
        expected: dict[tuple[int, int], int] = {}
        uncertain: set[tuple[int, int]] = set()
        for turn in range(4):
            for key, value in (((1, turn), turn), ((2, turn), turn), ((1, 0), 100 + turn)):
                try:
                    vnode.write(TABLE, rows(key, value=value))
                    expected[key] = value
                except StorageError:
                    uncertain |= {key} if vnode._wal.failed is not None else set()
            for action in (vnode.flush, vnode.compact, vnode.maintain):
                try:
                    action()
                except StorageError:
                    assert content(vnode) == expected
            if turn == 2:
                try:
                    vnode.delete(TABLE, [2], 0, 1)
                    expected = {key: v for key, v in expected.items() if key not in ((2, 0), (2, 1))}
                except StorageError:
                    uncertain |= {(2, 0), (2, 1)} if vnode._wal.failed is not None else set()
            assert content(vnode) == expected
        try:
            vnode.close()
        except StorageError:
            assert fs.failed
        again = open_vnode(directory)
        found = content(again)
        assert {k: v for k, v in found.items() if k not in uncertain} == \
            {k: v for k, v in expected.items() if k not in uncertain}
        again.reader.verify()
        again.close()
        if not fs.failed:
            return
    raise AssertionError("the fault must run out of calls")


@pytest.mark.parametrize("fault", ["error", "sync"])
def test_a_flush_that_fails_doubles_no_row_of_any_table(tmp_path: Path, fault: str) -> None:
    """Whichever call of a flush of several tables fails: what it has made valid isn't flushed once more."""
    for fail_at in range(1, 80):
        fs = FaultyFs(fault=fault)
        vnode = open_vnode(tmp_path / str(fail_at), fs)
        vnode.tables.define(TABLE + 1, SCHEMA, 1)
        for turn in range(3):
            for table in (TABLE, TABLE + 1):
                if vnode._wal.failed is None:
                    vnode.write(table, rows((1, turn), value=turn))
            fs.calls, fs.fail_at = 0, fail_at if turn == 1 else 0
            try:
                vnode.flush()
            except StorageError:
                assert fs.failed
            fs.fail_at = 0
        expected = {(1, turn): turn for turn in range(3 if vnode._wal.failed is None else 2)}
        assert content(vnode) == content(vnode, table=TABLE + 1) == expected
        vnode.close()
        if not fs.failed:
            return
    raise AssertionError("the fault must run out of calls")


def test_flushes_take_no_more_than_a_tenth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes long, since tables are many, is followed by a long rest; full memory is written all the same."""
    clock = ManualClock()
    vnode = open_vnode(tmp_path, clock=clock, flush_interval_s=1.0, memtable_bytes=100_000)
    write_parts = flushing.write_parts

    def slowly(*given: Any) -> Any:
        clock.advance(3.0)
        return write_parts(*given)

    monkeypatch.setattr(flushing, "write_parts", slowly)

    def flushed_after(seconds: float, count: int = 1) -> int:
        first = vnode.acknowledged_version * 1_000_000
        vnode.write(TABLE, rows(*((1, first + place) for place in range(count))))
        clock.advance(seconds)
        vnode.maintain()
        return vnode.reader.stats().part_rows

    assert [flushed_after(0.5), flushed_after(0.5)] == [0, 2]
    assert [flushed_after(20.0), flushed_after(6.0), flushed_after(1.0)] == [2, 2, 5]
    assert flushed_after(0.0, count=20_000) == 20_005
    vnode.close()


def test_concurrent_writers_flushes_and_readers_agree(tmp_path: Path) -> None:
    """Threads write, flush, compact and read at once; a read after an acknowledged write sees it."""
    vnode = Vnode.open(tmp_path, VnodeOptions(1, compact_min_parts=2, part_grace_s=0.0), fs=OsFs(),
                       clock=SystemClock())
    vnode.tables.define(TABLE, SCHEMA, 1)
    done = threading.Event()
    problems: list[BaseException] = []

    def guarded(work: Any, *arguments: int) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            problems.append(error)

    def write(uid: int) -> None:
        for ts in range(60):
            version = vnode.write(TABLE, rows((uid, ts), value=ts))
            assert vnode.reader.snapshot(TABLE).version >= version
            found = vnode.reader.snapshot(TABLE).to_arrow(["v"], pa.array([uid], pa.uint64()))
            assert found["v"].to_pylist() == list(range(ts + 1))

    def upkeep() -> None:
        while not done.is_set():
            vnode.flush()
            vnode.compact()
            vnode.maintain()

    writers = [threading.Thread(target=guarded, args=(write, uid)) for uid in range(1, 5)]
    keeper = threading.Thread(target=guarded, args=(upkeep,))
    for thread in [*writers, keeper]:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    keeper.join()
    assert problems == []
    assert content(vnode) == {(uid, ts): ts for uid in range(1, 5) for ts in range(60)}
    vnode.close()


def test_columns_come_and_go(tmp_path: Path) -> None:
    """Old rows have NULL in a new column; a dropped one is not read; types and keys cannot change."""
    vnode = open_vnode(tmp_path)
    vnode.write(TABLE, rows((1, 1), value=1))
    vnode.flush()
    vnode.tables.define(TABLE, SCHEMA.append(pa.field("w", pa.string())), 1)
    vnode.write(TABLE, pa.record_batch({"_tuid": pa.array([1], pa.uint64()), "ts": pa.array([2], pa.timestamp("ms")),
                                        "w": pa.array(["new"])}))
    vnode.write(TABLE, pa.record_batch({"_tuid": pa.array([1], pa.uint64()), "ts": pa.array([1], pa.timestamp("ms")),
                                        "w": pa.array(["late"])}))
    found = vnode.reader.snapshot(TABLE).to_arrow()
    assert found["v"].to_pylist() == [1, None]
    assert found["w"].to_pylist() == ["late", "new"]
    vnode.flush()
    vnode.compact(full=True)
    vnode.tables.define(TABLE, pa.schema([("ts", pa.timestamp("ms")), ("w", pa.string())]), 1)
    assert vnode.reader.snapshot(TABLE).to_arrow().column_names == ["_tuid", "ts", "w", "_ver"]
    with pytest.raises(InvalidStatementError, match="cannot change its type"):
        vnode.tables.define(TABLE, pa.schema([("ts", pa.timestamp("ms")), ("w", pa.int64())]), 1)
    with pytest.raises(InvalidStatementError, match="key"):
        vnode.tables.define(TABLE, pa.schema([("ts", pa.timestamp("us")), ("w", pa.string())]), 1)
    vnode.close()
    again = Vnode.open(tmp_path, VnodeOptions(1), fs=OsFs(), clock=ManualClock())
    assert again.reader.snapshot(TABLE).to_arrow()["w"].to_pylist() == ["late", "new"]
    again.close()


def test_bad_batches_are_refused_whole(tmp_path: Path) -> None:
    """Unknown columns, missing or NULL keys and unfitting values are named errors, and nothing is written."""
    vnode = open_vnode(tmp_path)
    good = rows((1, 1))
    for batch, error in (
        (good.rename_columns(["_tuid", "ts", "x"]), InvalidStatementError),
        (good.select(["_tuid", "v"]), InvalidStatementError),
        (good.select(["ts", "v"]), InvalidStatementError),
        (good.set_column(1, "ts", pa.array([None], pa.timestamp("ms"))), InvalidValueError),
        (good.set_column(2, "v", pa.array(["abc"])), InvalidValueError),
    ):
        with pytest.raises(error):
            vnode.write(TABLE, batch)
    with pytest.raises(NotFoundError):
        vnode.write(TABLE + 1, good)
    with pytest.raises(NotFoundError):
        vnode.reader.snapshot(TABLE + 1)
    with pytest.raises(InvalidValueError, match="not acknowledged"):
        vnode.reader.snapshot(TABLE, as_of=1)
    assert vnode.acknowledged_version == 0
    vnode.close()
    with pytest.raises(UnavailableError):
        vnode.write(TABLE, good)


def test_a_pin_keeps_the_log_and_old_versions_over_a_restart(tmp_path: Path) -> None:
    """Retention and collapse stop at the pin; when it is released, both go on."""
    clock = ManualClock()
    options = {"segment_bytes": 500, "wal_retention_period_s": 0, "part_grace_s": 0.0, "flush_interval_s": 1.0}
    vnode = open_vnode(tmp_path, clock=clock, **options)
    for value in range(1, 11):
        vnode.write(TABLE, rows((1, 1), value=value))
    vnode.set_pin("stream", 10)
    for value in range(11, 41):
        vnode.write(TABLE, rows((1, 1), value=value))
    clock.advance(10)
    vnode.maintain()
    vnode.close()
    vnode = open_vnode(tmp_path, clock=clock, **options)
    vnode.compact(full=True)
    vnode.maintain()
    for version in (10, 25, 40):
        assert content(vnode, version) == {(1, 1): version}
    reader = WalReader(LogFiles(tmp_path / "wal", OsFs()), 11)
    assert reader.read(max_records=1)[0].version == 11
    with pytest.raises(WalGapError):
        WalReader(LogFiles(tmp_path / "wal", OsFs()), 1).read()
    vnode.release_pin("stream")
    vnode.write(TABLE, rows((1, 2), value=0))
    clock.advance(10)
    vnode.maintain()
    vnode.compact(full=True)
    assert vnode.reader.stats().part_rows == 2
    with pytest.raises(WalGapError):
        WalReader(LogFiles(tmp_path / "wal", OsFs()), 11).read()
    vnode.close()


def test_a_snapshot_outlives_compaction_and_table(tmp_path: Path) -> None:
    """A held snapshot keeps its files readable; they go once it is gone and the grace is over."""
    clock = ManualClock()
    vnode = open_vnode(tmp_path, clock=clock, part_grace_s=5.0)
    for ts in range(3):
        vnode.write(TABLE, rows((1, ts), value=ts))
        vnode.flush()
    snapshot = vnode.reader.snapshot(TABLE)
    vnode.compact(full=True)
    vnode.tables.drop(TABLE)
    clock.advance(6)
    vnode.maintain()
    assert snapshot.to_arrow()["v"].to_pylist() == [0, 1, 2]
    del snapshot
    vnode.maintain()
    for kind in ("parts", "tombstones", "last"):
        assert list((tmp_path / "store" / kind).iterdir()) == []
    vnode.close()


def test_dropped_children_are_gone_for_every_reader(tmp_path: Path) -> None:
    """Their rows vanish from new snapshots, also after compaction and restart; other tables keep theirs."""
    vnode = open_vnode(tmp_path, part_grace_s=0.0)
    vnode.write(TABLE, rows((1, 1), (2, 1), value=1))
    vnode.flush()
    vnode.write(TABLE, rows((1, 2), (2, 2), value=2))
    vnode.tables.drop_children(TABLE, [1])
    expected = {(2, 1): 1, (2, 2): 2}
    assert content(vnode) == expected
    assert vnode.reader.last_ts(1) is None
    vnode.close()
    vnode = open_vnode(tmp_path, part_grace_s=0.0)
    assert content(vnode) == expected
    vnode.write(TABLE, rows((2, 3), value=3))
    vnode.flush()
    vnode.compact(full=True)
    vnode.maintain()
    vnode.compact(full=True)
    assert content(vnode) == expected | {(2, 3): 3}
    assert (vnode.reader.stats().part_rows, vnode.reader.stats().tombstones) == (3, 0)
    vnode.close()


def test_merging_young_parts_leaves_old_ones_hidden(tmp_path: Path) -> None:
    """Updates and deletes of rows in a part that isn't merged keep their effect, in both ways of reading."""
    vnode = open_vnode(tmp_path, compact_min_parts=2, part_grace_s=0.0)
    vnode.write(TABLE, rows(*((1, ts) for ts in range(100)), value=0))
    vnode.flush()
    vnode.delete(TABLE, [1], 50, 50)
    for value in (1, 2):
        vnode.write(TABLE, rows((1, 5), value=value))
        vnode.flush()
    assert vnode.compact() == 2
    vnode.maintain()
    assert vnode.reader.stats().parts == 2
    expected = {(1, ts): 2 if ts == 5 else 0 for ts in range(100) if ts != 50}
    assert content(vnode) == expected
    select = vnode.reader.snapshot(TABLE).to_sql()
    with duckdb.connect() as connection:
        for name, table in select.tables.items():
            connection.register(name, table)
        assert connection.sql(f"SELECT count(*), sum(v) FROM ({select.sql})").fetchall() == [(99, 2)]
    # A rewrite of the newest row after it was deleted is a late row, not an update.
    vnode.delete(TABLE, [1], 99, 99)
    version = vnode.write(TABLE, rows((1, 99), value=9))
    (record,) = WalReader(LogFiles(tmp_path / "wal", OsFs()), version).read()
    assert isinstance(record, RowsRecord)
    assert record.batch.column("_change").to_pylist() == [1]
    vnode.close()


def test_duckdb_knows_about_how_many_rows_parts_have(tmp_path: Path) -> None:
    """However few the oldest of them has: else joins are planned the wrong way round."""
    vnode = open_vnode(tmp_path, compact_min_parts=9)
    for first, last in ((0, 3), (3, 2_000), (2_000, 4_100)):
        vnode.write(TABLE, rows(*((1, ts) for ts in range(first, last))))
        vnode.flush()
    assert vnode.reader.stats().parts == 3
    select = vnode.reader.snapshot(TABLE).to_sql(["v"])
    with duckdb.connect() as connection:
        (_, plan), = connection.sql(f"EXPLAIN (FORMAT JSON) {select.sql}").fetchall()
    assert 3_000 < _estimates(json.loads(plan)[0])[-1] < 9_000
    vnode.close()


def _estimates(plan: dict[str, Any]) -> list[int]:
    """Returns how many rows DuckDB reckons with, at each operator and below."""
    estimate = plan["extra_info"].get("Estimated Cardinality")
    return ([] if estimate is None else [int(estimate)]) + [
        rows for below in plan["children"] for rows in _estimates(below)]


@pytest.mark.parametrize("epochs", [True, False])
def test_queries_find_deleted_rows_by_their_time(tmp_path: Path, epochs: bool) -> None:
    """By child table alone each row would be compared with all deletes of its own."""
    vnode = open_vnode(tmp_path)
    vnode.write(TABLE, rows(*((1, ts) for ts in range(9))))
    vnode.flush()
    for ts in (3, 5):
        vnode.delete(TABLE, [1], ts, ts)
    select = vnode.reader.snapshot(TABLE).to_sql(epochs=epochs)
    with duckdb_with(select.tables) as connection:
        (conditions,) = join_conditions(connection, select.sql)
        assert len(connection.sql(select.sql).fetchall()) == 7
    equalities = [condition for condition in conditions if " = " in condition]
    assert [any(name in each for each in equalities) for name in ("_tuid", "ts")] == [True, True]
    vnode.close()


def test_deletes_that_a_reader_holds_up_are_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without a checkpoint keeps all deletes of a stream's results: none of them copies those before it, and
    nothing is written again for their sake.
    """
    monkeypatch.setattr(compaction, "_MAX_TOMBSTONES", 20)
    vnode = open_vnode(tmp_path / "v")
    vnode.set_pin("stream", 0)
    vnode.write(TABLE, rows(*((1, ts) for ts in range(100))))
    vnode.flush()
    before = vnode._store.tables[TABLE].tombstones.ranges
    for ts in range(0, 100, 2):
        vnode.delete(TABLE, [1], ts, ts + 1 if ts < 50 else ts)
    assert vnode._store.tables[TABLE]._deletes._told_ranges is before
    assert vnode.reader.stats().tombstones == len(vnode._store.tables[TABLE].tombstones) == 50
    assert len(content(vnode)) == 25
    vnode.flush()
    assert vnode.compact() == 0
    vnode.release_pin("stream")
    assert vnode.compact() == 1
    assert len(content(vnode)) == 25
    vnode.close()


def test_tombstones_go_when_no_file_needs_them(tmp_path: Path) -> None:
    """After compaction and grace a delete leaves nothing behind."""
    vnode = open_vnode(tmp_path, part_grace_s=0.0)
    vnode.write(TABLE, rows((1, 1), (1, 2), (2, 1), value=1))
    vnode.flush()
    vnode.delete(TABLE, [1], 1, 1)
    vnode.delete(TABLE, None, 2, 2)
    vnode.flush()
    assert vnode.reader.stats().tombstones == 2
    vnode.compact(full=True)
    vnode.maintain()
    vnode.compact(full=True)
    assert vnode.reader.stats().tombstones == 0
    assert content(vnode) == {(2, 1): 1}
    vnode.close()


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
@pytest.mark.parametrize("what", ["MANIFEST", "part"])
def test_damaged_files_are_named(tmp_path: Path, what: str, damage: str) -> None:
    """A broken MANIFEST or part is a CorruptionError with the file's name, at open or at verify."""
    vnode = open_vnode(tmp_path)
    vnode.write(TABLE, rows((1, 1)))
    vnode.close()
    path = tmp_path / "store" / "MANIFEST"
    if what == "part":
        (path,) = (tmp_path / "store" / "parts" / str(TABLE)).glob("0*.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(data if damage == "flip" else data[:len(data) // 2])
    with pytest.raises(CorruptionError, match=path.name):
        Vnode.open(tmp_path, VnodeOptions(1), fs=OsFs(), clock=ManualClock()).reader.verify()


def test_a_crash_after_each_write_loses_nothing(tmp_path: Path) -> None:
    """A copy of the directory taken at any time opens with everything that was acknowledged by then."""
    vnode = open_vnode(tmp_path / "live", segment_bytes=1000)
    expected = {}
    for ts in range(20):
        vnode.write(TABLE, rows((ts % 3, ts // 2), value=ts))
        expected[ts % 3, ts // 2] = ts
        if ts % 7 == 6:
            vnode.flush()
        copy = tmp_path / str(ts)
        shutil.copytree(tmp_path / "live", copy)
        again = open_vnode(copy)
        assert content(again) == expected
        again.close()
    vnode.close()


class PowerCutFs(FaultyFs):
    """Remembers how much of each log segment was synced."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: dict[str, int] = {}

    def open_append(self, path: Path) -> AppendFile:
        return SyncedFile(self, path)


class SyncedFile(OsAppendFile):
    """An appended file that tells what was synced, without syncing."""

    def __init__(self, fs: PowerCutFs, path: Path) -> None:
        super().__init__(path)
        self._fs = fs
        self._name = path.name
        fs.synced.setdefault(path.name, 0)

    def sync(self) -> None:
        self._fs.synced[self._name] = self.size


@settings(max_examples=times(16, 400), deadline=None)
@given(st.integers(1, 2), st.lists(st.sampled_from(["write", "write", "write", "flush", "sync"]), max_size=20),
       st.randoms(use_true_random=False))
def test_a_power_cut_keeps_what_was_synced(level: int, ops: list[str], random: Random) -> None:
    """Unsynced bytes are lost or garbled: level 2 loses nothing acknowledged, level 1 only the end of the log."""
    with TemporaryDirectory() as name:
        root = Path(name)
        fs, clock = PowerCutFs(), ManualClock()
        vnode = open_vnode(root / "live", fs, clock, wal_level=level, segment_bytes=900)
        order: list[tuple[int, int]] = []
        durable = 0
        for op in ops:
            if op == "write":
                order.append((1, len(order)))
                vnode.write(TABLE, rows(order[-1], value=len(order)))
            elif op == "flush":
                vnode.flush()
            else:
                clock.advance(4)
                vnode._wal.sync_if_due(3)
            if level == 2 or op != "write":
                durable = len(order)
        shutil.copytree(root / "live", root / "cut")
        for segment in (root / "cut" / "wal").glob("*.log"):
            data = segment.read_bytes()
            kept = random.randint(fs.synced[segment.name], len(data))
            tail = random.choice([b"", bytes(len(data) - kept), random.randbytes(len(data) - kept)])
            segment.write_bytes(data[:kept] + tail)
        if random.random() < 0.5:
            (root / "cut" / "wal" / "END").unlink()
        again = open_vnode(root / "cut", wal_level=level)
        found = content(again)
        assert len(found) >= durable
        assert found == {key: number for number, key in enumerate(order[:len(found)], 1)}
        again.close()
        vnode.close()


def hold_directory(root: str, ready: Any, release: Any) -> None:
    """Locks a data directory in another process until told to stop."""
    lock = lock_data_directory(DataPaths(Path(root)))
    ready.set()
    release.wait(60)
    lock.release()


def test_a_second_engine_is_refused_by_name(tmp_path: Path) -> None:
    """Two engines on one directory: the second learns the first one's process id; afterwards it may have it."""
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    process = context.Process(target=hold_directory, args=(str(tmp_path), ready, release))
    process.start()
    assert ready.wait(60)
    with pytest.raises(DataDirectoryInUseError, match=str(process.pid)):
        lock_data_directory(DataPaths(tmp_path))
    release.set()
    process.join()
    lock_data_directory(DataPaths(tmp_path)).release()


def test_the_dnode_maintains_closes_and_drops_its_vnodes(tmp_path: Path) -> None:
    """Its upkeep flushes; closing flushes the rest; a dropped vnode leaves no files."""
    clock = ManualClock()
    dnode = Dnode(DataPaths(tmp_path), fs=OsFs(), clock=clock)
    first, second = (dnode.open_vnode(n, VnodeOptions(n)) for n in (1, 2))
    assert dnode.open_vnode(1, VnodeOptions(1)) is dnode.vnode(1) is first
    for vnode in (first, second):
        vnode.tables.define(TABLE, SCHEMA, 1)
        vnode.write(TABLE, rows((1, 1)))
    clock.advance(10)
    dnode.maintain()
    assert first.reader.stats().persisted_version == 1
    assert dnode.problems == {}
    dnode.drop_vnode(2)
    assert not (tmp_path / "vnode" / "2").exists()
    with pytest.raises(NotFoundError):
        dnode.vnode(2)
    first.write(TABLE, rows((1, 2)))
    dnode.close()
    again = Vnode.open(tmp_path / "vnode" / "1", VnodeOptions(1), fs=OsFs(), clock=clock)
    assert again.reader.stats().memtable_rows == 0
    assert len(content(again)) == 2
    again.close()


def test_the_dnode_shows_and_forgets_problems(tmp_path: Path) -> None:
    """Upkeep that fails is visible until it works again."""
    clock = ManualClock()
    fs = FaultyFs()
    dnode = Dnode(DataPaths(tmp_path), fs=fs, clock=clock)
    vnode = dnode.open_vnode(1, VnodeOptions(1))
    vnode.tables.define(TABLE, SCHEMA, 1)
    vnode.write(TABLE, rows((1, 1)))
    clock.advance(2.5)
    fs.calls, fs.fail_at = 0, 2
    dnode.maintain()
    assert "injected fault" in str(dnode.problems[1])
    clock.advance(2.5)
    dnode.maintain()
    assert dnode.problems == {}
    assert content(vnode) == {(1, 1): 0}
    dnode.close()


def test_the_dnode_thread_starts_and_stops(tmp_path: Path) -> None:
    """The maintenance thread ends with close."""
    before = set(threading.enumerate())
    dnode = Dnode(DataPaths(tmp_path), fs=OsFs(), clock=SystemClock())
    dnode.start()
    dnode.start()
    dnode.close()
    assert not any(thread.name == "penstock-dnode" for thread in set(threading.enumerate()) - before)
