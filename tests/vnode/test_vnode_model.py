"""A vnode under random writes, deletes, flushes, compactions and restarts equals a plain dictionary."""

from __future__ import annotations

import copy
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs
from kits.basics.few_rows import write_few
from kits.basics.shared_duckdb import duckdb_with

from penstock.common.clock import ManualClock
from penstock.common.fs import OsFs
from penstock.vnode.read.detached_reader import DetachedVnode
from penstock.vnode.read.row_places import RowPlaces
from penstock.vnode.read.snapshot import RowCount, Snapshot, SnapshotTooOldError
from penstock.vnode.read.snapshot_sql import SnapshotSql
from penstock.vnode.store import memtable
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode
from penstock.vnode.write.vnode_writer import Change, DeletedRows, FewRows, WrittenRows
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalReader
from penstock.wal.record import DeletePointsRecord, DeleteRecord, RowsRecord

TABLE = 77
OPTIONS = VnodeOptions(1, segment_bytes=4096, memtable_bytes=1 << 20, compact_min_parts=2, part_grace_s=0.0,
                       wal_retention_period_s=-1)
Key = tuple[Any, ...]


B_VALUES = {"": 1, "qä": 2, "n": 3, None: None}


def schema_of(key_columns: int, unit: str, *, narrow: bool = False) -> pa.Schema:
    """Returns the columns of the test table; `narrow`: all values of a column take as many bytes."""
    key = [("k", pa.string())] if key_columns == 2 else []
    text = pa.int16() if narrow else pa.string()
    return pa.schema([("ts", pa.timestamp(unit)), *key, ("a", pa.int64()), ("b", text)])


class Model:
    """The truth: newest row per key, the newest ts per child table ever, and the state after each version."""

    def __init__(self, key_columns: int) -> None:
        self.key_columns = key_columns
        self.rows: dict[Key, dict[str, Any]] = {}
        self.newest: dict[int, int] = {}
        self.at: dict[int, dict[Key, dict[str, Any]]] = {0: {}}
        # Per version and key: the verdict, and for rows that are no appends the newest ts before the record.
        self.verdicts: dict[int, dict[Key, tuple[int, int | None]]] = {}

    def write(self, version: int, rows: list[dict[str, Any]]) -> None:
        """Applies one batch."""
        before, newest = dict(self.rows), dict(self.newest)
        verdicts: dict[Key, tuple[int, int | None]] = {}
        for row in rows:
            key = (row["_tuid"], row["ts"], *([row["k"]] if self.key_columns == 2 else []))
            uid, ts = key[0], key[1]
            if key in before:
                verdicts[key] = (2, newest[uid])
            else:
                verdicts[key] = (0, None) if uid not in newest or ts > newest[uid] else (1, newest[uid])
            values = {"a": None, "b": None} | {n: v for n, v in before.get(key, {}).items() if n in ("a", "b")}
            values |= {n: v for n, v in row.items() if n in ("a", "b")}
            self.rows[key] = values | {"_ver": version}
            self.newest[uid] = max(ts, self.newest.get(uid, ts))
        self.verdicts[version] = verdicts
        self.at[version] = copy.deepcopy(self.rows)

    def delete(self, version: int, uids: list[int] | None, first: int, last: int) -> None:
        """Applies one delete."""
        self.rows = {key: row for key, row in self.rows.items()
                     if not ((uids is None or key[0] in uids) and first <= key[1] <= last)}
        self.at[version] = copy.deepcopy(self.rows)

    def delete_points(self, version: int, points: set[tuple[int, int]]) -> None:
        """Applies one delete of single times."""
        self.rows = {key: row for key, row in self.rows.items() if key[:2] not in points}
        self.at[version] = copy.deepcopy(self.rows)


def as_rows(table: pa.Table, key_columns: int) -> dict[Key, dict[str, Any]]:
    """Returns a result as the model holds it; fails on a repeated key."""
    table = table.set_column(1, "ts", table.column("ts").cast(pa.int64()))
    found: dict[Key, dict[str, Any]] = {}
    for row in table.to_pylist():
        key = (row.pop("_tuid"), row.pop("ts"), *([row.pop("k")] if key_columns == 2 else []))
        assert key not in found
        found[key] = row
    return found


def sql_rows(select: SnapshotSql) -> pa.Table:
    """Runs a snapshot's SELECT in DuckDB."""
    with duckdb_with(select.tables) as connection:
        return connection.sql(select.sql).to_arrow_table()


