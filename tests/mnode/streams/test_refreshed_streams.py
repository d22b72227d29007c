"""Streams of any query: their result table is the query's answer, whatever happens to the tables that it reads."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed
from kits.streams.verified_streams import STEPS, insert, play, told

from penstock.common.errors import (
    AlreadyExistsError,
    InUseError,
    InvalidStatementError,
    InvalidStreamError,
    PenstockError,
)
from penstock.tasks.protocol.refreshing import RefreshRequest
from penstock.tasks.refresh.refresh_task import RefreshTask

#: What strangers ask of streams: INTO, where the query alone doesn't say what tells rows apart, and the query.
QUERIES = [
    ("", "SELECT g, count(*) n, sum(v) s, avg(f) a FROM m GROUP BY g"),
    ("", "SELECT tbname, g, max(v) FROM m GROUP BY tbname, g HAVING count(*) > 1"),
    ("", "SELECT count(*) n, count(DISTINCT v) d, min(f) FROM m"),
    ("", "SELECT v % 2 odd, count(*) FILTER (WHERE f > 0) n, string_agg(tbname, ',' ORDER BY tbname, ts) t FROM m "
         "GROUP BY 1"),
    ("", "SELECT DISTINCT v, g FROM m"),
    ("(v PRIMARY KEY, n)", "SELECT v, count(*) n FROM m GROUP BY v ORDER BY n DESC, v NULLS LAST LIMIT 2"),
    ("(tb PRIMARY KEY, t, v)", "SELECT tbname, ts, v FROM m QUALIFY row_number() OVER (PARTITION BY tbname ORDER BY ts "
                               "DESC) = 1"),
    ("(tb PRIMARY KEY, t PRIMARY KEY, step, total)",
     "SELECT tbname, ts, v - lag(v) OVER w step, sum(v) OVER w total FROM m WINDOW w AS (PARTITION BY tbname ORDER BY "
     "ts)"),
    ("(tb PRIMARY KEY, t PRIMARY KEY, name)",
     "SELECT x.tb, x.ts, p.name FROM (SELECT tbname tb, ts, v FROM m) x LEFT JOIN p ON x.v = p.id"),
    ("", "SELECT p.name, count(*) n FROM m JOIN p ON m.v = p.id WHERE m.f IN (SELECT f FROM m WHERE g = 0) GROUP BY "
         "p.name"),
    ("", "WITH a AS (SELECT g, sum(v) s FROM m GROUP BY g) SELECT g, s, s > (SELECT avg(s) FROM a) above FROM a GROUP "
         "BY ALL"),
    ("", "SELECT v FROM m WHERE f > 0 UNION SELECT id FROM p"),
    ("", "SELECT v FROM m EXCEPT SELECT id FROM p"),
    ("", "SELECT _wstart, g, count(*) n, mode(v) p FROM m PARTITION BY g INTERVAL(10s)"),
    ("", "SELECT n, count(*) c FROM (SELECT _wstart, count(*) n FROM m INTERVAL(10s)) GROUP BY n"),
    ("", "SELECT g, mode(v) FROM m GROUP BY g"),
    ("(k PRIMARY KEY, v)", "SELECT id, name FROM p WHERE EXISTS (SELECT 1 FROM m WHERE m.v = p.id)"),
    ("", "SELECT n, total, name FROM e.named"),
    ("", "SELECT _wstart, count(*) n, max(v) x FROM positive INTERVAL(10s)"),
    ("", "SELECT id, name FROM p"),
    ("", "SELECT v, f FROM m ORDER BY v"),
    ("", "SELECT v % 2 v, count(*) n FROM m GROUP BY v"),
    ("", "SELECT ts, v, name FROM m LEFT JOIN p ON m.v = p.id WHERE f IS NULL OR f > 0 ORDER BY ts LIMIT 100"),
    ("", "SELECT a.g g, count(*) FROM m a JOIN m b ON a.ts = b.ts GROUP BY b.g, a.g"),
    ("", "SELECT v FROM m UNION ALL SELECT id FROM p"),
    ("", "SELECT _wstart, v, count(*) n, mode(f) FROM m PARTITION BY v INTERVAL(10s)"),
]
PARTS = 4
"""How many engines share the queries: to open one, and to write, takes as long as to keep some."""
MODES = QUERIES.index(("", "SELECT g, mode(v) FROM m GROUP BY g"))
"""Groups by a tag, which no task keeps."""
VIEWS = ["CREATE VIEW per_g (name, total) AS SELECT g, sum(v), count(*) n FROM m GROUP BY g",
         "CREATE VIEW e.named AS SELECT total, s.name, n FROM d.per_g s",
         "CREATE VIEW positive AS SELECT ts, v, tbname tb FROM m WHERE v > 0"]


def made(*numbers: int) -> TestBed:
    bed = TestBed(config={"stateMapSize": "1GiB"})
    bed.all("CREATE DATABASE d VGROUPS 2 KEEP 36500", "CREATE DATABASE e VGROUPS 1 KEEP 36500", "USE d",
            "CREATE STABLE m (ts TIMESTAMP, v INT, f DOUBLE) TAGS (g INT)",
            *(f"CREATE TABLE t{n} USING m TAGS ({n % 2})" for n in range(4)),
            "CREATE TABLE p (id INT PRIMARY KEY, name VARCHAR(8))", "INSERT INTO p VALUES (0, 'no') (2, 'two')", *VIEWS,
            *(f"CREATE STREAM s{n} INTO o{n} {QUERIES[n][0]} AS {QUERIES[n][1]}" for n in numbers))
    return bed


def agree(bed: TestBed, *numbers: int) -> None:
    for number in numbers:
        assert told(bed.rows(f"SELECT * FROM o{number}")) == told(bed.rows(QUERIES[number][1])), QUERIES[number]


@pytest.mark.parametrize("part", range(PARTS))
def test_the_table_is_the_answer(part: int) -> None:
    """Rows that were there count, and so do those that come, late ones, rewritten and deleted ones, and new tags."""
    numbers = range(len(QUERIES))[part::PARTS]
    with made() as bed:
        insert(bed, 0, 1, 1, 0.5)
        insert(bed, 1, 12, 2, -1.0)
        for number in numbers:
            bed.execute(f"CREATE STREAM s{number} INTO o{number} {QUERIES[number][0]} AS {QUERIES[number][1]}")
        agree(bed, *numbers)
        for statement in (f"INSERT INTO t0 VALUES ({T0 + 5000}, 2, 0.5) ({T0}, NULL, NULL)",
                          f"INSERT INTO t1 VALUES ({T0 + 12_000}, 3, 0.5)", "INSERT INTO p VALUES (1, 'a') (2, 'b')",
                          "DELETE FROM p WHERE id = 0", "ALTER TABLE t1 SET TAG g = 5",
                          f"DELETE FROM t0 WHERE ts = {T0 + 1000}", "CREATE TABLE t9 USING m TAGS (9)",
                          f"INSERT INTO t9 VALUES ({T0 + 1000}, 2, 7)", "DELETE FROM m"):
            bed.execute(statement)
            agree(bed, *numbers)


@settings(max_examples=times(4, 2_000))
@given(numbers=st.lists(st.integers(0, len(QUERIES) - 1), min_size=1, max_size=3, unique=True), steps=STEPS)
def test_the_table_is_the_answer_after_anything(numbers: list[int], steps: list[tuple[str, Any]]) -> None:
    """Through checkpoints, kills of all tasks, flushes and pauses."""
    with made(*numbers) as bed:
        for step in steps:
            play(bed, *step)
            agree(bed, *numbers)


def test_only_groups_whose_tables_have_changed_are_computed() -> None:
    """A row that somebody has put into the result table stays until its group, or all, are computed."""
    with made(MODES) as bed:
        insert(bed, 0, 1, 5)
        insert(bed, 1, 1, 6)
        table = f"o{MODES}"
        bed.forge(f"INSERT INTO {table} VALUES (0, 77) (1, 77) (8, 8)")
        insert(bed, 2, 1, 5)
        assert bed.rows(f"SELECT * FROM {table} ORDER BY g") == [(0, 5), (1, 77), (8, 8)]
        bed.execute(f"DELETE FROM t3 WHERE ts >= {T0}")
        assert bed.rows(f"SELECT * FROM {table} ORDER BY g") == [(0, 5), (1, 6), (8, 8)]
        bed.execute(f"RECALCULATE STREAM s{MODES} FROM 0")
        agree(bed, MODES)


def test_a_pause_holds_the_table_still() -> None:
    """Until the stream goes on, and then all is there."""
    with made(0) as bed:
        bed.execute("PAUSE STREAM s0")
        insert(bed, 0, 1, 5)
        assert bed.rows("SELECT * FROM o0") == []
        bed.execute("RESUME STREAM s0")
        bed.run()
        agree(bed, 0)


def test_rows_that_the_table_cannot_hold_are_told() -> None:
    """The stream says what is wrong for as long as it is, and loses nothing."""
    with made() as bed:
        bed.execute("CREATE STREAM s INTO o (g PRIMARY KEY, v) AS SELECT g, v FROM m ORDER BY v")
        insert(bed, 0, 1, 5)
        assert bed.rows("SELECT * FROM o") == [(0, 5)]
        insert(bed, 0, 2, 6)
        assert bed.rows("SELECT * FROM o") == [(0, 5)]
        (shown,), = bed.rows("SELECT reason FROM information_schema.ins_streams")
        assert "several rows of the result have the same g" in shown
        (state, reason), = bed.rows("SELECT state, reason FROM information_schema.ins_stream_tasks WHERE "
                                    "level = 'sink'")
        assert (state, "several rows of the result have the same g" in reason) == ("RETRYING", True)
        bed.execute(f"DELETE FROM t0 WHERE ts = {T0 + 1000}")
        bed.advance(60)
        assert bed.rows("SELECT * FROM o") == [(0, 6)]


def test_a_query_that_gives_other_columns_by_now_is_told() -> None:
    """A column that comes to a table is in `*`, and has no place in the result."""
    with made() as bed:
        bed.execute("CREATE STREAM s INTO o AS SELECT * FROM p")
        bed.all("ALTER TABLE p ADD COLUMN c INT", "INSERT INTO p VALUES (7, 'x', 1)")
        assert (7, "x") not in bed.rows("SELECT * FROM o")
        (reason,), = bed.rows("SELECT reason FROM information_schema.ins_stream_tasks WHERE level = 'sink'")
        assert "gives 3 columns now, its table has 2" in reason
        bed.checkpoint()
        bed.execute("CREATE OR REPLACE STREAM s INTO o AS SELECT id, name FROM p")
        assert (7, "x") in bed.rows("SELECT * FROM o")


def test_an_attempt_that_was_superseded_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its order is refused, and the table stays as it is."""
    with made(MODES) as bed:
        monkeypatch.setattr(RefreshTask, "_refresh", lambda self, request: setattr(
            self, "_answer", _answer_of(self, self._attempt - 1)))
        insert(bed, 0, 1, 5)
        assert bed.rows(f"SELECT * FROM o{MODES}") == []
        (reason,), = bed.rows("SELECT reason FROM information_schema.ins_stream_tasks WHERE level = 'sink'")
        assert "was superseded" in reason


