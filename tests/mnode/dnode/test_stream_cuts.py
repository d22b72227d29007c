"""Reading between two stream cuts: exactly the rows that were written between them, whatever goes on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.common.errors import InvalidStreamError, InvalidValueError, PenstockError
from penstock.shell.api.dbapi import Connection
from penstock.sql.cuts import cut_text, parse_cut

T0 = 1_700_000_000_000
WRITERS, ROWS = 3, 60


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    with penstock.connect(str(tmp_path / "data"), {"timezone": "UTC"}) as connection:
        for statement in ("CREATE DATABASE d VGROUPS 3", "USE d", "CREATE STABLE st (ts TIMESTAMP, v INT) TAGS (g INT)",
                          "CREATE TABLE n (ts TIMESTAMP, v INT)"):
            connection.execute(statement)
        for number in range(9):
            connection.execute(f"CREATE TABLE c{number} USING st TAGS ({number})")
        yield connection


def rows(connection: Connection, source: str) -> list[tuple[str, int]]:
    return sorted(connection.execute(f"SELECT tbname, v FROM {source}").fetchall())


def test_windows_that_follow_each_other_have_each_row_once(connection: Connection) -> None:
    """While three threads write, a reader goes from cut to cut; what it sees is all that was written, once."""
    def write(writer: int) -> None:
        with connection.cursor() as cursor:
            for row in range(ROWS):
                number = writer * ROWS + row
                cursor.execute(f"INSERT INTO c{number % 9} VALUES ({T0 + number}, {number})")

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    window = connection.time_window()
    seen: list[int] = []
    while True:
        alive = any(thread.is_alive() for thread in threads)
        found = rows(connection, f"st {window}")
        assert rows(connection, f"st {window}") == found
        seen += [value for _, value in found]
        window = window.next()
        if not alive:
            break
    seen += [value for _, value in rows(connection, f"st {window}")]
    window.close()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(WRITERS * ROWS))


def test_rows_stay_as_they_were_at_the_cut(connection: Connection) -> None:
    """What is overwritten or deleted behind the cut is seen as it was, also after a flush; the next window has it."""
    connection.execute(f"INSERT INTO c0 VALUES ({T0}, 1) ({T0 + 1}, 2)")
    with connection.time_window() as window:
        connection.execute(f"INSERT INTO c0 VALUES ({T0}, 10) ({T0 + 2}, 3)")
        connection.execute(f"DELETE FROM c0 WHERE ts = {T0 + 1}")
        connection.execute("FLUSH DATABASE d")
        assert rows(connection, f"st {window}") == [("c0", 1), ("c0", 2)]
        with window.next() as following:
            assert rows(connection, f"st {following}") == [("c0", 3), ("c0", 10)]
            assert connection.execute(f"SELECT count(*) FROM st {following} WHERE g = 0").fetchone() == (2,)
            assert connection.execute(f"SELECT DISTINCT g FROM st {following}").fetchall() == [(0,)]
            assert rows(connection, f"c0 {following}") == rows(connection, f"st {following}")


def test_show_cut_gives_what_between_takes(connection: Connection) -> None:
    """Cuts can be taken and used by statements alone, for normal tables too."""
    def cut() -> str:
        ((database, text),) = connection.execute("SHOW CUT FROM d").fetchall()
        assert database == "d"
        return str(text)

    first = cut()
    connection.execute(f"INSERT INTO n VALUES ({T0}, 1)")
    second = cut()
    connection.execute(f"INSERT INTO n VALUES ({T0 + 1}, 2)")
    assert connection.execute(f"SELECT v FROM n BETWEEN CUT '{first}' AND '{second}'").fetchall() == [(1,)]
    assert connection.execute(f"SELECT v FROM n BETWEEN CUT '{second}' AND '{cut()}' AS x").fetchall() == [(2,)]
    assert connection.execute(f"SELECT v FROM n BETWEEN CUT '{second}' AND '{second}'").fetchall() == []


@pytest.mark.parametrize("statement", [
    "SELECT v FROM n BETWEEN CUT '1:1' AND '1:2'", "SELECT v FROM n BETWEEN CUT 'x' AND 'y'",
    "SELECT name FROM information_schema.ins_databases BETWEEN CUT '1:1' AND '1:2'",
    "SELECT TAGS tbname FROM st BETWEEN CUT '1:1' AND '1:2'",
])
def test_what_is_no_cut_is_refused(connection: Connection, statement: str) -> None:
    """A cut must be one of the table's database."""
    with pytest.raises(connection.Error):
        connection.execute(statement)


def test_cuts_ahead_of_each_other_or_of_now_are_refused(connection: Connection) -> None:
    """The first cut can't be behind the second, and what isn't acknowledged yet can't be read."""
    (_, text), = connection.execute("SHOW CUT").fetchall()
    later = cut_text((vgroup, version + 1) for vgroup, version in parse_cut(text))
    with pytest.raises(connection.Error, match="is behind"):
        connection.execute(f"SELECT v FROM st BETWEEN CUT '{later}' AND '{text}'")
    with pytest.raises(connection.Error, match="not acknowledged"):
        connection.execute(f"SELECT v FROM st BETWEEN CUT '{text}' AND '{later}'")
    with pytest.raises(connection.Error, match="no cut of this database"):
        connection.time_window(since="77:1")


def test_a_stream_takes_no_cuts(connection: Connection) -> None:
    """BETWEEN CUT is for queries."""
    with pytest.raises(connection.Error, match="BETWEEN CUT is for queries") as caught:
        connection.execute("CREATE STREAM s INTO o AS SELECT _wstart, count(*) FROM st BETWEEN CUT '2:1' AND '2:2' "
                           "INTERVAL(1s)")
    assert isinstance(caught.value, InvalidStreamError)


def test_cuts_as_text() -> None:
    """A cut is read as it is written; anything else is an error with a hint."""
    assert parse_cut(" 3:7, 2:15 ") == ((2, 15), (3, 7))
    assert cut_text(parse_cut("3:7,2:15")) == "2:15,3:7"
    for text in ("", "2", "2:", "2:1,2:3", "a:1", "2:1;3:4"):
        with pytest.raises(InvalidValueError):
            parse_cut(text)
    assert issubclass(InvalidValueError, PenstockError)
