"""A few plain lines take a short way: whatever the lines, it does what the long way does."""

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
from penstock.mnode.admin.sandbox import Sandbox
from penstock.mnode.engine import Engine

NOW_MS = 1_700_000_000_000
FIRST_LINES = """
m,a=x,b=y i=1i,d=1.5,f=2f32,s="text",n=L"näme",y=B"bin",t=true,u=7u8 0
m,a=y,b=x i=1i 0
m,a=z i=1i 0
w v=1 0
w,a=x v=1 0
a.b,c=1 v=2u,x=-3i16 0
"""
NEXT = "@"  #: stands for a time that is newer than all before

Choice = st.SearchStrategy[Any] | list[Any]


def mostly(usual: Choice, odd: Choice) -> st.SearchStrategy[Any]:
    """The usual, and now and then the odd: lines are plain only if all of them are."""
    ways = [one if isinstance(one, st.SearchStrategy) else st.sampled_from(one) for one in (usual, odd)]
    return st.integers(0, 19).flatmap(lambda number: ways[number == 19])


HEADS = mostly(["m,a=x,b=y", "m,a=x,b=y", "m,b=y,a=x", "m,a=z", "w", "w,a=x", "a.b,c=1", "a_b,c=1"], [
    "m,a=new,b=y", "m", "m,a=x,b=y,c=z", "m,a=x,a=x", f"m,a={'x' * 30}", "m,a=x,b=", "m,a=x,i=3", "t,a=1", "M,a=x", "",
    'm,a="x', "m,a=x\\ y", "m\\,a=x", "m,ä=ö", "new,a=1", ",a=x", "m,a", "#m,a=x", "select,a=1", "plain", "m.x,a=1"])
NUMBERS = st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.integers(-9, 9).map(str)
FIELDS: dict[str, st.SearchStrategy[str]] = {
    "i": mostly(st.integers(-2**63, 2**63 - 1).map("{}i".format), ["1i8", "9223372036854775808i", "1", "i", "1i64"]),
    "d": mostly(NUMBERS, ["1f64", "1f32", "1e999", "nan", ".5", "5.", "+1", "1_0", "t"]),
    "f": mostly(NUMBERS.map("{}f32".format), ["1", "1e39f32", "3.4028235e38f32", "16777217f32", "1e-50f32"]),
    "s": mostly(['"text"', '"a b"', '"a,b=c"', '""', '"#"'], [
        f'"{"x" * 40}"', '"ä"', '"a\\"b"', '"a\\\\b"', '"open', 'none', '"a"b"', '"a\tb"', '"' + "ö" * 9 + '"']),
    "n": mostly(['L"näme"', 'L"a b"', 'L""'], [f'L"{"ö" * 20}"', '"name"', 'L"', 'L"a\\"', 'X"a"']),
    "y": mostly(['B"bin"', 'B"\\x4142"'], ['B"\\x4"', f'B"{"x" * 20}"', 'G"POINT(1 1)"']),
    "t": mostly(["t", "true", "F", "False"], ["1", "tRUE", '"t"']),
    "u": mostly(st.integers(0, 255).map("{}u8".format), ["256u8", "-1u8", "1u"]),
    "v": mostly(NUMBERS, ["1u", "1i"]), "x": mostly(st.integers(-9, 9).map("{}i16".format), ["99999i16"]),
    "a": st.just("1"), "_ts": st.just("1i"), "neu": st.just("1i")}
OF_TABLE = {"m": "idfsnytu", "w": "v", "a": "vx"}
TIMES = mostly(st.just(f" {NEXT}"), ["", " 0", " -1", " 1", " 99999999999999999999", " 9223372036854775807", " x",
                                     " 1.5", f" {NOW_MS}", "  5", f" {NEXT} ", f" {NEXT} 1", " +5", f"\t{NEXT}"])


@st.composite
def lines(draw: st.DrawFn) -> str:
    """A line that may mean something."""
    head = draw(HEADS)
    usual = OF_TABLE.get(head[:1], "v")
    unique = draw(st.integers(0, 9)) > 0
    names = draw(st.lists(mostly(list(usual), list(FIELDS)), min_size=1, max_size=4, unique=unique))
    fields = ",".join(f"{name}={draw(FIELDS[name])}" for name in names)
    return f"{head}{draw(mostly([' '], ['  ', '']))}{fields}{draw(TIMES)}"


TEXTS = st.tuples(st.lists(mostly(lines(), ["", "# no line", " ", "\r", "\0", "m"]), min_size=1, max_size=4),
                  mostly(["\n"], ["\r\n", "\n\n"]), st.sampled_from(["", "\n"])).map(
                      lambda drawn: drawn[1].join(drawn[0]) + drawn[2])


@pytest.fixture(scope="module")
def engines() -> Iterator[list[Sandbox]]:
    """Two engines with the same tables; the second takes the long way always."""
    made = [Sandbox(now_ms=NOW_MS) for _ in range(2)]
    for engine in made:
        for precision in ("ms", "us", "ns"):
            make_tables(engine, precision)
    made[1].engine.parts.line_rows.append = lambda data, *_: (0, data)  # type: ignore[method-assign]
    yield made
    for engine in made:
        engine.close()


