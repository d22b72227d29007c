"""Streams that read views: what their tables hold, and what may become of the views meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.engines.embedded import Embedded
from kits.engines.sandboxes import T0, TestBed

from penstock.common.errors import InUseError, InvalidStreamError, NotFoundError, PenstockError


@pytest.fixture
def bed() -> Iterator[TestBed]:
    with TestBed(config={"stateMapSize": "1GiB"}) as opened:
        opened.all(
            "CREATE DATABASE d VGROUPS 2 KEEP 36500", "CREATE DATABASE e VGROUPS 1 KEEP 36500", "USE d",
            "CREATE STABLE m (ts TIMESTAMP, v INT, f INT) TAGS (g INT)", "CREATE TABLE t0 USING m TAGS (0)",
            "CREATE VIEW sums AS SELECT g, sum(v) s FROM m GROUP BY g",
            "CREATE VIEW e.tops (top) AS SELECT max(s) FROM d.sums",
            "CREATE VIEW tens (start, n) AS SELECT _wstart, count(*) FROM m INTERVAL(10s)",
            f"INSERT INTO t0 (ts, v) VALUES ({T0}, 1) ({T0 + 12_000}, 2)")
        yield opened


def key_of(bed: TestBed, table: str) -> list[str]:
    """Returns the columns by which rows of a table are told apart: its time, or its KEY."""
    described = bed.rows(f"DESCRIBE {table}")
    keys = [name for name, *_, note, _ in described if note == "PRIMARY KEY"]
    return keys or [described[0][0]]


@pytest.mark.parametrize(("query", "key", "rows"), [
    ("SELECT * FROM sums", ["g"], [(0, 3)]),
    ("SELECT s, g FROM sums x", ["g"], [(3, 0)]),
    ("SELECT * FROM e.tops", ["top"], [(3,)]),
    ("SELECT * FROM tens ORDER BY n", ["start"], [(0, 1), (10_000, 1)]),
    ("SELECT n, count(*) c FROM tens GROUP BY n", ["n"], [(1, 2)]),
    ("SELECT s FROM sums", ["s"], [(3,)]),
    ("SELECT * EXCLUDE (g) FROM sums", ["s"], [(3,)]),
    ("SELECT max(g) h, s + 1 u FROM sums GROUP BY s", ["h", "u"], [(0, 4)]),
    ("SELECT ts, v, s FROM m JOIN sums USING (g)", ["ts", "v", "s"], [(0, 1, 3), (12_000, 2, 3)]),
])
def test_rows_are_told_apart_as_in_the_view(bed: TestBed, query: str, key: list[str], rows: list[object]) -> None:
    """Where a view's columns are shown as they are, its query says what the KEY is; else all columns are."""
    bed.execute(f"CREATE MATERIALIZED VIEW o AS {query}")
    assert key_of(bed, "o") == key
    assert sorted(bed.rows("SELECT * FROM o")) == rows
    bed.execute("DELETE FROM t0")
    assert sorted(bed.rows("SELECT * FROM o")) == sorted(bed.rows(query))


def test_views_that_are_read_stay_as_they_are(bed: TestBed) -> None:
    """Also those behind views. A view may be given again as it is, and goes once no stream reads it any more."""
    bed.execute("CREATE STREAM s INTO o AS SELECT top FROM e.tops")
    for statement, reason in (
            ("DROP VIEW e.tops", "view e.tops is in use: stream s reads it"),
            ("DROP VIEW sums", "view d.sums is in use: stream s reads it"),
            ("CREATE OR REPLACE VIEW sums AS SELECT g, max(v) s FROM m GROUP BY g", "view d.sums is in use"),
            ("CREATE OR REPLACE VIEW sums (h) AS SELECT g, sum(v) s FROM m GROUP BY g", "view d.sums is in use"),
            ("DROP TABLE m", "table m is in use: stream s reads it"),
            ("ALTER STABLE m DROP COLUMN v", "column v of m is read by stream s"),
            ("DROP DATABASE e", "database e is used by stream s, whose target is in another database")):
        with pytest.raises(InUseError, match=reason):
            bed.execute(statement)
    bed.execute("CREATE OR REPLACE VIEW sums AS SELECT g, sum(v) s FROM m GROUP BY g")
    bed.execute(f"INSERT INTO t0 (ts, v) VALUES ({T0 + 1}, 7)")
    assert bed.rows("SELECT * FROM o") == [(10,)]
    bed.all("DROP STREAM s", "DROP VIEW e.tops", "CREATE OR REPLACE VIEW sums AS SELECT 1 x", "DROP VIEW sums")


