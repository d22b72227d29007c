"""Results that don't fit the table they are for: nothing is cut, the stream goes on, and each is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kits.engines.sandboxes import T0, TestBed

from penstock.common.errors import InvalidStreamError, InvalidValueError

REFUSED = "SELECT table_name, ts, reason, message FROM information_schema.ins_late_rows ORDER BY ts"


@pytest.fixture
def bed() -> Iterator[TestBed]:
    with TestBed(now_ms=T0) as bed:
        bed.all("CREATE DATABASE d VGROUPS 1", "USE d",
                "CREATE TABLE t (ts TIMESTAMP, s VARCHAR(40), n NCHAR(40), f DOUBLE, b BIGINT, u BIGINT UNSIGNED)",
                "CREATE STABLE st (ts TIMESTAMP, v INT) TAGS (g VARCHAR(40), k BIGINT)")
        yield bed


def put(bed: TestBed, *values: Any, at: int = 0) -> None:
    shown = ", ".join("NULL" if value is None else repr(value) for value in values)
    bed.execute(f"INSERT INTO t VALUES ({T0 + at}, {shown})")
    bed.run()


LONG = "ä" * 5  # ten bytes


@pytest.mark.parametrize(("kind", "select", "fits", "misfit", "shown"), [
    ("VARCHAR(8)", "s", ("ä" * 4, "ä", 1.0, 1, 1), (LONG, "ä", 1.0, 1, 1), "ä" * 4),
    ("NCHAR(4)", "s", ("ä" * 4, "ä", 1.0, 1, 1), (LONG, "ä", 1.0, 1, 1), "ä" * 4),
    ("VARCHAR(8)", "n", ("", "ä" * 4, 1.0, 1, 1), ("", LONG, 1.0, 1, 1), "ä" * 4),
    ("VARCHAR(8)", "concat(s, 'x')", ("abcdefg", "", 1.0, 1, 1), ("abcdefgh", "", 1.0, 1, 1), "abcdefgx"),
    ("VARCHAR(3)", "b", ("", "", 1.0, 999, 1), ("", "", 1.0, 1000, 1), "999"),
    ("TINYINT", "b", ("", "", 1.0, -128, 1), ("", "", 1.0, 128, 1), -128),
    ("INT", "f", ("", "", 2147483647.0, 1, 1), ("", "", 2147483648.0, 1, 1), 2147483647),
    ("FLOAT", "f", ("", "", 0.5, 1, 1), ("", "", 1e300, 1, 1), 0.5),
    ("BIGINT", "u", ("", "", 1.0, 1, 7), ("", "", 1.0, 1, 2**63), 7),
    ("INT UNSIGNED", "b", ("", "", 1.0, 1, 1), ("", "", 1.0, -1, 1), 1),
    ("INT", "s", ("12", "", 1.0, 1, 1), ("twelve", "", 1.0, 1, 1), 12),
    ("TIMESTAMP", "u", ("", "", 1.0, 1, T0), ("", "", 1.0, 1, 2**63), 0),
])
@pytest.mark.parametrize("windowed", [False, True])
def test_what_does_not_fit_is_not_written(
    bed: TestBed, kind: str, select: str, fits: tuple[Any, ...], misfit: tuple[Any, ...], shown: Any, windowed: bool
) -> None:
    """What fits is cast, NULL stays NULL, and a result that doesn't fit is counted and named, and not in the table."""
    bed.execute(f"CREATE STABLE o (ts TIMESTAMP, r {kind}) TAGS (group_id BIGINT UNSIGNED)")
    value = f"last({select})" if windowed else select
    query = f"SELECT _wstart, {value} r FROM t INTERVAL(1s)" if windowed else f"SELECT ts, {value} r FROM t"
    bed.execute(f"CREATE STREAM x TRIGGER AT_ONCE INTO o AS {query}")
    put(bed, *fits)
    put(bed, *misfit, at=1000)
    put(bed, None, None, None, None, None, at=2000)
    put(bed, *fits, at=3000)
    found = bed.rows("SELECT ts, r FROM o ORDER BY ts")
    # last() of NULLs makes no window
    assert found == [(0, shown), *([] if windowed else [(2000, None)]), (3000, shown)]
    [(name, ts, reason, message)] = bed.rows(REFUSED)
    assert (name.startswith("t_"), ts, reason) == (True, 1000, "refused")
    assert message.startswith("column r: ")
    assert message.endswith(f"does not fit {kind}")
    assert bed.rows("SELECT refused_rows FROM information_schema.ins_streams") == [(1,)]


def test_a_result_that_fits_no_more_is_taken_back(bed: TestBed) -> None:
    """No row shows what was right before; one that fits again is written again."""
    bed.all("CREATE STABLE o (ts TIMESTAMP, r TINYINT) TAGS (group_id BIGINT UNSIGNED)",
            "CREATE STREAM x TRIGGER AT_ONCE INTO o AS SELECT _wstart, sum(b) r FROM t INTERVAL(1h)")
    put(bed, "", "", 1.0, 100, 1)
    assert bed.rows("SELECT r FROM o") == [(100,)]
    put(bed, "", "", 1.0, 100, 1, at=1)
    assert bed.rows("SELECT r FROM o") == []
    put(bed, "", "", 1.0, -90, 1, at=2)
    assert bed.rows("SELECT r FROM o") == [(110,)]


