"""Joins of every kind, against pairs of rows that plain Python finds."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import duckdb
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.query_harness import Harness

from penstock.common.errors import InvalidStatementError, PenstockError
from penstock.sql.types import INT, VARCHAR, Precision

CONNECTION = duckdb.connect(config={"threads": 1})
Rows = list[tuple[int, int]]
Pair = tuple[int | None, int | None]


def loaded(left: Rows, right: Rows) -> Harness:
    harness = Harness(connection=CONNECTION)
    for name, rows in (("a", left), ("b", right)):
        harness.create(name, {"v": INT, "g": INT})
        harness.insert(name, [(ts, ts, g) for ts, g in rows])
    return harness


ROWS = st.dictionaries(st.integers(0, 12), st.integers(0, 2), max_size=8).map(lambda found: sorted(found.items()))


def driven(left: Rows, right: Rows, matches: Callable[[tuple[int, int]], Rows]) -> list[Pair]:
    """Each left row with its matches, or with None."""
    pairs: list[Pair] = []
    for row in left:
        found = matches(row)
        pairs += [(row[0], other[0]) for other in found] or [(row[0], None)]
    return pairs


def key(pair: Pair) -> tuple[int, int]:
    return tuple(-1 if value is None else value for value in pair)  # type: ignore[return-value]


@settings(max_examples=times(10, 250), deadline=None)
@given(ROWS, ROWS)
def test_joins(left: Rows, right: Rows) -> None:
    """Each kind of join gives the pairs that its definition says."""
    harness = loaded(left, right)
    equal = driven(left, right, lambda row: [other for other in right if other[0] == row[0]])
    inner = [pair for pair in equal if pair[1] is not None]
    missing: list[Pair] = [(None, ts) for ts, _ in right if ts not in dict(left)]
    same_group = driven(left, right, lambda row: [o for o in right if o[0] <= row[0] and o[1] == row[1]][-1:])
    expected = {
        "a, b where a.ts = b.ts": inner,
        "a join b on a.ts = b.ts": inner,
        "a left join b on a.ts = b.ts": equal,
        "a right join b on a.ts = b.ts": inner + missing,
        "a full join b on a.ts = b.ts": equal + missing,
        "a left semi join b on a.ts = b.ts": inner,
        "a left anti join b on a.ts = b.ts": [pair for pair in equal if pair[1] is None],
        "a right anti join b on a.ts = b.ts": missing,
        "a left join b on a.ts = b.ts + 2a": driven(
            left, right, lambda row: [other for other in right if other[0] + 2 == row[0]]),
        "a left asof join b": driven(left, right, lambda row: [o for o in right if o[0] <= row[0]][-1:]),
        "a left asof join b on a.ts < b.ts": driven(left, right, lambda row: [o for o in right if o[0] > row[0]][:1]),
        "a left asof join b on a.ts >= b.ts and a.g = b.g": same_group,
        "a left asof join b on a.ts > b.ts jlimit 2": driven(
            left, right, lambda row: [o for o in right if o[0] < row[0]][-2:]),
        "a left window join b window_offset(-2a, 3a)": driven(
            left, right, lambda row: [o for o in right if row[0] - 2 <= o[0] <= row[0] + 3]),
        "a left window join b on a.g = b.g window_offset(-2a, 3a) jlimit 1": driven(
            left, right, lambda row: [o for o in right if row[0] - 2 <= o[0] <= row[0] + 3 and o[1] == row[1]][:1]),
    }
    for source, pairs in expected.items():
        got = harness.query(f"select a.v, b.v from {source}")
        assert sorted(got, key=key) == sorted(pairs, key=key), source  # type: ignore[arg-type]


def test_window_join_aggregates_per_left_row() -> None:
    """Over a window join each left row is a group, and first and last follow the time of the right rows."""
    harness = loaded([(0, 0), (5, 1)], [(1, 0), (2, 0), (6, 1)])
    query = ("select a.ts, count(b.*), first(b.v), last(b.v) from a left window join b window_offset(-1a, 2a) "
             "having(count(*) > {}) order by a.ts")
    assert harness.query(query.format(0)) == [(0, 2, 1, 2), (5, 1, 6, 6)]
    assert harness.query(query.format(1)) == [(0, 2, 1, 2)]


def test_window_join_picks_rows_per_left_row() -> None:
    """TOP and its kin pick from what each left row met, as aggregates are computed over it."""
    harness = loaded([(0, 0), (2, 1), (9, 0)], [(1, 5), (2, 7), (3, 6)])
    source = "from a left window join b window_offset(-2a, 2a) order by a.ts"
    assert harness.query(f"select a.ts, top(b.g, 1) {source}") == [(0, 7), (2, 7)]
    assert harness.query(f"select a.ts, bottom(b.g, 1) {source}") == [(0, 5), (2, 5)]
    assert harness.query(f"select a.ts, tail(b.v, 1) {source}") == [(0, 2), (2, 3), (9, None)]


@pytest.mark.parametrize(("join", "driving"), [("a left window join b", "a"), ("b right window join a", "a")])
def test_the_time_of_the_driving_rows_is_the_time_line_of_window_join_aggregates(join: str, driving: str) -> None:
    """Around them functions run along it, and windows are made of it; the other side's time is none."""
    harness = loaded([(0, 0), (2, 1), (9, 0)], [(1, 5), (2, 7), (3, 6)])
    inner = f"(select {driving}.ts, count(b.v) n from {join} window_offset(-2a, 2a))"
    assert harness.query(f"select ts, csum(n) from {inner}") == [(0, 2), (2, 5), (9, 5)]
    assert harness.query(f"select _wstart, sum(n) from {inner} interval(4a)") == [(0, 5), (8, 0)]
    with pytest.raises(InvalidStatementError, match="time line"):
        harness.query(f"select csum(n) from (select b.ts, first(b.v) n from {join} window_offset(-2a, 2a))")


