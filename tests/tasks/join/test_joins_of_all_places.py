"""Streams that join tables of all kinds, wherever these are: in one vgroup of several, in two, in all, or one table."""

from __future__ import annotations

from typing import Any

from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0
from kits.streams.join_bed import FAR, JoinBed, greatest, near

#: super tables with four children each, and normal tables
TABLES = ("a", "a0", "a1", "a2", "a3", "b", "b0", "b1", "b2", "b3", "p0", "p1", "p2", "p3")
WRITTEN = [name for name in TABLES if name not in "ab"]
JOINS = {
    "inner": "select a.ts, a.n, b.n m from {left} a join {right} b on {on} {by}",
    "left": "select a.ts, a.n, b.n m from {left} a left join {right} b on {on} {by}",
    "range": "select a.ts, a.n, b.n m from {left} a join {right} b on {on_names} a.ts between b.ts - 2a and b.ts + 1a "
             "{by}",
    "asof": "select a.ts, a.n, b.n m from {left} a left asof join {right} b on {on_names} a.ts >= b.ts {by}",
    "window join": "select a.ts, count(b.n) c, sum(b.n) m from {left} a left window join {right} b {on_only} "
                   "window_offset(-2a, 1a) {by}",
    "interval": "select _wstart, sum(a.n) n, count(b.n) m from {left} a left join {right} b on {on} {by} interval(4a)",
}
STEP = st.one_of(
    st.tuples(st.just("insert"), st.lists(st.tuples(st.sampled_from(WRITTEN), st.integers(0, 20)), min_size=1,
                                          max_size=8, unique=True)),
    st.tuples(st.sampled_from(["run", "idle", "checkpoint", "kill"]), st.none()),
)


def query_of(join: str, left: str, right: str, *, stream: bool) -> str:
    """Returns a query; rows of one super table meet those of their own child table."""
    names = left == right and left in "ab"
    by = "" if left not in "ab" or (join == "interval" and not names) else "partition by a.tbname"
    query = JOINS[join].format(
        left=f"d.{left}", right=f"d.{right}", on="a.ts = b.ts" + (" and a.tbname = b.tbname" if names else ""),
        on_names="a.tbname = b.tbname and" if names else "", on_only="on a.tbname = b.tbname" if names else "",
        by=by if stream or join == "interval" else "")
    return query if stream else query.replace("select ", f"select {'a.tbname' if by else chr(39) * 2}, ", 1)


@settings(max_examples=times(6, 400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(join=st.sampled_from(list(JOINS)), left=st.sampled_from(TABLES), right=st.sampled_from(TABLES),
       same=st.booleans(), vgroups=st.integers(1, 4), steps=st.lists(STEP, min_size=1, max_size=8))
def test_stream_equals_query(join: str, left: str, right: str, same: bool, vgroups: int, steps: list[Any]) -> None:
    """Whatever tables are joined, the stream has what the query has."""
    right = left if same else right
    with JoinBed() as bed:
        bed.execute(f"create database d vgroups {vgroups} keep 36500")
        for name in "ab":
            bed.execute(f"create stable d.{name} (ts timestamp, n int) tags (g int)")
        for name in WRITTEN:
            bed.execute(f"create table d.{name} " + (
                "(ts timestamp, n int)" if name[0] == "p" else f"using d.{name[0]} tags ({name[1]})"))
        query = query_of(join, left, right, stream=True)
        subtable = "subtable(c)" if "a.tbname" in query.split("partition")[-1] else ""
        query = query.replace("partition by a.tbname", "partition by a.tbname c")
        bed.execute(f"create stream s trigger at_once ignore expired 0 into d.o {subtable} as {query}")
        number = 0
        for kind, rows in steps:
            for table, ts in rows or ():
                number += 1
                bed.hand(f"insert into d.{table} values ({T0 + ts}, {number})")
            if kind != "insert":
                bed.rest(kind)
        for table in WRITTEN:
            bed.hand(f"insert into d.{table} values ({T0 + FAR}, 0)")
        bed.run()
        bed.advance(5)
        found = [(row[0].rsplit("_o_", 1)[0] if subtable else "", *row[1:]) for row in bed.results()]
        assert near(found) == near(greatest(bed.rows(query_of(join, left, right, stream=False))))
