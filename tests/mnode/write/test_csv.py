"""CSV: both of its kinds, what a library reads and what it doesn't, and what `>> 'file.csv'` writes."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kits.basics.extreme_values import CASES, NAMES
from kits.engines.embedded import Embedded

from penstock.common.errors import InvalidValueError, PenstockError
from penstock.mnode.write import csv_rows
from penstock.mnode.write.csv_rows import CsvLayout, CsvReader

TIME = "2017-07-01 00:00:00"
MS = 1_498_867_200_000
COLUMNS = ("ts", "v", "a", "b")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("csv"))
    embedded.all("CREATE DATABASE d KEEP 36500", "USE d",
                 "CREATE TABLE t (ts TIMESTAMP, v DOUBLE, a NCHAR(20), b VARCHAR(40))",
                 "CREATE TABLE back (ts TIMESTAMP, v DOUBLE, a NCHAR(20), b VARCHAR(40))",
                 "CREATE STABLE m (ts TIMESTAMP, v DOUBLE) TAGS (g NCHAR(20))")
    yield embedded
    embedded.close()


@pytest.fixture
def db(engine: Embedded) -> Embedded:
    engine.all("DELETE FROM t", "DELETE FROM back")
    return engine


def read(db: Embedded, path: Path, content: str | bytes, into: str = "t") -> list[tuple[Any, ...]]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    db.execute(f"INSERT INTO {into} FILE '{path}'")
    return db.run("SELECT v, a, b FROM t ORDER BY ts")


@pytest.mark.parametrize(("content", "rows"), [
    (f"'{TIME}',1,'a, b','it''s'\n", [(1, "a, b", "it's")]),
    (f"'{TIME}', 1, 'a', 'b'\n", [(1, "a", "b")]),
    (f"'{TIME}' ,1 , 'a' ,b\n", [(1, "a", "b")]),
    (f"'{TIME}',1,'a\\'b','c\\nd\\\\'\n", [(1, "a'b", "c\nd\\")]),
    (f"'{TIME}',1,\"it's\",'say \"b\"'\n", [(1, "it's", 'say "b"')]),
    (f"{MS},1,\"a\",'b'\n{MS + 1},2,'c',\"d\"\n", [(1, "a", "b"), (2, "c", "d")]),
    (f'"{TIME}",1,"a","b c"\n', [(1, "a", "b c")]),
    (f'{MS},"1","say ""a""","\'b\'"\n', [(1, 'say "a"', "'b'")]),
    (f'{MS},1,"a\\","b"\n', [(1, "a\\", "b")]),
    (f'{MS},1,"a\\"b","c"\n', [(1, 'a"b', "c")]),
    (f'{MS}, 1, "a", "b"\n', [(1, "a", "b")]),
    (f"{MS}, 1, a, b\n", [(1, "a", "b")]),
    (f"{MS},1, a,it's 5\" wide\n", [(1, " a", "it's 5\" wide")]),
    (f"{MS},1,'tis,b\n", [(1, "'tis", "b")]),
    (f"{MS},1,'two\nlines','a\r\nb'\n", [(1, "two\nlines", "a\r\nb")]),
    (f'\n{MS},1,"two\nlines",b\r\n\r\n  \n', [(1, "two\nlines", "b")]),
    (f'{MS},1,a,"b"', [(1, "a", "b")]),
    (f"\ufeff'{TIME}',1,'a','b'\r\n", [(1, "a", "b")]),
    (f'{MS};1;"a;b";"c"\n', [(1, "a;b", "c")]),
    (f"{MS}\t1\ta b\tc\n", [(1, "a b", "c")]),
    (f"{MS},NULL,NULL,'NULL'\n{MS + 1},,'',\n", [(None, None, "NULL"), (None, "", None)]),
    (f'{MS}, NULL,NULL,"NULL"\n{MS + 1},,"",\n', [(None, None, "NULL"), (None, "", None)]),
    (f'b,ts,a,v\n"x",{MS},y,1\n', [(1, "y", "x")]),
    (f'"TS";"V"\n"{TIME}Z";2.5\n', [(2.5, None, None)]),
    (f"{MS},0x1F,a,b\n", [(31, "a", "b")]),
    (f"{MS},1,a,x\0y\n", [(1, "a", "x\0y")]),
    ("ts,v,a,b\n", []), ("", []), ("\n\n", []),
])
def test_files_as_programs_write_them(db: Embedded, tmp_path: Path, content: str, rows: list[tuple[Any, ...]]) -> None:
    """Both kinds of quotes, spaces, empty lines, line ends, separators, headers, and NULL beside text."""
    assert read(db, tmp_path / "x.csv", content) == rows
    assert read(db, tmp_path / "x.csv.gz", gzip.compress(content.encode())) == rows


