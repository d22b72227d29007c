"""Texts that functions make are bounded: what would be longer than a VARCHAR can be is an error, and is never made."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.expression_support import column_values
from kits.engines.embedded import Embedded

from penstock.common.errors import InvalidValueError
from penstock.planner.functions import string
from penstock.sql.types import VARCHAR

TEXTS = st.text("abä", max_size=8)


def fits(text: str) -> bool:
    return len(text.encode()) <= 12


@given(TEXTS, TEXTS, TEXTS)
def test_what_fits_is_made_and_what_does_not_is_refused(text: str, second: str, third: str) -> None:
    """Compared with Python's own functions, with a bound of twelve bytes instead of 65,517."""
    expected = {
        "replace(a, b, c)": text.replace(second, third) if second else text,
        "concat(a, b, c)": text + second + third,
        "concat_ws(a, b, c, b)": second + text + third + text + second,
    }
    data = {name: (VARCHAR, [value]) for name, value in zip("abc", (text, second, third), strict=True)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(string, "LONGEST", 12)
        for expression, value in expected.items():
            if fits(value):
                assert column_values(expression, data) == [value]
            elif fits(text):
                with pytest.raises(duckdb.InvalidInputException, match="longer than 12 bytes"):
                    column_values(expression, data)


def test_a_query_that_would_make_a_huge_text_is_refused(tmp_path: Path) -> None:
    """The function and the bound are named."""
    with closing(Embedded(tmp_path)) as db:
        db.run("CREATE DATABASE d")
        db.run("CREATE TABLE d.m (ts TIMESTAMP, s VARCHAR(16))")
        db.run("INSERT INTO d.m VALUES (1700000000001, 'xxxxxxxxxx') (1700000000002, 'yyyyyyyyyy')")
        for expression in ("replace(repeat('a', 60000), 'a', repeat('b', 6000))",
                           "concat(repeat('a', 60000), repeat(s, 6000))", "concat_ws(repeat(s, 6000), s, s, s)"):
            with pytest.raises(InvalidValueError, match=r"\w+\(\): the text would be longer than 65517 bytes"):
                db.run(f"SELECT length({expression}) FROM d.m")


def test_what_is_refused_of_constants_is_never_made(tmp_path: Path) -> None:
    """DuckDB computes constants ahead of the query, where neither queryMemory nor queryTimeout counts."""
    with closing(Embedded(tmp_path)) as db:
        db.run("SELECT 1")
        before = getrusage(RUSAGE_SELF).ru_maxrss
        for call in ("lpad('x', 500000000, 'y')", "repeat('x', 500000000)"):
            assert db.run(f"SELECT {call}") == [(None,)]
        for call in ("replace(repeat('a', 60000), 'a', repeat('b', 8000))", "range(20000000)"):
            with pytest.raises(InvalidValueError):
                db.run(f"SELECT {call}")
        assert getrusage(RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_times_of_huge_texts_are_null(tmp_path: Path) -> None:
    """Functions that give NULL where they fail do so for what is made of texts as well."""
    with closing(Embedded(tmp_path)) as db:
        db.run("CREATE DATABASE d")
        db.run("CREATE TABLE d.m (ts TIMESTAMP, s VARCHAR(60000))")
        db.run(f"INSERT INTO d.m VALUES (1700000000001, '2024') (1700000000002, '{'y' * 60_000}')")
        rows = db.run("SELECT to_timestamp(concat(s, s), 'YYYYYYYY') IS NULL, week(concat(s, s)) w FROM d.m")
        assert [week for _, week in rows] == [0, None]
