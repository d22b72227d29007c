"""CREATE STREAM of the one form as one of the other: the statements, what differs, and what has no equal."""

from __future__ import annotations

import pytest
from conftest import combined

from penstock.common.errors import NotSupportedError
from penstock.planner.streams.stream_forms import Form, Translated, form_of, in_form
from penstock.sql.dialect.generator import print_sql
from penstock.sql.dialect.parser import parse_one
from penstock.sql.tree.statements import CreateStream

NO_TAGS = "t has a tag per column of PARTITION BY, and no group_id"
GROUP_ID = "t has the tag group_id, and none per column of PARTITION BY"
NORMAL = "t is a normal table: without PARTITION BY there are no child tables and no tags"
MIXED = ("IGNORE EXPIRED 1 with IGNORE UPDATE 0 has no equal: late rows and updates count now, or neither with "
         "IGNORE_DISORDER")
LATE = "a late row that is there when its window is computed counts in the newer form alone"
OLD = "CREATE STREAM s TRIGGER WINDOW_CLOSE IGNORE EXPIRED 0 IGNORE UPDATE 0 "


def created(text: str) -> CreateStream:
    statement = parse_one(text)
    assert isinstance(statement, CreateStream)
    return statement


def translated(text: str) -> Translated:
    statement = created(text)
    form: Form = "old" if form_of(statement) == "new" else "new"
    found = in_form(statement, form, text)
    assert form_of(found.statement) == form
    assert parse_one(print_sql(found.statement)) == found.statement
    return found


