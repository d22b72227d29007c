"""INSERTs that begin as one before did are understood by that alone: until what was understood has changed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.common.errors import (
    InvalidStatementError,
    InvalidValueError,
    NotFoundError,
    PenstockError,
    PermissionDeniedError,
    UnavailableError,
)
from penstock.mnode.access.session import Result
from penstock.mnode.admin.sandbox import Sandbox

NOW_MS = 1_700_000_000_000
ONE = Result(affected=1)


class Watched:
    """An engine with a database in use, which says of each INSERT whether it was known by its head."""

    def __init__(self) -> None:
        self.sandbox = Sandbox(time_zone="Europe/Berlin", now_ms=NOW_MS)
        self.execute = self.sandbox.execute
        self.known = 0
        inserts = self.sandbox.engine.parts.row_inserts
        write = inserts._written

        def written(*arguments: Any) -> bool:
            found = write(*arguments)
            self.known += found
            return found

        inserts._written = written  # type: ignore[method-assign]
        for text in ("CREATE DATABASE t VGROUPS 1", "USE t",
                     "CREATE TABLE m (ts TIMESTAMP, a INT, b DOUBLE) TAGS (g INT)", "CREATE TABLE d1 USING m TAGS (1)"):
            self.execute(text)

    def insert(self, text: str, known: bool) -> None:
        """Executes an INSERT of one row; fails unless it was known by its head, or wasn't, as told."""
        before = self.known
        assert self.execute(text).affected == 1
        assert self.known - before == known, text

    def rows(self, of: str = "d1") -> list[tuple[Any, ...]]:
        """Returns the rows of a table."""
        return [tuple(row.values()) for row in self.execute(f"SELECT * FROM {of} ORDER BY ts").table.to_pylist()]


@pytest.fixture
def watched() -> Iterator[Watched]:
    found = Watched()
    found.insert(f"INSERT INTO d1 VALUES ({NOW_MS}, 1, 0.5)", known=False)
    found.insert(f"INSERT INTO d1 VALUES ({NOW_MS + 1}, 2, 1.5)", known=True)
    yield found
    found.sandbox.close()


def test_rows_of_a_known_head_are_there_at_once(watched: Watched) -> None:
    """Row by row, whatever the head names: columns in another order, tags, another database; with text and booleans."""
    assert [row[1:] for row in watched.rows()] == [(1, 0.5), (2, 1.5)]
    watched.execute("CREATE TABLE u (ts TIMESTAMP, s VARCHAR(9), f FLOAT, o BOOL)")
    for place, known in enumerate((False, True)):
        at = NOW_MS + 10 * (place + 1)
        watched.insert(f"INSERT INTO t.d1 (b, ts) VALUES ({place}.25, {at});", known)
        watched.insert(f"INSERT INTO d1 USING m TAGS (1) VALUES ( {at + 1} , 7 , 8 ) ; ", known)
        watched.insert(f"INSERT INTO u VALUES ({at}, 'é, {place}', {place}.5, true)", known)
        assert watched.rows()[-2][1:] == (None, place + 0.25)
        assert watched.rows()[-1][1:] == (7, 8.0)
        assert watched.rows("u")[-1][1:] == (f"é, {place}", place + 0.5, True)


@pytest.mark.parametrize("row", [
    f"({NOW_MS + 9}, NULL, 3)", "(NOW, 1, 2)", "('2023-11-14 23:13:20.900', 1, 2)"])
def test_what_is_not_as_plain_is_written_as_by_an_unknown_head(watched: Watched, row: str) -> None:
    """NULL, and times that are named or written."""
    other = Watched()
    for text in (f"INSERT INTO d1 VALUES ({NOW_MS + 1}, 2, 1.5)", f"INSERT INTO d1 VALUES ({NOW_MS}, 1, 0.5)"):
        other.sandbox.engine.parts.row_inserts._heads.clear()
        other.execute(text)
    other.sandbox.engine.parts.row_inserts._heads.clear()
    watched.insert(f"INSERT INTO d1 VALUES {row}", known=False)
    other.insert(f"INSERT INTO d1 VALUES {row}", known=False)
    assert watched.rows() == other.rows()
    other.sandbox.close()