def _answer_of(task: RefreshTask, attempt: int) -> pa.Table | PenstockError:
    try:
        return task._environment.ask(RefreshRequest(task.id.stream_id, attempt, None))
    except PenstockError as error:
        return error


@pytest.mark.parametrize(("statement", "error", "reason"), [
    ("INTO o AS SELECT g, rand() FROM m GROUP BY g", InvalidStreamError, "its value differs"),
    ("INTO o AS SELECT g, gen_random_uuid() u FROM m GROUP BY g", InvalidStreamError, "its value differs"),
    ("INTO o AS SELECT count(*) FROM m WHERE ts > now - 1d", InvalidStreamError, "depends on the time at which"),
    ("INTO p AS SELECT g, count(*) FROM m GROUP BY g", AlreadyExistsError, "table d.p already exists"),
    ("INTO o (a, b) AS SELECT g FROM m GROUP BY g", InvalidStatementError, "2 columns are named, but the query has 1"),
    ("INTO o AS SELECT g, count(*) g FROM m GROUP BY g", InvalidStatementError, "columns of the result are called"),
    ("INTO o TAGS (x INT) AS SELECT g, count(*) FROM m GROUP BY g", InvalidStreamError, "TAGS and SUBTABLE are not"),
    ("WATERMARK 5s INTO o AS SELECT g, count(*) FROM m GROUP BY g", InvalidStreamError, "WATERMARK is not for"),
    ("TRIGGER WINDOW_CLOSE INTO o AS SELECT g, count(*) FROM m GROUP BY g", InvalidStreamError, "TRIGGER is not for"),
    ("IGNORE EXPIRED 0 INTO o AS SELECT g, count(*) FROM m GROUP BY g", InvalidStreamError, "IGNORE EXPIRED is not"),
    ("FILL_HISTORY 0 INTO o AS SELECT g, count(*) FROM m GROUP BY g", InvalidStreamError, "FILL_HISTORY is not for"),
    ("INTO o AS SELECT 1 a UNION SELECT 2", InvalidStreamError, "a stream reads at least one table"),
    ("INTO o AS SELECT DISTINCT name FROM information_schema.ins_databases", InvalidStreamError, "system table"),
    ("INTO o AS SELECT g, list(v) FROM m GROUP BY g", InvalidStatementError, ""),
])
def test_what_no_stream_can_keep_is_refused(statement: str, error: type[PenstockError], reason: str) -> None:
    """With what is wrong, and nothing is left of it."""
    with made() as bed:
        with pytest.raises(error, match=reason):
            bed.execute(f"CREATE STREAM s {statement}")
        assert bed.rows("SHOW STREAMS") == []
        bed.execute("DROP TABLE IF EXISTS o")


