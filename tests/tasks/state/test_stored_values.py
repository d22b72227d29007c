"""What tasks read back from their stores: values as they were written, and nothing that can run."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed

from penstock.common.errors import CorruptionError
from penstock.common.paths import is_inner
from penstock.planner.task_plans.stream_plan import Field
from penstock.sql.schema import UserFunction
from penstock.sql.types import DataType, Kind
from penstock.tasks.compute.function_loader import load
from penstock.tasks.compute.group_index import GROUP_PREFIX, GroupIndex
from penstock.tasks.dropped.time_ledger import TimeLedger
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.state.stored_values import pack, pack_batch, unpack, unpack_batch

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-2**63, 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.decimals(allow_nan=False, allow_infinity=False, places=3),
    lambda values: st.lists(values), max_leaves=8)
NAMES = (Field("k0", DataType(Kind.VARCHAR, 8)), Field("k1", DataType(Kind.BIGINT)))
SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("d", pa.decimal128(10, 2)), ("l", pa.list_(pa.int64()))])


class Runs:
    """What whoever can write a backup would put there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@given(PLAIN)
def test_single_values_come_back(value: Any) -> None:
    """Whatever a value is made of."""
    assert unpack(pack(value), "it") == value


@given(st.lists(st.tuples(st.integers(-9, 9) | st.none(), st.text(max_size=3) | st.none(), st.none() | st.just(
    Decimal("1.50")), st.none() | st.lists(st.integers(0, 9), max_size=3))))
def test_columns_come_back_and_damaged_ones_are_named(rows: list[Any]) -> None:
    """A batch keeps its values; bytes that are no batch of the schema are an error, whatever they are."""
    columns = list(zip(*rows, strict=True)) or [()] * 4
    batch = pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    data = pack_batch(batch)
    assert unpack_batch(data, SCHEMA, "it") == batch
    for damaged in (b"", b"junk", data[:40], data[: len(data) // 2]):
        with pytest.raises(CorruptionError, match="it cannot be read"):
            unpack_batch(damaged, SCHEMA, "it")


@pytest.mark.parametrize("data", [b"{}", b'{"bytes": "?"}', b'{"os": "system"}', b"[", b"\xff", b"[" * 100_000,
                                  b'{"decimal": "x"}'])
def test_other_text_is_no_value(data: bytes) -> None:
    """Damaged JSON is an error that names what it was."""
    with pytest.raises(CorruptionError, match="it cannot be read"):
        unpack(data, "it")


def restored_ledger(store: StateStore, data: bytes) -> None:
    store.put_many([(b"left out", data)])
    TimeLedger().restore(TimeLedger().counts(), store)


READERS: dict[str, Callable[[StateStore, bytes], Any]] = {
    "groups": lambda store, data: GroupIndex(NAMES).restore([(GROUP_PREFIX + bytes(9), data)]),
    "rows left out": restored_ledger,
    "any": lambda store, data: unpack(data, "a value"),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_value_that_would_run_is_refused(tmp_path: Path, reader: str) -> None:
    """A forged state runs nothing; the error says what cannot be read, and what to do."""
    store = StateStore(tmp_path / "state", 1 << 24)
    with pytest.raises(CorruptionError, match="cannot be read") as caught:
        READERS[reader](store, pickle.dumps(Runs(tmp_path / "ran"), protocol=5))
    assert not (tmp_path / "ran").exists()
    assert caught.value.hint is not None
    assert "CREATE OR REPLACE STREAM" in caught.value.hint
    store.close()


STREAMS = {
    "INTERVAL(10s)": "first(name), count(*)", "SESSION(ts, 5s)": "first(name), last(name), sum(price)",
    "STATE_WINDOW(name)": "first(name), max(price)", "COUNT_WINDOW(3)": "last(name), min(price)",
}


@pytest.mark.parametrize("window", STREAMS)
def test_no_state_has_a_pickle_and_all_comes_back(window: str, tmp_path: Path) -> None:
    """Texts, decimals and keys of any type survive a restart, and no value in a store is one that could run."""
    counts = window.startswith("COUNT")  # which takes no late rows
    query = f"SELECT _wstart, {STREAMS[window]} FROM t PARTITION BY tbname, who {window}"
    with TestBed(directory=tmp_path) as bed:
        bed.all("CREATE DATABASE d VGROUPS 1", "USE d",
                "CREATE STABLE t (ts TIMESTAMP, name VARCHAR(8), price DECIMAL(10, 2)) TAGS (who VARCHAR(8))",
                "CREATE TABLE a USING t TAGS ('x')", "CREATE TABLE b USING t TAGS (NULL)",
                f"CREATE STREAM s TRIGGER AT_ONCE WATERMARK 1s IGNORE EXPIRED {int(counts)} INTO o AS {query}")
        for second in (1, 2, 30, 31, 50):
            bed.execute(f"INSERT INTO a VALUES ({T0 + second * 1000}, 'n{second % 2}', {second}.25) "
                        f"b VALUES ({T0 + second * 1000}, NULL, NULL)")
        if not counts:
            bed.execute(f"INSERT INTO a VALUES ({T0}, 'late', 1)")
        bed.checkpoint()
    values = 0
    for directory in tmp_path.glob("streams/*/state/*"):
        store = StateStore(directory, 1 << 26)
        for _, value in store.items():
            values += 1
            assert not value.startswith(b"\x80")  # as pickles do
        store.close()
    assert values
    with TestBed(directory=tmp_path) as bed:
        bed.execute("USE d")
        for second in (51, 99):
            bed.execute(f"INSERT INTO a VALUES ({T0 + second * 1000}, 'n1', 9)")
        found = bed.rows("SELECT * FROM o")
        wanted = bed.rows(query)
        assert sorted(repr(row[: len(wanted[0])]) for row in found) == sorted(map(repr, wanted))


AGGREGATE = '''
import collections, os

class Own:
    def __init__(self): self.n = 0

class Agg:
    def init(self): return {"own": Own(), "counts": collections.Counter()}
    def accumulate(self, state, values): return state
    def merge(self, left, right): return left
    def finish(self, state): return 1
'''


def test_states_of_users_aggregates_have_their_own_classes_only(tmp_path: Path) -> None:
    """What a function's states are made of comes back; what others' modules have, or its module imports, doesn't."""
    (tmp_path / "agg.py").write_text(AGGREGATE)
    function = UserFunction("agg", True, None, DataType(Kind.INT), "agg:Agg", uid=1)
    aggregate: Any = load(function, tmp_path)
    state = aggregate.init()
    assert aggregate.loads(aggregate.dumps(state))["own"].n == 0
    module = type(state["own"]).__module__
    for forged in (
        pickle.dumps(Runs(tmp_path / "ran"), protocol=5),
        b"\x80\x04c" + module.encode() + b"\nos.system\n(X\x04\x00\x00\x00trueR.",
        b"\x80\x04c" + module.encode() + b"\nos\n.",
        b"\x80\x04cbuiltins\neval\n.", b"\x80\x04cos\nsystem\n.",
    ):
        with pytest.raises(pickle.UnpicklingError, match="no class of the function's own"):
            aggregate.loads(forged)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("path", "inner"), [
    ("a", True), ("a/b.c", True), ("d 1/x", True), ("", False), ("/a", False), ("../a", False), ("a/../b", False),
    ("a//b", False), ("./a", False), ("a/", False), (".", False), ("a\\b", False), ("a\nb", False), ("a/\0", False),
])
def test_paths_that_lead_outside_are_seen(path: str, inner: bool) -> None:
    """Names in files that may be forged stay below where they are used."""
    assert is_inner(path) is inner
