"""Queries that need nothing but the number of rows and their times are told these, and answer as if all were read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed

from penstock.planner.query import query_groups

TABLES = 3
COUNTED = (
    "SELECT count(*) FROM m", "SELECT count(ts), min(ts), max(ts) FROM m", "SELECT first(ts), last(ts) FROM m",
    "SELECT last_row(ts) FROM m", "SELECT count(*) + 1, max(ts) - min(ts) FROM m",
    f"SELECT count(*), min(ts) FROM m WHERE ts >= {T0 + 3}", f"SELECT count(*) FROM m WHERE ts < {T0 + 3}",
    f"SELECT max(ts) FROM m WHERE ts BETWEEN {T0 + 2} AND {T0 + 5}", "SELECT count(*) FROM n",
    f"SELECT count(*), max(ts) FROM n WHERE {T0 + 2} < ts AND (ts <= {T0 + 7})",
    f"SELECT count(*) FROM m WHERE ts = {T0}",
    "SELECT min(ts) FROM n", "SELECT count(*) c FROM (SELECT count(*) FROM m)",
    "SELECT count(*), 'x' FROM m ORDER BY max(ts)", "SELECT count(*), min(_rowts) FROM m",
)
NOT_COUNTED = (
    "SELECT count(1 + 1) FROM m",
    "SELECT count(v) FROM m", "SELECT count(*), sum(v) FROM m", "SELECT count(*) FROM t1", "SELECT last(ts), v FROM m",
    "SELECT count(*) FROM m WHERE v > 1", "SELECT count(*) FROM m WHERE g = 1", "SELECT g, count(*) FROM m GROUP BY g",
    f"SELECT count(*) FROM m WHERE ts = {T0} OR ts = {T0 + 5}", f"SELECT count(*) FROM m WHERE ts <> {T0}",
    f"SELECT count(*) FROM m WHERE ts IN ({T0}, {T0 + 5})", f"SELECT count(*) FROM m WHERE NOT ts > {T0 + 3}",
    "SELECT _wstart, count(*) FROM m INTERVAL(2a)", "SELECT count(*) FROM m WHERE tbname = 't1'",
    "SELECT count(*) FROM m a, m b WHERE a.ts = b.ts", "SELECT last(*) FROM m",
)
STEPS = st.one_of(
    st.tuples(st.just("insert"), st.lists(st.tuples(
        st.integers(0, TABLES - 1), st.integers(0, 9), st.one_of(st.none(), st.integers(0, 5))),
        min_size=1, max_size=6)),
    st.tuples(st.just("delete"), st.tuples(st.integers(-1, TABLES - 1), st.integers(0, 9), st.integers(0, 4))),
    st.tuples(st.sampled_from(["flush", "flush", "compact"]), st.none()),
    st.tuples(st.just("drop"), st.integers(1, TABLES - 1)),
)


@pytest.fixture(scope="module")
def bed() -> Iterator[TestBed]:
    with TestBed() as bed:
        bed.all("CREATE DATABASE d VGROUPS 2", "USE d")
        yield bed


def _play(bed: TestBed, steps: list[tuple[str, object]]) -> None:
    bed.all("DROP TABLE IF EXISTS m", "DROP TABLE IF EXISTS n", "CREATE TABLE m (ts TIMESTAMP, v INT) TAGS (g INT)",
            "CREATE TABLE n (ts TIMESTAMP, v INT)",
            *(f"CREATE TABLE t{number} USING m TAGS ({number % 2})" for number in range(TABLES)))
    for kind, what in steps:
        match kind, what:
            case "insert", list(rows):
                for table, at, value in rows:
                    values = f"({T0 + at}, {'NULL' if value is None else value})"
                    bed.all(f"INSERT INTO t{table} USING m TAGS ({table % 2}) VALUES {values}",
                            f"INSERT INTO n VALUES {values}")
            case "delete", (int(table), int(at), int(length)):
                within = f"ts BETWEEN {T0 + at} AND {T0 + at + length}"
                bed.all(f"DELETE FROM n WHERE {within}", f"DELETE FROM m WHERE {within}" + (
                    f" AND tbname = 't{table}'" if table >= 0 else ""))
            case "flush", _:
                bed.engine.flush()
            case "compact", _:
                database = bed.engine.catalog.database("d")
                assert database is not None
                for vgroup in database.vgroup_ids:
                    bed.engine.storage.vnode(vgroup).compact(full=True)
            case "drop", table:
                bed.all(f"DROP TABLE IF EXISTS t{table}", f"CREATE TABLE t{table} USING m TAGS ({int(str(table)) % 2})")


def _answers(bed: TestBed) -> list[object]:
    return [bed.rows(query if "ORDER" in query or "INTERVAL" in query else f"{query} ORDER BY 1")
            for query in (*COUNTED, *NOT_COUNTED)]


@settings(max_examples=times(5, 400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=8))
def test_answers_are_those_of_all_rows(bed: TestBed, steps: list[tuple[str, object]]) -> None:
    """Whatever was written again, deleted, dropped, is in files or in memory."""
    _play(bed, steps)
    found = _answers(bed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_groups, "note_counted_rows", lambda *_: False)
        assert found == _answers(bed)


@pytest.mark.parametrize("counted", [True, False])
def test_only_queries_that_need_nothing_else_are_told(bed: TestBed, counted: bool) -> None:
    """EXPLAIN says so."""
    _play(bed, [])
    for query in COUNTED if counted else NOT_COUNTED:
        plan = "\n".join(str(row[0]) for row in bed.rows(f"EXPLAIN {query}"))
        assert ("rows=counted" in plan) is counted, query