def check(vnode: Vnode, model: Model, pin: int | None, arguments: dict[str, Any]) -> None:
    """Compares all ways of reading with the model, now and as of every version that must be readable."""
    last = vnode.acknowledged_version
    outside = DetachedVnode(vnode.directory, 1, OsFs())
    assert outside.acknowledged_version() == last
    for version in range(last if pin is None else max(pin, 1), last + 1):
        expected = {key: row for key, row in model.at.get(version, {}).items()
                    if ("tuids" not in arguments or key[0] in arguments["tuids"].to_pylist())
                    and arguments.get("first_ts", key[1]) <= key[1] <= arguments.get("last_ts", key[1])}
        snapshot = vnode.reader.snapshot(TABLE, as_of=version)
        rows = snapshot.to_arrow(**arguments)
        assert as_rows(rows, model.key_columns) == expected
        places = [(1, 1), (2, 0), (2, 3)]
        found = snapshot.rows_at(None, RowPlaces.at(*(pa.array(side, type_) for side, type_ in zip(
            zip(*places, strict=True), (pa.uint64(), pa.int64()), strict=True))))
        assert as_rows(found, model.key_columns) == {
            key: row for key, row in model.at.get(version, {}).items() if key[:2] in places}
        read_outside = outside.snapshot(TABLE, as_of=version).to_arrow(**arguments)
        if model.key_columns == 2:  # rows of one time come in any order
            rows, read_outside = (table.sort_by([("_tuid", "ascending"), ("ts", "ascending"), ("k", "ascending")])
                                  for table in (rows, read_outside))
        assert read_outside.equals(rows)
        if version == last:
            found = sql_rows(snapshot.to_sql(**arguments))
            assert as_rows(found, model.key_columns) == expected
            assert found.schema.types == rows.schema.types
            integers = sql_rows(snapshot.to_sql(**arguments, epochs=True)).cast(found.schema)
            assert as_rows(integers, model.key_columns) == expected
            check_count(snapshot, expected, model.key_columns, arguments)


def check_count(snapshot: Snapshot, expected: dict[Key, Any], key_columns: int, arguments: dict[str, Any]) -> None:
    """Compares what is known without a look at rows, and the rows that it isn't known of, with the model."""
    if "tuids" in arguments:
        return
    known, rest = snapshot.counted(arguments.get("first_ts"), arguments.get("last_ts"))
    others = as_rows(sql_rows(rest.to_sql(**arguments)), key_columns)
    assert others.items() <= expected.items()
    times = sorted(key[1] for key in expected.keys() - others.keys())
    assert known == (RowCount(len(times), times[0], times[-1]) if times else None)


# Few keys and many flushes, so that rows of one key meet in different parts.
UIDS = st.integers(1, 2)
TIMES = st.integers(0, 3)
ROW = st.fixed_dictionaries({"_tuid": UIDS, "ts": TIMES, "k": st.sampled_from(["x", "y"]),
                             "a": st.none() | st.integers(0, 9), "b": st.none() | st.sampled_from(["", "qä"])})
CHANGES = st.one_of(
    st.tuples(st.just("write"), st.lists(ROW, min_size=1, max_size=4), st.sets(st.sampled_from("ab"))),
    st.tuples(st.just("append"), UIDS, st.integers(1, 3)),
    st.tuples(st.just("rows"), st.lists(ROW, min_size=1, max_size=3), st.integers(0, 4),
              st.sampled_from([set(), set(), {"a"}, {"b"}])),
    st.tuples(st.just("rows"), st.lists(ROW, min_size=1, max_size=1), st.just(0), st.just(set())),
    st.tuples(st.just("delete"), st.none() | st.lists(UIDS, max_size=2), TIMES, TIMES),
    st.tuples(st.just("delete rows"),
              st.lists(st.tuples(UIDS, st.integers(0, 6)), min_size=1, max_size=4, unique=True),
              st.lists(ROW, max_size=3), st.booleans()),
)
OPS = st.one_of(
    CHANGES, CHANGES, CHANGES,
    st.tuples(st.sampled_from(["flush", "flush", "compact", "full", "reopen", "crash", "maintain"])),
    st.tuples(st.sampled_from(["pin", "release"])),
)
ARGUMENTS = st.fixed_dictionaries({}, optional={
    "tuids": st.lists(UIDS, max_size=2).map(lambda uids: pa.array(uids, pa.uint64())),
    "first_ts": TIMES, "last_ts": TIMES})


@settings(max_examples=times(10, 300), deadline=None)
@given(st.lists(OPS, min_size=5, max_size=16), st.sampled_from([1, 2]), st.sampled_from(["ms", "us", "ns"]),
       st.lists(ARGUMENTS, min_size=1, max_size=2), st.booleans(), st.booleans())