def test_a_stream_may_read_what_another_gives() -> None:
    """Two levels, the second one of which reads a table with a KEY."""
    with made(0) as bed:
        bed.execute("CREATE STREAM top INTO best AS SELECT max(n) most, sum(n) total FROM o0")
        insert(bed, 0, 1, 5)
        insert(bed, 0, 2, 5)
        insert(bed, 1, 2, 5)
        assert bed.rows("SELECT * FROM best") == [(2, 3)]


def described(bed: TestBed, table: str) -> list[tuple[str, str]]:
    """Each column with what is told of it."""
    return [(name, note) for name, _, _, note, *_ in bed.rows(f"DESCRIBE {table}")]


ANSWERS = ["SELECT v, f FROM m", "SELECT ts, v FROM m WHERE v > 1", "SELECT ts, g, v FROM m PARTITION BY tbname",
         "SELECT m.ts, m.v, p.name FROM m JOIN p ON m.v = p.id",
         "SELECT a.ts, b.v FROM m a FULL JOIN m b ON a.ts = b.ts", "SELECT name FROM p", "SELECT * FROM p WHERE id > 0",
         "SELECT c, x FROM n", "SELECT x, c FROM n WHERE c > 1",
         "SELECT _wstart, v, count(*) n FROM m STATE_WINDOW(v)", "SELECT _wend, count(*) n FROM m SESSION(ts, 1s)",
         "SELECT _wstart, v, _wduration d, count(*) n FROM m PARTITION BY v SESSION(ts, 1s)",
         "SELECT _wstart, tbname, count(*) n FROM m PARTITION BY tbname COUNT_WINDOW(2)",
         "SELECT _wstart, count(*) n FROM m COUNT_WINDOW(2, 1)", "SELECT _wend, count(*) n FROM n COUNT_WINDOW(2)",
         "SELECT _wstart, count(*) n FROM c COUNT_WINDOW(3, 1)",
         "SELECT _wstart, sum(v) s FROM c STATE_WINDOW(v)",
         "SELECT _wstart, count(*) n FROM c EVENT_WINDOW START WITH v > 0 END WITH v > 1"]


