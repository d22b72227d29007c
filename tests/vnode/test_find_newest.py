"""A key is found in whatever chunk it is; parts are read only for what isn't in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.few_rows import write_few

from penstock.common.clock import ManualClock
from penstock.common.fs import OsFs
from penstock.vnode.store.chunk_reader import find_existing, find_newest
from penstock.vnode.store.memtable import Run
from penstock.vnode.store.parts import PartCache
from penstock.vnode.store.points import PointDeletes, PointRun
from penstock.vnode.store.table_state import LATE, UPDATE
from penstock.vnode.store.tombstones import Tombstone, Tombstones
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalReader
from penstock.wal.record import RowsRecord

KEYS = [(uid, ts) for uid in (1, 2, 9) for ts in (10, 20)]
WRITES = st.lists(st.lists(st.sampled_from(KEYS), unique=True, min_size=1), min_size=1, max_size=8)


def _run(writes: list[tuple[int, int, int]]) -> Run:
    """Returns a run of (uid, ts, version)s."""
    tuid, ts, version = (np.array(column) for column in zip(*sorted(writes), strict=True))
    return Run.of(pa.record_batch({
        "_tuid": pa.array(tuid, pa.uint64()), "ts": pa.array(ts, pa.timestamp("ms")),
        "_ver": pa.array(version, pa.uint64())}), None)


@given(WRITES, st.lists(st.sampled_from(KEYS), unique=True, min_size=1), st.integers(1, 4), st.randoms())
def test_the_newest_version_is_found_in_any_order_of_chunks(
    writes: list[list[tuple[int, int]]], wanted: list[tuple[int, int]], chunks: int, random: object
) -> None:
    """Parts that were merged stand behind newer ones: chunks come in no order that could be relied on."""
    parts: list[list[tuple[int, int, int]]] = [[] for _ in range(chunks)]
    newest: dict[tuple[int, int], int] = {}
    for version, keys in enumerate(writes, 1):
        parts[random.randrange(chunks)].extend((uid, ts, version) for uid, ts in keys)  # type: ignore[attr-defined]
        newest.update(dict.fromkeys(keys, version))
    runs = [_run(part) for part in parts if part]
    keys = sorted(wanted)
    tuid, ts = np.array([uid for uid, _ in keys], np.uint64), np.array([ts for _, ts in keys], np.int64)
    found = find_newest(runs, Tombstones(), tuid, ts, None, None)
    versions = [int(runs[chunk].version[row]) if exists else None
                for exists, chunk, row in zip(found.exists, found.chunk, found.row, strict=True)]
    assert versions == [newest.get(key) for key in keys]


VERSIONS = st.integers(1, 12)
STORED = st.lists(st.tuples(st.sampled_from([uid for uid, _ in KEYS] + [2**63 + 5]), st.sampled_from([10, 20]),
                            st.sampled_from("xy"), VERSIONS, st.integers(0, 3)), max_size=20)
DELETES = st.lists(st.builds(
    Tombstone, VERSIONS, st.none() | st.just((2,)), st.sampled_from([0, 10, 15]), st.sampled_from([10, 20])),
    max_size=3)



def _of_any(deletes: Sequence[Tombstone]) -> Tombstones:
    """Returns deletes of any kind, in the order of their versions."""
    points = PointDeletes()
    rows = sorted((uid, t.first_ts, t.version) for t in deletes if t.is_of_points for uid in t.tuids or ())
    if rows:
        tuid, ts, version = zip(*rows, strict=True)
        points = points.plus(PointRun(np.array(tuid, np.uint64), np.array(ts, np.int64), np.array(version, np.uint64)))
    return Tombstones(tuple(t for t in deletes if not t.is_of_points), points)


@given(STORED, DELETES, st.booleans())
def test_a_key_exists_if_its_newest_version_is_there(
    stored: list[tuple[int, int, str, int, int]], deletes: list[Tombstone], composite: bool
) -> None:
    """Whether rows exist is the same, deletes and second keys included, as where the newest version is looked for."""
    chunks = []
    for number in range(4):
        rows = sorted((uid, ts, version, key) for uid, ts, key, version, chunk in set(stored) if chunk == number)
        if rows:
            tuid, ts, version, key = zip(*rows, strict=True)
            chunks.append(Run.of(pa.record_batch({
                "_tuid": pa.array(tuid, pa.uint64()), "ts": pa.array(ts, pa.timestamp("ms")), "k": pa.array(key),
                "_ver": pa.array(version, pa.uint64())}), None))
    wanted = [(uid, ts, key) for uid in (0, 1, 2, 9, 2**63 + 5) for ts in (5, 10, 20) for key in "xyz"]
    if not composite:
        wanted = [one for one in wanted if one[2] == "x"]
    tuid, ts = np.array([one[0] for one in wanted], np.uint64), np.array([one[1] for one in wanted], np.int64)
    second = ("k", pa.array([key for _, _, key in wanted])) if composite else (None, None)
    tombstones = _of_any(sorted(deletes, key=lambda delete: delete.version))
    assert find_existing(chunks, tombstones, tuid, ts, *second).tolist() == find_newest(
        chunks, tombstones, tuid, ts, *second).exists.tolist()


def _rows(values: dict[int, float]) -> pa.RecordBatch:
    return pa.record_batch({
        "_tuid": pa.array([1] * len(values), pa.uint64()), "ts": pa.array(list(values), pa.timestamp("ms")),
        "v": pa.array(list(values.values()), pa.float64())})


@pytest.mark.parametrize(("others", "reader", "expected"), [
    pytest.param(0, "row_groups_at", [2, 2, 3], id="row by row"),
    pytest.param(9, "row_groups", [1, 1, 2], id="by column")])
def test_parts_are_read_only_for_keys_that_are_not_in_memory(
    others: int, reader: str, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An AT_ONCE stream writes a window's result again and again: once after a flush its part is read, then no more."""
    vnode = Vnode.open(tmp_path, VnodeOptions(2), fs=OsFs(), clock=ManualClock())
    more = dict.fromkeys(range(100, 100 + others), 0.0)
    try:
        vnode.tables.define(5, pa.schema([("ts", pa.timestamp("ms")), ("v", pa.float64())]), 1)
        vnode.write(5, _rows({10: 1.0, 20: 2.0, 30: 3.0, **more}))
        vnode.flush()
        reads: list[Path] = []
        read = getattr(PartCache, reader)

        def noted(cache: PartCache, path: Path, *rest: object) -> object:
            reads.append(path)
            return read(cache, path, *rest)

        monkeypatch.setattr(PartCache, reader, noted)
        counts = []
        for values in ({10: 1.5, 20: 2.5}, {10: 1.75}, {10: 1.8, 15: 9.0}):
            vnode.write(5, _rows({**values, **more}))
            counts.append(len(reads))
        assert counts == expected
        monkeypatch.undo()
        assert vnode.reader.snapshot(5).to_arrow(["v"]).column("v").to_pylist() == [1.8, 9.0, 2.5, 3.0, *more.values()]
    finally:
        vnode.close()


