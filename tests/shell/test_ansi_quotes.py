"""SET ansiQuotes: double quotes around names, in one session; those of PostgreSQL's clients begin with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.engines.postgres_here import PostgresHere, postgres_here
from kits.engines.sandboxes import TestBed
from kits.engines.served_here import ServedHere

from penstock.common.errors import PenstockError, SqlSyntaxError
from penstock.mnode.access.session import SessionState
from penstock.shell.api.dbapi import Connection
from penstock.sql.dialect.tokenizer import back_quoted

LONG = ", ".join(f'"Big" + {n}' for n in range(2000))


@contextmanager
def _session(here: ServedHere, interface: str) -> Iterator[Connection]:
    with here.own() if interface == "embedded" else here.connect() as connection:
        yield connection


@pytest.mark.parametrize("interface", ["embedded", "flight"])
def test_names_and_texts(tmp_path: Path, interface: str) -> None:
    """In that session alone, and until it is taken back; of long queries and of rows, too."""
    with ServedHere(tmp_path / "data") as here, _session(here, interface) as one, _session(here, interface) as other:
        one.execute("CREATE DATABASE d VGROUPS 1 KEEP 36500d")
        one.execute("SET ansiQuotes ON")
        one.execute('CREATE TABLE d."Select" ("ts" TIMESTAMP, "Big" INT, s VARCHAR(20))')
        one.execute("""INSERT INTO d."Select" ("ts", "Big", s) VALUES (1700000000000, 1, 'a"b')""")
        one.execute("""INSERT INTO d."Select" VALUES (1700000000001, 2, '"')""")
        assert one.execute("""SELECT "Big", s FROM "d"."Select" WHERE s = 'a"b' -- "?""").fetchall() == [(1, 'a"b')]
        assert len(one.execute(f'SELECT {LONG} FROM d."Select"').fetchall()) == 2
        for text in ("""SELECT "a" AS b""", """INSERT INTO d."Select" VALUES (1700000000000, 1, "x")"""):
            with pytest.raises(PenstockError):
                one.execute(text)
        assert other.execute('SELECT "Big" AS b FROM d.`Select` WHERE s = "a""b"').fetchall() == [("Big",)]
        one.execute("SET ansiQuotes OFF")
        assert one.execute('SELECT "Big" AS b FROM d.`Select` LIMIT 1').fetchall() == [("Big",)]


def test_places_of_errors() -> None:
    """They are those of what was written."""
    with TestBed() as bed:
        bed.session.ansi_quotes = True
        text = '''SELECT "a""b", "c`d",\n'it''s', "Ü" nope+ FROM t'''
        with pytest.raises(SqlSyntaxError) as caught:
            bed.execute(text)
        assert caught.value.position is not None
        assert (caught.value.position.line, caught.value.position.column) == (2, text.split("\n")[1].index("+") + 1)


def test_what_is_stored_means_the_same_to_all() -> None:
    """Streams and views are shown and planned as any, though nobody else writes names so."""
    with TestBed() as bed:
        bed.all("create database d vgroups 1", "create stable d.m (ts timestamp, `V` int) tags (`G` int)")
        bed.session.ansi_quotes = True
        bed.execute('create stream s into d.o as select _wstart, sum("V") as "Sum" from d.m '
                    'where "G" > 0 partition by "G" interval(10s)')
        bed.execute('create view d.w as select "V" as "Some", \'"\' as q from d.m')
        for on in (True, False):
            bed.session.ansi_quotes = on
            assert bed.rows("select d.w.`Some`, q from d.w") == []
            [[_, shown]] = bed.rows("show create stream s")
            assert all(name in shown for name in ("`V`", "`Sum`", "`G`"))
            assert '"' not in shown


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresHere]:
    with postgres_here(tmp_path_factory.mktemp("quotes")) as opened:
        yield opened


def test_postgresql(here: PostgresHere) -> None:
    """Its sessions have it from the beginning."""
    with here.connect() as session:
        assert session.execute("""SELECT 'a"b' AS "x y", 1 AS "Z" """).description is not None
        session.execute("SET ansiQuotes OFF")
        assert session.execute("""SELECT "a" AS b""").fetchall() == [("a",)]


@given(st.text("ab\"'`\\-/*\n", max_size=12))
def test_quotes_are_translated_once(text: str) -> None:
    """To do it again changes nothing, and no text in double quotes is left."""
    once = back_quoted(text)
    assert back_quoted(once) == once
    assert SessionState("UTC").in_dialect(text) == text
