"""Streams of any query of which only what changed rows touch is computed again; the rest of the table stays."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import times
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed
from kits.streams.verified_streams import STEPS, insert, play

from penstock.planner.task_plans.stream_plan import RefreshPlan

#: Columns of the result with its KEY, where the query doesn't say it; the query; and which of them are touched.
QUERIES = [
    ("", "SELECT v, mode(f) FROM m GROUP BY v", "v"),
    ("(tb PRIMARY KEY, t PRIMARY KEY, v)",
     "SELECT tbname, ts, v FROM m QUALIFY row_number() OVER (PARTITION BY v ORDER BY ts DESC, tbname) <= 2", "v"),
    ("", "SELECT m.ts, m.v, p.name, p.id FROM m JOIN p ON m.v = p.id", "v id"),
    ("", "SELECT p.id, p.name, m.f FROM p LEFT JOIN m ON m.v = p.id", "id"),
    ("", "SELECT p.id, count(m.ts) n, median(m.f) f FROM p LEFT JOIN m ON m.v = p.id GROUP BY p.id", "id"),
    ("", "SELECT a.v, count(*) n FROM m a JOIN m b ON a.v = b.v AND a.ts < b.ts GROUP BY a.v", "v"),
    ("", "SELECT v FROM m UNION SELECT id FROM p", "v"),
    ("", "SELECT v FROM m EXCEPT SELECT id FROM p", "v"),
    ("", "SELECT v, f FROM m INTERSECT ALL SELECT id, 0.1 FROM p", "v"),
    ("(w PRIMARY KEY, n, names)",
     "WITH a AS (SELECT v w, count(*) n FROM m GROUP BY v) SELECT w, n, string_agg(name, ',' ORDER BY name) names "
     "FROM a JOIN p ON a.w = p.id GROUP BY w, n", "w"),
    ("", "SELECT _wstart, v, mode(f) FROM m PARTITION BY v INTERVAL(10s)", "v"),
    ("", "SELECT name, count(*) n, count(DISTINCT v) FROM (SELECT name, id FROM p WHERE id > 0) q SEMI JOIN m ON "
         "m.v = q.id JOIN m o ON o.v = q.id GROUP BY name", ""),
    ("", "SELECT v, count(*) n FROM m WHERE f > (SELECT avg(f) FROM m) GROUP BY v", ""),
    ("(v PRIMARY KEY, n)", "SELECT v, count(*) n FROM m GROUP BY v ORDER BY n DESC, v NULLS LAST LIMIT 2", ""),
    ("", "SELECT p.id, m.v FROM p FULL JOIN m ON m.v = p.id", ""),
    ("(v PRIMARY KEY, s)", "SELECT DISTINCT v, sum(v) OVER () s FROM m", ""),
]
OVER_VIEWS = [
    ("CREATE MATERIALIZED VIEW a AS SELECT v, mode(f) f FROM m GROUP BY v",
     "CREATE MATERIALIZED VIEW b AS SELECT a.v, a.f, p.name FROM a LEFT JOIN p ON a.v = p.id",
     "CREATE MATERIALIZED VIEW c AS SELECT v, count(*) n, count(name) names FROM b GROUP BY v"),
    ("CREATE MATERIALIZED VIEW a (tb PRIMARY KEY, t PRIMARY KEY, v) AS SELECT tbname, ts, v FROM m",
     "CREATE MATERIALIZED VIEW b AS SELECT v, count(*) n FROM a GROUP BY v",
     "CREATE MATERIALIZED VIEW c AS SELECT m.v, m.f, b.n FROM m JOIN b ON m.v = b.v"),
    ("CREATE MATERIALIZED VIEW a AS SELECT g, count(*) n, sum(v) v FROM m GROUP BY g",
     "CREATE MATERIALIZED VIEW b AS SELECT v, mode(n) n FROM a GROUP BY v",
     "CREATE MATERIALIZED VIEW c AS SELECT v FROM b UNION SELECT id FROM p"),
]
"""Three views each, of which some read others."""

STEPS_OF_BOTH = st.lists(st.one_of(STEPS, st.lists(st.tuples(st.just("name"), st.tuples(
    st.sampled_from([-2, 0, 1, 2, 3]), st.sampled_from([None, "a", "b"]))), max_size=3)), max_size=3)


def made(*numbers: int) -> TestBed:
    bed = TestBed(config={"stateMapSize": "1GiB"})
    bed.all("CREATE DATABASE d VGROUPS 2 KEEP 36500", "USE d",
            "CREATE STABLE m (ts TIMESTAMP, v INT, f DOUBLE) TAGS (g INT)",
            *(f"CREATE TABLE t{n} USING m TAGS ({n % 2})" for n in range(4)),
            "CREATE TABLE p (id INT PRIMARY KEY, name VARCHAR(8))", "INSERT INTO p VALUES (0, 'no') (2, 'two')",
            *(f"CREATE MATERIALIZED VIEW o{n} {QUERIES[n][0]} AS {QUERIES[n][1]}" for n in numbers))
    return bed


def step(bed: TestBed, kind: str, what: Any) -> None:
    if kind != "name":
        play(bed, kind, what)
    elif what[1] is None:
        bed.execute(f"DELETE FROM p WHERE id = {what[0]}")
    else:
        bed.execute(f"INSERT INTO p VALUES ({what[0]}, '{what[1]}')")


def agree(bed: TestBed, *numbers: int) -> None:
    for number in numbers:
        found, wanted = (sorted(map(repr, bed.rows(query))) for query in (
            f"SELECT * FROM o{number}", QUERIES[number][1]))
        assert found == wanted, QUERIES[number]


@pytest.mark.parametrize("number", range(len(QUERIES)))
def test_it_is_known_which_rows_of_an_answer_a_row_touches(number: int) -> None:
    """By columns that keep all of its rows apart; where rows of all values meet, none does."""
    with made(number) as bed:
        record = bed.engine.parts.directory.catalog.streams.named(f"o{number}")
        assert record is not None
        stored = bed.engine.parts.streams.known.plans[record.id]
        refresh = stored.plan.computation
        assert isinstance(refresh, RefreshPlan)
        columns = stored.plan.sink.columns
        assert " ".join(columns[place].name for place in refresh.touched) == QUERIES[number][2]


@settings(max_examples=times(4, 2_000))
@given(numbers=st.lists(st.integers(0, len(QUERIES) - 1), min_size=1, max_size=3, unique=True), parts=STEPS_OF_BOTH)
@example([1], [[("insert", [(0, 0, None, None)] * 2)]])
def test_the_table_is_the_answer(numbers: list[int], parts: list[list[tuple[str, Any]]]) -> None:
    """Whatever comes, changes and goes in either table, through checkpoints, kills and flushes."""
    with made(*numbers) as bed:
        for each in (each for part in parts for each in part):
            step(bed, *each)
            agree(bed, *numbers)


@settings(max_examples=times(3, 1_000))
@given(views=st.sampled_from(OVER_VIEWS), parts=STEPS_OF_BOTH)
def test_views_over_views_are_the_answers(views: tuple[str, ...], parts: list[list[tuple[str, Any]]]) -> None:
    """What one of them changes touches the others."""
    with made() as bed:
        bed.all(*views)
        for each in (each for part in parts for each in part):
            step(bed, *each)
            for name, statement in zip("abc", views, strict=True):
                found, wanted = (sorted(map(repr, bed.rows(query))) for query in (
                    f"SELECT * FROM {name}", statement.split(" AS ", 1)[1]))
                assert found == wanted, statement


def test_of_a_view_over_a_view_is_computed_what_is_touched() -> None:
    """A row that somebody has put into the last one's table stays."""
    with made() as bed:
        bed.all(*OVER_VIEWS[0])
        insert(bed, 0, 1, 1)
        bed.forge("INSERT INTO c VALUES (77, 7, 7)")
        insert(bed, 1, 1, 2)
        assert bed.rows("SELECT * FROM c ORDER BY v") == [(1, 1, 0), (2, 1, 1), (77, 7, 7)]


