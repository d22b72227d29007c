"""The rows that a join keeps of one side, against a dictionary, whatever is put, forgotten, spilled, restored."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.tasks.join.side_rows import SideRows
from penstock.tasks.state.state_store import StateStore

KEYS = {"int": pa.int32(), "text": pa.string(), "none": None}
ROW = st.tuples(st.integers(0, 2), st.integers(-20, 40), st.integers(0, 1), st.integers(0, 9))
STEP = st.one_of(
    st.tuples(st.just("change"), st.lists(st.tuples(st.booleans(), ROW), min_size=1, max_size=9)),
    st.tuples(st.just("change"), st.lists(st.tuples(st.booleans(), ROW), min_size=1, max_size=9)),
    st.tuples(st.just("forget"), st.integers(-25, 40)),
    st.tuples(st.sampled_from(["spill", "save", "restore"]), st.none()),
)


def schema_of(key: str) -> pa.Schema:
    kind = KEYS[key]
    return pa.schema([("_gid", pa.uint64()), ("_tuid", pa.uint64()), ("r0", pa.int64()),
                      *([("r1", kind)] if kind is not None else []), ("v", pa.int32())])


def batch_of(changes: list[tuple[bool, Any]], key: str) -> pa.RecordBatch:
    schema = pa.schema([pa.field("_op", pa.uint8()), *schema_of(key)])
    rows = []
    for put, (table, ts, part, value) in changes:
        row = {"_op": 0 if put else 1, "_gid": 7, "_tuid": table, "r0": ts, "v": value}
        if KEYS[key] is not None:
            row["r1"] = f"k{part}" if key == "text" else part
        rows.append(row)
    return pa.RecordBatch.from_pylist(rows, schema=schema)


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=times(16, 400), deadline=None)
@given(steps=st.lists(STEP, max_size=14))
def test_side_rows_are_a_sorted_dictionary(
    tmp_path_factory: pytest.TempPathFactory, key: str, steps: list[tuple[str, Any]]
) -> None:
    """Of each key the last row counts; nothing from a forgotten time on is missing, saved or not."""
    store = StateStore(tmp_path_factory.mktemp("state"), 1 << 24)
    schema, forgotten, checkpoints = schema_of(key), -100, 0
    rows = SideRows(store, b"l", schema, keyed=KEYS[key] is not None, leaf_rows=4)
    known: dict[Any, int] = {}
    saved: tuple[dict[Any, int], int] | None = None
    try:
        for kind, what in steps:
            match kind:
                case "change":
                    rows.apply(batch_of(what, key))
                    for put, (table, ts, part, value) in what:
                        row_key = ts, table, part if KEYS[key] is not None else 0
                        if put:
                            known[row_key] = value
                        else:
                            known.pop(row_key, None)
                case "forget":
                    rows.forget(what)
                    forgotten = max(forgotten, what)
                case "spill":
                    rows.spill(0)
                case "save":
                    rows.save()
                    checkpoints += 1
                    store.checkpoint(checkpoints, {})
                    saved = dict(known), forgotten
                case "restore" if saved is not None:
                    store.restore(checkpoints)
                    rows = SideRows(store, b"l", schema, keyed=KEYS[key] is not None, leaf_rows=4)
                    rows.restore()
                    known, forgotten = dict(saved[0]), saved[1]
            for first, last in ((forgotten, 60), (max(forgotten, 3), 11)):
                got = rows.between(first, last).to_pylist()
                assert [row["r0"] for row in got] == sorted(row["r0"] for row in got)
                found = {(row["r0"], row["_tuid"], int(str(row.get("r1", 0)).removeprefix("k"))): row["v"]
                         for row in got}
                assert len(found) == len(got)
                assert found == {one: value for one, value in known.items() if first <= one[0] <= last}
            times = [one[0] for one in known if one[0] >= forgotten]
            assert rows.first_from(forgotten) == min(times, default=None)
    finally:
        store.close()


def test_the_newest_of_what_is_forgotten_stays(tmp_path: Any) -> None:
    """What `newest` chooses of the rows that go is still found, also after a restart."""
    store = StateStore(tmp_path, 1 << 24)
    schema = schema_of("none")
    rows = SideRows(store, b"r", schema, keyed=False, leaf_rows=4)
    rows.apply(batch_of([(True, (table, ts, 0, ts)) for ts in range(20) for table in range(2)], "none"))

    def newest(table: pa.Table) -> pa.RecordBatch:
        found = {row["_tuid"]: row for row in sorted(table.to_pylist(), key=lambda row: row["r0"])}
        return pa.RecordBatch.from_pylist(list(found.values()), schema=schema)

    rows.forget(15, newest)
    shown = {(row["_tuid"], row["r0"]) for row in rows.until(16).to_pylist()}
    assert {(table, ts) for table in range(2) for ts in (14, 15, 16)} <= shown
    assert rows.count < 40
    rows.save()
    store.checkpoint(1, {})
    store.restore(1)
    again = SideRows(store, b"r", schema, keyed=False, leaf_rows=4)
    again.restore()
    assert {(row["_tuid"], row["r0"]) for row in again.until(16).to_pylist()} == shown
    store.close()
