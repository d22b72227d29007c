"""Groups of child tables get the names of these after they were grouped, and are the same as if before."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.query_harness import Harness

from penstock.planner.query import query_context
from penstock.sql.types import INT, DataType, Kind

QUERIES = (
    "SELECT tbname, count(*), max(v) FROM m PARTITION BY tbname", "SELECT TBNAME, sum(v), g FROM m GROUP BY tbname",
    "SELECT max(v) FROM m PARTITION BY 'x', tbname",
    "SELECT tbname, g, avg(v) FROM m PARTITION BY g, tbname SLIMIT 2 SOFFSET 1",
    "SELECT tbname, _wstart, count(*) FROM m PARTITION BY tbname INTERVAL(7a) LIMIT 2",
    "SELECT tbname, _wstart, twa(v) FROM m PARTITION BY tbname INTERVAL(3a) SLIDING(2a)",
    "SELECT tbname, _wstart, first(v) FROM m WHERE ts >= 0 AND ts < 20 PARTITION BY tbname INTERVAL(5a) FILL(PREV)",
    "SELECT upper(tbname) u, count(*) c FROM m GROUP BY tbname HAVING count(*) > 1 AND tbname <> 'b'",
    "SELECT last(v), tbname FROM m PARTITION BY tbname ORDER BY tbname DESC",
    "SELECT sum(c) FROM (SELECT tbname, count(*) c FROM m PARTITION BY tbname)",
    "SELECT tbname, count(*) FROM m WHERE g = 1 PARTITION BY tbname",
    "SELECT x.tbname, count(*) FROM m x PARTITION BY x.tbname",
)
OTHERS = (
    "SELECT tbname, count(tbname) FROM m PARTITION BY tbname", "SELECT tbname n, min(v) FROM m PARTITION BY n",
    "SELECT upper(tbname), count(*) FROM m GROUP BY upper(tbname)",
    "SELECT tbname, count(*) FROM m WHERE tbname > 'a' PARTITION BY tbname", "SELECT g, count(*) FROM m GROUP BY g",
    "SELECT tbname, count(*) FROM m PARTITION BY tbname SESSION(ts, 3a)",
    "SELECT tbname, count(*) FROM a GROUP BY tbname",
    "SELECT tbname, csum(v) FROM m PARTITION BY tbname", "SELECT tbname, top(v, 2) FROM m PARTITION BY tbname",
)


def _harness(rows: Sequence[tuple[str, int, int | None]]) -> Harness:
    db = Harness()
    db.create("m", {"v": INT}, {"g": DataType(Kind.INT)})
    for number, name in enumerate(("c", "a", "b", "empty")):
        db.child(name, "m", number % 2)
    for table, ts, value in rows:
        db.insert(table, [(ts, value)])
    return db


@settings(max_examples=times(3, 500), deadline=None)
@given(rows=st.lists(st.tuples(
    st.sampled_from("abc"), st.integers(-20, 20), st.none() | st.integers(0, 5)), max_size=12))
def test_answers_are_those_of_names_before(rows: list[tuple[str, int, int | None]]) -> None:
    """Groups are the same, in the same order; times before 1970 are among them."""
    db = _harness(rows)
    found = [db.query(query) for query in (*QUERIES, *OTHERS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_context, "late_key", lambda _: None)
        assert found == [db.query(query) for query in (*QUERIES, *OTHERS)]


def test_names_come_late_where_nothing_asks_for_them_before() -> None:
    """Conditions on names, and what is computed of them, need them before."""
    db = _harness([])
    for query in (*QUERIES, *OTHERS):
        assert (len(db.plan(query).scans) == 2) is (query in QUERIES), query