def test_on_error_says_what_becomes_of_it(bed: TestBed) -> None:
    """DLQ keeps the result; FAIL ends the attempt; SKIP counts it, as without ON_ERROR."""
    for name, option in (("a", "ON_ERROR DLQ dead"), ("b", "ON_ERROR SKIP"), ("c", "ON_ERROR FAIL")):
        bed.execute(f"CREATE STABLE o{name} (ts TIMESTAMP, r VARCHAR(3), x BIGINT) TAGS (group_id BIGINT UNSIGNED)")
        bed.execute(f"CREATE STREAM s{name} TRIGGER AT_ONCE {option} INTO o{name} AS SELECT ts, s r, b x FROM t")
    put(bed, "abc", "", 1.0, 1, 1)
    with pytest.raises(InvalidValueError, match=r"a result can't be written: column r: abcd does not fit VARCHAR\(3\)"):
        put(bed, "abcd", "", 1.0, 2, 1, at=1)
    bed.execute("DROP STREAM sc")
    put(bed, "ab", "", 1.0, 3, 1, at=2)
    for name in "ab":
        assert bed.rows(f"SELECT r, x FROM o{name} ORDER BY ts") == [("abc", 1), ("ab", 3)]
    [(event_time, table, reason, message, content)] = bed.rows(
        "SELECT event_time, table_name, reason, message, content FROM dead")
    assert (event_time, reason, message) == (1, "refused", "column r: abcd does not fit VARCHAR(3)")
    assert table.startswith("t_")
    assert '"x": 2' in content


@pytest.mark.parametrize(("kind", "expression", "value", "misfit"), [
    ("VARCHAR(3)", "g", "abc", "abcd"), ("VARCHAR(3)", "k", 999, 1000), ("TINYINT", "k", 1, 128),
    ("NCHAR(2)", "g", "äö", "äöü")])
def test_tags_that_do_not_fit_make_no_child_table(
    bed: TestBed, kind: str, expression: str, value: Any, misfit: Any
) -> None:
    """Results of such a group are refused with the tag's name; those of others are written."""
    bed.execute(f"CREATE STREAM x TRIGGER AT_ONCE INTO o TAGS (p {kind}) AS "
                f"SELECT _wstart, count(*) c FROM st PARTITION BY {expression} AS p INTERVAL(1h)")
    for name, tag in (("a", value), ("b", misfit), ("c", None)):
        tags = ", ".join("NULL" if tag is None else repr(tag) if column == expression else "NULL" for column in "gk")
        bed.execute(f"INSERT INTO {name} USING st TAGS ({tags}) VALUES ({T0}, 1)")
        bed.run()
    shown = value if kind == "TINYINT" else str(value)
    assert sorted(bed.rows("SELECT p, c FROM o"), key=str) == sorted([(shown, 1), (None, 1)], key=str)
    assert bed.rows("SELECT TAGS p FROM o WHERE p IS NOT NULL") == [(shown,)]
    [(_, ts, reason, message)] = bed.rows(REFUSED)
    assert (ts, reason, message) == (-(T0 % 3_600_000), "refused", f"tag p: {misfit} does not fit {kind}")


@pytest.mark.parametrize("mode", ["PREV", "NEXT", "LINEAR", "NULL", "VALUE, 'zz', 7"])
def test_gaps_hold_nothing_of_refused_results(bed: TestBed, mode: str) -> None:
    """FILL copies no part of what didn't fit; a constant that doesn't fit is refused at once."""
    bed.execute("CREATE STABLE o (ts TIMESTAMP, r VARCHAR(3), q TINYINT) TAGS (group_id BIGINT UNSIGNED)")
    for constants in ("'zzzz', 7", "'zz', 300"):
        with pytest.raises(InvalidStreamError, match=r"FILL: column [rq]: .* does not fit"):
            bed.execute("CREATE STREAM x TRIGGER AT_ONCE INTO o AS SELECT _wstart, last(s) r, last(b) q FROM t "
                        f"INTERVAL(1s) FILL(VALUE, {constants})")
    bed.execute("CREATE STREAM x TRIGGER AT_ONCE INTO o AS SELECT _wstart, last(s) r, last(b) q FROM t INTERVAL(1s) "
                f"FILL({mode})")
    for at, text, number in ((0, "a", 1), (2000, "abcdef", 1000), (4000, "b", 2)):
        put(bed, text, "", 1.0, number, 1, at=at)
    shown = bed.rows("SELECT ts, r, q FROM o ORDER BY ts")
    assert (0, "a", 1) in shown
    assert (4000, "b", 2) in shown
    assert [row for row in shown if row[0] == 2000] == []
    assert all(text in ("a", "b", "zz", None) and number in (1, 2, 7, None) for _, text, number in shown)
    assert bed.rows("SELECT refused_rows FROM information_schema.ins_streams") == [(1,)]


def test_types_that_fit_cost_no_check(bed: TestBed) -> None:
    """Where types show that nothing can be too long, blocks have no further column."""
    bed.all("CREATE STABLE o (ts TIMESTAMP, s VARCHAR(40), f DOUBLE, b BIGINT) TAGS (group_id BIGINT UNSIGNED)",
            "CREATE STREAM x INTO o AS SELECT ts, s, f, b FROM t",
            "CREATE STREAM y INTO p AS SELECT _wstart, last(s), max(f), sum(b), count(*) FROM t INTERVAL(1s)")
    for stream in bed.engine.catalog.streams.all():
        assert "does not fit" not in stream.plan
