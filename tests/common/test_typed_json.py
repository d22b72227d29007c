"""Typed JSON: what comes back is equal and of the same types; whatever isn't a value of the root is refused by name."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.streams.stream_kit import Catalog

from penstock.common.typed_json import TypedJson
from penstock.mnode.catalog.entry_kinds import DATABASE
from penstock.mnode.coordinator.stored_plan import StoredPlan, decode, encode
from penstock.mnode.coordinator.task_graph_builder import task_graph
from penstock.planner.streams.stream_planner import plan_stream
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Database, DatabaseOptions, RestoredFrom, Session
from penstock.sql.tree.statements import CreateStream


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True, slots=True)
class Leaf:
    value: int | float | str | bool | None
    color: Color = Color.RED
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Fruit(Leaf):
    name: str = ""


@dataclass(frozen=True, slots=True)
class Tree:
    kind: Literal["a", 1]
    leaves: tuple[Leaf, ...] = ()
    pair: tuple[int, str] | None = None
    inner: Tree | Leaf | None = None


JSON = TypedJson(Tree)
SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | st.text(max_size=3)
LEAVES = st.builds(Leaf, SCALARS, st.sampled_from(Color), st.binary(max_size=4)) | st.builds(Fruit, SCALARS)
TREES = st.recursive(
    st.builds(Tree, st.sampled_from(("a", 1)), st.lists(LEAVES, max_size=4).map(tuple),
              st.none() | st.tuples(st.integers(), st.text(max_size=2)), st.none() | LEAVES),
    lambda inner: st.builds(Tree, st.just("a"), st.just(()), st.none(), inner), max_leaves=5)


@given(tree=TREES)
def test_what_comes_back_is_what_was_written(tree: Tree) -> None:
    """Equal and of equal types, which == alone doesn't tell: 1, 1.0 and true stay apart."""
    assert repr(JSON.decode(json.loads(json.dumps(JSON.encode(tree))))) == repr(tree)


def test_depth_costs_no_stack() -> None:
    """Expressions of users may be deep; equal parts are written once."""
    tree = Tree("a")
    for _ in range(5000):
        tree = Tree("a", inner=tree)
    data = json.loads(json.dumps(JSON.encode(tree)))
    assert len(data) == 5001
    back, depth = JSON.decode(data), 0
    while isinstance(back.inner, Tree):
        back, depth = back.inner, depth + 1
    assert depth == 5000
    assert len(JSON.encode(Tree("a", (Leaf(1), Leaf(1), Leaf(True))))) == 3


DAMAGED: list[tuple[Any, str]] = [
    ([], "no parts"), ({}, "no parts"), ([3], "no object"),
    ([{"class": "os.system"}], "class os.system is unknown"), ([{"class": "Tree"}], "Tree has no kind"),
    ([{"class": "Tree", "kind": "a", "more": 1}], "Tree has no field more"),
    ([{"class": "Tree", "kind": True}], "Tree.kind can't be true"), ([{"class": "Tree", "kind": "b"}], "can't be"),
    ([{"class": "Tree", "kind": "a", "inner": {"#": 0}}], "Tree.inner can't be"),
    ([{"class": "Tree", "kind": "a", "pair": [1]}], "Tree.pair can't be"),
    ([{"class": "Tree", "kind": "a", "leaves": [[]]}], "can't be"),
    ([{"class": "Leaf", "value": 1}], "a Leaf where a Tree belongs"),
    ([{"class": "Leaf", "value": 1, "color": "GREEN"}], "Leaf.color can't be"),
    ([{"class": "Leaf", "value": 1, "data": {"base64": "!"}}], "Leaf.data"),
    ([{"class": "Leaf", "value": {"#": 0}}], "Leaf.value can't be"),
]


@pytest.mark.parametrize(("data", "told"), DAMAGED)
def test_anything_else_is_refused(data: Any, told: str) -> None:
    """Classes that the root doesn't lead to are never built, places lead back only, and types are checked."""
    with pytest.raises(ValueError, match=told):
        JSON.decode(data)


def test_a_field_that_came_later_has_its_default() -> None:
    """So what was written by a version that didn't know it can be read."""
    assert JSON.decode([{"class": "Tree", "kind": 1}]) == Tree(1)


def test_what_earlier_versions_do_not_know_is_written_where_it_is_said() -> None:
    """A database that isn't restored is readable for version 1.0, whose databases had these fields."""
    database = Database("d", DatabaseOptions(), (2, 3), 1)
    restored = replace(database, origin=RestoredFrom("c", 7))
    assert DATABASE.json.encode(database)[-1].keys() == {
        "class", "name", "options", "vgroup_ids", "create_time_ms", "cut_shares"}
    assert [DATABASE.json.decode(DATABASE.json.encode(one)) for one in (database, restored)] == [database, restored]


def test_fields_that_cannot_be_written_are_refused_at_once() -> None:
    """Whoever adds such a field to a plan learns it from the first import."""

    @dataclass(frozen=True)
    class Open:
        anything: object

    with pytest.raises(TypeError, match=r"Open.anything: .* can't be written"):
        TypedJson(Open)
    with pytest.raises(TypeError, match="is no typed JSON"):
        JSON.encode(Tree("a", inner=replace(Leaf(1), value=Color)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["interval", "rows", "join"])
def test_plans_of_streams_come_back(name: str) -> None:
    """What the catalog keeps of a stream is all of it."""
    query = {"interval": "SELECT _wstart, sum(voltage), last(current) FROM meters PARTITION BY site INTERVAL(10s)",
             "rows": "SELECT _wstart, count(*) FROM meters PARTITION BY tbname STATE_WINDOW(voltage)",
             "join": "SELECT a.ts, a.voltage, b.current FROM meters a JOIN meters b ON a.ts = b.ts"}[name]
    statement = parse_one(f"CREATE STREAM s TRIGGER AT_ONCE WATERMARK 3s IGNORE UPDATE 0 INTO o AS {query}")
    assert isinstance(statement, CreateStream)
    plan = plan_stream(statement, Catalog(3, 4), Session("p", "UTC", 0))
    stored = StoredPlan(plan, task_graph(plan, (2, 3, 4), (9,)), statement.options)
    assert decode(encode(stored)) == stored
