"""CREATE STREAM with a trigger of its own: what is read, how it prints, and what is refused."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.errors import SqlSyntaxError
from penstock.sql.dialect.generator import print_sql, print_stream
from penstock.sql.dialect.parser import parse_one
from penstock.sql.tree.statements import (
    CountWindow,
    CreateStream,
    Duration,
    EventWindow,
    IntervalWindow,
    SessionWindow,
    StateWindow,
)

TRIGGERS = [
    "PERIOD(10s)", "PERIOD(1h, 5m)", "SLIDING(10m)", "SLIDING(1d, 8h)", "SLIDING(2d)",
    "INTERVAL(10s) SLIDING(5s)", "INTERVAL(1d, 2h) SLIDING(1d)", "INTERVAL(1n) SLIDING(1n)", "SESSION(ts, 5s)",
    "STATE_WINDOW(x)", "STATE_WINDOW(CASE WHEN v > 3 THEN 1 ELSE 0 END) TRUE_FOR(5s)",
    "EVENT_WINDOW(START WITH v > 1 AND x = 2 END WITH v < 1)",
    "EVENT_WINDOW(START WITH v > 1 END WITH v < 1) TRUE_FOR(3s)", "COUNT_WINDOW(3)", "COUNT_WINDOW(3, 2)",
    "COUNT_WINDOW(3, 2, v, x)", "COUNT_WINDOW(3, v)",
]
OPTIONS = [
    "WATERMARK(5s)", "EXPIRED_TIME(1h)", "IGNORE_DISORDER", "DELETE_RECALC", "FILL_HISTORY",
    "FILL_HISTORY('2024-01-01')", "FILL_HISTORY_FIRST(1700000000000)", "CALC_NOTIFY_ONLY", "LOW_LATENCY_CALC",
    "PRE_FILTER(v > 1 OR x IS NULL)", "FORCE_OUTPUT", "MAX_DELAY(3s)", "EVENT_TYPE(WINDOW_OPEN)",
    "EVENT_TYPE(WINDOW_OPEN|WINDOW_CLOSE)", "IGNORE_NODATA_TRIGGER",
]
NOTIFIES = [
    "", "NOTIFY('ws://localhost:8080/a')", "NOTIFY('ws://localhost:8080/a', 'ws://localhost/b') ON (WINDOW_OPEN)",
    "NOTIFY('ws://localhost:8080/a') ON (WINDOW_OPEN | WINDOW_CLOSE) WHERE c > 1 "
    "NOTIFY_OPTIONS(NOTIFY_HISTORY | ON_FAILURE_PAUSE)",
]
TARGETS = [
    "INTO o", "INTO e.o", "INTO o (a, b)", "INTO o (a, b COMPOSITE KEY, c)",
    "INTO o OUTPUT_SUBTABLE(concat('o_', %%tbname)) (a, b) TAGS (name VARCHAR(32) AS %%tbname, twice INT AS %%2 * 2)",
    "INTO o TAGS (place VARCHAR(20) COMMENT 'where it is' AS upper(%%1))",
]
QUERIES = [
    "SELECT _twstart, _twend, _twduration, _twrownum, _tgrpid, _tlocaltime, count(*) FROM %%trows",
    "SELECT _tprev_ts, _tcurrent_ts, _tnext_ts, %%1, %%2, %%tbname FROM m",
    "SELECT a.ts, b.v FROM %%tbname AS a JOIN %%trows AS b ON a.ts = b.ts WHERE a.ts < _twend",
    "WITH r AS (SELECT ts FROM %%trows) SELECT ts, (SELECT max(v) FROM %%tbname) FROM r UNION ALL SELECT ts, 1 FROM n",
    "SELECT _tprev_localtime, _tnext_localtime FROM m WHERE `_twstart` > 1",
]


def create(rest: str) -> CreateStream:
    statement = parse_one(f"CREATE STREAM s {rest}")
    assert isinstance(statement, CreateStream)
    return statement


def read_back(statement: CreateStream) -> CreateStream:
    """Returns what its text is read as, which must print in the same way."""
    text = print_sql(statement)
    again = parse_one(text)
    assert print_sql(again) == text
    assert isinstance(again, CreateStream)
    return again


def assert_read_back(text: str) -> None:
    statement = parse_one(text)
    assert isinstance(statement, CreateStream)
    assert statement.calculation is not None
    assert read_back(statement) == statement, print_sql(statement)
    assert parse_one(print_stream(statement)) == statement


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_each_trigger_is_read_back(trigger: str) -> None:
    """Over a super table by groups, and over one table."""
    assert_read_back(f"CREATE STREAM s {trigger} FROM m PARTITION BY tbname, x INTO o AS SELECT _tlocaltime, 1 FROM m")
    assert_read_back(f"CREATE STREAM IF NOT EXISTS e.s {trigger} FROM d.t INTO o AS SELECT 1, 2 FROM m")


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_is_read_back(option: str) -> None:
    """Alone, whatever its case."""
    told = "NOTIFY('http://h/x') ON (WINDOW_CLOSE) INTO o AS SELECT 1, 2 FROM m"
    assert_read_back(f"CREATE STREAM s SESSION(ts, 5s) FROM m STREAM_OPTIONS({option}) {told}")
    assert_read_back(f"CREATE STREAM s session(ts, 5s) from m stream_options( {option.lower()} ) {told.lower()}")


@pytest.mark.parametrize("notify", NOTIFIES[1:])
def test_who_is_told_is_read_back(notify: str) -> None:
    """With results that are kept, and alone."""
    notify = notify if " ON " in notify else f"{notify} ON (WINDOW_CLOSE)"
    assert_read_back(f"CREATE STREAM s SESSION(ts, 5s) FROM m {notify} INTO o AS SELECT 1 a, 2 c FROM m")
    if " WHERE " not in notify:
        assert_read_back(f"CREATE STREAM s SESSION(ts, 5s) FROM m {notify}")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("query", QUERIES)
def test_targets_and_queries_are_read_back(target: str, query: str) -> None:
    """All that stands for what a trigger gives, in all places."""
    assert_read_back(f"CREATE STREAM s INTERVAL(1m) SLIDING(30s) FROM m PARTITION BY tbname, x {target} AS {query}")


def test_period_needs_no_table() -> None:
    """The clock fires it."""
    statement = create("PERIOD(1h) INTO o AS SELECT _tlocaltime, 1 FROM m")
    assert statement.calculation is not None
    assert statement.calculation.period == Duration(1, "h")
    assert statement.select.source is None
    assert_read_back("CREATE STREAM s PERIOD(1h) INTO o AS SELECT cast(_tlocaltime AS TIMESTAMP), 1 FROM m")


@given(st.sampled_from(TRIGGERS), st.permutations(OPTIONS), st.integers(0, 5), st.sampled_from(NOTIFIES),
       st.sampled_from(TARGETS), st.sampled_from(QUERIES))
def test_any_combination_is_read_back(
    trigger: str, options: list[str], count: int, notify: str, target: str, query: str
) -> None:
    """Whatever stands beside what, the text of the tree is read as that tree."""
    kinds = [next(iter(some)) for _, some in itertools.groupby(
        sorted(options[:count]), lambda option: option.partition("(")[0].removesuffix("_FIRST"))]
    given_options = f"STREAM_OPTIONS({' | '.join(kinds)})" if kinds else ""
    if "CALC_NOTIFY_ONLY" in kinds:
        notify = notify or "NOTIFY('http://h/x')"
    if notify and " ON " not in notify:
        notify += " ON (WINDOW_CLOSE)"
    assert_read_back(f"CREATE STREAM s {trigger} FROM d.m PARTITION BY tbname, x {given_options} {notify} {target} "
                     f"AS {query}")


# --- what they mean -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("trigger", "kind"), [
    ("INTERVAL(2s) SLIDING(1s)", IntervalWindow), ("SLIDING(1s)", IntervalWindow), ("SESSION(ts, 1s)", SessionWindow),
    ("STATE_WINDOW(x)", StateWindow), ("EVENT_WINDOW START WITH x > 1 END WITH x < 1", EventWindow),
    ("COUNT_WINDOW(2)", CountWindow),
])
def test_the_rows_of_a_trigger_are_its_windows(trigger: str, kind: type) -> None:
    """The trigger's own query has the window, and the keys of PARTITION BY behind start, end and rows."""
    statement = create(f"{trigger} FROM m PARTITION BY tbname INTO o AS SELECT _tlocaltime, 1 FROM n")
    assert isinstance(statement.select.window, kind)
    assert [item.alias for item in statement.select.items] == ["_wstart", "_wend", "_twrownum", "_group1"]
    assert statement.calculation is not None
    assert statement.calculation.query != statement.query


