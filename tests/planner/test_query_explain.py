"""EXPLAIN's trees: stable texts, kept as files."""

from __future__ import annotations

import pytest
from kits.basics.places import TESTS
from kits.basics.query_harness import Harness

from penstock.sql.types import DOUBLE, INT, DataType, Kind

GOLDEN = TESTS / "golden" / "plans"
QUERIES = {
    "rows": "select ts, a + 1 x from st where t = 1 and ts > 1000 order by x desc limit 5",
    "groups": "select tbname, count(*), max(a) from st group by tbname having count(*) > 1",
    "interval": "select _wstart, avg(b) from st where ts >= 0 and ts < 9000 partition by t interval(2s, 1s) "
                "sliding(1s) fill(prev) slimit 1",
    "session": "select count(*) from c1 session(ts, 5s)",
    "event": "select count(*) from c1 event_window start with a > 1 end with a > 4",
    "join": "select x.a, y.a from c1 x left join c2 y on x.ts = y.ts",
    "union": "select a from c1 union all select a from c2 order by a",
    "interp": "select _irowts, interp(a) from c1 range(0, 5000) every(1s) fill(linear)",
    "series": "select diff(a) from st partition by tbname",
    "pick": "select top(a, 3) from st partition by tbname",
    "last_of_all": "select last(*) from st",
    "subquery": "select sum(c) from (select count(*) c from st partition by tbname interval(1m))",
    "distinct_tags": "select distinct tbname, t from st",
    "constants": "select 1 + 1",
}


@pytest.fixture(scope="module")
def db() -> Harness:
    """A super table with two children."""
    harness = Harness()
    harness.create("st", {"a": INT, "b": DOUBLE, "s": DataType(Kind.VARCHAR, 8)}, {"t": INT})
    harness.child("c1", "st", 1)
    harness.child("c2", "st", 2)
    return harness


@pytest.mark.parametrize("name", QUERIES)
def test_tree(db: Harness, name: str) -> None:
    """The tree is the one in the file; it holds no numbers that change from run to run."""
    text = db.explain(f"explain {QUERIES[name]}")
    path = GOLDEN / f"{name}.txt"
    assert text == path.read_text(encoding="utf-8")
    assert text == db.explain(QUERIES[name])