@pytest.mark.parametrize("others", [(), (5, 9)])
def test_what_is_not_touched_is_not_computed(others: tuple[int, ...]) -> None:
    """A row that somebody has put into the table stays until a row comes that touches it, or all is computed; also
    where other views are computed as of the same cut."""
    with made(0, *others) as bed:
        insert(bed, 0, 1, 1)
        bed.forge("INSERT INTO o0 VALUES (77, 7.5) (2, 7.5)")
        insert(bed, 1, 1, 1)
        assert bed.rows("SELECT v FROM o0 ORDER BY v") == [(1,), (2,), (77,)]
        insert(bed, 2, 1, 2)
        assert bed.rows("SELECT * FROM o0 ORDER BY v") == [(1, 1.0), (2, 1.0), (77, 7.5)]
        insert(bed, 2, 1, 3)  # what it was is touched, too
        assert bed.rows("SELECT * FROM o0 ORDER BY v") == [(1, 1.0), (3, 1.0), (77, 7.5)]
        bed.execute(f"DELETE FROM t2 WHERE ts >= {T0}")
        assert bed.rows("SELECT * FROM o0 ORDER BY v") == [(1, 1.0), (77, 7.5)]
        bed.execute("RECALCULATE STREAM o0 FROM 0")
        agree(bed, 0)


def test_texts_that_stand_between_texts_are_values_too() -> None:
    """All is computed then."""
    with made() as bed:
        bed.all("CREATE TABLE n (ts TIMESTAMP, s VARCHAR(8))",
                "CREATE MATERIALIZED VIEW o AS SELECT s, mode(ts) t FROM n GROUP BY s")
        bed.execute(f"INSERT INTO n VALUES ({T0}, 'a') ({T0 + 1}, 'b\x1fc') ({T0 + 2}, '''') ({T0 + 3}, NULL)")
        assert sorted(map(repr, bed.rows("SELECT * FROM o"))) == sorted(
            map(repr, bed.rows("SELECT s, mode(ts) FROM n GROUP BY s")))
