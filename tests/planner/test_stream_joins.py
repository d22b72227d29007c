"""What the planner makes of the join that a stream asks for: keys, range of time, what is kept, and where rows meet."""

from __future__ import annotations

import operator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.query_harness import Harness

from penstock.common.errors import InvalidStatementError, InvalidStreamError, NotFoundError, NotSupportedError
from penstock.planner.streams.stream_joins import StreamJoin, read_stream_join
from penstock.planner.streams.stream_planner import plan_stream
from penstock.planner.task_plans.stream_plan import JoinPlan
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Database, DatabaseOptions, Session
from penstock.sql.tree.statements import CreateStream, JoinSource
from penstock.sql.types import INT

SESSION = Session("db", "UTC", 0)
LENGTHS = st.integers(-9, 9)
SIGNS = {"<": operator.lt, "<=": operator.le, "=": operator.eq, ">=": operator.ge, ">": operator.gt}


class Catalog(Harness):
    """Super tables s and t, child tables s0 of s and t0, t1 of t, and a normal table p, over three vgroups."""

    def __init__(self, vgroups: int = 3) -> None:
        super().__init__()
        self.vgroups = vgroups
        for name in "st":
            self.create(name, {"v": INT, "k": INT}, {"g": INT})
        self.create("p", {"w": INT, "k": INT})
        for name, of, vgroup in (("s0", "s", 1), ("t0", "t", 1), ("t1", "t", 2)):
            self.child(name, of, 0)
            self.tables[name] = replace(self.tables[name], vgroup_id=vgroup)
        self.tables["p"] = replace(self.tables["p"], vgroup_id=3)

    def database(self, name: str) -> Database | None:
        return Database(name, DatabaseOptions(), tuple(range(1, self.vgroups + 1)), 0) if name == "db" else None


def parsed(source: str) -> CreateStream:
    statement = parse_one(f"create stream x into o as select _wstart, count(*) from {source} interval(1s)")
    assert isinstance(statement, CreateStream)
    return statement


def planned(source: str, catalog: Catalog | None = None) -> StreamJoin:
    statement = parsed(source)
    assert isinstance(statement.query.source, JoinSource)
    return read_stream_join(statement, statement.query.source, catalog or Catalog(), SESSION)[1]


@pytest.mark.parametrize(("source", "bounds", "kept", "outer"), [
    ("s join t on s.ts = t.ts", (0, 0), (0, 0), (False, False)),
    ("s left join t on s.ts between t.ts - 5s and t.ts + 2s", (-2000, 5000), (5000, 2000), (True, False)),
    ("s right join t on t.ts >= s.ts and s.ts > t.ts - 1s", (0, 999), (999, 0), (False, True)),
    ("s full join t on s.ts = t.ts + 3s", (-3000, -3000), (-3000, 3000), (True, True)),
    ("s left anti join t on s.ts = t.ts", (0, 0), (0, 0), (True, False)),
    ("s left semi join t on s.ts = t.ts", (0, 0), (0, 0), (False, False)),
    ("s left asof join t", (None, 0), (0, None), (True, False)),
    ("s right asof join t", (0, None), (None, 0), (False, True)),
    ("s left asof join t on s.ts < t.ts", (1, None), (None, -1), (True, False)),
    ("s left window join t window_offset(-1s, 2s)", (-1000, 2000), (2000, 1000), (True, False)),
    ("s right window join t window_offset(-1s, 2s)", (-2000, 1000), (1000, 2000), (False, True)),
    ("s left join p on s.k = p.k", (None, None), (None, None), (True, False)),
])
def test_time_of_a_join(source: str, bounds: tuple[int | None, int | None], kept: tuple[int | None, int | None],
                        outer: tuple[bool, bool]) -> None:
    """The bounds are those of right time minus left time; rows are kept as long as the other side's may meet them."""
    join = planned(source)
    assert (join.start, join.end) == bounds
    assert (join.left.kept, join.right.kept) == kept
    assert (join.left.outer, join.right.outer) == outer


@given(st.lists(st.tuples(st.sampled_from(list(SIGNS)), LENGTHS), min_size=1, max_size=4), LENGTHS)
def test_bounds_are_those_of_the_conditions(comparisons: list[tuple[str, int]], mirrored: int) -> None:
    """A difference of times lies within the bounds exactly if it fulfils all conditions."""
    written = [f"s.ts {sign} t.ts + {by}a".replace("+ -", "- ") for sign, by in comparisons]
    written += [f"t.ts + {mirrored}a >= s.ts - 9a".replace("+ -", "- "), "s.ts + 30a > t.ts"]

    def fulfilled(difference: int) -> bool:  # of right time minus left time
        return all(SIGNS[sign](-difference, by) for sign, by in comparisons) and -9 - mirrored <= difference < 30

    possible = [difference for difference in range(-60, 60) if fulfilled(difference)]
    source = f"s join t on {' and '.join(written)}"
    if not possible:
        with pytest.raises(InvalidStatementError, match="ends before it starts"):
            planned(source)
    else:
        join = planned(source)
        assert (join.start, join.end) == (possible[0], possible[-1])


