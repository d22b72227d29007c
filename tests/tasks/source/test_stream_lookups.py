"""Streams whose rows look up in another table, against the same join as a query and as plain SQL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.basics.shared_duckdb import duckdb_with
from kits.engines.sandboxes import T0
from kits.streams.join_bed import FAR, JoinBed, Row, greatest, near

from penstock.common.errors import (
    InUseError,
    InvalidStatementError,
    InvalidStreamError,
    NotFoundError,
    NotSupportedError,
)


@dataclass(frozen=True)
class Case:
    """A lookup, and the same as plain SQL over `m` (c, ts, v, k, g) and `w` (t0, k, site, f); `group`: its name there.

    The plain SQL yields what the result table has, group first.
    """

    query: str
    plain: str
    name: str = "c"


WINDOW = "m.ts // 4 * 4"
CASES = {
    "inner": Case("select m.ts, m.v, w.site from d.m m join d.w w on m.k = w.k partition by m.tbname c",
                  "select c, ts, v, site from m join w using (k)"),
    "left": Case("select m.ts, m.v, w.site, w.f from d.m m left join d.w w on m.k = w.k partition by m.tbname c",
                 "select c, ts, v, site, f from m left join w using (k)"),
    "right": Case("select m.ts, m.v, w.site from d.w w right join d.m m on w.k = m.k partition by m.tbname c",
                  "select c, ts, v, site from m left join w using (k)"),
    "comma": Case("select m.ts, v, site from d.m, d.w where m.k = w.k and f > 1 partition by m.tbname c",
                  "select c, ts, v, site from m join w using (k) where f > 1"),
    "more conditions": Case(
        "select m.ts, m.v, w.site from d.m m left join d.w w on m.k = w.k and m.v < w.f partition by m.tbname c",
        "select c, ts, v, site from m left join w on m.k = w.k and m.v < w.f"),
    "tag": Case("select m.ts, v, site from d.m m join d.w w on m.g = w.k where w.site <> 'x' partition by m.tbname c",
                "select c, ts, v, site from m join w on m.g = w.k where site <> 'x'"),
    "times": Case("select m.ts, w.t0, m.v from d.m m join d.w w on m.k = w.k partition by m.tbname c",
                  "select c, ts, t0, v from m join w using (k)"),
    "windows of what is found": Case(
        "select _wstart, w.site, count(*), sum(m.v * w.f) from d.m m join d.w w on m.k = w.k "
        "partition by w.site interval(4a)",
        f"select site, {WINDOW} t, site, count(*), sum(v * f) from m join w using (k) group by 1, 2, 3", "w.site"),
    "windows of both": Case(
        "select _wstart, max(w.f), count(w.f) from d.m m left join d.w w on m.k = w.k partition by m.tbname c, w.site "
        "interval(4a) sliding(2a)",
        "select c || '/' || site, t, max(f), count(f) from (select *, unnest([ts // 2 * 2 - 2, ts // 2 * 2]) t "
        "from m) m left join w using (k) group by 1, 2", "concat(c, '/', w.site)"),
    "windows of all": Case(
        "select _wstart, min(w.f), count(*) from d.m m join d.w w on m.k = w.k where w.f < 3 interval(4a)",
        f"select 'all', {WINDOW} t, min(f), count(*) from m join w using (k) where f < 3 group by 2", "'all'"),
    "sessions": Case(
        "select _wstart, count(*), sum(w.f) from d.m m left join d.w w on m.k = w.k where m.k > 0 "
        "partition by m.tbname c session(m.ts, 3a)",
        "select c, min(ts) t, count(*), sum(f) from (select *, sum(new) over (partition by c order by ts) n from "
        "(select *, coalesce(ts - lag(ts) over (partition by c order by ts) > 3, true)::int new from "
        "m left join w using (k) where k > 0)) group by c, n"),
}

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.sampled_from([0, 1, 2, None])), min_size=1,
                max_size=6, unique_by=lambda row: row[:2])
KNOWN = st.lists(st.tuples(st.sampled_from([0, 1, 2, None]), st.sampled_from(["x", "y", None]),
                           st.sampled_from([0.0, 1.0, 2.0, 4.0, None])), max_size=5)
STEP = st.one_of(
    st.tuples(st.just("insert"), ROWS), st.tuples(st.just("insert"), ROWS), st.tuples(st.just("insert"), ROWS),
    st.tuples(st.just("delete"), st.tuples(st.sampled_from([None, 0, 1]), st.integers(0, 30), st.integers(0, 6))),
    st.tuples(st.sampled_from(["run", "idle", "checkpoint", "kill"]), st.none()),
)


class Bed(JoinBed):
    """A super table `d.m` of four children, and a normal table `d.w` to look up in, maybe in another vnode."""

    def __init__(self, vgroups: int, known: Iterable[Row], **config: Any) -> None:
        super().__init__(config=config)
        self.all(f"create database d vgroups {vgroups} keep 36500",
                 "create stable d.m (ts timestamp, v int, k int) tags (g int)",
                 "create table d.w (t0 timestamp, k int, site varchar(8), f double)")
        self.known = 0
        for row in known:
            self.know(*row)
        self.numbers = 0

    def know(self, key: int | None, site: str | None, factor: float | None) -> None:
        """Adds a row to the table that is looked up in."""
        self.known += 1
        values = ", ".join("null" if value is None else repr(value) for value in (key, site, factor))
        self.hand(f"insert into d.w values ({T0 + self.known}, {values})")

    def insert(self, rows: Iterable[tuple[int, int, int | None]]) -> None:
        for child, ts, key in rows:
            self.numbers += 1
            self.hand(f"insert into d.m{child} using d.m tags ({child % 3}) values "
                      f"({T0 + ts}, {self.numbers}, {'null' if key is None else key})")

    def step(self, kind: str, what: Any) -> None:
        match kind:
            case "insert":
                self.insert(what)
            case "delete":
                child, first, length = what
                name = "m" if child is None else f"m{child}"
                if self.engine.catalog.table("d", name) is not None:
                    self.hand(f"delete from d.{name} where ts >= {T0 + first} and ts <= {T0 + first + length}")
            case _:
                self.rest(kind)

    def finish(self) -> None:
        """Lets time pass everywhere: all that was inserted before is final."""
        self.insert([(child, FAR, None) for child in range(4)])
        self.run()
        self.advance(5)

    def results(self) -> list[Row]:
        """What the stream wrote: group, time and values."""
        return _named((_group(row[0]), *row[1:]) for row in super().results())

    def plain(self, case: Case) -> list[Row]:
        """The same lookup in plain SQL: of results of one place the greatest."""
        with duckdb_with({}) as peer:
            peer.execute("create temp table m (c varchar, ts bigint, v int, k int, g int)")
            peer.execute("create temp table w (t0 bigint, k int, site varchar, f double)")
            for name, query in (("m", "select tbname, ts, v, k, g from d.m"), ("w", "select t0, k, site, f from d.w")):
                rows = self.rows(query)
                if rows:
                    peer.executemany(f"insert into {name} values ({', '.join('?' * len(rows[0]))})", rows)
            return _named(greatest(peer.execute(case.plain).fetchall()))

    def batch(self, case: Case) -> list[Row]:
        """The same lookup as a query."""
        first, rest = case.query.removeprefix("select "), ""
        if "_wstart" not in case.query:
            first, rest = case.query.removeprefix("select ").split(" partition by ")
            rest = ""
        group = case.name if case.name != "c" else "m.tbname" if not rest and "_wstart" not in case.query else "c"
        return _named(greatest(self.rows(f"select {group}, {first}{rest}")))


def _group(child: str) -> str:
    return child if child == "all" else child.rsplit("_o_", 1)[0]


def _named(rows: Iterable[Row]) -> list[Row]:
    """Returns near rows but those of groups without a name."""
    return near(row for row in rows if row[0] is not None and not str(row[0]).startswith("t_"))


@settings(max_examples=times(4, 400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(list(CASES)), trigger=st.sampled_from(["at_once", "window_close"]), known=KNOWN,
       before=st.lists(STEP, max_size=3), steps=st.lists(STEP, min_size=1, max_size=10), vgroups=st.integers(1, 3))
def test_stream_equals_batch_equals_plain_sql(
    name: str, trigger: str, known: list[Row], before: list[Any], steps: list[Any], vgroups: int
) -> None:
    """After any history, with whatever restarts, the result table has what the query has."""
    case = CASES[name]
    with Bed(vgroups, known) as bed:
        for step in before:
            if step[0] in ("insert", "delete"):
                bed.step(*step)
        if "_wstart" not in case.query:
            trigger = "at_once"
        bed.execute(f"create stream s trigger {trigger} ignore expired 0 fill_history 1 into d.o "
                    f"subtable({case.name if case.name != 'c' else 'c'}) as {case.query}")
        for step in steps:
            bed.step(*step)
        bed.finish()
        expected = bed.plain(case)
        assert bed.batch(case) == expected
        assert bed.results() == expected


QUERY = "select _wstart, w.site, count(*) from d.m m join d.w w on m.k = w.k partition by w.site interval(10a)"


def test_a_change_counts_for_rows_that_come_later() -> None:
    """What is looked up in is read anew when the copy is as old as LOOKUP_FRESHNESS; results that are there stay."""
    with Bed(2, [(0, "x", 1.0)]) as bed:
        bed.execute("create stream s trigger at_once lookup_freshness 10s into d.o as "
                    "select m.ts, w.site from d.m m left join d.w w on m.k = w.k partition by m.tbname")
        bed.insert([(0, 0, 0), (0, 1, 1)])
        bed.run()
        bed.know(1, "y", 2.0)
        bed.insert([(0, 2, 1)])
        bed.run()
        assert bed.rows("select ts, site from d.o") == [(0, "x"), (1, None), (2, None)]
        bed.advance(11)
        bed.insert([(0, 3, 1)])
        bed.run()
        assert bed.rows("select ts, site from d.o") == [(0, "x"), (1, None), (2, None), (3, "y")]
        bed.insert([(0, 1, 1)])  # written anew, it is computed anew
        bed.run()
        assert bed.rows("select ts, site from d.o") == [(0, "x"), (1, "y"), (2, None), (3, "y")]
        bed.execute("alter stream s set lookup_freshness 1s")
        assert "LOOKUP_FRESHNESS 1s" in str(bed.rows("show create stream s"))


def test_a_table_that_is_looked_up_in_stays() -> None:
    """Neither the table nor a column that is read can be dropped, and its rows may be deleted."""
    with Bed(1, [(0, "x", 1.0)]) as bed:
        bed.execute(f"create stream s trigger at_once lookup_freshness 1s into d.o as {QUERY}")
        for statement in ("drop table d.w", "alter table d.w drop column site"):
            with pytest.raises(InUseError, match="stream s"):
                bed.execute(statement)
        bed.execute("alter table d.w drop column f")
        bed.insert([(0, 0, 0)])
        bed.run()
        bed.execute("delete from d.w")
        bed.advance(2)
        bed.insert([(0, 1, 0)])
        bed.run()
        assert bed.rows("select * from d.o") == [(0, "x", 1, bed.rows("select group_id from d.o")[0][0])]
        bed.kill()
        bed.execute("drop stream s")
        bed.execute("drop table d.w")


@pytest.mark.parametrize(("query", "error", "words"), [
    ("select _wstart, k, count(*) from d.m m join d.w w on m.k = w.k partition by k interval(1s)",
     InvalidStatementError, "column k is ambiguous"),
    ("select _wstart, count(w.nope) from d.m m join d.w w on m.k = w.k interval(1s)", NotFoundError,
     "column w.nope does not exist"),
    ("select _wstart, count(x.f) from d.m m join d.w w on m.k = w.k interval(1s)", NotFoundError,
     "there is no table x in FROM"),
    ("select w.t0, m.v from d.m m join d.w w on m.k = w.k partition by m.tbname", InvalidStreamError,
     "must be the primary timestamp"),
    ("select m.ts, w.tbname from d.m m join d.w w on m.k = w.k partition by m.tbname", NotFoundError,
     "column w.tbname does not exist"),
    ("select m.ts, w.site from d.m m full join d.w w on m.k = w.k partition by m.tbname", InvalidStatementError,
     "cannot be FULL"),
    ("select m.*, w.* from d.m m join d.w w on m.k = w.k partition by m.tbname", InvalidStatementError,
     "two columns named k"),
])
def test_what_cannot_be_looked_up_is_said(query: str, error: type[Exception], words: str) -> None:
    """Errors say which name or which kind of join it is."""
    with Bed(1, []) as bed, pytest.raises(error, match=words):
        bed.execute(f"create stream s trigger at_once into d.o as {query}")


def test_streams_by_the_clock_and_dry_runs_do_not_look_up() -> None:
    """What goes by the clock, or has a copy of one table only, can't look up; nor has it a use for the option."""
    with Bed(1, []) as bed:
        with pytest.raises(NotSupportedError, match="by the clock"):
            bed.execute(f"create stream s trigger force_window_close into d.o as {QUERY}")
        with pytest.raises(NotSupportedError, match="dry run"):
            bed.execute(f"dry run create stream s into d.o as {QUERY} on sample (from 0 to 1)")
        with pytest.raises(InvalidStreamError, match="LOOKUP_FRESHNESS"):
            bed.execute("create stream s lookup_freshness 1s into d.o as select ts, v from d.m partition by tbname")


