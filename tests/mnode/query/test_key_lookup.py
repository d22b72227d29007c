"""Rows of a table with a KEY that WHERE names by it are looked up: the answer is that of a look at all rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import TestBed

TABLES = {
    "bytes": ("TINYINT", [-128, -1, 0, 1, 127]),
    "longs": ("BIGINT", [-(2**63), -1, 0, 1, 2**59, 2**59 - 1, -(2**59), 2**63 - 1]),
    "positive": ("BIGINT UNSIGNED", [0, 1, 2**63, 2**64 - 1]),
    "texts": ("VARCHAR(20)", ["", "a", "A", "a ", "it''s", "0", "1", "é", "\x1f"]),
}
OTHERS = [300, -300, 2**70, -(2**70), 0, 1]


def written(value: int | str) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


@pytest.fixture(scope="module")
def bed() -> Iterator[TestBed]:
    with TestBed() as bed:
        bed.all("CREATE DATABASE d VGROUPS 1", "USE d")
        for name, (type_, keys) in TABLES.items():
            bed.execute(f"CREATE TABLE {name} (k {type_} PRIMARY KEY, v INT)")
            bed.execute(f"INSERT INTO {name} VALUES " + " ".join(f"({written(k)}, {n})" for n, k in enumerate(keys)))
            bed.execute(f"INSERT INTO {name} VALUES ({written(keys[0])}, 100)")
            bed.execute(f"DELETE FROM {name} WHERE k = {written(keys[1])}")
        yield bed


@st.composite
def questions(draw: st.DrawFn) -> tuple[str, str]:
    """Draws a table and a condition on its KEY."""
    name = draw(st.sampled_from(sorted(TABLES)))
    keys: list[Any] = [*TABLES[name][1], *([] if name == "texts" else OTHERS)]
    one = st.sampled_from(keys).map(written)
    some = st.lists(one, min_size=1, max_size=3).map(", ".join)
    plain = st.one_of(one.map("k = {}".format), one.map("{} = k".format), some.map("k IN ({})".format),
                      one.map("(k = ({}))".format), st.just("v < 5"), st.just("k IS NOT NULL"))
    condition = st.recursive(plain, lambda below: st.one_of(
        st.tuples(below, st.sampled_from(["AND", "OR"]), below).map("({0[0]} {0[1]} {0[2]})".format),
        below.map("NOT ({})".format)), max_leaves=4)
    return name, draw(condition)


@settings(max_examples=times(75, 5_000))
@given(question=questions())
def test_the_answer_is_that_of_all_rows(bed: TestBed, question: tuple[str, str]) -> None:
    """A sub-query with a LIMIT keeps the condition away from the table."""
    name, condition = question
    wanted = bed.rows(f"SELECT k, v FROM (SELECT k, v FROM {name} LIMIT 1000) WHERE {condition} ORDER BY v")
    assert bed.rows(f"SELECT k, v FROM {name} WHERE {condition} ORDER BY v") == wanted


def test_it_is_told(bed: TestBed) -> None:
    """EXPLAIN counts the keys; whatever else may be true for other rows leaves all of them."""
    def reads(condition: str) -> str:
        return "\n".join(line for line, in bed.rows(f"EXPLAIN SELECT v FROM longs WHERE {condition}"))

    assert "keys=1" in reads("k = 1")
    assert "keys=2" in reads("k IN (1, -1, 5) AND k IN (-1, 5, 9)")
    for condition in ("k = 1 OR v = 1", "k + 0 = 1", "NOT k = 1", "k > 1", "v = 1", "k = 1.0"):
        assert "keys=" not in reads(condition)
