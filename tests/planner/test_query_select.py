"""Queries over rows: what each clause and function gives. Windows over time have tests of their own."""

from __future__ import annotations

import pytest
from kits.basics.query_harness import Harness, at

from penstock.sql.types import BOOL, DOUBLE, INT, DataType, Kind, timestamp

T0 = at("2024-01-01 00:00:00")
TEXT = DataType(Kind.VARCHAR, 20)


@pytest.fixture(scope="module")
def db() -> Harness:
    """Two child tables with rows and one without, a normal table, and one with a composite key."""
    harness = Harness(now_ms=at("2024-06-01 12:00:00"))
    harness.create("st", {"a": INT, "b": DOUBLE, "s": TEXT, "f": BOOL}, {"t": INT, "u": TEXT})
    harness.child("c1", "st", 1, "x")
    harness.child("c2", "st", 2, "y")
    harness.child("c3", "st", 3, None)
    harness.insert("c1", [(T0 + i * 1000, i if i != 3 else None, i * 1.5, "ab"[i % 2], i % 3 == 0) for i in range(8)])
    harness.insert("c2", [(T0 + 500 + i * 2000, i * 10, None, "z", None) for i in range(4)])
    harness.create("n", {"v": INT})
    harness.insert("n", [(T0 + i * 60_000, i) for i in range(5)])
    harness.create("k", {"id": INT, "v": INT}, key=True)
    harness.insert("k", [(T0, 1, 5), (T0, 2, 7), (T0 + 1000, 1, 9)])
    return harness