def test_late_rows_and_those_that_replace_others_are_known_by_their_heads(watched: Watched) -> None:
    """But for a part of a row that is there already: what it doesn't give stays."""
    watched.execute("FLUSH DATABASE t")
    watched.insert(f"INSERT INTO d1 VALUES ({NOW_MS}, 5, 6)", known=True)
    watched.insert(f"INSERT INTO d1 VALUES ({NOW_MS - 1}, 7, 8)", known=True)
    watched.insert(f"INSERT INTO d1 (ts, a) VALUES ({NOW_MS + 2}, 3)", known=False)
    watched.insert(f"INSERT INTO d1 (ts, a) VALUES ({NOW_MS - 2}, 9)", known=True)
    watched.insert(f"INSERT INTO d1 (ts, a) VALUES ({NOW_MS}, 10)", known=False)
    watched.insert(f"INSERT INTO d1 (ts, a) VALUES ({NOW_MS + 1}, 11)", known=False)
    assert [row[1:] for row in watched.rows()] == [(9, None), (7, 8.0), (10, 6.0), (11, 1.5), (3, None)]


def test_rows_of_composite_keys_are_known_by_their_heads(watched: Watched) -> None:
    """In order or late, of a new key or one that is there."""
    watched.execute("CREATE TABLE k (ts TIMESTAMP, p VARCHAR(9) PRIMARY KEY, v INT)")
    watched.insert(f"INSERT INTO k VALUES ({NOW_MS}, 'a', 1)", known=False)
    for flushed in (False, True):
        for at, key, value in ((NOW_MS + 1, "a", 2), (NOW_MS + 1, "b", 3), (NOW_MS, "b", 4), (NOW_MS, "a", 5)):
            watched.insert(f"INSERT INTO k VALUES ({at}, '{key}', {value + 10 * flushed})", known=True)
        watched.execute("FLUSH DATABASE t")
    with pytest.raises(PenstockError, match="the key column p must not be NULL"):
        watched.execute(f"INSERT INTO k VALUES ({NOW_MS}, NULL, 1)")
    assert sorted(row[1:] for row in watched.rows("k")) == [("a", 12), ("a", 15), ("b", 13), ("b", 14)]


@pytest.mark.parametrize("row", [
    "(1, 2147483648, 3)", "(9223372036854775808, 1, 2)", "(0, 1, 2)", "(99999999999999999, 1, 2)", "(1, 2)",
    "(1, x, 2)", "(1, 2, 3", "(1, 2, 3) x", "(1, 2, 'x')"])
def test_mistakes_are_told_as_for_an_unknown_head(watched: Watched, row: str) -> None:
    """With the same words at the same place; nothing is written, and the next row is."""
    text = f"INSERT INTO d1 VALUES {row.replace('(1,', f'({NOW_MS + 5},')}"
    with pytest.raises(PenstockError) as known:
        watched.execute(text)
    watched.sandbox.engine.parts.row_inserts._heads.clear()
    with pytest.raises(PenstockError) as unknown:
        watched.execute(text)
    assert [(type(found.value), found.value.message, found.value.position, found.value.hint)
            for found in (known, unknown)] == [
        (type(unknown.value), unknown.value.message, unknown.value.position, unknown.value.hint)] * 2
    assert len(watched.rows()) == 2
    watched.insert(f"INSERT INTO d1 VALUES ({NOW_MS + 5}, 3, 4)", known=False)


@pytest.mark.parametrize("drop", ["DROP TABLE d1", "DROP TABLE m", "DROP DATABASE t"])
def test_a_table_that_was_dropped_takes_no_rows(watched: Watched, drop: str) -> None:
    """At once; and what has its name later gets the rows."""
    watched.execute(drop)
    with pytest.raises((NotFoundError, InvalidStatementError)):
        watched.execute(f"INSERT INTO d1 VALUES ({NOW_MS + 2}, 3, 2.5)")
    for text in ("CREATE DATABASE IF NOT EXISTS t", "USE t", "CREATE TABLE d1 (ts TIMESTAMP, b DOUBLE, a INT)"):
        watched.execute(text)
    watched.insert(f"INSERT INTO d1 VALUES ({NOW_MS + 2}, 3, 2)", known=False)
    watched.insert(f"INSERT INTO d1 VALUES ({NOW_MS + 3}, 4, 5)", known=True)
    assert [row[1:] for row in watched.rows()] == [(3.0, 2), (4.0, 5)]


