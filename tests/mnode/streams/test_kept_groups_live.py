"""Streams of groups without a window in an engine: over tables with a KEY too, over splits, kills and a start anew, and
as a source of others."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed
from kits.streams.verified_streams import STEPS, insert, play, told

from penstock.planner.task_plans.stream_plan import RefreshPlan, StreamPlan

#: Streams that tasks keep; those that others read come before them.
QUERIES = [
    "SELECT v, g, count(*) n, sum(v) s, max(f) x FROM m GROUP BY v, g",
    "SELECT v, count(*) n FROM m GROUP BY v HAVING count(*) > 3",
    "SELECT tbname t, count(DISTINCT v) n FROM m GROUP BY tbname",
    "SELECT count(*) n, sum(v) s, max(f) x FROM m",
    "SELECT count(*) n, avg(v) a FROM t1 WHERE v > 0 HAVING sum(v) > 1",
    *(f"SELECT name, count(*) n, sum(v) s FROM p{n} GROUP BY name" for n in range(3)),
    "SELECT count(*) n, sum(v) s, avg(v) a FROM p0",
    "SELECT sum(v) s FROM p1 WHERE name <> 'a'",
    "SELECT DISTINCT v, name FROM p2",
    "SELECT v, count(*) FILTER (WHERE name IS NULL) + 1 n FROM p2 GROUP BY v HAVING count(*) > 1",
    "SELECT id % 2 odd, count(name) n FROM p0 WHERE v IS NOT NULL GROUP BY 1",
    # results of these streams
    "SELECT n, count(*) c, sum(s) t FROM o0 GROUP BY n",
    "SELECT sum(n) n, count(*) c FROM o5",
    "SELECT s, count(*) c FROM o8 GROUP BY s",
]
#: Of these only what values touch, or all, is computed again.
COMPUTED_AGAIN = {
    "SELECT name, max(v) x FROM p0 GROUP BY name": "rows that go can't be taken out of what is kept",
    "SELECT name, sum(v::DOUBLE) x FROM p0 GROUP BY name": "nor of sums of these",
    "SELECT n, count(*) c FROM refreshed GROUP BY n": "as of one cut with what it reads",
    "SELECT n, count(*) c FROM view GROUP BY n": "with a view, too",
}
KEYS = st.sampled_from([-(1 << 31), -1, 0, 1, 2, 3, 1 << 20])
VALUES = st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from([None, -1, 0, 1, 2]))
OF_KEYS = st.lists(st.one_of(
    st.tuples(st.just("upsert"), st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6)),
    st.tuples(st.just("upsert"), st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6)),
    st.tuples(st.just("name"), st.tuples(KEYS, VALUES)),
    st.tuples(st.just("drop"), KEYS), st.tuples(st.just("drop_values"), VALUES),
    st.tuples(st.sampled_from(["checkpoint", "kill", "flush", "pause", "resume"]), st.none())),
    min_size=1, max_size=8)
TABLES = [("p0", "id INT PRIMARY KEY", "{}"), ("p1", "id VARCHAR(12) PRIMARY KEY", "'{}'"),
          ("p2", "id INT PRIMARY KEY, other VARCHAR(4) PRIMARY KEY", "{}, 'x'")]


def made(vgroups: int = 1, late: bool = False) -> TestBed:
    """`late`: there are rows before the streams."""
    bed = TestBed(config={"stateMapSize": "1GiB"})
    bed.all(f"CREATE DATABASE d VGROUPS {vgroups} KEEP 36500", "USE d",
            "CREATE STABLE m (ts TIMESTAMP, v INT, f DOUBLE) TAGS (g INT)",
            *(f"CREATE TABLE t{n} USING m TAGS ({n % 2})" for n in range(6)),
            *(f"CREATE TABLE {name} ({key}, name VARCHAR(8), v INT)" for name, key, _ in TABLES))
    if late:
        write(bed, range(20))
        upsert(bed, [(number, ("a", number)) for number in (-1, 0, 2)])
    bed.all(*(f"CREATE STREAM s{n} INTO o{n} AS {query}" for n, query in enumerate(QUERIES)))
    return bed


def agree(bed: TestBed) -> None:
    for number, query in enumerate(QUERIES):
        assert told(bed.rows(f"SELECT * FROM o{number}")) == told(bed.rows(query)), query


def write(bed: TestBed, numbers: range) -> None:
    """Inserts a row for each number, five at once: all streams work after each statement."""
    for place in range(0, len(numbers), 5):
        bed.execute("INSERT INTO " + " ".join(
            f"t{number % 6} (ts, v, f) VALUES ({T0 + number % 50 * 1000}, {number % 7}, {number * 0.5})"
            for number in numbers[place:place + 5]))


def upsert(bed: TestBed, rows: list[tuple[int, tuple[str | None, int | None]]]) -> None:
    for table, _, key in TABLES:
        bed.execute(f"INSERT INTO {table} VALUES " + " ".join(
            f"({key.format(number)}, {literal(name)}, {literal(value)})" for number, (name, value) in rows))


def literal(value: str | int | None) -> str:
    return "NULL" if value is None else repr(value)


def plan_of(bed: TestBed, name: str) -> StreamPlan:
    record = bed.engine.parts.directory.catalog.streams.named(name)
    assert record is not None
    return bed.engine.parts.streams.known.plans[record.id].plan


def change(bed: TestBed, kind: str, what: Any) -> None:
    """Does something to the tables with a KEY, or to what all is kept in."""
    match kind:
        case "upsert":
            upsert(bed, what)
        case "name":
            for table, _, key in TABLES:
                names = "id, other, name" if "," in key else "id, name"
                bed.execute(f"INSERT INTO {table} ({names}) VALUES ({key.format(what[0])}, {literal(what[1][0])})")
        case "drop":
            bed.all(*(f"DELETE FROM {table} WHERE id = {key.format(what).partition(',')[0]}"
                      for table, _, key in TABLES))
        case "drop_values":
            bed.all(*(f"DELETE FROM {table} WHERE v = {literal(what[1])} OR name = {literal(what[0])}"
                      for table, _, _ in TABLES))
        case "pause" | "resume":
            bed.all(*(f"{kind.upper()} STREAM s{number}" for number in range(len(QUERIES))))
        case _:
            play(bed, kind, what)


@settings(max_examples=times(2, 1_000))
@given(steps=st.one_of(OF_KEYS, STEPS), vgroups=st.integers(1, 2), late=st.booleans())
def test_the_table_is_the_answer(steps: list[tuple[str, Any]], vgroups: int, late: bool) -> None:
    """From the start on, whatever comes, changes and goes, by whole rows or parts of them, through kills and pauses."""
    with made(vgroups, late) as bed:
        assert all(plan_of(bed, f"s{number}").keeps_groups for number in range(len(QUERIES)))
        agree(bed)
        for step in steps:
            change(bed, *step)
            if all(each[0] != "pause" for each in steps):
                agree(bed)
        change(bed, "resume", None)
        agree(bed)
        for number in range(len(QUERIES)):
            assert bed.rows(f"VERIFY STREAM s{number}")[-1][3].endswith(", 0 aren't"), QUERIES[number]


def test_groups_go_along_with_their_vnodes() -> None:
    """Through splits, deletes and a kill; VERIFY STREAM finds them right."""
    with made() as bed:
        write(bed, range(40))
        upsert(bed, [(number, ("ab"[number % 2], number % 3)) for number in range(10)])
        bed.checkpoint()
        for first in (40, 80)[:times(1, 2)]:
            vgroup_id = bed.rows("SELECT vgroup_id FROM information_schema.ins_vgroups WHERE db_name = 'd'")[0][0]
            bed.execute(f"SPLIT VGROUP {vgroup_id}")
            agree(bed)
            write(bed, range(first, first + 20))
            bed.execute(f"DELETE FROM m WHERE ts < {T0 + first * 100}")
            upsert(bed, [(number, ("bc"[number % 2], None)) for number in range(first // 20, 12)])
            change(bed, "drop", first // 20)
            bed.kill()
            agree(bed)
        assert [bed.rows(f"VERIFY STREAM s{n}")[-1][0] for n in range(len(QUERIES))] == ["verified"] * len(QUERIES)


def test_streams_read_groups() -> None:
    """A stream of any query over their table follows it."""
    with made() as bed:
        bed.execute("CREATE MATERIALIZED VIEW most AS SELECT g, max(n) n FROM o0 GROUP BY g")
        write(bed, range(60))
        wanted = "SELECT g, max(n) n FROM (SELECT v, g, count(*) n FROM m GROUP BY v, g) GROUP BY g"
        assert sorted(bed.rows("SELECT * FROM most")) == sorted(bed.rows(wanted))
        bed.execute(f"DELETE FROM m WHERE ts < {T0 + 20_000}")
        assert sorted(bed.rows("SELECT * FROM most")) == sorted(bed.rows(wanted))


def test_recalculation_leaves_one_row() -> None:
    """What somebody has put into the table goes; the row of all rows stays, or comes back."""
    with made() as bed:
        insert(bed, 0, 1, 1)
        for damage in ("INSERT INTO o3 VALUES (7, 7, 7.5)", "DELETE FROM o3 WHERE n = 1"):
            bed.forge(damage)
            assert bed.rows("VERIFY STREAM s3")[-1][3] != "1 results are equal, 0 aren't"
            bed.execute("RECALCULATE STREAM s3 FROM 0")
            assert bed.rows("SELECT * FROM o3") == [(1, 1, 1.0)]


@pytest.mark.parametrize("query", COMPUTED_AGAIN)
def test_what_is_computed_again(query: str) -> None:
    """What tasks don't keep, though they would keep the like, is the answer as well; EXPLAIN tells which it is."""
    with made() as bed:
        bed.all("CREATE STREAM z INTO refreshed AS SELECT name, count(*) n FROM p0 GROUP BY name ORDER BY n LIMIT 9",
                "CREATE MATERIALIZED VIEW view AS SELECT name, count(*) n FROM p0 GROUP BY name",
                f"CREATE STREAM s INTO o AS {query}")
        assert isinstance(plan_of(bed, "s").computation, RefreshPlan), COMPUTED_AGAIN[query]
        upsert(bed, [(number, ("ab"[number % 2], number)) for number in range(5)])
        assert sorted(bed.rows("SELECT * FROM o")) == sorted(bed.rows(query))