def test_stars_have_the_columns_of_both() -> None:
    """`m.*` is the stream's own table; names of the result are without the table's, where they are different."""
    with Bed(1, [(0, "x", 1.0)]) as bed:
        bed.execute("create stream s into d.o as select m.*, w.site, w.f from d.m m join d.w w on m.k = w.k "
                    "partition by m.tbname")
        bed.insert([(0, 0, 0)])
        bed.run()
        assert [row[0] for row in bed.rows("describe d.o")] == ["ts", "v", "k", "g", "site", "f", "group_id"]
        assert bed.rows("select ts, v, k, g, site, f from d.o") == [(0, 1, 0, 0, "x", 1.0)]


def test_tags_are_looked_up_in() -> None:
    """The tags of another super table, as they are now: SELECT TAGS is a table to look up in."""
    with Bed(2, []) as bed:
        bed.all("create stable d.places (ts timestamp, v int) tags (site varchar(8), since timestamp)",
                f"create table d.m0_ using d.places tags ('x', {T0})", "create table d.p1 using d.places tags ('y', 0)")
        query = ("select m.ts, m.v, t.tbname, t.place, t.since from d.m m left join "
                 "(select tags tbname, site as place, since from d.places) t on concat(m.tbname, '_') = t.tbname")
        bed.execute("create stream s trigger at_once lookup_freshness 1s into d.o (ts, v, name, place, since) as "
                    f"{query} partition by m.tbname")
        bed.insert([(0, 0, 0), (1, 0, 0)])
        bed.run()
        wanted = [(0, 1, "m0_", "x", 0), (0, 2, None, None, None)]
        assert sorted(bed.rows("select ts, v, name, place, since from d.o")) == wanted
        assert sorted(bed.rows(query)) == wanted
        bed.execute("create table d.m1_ using d.places tags ('z', null)")
        bed.execute("alter table d.m0_ set tag site = 'w'")
        bed.advance(2)
        bed.insert([(0, 0, 0), (1, 0, 0)])
        bed.run()
        assert sorted(bed.rows("select v, name, place from d.o")) == [(3, "m0_", "w"), (4, "m1_", "z")]
        with pytest.raises(InUseError, match="stream s"):
            bed.execute("drop stable d.places")