@pytest.mark.parametrize("part", range(PARTS))
def test_a_materialized_view_is_the_answer(part: int) -> None:
    """Also of queries that say less than a stream of rows or of a join has to, and with equal rows."""
    queries = list(enumerate(ANSWERS))[part::PARTS]
    with made() as bed:
        bed.all("CREATE TABLE n (x TIMESTAMP, c INT)", "CREATE TABLE c (ts TIMESTAMP, k INT PRIMARY KEY, v INT)",
                *(f"CREATE MATERIALIZED VIEW w{number} AS {query}" for number, query in queries))
        for statement in (f"INSERT INTO t0 VALUES ({T0}, 2, 0.5) ({T0 + 1}, 2, 0.5) t2 VALUES ({T0}, 2, 0.5)",
                          f"INSERT INTO n VALUES ({T0}, 1) ({T0 + 1}, 2) ({T0 + 2}, 2)",
                          f"INSERT INTO c VALUES ({T0}, 1, 2) ({T0}, 2, 1) ({T0 + 1}, 1, 1) ({T0 + 1}, 3, 2)",
                          f"INSERT INTO c VALUES ({T0}, 1, 1)", "INSERT INTO p VALUES (3, 'no')",
                          f"INSERT INTO t1 VALUES ({T0}, NULL, NULL) ({T0 + 1}, 2, 0.5)",
                          f"INSERT INTO n VALUES ({T0 + 1}, 1)", "INSERT INTO p VALUES (2, 'no')",
                          f"DELETE FROM t0 WHERE ts = {T0}", f"DELETE FROM n WHERE x = {T0 + 2}",
                          "DELETE FROM p WHERE id = 2", "ALTER TABLE t2 SET TAG g = 7", "DELETE FROM m"):
            bed.execute(statement)
            for number, query in queries:
                names = ", ".join(f"`{name}`" for name, note in described(bed, f"w{number}") if note != "TAG")
                assert told(bed.rows(f"SELECT {names} FROM w{number}")) == told(bed.rows(query)), (query, statement)