def test_conditions_on_the_left_table_only_decide_matching() -> None:
    """A row of the driving table stays, whatever ON says about it; WHERE removes it."""
    harness = loaded([(0, 0), (1, 1)], [(0, 0), (1, 1)])
    assert harness.query("select a.v, b.v from a left join b on a.ts = b.ts and a.v > 0 order by a.v") == [
        (0, None), (1, 1)]
    assert harness.query("select a.v, b.v from a left join b on a.ts = b.ts where a.v > 0") == [(1, 1)]


def test_windows_over_joined_rows() -> None:
    """The time line of a join is that of its main table."""
    harness = loaded([(0, 0), (4, 1), (5, 1)], [(0, 0), (4, 1), (5, 1)])
    assert harness.query("select _wstart, count(*) from a join b on a.ts = b.ts interval(4a)") == [(0, 1), (4, 2)]


@pytest.mark.parametrize("source", [
    "a left join b",
    "a join b on a.ts between b.ts + 1s and b.ts - 1s",
    "a left window join b window_offset(-1u, 1u)",
    "a left window join b window_offset(-1n, 1n)",
    "a asof join b",
    "a full window join b window_offset(-1s, 1s)",
    "a left asof join b on a.ts >= b.ts and a.ts <= b.ts + 1s",
    "a left window join b on a.ts = b.ts window_offset(-1s, 1s)",
    "a join a on a.ts = a.ts",
])
def test_joins_that_are_refused(source: str) -> None:
    """A join that can find nothing, or says of times what its kind says, is an error that tells the place."""
    harness = loaded([], [])
    with pytest.raises(PenstockError) as caught:
        harness.plan(f"select count(*) from {source}")
    assert caught.value.position is not None


Keyed = list[tuple[int, int, int | None]]  # time, child table, key
SIDES = st.lists(st.tuples(st.integers(-6, 9), st.integers(0, 2), st.sampled_from([0, 1, None])), max_size=8,
                 unique_by=lambda row: row[:2])
OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def two_super_tables(left: Keyed, right: Keyed, precision: Precision = "ms") -> Harness:
    """Super tables s and t of three children each; `n` numbers the rows of a side."""
    harness = Harness(connection=CONNECTION, precision=precision)
    for table, rows in (("s", left), ("t", right)):
        harness.create(table, {"n": INT, "k": INT}, {"g": INT})
        for child in range(3):
            harness.child(f"{table}{child}", table, child)
            harness.insert(f"{table}{child}", [
                (ts, number, k) for number, (ts, of, k) in enumerate(rows) if of == child])
    return harness


def same(got: Iterable[object], expected: Iterable[object]) -> bool:
    """Whether both have the same rows, in whatever order."""
    return sorted(map(repr, got)) == sorted(map(repr, expected))


@settings(max_examples=times(16, 400), deadline=None)
@given(SIDES, SIDES, st.sampled_from(sorted(OPERATORS)), st.integers(1, 4), st.booleans(), st.booleans())
def test_asof_joins(left: Keyed, right: Keyed, sign: str, limit: int, keyed: bool, right_drives: bool) -> None:
    """Each driving row meets the nearest rows in time, as many as JLIMIT says, nearest first; or none."""
    harness = two_super_tables(left, right)
    on = f"s.ts {sign} t.ts" + (" and s.k = t.k" if keyed else "")
    word = "right" if right_drives else "left"
    got = harness.query(f"select s.n, t.n from s {word} asof join t on {on} jlimit {limit}")
    before = (sign in (">", ">=")) != right_drives
    expected: list[tuple[object, ...]] = []
    driving, others = (right, left) if right_drives else (left, right)
    for number, (ts, _, k) in enumerate(driving):
        pairs = [(other[:2], n) for n, other in enumerate(others)
                 if OPERATORS[sign](*((other[0], ts) if right_drives else (ts, other[0])))
                 and (not keyed or (k is not None and k == other[2]))]
        chosen: list[int | None] = [n for _, n in sorted(pairs, reverse=before)[:limit]]
        expected += [(n, number) if right_drives else (number, n) for n in chosen or [None]]
    assert same(got, expected)


def of_every_kind(left: int, right: int, matches: Callable[[int, int], bool],
                  rank: Callable[[int], tuple[int, ...]]) -> dict[str, list[Pair]]:
    """What each kind of join gives of so many rows on each side, as numbers of rows.

    The partner of a SEMI join is the first by `rank`.
    """
    met = {i: [j for j in range(right) if matches(i, j)] for i in range(left)}
    pairs: list[Pair] = [(i, j) for i, partners in met.items() for j in partners]
    lonely_left: list[Pair] = [(i, None) for i, partners in met.items() if not partners]
    lonely_right: list[Pair] = [(None, j) for j in range(right) if all(j not in partners for partners in met.values())]
    return {
        "join": pairs, "left join": pairs + lonely_left, "right join": pairs + lonely_right,
        "full join": pairs + lonely_left + lonely_right,
        "left semi join": [(i, min(partners, key=rank)) for i, partners in met.items() if partners],
        "left anti join": lonely_left, "right anti join": lonely_right,
    }


@settings(max_examples=times(16, 400), deadline=None)
@given(SIDES, SIDES, st.integers(-3, 3), st.integers(0, 4), st.booleans(), st.sampled_from(["ms", "us", "ns"]),
       st.integers(0, 3))