def make_tables(engine: Sandbox, precision: str) -> None:
    """Makes a database of this name and precision, with the tables that lines are for."""
    engine.execute(f"CREATE DATABASE {precision} PRECISION '{precision}' VGROUPS 2")
    engine.execute(f"USE {precision}")
    engine.execute("CREATE TABLE plain (ts TIMESTAMP, v DOUBLE)")
    ingest(engine, FIRST_LINES, precision, "ms")


@pytest.fixture(scope="module")
def newer() -> Iterator[int]:
    """Milliseconds that grow."""
    return itertools.count(NOW_MS + 100_000)


def ingest(engine: Sandbox, text: str, database: str, precision: str) -> Any:
    """Returns how many lines were written, or what is said of them."""
    try:
        return engine.engine.ingest_lines(text.encode(), database, precision, engine.session)
    except PenstockError as error:
        return type(error), error.code, error.message, error.hint


def contents(engine: Sandbox, database: str) -> list[Any]:
    """Returns all super tables of a database with all rows."""
    engine.execute(f"USE {database}")
    names = engine.execute("SHOW STABLES").table.column(0).to_pylist()  # type: ignore[union-attr]
    return [(name, engine.execute(f"DESCRIBE `{name}`").table,
             engine.execute(f"SELECT tbname, * FROM `{name}` ORDER BY tbname, _ts").table) for name in sorted(names)]


@settings(max_examples=times(12, 20_000))
@given(st.lists(TEXTS, min_size=1, max_size=4), st.sampled_from(["ms", "us", "ns"]),
       mostly(["ms", "us", "ns"], ["h", "s", "days"]))
def test_both_ways_do_the_same(
    engines: list[Sandbox], newer: Iterator[int], texts: list[str], database: str, precision: str
) -> None:
    """The same numbers of lines, the same errors, the same tables and the same rows in them."""
    short, long = engines
    unit = {"h": 1, "s": 1, "ms": 1, "us": 1000, "ns": 1_000_000}.get(precision, 1)
    for drawn in texts:
        text = "".join(str(next(newer) * unit) if piece == NEXT else piece for piece in re.split(f"({NEXT})", drawn))
        assert ingest(short, text, database, precision) == ingest(long, text, database, precision)
    assert contents(short, database) == contents(long, database)


@pytest.mark.parametrize("precision", ["ms", "us", "ns"])
def test_plain_lines_take_the_short_way(precision: str) -> None:
    """The comparison above is one: lines as devices send them are written by the short way."""
    with Sandbox(now_ms=NOW_MS) as fresh:
        make_tables(fresh, precision)
        _write_plain_lines(fresh.engine, precision)


def _write_plain_lines(short: Engine, precision: str) -> None:
    database = short.catalog.database(precision)
    assert database is not None
    unit = {"ms": 1, "us": 1000, "ns": 1_000_000}[precision]
    ahead = (NOW_MS + 100_000_000) * unit
    text = (f'm,a=x,b=y i=-5i,d=.5,f=2.5f32,s="a, b",n=L"ö",y=B"\\x00",t=f,u=255u8 {ahead}\n# a remark\n\n'
            f"w v=1 {ahead}\na.b,c=1 x=3i16 {ahead}\nm,b=y,a=x i=1i {ahead + unit}\n").encode()
    assert short.parts.line_rows.append(text, database, precision) == (4, b"")
    again = b"w v=2 %d\nm,a=x,b=y i=4i %d\n" % (ahead, ahead)
    assert short.parts.line_rows.append(again, database, precision) == (1, b"\nm,a=x,b=y i=4i %d\n" % ahead)


@pytest.mark.parametrize("line", [
    f'm,a=x,b=y s="{"x" * 17}"', f'm,a=x,b=y s="{"ä" * 9}"', f'm,a=x,b=y n=L"{"ä" * 17}"',
    f'm,a=x,b=y y=B"{"x" * 17}"', "m,a=x,b=y neu=1", "m,a=x,b=y i=1", "m,a=x,b=y,c=z i=1i", f"m,a={'x' * 17} i=1i",
    "m,a=other i=1i", "m,a=x,b=y _ts=1i", "m,a=x,b=y a=1", "plain v=1", "new v=1", "m,a=x,b=y i=1i 9"])
def test_what_tables_must_change_for_takes_the_long_way(line: str) -> None:
    """Nothing is written then, nor of the lines beside it."""
    with Sandbox(now_ms=NOW_MS) as fresh:
        make_tables(fresh, "ms")
        database = fresh.engine.catalog.database("ms")
        assert database is not None
        before = contents(fresh, "ms")
        text = f"w v=5 {NOW_MS + 1}\n{line} {NOW_MS + 2}\nw v=6 {NOW_MS + 3}".encode()
        assert fresh.engine.parts.line_rows.append(text, database, "ms") == (0, text)
        assert contents(fresh, "ms") == before
        plain = f"w v=5 {NOW_MS + 1}\nm,a=x,b=y i=1i {NOW_MS + 2}".encode()
        assert fresh.engine.parts.line_rows.append(plain, database, "ms") == (2, b"")