def test_what_tells_rows_apart_is_found_in_the_query() -> None:
    """The KEY of a view: that of its tables, if all of it is shown, or of its groups; else all columns."""
    with made() as bed:
        bed.execute("CREATE TABLE n (x TIMESTAMP, c INT)")
        for number, (query, key) in enumerate([
                ("SELECT name, id FROM p", ["id"]), ("SELECT upper(name) name, id FROM p LIMIT 5", ["id"]),
                ("SELECT name FROM p", ["name"]), ("SELECT *, id + 1 next FROM p", ["id"]),
                ("SELECT tbname tb, ts, v FROM m", ["tb", "ts"]), ("SELECT ts, g, v FROM m", ["ts", "g", "v"]),
                ("SELECT p.id, q.id other, q.name FROM p LEFT JOIN p q ON p.name = q.name", ["id", "other"]),
                ("SELECT p.id, p.name FROM p SEMI JOIN p q ON p.name = q.name", ["id"]),
                ("SELECT p.id, q.name FROM p, p q", ["id", "name"]),
                ("SELECT p.id, q.id FROM p, p q", ["p.id", "q.id"]),
                ("SELECT id FROM p UNION ALL SELECT 1", ["id"]),
                ("SELECT c, x FROM n ORDER BY c LIMIT 2", ["x"]), ("SELECT x, c FROM n ORDER BY c LIMIT 2", []),
                ("SELECT * REPLACE (1 AS id) FROM p", ["id", "name"]), ("SELECT * EXCLUDE (id) FROM p", ["name"]),
                ("SELECT p.id, q.id other FROM p FULL JOIN p q ON p.name = q.name WHERE q.id > 0", ["id", "other"]),
                ("WITH p AS (SELECT 1 id, name FROM p) SELECT id, name FROM p", ["id", "name"]),
                ("SELECT a.g, s, p.id, name FROM (SELECT g, sum(v) s FROM m GROUP BY g) a, p", ["g", "id"]),
                ("SELECT b.x, y, n FROM (SELECT v % 2 x, f FROM m) a (y), (SELECT x, c n FROM n) b",
                 ["x", "y", "n"]),
                ("SELECT name, total FROM per_g", ["name"]), ("SELECT p.id, total FROM per_g JOIN p ON true",
                                                              ["id", "total"]),
                ("SELECT _wstart, tbname tb, count(*) n FROM m PARTITION BY tbname COUNT_WINDOW(2)", ["tb"]),
                ("SELECT _wstart, g, count(*) n FROM m PARTITION BY g COUNT_WINDOW(2)", ["_wstart", "g", "n"]),
                ("SELECT unnest([id, 7]) u, id FROM p", ["u", "id"]),
                ("SELECT v, count(*) n FROM m GROUP BY ROLLUP (v, g)", ["v", "n"])]):
            bed.execute(f"CREATE MATERIALIZED VIEW k{number} AS {query}")
            assert {name for name, note in described(bed, f"k{number}") if note == "PRIMARY KEY"} == {*key}, query