def test_events_may_stand_in_parentheses_or_not() -> None:
    """TDengine writes them with, queries have them without."""
    one, other = (create(f"EVENT_WINDOW{text} FROM m INTO o AS SELECT 1, 2 FROM n") for text in (
        "(START WITH (v) > 1 END WITH v < 1)", " START WITH (v) > 1 END WITH v < 1"))
    assert one.select.window == other.select.window


def test_windows_without_rows_fire_unless_they_are_not_to() -> None:
    """Those of an interval; others always have rows."""
    for trigger, option, filled in (
            ("INTERVAL(1s) SLIDING(1s)", "", True), ("SLIDING(1s)", "", True), ("SESSION(ts, 1s)", "", False),
            ("INTERVAL(1s) SLIDING(1s)", "STREAM_OPTIONS(IGNORE_NODATA_TRIGGER)", False)):
        statement = create(f"{trigger} FROM m {option} INTO o AS SELECT 1, 2 FROM n")
        assert (statement.select.fill is not None) is filled, trigger


def test_what_is_counted_is_a_condition() -> None:
    """COUNT_WINDOW with columns counts rows in which one of these has a value, of those that PRE_FILTER lets pass."""
    statement = create("COUNT_WINDOW(2, 1, v, x) FROM m STREAM_OPTIONS(PRE_FILTER(v > 1 OR x > 1)) "
                       "INTO o AS SELECT 1, 2 FROM n")
    other = create("COUNT_WINDOW(2, 1) FROM m STREAM_OPTIONS(PRE_FILTER((v > 1 OR x > 1) AND (NOT v IS NULL OR NOT x "
                   "IS NULL))) INTO o AS SELECT 1, 2 FROM n")
    assert statement.select == other.select


