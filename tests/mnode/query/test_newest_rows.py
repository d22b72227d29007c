"""Queries that need the newest row of each child table alone read that, and answer as if they had read all rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed

from penstock.planner.query import query_groups
from penstock.vnode.read import newest_rows
from penstock.vnode.read.vnode_reader import VnodeReader

TABLES = 4
QUERIES = (
    "SELECT last_row(*) FROM m", "SELECT last(*) FROM m", "SELECT tbname, last_row(*) FROM m PARTITION BY tbname",
    "SELECT tbname, last(v), last(ts) FROM m PARTITION BY tbname", "SELECT g, last(s), count(*) FROM m GROUP BY g",
    "SELECT g, last_row(v + 1), s FROM m GROUP BY g", "SELECT last(v), last_row(s) FROM m WHERE g = 1",
    "SELECT last(v) FROM m WHERE tbname = 't0'", "SELECT last(v) FROM m WHERE v > 2", "SELECT last_row(v) FROM t1",
    "SELECT last(v), last(s) FROM t2", "SELECT v, last_row(s) FROM m GROUP BY v",
    "SELECT v, last(s) FROM m GROUP BY 1", "SELECT last(v + s) FROM m", "SELECT last(v) FROM (SELECT ts, v FROM m)",
    f"SELECT last_row(v) FROM m WHERE ts <= {T0 + 5}", "SELECT _wstart, last(v) FROM m INTERVAL(2a)",
    "SELECT g, last_row(v) FROM m GROUP BY g HAVING last_row(v) > 2", "SELECT last(v), max(v) FROM m",
    "SELECT max(w) FROM (SELECT last_row(v) w FROM m PARTITION BY tbname)",
)
STEPS = st.one_of(
    st.tuples(st.just("insert"), st.lists(st.tuples(
        st.integers(0, TABLES - 1), st.one_of(st.integers(0, 9), st.integers(0, 90_000)),
        st.one_of(st.none(), st.integers(0, 5)), st.one_of(st.none(), st.integers(0, 5))), min_size=1, max_size=6)),
    st.tuples(st.just("delete"), st.tuples(st.integers(0, TABLES - 1), st.integers(0, 9))),
    st.tuples(st.just("flush"), st.none()),
    st.tuples(st.just("drop"), st.integers(1, TABLES - 1)),
)


@pytest.fixture(scope="module")
def bed() -> Iterator[TestBed]:
    with TestBed() as bed:
        bed.all("CREATE DATABASE d VGROUPS 2", "USE d")
        yield bed


def _make_tables(bed: TestBed) -> None:
    bed.all("DROP TABLE IF EXISTS m", "CREATE TABLE m (ts TIMESTAMP, v INT, s INT) TAGS (g INT)",
            *(f"CREATE TABLE t{number} USING m TAGS ({number % 2})" for number in range(TABLES)))


def _answers(bed: TestBed) -> list[object]:
    return [_answer(bed, query) for query in QUERIES]


def _answer(bed: TestBed, query: str) -> object:
    return bed.rows(f"{query} ORDER BY 1" if "ORDER" not in query else query)


@settings(max_examples=times(4, 400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=8))
def test_answers_are_those_of_all_rows(bed: TestBed, steps: list[tuple[str, object]]) -> None:
    """Whatever is late, NULL, deleted, in files or in memory."""
    _make_tables(bed)
    for kind, what in steps:
        match kind, what:
            case "insert", list(rows):
                bed.all(*(f"INSERT INTO t{table} USING m TAGS ({table % 2}) VALUES "
                          f"({T0 + at}, {_sql(v)}, {_sql(s)})" for table, at, v, s in rows))
            case "delete", (table, at):
                bed.all(f"DELETE FROM m WHERE tbname = 't{table}' AND ts >= {T0 + at}")
            case "flush", _:
                bed.engine.flush()
            case "drop", table:
                bed.all(f"DROP TABLE IF EXISTS t{table}", f"CREATE TABLE t{table} USING m TAGS ({int(str(table)) % 2})")
    found = _answers(bed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newest_rows, "_FEW", 0)  # all rows of some, however many
        assert found == _answers(bed)
        patch.setattr(query_groups, "note_newest_rows", lambda *_: None)
        assert found == _answers(bed)


def _sql(value: int | None) -> str:
    return "NULL" if value is None else str(value)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether newest rows were found, per vnode that was asked for them."""
    asked: list[bool] = []
    read_newest = VnodeReader.newest_rows

    def noted(self: VnodeReader, *arguments: object, **how: object) -> object:
        rows = read_newest(self, *arguments, **how)  # type: ignore[arg-type]
        asked.append(rows is not None)
        return rows

    monkeypatch.setattr(VnodeReader, "newest_rows", noted)
    return asked


def test_all_rows_are_read_only_where_they_must_be(bed: TestBed, read: list[bool]) -> None:
    """A deleted newest row or a NULL in it leaves nothing else; a table that is far behind is read by itself."""
    _make_tables(bed)
    rows = [f"INSERT INTO t{table} VALUES ({T0 + at}, {at}, {table})" for table in range(TABLES) for at in range(5)]
    bed.all(*rows)
    assert bed.rows("SELECT tbname, last(v) FROM m PARTITION BY tbname ORDER BY 1") == [
        (f"t{table}", 4) for table in range(TABLES)]
    assert read == [True, True]
    bed.all(f"INSERT INTO t0 VALUES ({T0 + 9}, NULL, 7)")
    assert bed.rows("SELECT last(v), last(s) FROM t0") == [(4, 7)]
    assert bed.rows("SELECT last_row(v), last_row(s) FROM t0") == [(None, 7)]
    bed.all(f"DELETE FROM t0 WHERE ts = {T0 + 9}")
    read.clear()
    assert bed.rows("SELECT last_row(v) FROM t0") == [(4,)]
    assert read == [False]


def test_explain_says_which_rows_are_needed(bed: TestBed) -> None:
    """Conditions on rows, and groups of rows, need them all."""
    _make_tables(bed)

    def needed(query: str) -> str:
        text = "\n".join(str(row[0]) for row in bed.rows(f"EXPLAIN {query}"))
        return text.partition("newest=")[2].partition(")")[0].partition(",")[0]

    assert needed("SELECT last_row(*) FROM m") == "rows"
    assert needed("SELECT g, last(v) FROM m WHERE g = 1 GROUP BY g") == "values"
    for query in ("SELECT last(v + s) FROM m", "SELECT last(v) FROM m WHERE v > 1", "SELECT last(v) FROM m GROUP BY v",
                  "SELECT last(v), count(*) FROM m", "SELECT last(v) FROM m INTERVAL(1s)",
                  "SELECT v a, last_row(s) FROM m GROUP BY a"):
        assert needed(query) == "", query