def test_random_histories_equal_the_model(ops: list[Any], key_columns: int, unit: str, arguments: list[dict[str, Any]],
                                          narrow: bool, often: bool) -> None:
    """Latest and as-of reads, the verdicts in the log, and the log itself agree with the model.

    Reads that aren't `often` find rows that nobody has made columns of before.
    """
    root = Path(tempfile.mkdtemp(prefix="vnode"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(memtable, "LOOKED_UP_FAN_IN", 2)  # so that few rows have their runs merged
            run_history(root, ops, key_columns, schema_of(key_columns, unit, narrow=narrow), arguments, often=often)
    finally:
        shutil.rmtree(root)


def write_rows(vnode: Vnode, model: Model, schema: pa.Schema, rows: list[dict[str, Any]], left_out: set[str]) -> None:
    """Writes rows one by one in packed form, where that is possible; where it isn't, nothing happens."""
    keys = [tuple(row[name] for name in ("_tuid", "ts", "k")[:model.key_columns + 1]) for row in rows]
    fits = len({*keys}) == len(keys) and not (left_out and any(key in model.rows for key in keys))
    values = [tuple(None if name in left_out else row[name] for name in ("_tuid", *schema.names)) for row in rows]
    version = write_few(vnode, TABLE, tuple(schema.names), values, partial=bool(left_out))
    assert (version is not None) == fits
    if version is not None:
        model.write(version, [{name: value for name, value in row.items() if name not in left_out} for row in rows])


def delete_rows(
    vnode: Vnode, model: Model, schema: pa.Schema, places: list[tuple[int, int]], rows: list[dict[str, Any]],
    few: bool
) -> None:
    """Deletes what is at some places, by one record, and writes rows, one by one if they are `few`: where nothing is to
    be done, nothing is written."""
    version = vnode.acknowledged_version
    uids, tss = zip(*places, strict=True)
    changes: list[Change] = [DeletedRows(TABLE, np.array(uids, np.uint64), np.array(tss, np.int64))]
    rows = [{name: row[name] for name in ("_tuid", *schema.names)} for row in rows]
    if rows:
        batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema([("_tuid", pa.uint64()), *schema]))
        changes.append(FewRows(
            TABLE, tuple(schema.names), [tuple(row.values()) for row in rows], partial=False, batch=lambda: batch)
            if few else WrittenRows(TABLE, batch))
    begun = vnode.writer.begin_together(changes)
    there = {key[:2] for key in model.rows} & set(places)
    if there:
        version += 1
        model.delete_points(version, there)
    if rows:
        version += 1
        model.write(version, rows)
    assert (None if begun is None else begun.wait()) == (version if there or rows else None)
    assert vnode.acknowledged_version == version


def run_history(root: Path, ops: list[Any], key_columns: int, schema: pa.Schema, arguments: list[dict[str, Any]], *,
                often: bool) -> None:
    """Plays one history on a vnode in `root` and on the model."""
    clock = ManualClock()
    model = Model(key_columns)
    directory = root / "0"
    vnode = Vnode.open(directory, OPTIONS, fs=FaultyFs(), clock=clock)
    vnode.tables.define(TABLE, schema, key_columns)
    pin: int | None = None
    narrow = schema.field("b").type == pa.int16()
    for number, (name, *rest) in enumerate(ops, 1):
        if name == "rows":
            drawn, later, left_out = rest
            write_rows(vnode, model, schema, [
                row | {"ts": row["ts"] + later, "b": B_VALUES[row["b"]] if narrow else row["b"]} for row in drawn],
                left_out)
        elif name in ("write", "append"):
            if name == "append":
                uid, count = rest
                start = model.newest.get(uid, 0) + 1
                rows = [{"_tuid": uid, "ts": start + i, "k": "x", "a": i, "b": "n"} for i in range(count)]
                left_out = set()
            else:
                rows, left_out = rest
            rows = [row | {"b": B_VALUES[row["b"]]} for row in rows] if narrow else rows
            names = ["_tuid", *(n for n in schema.names if n not in left_out)]
            kept = [{n: row[n] for n in names} for row in rows]
            batch = pa.RecordBatch.from_pylist(
                kept, schema=pa.schema([("_tuid", pa.uint64()), *(schema.field(n) for n in names[1:])]))
            model.write(vnode.write(TABLE, batch), kept)
        elif name == "delete":
            model.delete(vnode.delete(TABLE, *rest), *rest)
        elif name == "delete rows":
            places, rows, few = rest
            delete_rows(vnode, model, schema, places, [
                row | {"b": B_VALUES[row["b"]] if narrow else row["b"]} for row in rows], few)
        elif name == "flush":
            vnode.flush()
        elif name in ("compact", "full"):
            vnode.compact(full=name == "full")
        elif name == "maintain":
            clock.advance(100)
            vnode.maintain()
        elif name == "pin":
            pin = vnode.acknowledged_version
            vnode.set_pin("test", pin)
        elif name == "release":
            vnode.release_pin("test")
            pin = None
        else:
            before = vnode
            if name == "reopen":
                vnode.close()
            else:
                directory, copied = root / str(number), directory
                shutil.copytree(copied, directory)
            vnode = Vnode.open(directory, OPTIONS, fs=FaultyFs(), clock=clock)
            if name == "crash":
                before.close()
        for uid in (1, 2):
            assert vnode.reader.last_ts(uid) == model.newest.get(uid)
        if often:
            check(vnode, model, pin, {})
    for given_arguments in arguments:
        check(vnode, model, pin, given_arguments)
    vnode.reader.verify()
    check_log(directory, model)
    check_written(directory, model, vnode.acknowledged_version)
    vnode.close()


def check_log(directory: Path, model: Model) -> None:
    """Checks the verdicts in the log, and that folding the log gives the newest state."""
    reader = WalReader(LogFiles(directory / "wal", OsFs()))
    state: dict[Key, dict[str, Any]] = {}
    while records := reader.read():
        for record in records:
            if isinstance(record, RowsRecord):
                table = pa.Table.from_batches([record.batch])
                verdicts: list[tuple[int, int | None]] = [(0, None)] * table.num_rows
                if "_change" in table.column_names:
                    pairs = zip(table.column("_change").to_pylist(), table.column("_last").to_pylist(), strict=True)
                    verdicts = [(change, last if change else None) for change, last in pairs]
                    table = table.drop_columns(["_change", "_last"])
                rows = as_rows(table, model.key_columns)
                assert dict(zip(rows, verdicts, strict=True)) == model.verdicts[record.version]
                state |= {key: row | {"_ver": record.version} for key, row in rows.items()}
            elif isinstance(record, DeletePointsRecord):
                points = set(zip(record.tuids.tolist(), record.times.tolist(), strict=True))
                state = {key: row for key, row in state.items() if key[:2] not in points}
            elif isinstance(record, DeleteRecord):
                state = {key: row for key, row in state.items()
                         if not ((record.tuids is None or key[0] in record.tuids)
                                 and record.first_ts <= key[1] <= record.last_ts)}
    assert state == model.rows
    reader.close()


def check_written(directory: Path, model: Model, last: int) -> None:
    """Checks that what was written since the beginning, in one go or in small stretches, has all rows of now."""
    outside = DetachedVnode(directory, 1, OsFs())
    for rows_at_once in (10**6, 2):
        state: dict[Key, dict[str, Any]] = {}
        reached = 0
        while reached < last:
            end = outside.version_behind(TABLE, reached, last, rows_at_once)
            assert reached < end <= last
            for batch in outside.written(TABLE, ["ts", "a", "b"] + ["k"] * (model.key_columns == 2), reached, end):
                columns = ["_tuid", "ts", *(["k"] if model.key_columns == 2 else []), "a", "b"]
                state |= as_rows(pa.Table.from_batches([batch]).select(columns), model.key_columns)
            reached = end
        assert {key: row for key, row in state.items() if key in model.rows} == {
            key: {"a": row["a"], "b": row["b"]} for key, row in model.rows.items()}


def test_a_snapshot_older_than_what_was_collapsed_is_refused(tmp_path: Path) -> None:
    """Without a pin, a version whose rows were replaced and collapsed gives a named error, not a wrong answer."""
    vnode = Vnode.open(tmp_path, OPTIONS, fs=FaultyFs(), clock=ManualClock())
    vnode.tables.define(TABLE, schema_of(1, "ms"), 1)
    for value in (1, 2):
        vnode.write(TABLE, pa.RecordBatch.from_pylist([{"_tuid": 1, "ts": 5, "a": value}], schema=pa.schema(
            [("_tuid", pa.uint64()), ("ts", pa.timestamp("ms")), ("a", pa.int64())])))
    vnode.flush()
    with pytest.raises(SnapshotTooOldError, match="as of version 2 or later"):
        vnode.reader.snapshot(TABLE, as_of=1)
    vnode.close()