# --- what is refused ------------------------------------------------------------------------------------------------

_TO = "INTO o AS SELECT 1, 2 FROM n"


@pytest.mark.parametrize(("statement", "message"), [
    (f"SESSION(ts, 1s) FROM m STREAM_OPTIONS(NONSENSE) {_TO}", "an option of a stream is expected"),
    (f"SESSION(ts, 1s) FROM m STREAM_OPTIONS() {_TO}", "an option of a stream is expected"),
    (f"SESSION(ts, 1s) FROM m STREAM_OPTIONS(WATERMARK(1s) | FORCE_OUTPUT | WATERMARK(1s)) {_TO}",
     "WATERMARK is given twice"),
    (f"SESSION(ts, 1s) FROM m STREAM_OPTIONS(FILL_HISTORY | FILL_HISTORY_FIRST) {_TO}",
     "FILL_HISTORY_FIRST is given twice"),
    (f"SESSION(ts, 1s) FROM m STREAM_OPTIONS(DELETE_OUTPUT_TABLE) {_TO}", "DELETE_OUTPUT_TABLE is not supported"),
    (f"SESSION(ts, 1s) FROM m STREAM_OPTIONS(MAX_DELAY(2s)) {_TO}", "MAX_DELAY is at least 3s"),
    (f"SESSION(ts, 1s) FROM m STREAM_OPTIONS(EXPIRED_TIME(1n)) {_TO}", "cannot be in months or years"),
    (f"SESSION(ts, 1s) FROM m STREAM_OPTIONS(EVENT_TYPE(WINDOW_SHUT)) {_TO}",
     "WINDOW_OPEN or WINDOW_CLOSE is expected"),
    ("SESSION(ts, 1s) FROM m INTO o", "AS and a query are expected"),
    ("SESSION(ts, 1s) FROM m", "the stream would do nothing"),
    ("SESSION(ts, 1s) FROM m AS SELECT 1, 2 FROM n", "INTO is expected"),
    ("SESSION(ts, 1s) FROM m INTO o AS n", "SELECT is expected"),
    (f"SESSION(ts, 1s) {_TO}", "only PERIOD needs none"),
    (f"PERIOD(9a) {_TO}", "PERIOD is from 10a to 3650d"),
    (f"PERIOD(3651d) {_TO}", "PERIOD is from 10a to 3650d"),
    (f"PERIOD(1n) {_TO}", "the period is a time with its unit"),
    (f"PERIOD(10) {_TO}", "the period is a time with its unit"),
    (f"PERIOD(1h, 1d) {_TO}", "the offset is shorter than a day"),
    (f"SLIDING(7h) FROM m {_TO}", "divides a day, or is of whole days"),
    (f"SLIDING(25h) FROM m {_TO}", "divides a day, or is of whole days"),
    (f"SLIDING(1h, 24h) FROM m {_TO}", "the offset is shorter than a day"),
    (f"INTERVAL(1h) FROM m {_TO}", "SLIDING is expected"),
    (f"SESSION(ts, 1s) FROM m PARTITION tbname {_TO}", "BY"),
    ("SESSION(ts, 1s) FROM m PARTITION BY tbname, x INTO o TAGS (n INT AS %%5) AS SELECT 1, 2 FROM n",
     "%%5 is not there: PARTITION BY has 2 columns"),
    ("SESSION(ts, 1s) FROM m PARTITION BY tbname INTO o TAGS (n INT AS %%0) AS SELECT 1, 2 FROM n",
     "%%0 is not there: PARTITION BY has 1 columns"),
    ("SESSION(ts, 1s) FROM m INTO o OUTPUT_SUBTABLE('x') AS SELECT 1, 2 FROM n", "OUTPUT_SUBTABLE needs PARTITION BY"),
    ("SESSION(ts, 1s) FROM m INTO o TAGS (n INT AS 1) AS SELECT 1, 2 FROM n", "TAGS need PARTITION BY"),
    ("SESSION(ts, 1s) FROM m PARTITION BY x INTO o TAGS (n INT) AS SELECT 1, 2 FROM n", "AS is expected"),
    ("SESSION(ts, 1s) FROM m NOTIFY('ws://a/b')", "ON and the events are expected"),
    ("SESSION(ts, 1s) FROM m NOTIFY('ws://a/b') ON (WINDOW_CLOSE) NOTIFY_OPTIONS(LOUD)",
     "NOTIFY_HISTORY or ON_FAILURE_PAUSE is expected"),
    ("SESSION(ts, 1s) FROM m NOTIFY('ws://a/b') ON (WINDOW_CLOSE) NOTIFY_OPTIONS(NOTIFY_HISTORY | NOTIFY_HISTORY)",
     "NOTIFY_HISTORY is given twice"),
    ("SESSION(ts, 1s) FROM m INTO o AS SELECT 1, 2 FROM %%rows", "%%trows or %%tbname is expected"),
    ("SESSION(ts, 1s) FROM m INTO o AS SELECT 1, %%trows FROM m", "%%tbname, or %% and the number"),
    (f"SESSION(ts, 1s) FROM %%trows {_TO}", "the trigger's table is expected"),
    (f"SESSION(ts, 1s) FROM m STREAM_OPTIONS(PRE_FILTER(%%1 = 1)) {_TO}",
     "%% is for queries of streams with a trigger of their own"),
    ("INTO o AS SELECT _wstart, count(*) FROM %%trows INTERVAL(1s)",
     "%% is for queries of streams with a trigger of their own"),
])
def test_what_makes_no_sense_is_refused(statement: str, message: str) -> None:
    """With words that say what to do."""
    with pytest.raises(SqlSyntaxError, match=re.escape(message)):
        create(statement)