def test_a_materialized_view_is_a_stream_and_its_table() -> None:
    """Of any query: also of one that streams of windows keep, which leave nothing out then."""
    with made() as bed:
        insert(bed, 0, 25, 4)
        bed.all("CREATE MATERIALIZED VIEW sums AS SELECT g, sum(v) s FROM m GROUP BY g",
                "CREATE MATERIALIZED VIEW tens (start, n) AS SELECT _wstart, count(*) FROM m INTERVAL(10s)",
                "CREATE MATERIALIZED VIEW IF NOT EXISTS sums AS SELECT 1")
        insert(bed, 0, 1, 5)
        assert bed.rows("SELECT * FROM sums") == [(0, 9)]
        assert bed.rows("SELECT n FROM tens ORDER BY start") == [(1,), (1,)]
        bed.execute("CREATE MATERIALIZED VIEW most AS SELECT max(s) FROM sums")
        with pytest.raises(InUseError, match="table sums is in use: stream most reads it"):
            bed.execute("DROP MATERIALIZED VIEW sums")
        bed.all("DROP MATERIALIZED VIEW most", "DROP MATERIALIZED VIEW sums", "DROP MATERIALIZED VIEW tens",
                "DROP MATERIALIZED VIEW IF EXISTS tens")
        assert [name for name, *_ in bed.rows("SHOW TABLES") if name in ("most", "sums", "tens")] == []
        assert bed.rows("SHOW STABLES") != []


def test_a_materialized_view_of_rows() -> None:
    """What has no window is a view as well, and EXPLAIN says what it is."""
    with made() as bed:
        bed.execute("CREATE TABLE r (ts TIMESTAMP, v INT)")
        bed.execute(f"INSERT INTO r VALUES ({T0}, 4)")
        view = "CREATE MATERIALIZED VIEW doubled AS SELECT ts, 2 * v w FROM r WHERE v > 2"
        assert "trigger=at_once" in bed.rows(f"EXPLAIN {view}")[0][0]
        bed.execute(view)
        bed.execute(f"INSERT INTO r VALUES ({T0 - 1}, 5) ({T0 + 1}, 1)")
        assert bed.rows("SELECT ts, w FROM doubled ORDER BY ts") == [(-1, 10), (0, 8)]


def test_columns_are_called_as_they_are_in_their_tables() -> None:
    """As in other streams: without the table's name, unless two are called the same."""
    with made() as bed:
        bed.execute("CREATE MATERIALIZED VIEW newest AS SELECT a.ts, a.v, b.v FROM m a JOIN m b ON a.ts = b.ts "
                    "QUALIFY row_number() OVER (PARTITION BY a.tbname ORDER BY a.ts DESC) = 1")
        assert [name for name, *_ in bed.rows("DESCRIBE newest")] == ["ts", "a.v", "b.v"]


@pytest.mark.parametrize("made_as", ["STREAM s INTO o", "MATERIALIZED VIEW o"])
@pytest.mark.parametrize("query", [
    "SELECT v, max(f) - min(f) d FROM m GROUP BY v", "SELECT DISTINCT f * 10 d FROM m",
    "SELECT g, max(f) - min(f) - (max(f) - min(f)) d, mode(v) FROM m GROUP BY g"])
def test_results_may_be_infinite(made_as: str, query: str) -> None:
    """As those of queries may, though nobody can insert such a number: one group's doesn't hold the others up."""
    with made() as bed:
        bed.execute(f"CREATE {made_as} AS {query}")
        for second, (table, value, number) in enumerate([(0, 1, 1.7e308), (0, 1, -1.7e308), (1, 2, 3.0)]):
            insert(bed, table, second, value, number)
        assert sorted(map(repr, bed.rows("SELECT * FROM o"))) == sorted(map(repr, bed.rows(query)))
        if made_as.startswith("STREAM"):
            assert bed.rows("VERIFY STREAM s")[-1][0] == "verified"


def test_columns_of_both_sides_that_are_one_hold_the_values_of_both() -> None:
    """FULL JOIN USING of a narrow and a wide type."""
    with made() as bed:
        bed.all("CREATE TABLE a (x SMALLINT PRIMARY KEY)", "CREATE TABLE b (x INT PRIMARY KEY)",
                "CREATE MATERIALIZED VIEW w AS SELECT x FROM a FULL JOIN b USING (x)", "INSERT INTO a VALUES (1)",
                "INSERT INTO b VALUES (2147483647)")
        assert sorted(bed.rows("SELECT x FROM w")) == [(1,), (2147483647,)]