def test_a_database_goes_with_its_views_and_streams(bed: TestBed) -> None:
    """Where nothing else reads them."""
    bed.all("DROP VIEW e.tops", "CREATE STREAM s INTO o AS SELECT * FROM sums", "DROP DATABASE d")
    assert bed.rows("SHOW STREAMS") == []


@pytest.mark.parametrize(("view", "query", "error", "reason"), [
    ("SELECT ts, rand() r FROM m", "SELECT ts FROM w", InvalidStreamError, "rand\\(\\) is not allowed in a stream"),
    ("SELECT ts, v FROM m WHERE ts > now - 1d", "SELECT ts, v FROM w", InvalidStreamError, "depends on the time at wh"),
    ("SELECT name FROM information_schema.ins_databases", "SELECT DISTINCT name FROM w", InvalidStreamError,
     "ins_databases is a system table"),
    ("SELECT 1 x", "SELECT DISTINCT x FROM w", InvalidStreamError, "a stream reads at least one table"),
    ("SELECT ts, v FROM gone", "SELECT ts, v FROM w", NotFoundError, "view d.below can't be read: table d.gone does"),
])
def test_what_a_view_may_have_and_no_stream_can_keep(
    bed: TestBed, view: str, query: str, error: type[PenstockError], reason: str
) -> None:
    """It is found in views of views, too."""
    bed.all("CREATE TABLE gone (ts TIMESTAMP, v INT)", f"CREATE VIEW below AS {view}",
            "CREATE VIEW w AS SELECT * FROM below", "DROP TABLE gone")
    with pytest.raises(error, match=reason):
        bed.execute(f"CREATE STREAM s INTO o AS {query}")
    assert bed.rows("SHOW STREAMS") == []


def test_options_of_windows_are_refused_with_the_reason(bed: TestBed) -> None:
    """What reads a view is computed again."""
    with pytest.raises(InvalidStreamError, match="TRIGGER is not for a stream with a view"):
        bed.execute("CREATE STREAM s TRIGGER WINDOW_CLOSE INTO o AS SELECT _wstart, sum(n) FROM tens INTERVAL(1m)")


def test_options_of_tasks_are_for_streams_that_they_keep(bed: TestBed) -> None:
    """Bounds and rates hold where tasks keep groups; where the engine computes again there is nothing to bound."""
    options = ["STATE_LIMIT '2MiB'", "SINK_RATE 1", "SINK_CALLS 10", "SOURCE_RATE 1000", "HISTORY_RATE 500",
               "GUARANTEE AT_LEAST_ONCE"]
    bed.execute(f"CREATE STREAM s {' '.join(options)} INTO o AS SELECT g, count(*) n FROM m GROUP BY g")
    told = bed.rows("SELECT state_limit, sink_quota, sink_calls_quota, source_quota, history_quota FROM "
                    "information_schema.ins_streams WHERE stream_name = 's'")
    assert told == [(2 << 20, "1 MB/s", "10 calls/s", "1000 rows/s", "500 rows/s")]
    for option in options:
        with pytest.raises(InvalidStreamError, match=f"{option.split()[0]} is not for a stream with a view"):
            bed.execute(f"CREATE STREAM r {option} INTO p AS SELECT g, s FROM sums")


def test_what_a_stream_reads_is_known_after_a_restart(tmp_path: Path) -> None:
    """The catalog has the views that it reads."""
    db = Embedded(tmp_path / "data")
    db.all("create database d vgroups 1", "use d", "create table t (ts timestamp, v int)",
           "create view w as select v, count(*) n from t group by v", "create view x as select * from w",
           "create materialized view o as select * from x")
    db.reopen()
    db.execute("use d")
    for view in "wx":
        with pytest.raises(InUseError, match=f"view d.{view} is in use: stream o reads it"):
            db.execute(f"drop view {view}")
    db.all("drop materialized view o", "drop view x", "drop view w")
    db.close()