@pytest.mark.parametrize(("content", "words"), [
    (f"{MS},1,'a','b'\n{MS},1,'a'\n", ["line 2: there are 3 values for 4", "TDengine's CSV"]),
    (f'{MS},1,"a","b"\n\n{MS},1,"a","b",5\n', ["line 3: there are 5 values for 4", "RFC 4180"]),
    (f'{MS},1,"a\n\n","b"\n{MS},x,"a","b"\n', ["line 4, column v: x is not"]),
    (f"{MS},1,'a','b'\n{MS},2,'a','b\n\n", ["line 2, column b: a quote is opened and never closed"]),
    (f'{MS},1,"a","b"\n{MS},2,"a"x,"b"\n', ["line 2, column a: a quote is not where"]),
    (f'{MS},1,"a","b"\n' * 200 + f'{MS},2,"a",\'b\'\n', ["line 201, column b: 'b' is in single quotes"]),
    (f"{MS},1,'a','{'b' * 41}'\n", ["line 1, column b"]),
    ("'1700-01-01 00:00:00',1,'a','b'\n", ["line 1: the timestamp"]),
    (f"{MS},1,'a','b'\n\n,1,'a','b'\n", ["line 3: the primary timestamp ts must not be NULL"]),
    (f"{MS},1,a,caf\xe9\n".encode("latin-1"), ["line 1: byte 0xe9 is no UTF-8", "Latin-1"]),
    (f"{MS},1,a,b\n".encode("utf-16"), ["is UTF-16"]),
    ("ts,v,count\n1,2,3\n", ["line 1: there are 3 values for 4"]),
    ("ts,v,a,count\n", ["line 1, column ts: 'ts' is not a timestamp"]),
    (f"{MS},,a,b\n{MS},\"\",\"a\",b\n", ["line 2, column v"]),
])
def test_mistakes_name_file_line_and_how_it_was_read(
    db: Embedded, tmp_path: Path, content: str | bytes, words: list[str]
) -> None:
    """And nothing is written."""
    path = tmp_path / "x.csv"
    with pytest.raises(PenstockError) as caught:
        read(db, path, content)
    assert str(path) in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    assert db.run("SELECT * FROM t") == []


def test_a_header_and_a_list_of_columns(db: Embedded, tmp_path: Path) -> None:
    """The header says which is which; other columns than the statement's are refused. A super table's may come in."""
    path = tmp_path / "x.csv"
    path.write_text(f"a,ts\nx,{MS}\n")
    assert db.execute(f"INSERT INTO t (ts, a) FILE '{path}'").affected == 1
    assert db.run("SELECT a FROM t") == [("x",)]
    with pytest.raises(PenstockError, match="its header names a, ts, the statement ts, b"):
        db.execute(f"INSERT INTO t (ts, b) FILE '{path}'")
    path.write_text(f"tbname,g,ts,v\nm1,'x y',{MS},1\n")
    assert db.execute(f"INSERT INTO m FILE '{path}'").affected == 1
    assert db.run("SELECT tbname, v, g FROM m") == [("m1", 1.0, "x y")]


@given(st.lists(st.sampled_from(sorted({*NAMES, *CASES, "NULL", "Null"})), min_size=1, unique=True),
       st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.sampled_from(",;\t|"))
def test_headers_name_columns(names: list[str], quoting: Any, delimiter: str) -> None:
    """In any order, as Python writes them: without quotes where these aren't needed, null, too."""
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter, quoting=quoting).writerows([["ts", *names], [1, *names]])
    known = ("ts", *sorted(names))
    [cells] = CsvReader(io.BytesIO(file.getvalue().encode()), "x.csv", CsvLayout(None, known, known))
    assert cells.names == ("ts", *names)


