"""What tasks read back from their stores: values of this version and of format 1, and nothing that can run."""

from __future__ import annotations

import pickle
import struct
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from kits.basics.places import GOLDEN
from kits.engines.data_directories import open_sandbox
from kits.engines.sandboxes import T0, TestBed

from penstock.common.errors import CorruptionError
from penstock.common.paths import is_inner
from penstock.planner.task_plans.stream_plan import Field
from penstock.sql.schema import UserFunction
from penstock.sql.types import DataType, Kind
from penstock.tasks.compute.function_loader import load
from penstock.tasks.compute.group_index import GROUP_PREFIX, GroupIndex
from penstock.tasks.compute.row_segments import Carry
from penstock.tasks.dropped.time_ledger import TimeLedger
from penstock.tasks.protocol.messages import DroppedRow
from penstock.tasks.state import old_pickles
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


OBJECTS = np.empty(3, object)
OBJECTS[:] = ["a", None, Decimal("1.5")]
LISTS = np.empty(2, object)
LISTS[0] = np.arange(3.0)


@contextmanager
def named_as_then(kind: type, module: str, name: str) -> Iterator[None]:
    """Lets a class be pickled by the name that it had when pickles were written."""
    now = kind.__module__, kind.__qualname__
    kind.__module__, kind.__qualname__ = module, name
    try:
        with patch.dict(sys.modules, {module: cast(ModuleType, SimpleNamespace(**{name: kind}))}):
            yield
    finally:
        kind.__module__, kind.__qualname__ = now


@pytest.mark.parametrize("protocol", [4, 5])
def test_values_of_format_1_are_read(protocol: int) -> None:
    """All that versions before wrote: keys, slots, chunks of windows, carries, rows that were left out."""
    def again(value: Any) -> Any:
        with (named_as_then(Carry, "penstock.tasks.segments", "Carry"),
              named_as_then(DroppedRow, "penstock.tasks.messages", "LeftOutRow")):
            return old_pickles.read(pickle.dumps(value, protocol=protocol), "it")

    for plain in ((3, ("a", None, 1.5, 2**63, True, b"x", Decimal("-3.25"))), -5, {7: (1, "a", None)}):
        assert again(plain) == plain
    slot = (5, [(np.int64(3), True), ("x", False), (np.float64(0.5), True), (np.bool_(True), True)])
    assert again(slot) == slot
    values = [(OBJECTS, np.arange(3) > 0), (LISTS, np.arange(2) > 0)]
    groups, rows, columns = again((np.arange(4), np.arange(4) * 2, values))
    assert (groups == np.arange(4)).all()
    assert (rows == np.arange(4) * 2).all()
    assert columns[0][0].tolist() == OBJECTS.tolist()
    assert columns[1][0][0].tolist() == [0, 1, 2]
    assert again(Carry(5, 3, "x", 2, {1: 2}, 0)) == [5, 3, "x", 2, {1: 2}, 0]
    row = DroppedRow(1, 2, 3, "late", 4, 5, "k")
    assert again((row, row)) == ([1, 2, 3, "late", 4, 5, "k", ""],) * 2


@given(st.data())
def test_a_damaged_pickle_is_an_error_or_a_value(draw: st.DataObject) -> None:
    """No byte that is changed makes the walk fail otherwise."""
    refused = False
    data = bytearray(pickle.dumps((3, ("a", None, np.arange(3), Decimal(1))), protocol=5))
    data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    try:
        old_pickles.read(bytes(data), "it")
    except CorruptionError:
        refused = True
    event(f"refused: {refused}")


def restored_ledger(store: StateStore, data: bytes) -> None:
    store.put_many([(b"left out", data)])
    TimeLedger().restore(TimeLedger().counts(), store)