def shifted(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Rows with timestamps as milliseconds since T0."""
    return [tuple(value - T0 if isinstance(value, int) and value > 10**11 else value for value in row) for row in rows]


CASES: list[tuple[str, list[tuple[object, ...]]]] = [
    ("select * from n limit 1", [(0, 0)]),
    ("select * from st where t = 2 order by ts limit 1", [(500, 0, None, "z", None, 2, "y")]),
    ("select * from c2 order by ts limit 1", [(500, 0, None, "z", None)]),
    ("select t, u from c2 limit 1", [(2, "y")]),
    ("select _rowts, _c0 from n order by ts desc limit 1", [(240_000, 240_000)]),
    ("select ts, a, tbname from st where a > 2 order by a desc limit 2", [(6500, 30, "c2"), (4500, 20, "c2")]),
    ("select a from c1 where ts between '2024-01-01 00:00:01' and '2024-01-01 00:00:02' order by ts", [(1,), (2,)]),
    # Aggregates.
    ("select count(*), count(a), sum(a), avg(b), min(s), max(a) from st", [(12, 11, 85, 5.25, "a", 30)]),
    ("select sum(a) from c1 where a > 100", []),
    ("select sum(a), count(*) from c1 where a > 100", [(None, 0)]),
    ("select count() from c1 where a > 100", [(0,)]),
    ("select sum(a) from c1 where a is null", [(None,)]),
    ("select last(a) from c1 where a is null", []),
    ("select last(a), count(*) from c1 where a is null", [(None, 1)]),
    ("select hyperloglog(a) from c1 where a > 100", [(0,)]),
    ("select s, sum(a) + avg(b) from c1 group by s order by sum(a) desc", [("b", 19.0), ("a", 16.5)]),
    ("select a % 2 x, count(*) c from c1 group by x order by c desc", [(0.0, 4), (1.0, 3), (None, 1)]),
    ("select a % 2, count(*) from c1 group by a%2 order by 1", [(None, 1), (0.0, 4), (1.0, 3)]),
    ("select tbname, count(*) from st group by tbname having count(*) > 4", [("c1", 8)]),
    ("select tbname, t, u, count(*) from st partition by tbname", [("c1", 1, "x", 8), ("c2", 2, "y", 4)]),
    ("select tbname, t, count(*) from c1", [("c1", 1, 8)]),
    # Selection functions and their companions.
    ("select max(a), ts, tbname, t from st", [(30, 6500, "c2", 2)]),
    ("select last(*) from c1", [(7000, 7, 10.5, "b", False)]),
    ("select last(a, b) from c1", [(7, 10.5)]),
    ("select last_row(*), t from st", [(7000, 7, 10.5, "b", False, 1)]),
    ("select last_row(a), tbname from st partition by tbname", [(7, "c1"), (30, "c2")]),
    ("select first(a), first(b) from st group by tbname", [(0, 0.0), (0, None)]),
    ("select cols(last(a), ts, b as bb), cols(min(b), ts) from c1", [(7000, 10.5, 0)]),
    ("select last(v), first(v) from k", [(9, 5)]),
    ("select mode(s) from c1", [("a",)]),
    # Functions that pick rows or run along them.
    ("select top(a, 2), ts, tbname from st partition by tbname",
     [(6, 6000, "c1"), (7, 7000, "c1"), (20, 4500, "c2"), (30, 6500, "c2")]),
    ("select top(a, 1) - 1 from c1", [(6.0,)]),
    ("select bottom(a, 1), ts from c1 interval(4s)", [(0, 0), (4, 4000)]),
    ("select _wstart, tail(a, 1) from c1 session(ts, 1s)", [(0, 7)]),
    ("select tail(a, 2, 1) from c1", [(5,), (6,)]),
    ("select unique(s), ts from c1", [("a", 0), ("b", 1000)]),
    ("select diff(a), ts from c1 where a < 5 or a is null", [(1, 1000), (1, 2000), (None, 3000), (2, 4000)]),
    ("select diff(a, 2) from c1 where a < 5 or a is null", [(1,), (1,), (2,)]),
    ("select derivative(b, 2s, 0) from c1 limit 1", [(3.0,)]),
    ("select lag(a, 1), lead(a, 2, -1), ts from c1 where a < 3 or a is null",
     [(None, 2, 0), (0, None, 1000), (1, -1, 2000), (2, -1, 3000)]),
    ("select fill_forward(a), a from c1 where a < 5 or a is null", [(0, 0), (1, 1), (2, 2), (2, None), (4, 4)]),
    ("select csum(a) from c1 limit 4", [(0,), (1,), (3,), (7,)]),
    ("select mavg(a, 2) from c1 limit 2", [(0.5,), (1.5,)]),
    ("select stateduration(a, 'GT', 2, 1s) from c1 where a is not null",
     [(-1,), (-1,), (-1,), (0,), (1,), (2,), (3,)]),
    ("select twa(b), elapsed(ts, 1s), irate(a) from c1", [(5.25, 7.0, 1.0)]),
    ("select elapsed(ts) from c1 interval(3s)", [(3000.0,), (3000.0,), (1000.0,)]),
    # DISTINCT, order, limits.
    ("select distinct s from c1 order by s desc", [("b",), ("a",)]),
    ("select distinct tbname from st order by tbname", [("c1",), ("c2",), ("c3",)]),
    ("select distinct t from st where u is null", [(3,)]),
    ("select tags t, tbname from st order by t", [(1, "c1"), (2, "c2"), (3, "c3")]),
    ("select tags * from c2", [(2, "y")]),
    ("select v from n order by v limit 1, 2", [(1,), (2,)]),
    ("select a from c1 order by a nulls last limit 1", [(0,)]),
    ("select a from c1 order by a limit 1", [(None,)]),
    ("select a from c1 order by a desc nulls first limit 1", [(None,)]),
    ("select a from c1 order by b desc limit 1", [(7,)]),
    ("select count(*) from (select ts from st partition by tbname limit 2)", [(4,)]),
    ("select count(*) from (select ts from st partition by tbname limit 2 offset 3)", [(3,)]),
    ("select tbname, count(*) from st partition by tbname interval(1d) slimit 1 soffset 1", [("c2", 4)]),
    ("select count(*) from st group by tbname limit 1", [(8,)]),
    ("select ts, tbname from st partition by tbname order by ts limit 2", [(0, "c1"), (500, "c2")]),
    # Sub-queries and UNION.
    ("select * from (select ts, a + 1 x from c1) where x > 6 order by ts", [(6000, 7.0), (7000, 8.0)]),
    ("select _wstart, max(x) from (select ts, a + 1 x from c1) interval(4s)", [(0, 3.0), (4000, 8.0)]),
    ("select tbname, c from (select tbname, count(*) c from st group by tbname) order by c", [("c2", 4), ("c1", 8)]),
    ("select max(c) from (select _wstart w, count(*) c from c1 interval(3s)) interval(1m)", [(3,)]),
    ("select * from (select a, a from c1 where a = 1)", [(1, 1)]),
    ("select x.ts, y.q from (select ts from c1) x join (select ts, s q from c1) y on x.ts = y.ts limit 1", [(0, "a")]),
    ("select 1 union all select 2.5 order by 1 desc", [(2.5,), (1.0,)]),
    ("select s from c1 union select s from c2 order by s limit 2", [("a",), ("b",)]),
    ("(select v from n order by v desc limit 1) union all (select v from n order by v limit 1)", [(4,), (0,)]),
    # No FROM.
    ("select 1 + 1, 'x' y", [(2.0, "x")]),
    ("select 1 where 1 > 2", []),
    ("select count(*), _qstart, _qend from c1 where ts >= '2024-01-01' and ts < '2024-01-02'", [(8, 0, 86_399_999)]),
]


@pytest.mark.parametrize(("query", "expected"), CASES, ids=[case[0] for case in CASES])
def test_result(db: Harness, query: str, expected: list[tuple[object, ...]]) -> None:
    """The query gives these rows."""
    assert shifted(db.query(query)) == expected


@pytest.mark.parametrize(("query", "names"), [
    ("select * from n", ["ts", "v"]),
    ("select V, count(*) as c from n group by v", ["V", "c"]),
    ("select SUM( v ) from n", ["SUM( v )"]),
    ("select last(*) from n", ["last(ts)", "last(v)"]),
    ("select v, v from n", ["v", "v"]),
    ("select x.* from (select v w from n) x", ["w"]),
    ("select a.v, b.v from n a, n b where a.ts = b.ts", ["a.v", "b.v"]),
])
def test_column_names(db: Harness, query: str, names: list[str]) -> None:
    """Columns are named by their alias or as they were typed."""
    assert db.arrow(query).column_names == names


def test_only_used_columns_are_scanned(db: Harness) -> None:
    """A scan reads the columns that the query uses and the range of time that WHERE leaves."""
    scan = db.plan(f"select sum(a) from st where u = 'x' and ts > {T0} and ts <= {T0 + 500} and b < 3").scans[0]
    assert set(scan.columns) == {"a", "u", "ts", "b"}
    assert (scan.first_ts, scan.last_ts) == (T0 + 1, T0 + 500)


@pytest.mark.parametrize(("condition", "bounds"), [
    ("ts = '2024-01-01 00:00:00'", (T0, T0)),
    ("'2024-01-01' < ts", (T0 + 1, None)),
    ("ts >= now - 1d and ts < now", (at("2024-05-31 12:00:00"), at("2024-06-01 12:00:00") - 1)),
    ("ts in (5, 3)", (3, 5)),
    ("ts = 3 or ts = 7", (3, 7)),
    ("ts > 3 or v = 1", (None, None)),
    ("not ts > 3", (None, None)),
    ("v > 3", (None, None)),
    ("ts between 3 and 9 and (ts < 8)", (3, 7)),
])
def test_time_bounds(db: Harness, condition: str, bounds: tuple[int | None, int | None]) -> None:
    """WHERE narrows the time range of a scan where it can."""
    scan = db.plan(f"select * from n where {condition}").scans[0]
    assert (scan.first_ts, scan.last_ts) == bounds


@pytest.mark.parametrize(("condition", "children"), [
    ("t = 2", ["c2"]),
    ("tbname in ('c1', 'c3') and a > 1", ["c1", "c3"]),
    ("t < 3 and (u = 'y' or u is null)", ["c2"]),
    ("t = 1 or a = 1", None),
    ("a = 1", None),
    ("u like 'q%'", []),
])
def test_conditions_on_tags_narrow_the_scan(db: Harness, condition: str, children: list[str] | None) -> None:
    """A scan of a super table names the child tables that the conditions on tags leave."""
    tuids = db.plan(f"select sum(a) from st where {condition}").scans[0].tuids
    assert tuids == (None if children is None else tuple(db.tables[name].uid for name in children))


@pytest.mark.parametrize(("condition", "ranges"), [
    (f"at >= {T0} and v > 1 and {T0 + 5} > at", (("at", T0, T0 + 4),)),
    (f"at = {T0} or at is null", ()),
    (f"at in ({T0}, {T0 + 9}) and until <= {T0}", (("at", T0, T0 + 9), ("until", None, T0))),
    (f"n.ts >= {T0} and at > n.ts", ()),
])
def test_bounds_of_other_timestamps(condition: str, ranges: tuple[tuple[str, int | None, int | None], ...]) -> None:
    """The scan gets what the conditions say of timestamps that aren't primary, in joins as well."""
    harness = Harness()
    harness.create("n", {"v": INT, "at": timestamp("ms"), "until": timestamp("ms")})
    harness.create("o", {"w": INT})
    for query in (f"select count(v) from n where {condition}",
                  f"select n.v from o left join n on o.ts = n.ts where {condition}"):
        assert next(scan for scan in harness.plan(query).scans if scan.table.name == "n").ranges == ranges


@pytest.mark.parametrize(("query", "checked"), [
    (f"select v from n where ts >= {T0} and ts < {T0 + 9}", "WHERE TRUE"),
    (f"select v from n where ts between {T0} and {T0 + 9} and v > 1", 'WHERE "v" > CAST(1 AS BIGINT)'),
    (f"select v from n where ts = {T0} or v > 1", f'WHERE "ts" = CAST({T0} AS BIGINT) OR'),
    (f"select v from n where ts in ({T0}, {T0 + 9})", f'WHERE "ts" IN (CAST({T0} AS BIGINT)'),
    (f"select m.v from k left join n m on k.ts = m.ts where m.ts < {T0}", f'" < CAST({T0} AS BIGINT)'),
])
def test_bounds_of_a_scan_are_not_checked_again(db: Harness, query: str, checked: str) -> None:
    """The rows of one table lie inside of them; those that an outer join makes may not."""
    assert checked in db.plan(query).sql


def test_queries_in_expressions_name_nothing(db: Harness) -> None:
    """What such a query reads stands where it reads it: DuckDB computes what WITH names for all rows around it."""
    plan = db.plan("select v from n where v > (select avg(x) from (select k.v x from k, n m where k.v = n.v) y)")
    assert "WITH" not in plan.sql.removeprefix("WITH")


def test_names_that_read_each_other_twice_are_planned_a_bounded_number_of_times(db: Harness) -> None:
    """DuckDB would copy what is read for each that reads it, and so copies of copies."""
    def query(count: int) -> str:
        names = [f"a{n} as (select x.v from a{n - 1} x join a{n - 1} y on x.v = y.v)" for n in range(1, count)]
        return f"with a0 as (select v from n), {', '.join(names)} select v from a{count - 1} order by v limit 1"

    assert " AS MATERIALIZED " not in db.plan(query(6)).sql
    assert db.plan(query(11)).sql.count(" AS MATERIALIZED ") == 1
    assert db.query(query(11)) == [(0,)]
    assert db.explain(query(11)).count("With: name=a0\n") == 2
    assert db.explain(query(11)).count("Scan: ") == 1


@pytest.mark.parametrize(("distinct", "limit"), [
    ("", "limit 1"), ("distinct", "limit 1 offset (select 2)"), ("", "offset 3")])
def test_what_is_read_twice_is_computed_before_limit(db: Harness, distinct: str, limit: str) -> None:
    """DuckDB 2.0.0 would wait for ever."""
    rows = "with a as (select range v from range(200000)) select"
    query = f"{rows} {distinct} x.v from a x join a y on x.v = y.v {limit}"
    assert " LIMIT 100 %) " in db.plan(query).sql
    assert db.query(query)


@pytest.mark.parametrize("query", [
    "select v from n limit 1",
    "with recursive r as (select 1 x union all select x + 1 from r) select x from r limit 3",
    "with a as (select v from n) select x.v from a x join a y on x.v = y.v order by v limit 1"])
def test_limit_ends_other_queries_early(db: Harness, query: str) -> None:
    """Where nothing is read twice, rows have an order, or the query repeats itself."""
    assert "%" not in db.plan(query).sql
    assert db.query(query)


def test_columns_called_as_pseudo_columns_are_columns_like_others() -> None:
    """Results of streams have `_wstart`, which is computed with; beside a window that is the start of the window."""
    results = Harness()
    results.create("out", {"_wstart": timestamp("ms"), "k": INT})
    results.insert("out", [(1, 5, 3), (2, 1006, 4)])
    assert results.query("SELECT CAST(_wstart AS BIGINT) + 1 FROM out WHERE _wstart > 5") == [(1007,)]
    assert results.query("SELECT max(_wstart) FROM out") == [(1006,)]
    assert results.query("SELECT _wstart, sum(k) FROM out GROUP BY _wstart ORDER BY _wstart") == [(5, 3), (1006, 4)]
    assert results.query("SELECT _wstart, count(*) FROM out INTERVAL(1s)") == [(0, 2)]
    assert results.query("SELECT `max(k)` FROM (SELECT max(k) FROM out)") == [(4,)]
