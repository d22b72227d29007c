"""Rows that are looked up by their places or values, and what has changed since a version: against all rows."""

from __future__ import annotations

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

from penstock.common.clock import ManualClock
from penstock.vnode.read import row_places
from penstock.vnode.read.row_places import RowPlaces, values_array
from penstock.vnode.read.snapshot import Snapshot
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode

TABLE = 10
SCHEMA = pa.schema([("ts", pa.timestamp("ms")), ("k", pa.string()), ("v", pa.int32()), ("s", pa.string())])
COLUMNS = ["ts", "k", "v", "s"]
VALUES = {"v": [None, 0, 1, -5, 2**31 - 1], "s": [None, "", "a", "b\x1f"]}

ROWS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6), st.sampled_from("xy"), st.sampled_from(VALUES["v"]),
                          st.sampled_from(VALUES["s"])), min_size=1, max_size=6)
STEPS = st.lists(st.one_of(
    st.tuples(st.just("write"), ROWS), st.tuples(st.just("write"), ROWS),
    st.tuples(st.just("delete"), st.tuples(st.sampled_from([[1], [2, 3], None]), st.integers(0, 6), st.integers(0, 3))),
    st.tuples(st.sampled_from(["flush", "compact"]), st.none())), min_size=1, max_size=10)


def played(vnode: Vnode, kind: str, what: Any) -> None:
    if kind == "write":
        columns = list(zip(*{row[:3]: row for row in what}.values(), strict=True))
        vnode.write(TABLE, pa.record_batch([
            pa.array(columns[0], pa.uint64()),
            *(pa.array(column, field.type) for column, field in zip(columns[1:], SCHEMA, strict=True))],
            names=["_tuid", *COLUMNS]))
    elif kind == "delete":
        uids, first, length = what
        vnode.delete(TABLE, uids, first, first + length)
    elif kind == "flush":
        vnode.flush()
    else:
        vnode.compact()


def told(rows: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(((row["_tuid"], row["ts"], row["k"], row["v"], row["s"]) for row in rows.to_pylist()), key=repr)


@pytest.mark.parametrize("keys", [1, 2])
@settings(max_examples=times(50, 5_000))
@given(steps=STEPS, chosen=st.fixed_dictionaries({}, optional={
    name: st.lists(st.sampled_from(some), min_size=1, unique=True) for name, some in VALUES.items()}),
    searched=st.booleans(), places=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6), st.integers(0, 2))))
def test_rows_are_those_that_a_look_at_all_finds(
    keys: int, steps: list[tuple[str, Any]], chosen: dict[str, list[Any]], searched: bool,
    places: list[tuple[int, int, int]],
) -> None:
    """As of now and of a version before, in whatever pieces they lie; and what differs between both has changed."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        if searched:
            patched.setattr(row_places, "_SEARCHED_FROM", 0)
        vnode = Vnode.open(Path(folder), VnodeOptions(1), fs=FaultyFs(), clock=ManualClock())
        vnode.tables.define(TABLE, SCHEMA, keys)
        since = vnode.acknowledged_version
        vnode.set_pin("reader", since)
        before = vnode.reader.snapshot(TABLE)
        for number, step in enumerate(steps):
            played(vnode, *step)
            if number == len(steps) // 2:
                since, before = vnode.acknowledged_version, vnode.reader.snapshot(TABLE)
                vnode.set_pin("reader", since)
        for snapshot in (vnode.reader.snapshot(TABLE), vnode.reader.snapshot(TABLE, as_of=since)):
            check_lookup(snapshot, chosen, places)
        check_changes(vnode.reader.snapshot(TABLE), before, since, keys)
        vnode.close()


def check_lookup(snapshot: Snapshot, chosen: dict[str, list[Any]], places: list[tuple[int, int, int]]) -> None:
    rows = told(snapshot.to_arrow(COLUMNS))
    if chosen:
        arrays = {name: pa.array(some, SCHEMA.field(name).type) for name, some in chosen.items()}
        assert told(snapshot.rows_with(COLUMNS, arrays)) == [row for row in rows if all(
            row[1 + COLUMNS.index(name)] in some for name, some in chosen.items())]
    uids, first, length = np.array(places or np.zeros((0, 3)), np.int64).T
    found = snapshot.rows_at(COLUMNS, RowPlaces.of(uids.astype(np.uint64), first, first + length))
    assert told(found) == [row for row in rows if any(
        row[0] == uid and begin <= row[1].timestamp() * 1000 <= begin + more for uid, begin, more in places)]


def check_changes(after: Snapshot, before: Snapshot, since: int, keys: int) -> None:
    old, new = set(told(before.to_arrow(COLUMNS))), set(told(after.to_arrow(COLUMNS)))
    for rewritten in (True, False):
        changed = after.changed_since(since, ["v", "s"], rewritten=rewritten, most=1000)
        if changed is not None:
            values = {(row["v"], row["s"]) for row in changed.to_pylist()}
            assert {row[3:] for row in new - old} <= values
            kept = {row[:1 + keys] for row in new}
            gone = [row for row in old - new if rewritten or row[:1 + keys] not in kept]
            assert {row[3:] for row in gone} <= values
        assert after.changed_since(since, ["v"], rewritten=rewritten, most=0) is None or (
            changed is not None and changed.num_rows == 0)


@given(st.lists(st.sampled_from([pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64()]).flatmap(
    lambda type_: st.lists(st.none() | st.sampled_from([
        each for each in (-(2**63), -(2**31), -1, 0, 1, 255, 2**31, 2**63 - 1, 2**63, 2**64 - 1)
        if np.iinfo(type_.to_pandas_dtype()).min <= each <= np.iinfo(type_.to_pandas_dtype()).max])).map(
            lambda values: pa.array(values, type_))), max_size=3),
    st.sampled_from([pa.int8(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]))
def test_numbers_that_a_column_cannot_hold_are_none_of_its_values(arrays: list[pa.Array], type_: pa.DataType) -> None:
    """Columns of both sides of a join may have other widths."""
    bounds = np.iinfo(type_.to_pandas_dtype())
    found = values_array(arrays, type_)
    assert found.type == type_
    assert set(found.to_pylist()) == {value for array in arrays for value in array.to_pylist()
                                      if value is None or bounds.min <= value <= bounds.max}


def test_texts_of_a_column_are_its_values() -> None:
    """Each once, NULL among them."""
    assert values_array([pa.array(["a", None]), pa.array(["a", "b"])], pa.string()).to_pylist() == ["a", None, "b"]
