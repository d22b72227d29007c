"""Names of child tables that come again: they stand for the same tables until one was dropped or moved."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed

from penstock.mnode.write import recent_names
from penstock.mnode.write.recent_names import RecentNames
from penstock.mnode.write.row_placement import Owners
from penstock.sql.schema import ChildTable, Table

STEPS = st.lists(st.one_of(
    st.tuples(st.just("insert"), st.lists(st.integers(0, 4), min_size=1, max_size=5)),
    st.tuples(st.just("drop"), st.lists(st.integers(0, 4), min_size=1, max_size=1)),
    st.tuples(st.just("table"), st.just([0])),
), max_size=12)


@pytest.fixture(scope="module")
def bed() -> Iterator[TestBed]:
    with TestBed() as bed:
        bed.all("CREATE DATABASE d VGROUPS 2", "USE d")
        yield bed


@settings(max_examples=times(6, 150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_rows_find_their_child_tables_whatever_was_dropped_between(
    bed: TestBed, steps: list[tuple[str, list[int]]]
) -> None:
    """Those that were dropped come back with the next row, without their old ones."""
    bed.all("DROP TABLE IF EXISTS m", "CREATE TABLE m (ts TIMESTAMP, v INT) TAGS (g INT)")
    model: dict[str, set[int]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recent_names, "_MANY", 1)
        for number, (kind, which) in enumerate(steps):
            names = [f"t{each}" for each in which]
            if kind == "insert":
                bed.engine.insert_arrow("m", pa.table({
                    "tbname": names, "ts": pa.array([T0 + number] * len(names), pa.timestamp("ms")),
                    "v": pa.array([number] * len(names), pa.int32()), "g": pa.array(which, pa.int32())}), bed.session)
                for name in names:
                    model.setdefault(name, set()).add(number)
            elif kind == "drop":
                bed.all(f"DROP TABLE IF EXISTS {names[0]}")
                model.pop(names[0], None)
            else:
                bed.all("DROP TABLE m", "CREATE TABLE m (ts TIMESTAMP, v INT) TAGS (g INT)")
                model = {}
        found = bed.rows("SELECT tbname, v, g FROM m ORDER BY tbname, v")
    assert found == sorted((name, v, int(name[1:])) for name, rows in model.items() for v in rows)


def _owners(names: list[str]) -> Owners:
    return Owners([ChildTable(number, name, 1, ()) for number, name in enumerate(names)])


def test_what_is_kept_is_bounded_and_goes_with_a_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used goes first."""
    monkeypatch.setattr(recent_names, "_MANY", 1)
    recent, parent = RecentNames(names_max=4), Table(1, "d", "m", "super", (), ())
    one, two, three = (pa.array([f"{letter}{n}" for n in range(2)]) for letter in "abc")
    kept = _owners(["a0", "a1"])
    recent.keep(parent, one, kept, 7)
    recent.keep(parent, two, _owners(["b0", "b1"]), 7)
    assert recent.find(parent, one, 7) is kept
    recent.keep(parent, three, _owners(["c0", "c1"]), 7)
    assert recent.find(parent, two, 7) is None
    assert recent.find(parent, one, 7) is kept
    assert recent.find(parent, pa.array(["a0", "a1", "a1"]), 7) is None
    assert recent.find(parent, one, 8) is None
    assert recent.find(parent, one, 7) is None
