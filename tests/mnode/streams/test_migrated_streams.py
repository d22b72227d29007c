"""Streams of both forms, of which one is translated from the other, have the same results."""

from __future__ import annotations

import pytest
from kits.engines.sandboxes import T0, TestBed

from penstock.planner.streams.stream_forms import form_of, in_form
from penstock.sql.dialect.generator import print_sql
from penstock.sql.dialect.parser import parse_one
from penstock.sql.tree.statements import CreateStream

ROWS = ((0, 1, 1), (1, 3, 1), (2, 4, None), (4, 1, 1), (15, 7, 2), (16, 5, 2), (41, 2, None), (42, 3, 3), (60, 3, 3),
        (80, 1, 3), (120, 1, 4), (200, 6, 5))
LATE = (45, 9, 3)
TAGS = "TAGS (b VARCHAR(9), place VARCHAR(9)) SUBTABLE(concat('r_', b))"


def older(items: str, window: str, *, late: int = 0, where: str = "") -> str:
    return (f"CREATE STREAM one WATERMARK 1a IGNORE EXPIRED {late} IGNORE UPDATE {late} INTO first_form {TAGS} AS "
            f"SELECT {items} FROM m {where} PARTITION BY tbname b, site place {window}")


def other_form(text: str) -> str:
    """Returns the statement in the other form, for a stream and a table of their own."""
    statement = parse_one(text)
    assert isinstance(statement, CreateStream)
    found = in_form(statement, "old" if form_of(statement) == "new" else "new", text).statement
    return print_sql(found.with_changes(name="two", target=found.target.with_changes(
        name=found.target.name.with_changes(name="other_form"))))


@pytest.mark.parametrize("text", [
    pytest.param(older("_wstart, _wend, AVG(v), count(*) n, site s, last(v) - first(v)", "INTERVAL(10s)"),
                 id="interval"),
    pytest.param(older("_wstart, avg(v), tbname, sum(u) s", "INTERVAL(20s) SLIDING(5s) FILL(NULL)",
                       where="WHERE v > 1"), id="sliding, filled"),
    pytest.param(older("_wstart, max(v), count(*) n", "SESSION(ts, 5s)"), id="session"),
    pytest.param(older("_wstart, _wend, u, avg(v), count(*) n", "STATE_WINDOW(u)"), id="state"),
    pytest.param(older("_wstart, avg(v), count(*) n", "EVENT_WINDOW START WITH v > 2 END WITH v < 2", late=1),
                 id="event"),
    pytest.param(older("_wstart, _wend, avg(v), count(*) n", "COUNT_WINDOW(3, u)", late=1), id="count"),
    pytest.param(
        "CREATE STREAM one INTERVAL(10s) SLIDING(10s) FROM m PARTITION BY tbname STREAM_OPTIONS(IGNORE_NODATA_TRIGGER "
        "| MAX_DELAY(6s)) INTO first_form OUTPUT_SUBTABLE(concat('r_', %%1)) TAGS (b VARCHAR(9) AS %%tbname) AS SELECT "
        "_twstart, _twrownum n, avg(v) FROM %%tbname WHERE ts >= _twstart AND ts < _twend", id="newer"),
])
def test_both_forms_give_the_same(text: str) -> None:
    """Column by column, by child table and time; the names of the columns too."""
    with TestBed() as bed:
        bed.all("CREATE DATABASE d", "USE d",
                "CREATE STABLE m (ts TIMESTAMP, v INT, u INT) TAGS (site VARCHAR(9))", text, other_form(text))
        for seconds, value, state in ROWS if "IGNORE EXPIRED 1" in text else (*ROWS, LATE):
            for child in ("x", "y"):
                bed.execute(f"INSERT INTO {child} USING m TAGS ('at_{child}') VALUES ({T0 + seconds * 1000}, {value}, "
                            f"{'NULL' if state is None else state})")
        bed.advance(10)
        columns = [bed.rows(f"DESCRIBE {table}") for table in ("first_form", "other_form")]
        names = [[f"`{row[0]}`" for row in each] for each in columns]
        assert names[0] == names[1]
        results = [bed.rows(f"SELECT {', '.join(names[0])} FROM {table} ORDER BY b, {names[0][0]}")
                   for table in ("first_form", "other_form")]
        assert len(results[0]) >= 4
        assert results[0] == results[1]