def test_joins_within_a_range_of_time(left: Keyed, right: Keyed, start: int, length: int, keyed: bool,
                                      precision: Precision, spelling: int) -> None:
    """Rows meet that are at most so far apart in time, however the range is written, whatever the precision."""
    unit = {"ms": "a", "us": "u", "ns": "b"}[precision]
    end = start + length
    harness = two_super_tables(left, right, precision)
    on = (
        f"s.ts between t.ts + {start}{unit} and t.ts + {end}{unit}",
        f"s.ts >= t.ts + {start}{unit} and t.ts + {end + 1} > s.ts",
        f"t.ts between s.ts - {end}{unit} and s.ts - {start}{unit}",
        f"s.ts - {end}{unit} <= t.ts and t.ts < s.ts - {start - 1}{unit}",
    )[spelling].replace("+ -", "- ").replace("- -", "+ ") + (" and s.k = t.k" if keyed else "")

    def matches(i: int, j: int) -> bool:
        (ts, _, k), (other, _, other_k) = left[i], right[j]
        return start <= ts - other <= end and (not keyed or (k is not None and k == other_k))

    kinds = of_every_kind(len(left), len(right), matches, lambda j: right[j][:2])
    for words, expected in kinds.items():
        assert same(harness.query(f"select s.n, t.n from s {words} t on {on}"), expected), (words, on)
    assert same(harness.query(f"select s.n, t.n from s, t where {on}"), kinds["join"])


@settings(max_examples=times(10, 250), deadline=None)
@given(SIDES, SIDES, SIDES)
def test_ranges_from_a_time_of_joined_rows(one: Keyed, two: Keyed, three: Keyed) -> None:
    """Joined rows have the times of both sides: a range may go from either, and is as long as it says for that one."""
    harness = two_super_tables(one, two)
    harness.create("u", {"n": INT, "k": INT})
    last = {ts: (number, k) for number, (ts, _, k) in enumerate(three)}
    harness.insert("u", [(ts, number, k) for ts, (number, k) in last.items()])
    pairs = [(i, j) for i, (ts, _, k) in enumerate(one) for j, (other, _, other_k) in enumerate(two)
             if k is not None and k == other_k and -4 <= other - ts <= 4]
    expected = [(i, j, number) for i, j in pairs for ts, (number, k) in last.items()
                if k is not None and k == one[i][2] and -1 <= ts - two[j][0] <= 1]
    joined = "s join t on s.k = t.k and t.ts between s.ts - 4a and s.ts + 4a join u on u.k = s.k"
    got = harness.query(f"select s.n, t.n, u.n from {joined} and u.ts between t.ts - 1a and t.ts + 1a")
    assert same(got, expected)


@settings(max_examples=times(10, 250), deadline=None)
@given(SIDES, st.lists(st.sampled_from([0, 1, 2, None]), max_size=6))
def test_lookups(rows: Keyed, places: list[int | None]) -> None:
    """Rows meet all rows of a normal table that have their value, or the tags of the child table that has it."""
    harness = two_super_tables(rows, [])
    harness.create("p", {"n": INT, "k": INT})
    harness.insert("p", [(ts, ts, k) for ts, k in enumerate(places)])

    def matches(i: int, j: int) -> bool:
        return rows[i][2] is not None and rows[i][2] == places[j]

    kinds = of_every_kind(len(rows), len(places), matches, lambda j: (j,))
    for words in ("join", "left join", "left semi join", "left anti join"):
        assert same(harness.query(f"select s.n, p.n from s {words} p on s.k = p.k"), kinds[words]), words
    assert same(harness.query("select s.n, p.n from p right join s on s.k = p.k"), kinds["left join"])
    tagged = harness.query("select s.n, x.g from s left join (select tags tbname, g from t) x on s.k = x.g")
    assert same(tagged, ((n, row[2]) for n, row in enumerate(rows)))


def test_times_that_are_truncated_alike_go_by_their_order() -> None:
    """Of rows whose truncated times are equal an ASOF join takes those that are last, or first, in time."""
    harness = Harness(connection=CONNECTION)
    for table, found in (("a", [1500, 2600]), ("b", [100, 1100, 1200, 1900, 3000, 3100])):
        harness.create(table, {"v": INT})
        harness.insert(table, [(ts, ts) for ts in found])
    for sign, limit, expected in (
        (">=", 1, [(1500, 1900), (2600, 1900)]),
        (">=", 2, [(1500, 1900), (1500, 1200), (2600, 1900), (2600, 1200)]),
        ("<", 2, [(1500, 3000), (1500, 3100), (2600, 3000), (2600, 3100)]),
        ("<=", 1, [(1500, 1100), (2600, 3000)]),
    ):
        got = harness.query("select a.v, b.v from a left asof join b "
                            f"on timetruncate(a.ts, 1s) {sign} timetruncate(b.ts, 1s) jlimit {limit}")
        assert got == expected, (sign, limit)