@pytest.mark.parametrize("query", ["SELECT * FROM %%trows", "SELECT %%1", "SELECT v FROM m WHERE tbname = %%tbname"])
def test_other_statements_have_no_trigger(query: str) -> None:
    """Queries, views and streams of the older form know none of it, after one of the newer form either."""
    create(f"SESSION(ts, 1s) FROM m PARTITION BY x INTO o AS {query}")
    for text in (query, f"CREATE VIEW w AS {query}", f"CREATE STREAM s INTO o AS {query}"):
        with pytest.raises(SqlSyntaxError, match="%% is for queries of streams with a trigger of their own"):
            parse_one(text)


def test_modulo_stays_what_it_is() -> None:
    """A single % between operands divides, also in queries of triggers."""
    statement = create("SESSION(ts, 1s) FROM m PARTITION BY x INTO o AS SELECT ts, v % 2, v % %%1 FROM %%trows")
    assert statement.calculation is not None
    assert statement.calculation.query is not None
    assert print_sql(statement.calculation.query) == "SELECT ts, v % 2, v % %%1 FROM %%trows"
    assert read_back(statement) == statement


def test_only_the_newer_form_has_a_database() -> None:
    """The name of a stream of the older form is a word."""
    with pytest.raises(SqlSyntaxError, match="only streams with a trigger of their own name a database"):
        parse_one("CREATE STREAM d.s INTO o AS SELECT _wstart, count(*) FROM m INTERVAL(1s)")