texts = st.text(st.sampled_from("ab ,;'\"\\\n\r\t\0|NULé😀0x"), max_size=9) | st.sampled_from(["NULL", "", "null"])


@settings(max_examples=times(24, 600))
@given(rows=st.lists(st.tuples(st.none() | st.floats(allow_nan=False, allow_infinity=False), st.none() | texts,
                               st.none() | texts), min_size=1, max_size=8),
       zone=st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns"]))
def test_what_a_query_writes_is_read_back(engine: Embedded, tmp_path_factory: pytest.TempPathFactory,
                                          rows: list[tuple[Any, ...]], zone: str) -> None:
    """Any texts and times, whatever zone the session has: the file gives the same rows."""
    path = tmp_path_factory.mktemp("back") / "x.csv"
    engine.all("DELETE FROM t", "DELETE FROM back")
    # an hour each, over the two that summer time skips and doubles
    times = [1_711_843_200_000 + 3_600_000 * place for place in range(len(rows))]
    v, a, b = zip(*rows, strict=True)
    table = pa.table({"ts": pa.array(times, pa.timestamp("ms")), "v": pa.array(v, pa.float64()),
                      "a": pa.array(a, pa.string()), "b": pa.array(b, pa.string())})
    engine.engine.insert_arrow("t", table, engine.session)
    engine.session.time_zone = zone
    try:
        engine.execute(f"SELECT * FROM t >> '{path}'")
        engine.execute(f"INSERT INTO back FILE '{path}'")
    finally:
        engine.session.time_zone = "UTC"
    assert engine.run("SELECT * FROM back ORDER BY ts") == engine.run("SELECT * FROM t ORDER BY ts")


def pieces(content: bytes, width: int, block: int = 1 << 20) -> list[tuple[str | None, ...]]:
    names = tuple(f"c{place}" for place in range(width))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_rows, "BLOCK_BYTES", block)
        read = CsvReader(io.BytesIO(content), "x.csv", CsvLayout(names, names, names, has_header=False, quote='"'))
        return [row for cells in read for row in zip(*(column.to_pylist() for column in cells.columns), strict=True)]


def test_blocks_and_python_give_the_same_rows(engine: Embedded) -> None:
    """Quoted line ends at the edges of blocks; Python's csv module is the oracle."""

    @given(rows=st.lists(st.lists(texts, min_size=3, max_size=3), max_size=12),
           block=st.sampled_from([16, 40, 1 << 20]), end=st.sampled_from(["\n", "\r\n"]))
    def same(rows: Sequence[Sequence[str]], block: int, end: str) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator=end).writerows(rows)
        assert pieces(text.getvalue().encode(), 3, block) == [tuple(row) for row in rows]

    same()


bits = st.sampled_from([*"ab ,\n'\"\\\r", ",", "\n", '""', '"a"', "'a'", " NULL", "x,y\n"])


@example(content=',""', quote="'")
@example(content="'',", quote="'")
@given(content=st.lists(bits, max_size=25).map("".join), quote=st.sampled_from(["'", '"', None]))
def test_the_library_reads_what_the_definition_says(content: str, quote: str | None) -> None:
    """Whatever the bytes are: where Arrow is asked at all, it gives the rows that `cut` gives, or the same refusal."""

    def outcome(plain: bool) -> object:
        names = ("x", "y")
        with pytest.MonkeyPatch.context() as patch:
            if not plain:
                patch.setattr(csv_rows, "is_plain", lambda data, dialect: False)
            try:
                read = CsvReader(io.BytesIO(content.encode()), "f", CsvLayout(names, names, names, quote=quote))
                return [[column.to_pylist() for column in cells.columns] for cells in read]
            except InvalidValueError as error:
                return str(error)

    assert outcome(plain=True) == outcome(plain=False)


def test_a_row_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What isn't closed is not gathered for ever."""
    monkeypatch.setattr(csv_rows, "ROW_BYTES_MAX", 1000)
    with pytest.raises(InvalidValueError, match=r"line 2: a row has more than .* quote in it is never closed"):
        pieces(b'1,2\n3,"' + b"x\n" * 5000, 2, 100)