@pytest.mark.parametrize(("text", "expected", "notes"), [
    pytest.param(
        OLD + "INTO t AS SELECT _wstart, AVG( v ), tbname FROM m PARTITION BY tbname INTERVAL(10s)",
        "CREATE STREAM s INTERVAL(10s) SLIDING(10s) FROM m PARTITION BY tbname STREAM_OPTIONS(IGNORE_NODATA_TRIGGER) "
        "INTO t AS SELECT _twstart AS _wstart, avg(v) AS `AVG( v )`, %%1 AS tbname FROM %%trows", [NO_TAGS],
        id="columns keep their names"),
    pytest.param(
        "CREATE STREAM IF NOT EXISTS s IGNORE UPDATE 1 WATERMARK 5s FILL_HISTORY 1 INTO d.t (ts, n) TAGS (g "
        "VARCHAR(9)) SUBTABLE(concat('x', g)) AS SELECT _wstart, count(*) FROM d.m a WHERE a.v > 0 PARTITION BY a.site "
        "g SESSION(a.ts, 5s) NOTIFY ('ws://h/p') ON ('WINDOW_OPEN', 'WINDOW_CLOSE') NOTIFY_HISTORY 1 ON_FAILURE DROP",
        "CREATE STREAM IF NOT EXISTS s SESSION(ts, 5s) FROM d.m PARTITION BY site AS g STREAM_OPTIONS(WATERMARK(5s) | "
        "IGNORE_DISORDER | FILL_HISTORY | PRE_FILTER(v > 0)) NOTIFY('ws://h/p') ON (WINDOW_OPEN | WINDOW_CLOSE) "
        "NOTIFY_OPTIONS(NOTIFY_HISTORY) INTO d.t OUTPUT_SUBTABLE(concat('x', g)) (ts, n) TAGS (g VARCHAR(9) AS site) "
        "AS SELECT _twstart AS _wstart, count(*) FROM %%trows", [LATE], id="all clauses"),
    pytest.param(
        "CREATE STREAM s TRIGGER MAX_DELAY 7s LATENCY 0 INTO t AS SELECT count(*), _wend - _wstart FROM m INTERVAL(1m) "
        "SLIDING(10s)",
        "CREATE STREAM s INTERVAL(1m) SLIDING(10s) FROM m STREAM_OPTIONS(MAX_DELAY(7s) | IGNORE_NODATA_TRIGGER | "
        "LOW_LATENCY_CALC) INTO t AS SELECT _twstart AS _wstart, count(*), _twend - _twstart AS `_wend - _wstart` FROM "
        "%%trows", [MIXED, LATE, NORMAL], id="a time before the rest"),
    pytest.param(
        OLD + "SINK_RATE 1 FILL_HISTORY 1 ASYNC INTO t TAGS (b VARCHAR(9)) AS SELECT _wstart, s, count(*) FROM m "
        "PARTITION BY tbname b STATE_WINDOW(s) TRUE_FOR(3s)",
        "CREATE STREAM s STATE_WINDOW(s) TRUE_FOR(3s) FROM m PARTITION BY tbname AS b STREAM_OPTIONS(FILL_HISTORY | "
        "PRE_FILTER(s IS NOT NULL)) INTO t TAGS (b VARCHAR(9) AS tbname) AS SELECT _twstart AS _wstart, first(s) AS s, "
        "count(*) FROM %%trows",
        ["SINK_RATE is of the older form, and left out", "FILL_HISTORY is without ASYNC"], id="state"),
    pytest.param(
        "CREATE OR REPLACE STREAM s WATERMARK 1s INTO t AS SELECT _wstart, site, count(*) FROM m PARTITION BY tbname, "
        "site COUNT_WINDOW(5, 2, v)",
        "CREATE STREAM s COUNT_WINDOW(5, 2) FROM m PARTITION BY tbname, site AS tag_site STREAM_OPTIONS(WATERMARK(1s) "
        "| PRE_FILTER((v IS NOT NULL))) INTO t AS SELECT _twstart AS _wstart, %%2 AS site, count(*) FROM %%trows",
        [LATE, NO_TAGS, "OR REPLACE is of the older form: drop the stream first"], id="count"),
    pytest.param(
        OLD + "INTO t AS SELECT _wstart, avg(v), count(*) FROM m INTERVAL(10s) FILL(NULL)",
        "CREATE STREAM s INTERVAL(10s) SLIDING(10s) FROM m INTO t AS SELECT _twstart AS _wstart, avg(v), count(*) FROM "
        "%%trows", [NORMAL, "of no rows count(*) is NULL in the older form, 0 in the newer one"], id="fill"),
    pytest.param(
        OLD + "INTO t AS SELECT _wstart, max(v) FROM m INTERVAL(10s) FILL(VALUE, 3)",
        "CREATE STREAM s INTERVAL(10s) SLIDING(10s) FROM m STREAM_OPTIONS(FORCE_OUTPUT) INTO t AS SELECT _twstart AS "
        "_wstart, max(v) FROM %%trows", [NORMAL, "FILL(VALUE, ...) is FILL(NULL) now"], id="fill with a value"),
    pytest.param(
        "CREATE STREAM s INTERVAL(10s) SLIDING(10s) FROM m PARTITION BY tbname INTO t AS SELECT _twstart, count(*) "
        "FROM %%trows",
        OLD + "INTO t AS SELECT _wstart AS _twstart, count(*) FROM m PARTITION BY tbname INTERVAL(10s) FILL(NULL)",
        [GROUP_ID, "of no rows count(*) is NULL in the older form, 0 in the newer one"], id="windows without rows"),
    pytest.param(
        "CREATE STREAM s INTERVAL(10s) SLIDING(10s) FROM m PARTITION BY tbname STREAM_OPTIONS(PRE_FILTER(v > 0) | "
        "IGNORE_NODATA_TRIGGER) INTO t AS SELECT _twstart, avg(v), _twrownum n, %%tbname b FROM %%trows",
        OLD + "INTO t AS SELECT _wstart AS _twstart, avg(v), count(*) AS n, tbname AS b FROM m WHERE v > 0 PARTITION "
        "BY tbname INTERVAL(10s)", [GROUP_ID], id="placeholders back"),
    pytest.param(
        "CREATE STREAM d.s INTERVAL(10s) SLIDING(5s) FROM m PARTITION BY tbname, site STREAM_OPTIONS(MAX_DELAY(3s) | "
        "FILL_HISTORY('2024-01-01') | DELETE_RECALC) INTO t OUTPUT_SUBTABLE(concat('a', %%2)) TAGS (place VARCHAR(9) "
        "AS site) AS SELECT _twstart, avg(v) FROM %%tbname WHERE ts >= _twstart AND _twend > ts AND site = %%2 "
        "AND v < 5",
        "CREATE STREAM s TRIGGER MAX_DELAY 5s IGNORE EXPIRED 0 IGNORE UPDATE 0 FILL_HISTORY 1 INTO d.t TAGS (place "
        "VARCHAR(9)) SUBTABLE(concat('a', site)) AS SELECT _wstart AS _twstart, avg(v) FROM d.m WHERE v < 5 AND _c0 >= "
        "('2024-01-01') PARTITION BY tbname, site AS place INTERVAL(10s) SLIDING(5s)",
        ["ts is taken for the time of m", "windows in which no row meets the query's condition have no result",
         "the time of FILL_HISTORY is a condition of WHERE",
         "a stream of the older form has no database: tables are named with d", "MAX_DELAY is at least 5s",
         "DELETE_RECALC is left out: the older form computes again whatever is deleted"], id="the window's range"),
    pytest.param(
        "CREATE STREAM s COUNT_WINDOW(3) FROM c STREAM_OPTIONS(PRE_FILTER(v > 0)) INTO t AS SELECT _twstart, max(v) "
        "FROM c WHERE v > 0 AND _c0 BETWEEN _twstart AND _twend",
        "CREATE STREAM s TRIGGER WINDOW_CLOSE WATERMARK 1a IGNORE EXPIRED 1 IGNORE UPDATE 0 INTO t AS SELECT _wstart "
        "AS _twstart, max(v) FROM c WHERE v > 0 COUNT_WINDOW(3)",
        [LATE, "t is a super table with one child table, not a normal table",
         "COUNT_WINDOW needs a WATERMARK: 1a is the least"], id="one table"),
    pytest.param(
        "CREATE STREAM s STATE_WINDOW(s) FROM m PARTITION BY tbname INTO t TAGS (b VARCHAR(9) AS tbname) AS SELECT "
        "_twstart, sum(v) FROM %%trows",
        OLD + "INTO t TAGS (b VARCHAR(9)) AS SELECT _wstart AS _twstart, sum(v) FROM m PARTITION BY tbname AS b "
        "STATE_WINDOW(s)", ["rows count only if s IS NOT NULL"], id="rows without a state"),
])
def test_pairs(text: str, expected: str, notes: list[str]) -> None:
    """The other form says the same, and differences are told."""
    found = translated(text)
    assert print_sql(found.statement) == expected
    assert sorted(found.notes) == sorted(notes)


