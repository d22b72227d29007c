"""Joins of every kind, against pairs of rows that plain Python finds."""

from __future__ import annotations

import operator
from collections.abc import Callable

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from query_harness import Harness

from penstock.common.errors import InvalidStatementError
from penstock.sql.types import INT

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


@settings(max_examples=25, deadline=None)
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
    "a join b on a.v = b.v",
    "a left join b",
    "a left window join b on a.ts = b.ts window_offset(-1s, 1s)",
    "a left window join b window_offset(1s, -1s)",
    "a join a on a.ts = a.ts",
])
def test_joins_that_are_refused(source: str) -> None:
    """A join without its condition on time, or with one where there is none, is an error."""
    harness = loaded([], [])
    with pytest.raises(InvalidStatementError):
        harness.plan(f"select count(*) from {source}")


SIDES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.sampled_from([0, 1, None])), max_size=8,
                 unique_by=lambda row: row[:2])
OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@settings(max_examples=25, deadline=None)
@given(SIDES, SIDES, st.sampled_from(sorted(OPERATORS)), st.integers(2, 4), st.booleans(), st.booleans())
def test_asof_joins_of_several_rows(
    left: list[tuple[int, int, int | None]], right: list[tuple[int, int, int | None]], sign: str, limit: int,
    keyed: bool, right_drives: bool,
) -> None:
    """Each driving row meets the nearest rows in time, as many as JLIMIT says, nearest first; or none."""
    harness = Harness(connection=CONNECTION)
    for table, rows in (("s", left), ("t", right)):
        harness.create(table, {"n": INT, "k": INT}, {"g": INT})
        for child in range(3):
            harness.child(f"{table}{child}", table, child)
            harness.insert(f"{table}{child}", [
                (ts, number, k) for number, (ts, of, k) in enumerate(rows) if of == child])
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
    assert sorted(map(repr, got)) == sorted(map(repr, expected))