@pytest.mark.parametrize(("query", "reason"), [
    ("SELECT ts, v, now AS seen FROM t0", "depends on the time at which it is asked"),
    ("SELECT ts, rand() AS r FROM t0", "rand\\(\\) is not allowed in a stream"),
    ("SELECT _wstart, count(*), now AS seen FROM m INTERVAL(10s)", "depends on the time at which it is asked"),
    ("SELECT _wstart, max(rand()) r FROM m INTERVAL(10s)", "rand\\(\\) is not allowed in a stream"),
    ("SELECT _wstart, count(*) FROM m WHERE ts > now - 1d INTERVAL(10s)", "depends on the time at which it is asked"),
])
def test_a_materialized_view_is_what_its_query_says_at_all_times(bed: TestBed, query: str, reason: str) -> None:
    """Also where a stream of the same query is computed from what changes, row by row and window by window."""
    with pytest.raises(InvalidStreamError, match=reason):
        bed.execute(f"CREATE MATERIALIZED VIEW o AS {query}")
    assert bed.rows("SHOW STREAMS") == []


def test_errors_of_a_materialized_view_name_it(bed: TestBed) -> None:
    """With the statement that drops it, and without INTO, which it doesn't have."""
    bed.execute("CREATE MATERIALIZED VIEW o (g PRIMARY KEY, v) AS SELECT g, v FROM m WHERE v < 2")
    for statement in ("DROP TABLE m", "DROP TABLE o", "ALTER STABLE m DROP COLUMN v"):
        with pytest.raises(InUseError, match=r"DROP MATERIALIZED VIEW o first"):
            bed.execute(statement)
    bed.execute(f"INSERT INTO t0 (ts, v) VALUES ({T0 + 5}, 0)")
    (reason,), = bed.rows("SELECT reason FROM information_schema.ins_streams")
    assert "several rows of the result have the same g" in reason
    assert "o (g PRIMARY KEY" in reason or "o (a PRIMARY KEY, b PRIMARY KEY, ...)" in reason


@pytest.mark.parametrize("query", ["SELECT g, count(*) n FROM m GROUP BY g",
                                   "SELECT max(v) v FROM m ORDER BY v LIMIT 1",
                                   "SELECT _wstart, count(*) n FROM m INTERVAL(10s)"])
@pytest.mark.parametrize("option", ["SINK_RATE 1", "STATE_LIMIT '1GiB'", "CHECKPOINT_INTERVAL 1m",
                                    "GUARANTEE AT_LEAST_ONCE"])
def test_a_materialized_view_stays_one(bed: TestBed, query: str, option: str) -> None:
    """ALTER STREAM would make a stream of it that may compute the query in another way, from another state."""
    bed.execute(f"CREATE MATERIALIZED VIEW o AS {query}")
    with pytest.raises(InvalidStreamError, match="o is a materialized view, which has no options"):
        bed.execute(f"ALTER STREAM o SET {option}")
    assert bed.rows("SHOW CREATE STREAM o") == [("o", f"CREATE MATERIALIZED VIEW o AS {query}")]
    bed.execute("DROP MATERIALIZED VIEW o")


@pytest.mark.parametrize("config", [
    {"maxFuture": "1d"}, {"streamTime": "processing"}, {"streamTime": "ingestion"}, {"allowedLateness": "1m"},
    {"closeWhenIdle": True}, {"onError": "skip"}, {"onError": "fail"}], ids=str)
def test_a_materialized_view_leaves_no_row_out_whatever_is_configured(config: dict[str, object]) -> None:
    """Defaults are for streams: rows from the future count, late ones, and those that can't be computed."""
    query = "SELECT _wstart, count(*) n, max(cast(s AS INT)) x FROM m INTERVAL(10s)"
    with TestBed(now_ms=T0, config=config) as bed:
        bed.all("CREATE DATABASE d VGROUPS 1 KEEP 36500", "USE d", "CREATE TABLE m (ts TIMESTAMP, s VARCHAR(8))",
                f"INSERT INTO m VALUES ({T0}, '1')", f"CREATE MATERIALIZED VIEW o AS {query}",
                f"INSERT INTO m VALUES ({T0 + 10 * 86_400_000}, '2')", f"INSERT INTO m VALUES ({T0 + 1}, 'x')")
        assert bed.rows("SELECT _wstart, n FROM o ORDER BY _wstart") == [(0, 2), (864_000_000, 1)]
        assert bed.rows("SELECT _wstart, n, x FROM o ORDER BY _wstart") == bed.rows(query)
        assert bed.rows("SHOW CREATE STREAM o") == [("o", f"CREATE MATERIALIZED VIEW o AS {query}")]