def test_single_rows_are_compared_with_what_waits_to_be_a_run(tmp_path: Path) -> None:
    """Rows that came a few at a time, rows that came one by one, and runs that have both."""
    vnode = Vnode.open(tmp_path, VnodeOptions(2), fs=OsFs(), clock=ManualClock())
    columns = ("ts", "v")
    try:
        vnode.tables.define(5, pa.schema([("ts", pa.timestamp("ms")), ("v", pa.float64())]), 1)
        vnode.write(5, _rows({10: 1.0}))
        assert write_few(vnode, 5, columns, [(1, 10, 2.0)]) == 2
        assert write_few(vnode, 5, columns, [(1, 10, 3.0), (1, 5, 0.0)]) == 3
        assert write_few(vnode, 5, columns, [(1, 10, None)], partial=True) is None
        vnode.write(5, _rows({20: 4.0}))
        assert write_few(vnode, 5, columns, [(1, 5, 5.0), (1, 20, 6.0)]) == 5
        vnode.delete(5, None, 20, 20)
        assert write_few(vnode, 5, columns, [(1, 20, 7.0)]) == 7
        reader = WalReader(LogFiles(tmp_path / "wal", OsFs()))
        changes = [record.batch.column("_change").to_pylist() for record in reader.read()
                   if isinstance(record, RowsRecord) and "_change" in record.batch.schema.names]
        reader.close()
        assert changes == [[UPDATE], [LATE, UPDATE], [UPDATE, UPDATE], [LATE]]
        assert vnode.reader.snapshot(5).to_arrow(["v"]).column("v").to_pylist() == [5.0, 3.0, 7.0]
    finally:
        vnode.close()