@pytest.mark.parametrize(("alter", "row", "stored"), [
    ("ALTER TABLE m ADD COLUMN c INT", "4, 5, 6", (4, 5.0, 6)), ("ALTER TABLE m DROP COLUMN a", "5", (5.0,))])
def test_columns_of_today_count(watched: Watched, alter: str, row: str, stored: tuple[Any, ...]) -> None:
    """A row with as many values as the table had columns is refused as soon as it has others."""
    watched.execute(alter)
    with pytest.raises(PenstockError):
        watched.execute(f"INSERT INTO d1 VALUES ({NOW_MS + 2}, 3, 2.5)")
    watched.insert(f"INSERT INTO d1 VALUES ({NOW_MS + 2}, {row})", known=False)
    assert watched.rows()[-1][1:] == stored


def test_lengths_and_keep_of_today_count(watched: Watched) -> None:
    """A column that takes longer texts takes them at once, and a shorter KEEP refuses older rows at once."""
    watched.execute("CREATE TABLE x (ts TIMESTAMP, s VARCHAR(2))")
    watched.execute(f"INSERT INTO x VALUES ({NOW_MS - 3_500_000_000}, 'ab')")
    with pytest.raises(PenstockError):
        watched.execute(f"INSERT INTO x VALUES ({NOW_MS - 3_500_000_000 + 1}, 'abc')")
    watched.execute("ALTER TABLE x MODIFY COLUMN s VARCHAR(3)")
    watched.insert(f"INSERT INTO x VALUES ({NOW_MS - 3_500_000_000 + 1}, 'abc')", known=False)
    watched.insert(f"INSERT INTO x VALUES ({NOW_MS - 3_500_000_000 + 2}, 'abc')", known=True)
    watched.execute("ALTER DATABASE t KEEP 30d")
    with pytest.raises(InvalidValueError, match="out of range"):
        watched.execute(f"INSERT INTO x VALUES ({NOW_MS - 3_500_000_000 + 3}, 'abc')")


def test_time_goes_on_for_known_heads(watched: Watched) -> None:
    """What was young enough at first is too old later."""
    watched.execute("ALTER DATABASE t KEEP 30d")
    watched.insert(f"INSERT INTO d1 VALUES ({NOW_MS + 2}, 3, 4)", known=False)
    watched.insert(f"INSERT INTO d1 VALUES ({NOW_MS + 3}, 3, 4)", known=True)
    watched.sandbox.clock.advance(30 * 86_400)
    with pytest.raises(InvalidValueError, match="out of range"):
        watched.execute(f"INSERT INTO d1 VALUES ({NOW_MS - 1}, 5, 6)")
    assert len(watched.rows()) == 4


def test_the_same_head_means_another_table_in_another_database(watched: Watched) -> None:
    """Whichever is in use."""
    for text in ("CREATE DATABASE other", "USE other", "CREATE TABLE d1 (ts TIMESTAMP, a INT, b DOUBLE)"):
        watched.execute(text)
    watched.insert(f"INSERT INTO d1 VALUES ({NOW_MS}, 7, 8)", known=False)
    assert [row[1:] for row in watched.rows()] == [(7, 8.0)]
    assert len(watched.rows("t.d1")) == 2


def test_rights_are_asked_for_each_time(watched: Watched) -> None:
    """Who was an admin a moment ago, and is a user without rights now, is refused."""
    session = watched.sandbox.session
    session.identity = dataclasses.replace(session.identity, name="eve", role="none")
    with pytest.raises(PermissionDeniedError):
        watched.execute(f"INSERT INTO d1 VALUES ({NOW_MS + 2}, 3, 4)")