@pytest.mark.parametrize(("text", "reason", "place"), [
    ("CREATE STREAM s TRIGGER AT_ONCE INTO t AS SELECT _wstart, count(*) FROM m INTERVAL(1m)", "TRIGGER AT_ONCE",
     "TRIGGER"),
    ("CREATE STREAM s TRIGGER FORCE_WINDOW_CLOSE INTO t AS SELECT _wstart, count(*) FROM m INTERVAL(1m)",
     "TRIGGER FORCE_WINDOW_CLOSE", "TRIGGER"),
    ("CREATE STREAM s LATE DLQ d INTO t AS SELECT _wstart, count(*) FROM m INTERVAL(1m)", "LATE is", "LATE"),
    ("CREATE STREAM s TIME INGESTION INTO t AS SELECT _wstart, count(*) FROM m INTERVAL(1m)", "TIME is", "TIME"),
    ("CREATE STREAM s INTO t AS SELECT site, count(*) FROM m GROUP BY site", "GROUP BY", "SELECT"),
    ("CREATE STREAM s INTO t AS SELECT ts, v FROM m PARTITION BY tbname", "no window", "SELECT"),
    ("CREATE STREAM s INTO t AS SELECT a.ts, a.v FROM a JOIN b ON a.ts = b.ts", "a join", "SELECT"),
    ("CREATE STREAM s INTO t AS SELECT 1 UNION SELECT 2", "more than one SELECT", None),
    ("CREATE STREAM s INTO t AS SELECT _wstart, count(*) FROM m INTERVAL(1m) FILL(PREV)", "FILL(PREV)", "SELECT"),
    ("CREATE STREAM s INTO t AS SELECT _wstart, site, count(*) FROM m PARTITION BY tbname INTERVAL(1m)",
     "site is no value of a window", "site"),
    ("CREATE STREAM s INTO t TAGS (g) AS SELECT _wstart, count(*) FROM m PARTITION BY site g INTERVAL(1m)",
     "TAGS without types", "t"),
    ("CREATE STREAM s INTO CONNECTION c (TOPIC 'x') AS SELECT _wstart, count(*) FROM m INTERVAL(1m)",
     "INTO CONNECTION", "c"),
    ("CREATE MATERIALIZED VIEW s AS SELECT _wstart, count(*) FROM m INTERVAL(1m)", "a materialized view", "CREATE"),
    ("CREATE STREAM s PERIOD(10s) FROM m INTO t AS SELECT _tlocaltime, count(*) FROM m", "PERIOD", "CREATE"),
    ("CREATE STREAM s SLIDING(10s) FROM m INTO t AS SELECT _tcurrent_ts, count(*) FROM m", "SLIDING", "CREATE"),
    ("CREATE STREAM s SESSION(ts, 5s) FROM m NOTIFY('ws://h/p') ON (WINDOW_CLOSE)", "no results", "CREATE"),
    ("CREATE STREAM s SESSION(ts, 5s) FROM m STREAM_OPTIONS(EXPIRED_TIME(1d)) INTO t AS SELECT _twstart, count(*) FROM "
     "%%trows", "EXPIRED_TIME", "CREATE"),
    ("CREATE STREAM s SESSION(ts, 5s) FROM m STREAM_OPTIONS(FORCE_OUTPUT) INTO t AS SELECT _twstart, max(v) FROM "
     "%%trows", "FORCE_OUTPUT", "CREATE"),
    ("CREATE STREAM s SESSION(ts, 5s) FROM m INTO t AS SELECT _twend, count(*) FROM %%trows", "begin with _twstart",
     "_twend"),
    ("CREATE STREAM s SESSION(ts, 5s) FROM m INTO t AS SELECT _twstart, v FROM %%trows", "aggregate", "SELECT"),
    ("CREATE STREAM s SESSION(ts, 5s) FROM m INTO t AS SELECT _twstart, count(*), _tgrpid FROM %%trows", "_tgrpid",
     "_tgrpid"),
    ("CREATE STREAM s SESSION(ts, 5s) FROM m INTO t AS SELECT _twstart, count(*) FROM %%trows WHERE v > 5",
     "leaves out rows", "v > 5"),
    ("CREATE STREAM s SESSION(ts, 5s) FROM m INTO t AS SELECT _twstart, count(*) FROM m WHERE ts >= _twstart AND ts < "
     "_twend", "other rows", "m"),
    ("CREATE STREAM s INTERVAL(5s) SLIDING(5s) FROM m INTO t AS SELECT _twstart, count(*) FROM m WHERE ts >= _twstart "
     "AND v < _twend", "other rows", "m"),
    ("CREATE STREAM s SESSION(ts, 5s) FROM m PARTITION BY site INTO t AS SELECT _twstart, count(*) FROM m WHERE ts >= "
     "_twstart AND ts <= _twend", "other rows", "m"),
    ("CREATE STREAM s SESSION(ts, 5s) FROM m STREAM_OPTIONS(PRE_FILTER(v > 0)) INTO t AS SELECT _twstart, count(*) "
     "FROM m WHERE ts >= _twstart AND ts <= _twend", "PRE_FILTER", "m"),
    ("CREATE STREAM s SESSION(ts, 5s) FROM m INTO t AS SELECT _twstart, count(*) FROM n WHERE ts >= _twstart",
     "reads n", "n"),
    ("CREATE STREAM s SESSION(ts, 5s) FROM m INTO t AS SELECT _twstart, count(*) FROM %%trows a JOIN n ON a.ts = n.ts",
     "a join", "SELECT"),
    ("CREATE STREAM s SESSION(ts, 5s) FROM m INTO t AS SELECT _twstart, count(*) FROM %%trows HAVING count(*) > 1",
     "HAVING", "SELECT"),
])
def test_no_equal(text: str, reason: str, place: str | None) -> None:
    """The error names what has no equal, where it stands, and what comes nearest."""
    with pytest.raises(NotSupportedError) as caught:
        translated(text)
    assert reason in caught.value.message
    assert caught.value.hint
    assert caught.value.position is not None
    if place is not None:
        at = caught.value.position
        assert text[at.column - 1:].startswith(at.text)
        assert at.text == place


