"""Small INSERTs of plain rows take a short way: whatever the statement, it does what the long way does."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.common.errors import PenstockError
from penstock.mnode.access.session import Result
from penstock.mnode.admin.sandbox import Sandbox

NOW_MS = 1_700_000_000_000
KINDS = ("BOOL", "TINYINT", "SMALLINT UNSIGNED", "INT", "BIGINT", "BIGINT UNSIGNED", "FLOAT", "DOUBLE", "TIMESTAMP")
TABLES = [
    "CREATE DATABASE t", "USE t",
    "CREATE TABLE m (ts TIMESTAMP, a INT, b DOUBLE) TAGS (g INT)", "CREATE TABLE d1 USING m TAGS (1)",
    "CREATE TABLE `D 2` USING m TAGS (2)", "CREATE TABLE `select` USING m TAGS (3)",
    "CREATE TABLE fresh USING m TAGS (4)",
    f"CREATE TABLE wide (ts TIMESTAMP, {', '.join(f'c{place} {kind}' for place, kind in enumerate(KINDS))})",
    "CREATE TABLE texts (ts TIMESTAMP, s VARCHAR(5), n NCHAR(5))",
    "CREATE TABLE bytes (ts TIMESTAMP, b VARBINARY(5))",
    "CREATE TABLE w (ts TIMESTAMP, n NCHAR(3), tbnames VARCHAR(9)) TAGS (g INT, s VARCHAR(5))",
    "CREATE TABLE e1 USING w TAGS (1, 'x')", "CREATE TABLE e2 USING w TAGS (1, 'x')",
    "CREATE TABLE keyed (ts TIMESTAMP, k INT PRIMARY KEY, v INT)"]
NAMES = ["d1", "D1", "t.d1", "T.d1", "`D 2`", "`d1`", "t.`d1`", "select", "`select`", "m", "wide", "texts", "texts",
         "texts", "bytes", "keyed", "nothing", "x.d1", "information_schema.ins_tables"]

Choice = st.SearchStrategy[Any] | list[Any]


def mostly(usual: Choice, odd: Choice) -> st.SearchStrategy[Any]:
    """The usual, and now and then the odd: a statement is plain only if all of it is."""
    ways = [one if isinstance(one, st.SearchStrategy) else st.sampled_from(one) for one in (usual, odd)]
    return st.integers(0, 19).flatmap(lambda number: ways[number == 19])


NEXT = "@"  #: stands for a time that is newer than all before
NEW = "%"  #: stands for the end of a name that no table has yet; the same one in all of a statement
ODD_TIMES = ["NOW", "now()", "NOW + 1s", "NULL", "0", "-1", "99999999999999999", "+1700000000007", "01700000000007",
             "1.5", "'2023-11-14 22:13:20.005'", "'2023-11-14 22'", "'2023-11-14T22:13:20Z'", "'1700000000009'",
             "'2023-13-01 00:00:00'", "'it''s'"]
TIMES = mostly(st.just(NEXT), st.integers(NOW_MS, NOW_MS + 20).map(str) | st.sampled_from(ODD_TIMES))
ODD = ["NULL", "null", "Null", "true", "FALSE", "True", "1e400", "-1e39", ".5", "5.", "1e3", "0x1F", "007",
       "2147483648", "'x'", "'1'", '"2"', "", "nan", "-0", "-0.0", "18446744073709551615", "18446744073709551616",
       "1_000", "٣", "1 2", "(1)", "16777217.0000001"]
VALUES = mostly(st.integers(0, 100).map(str),
                st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.sampled_from(ODD))
ODD_TEXTS = ["'abcde'", "'abcdef'", "'ÄÖÜ'", "'äöüäö'", "'äöüäöü'", "'😀'", "'😀😀😀😀😀'", "''", "' '", "'null'",
             "'NULL'", "'a''b'", "'a\\tb'", "'a\\'b'", "'a' 'b'", "'a'b", "'a\"b'", "'a`b'", "'--'", "'/*'", "'a\nb'",
             "'a\0b'", "'?;,('", "'\u2028'", "'\ud800'", "'\\x4142'", "'true'", "é", "'a"]
SHORT_TEXTS = st.text("ab ä😀),\n", max_size=3).map("'{}'".format)
TEXTS = mostly(SHORT_TEXTS, st.text("ab ä😀),\n", max_size=7).map("'{}'".format) | st.sampled_from([*ODD_TEXTS, *ODD]))
LISTS = [" (ts, a, b)", " (b, ts)", "(TS,A)", " (ts, a, a)", " (a, b)", " (ts, nix)", " (ts, select)",
         " (n, ts)"]
TAGS = st.lists(mostly(["1", "-2", "1.5", "007", "NULL", "true", "'x'", "'a,b)'"], [
    "+3", ".5", "0x1F", "null", "True", "''", "'it''s'", "'a\\tb'", "'--'", '"x"', "x", "", "1e3", "'a' 'b'", "1 2",
    "--1", "1 + 1", "now", "'\ud800'"]), min_size=1, max_size=2).map(",".join)
USING = st.tuples(
    mostly(["w", "t.w"], ["m", "W", "`w`", "x.w", "e1", "texts", "nothing", "select", "information_schema.w"]),
    mostly(["", "", " ", "(g)", " (g, s) "], ["(s,g)", "(g,g)", "(nix)", "(g,)", "(ts)", "(select)"]),
    TAGS, st.sampled_from(["", " ", "\n"])).map(lambda found: " USING {0}{1} TAGS{3}({2})".format(*found))
CHILDREN = mostly(["'e1'", "'e1'", "'e2'"], ["'E1'", "'d1'", "'w'", "'texts'", "'new1'", "'new.2'", "''", "NULL", "e1",
                                             '"e1"', "'e''1'", "1", f"'{'x' * 193}'"])
NAMED = mostly([("tbname, ts, n", 0), ("ts,TBNAME,tbnames", 1), ("tbname,ts", 0), ("n, ts, tbname", 2),
                ("tbname, ts, g", 0), ("s,tbname,n,ts", 1)],
               [("tbname, ts, g, nix", 0), ("tbname, ts, g, g", 0), ("tbname, n", 0), ("tbname, tbname, ts", 0),
                ("ts, tbnames", 9),
                ("`tbname`, ts", 0)])
CHILDREN_OF_W = ("e1", "e2", "n%1", "n%2", "t.n%3")
INTO = mostly(["INSERT INTO ", "insert into  ", " INSERT INTO\n"], ["INSERT "])
VALUES_WORD = mostly([" VALUES ", " values", "\nVALUES\n"], [" VALUE "])
ENDS = mostly(["", ";", " ; "], [" x", " -- end", ";;"])
SPACE = st.sampled_from(["", " ", "\n", "  "])


@st.composite
def rows(draw: st.DrawFn, width: int, values: st.SearchStrategy[str]) -> str:
    """A row, mostly with as many values as there are columns."""
    count = width if draw(st.integers(0, 9)) else draw(st.integers(0, width + 1))
    cells = [draw(SPACE) + draw(TIMES if place == 0 else values) + draw(SPACE) for place in range(count)]
    return f"({','.join(cells)})"


@st.composite
def inserts(draw: st.DrawFn) -> str:
    """An INSERT that may mean something."""
    name = draw(mostly(["d1", "t.d1", "`D 2`", "wide", "texts", "bytes"], NAMES))
    width = {"wide": 10, "bytes": 2}.get(name, 3)
    listed = draw(mostly([""], LISTS))
    if listed:
        width = listed.count(",") + 1
    cells = TEXTS if name in ("texts", "bytes") else VALUES
    body = draw(st.sampled_from(["", " ", ",", " , "])).join(draw(st.lists(rows(width, cells), min_size=1, max_size=3)))
    return draw(INTO) + name + listed + draw(VALUES_WORD) + body + draw(ENDS)


@st.composite
def inserts_with_tags(draw: st.DrawFn) -> str:
    """An INSERT with USING that may mean something."""
    name = draw(mostly(["e1", "e2", "`e1`", "t.e2", "n%1", "t.n%1", "`N %1`"],
                       ["d1", "texts", "w", "new3", "x.e1", "nothing.e1", "x.n%1", "`n.%1`", "select"]))
    before, after = draw(mostly([("", ""), ("(ts, n)", ""), ("", " (ts, n) ")],
                                [("(ts, n)", "(ts, n)"), ("", "(n, ts)")]))
    body = ",".join(draw(st.lists(rows(2 if before or after else 3, TEXTS), min_size=1, max_size=2)))
    return draw(INTO) + name + before + draw(USING) + after + draw(VALUES_WORD) + body + draw(ENDS)


@st.composite
def inserts_into_several(draw: st.DrawFn) -> str:
    """An INSERT into several tables that may mean something."""
    found = []
    for _ in range(draw(st.integers(2, 4))):
        name = draw(mostly(["d1", "t.d1", "`D 2`", "e1", "e2", "wide", "n%1", "n%2", "t.n%3"], NAMES))
        using = draw(USING if "%" in name else mostly([""], USING)) if name in CHILDREN_OF_W else ""
        listed = draw(mostly([""], [" (ts, a, b)", " (b, ts, a)", " (ts)", " (ts, n, tbnames)"]))
        width = listed.count(",") + 1 if listed else 10 if name == "wide" else 3
        cells = TEXTS if name in CHILDREN_OF_W else VALUES
        body = " ".join(draw(st.lists(rows(width, cells), min_size=1, max_size=2)))
        found.append(f"{name}{listed}{using}{draw(VALUES_WORD)}{body}")
    return draw(INTO) + draw(st.sampled_from([" ", "\n", ""])).join(found) + draw(ENDS)


@st.composite
def inserts_by_name(draw: st.DrawFn) -> str:
    """An INSERT into a super table that may mean something: each row names its child table."""
    listed, place = draw(NAMED)
    found = []
    for _ in range(draw(st.integers(1, 4))):
        cells = [draw(CHILDREN) if number == place else draw(TIMES) if column.strip() == "ts" else draw(TEXTS)
                 for number, column in enumerate(listed.split(","))]
        found.append(f"({','.join(cells)})")
    name = draw(mostly(["w", "t.w", "`w`"], ["m", "e1", "texts", "keyed"]))
    return f"{draw(INTO)}{name} ({listed}){draw(VALUES_WORD)}{' '.join(found)}{draw(ENDS)}"


@pytest.fixture(scope="module")
def engines() -> Iterator[list[Sandbox]]:
    """Two engines with the same tables; the second takes the long way always."""
    made = [Sandbox(time_zone="Europe/Berlin", now_ms=NOW_MS) for _ in range(2)]
    for engine in made:
        for statement in TABLES:
            engine.execute(statement)
    made[1].engine.parts.row_inserts.insert = lambda text, state: None  # type: ignore[method-assign]
    yield made
    for engine in made:
        engine.close()


@pytest.fixture(scope="module")
def newer() -> Iterator[int]:
    """Times that grow."""
    return itertools.count(NOW_MS + 100_000)


def outcome(engine: Sandbox, text: str) -> Any:
    """Returns how many rows a statement has written, or what it says."""
    try:
        return engine.execute(text).affected
    except PenstockError as error:
        return type(error), error.code, error.message, error.position, error.hint


def contents(engine: Sandbox) -> list[Any]:
    """Returns all rows of all tables."""
    found = [engine.execute(f"SELECT * FROM {name} ORDER BY ts").table
             for name in ("wide", "texts", "bytes", "keyed")]
    tags = engine.execute("SELECT tbname, g, s, count(*) FROM w GROUP BY tbname, g, s ORDER BY tbname").table
    return [*found, tags,
            *(engine.execute(f"SELECT tbname, * FROM {name} ORDER BY tbname, ts").table for name in "mw")]


@settings(max_examples=times(15, 20_000))
@given(st.lists(inserts() | inserts_with_tags() | inserts_by_name() | inserts_into_several(), min_size=1, max_size=5))
def test_both_ways_do_the_same(engines: list[Sandbox], newer: Iterator[int], statements: list[str]) -> None:
    """The same numbers of rows, the same errors, and the same rows in the tables."""
    short, long = engines
    for drawn in statements:
        fresh = next(newer)
        text = "".join(str(next(newer)) if piece == NEXT else f"{fresh}_" if piece == NEW else piece
                       for piece in re.split(f"({NEXT}|{NEW})", drawn))
        assert outcome(short, text) == outcome(long, text)
    assert contents(short) == contents(long)


def test_plain_rows_take_the_short_way(engines: list[Sandbox]) -> None:
    """The comparison above is one: rows as devices send them are written by the short way."""
    short = engines[0]
    ahead = NOW_MS + 100_000_000
    for text in (f"INSERT INTO d1 VALUES ({ahead}, 1, 0.5)", f"insert into t.d1 (ts, b) values ({ahead + 1}, 1e3);",
                 "INSERT INTO d1 VALUES ('2024-11-14 23:13:21.500', NULL, 3)", "INSERT INTO `fresh` VALUES(NOW, 4, 5)",
                 f"INSERT INTO wide VALUES ({ahead}, true, -1, 2, 3, 4, 5, 6.5, 7, {ahead})",
                 f"INSERT INTO texts VALUES ({ahead}, 'äb(', '),äöü')",
                 f"INSERT INTO texts VALUES ({ahead + 1}, NULL, '')", f"INSERT INTO bytes VALUES ({ahead}, 'ab')",
                 f"INSERT INTO e1 USING w TAGS (7, 'a, b') VALUES ({ahead}, 'abc', '1')",
                 f"insert into t.e1 using t.w (g) tags(-1.5)(ts, n) values({ahead + 1}, NULL)",
                 f"INSERT INTO w (tbname, ts, n) VALUES ('e1', {ahead + 2}, 'x')",
                 f"INSERT INTO keyed VALUES ({ahead}, 1, NULL)", f"INSERT INTO keyed (k, ts) VALUES (1, {ahead})"):
        written = short.engine.parts.row_inserts.insert(text, short.session)
        assert written == Result(affected=1), text
    for text in (f"INSERT INTO t.w (n, ts, tbname) VALUES ('a', {ahead + 4}, 'e1'), ('b', {ahead + 5}, 'e2')",
                 f"INSERT INTO w (tbname, ts, g, n) VALUES ('e1', {ahead + 6}, 7, 'x') ('e2', {ahead + 6}, 8, 'y')",
                 f"INSERT INTO d1 VALUES ({NOW_MS}, 1, 0.5) ({NOW_MS}, 2, NULL)",  # written before
                 f"INSERT INTO d1 VALUES ({ahead + 7}, 1, 0.5) wide (ts, c0) VALUES ({ahead + 7}, false)",
                 f"INSERT INTO e1 USING w TAGS (7, 'x') VALUES ({ahead + 8}, 'abc', '1') d1 (ts) VALUES ({NOW_MS})"):
        assert short.engine.parts.row_inserts.insert(text, short.session) == Result(affected=2), text


def test_child_tables_of_a_plain_insert_are_created_by_the_short_way(engines: list[Sandbox]) -> None:
    """Many rows for as many new tables, with the tags of the first USING that names each; and again."""
    ahead, count = NOW_MS + 200_000_000, times(1_000, 5_000)
    targets = "\n".join(f"many{n} USING w TAGS ({n}, 'x') VALUES ({ahead}, 'a', '{n}')" for n in range(count))
    again = f"many0 USING t.w (g) TAGS (-1) VALUES ({ahead + 1}, 'b', NULL) ({ahead + 2}, 'c', NULL)"
    for engine, said in ((engines[0], engines[0].engine.parts.row_inserts.insert), (engines[1], None)):
        for text, rows in ((f"INSERT INTO {targets} {again}", count + 2), (f"INSERT INTO {targets}", count)):
            written = engine.execute(text) if said is None else said(text, engine.session)
            assert written == Result(affected=rows)
    rows_of_both = [engine.execute("SELECT tbname, * FROM w WHERE tbname LIKE 'many%' ORDER BY tbname, ts").table
                    for engine in engines]
    assert rows_of_both[0] == rows_of_both[1]
    found = engines[0].execute("SELECT count(*), sum(g), max(s) FROM (SELECT DISTINCT tbname, g, s FROM w "
                               "WHERE tbname LIKE 'many%')").table
    assert [list(row.values()) for row in found.to_pylist()] == [[count, sum(range(count)), "x"]]


def test_nothing_is_created_if_a_row_is_wrong(engines: list[Sandbox]) -> None:
    """All rows are read before the first child table comes into being."""
    short = engines[0]
    for wrong in ("('x', 1, 2)", f"({NOW_MS}, 'toolong', NULL)", f"({NOW_MS})", "(1, 'a', 'b')", "()"):
        with pytest.raises(PenstockError):
            short.execute(f"INSERT INTO none1 USING w TAGS (1, 'x') VALUES ({NOW_MS}, 'a', 'b') none2 USING w TAGS "
                          f"(1, 'x') VALUES {wrong}")
        assert short.execute("SHOW TABLES LIKE 'none%'").table.num_rows == 0
