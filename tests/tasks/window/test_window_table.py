"""The windows an agg task keeps: against a dictionary, with spills, checkpoints and windows that cease to exist."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from conftest import times
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.planner.task_plans.stream_plan import Accumulator, Field, TimeWindows, WindowsPlan
from penstock.sql.tree.statements import Duration, IntervalWindow
from penstock.sql.types import BIGINT, INT, VARCHAR
from penstock.tasks.compiled.compiled_loops import load
from penstock.tasks.compute.accumulators import Values
from penstock.tasks.compute.partial_columns import PartialColumns
from penstock.tasks.protocol.block_schema import ADD, REPLACE, partial_schema
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.window import slot_index, slot_table, window_pages, window_table
from penstock.tasks.window.window_table import Touched, WindowTable, united

KEYS = (Field("k0", VARCHAR),)
WIDTH = 10_000
STEP = st.one_of(
    st.tuples(st.just("add"), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 9)), min_size=1,
                                       max_size=12, unique_by=lambda row: row[:2])),
    st.tuples(st.just("replace"), st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 2))),
    st.tuples(st.just("spill"), st.integers(0, 2_000)),
    st.tuples(st.just("save"), st.none()),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("forget"), st.integers(0, 4)),
)


#: What is kept besides the count: the greatest number, the greatest text, or all numbers.
KEPT = {
    "numbers": Accumulator("pick", (Field("p1", INT),), ((0, False),)),
    "texts": Accumulator("pick", (Field("p1", VARCHAR),), ((0, False),)),
    "lists": Accumulator("values", (Field("p1", INT, many=True),)),
}


def plan_of(kept: str) -> WindowsPlan:
    """count and one more value per (group, window)."""
    accumulators = (Accumulator("add", (Field("p0", BIGINT),)), KEPT[kept])
    return WindowsPlan(TimeWindows(IntervalWindow(Duration(10, "s")), "ms", "UTC"), accumulators, "")


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize(("cells", "chunk"), [(4_000_000, 4_096), (0, 3)], ids=["table", "sparse"])
@settings(max_examples=times(16, 400), deadline=None)
@given(steps=st.lists(STEP, max_size=25))
@example(steps=[("add", [(1, 2, 3)]), ("save", None), ("replace", (1, 2, 0)), ("add", [(1, 2, 5)])])
def test_the_state_is_what_was_put_in(
    tmp_path_factory: pytest.TempPathFactory, kept: str, cells: int, chunk: int, steps: list[tuple[str, object]]
) -> None:
    """Additions and replacements count once each, whatever is in memory, in the store, or was before and is gone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_index, "_SPARE_CELLS", cells)
        patch.setattr(slot_index, "_CELLS_PER_SLOT", 8 if cells else 0)
        patch.setattr(window_pages, "PAGE_GROUPS", chunk)
        patch.setattr(window_pages, "_PARTS_MAX", 3)
        patch.setattr(slot_table, "_FIRST_CAPACITY", 1)
        patch.setattr(window_table, "_KEPT_CAPACITY", 2)
        patch.setattr(window_table, "_LOOKS_PER_PERIOD", 2)
        play(tmp_path_factory.mktemp("state"), kept, steps)


def play(directory: Path, kept: str, steps: list[tuple[str, object]]) -> None:
    """Carries out steps on a table and on a dictionary, and compares them after each."""
    plan = plan_of(kept)
    schema = partial_schema(KEYS, plan.fields)
    store = StateStore(directory, 1 << 26)
    table, known, checkpoint = WindowTable(plan, KEYS, 1, store), {}, 0
    meta = None
    try:
        for kind, what in steps:
            match kind:
                case "add" | "replace":
                    rows = what if kind == "add" else [what]
                    table.merge(PartialColumns.of(partials(rows, kept, schema)), ADD if kind == "add" else REPLACE, 0)
                    for group, window, count in rows:
                        if kind == "replace":
                            known[group, window] = count, count
                        else:
                            total, greatest = known.get((group, window), (0, 0))
                            known[group, window] = total + count, max(greatest, count)
                    table.drop_empty(np.array([window * WIDTH for _, window, _ in rows]))
                    known = {key: value for key, value in known.items() if value[0]}
                case "spill":
                    table.spill(what, None)
                case "save":
                    meta, saved = table.save(), dict(known)
                    checkpoint += 1
                    store.checkpoint(checkpoint, {})
                case "forget":
                    table.forget(what * WIDTH, lambda start: start == 0)
                    known = {key: value for key, value in known.items() if key[1] >= what or not key[1]}
                case "restart" if meta is not None:
                    store.restore(checkpoint)
                    table, known = WindowTable(plan, KEYS, 1, store), dict(saved)
                    table.restore(meta, None)
            assert contents(table) == known
            for column in table._table.columns:
                again = Values.empty(column.type, len(column.data))
                again.fill(np.arange(len(column.data)), column.data, column.valid)
                assert column.held == again.held
            table.validate()
    finally:
        store.close()


