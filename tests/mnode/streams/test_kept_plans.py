"""Queries of triggers are planned once, and anew when the catalog has changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from kits.engines.sandboxes import T0, TestBed

from penstock.mnode.streams import window_queries
from penstock.mnode.streams.kept_plans import KeptPlans


@contextmanager
def plannings() -> Iterator[list[object]]:
    """Notes each query that is planned."""
    found: list[object] = []
    plan_query = window_queries.plan_query

    def noted(query: Any, *given: Any) -> Any:
        found.append(query)
        return plan_query(query, *given)

    with patch.object(window_queries, "plan_query", noted):
        yield found


@pytest.fixture
def bed() -> Iterator[TestBed]:
    with TestBed(config={"timezone": "UTC"}) as bed:
        bed.all("create database d vgroups 1 keep 36500", "use d", "create stable m (ts timestamp, v int) tags (t int)",
                "create table a using m tags (1)", "create table b using m tags (2)",
                "create table o (ts timestamp, w int)", f"insert into o values ({T0}, 1) ({T0 + 1500}, 2)")
        yield bed


def row(second: float, table: str = "a") -> str:
    return f"insert into {table} values ({T0 + round(second * 1000)}, 1)"


@pytest.mark.parametrize("query", [
    pytest.param("select _twstart ts, count(*) c, stddev(v) s from %%trows", id="rows of the window"),
    pytest.param("select _twstart ts, %%1 n, sum(w) s from o where ts >= _twstart and ts < _twend", id="another table"),
    pytest.param("select _twstart ts, max(v) c, stddev(v) s from %%tbname where ts > _twend - 5s", id="the table"),
])
@pytest.mark.parametrize("at_once", [1, 5])
def test_an_execution_plans_nothing(bed: TestBed, query: str, at_once: int) -> None:
    """Neither of one window, nor of many."""
    def insert(first: int) -> None:
        for table in "ab":
            bed.execute(f"insert into {table} values " + " ".join(
                f"({T0 + 1000 * (first + place)}, 1)" for place in range(at_once)))

    bed.execute(f"create stream s interval(1s) sliding(1s) from m partition by tbname into r as {query}")
    for round_ in range(2):
        insert(at_once * round_)
    with plannings() as found:
        for round_ in range(2, 5):
            insert(at_once * round_)
    assert found == []
    assert bed.rows("select count(*) from s_executions where problem is null") == [(2 * (5 * at_once - 1),)]


def test_a_change_of_the_catalog_is_seen(bed: TestBed) -> None:
    """What is planned then is kept again."""
    bed.all("create stream s interval(1s) sliding(1s) from a into r as select _twstart ts, sum(w) x from o",
            row(0), row(1), "alter table o add column y int")
    with plannings() as found:
        bed.execute(row(2))
    assert found
    with plannings() as found:
        bed.execute(row(3))
    assert found == []
    assert bed.rows("select ts, x from r") == [(0, 3), (1000, 3), (2000, 3)]


def test_a_child_table_that_comes_is_read(bed: TestBed) -> None:
    """No change of the catalog is counted for it: the plan is kept, and what it reads isn't."""
    bed.all("create stream s interval(1s) sliding(1s) from m partition by t stream_options(ignore_nodata_trigger) "
            "into r as select _twstart ts, count(*) c, count(distinct tbname) n, stddev(v) d from %%trows",
            row(0), row(1), f"insert into c using m tags (1) values ({T0 + 1100}, 1)", row(2), row(3))
    assert bed.rows("select ts, c, n from r") == [(0, 1, 1), (1000, 2, 2), (2000, 1, 1)]


@pytest.mark.parametrize("query", [
    pytest.param("select _twstart ts, cast(_qend as bigint) - cast(_qstart as bigint) l, count(*) c from o "
                 "where ts >= _twstart and ts < _twend", id="the range of the query"),
    pytest.param("select _wstart ts, count(*) c from o where ts >= _twstart and ts < _twend interval(500a) "
                 "fill(value, 0)", id="windows without rows"),
    pytest.param("select _twstart ts, now() > _twend l, count(*) c from o", id="the time of now"),
    pytest.param("select _twstart ts, count(*) c from m where tbname = 'a' and ts < _twend", id="a table by name"),
])
def test_what_planning_must_know_is_planned_for_each_window(bed: TestBed, query: str) -> None:
    """One by one, and together where that goes; both give the same."""
    for name, rows in (("few", [[0], [1], [2], [3], [4], [5]]), ("many", [[0, 1, 2, 3, 4, 5]])):
        bed.all(f"create table {name} (ts timestamp, v int)",
                f"create stream s{name} interval(1s) sliding(1s) from {name} into r{name} as {query}")
        with plannings() as found:
            for times in rows:
                bed.execute(f"insert into {name} values " + " ".join(f"({T0 + 1000 * second}, 1)" for second in times))
        assert found
    assert bed.rows("select * from rfew") == bed.rows("select * from rmany")
    assert len(bed.rows("select * from rfew")) >= 4


def test_plans_are_kept_until_the_catalog_changes() -> None:
    """By stream and purpose, if they last."""
    kept: KeptPlans[int] = KeptPlans()
    numbers = iter(range(100))

    def get(stream: int, changes: int, purpose: str = "", *, lasts: bool = True) -> int:
        return kept.get(stream, changes, purpose, lambda: next(numbers), lambda _: lasts)

    assert [get(1, 5), get(1, 5), get(1, 5, "other"), get(2, 5), get(2, 5)] == [0, 0, 1, 2, 2]
    assert [get(1, 6), get(1, 6), get(1, 6, "other")] == [3, 3, 4]
    assert [get(1, 5), get(1, 6)] == [5, 3]  # of somebody who has looked at the catalog before it changed
    assert [get(3, 6, lasts=False), get(3, 6, lasts=False), get(3, 6), get(3, 6)] == [6, 7, 8, 8]
    kept.forget_all_but({2})
    assert [get(1, 6), get(2, 5)] == [9, 2]