WINDOWS = ("INTERVAL(10s)", "INTERVAL(10s) FILL(NULL)", "INTERVAL(1d, 5h) SLIDING(6h)", "SESSION(ts, 5s)",
           "STATE_WINDOW(s)", "EVENT_WINDOW START WITH v > 2 END WITH v < 2 TRUE_FOR(1s)")


@pytest.mark.parametrize(("window", "around", "late", "where", "columns", "trigger"), combined(
    WINDOWS, ("", "FILL_HISTORY 1", "LATENCY 0"), (0, 1), ("", "WHERE v > 0", "WHERE (v > 0 OR f(v) = 2) AND u < 3"),
    ("", "(ts, a PRIMARY KEY, b)"), ("WINDOW_CLOSE", "MAX_DELAY 6s")))
def test_there_and_back(window: str, around: str, late: int, where: str, columns: str, trigger: str) -> None:
    """A statement that is translated without a note comes back as it was, and so does what it becomes."""
    text = (f"CREATE STREAM s TRIGGER {trigger} WATERMARK 3s IGNORE EXPIRED {late} IGNORE UPDATE {late} {around} "
            f"INTO t {columns} TAGS (b VARCHAR(9), site INT) SUBTABLE(concat('x', b)) AS SELECT _wstart AS "
            f"_wstart, avg(v), site AS place FROM m {where} PARTITION BY tbname b, site {window}")
    there = translated(text)
    back = translated(print_sql(there.statement))
    assert there.notes == back.notes == ((LATE,) if late else ())
    assert translated(print_sql(back.statement)).statement == there.statement
    # A column that is called as its expression needs no name.
    unnamed = created(text.replace("_wstart AS _wstart", "_wstart"))
    assert back.statement == unnamed


@pytest.mark.parametrize("text", [
    "CREATE STREAM s INTO t AS SELECT site, count(*) FROM m GROUP BY site",
    "CREATE STREAM s PERIOD(10s) NOTIFY('ws://h/p')"])
def test_a_statement_that_has_the_form_stays(text: str) -> None:
    """Nothing is asked of it, whatever it is."""
    statement = created(text)
    assert in_form(statement, form_of(statement), text) == Translated(statement)