def test_what_moves_to_another_vnode_is_looked_up_again(watched: Watched) -> None:
    """Child tables that SPLIT VGROUP has moved get their rows where they are now."""
    catalog = watched.sandbox.engine.catalog
    for number in range(2, 12):
        watched.execute(f"CREATE TABLE d{number} USING m TAGS ({number})")
        watched.insert(f"INSERT INTO d{number} VALUES ({NOW_MS}, 1, 2)", known=False)
        watched.insert(f"INSERT INTO d{number} VALUES ({NOW_MS + 1}, 1, 2)", known=True)
    (vgroup,) = catalog.database("t").vgroup_ids  # type: ignore[union-attr]
    watched.execute(f"SPLIT VGROUP {vgroup}")
    assert len({catalog.rows_of("t", f"d{number}")[2] for number in range(2, 12)}) == 2  # type: ignore[index]
    for number in range(2, 12):
        watched.insert(f"INSERT INTO d{number} VALUES ({NOW_MS + 2}, 3, 4)", known=False)
    assert watched.execute("SELECT count(*) FROM m").table.column(0).to_pylist() == [32]


def test_new_tables_leave_what_is_known(watched: Watched) -> None:
    """Child tables that are made all the time don't make inserts into others dearer."""
    watched.execute("CREATE TABLE d2 USING m TAGS (2)")
    watched.insert(f"INSERT INTO d1 VALUES ({NOW_MS + 2}, 3, 4)", known=True)


def test_nothing_is_written_to_an_engine_that_is_closed(watched: Watched) -> None:
    """Whoever still has a session of it is told."""
    watched.sandbox.close()
    with pytest.raises(UnavailableError):
        watched.sandbox.engine.execute(f"INSERT INTO d1 VALUES ({NOW_MS + 2}, 3, 4)", watched.sandbox.session)


CHANGES = [
    "DROP TABLE IF EXISTS d1", "CREATE TABLE IF NOT EXISTS d1 USING m TAGS (1)", "DROP TABLE IF EXISTS m",
    "CREATE TABLE IF NOT EXISTS m (ts TIMESTAMP, a INT, b DOUBLE) TAGS (g INT)", "USE t", "USE o",
    "CREATE TABLE IF NOT EXISTS d1 (ts TIMESTAMP, b DOUBLE)", "ALTER TABLE m ADD COLUMN c INT",
    "ALTER TABLE m DROP COLUMN c", "ALTER TABLE m DROP COLUMN a", "DROP DATABASE IF EXISTS o",
    "CREATE DATABASE IF NOT EXISTS o PRECISION 'us'", "DELETE FROM d1"]
INSERTS = ["d1 VALUES (@, 1)", "d1 VALUES (@, 1, 2)", "d1 VALUES (@, 1, 2, 3)", "d1 (ts, b) VALUES (@, 3)",
           "o.d1 VALUES (@, 1)", "t.d1 VALUES (@, 4, 5.5)", "d1 USING m TAGS (2) VALUES (@, 3, 4)",
           "d1 VALUES (@, 3000000000, 2)", "d1 VALUES (1600000000000, 1, 2)"]


@settings(max_examples=times(4, 2000))
@given(st.lists(st.sampled_from([f"INSERT INTO {text}" for text in INSERTS]) | st.sampled_from(CHANGES),
                min_size=5, max_size=30))
def test_known_heads_do_what_unknown_ones_do(statements: list[str]) -> None:
    """Whatever is changed in between."""
    with Sandbox(now_ms=NOW_MS) as known, Sandbox(now_ms=NOW_MS) as unknown:
        for number, drawn in enumerate(("CREATE DATABASE t", "USE t", *CHANGES[3::-2], *statements)):
            text = re.sub("@", str(NOW_MS + number), drawn)
            unknown.engine.parts.row_inserts._heads.clear()
            answers = []
            for engine in (known, unknown):
                try:
                    answers.append(str(engine.execute(text).affected))
                except PenstockError as error:
                    answers.append(repr((type(error), error.message, error.position)))
            assert answers[0] == answers[1], text
            for table in ("t.m", "t.d1", "o.d1"):
                if drawn.startswith("INSERT") and known.engine.catalog.table(*table.split(".")) is not None:
                    rows = [engine.execute(f"SELECT * FROM {table}").table for engine in (known, unknown)]
                    assert rows[0].sort_by("ts").combine_chunks() == rows[1].sort_by("ts").combine_chunks()