def partials(rows: list[tuple[int, int, int]], kept: str, schema: pa.Schema) -> pa.RecordBatch:
    """A block of (group, window, rows); without rows the values are NULL."""
    counts = [count or None for _, _, count in rows]
    make = {"numbers": int, "texts": str, "lists": lambda count: [count]}[kept]
    return pa.RecordBatch.from_arrays([
        pa.array([group + 7 for group, _, _ in rows], pa.uint64()), pa.array([f"g{group}" for group, _, _ in rows]),
        pa.array([window * WIDTH for _, window, _ in rows], pa.int64()), pa.array([count for _, _, count in rows]),
        pa.array(counts, pa.int64()), pa.array([n and make(n) for n in counts], schema.field(5).type),
    ], schema=schema)


def contents(table: WindowTable) -> dict[tuple[int, int], tuple[int, int]]:
    """(group, window) to rows and the greatest value."""
    starts = np.array(table.starts(), np.int64)
    places, members = table.members(starts.tolist())
    state = table.state(starts[places], members).table()
    assert state.column("k0").to_pylist() == [f"g{gid - 7}" for gid in state.column("_gid").to_pylist()]
    assert state.column("p0").to_pylist() == state.column("_rows").to_pylist()
    columns = [state.column(name).to_pylist() for name in ("_gid", "_wstart", "_rows", "p1")]
    return {(gid - 7, start // WIDTH): (rows, max(value) if isinstance(value, list) else int(value))
            for gid, start, rows, value in zip(*columns, strict=True)}


def test_what_comes_for_a_stored_window_is_kept_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read for it, be it after a spill or a restart; asked for groups, their pages alone come into memory.

    A checkpoint writes the pages that changed alone, and many parts of a page become one.
    """
    load()  # as workers do: compiled loops want their columns in one piece, those of a page with one group, too
    monkeypatch.setattr(window_pages, "PAGE_GROUPS", 10)
    monkeypatch.setattr(window_pages, "_PARTS_MAX", 3)
    plan = plan_of("numbers")
    schema = partial_schema(KEYS, plan.fields)
    store = StateStore(tmp_path, 1 << 26)
    table = WindowTable(plan, KEYS, 1, store)

    def add(groups: range, count: int) -> None:
        table.merge(PartialColumns.of(partials([(group, 1, count) for group in groups], "numbers", schema)), ADD, 0)

    add(range(101), 1)
    meta = table.save()
    store.checkpoint(1, {})
    assert len(list(store.changes(1))) == 11 + 1  # pages, and the groups
    store.restore(1)
    table = WindowTable(plan, KEYS, 1, store)
    table.restore(meta, None)
    assert (table.starts(), table.slots_used) == ([WIDTH], 0)
    add(range(15, 18), 2)
    assert table.slots_used == 3
    table.save()
    store.checkpoint(2, {})
    ((_, written),) = store.changes(2)
    assert written is not None
    assert table.state(np.array([WIDTH]), np.array([16])).rows.tolist() == [3]
    assert table.slots_used == 10
    for count in range(1, 6):
        table.spill(0, None)
        assert table.slots_used == 0
        add(range(15, 17), count)
        assert table.slots_used == 2
    parts = [key for key in store.keys(b"w", b"x") if key[:15] == next(iter(dict(store.changes(2))))[:15]]
    assert len(parts) <= 4
    add(range(100, 101), 4)
    assert contents(table) == {(group, 1): (1, 1) for group in range(100)} | {(100, 1): (5, 4)} | {
        (15, 1): (18, 5), (16, 1): (18, 5), (17, 1): (3, 2)}
    table.validate()
    store.close()


@pytest.mark.parametrize("cells", [4_000_000, 0], ids=["table", "sparse"])
def test_memory_is_given_back(tmp_path: Path, cells: int) -> None:
    """Where many windows were, room for a few is left some windows later; those that stay are what they were."""
    plan = plan_of("numbers")
    schema = partial_schema(KEYS, plan.fields)
    store = StateStore(tmp_path, 1 << 26)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_index, "_SPARE_CELLS", cells)
        patch.setattr(slot_index, "_CELLS_PER_SLOT", 8 if cells else 0)
        table = WindowTable(plan, KEYS, 1, store)
        for window in range(100):
            groups = 100_000 if window < 3 else 10
            table.merge(PartialColumns.of(partials([(group, window, 1 + group % 5) for group in range(groups)],
                                                   "numbers", schema)), ADD, 0)
            table.forget((window - 1) * WIDTH, lambda start: False)
        assert table._table.capacity == 1024
        assert contents(table) == {(group, window): (1 + group % 5,) * 2 for group in range(10) for window in (98, 99)}
        table.validate()
    store.close()


@pytest.mark.parametrize("kept", KEPT)
@settings(max_examples=times(10, 250), deadline=None)
@given(blocks=st.lists(st.tuples(st.integers(0, 1), st.dictionaries(
    st.tuples(st.integers(0, 5), st.integers(0, 3)), st.integers(1, 9), min_size=1), st.booleans()), max_size=8),
       leaving=st.sets(st.integers(0, 5)))
def test_groups_that_are_handed_over_take_all_of_their_windows_along(
    tmp_path_factory: pytest.TempPathFactory, kept: str,
    blocks: list[tuple[int, dict[tuple[int, int], int], bool]], leaving: set[int],
) -> None:
    """What each input contributed goes along, in memory or stored; the others stay; both survive a restart."""
    plan = plan_of(kept)
    schema = partial_schema(KEYS, plan.fields)
    stores = [StateStore(tmp_path_factory.mktemp("state"), 1 << 26) for _ in range(2)]
    here, there = (WindowTable(plan, KEYS, 2, store) for store in stores)
    known: dict[tuple[int, int, int], int] = {}
    try:
        for input, rows, spilled in blocks:
            added = partials([(*key, count) for key, count in rows.items()], kept, schema)
            here.merge(PartialColumns.of(added), ADD, input)
            for (group, window), count in rows.items():
                known[input, group, window] = known.get((input, group, window), 0) + count
            here.spill(0 if spilled else 1 << 30, 2 * WIDTH)
        gone = np.isin(here.groups.ids(np.arange(len(here.groups))), [group + 7 for group in leaving])
        for input, part in here.give_up(gone):
            there.merge(PartialColumns.of(part), ADD, input)
        for _ in range(2):
            assert contributions(here) == {key: rows for key, rows in known.items() if key[1] not in leaving}
            assert contributions(there) == {key: rows for key, rows in known.items() if key[1] in leaving}
            here.validate()
            there.validate()
            metas = [here.save(), there.save()]
            here, there = (WindowTable(plan, KEYS, 2, store) for store in stores)
            here.restore(metas[0], None)
            there.restore(metas[1], 2 * WIDTH)
    finally:
        for store in stores:
            store.close()


def contributions(table: WindowTable) -> dict[tuple[int, int, int], int]:
    """(input, group, window) to rows."""
    return {(input, row["_gid"] - 7, start // WIDTH): row["_rows"]
            for start in list(table.stored()) for input in range(2)
            for row in table.contributed(start, input).to_pylist()}


@given(st.lists(st.sets(st.tuples(st.integers(-5, 5), st.integers(0, 6)), min_size=1), min_size=1, max_size=4))
def test_what_several_blocks_touched_is_touched_once(blocks: list[set[tuple[int, int]]]) -> None:
    """The union has each (window, group) of any block, whatever the blocks have in common."""
    parts = []
    for block in blocks:
        starts, which = np.unique(np.array([start for start, _ in block]), return_inverse=True)
        parts.append(Touched(starts, which, np.array([group for _, group in block])))
    found = united(parts)
    pairs = list(zip(found.starts[found.which].tolist(), found.groups.tolist(), strict=True))
    assert sorted(pairs) == sorted(set().union(*blocks))