def test_asof_joins_compare_values_of_different_types_as_conditions_do() -> None:
    """Two texts may equal one number: the nearest rows of either text are found."""
    harness = loaded([(5, 1)], [])
    harness.create("c", {"k": VARCHAR})
    harness.insert("c", [(1, "1"), (2, "01"), (3, "1"), (4, "2")])
    for limit, expected in ((1, [3]), (2, [3, 2]), (3, [3, 2, 1])):
        got = harness.query(f"select c.ts from a left asof join c on a.g = c.k jlimit {limit}")
        assert [ts for (ts,) in got] == expected


ANYTHING: dict[str, Callable[[tuple[int, int, int | None], tuple[int, int, int | None]], bool]] = {
    "s.k = t.k": lambda s, t: s[2] is not None and s[2] == t[2],
    "s.ts >= t.ts": lambda s, t: s[0] >= t[0],
    "s.k < t.k or s.ts = t.ts + 1": lambda s, t: (
        s[2] is not None and t[2] is not None and s[2] < t[2]) or s[0] == t[0] + 1,
    "s.k is null": lambda s, t: s[2] is None,
}


@settings(max_examples=times(12, 300), deadline=None)
@given(SIDES, SIDES, st.sampled_from(sorted(ANYTHING)))
def test_queries_join_on_anything(left: Keyed, right: Keyed, condition: str) -> None:
    """Without a condition on both times, and with one that bounds them in one direction only."""
    harness = two_super_tables(left, right)
    expected = of_every_kind(
        len(left), len(right), lambda i, j: ANYTHING[condition](left[i], right[j]), lambda j: (right[j][0], j))
    for kind in ("join", "left join", "right join", "full join"):
        assert same(harness.query(f"select s.n, t.n from s {kind} t on {condition}"), expected[kind]), kind


def test_a_join_without_times_has_the_time_line_of_its_main_table() -> None:
    """A lookup's is that of the rows that look up, whichever side they are."""
    harness = Harness(connection=CONNECTION)
    harness.create("s", {"n": INT}, {"g": INT})
    harness.create("p", {"n": INT})
    for source in ("p join s on s.n = p.n", "s left join p on s.n = p.n", "p right join s on s.n = p.n"):
        harness.plan(f"select _wstart, count(*) from {source} interval(1s)")


@pytest.mark.parametrize("clauses", ["group by a.g", "partition by a.g", "interval(1s)"])
def test_window_joins_group_by_themselves(clauses: str) -> None:
    """Over a window join there is no grouping but that by driving row; a sub-query's rows may be grouped."""
    harness = loaded([(0, 0), (5, 1)], [(1, 0), (2, 0), (6, 1)])
    with pytest.raises(InvalidStatementError, match="groups rows itself"):
        harness.plan(f"select count(*) from a left window join b window_offset(-1a, 2a) {clauses}")
    assert harness.query("select g, sum(c) from (select a.g g, count(b.v) c from a left window join b "
                         "window_offset(-1a, 2a)) group by g order by g") == [(0, 2), (1, 1)]


def test_full_joins_have_no_time_line() -> None:
    """Rows of both sides may lack a partner: a window over them has no time to go by."""
    harness = loaded([(0, 0)], [(1, 0)])
    with pytest.raises(InvalidStatementError, match="time line"):
        harness.plan("select _wstart, count(*) from a full join b on a.ts = b.ts interval(1s)")