def test_keys_and_other_conditions() -> None:
    """Keys are listed side by side whichever way they are written; what else ON and WHERE say of both is told."""
    join = planned("s join t on t.k + 1 = s.v and s.ts = t.ts and s.v > t.v where s.g = t.g and s.v > 0")
    assert (join.left.keys, join.right.keys) == (("s.v", "s.g"), ("t.k + 1", "t.g"))
    assert join.others == ("s.v > t.v",)
    assert planned("s left asof join t on s.k = t.k").limit == 1
    assert planned("s left window join t on s.k = t.k window_offset(0s, 1s)").limit is None


@pytest.mark.parametrize(("source", "vgroups", "distribution", "reason"), [
    ("s a join s b on a.tbname = b.tbname and a.ts = b.ts + 1s", 3, "vnode", "the same child table of db.s"),
    ("s a join s b on a.k = b.k and a.ts = b.ts + 1s", 3, "exchange", "with equal keys are in different vgroups"),
    ("s join t on s.tbname = t.tbname and s.ts = t.ts", 3, "exchange", "with equal keys are in different vgroups"),
    ("s join t on s.k = t.k and s.ts = t.ts", 1, "vnode", "database db has one vgroup"),
    ("s join t on s.ts = t.ts", 3, "exchange", "to one join task"),
    ("s0 join t0 on s0.ts = t0.ts", 3, "vnode", "both tables are in vgroup 1"),
    ("s0 join t1 on s0.ts = t1.ts and s0.k = t1.k", 3, "exchange", "db.s0 and db.t1"),
    ("s join p on s.k = p.k", 3, "lookup", "db.p is looked up in"),
    ("p right join s on s.k = p.k", 3, "lookup", "db.p is looked up in"),
    ("s join p on s.k = p.k and s.ts = p.ts", 3, "exchange", "db.s and db.p"),
])
def test_where_rows_meet(source: str, vgroups: int, distribution: str, reason: str) -> None:
    """Rows meet on their vnode if all pairs are of one vnode for sure; else they are exchanged by key."""
    join = planned(source, Catalog(vgroups))
    assert join.distribution == distribution
    assert reason in join.reason


@pytest.mark.parametrize(("query", "single"), [
    ("a.ts, b.v from s a join s b on a.k = b.k and a.ts = b.ts partition by a.k", ""),
    ("a.ts, b.v from s a join s b on a.k = b.k and a.ts = b.ts partition by a.tbname, a.k", ""),
    ("a.ts, b.v from s a join s b on a.k = b.k and a.ts = b.ts partition by a.tbname", "may get other values"),
    ("a.ts, b.v from s a join s b on a.g = b.g and a.ts = b.ts partition by a.tbname", "may get other values"),
    ("a.ts, b.v from s a join s b on a.k = b.k and a.ts = b.ts partition by a.g", "rows with different values"),
    ("a.ts, b.v from s a join s b on a.tbname = b.tbname and a.ts = b.ts partition by a.tbname", ""),
])
def test_results_of_one_place_come_from_one_task(query: str, single: str) -> None:
    """A row that is written anew keeps its place: another task must not withdraw what the new row's task writes."""
    statement = parse_one(f"create stream x trigger at_once into o as select {query}")
    assert isinstance(statement, CreateStream)
    join = plan_stream(statement, Catalog(3), SESSION).computation
    assert isinstance(join, JoinPlan)
    assert bool(join.single) == bool(single)
    assert single in join.single


@pytest.mark.parametrize(("source", "error", "message"), [
    ("s join t on timetruncate(s.ts, 1s) = timetruncate(t.ts, 1s)", InvalidStreamError, "not truncated"),
    ("s join t on s.ts >= t.ts", InvalidStatementError, "one direction only"),
    ("s join t on s.k = t.k", InvalidStatementError, "looks up rows"),
    ("s join nothing on s.k = nothing.k", NotFoundError, "does not exist"),
    ("s join t on s.ts = t.ts and s.unknown = t.k", NotFoundError, "does not exist"),
    ("s left asof join t on s.ts < t.ts", NotSupportedError, "the next row"),
    ("s full join t on s.ts = t.ts", InvalidStreamError, "no INTERVAL beside it"),
])
def test_streams_of_joins_are_refused(source: str, error: type[Exception], message: str) -> None:
    """CREATE STREAM says what is wrong with its join, or what the join would be that no stream can do."""
    with pytest.raises(error, match=message):
        plan_stream(parsed(source), Catalog(), SESSION)
