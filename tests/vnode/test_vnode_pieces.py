"""Parts are written piece by piece: the pieces are all rows, in order, and each column keeps its values."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.clock import ManualClock
from penstock.common.fs import OsFs
from penstock.vnode.store import chunk_reader, part_writing, parts
from penstock.vnode.store.chunk_reader import cut
from penstock.vnode.store.key_search import KeySearch
from penstock.vnode.store.memtable import Run
from penstock.vnode.store.merging import in_key_order
from penstock.vnode.store.parts import ROW_GROUP_ROWS, PartCache, PartReader, PartWriter, parquet_bytes
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode
from penstock.vnode.write import compaction

TABLE = 9
SCHEMA = pa.schema([("ts", pa.timestamp("ms")), ("v", pa.float64()), ("n", pa.int32()), ("s", pa.string())])
NAN = float("nan")


def run(tuids: np.ndarray) -> Run:
    """Returns a run whose child tables are these, sorted."""
    count = len(tuids)
    return Run.of(pa.record_batch({"_tuid": tuids, "ts": pa.array(np.arange(count)).cast(pa.timestamp("ms")),
                                   "_ver": np.full(count, 5, np.uint64)}), None)


@given(st.lists(st.lists(st.sampled_from([1, 2, 3, 9, 2**63 + 5]), min_size=1, max_size=60), min_size=1, max_size=8),
       st.integers(1, 20))
def test_cuts_are_all_rows_each_once_and_in_order(runs: list[list[int]], rows: int) -> None:
    """However rows are spread over chunks: no child table is in two ranges, and ranges ascend."""
    chunks = [run(np.sort(np.array(tuids, np.uint64))) for tuids in runs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_reader, "_ROWS_PER_SLICE", 1)
        ranges = cut(chunks, rows)
    found = [np.concatenate([chunk.tuid[selection.rows_of(chunk)] for chunk in chunks]) for selection in ranges]
    assert sorted(np.concatenate(found).tolist()) == sorted(uid for tuids in runs for uid in tuids)
    filled = [piece for piece in found if len(piece)]
    assert all(before.max() < after.min() for before, after in itertools.pairwise(filled))


def test_cuts_have_about_as_many_rows_as_asked_for() -> None:
    """Chunks whose length is a multiple of their tables' rows don't fool the sampling."""
    chunks = [run(np.repeat(np.arange(1024, dtype=np.uint64), 64)) for _ in range(8)]
    sizes = [sum(part.stop - part.start for part in (selection.rows_of(chunk) for chunk in chunks))
             for selection in cut(chunks, 1 << 16)]
    assert len(sizes) == 8
    assert max(sizes) < 1.25 * (1 << 16)


ROW_BYTES = 24  # of `run`


def sorted_run(keys: list[tuple[int, int]]) -> Run:
    """Returns a run of rows with these tables and times, sorted."""
    tuid, ts = zip(*sorted(keys), strict=True)
    return Run.of(pa.record_batch({
        "_tuid": pa.array(tuid, pa.uint64()), "ts": pa.array(ts, pa.int64()).cast(pa.timestamp("ms")),
        "_ver": np.full(len(tuid), 5, np.uint64)}), None)


@given(st.lists(st.lists(st.tuples(st.sampled_from([0, 1, 2, 2**64 - 1]), st.integers(-9, 9)), min_size=1, max_size=60),
                min_size=1, max_size=6),
       st.integers(1, 9), st.integers(1, 120))
def test_parts_are_merged_in_key_order_holding_little(
    contents: list[list[tuple[int, int]]], group_rows: int, held_rows: int
) -> None:
    """All rows come once, each key in one step, and no more is read ahead than is allowed, but for rows of one key."""
    read = 0

    def row_groups(keys: list[tuple[int, int]]) -> Iterator[Run]:
        nonlocal read
        run = sorted_run(keys)
        for start in range(0, run.num_rows, group_rows):
            group = run.slice(start, min(start + group_rows, run.num_rows))
            read += group.num_rows
            yield group

    taken: list[tuple[int, int]] = []
    of_one_key = max(Counter(key for keys in contents for key in keys).values())
    for step in in_key_order([row_groups(keys) for keys in contents], held_rows * ROW_BYTES):
        keys = [(int(tuid), int(ts)) for piece in step for tuid, ts in zip(piece.tuid, piece.ts, strict=True)]
        assert not taken or max(taken) < min(keys)
        assert read - len(taken) <= max(held_rows + group_rows, len(contents) * group_rows) + of_one_key + group_rows
        taken += keys
    assert sorted(taken) == sorted(key for keys in contents for key in keys)


def test_compaction_holds_a_few_row_groups_of_large_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of many row groups are merged without being read whole, and the outcome is all of their rows."""
    rows, writes = 40_000, 4
    monkeypatch.setattr(parts, "ROW_GROUP_ROWS", 1000)
    monkeypatch.setattr(part_writing, "ROW_GROUP_ROWS", 1000)
    monkeypatch.setattr(compaction, "_MERGED_BYTES", 8000 * 40)
    store = Vnode.open(tmp_path, VnodeOptions(1), fs=OsFs(), clock=ManualClock())
    store.tables.define(TABLE, SCHEMA, 1)
    for write in range(writes):
        tuid = np.repeat(np.arange(1, 41, dtype=np.uint64), rows // 40)
        ts = np.tile(np.arange(rows // 40) * writes + write, 40)
        store.write(TABLE, pa.record_batch({
            "_tuid": tuid, "ts": pa.array(ts).cast(pa.timestamp("ms")), "v": ts / 8,
            "n": pa.array(ts.astype(np.int32)), "s": pa.array(["x"] * rows)}))
        store.flush()
    read, written, ahead = 0, 0, []
    row_groups, add = PartReader.row_groups, PartWriter.add

    def counted(reader: PartReader) -> Iterator[Run]:
        nonlocal read
        for group in row_groups(reader):
            read += group.num_rows
            ahead.append(read - written)
            yield group

    def noted(writer: PartWriter, piece: pa.Table) -> None:
        nonlocal written
        written += piece.num_rows
        add(writer, piece)

    monkeypatch.setattr(PartReader, "row_groups", counted)
    monkeypatch.setattr(PartWriter, "add", noted)
    assert store.compact(full=True) == writes
    assert written == read == rows * writes
    assert max(ahead) <= 12_000
    found = store.reader.snapshot(TABLE).to_arrow(["v"])
    assert found["v"].to_pylist() == [ts / 8 for _ in range(40) for ts in range(rows // 40 * writes)]
    store.close()


def test_a_flush_of_many_rows_is_cut_into_row_groups_and_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of several writes, some written again and some deleted, come out once each, sorted, in full row groups."""
    monkeypatch.setattr(part_writing, "MAX_PART_ROWS", 150_000)
    store = Vnode.open(tmp_path, VnodeOptions(1), fs=OsFs(), clock=ManualClock())
    store.tables.define(TABLE, SCHEMA, 1)
    tables, per_write = 40, 1500
    for write in range(4):
        tuid = np.repeat(np.arange(1, tables + 1, dtype=np.uint64), per_write)
        ts = np.tile(np.arange(per_write) + write * per_write * 9 // 10, tables)  # a tenth is written again
        values = np.arange(len(tuid)) + write / 8
        store.write(TABLE, pa.record_batch({
            "_tuid": tuid, "ts": pa.array(ts).cast(pa.timestamp("ms")), "v": values,
            "n": pa.array((ts % 7).astype(np.int32), mask=ts % 5 == 0), "s": pa.array([f"w{write}"] * len(tuid))}))
    store.delete(TABLE, (7,), 100, 199)
    store.flush()
    store.reader.verify()
    paths = sorted((tmp_path / "store" / "parts" / str(TABLE)).glob("0*.parquet"))
    span = per_write + 3 * per_write * 9 // 10
    assert [pq.ParquetFile(path).metadata.num_rows for path in paths] == [150_000, tables * span - 100 - 150_000]
    assert pq.ParquetFile(paths[0]).metadata.row_group(0).num_rows == ROW_GROUP_ROWS
    found = duckdb.sql(f"SELECT * FROM read_parquet({[str(path) for path in paths]})").to_arrow_table()
    times = found["ts"].cast(pa.timestamp("ms")).cast(pa.int64())
    keys = list(zip(found["_tuid"].to_pylist(), times.to_pylist(), strict=True))
    assert keys == [(uid, ts) for uid in range(1, tables + 1) for ts in range(span)
                    if uid != 7 or not 100 <= ts <= 199]
    writes = np.minimum(np.array([ts for _, ts in keys]) // (per_write * 9 // 10), 3)
    assert found["s"].to_pylist() == [f"w{write}" for write in writes.tolist()]
    offset = np.array([ts for _, ts in keys]) - writes * (per_write * 9 // 10)
    expected = (np.array([uid - 1 for uid, _ in keys]) * per_write + offset) + writes / 8
    assert found["v"].to_pylist() == expected.tolist()
    assert found["n"].to_pylist() == [None if ts % 5 == 0 else ts % 7 for _, ts in keys]
    store.close()


@pytest.mark.parametrize("count", [1, 5_000])
def test_columns_of_any_type_come_back_as_they_were(count: int) -> None:
    """Every type has an encoding that DuckDB and Arrow read: NULL, NaN and the ends of ranges included."""
    columns = {
        "t": pa.array([datetime(1960, 1, 1), None, datetime(2200, 1, 1)], pa.timestamp("us")),
        "d": pa.array([1.5, None, float("inf")], pa.float64()), "f": pa.array([-0.0, 2.5, None], pa.float32()),
        "i": pa.array([-2**63, 2**63 - 1, None], pa.int64()), "u": pa.array([2**64 - 1, None, 0], pa.uint64()),
        "y": pa.array([-128, 127, None], pa.int8()), "b": pa.array([True, None, False]),
        "s": pa.array(["", None, "ü" * 9]), "x": pa.array([b"\0", b"", None], pa.binary()),
        "many": pa.array([[1, 2], None, []], pa.list_(pa.int64())),
        "e": pa.array([Decimal("-1.50"), None, Decimal("9999999999999999.99")], pa.decimal128(18, 2)),
        "w": pa.array([Decimal("-1.50"), None, Decimal("9" * 36 + ".99")], pa.decimal128(38, 2)),
        "again": pa.array([None, datetime(1960, 1, 1), datetime(2200, 1, 1)], pa.timestamp("ms"))}
    table = pa.concat_tables([pa.table(columns)] * count).combine_chunks()
    data = parquet_bytes(table)
    assert pq.read_table(pa.BufferReader(data)).equals(table)
    assert pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read().equals(table)


def test_columns_are_stored_such_that_duckdb_reads_them_fast() -> None:
    """Decimals that fit are integers; times that come again have a dictionary, but for a table's first."""
    count, one = 10_000, Decimal(1)
    rows = pa.table({
        "ts": pa.array([0] * count, pa.timestamp("ms")), "few": pa.array([*range(100)] * 100, pa.timestamp("ms")),
        "many": pa.array(range(count), pa.timestamp("ms")), "price": pa.array([one] * count, pa.decimal128(18, 2)),
        "wide": pa.array([one] * count, pa.decimal128(19, 2))})
    stored = pq.ParquetFile(pa.BufferReader(parquet_bytes(rows))).metadata.row_group(0)
    columns = {column.path_in_schema: column for column in map(stored.column, range(stored.num_columns))}
    assert [columns[name].physical_type for name in ("price", "wide")] == ["INT64", "FIXED_LEN_BYTE_ARRAY"]
    assert [name for name in ("ts", "few", "many") if columns[name].has_dictionary_page] == ["few"]


def test_a_nan_comes_back(tmp_path: Path) -> None:
    """For DuckDB as well as for Arrow."""
    path = tmp_path / "x.parquet"
    path.write_bytes(parquet_bytes(pa.table({"v": [1.0, NAN, None]})))
    assert duckdb.sql(f"SELECT isnan(v) FROM '{path}'").fetchall() == [(False,), (True,), (None,)]


def test_what_two_find_at_once_is_kept_once(tmp_path: Path) -> None:
    """Else the cache would take itself for fuller with each time, and hold less and less."""
    tuid, ts = np.ones(100, np.uint64), np.arange(100)
    search = KeySearch(tuid, ts)
    cache = PartCache(max_bytes=2 * search.nbytes)
    made: list[int] = []

    def make(index: int) -> KeySearch:
        made.append(index)
        return search

    # While it is made, somebody else comes, who makes it, too.
    cache.keys(tmp_path, 0, lambda: cache.keys(tmp_path, 0, lambda: make(0)))
    cache.keys(tmp_path, 1, lambda: make(1))
    cache.keys(tmp_path, 0, lambda: make(0))
    cache.keys(tmp_path, 1, lambda: make(1))
    assert made == [0, 1]