def test_rows_are_numbered_for_what_goes_by_their_order_alone() -> None:
    """To number joined rows costs more than to add them up."""
    harness = loaded([], [])
    source = "from a join b on a.g = b.g group by a.g"
    assert "row_number" not in harness.plan(f"select a.g, sum(b.v), max(a.v), count(*) {source}").sql
    assert "row_number" in harness.plan(f"select a.g, first(b.v) {source}").sql


@pytest.mark.parametrize(("source", "by", "found"), [
    ("a join b on a.ts = b.ts", "hash", "HASH_JOIN"),
    ("a full join b on a.ts between b.ts and b.ts + 1s and a.g = b.g", "hash", "HASH_JOIN"),
    ("a left join b on a.g = b.g", "hash", "HASH_JOIN"),
    ("a, b where (a.g = b.g and a.v = 1) or (b.v = 2 and (a.g = b.g)) or (a.g = b.g)", "hash", "HASH_JOIN"),
    ("a join b on a.ts between b.ts and b.ts + 1s", "sorted times", "IE_JOIN"),
    ("a left window join b window_offset(-1s, 1s)", "sorted times", "IE_JOIN"),
    ("a left asof join b", "asof", "ASOF_JOIN"),
    ("a right asof join b on a.g = b.g", "asof", "ASOF_JOIN"),
])
def test_explain_tells_how_pairs_are_found(source: str, by: str, found: str) -> None:
    """What EXPLAIN says of a join is what DuckDB's own plan does with larger tables."""
    harness = loaded([], [])
    query = f"select a.v, b.v from {source}"
    assert f"by={by}" in harness.explain(query)
    plan = harness.plan(query)
    connection = duckdb.connect(config={"threads": 1})
    for setting in ("nested_loop_join_threshold", "merge_join_threshold", "asof_loop_join_threshold"):
        connection.execute(f"SET {setting} = 0")
    for scan in plan.scans:
        connection.execute(f"CREATE TABLE {scan.name} AS SELECT range * 1000 AS ts, range::INT AS v, range::INT AS g, "
                           "1::UBIGINT AS _tuid FROM range(1000)")
    shown = str(connection.execute(f"EXPLAIN (FORMAT json) {plan.sql}").fetchall())
    joins = ("HASH_JOIN", "IE_JOIN", "ASOF_JOIN", "NESTED_LOOP_JOIN", "PIECEWISE_MERGE_JOIN", "CROSS_PRODUCT")
    assert [word for word in joins if word in shown] == [found]


@pytest.mark.parametrize("source", [
    *(f"a {kind} join b on a.g = b.g and a.ts between b.ts - 3s and b.ts + 4s"
      for kind in ("", "left", "right", "full", "left semi", "right anti")),
    *(f"a {kind} window join b on a.g = b.g window_offset(-3s, 4s)" for kind in ("left", "right")),
])
def test_rows_of_equal_keys_are_not_all_paired(source: str) -> None:
    """Every hash join is also one of times: of rows with equal keys only those nearby are paired."""
    plan = loaded([], []).plan(f"select a.v, b.v from {source}")
    connection = duckdb.connect(config={"threads": 1})
    for scan in plan.scans:
        connection.execute(f"CREATE TABLE {scan.name} AS SELECT range * 1000 AS ts, range::INT AS v, 1 AS g, "
                           "1::UBIGINT AS _tuid FROM range(3000)")
    shown = json.loads(connection.execute(f"EXPLAIN (FORMAT json) {plan.sql}").fetchall()[0][1])
    hashed = [conditions for conditions in hash_joins(shown[0]) if "#piece" in conditions]
    assert hashed
    assert all("g = g" in conditions for conditions in hashed)


def hash_joins(node: dict[str, Any]) -> Iterator[str]:
    """Yields the conditions of the hash joins of a plan of DuckDB's."""
    if node["name"].strip() == "HASH_JOIN":
        yield str(node["extra_info"]["Conditions"])
    for child in node["children"]:
        yield from hash_joins(child)