READERS: dict[str, Callable[[StateStore, bytes], Any]] = {
    "a group": lambda store, data: GroupIndex(NAMES).restore([(GROUP_PREFIX + bytes(8), data)]),
    "groups": lambda store, data: GroupIndex(NAMES).restore([(GROUP_PREFIX + bytes(9), data)]),
    "rows left out": restored_ledger,
    "any": lambda store, data: unpack(data, "a value"),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_value_that_would_run_is_refused_by_name(tmp_path: Path, reader: str) -> None:
    """A forged state runs nothing; the error says what it names, and what to do."""
    store = StateStore(tmp_path / "state", 1 << 24)
    with pytest.raises(CorruptionError, match="cannot be read") as caught:
        READERS[reader](store, pickle.dumps(Runs(tmp_path / "ran"), protocol=5))
    assert not (tmp_path / "ran").exists()
    if reader != "groups":
        assert "pathlib" in str(caught.value)
        assert caught.value.hint is not None
        assert "CREATE OR REPLACE STREAM" in caught.value.hint
    store.close()


def test_groups_of_format_1_keep_their_numbers_and_are_written_anew() -> None:
    """They come back in their order; the next checkpoint has them as today's values, and no old ones."""
    keys = [("a", 1), (None, 2), ("b", None)]
    old = [(GROUP_PREFIX + struct.pack(">Q", gid), pickle.dumps((number, key), protocol=5))
           for number, (gid, key) in enumerate(zip((7, 3, 5), keys, strict=True))]
    index = GroupIndex(NAMES)
    index.restore(sorted(old))
    assert keys_of(index) == keys
    assert [index.id(number) for number in range(3)] == [7, 3, 5]
    stored = dict(old)
    for key, value in index.unsaved():
        if value is None:
            del stored[key]
        else:
            stored[key] = value
    assert not any(old_pickles.is_pickle(value) for value in stored.values())
    again = GroupIndex(NAMES)
    again.restore(sorted(stored.items()))
    assert keys_of(again) == keys
    assert [again.id(number) for number in range(3)] == [7, 3, 5]
    assert list(again.unsaved()) == []


def keys_of(index: GroupIndex) -> list[tuple[object, ...]]:
    """The keys of all groups."""
    return list(zip(*(column.to_pylist() for column in index.key_columns(np.arange(len(index)))), strict=True))


def test_groups_of_format_1_whose_keys_have_other_types_are_damaged() -> None:
    """They are refused when they are read, not when somebody asks for the keys."""
    forged = (GROUP_PREFIX + struct.pack(">Q", 7), pickle.dumps((0, ("a", "b")), protocol=5))
    with pytest.raises(CorruptionError, match="other keys"):
        GroupIndex(NAMES).restore([forged])


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
            assert not old_pickles.is_pickle(value)
        store.close()
    assert values
    with TestBed(directory=tmp_path) as bed:
        bed.execute("USE d")
        for second in (51, 99):
            bed.execute(f"INSERT INTO a VALUES ({T0 + second * 1000}, 'n1', 9)")
        found = bed.rows("SELECT * FROM o")
        wanted = bed.rows(query)
        assert sorted(repr(row[: len(wanted[0])]) for row in found) == sorted(map(repr, wanted))


def test_state_of_the_version_before_goes_on(tmp_path: Path) -> None:
    """A directory whose state has texts, decimals and keys as pickles is read, and its streams go on from there."""
    with tarfile.open(GOLDEN / "states" / "1.tar.xz") as file:
        file.extractall(tmp_path, filter="data")
    with open_sandbox(tmp_path / "data") as sandbox:
        sandbox.run()
        for second in (32, 45, 99):
            sandbox.execute(f"INSERT INTO d.a VALUES ({T0 + second * 1000}, 'q', 2) "
                            f"d.c VALUES ({T0 + second * 1000}, 'z', 3)")
        sandbox.execute(f"INSERT INTO d.a VALUES ({T0 + 3_500}, 'late', 4)")
        for table, query in {
            "oi": "first(name), sum(price), count(*) FROM d.t PARTITION BY who INTERVAL(10s)",
            "oe": "last(name), sum(price), count(*) FROM d.t PARTITION BY tbname SESSION(ts, 5s)",
        }.items():
            wanted = rows(sandbox, f"SELECT _wstart, {query}")
            assert rows(sandbox, f"SELECT `_wstart`, f, s, n FROM d.{table}") == wanted
        assert ("q", 4) in rows(sandbox, "SELECT f, n FROM d.ow")
        sandbox.checkpoint()
    for directory in (tmp_path / "data").glob("streams/*/state/*"):
        store = StateStore(directory, 1 << 26)
        assert not any(old_pickles.is_pickle(value) for key, value in store.items() if key.startswith(GROUP_PREFIX))
        store.close()


def rows(sandbox: Any, query: str) -> list[tuple[Any, ...]]:
    table = sandbox.execute(query).table
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)


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