@pytest.mark.parametrize(("source", "words"), [
    ("(select tags site from d.w) t", "is not a super table"), ("(select tags v from d.m) t", "v is no tag of m"),
    ("(select tags g from d.m where g > 1) t", "a list of them"),
])
def test_what_is_no_list_of_tags_is_refused(source: str, words: str) -> None:
    """What is looked up in is there as a whole: conditions belong to the join."""
    with Bed(1, []) as bed, pytest.raises(InvalidStreamError, match=words):
        bed.execute(f"create stream s trigger at_once into d.o as select m.ts, m.v from d.m m join {source} "
                    "on m.g = t.g partition by m.tbname")


def test_keys_of_both_tables_keep_apart() -> None:
    """A column that both tables have may be a key of each; outside, each has the name that it is selected by."""
    with Bed(1, []) as bed:
        bed.execute("create connection pg type postgres with (host='127.0.0.1', database='d', username='u')")
        lines = [row[0] for row in bed.rows(
            "explain create stream s into connection pg (table 't') as select _wstart, m.k, w.k wk, count(*) n "
            "from d.m m join d.w w on m.g = w.k partition by w.k, m.k interval(1s)")]
        assert "Columns there: wk, k, _wstart, n" in lines
        bed.execute("create stream s trigger at_once into d.o as select _wstart, m.k, w.k wk, count(*) n "
                    "from d.m m join d.w w on m.g = w.k partition by w.k, m.k interval(10a)")
        bed.know(1, None, None)
        bed.insert([(1, 0, 7)])
        bed.run()
        assert bed.rows("select k, wk, n from d.o") == [(7, 1, 1)]


def test_plans_tell_of_lookups() -> None:
    """EXPLAIN says what is looked up in, by what, where, and how old it may be."""
    with Bed(1, []) as bed:
        lines = [row[0] for row in bed.rows(f"explain create stream s into d.o as {QUERY}")]
        assert any("Lookup: kind=inner, on=m.k = w.k" in line for line in lines)
        assert any("Scan: table=d.w, kind=normal, columns=k" in line for line in lines)
        assert any("lookup in w, partial aggregates" in line for line in lines)
        assert any("read anew after LOOKUP_FRESHNESS" in line for line in lines)
