"""Arrow and Parquet into tables: all kinds of tables and columns, casts, pieces, and errors that name the row."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.basics.extreme_values import CASES, NAMES, quoted

import penstock
from penstock.common.errors import (
    AlreadyExistsError,
    InvalidStatementError,
    InvalidValueError,
    NotFoundError,
    PenstockError,
)
from penstock.mnode.write import arrow_rows, inserts
from penstock.shell.api import arrow_input, dbapi

T0 = 1_700_000_000_000
AT = dt.datetime(2023, 11, 14, 22, 13, 20)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Connection]:
    path = tmp_path_factory.mktemp("arrow") / "data"
    with penstock.connect(str(path), {"timezone": "UTC"}) as opened:
        yield opened


@pytest.fixture
def cursor(connection: penstock.Connection) -> Iterator[dbapi.Cursor]:
    """A fresh database `d` with the super table `m`, its child `m1` and the normal table `t`."""
    with connection.cursor() as opened:
        for statement in (
            "DROP DATABASE IF EXISTS d", "CREATE DATABASE d VGROUPS 2", "USE d",
            "CREATE STABLE m (ts TIMESTAMP, v INT, s VARCHAR(4)) TAGS (a TINYINT, b NCHAR(3))",
            "CREATE TABLE m1 USING m TAGS (1, 'x')", "CREATE TABLE t (ts TIMESTAMP, v INT, w DOUBLE)",
        ):
            opened.execute(statement)
        yield opened


def times(*offsets: int) -> pa.Array:
    return pa.array([T0 + offset for offset in offsets], pa.timestamp("ms"))


def select(cursor: dbapi.Cursor, statement: str) -> list[tuple[Any, ...]]:
    return cursor.execute(statement).fetchall()


def test_super_child_and_normal_tables(cursor: dbapi.Cursor) -> None:
    """A super table takes tbname and tags, a child and a normal table their columns, in any order."""
    rows = pa.table({"b": ["y", "y", None], "tbname": ["m2", "m1", "m2"], "v": [1, 2, 3], "ts": times(0, 1, 2)})
    assert cursor.insert_arrow("d.m", rows).rowcount == 3
    assert cursor.insert_arrow("m1", pa.table({"s": ["abc"], "ts": times(5)})).rowcount == 1
    cursor.insert_arrow("t", pa.table({"ts": times(0), "w": [1.5], "v": pa.array([None], pa.null())}))
    assert select(cursor, "SELECT tbname, v, s, a, b FROM m ORDER BY ts") == [
        ("m2", 1, None, None, "y"), ("m1", 2, None, 1, "x"), ("m2", 3, None, None, "y"), ("m1", None, "abc", 1, "x")]
    assert select(cursor, "SELECT v, w FROM t") == [(None, 1.5)]


def test_columns_left_out_keep_their_values(cursor: dbapi.Cursor) -> None:
    """A subset of the columns updates these and no others; NULL replaces."""
    cursor.insert_arrow("t", pa.table({"ts": times(0, 1), "v": [1, 2], "w": [1.0, 2.0]}))
    cursor.insert_arrow("t", pa.table({"ts": times(1, 2), "v": pa.array([None, 3], pa.int8())}))
    assert select(cursor, "SELECT v, w FROM t ORDER BY ts") == [(1, 1.0), (None, 2.0), (3, None)]


@pytest.mark.parametrize("make", [
    lambda table: table, lambda table: table.to_batches()[0], lambda table: table.to_reader(),
    lambda table: table.to_pandas(), lambda table: pa.chunked_array(table.to_struct_array().chunks),
])
def test_everything_that_is_arrow(cursor: dbapi.Cursor, make: Any) -> None:
    """Tables, batches, readers, data frames, and what has the C interface; nothing else."""
    table = pa.table({"ts": times(0, 1), "v": [1, 2]})
    given_data = make(table)
    assert cursor.insert_arrow("t", given_data).rowcount == 2
    assert select(cursor, "SELECT count(*), sum(v) FROM t") == [(2, 3)]


def test_what_is_not_arrow_is_refused(cursor: dbapi.Cursor) -> None:
    """The error names the type."""
    with pytest.raises(PenstockError, match="int is not Arrow data"):
        cursor.insert_arrow("t", 5)


@pytest.mark.parametrize("dictionary", [
    pa.DictionaryArray.from_arrays(pa.array([1, 1, 3], pa.int8()), ["unused", "m1", "also unused", "m3"]),
    pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int64()), ["m1", "m1", "m3"]),
    pa.chunked_array([pa.array(["m1"]).dictionary_encode(), pa.array(["m1", "m3"]).dictionary_encode()]),
    pa.array(["m1", "m1", "m3"], pa.large_string()),
    pa.array(["m1", "m1", "m3"], pa.string_view()),
])
def test_child_names_in_every_encoding(cursor: dbapi.Cursor, dictionary: pa.Array) -> None:
    """Dictionaries with unused or repeated names, in chunks, and other kinds of strings."""
    cursor.insert_arrow("m", pa.table({"tbname": dictionary, "ts": times(0, 1, 2), "a": pa.array([7, 7, 7])}))
    assert select(cursor, "SELECT tbname, count(*), first(a) FROM m PARTITION BY tbname ORDER BY tbname") == [
        ("m1", 2, 1), ("m3", 1, 7)]
    assert {row[0] for row in select(cursor, "SELECT DISTINCT tbname FROM m")} == {"m1", "m3"}


@pytest.mark.parametrize(("column", "values", "stored"), [
    ("v", pa.array([1.5, -2.5, 1.4]), [2, -3, 1]),
    ("v", pa.array(["5", "-6"]), [5, -6]),
    ("v", pa.array([Decimal("7"), None]), [7, None]),
    ("w", pa.array([1, 2], pa.uint64()), [1.0, 2.0]),
    ("w", pa.array([0.5, None], pa.float16()), [0.5, None]),
    ("ts", pa.array([T0, T0 + 1]), [AT, AT.replace(microsecond=1000)]),
    ("ts", pa.array([T0 * 1000 + 1999, T0 * 1000 + 2000], pa.timestamp("us")),
     [AT.replace(microsecond=1000), AT.replace(microsecond=2000)]),
    ("ts", pa.array([T0 // 1000], pa.timestamp("s", tz="Asia/Tokyo")), [AT]),
    ("ts", pa.array([dt.date(2023, 11, 14)]), [dt.datetime(2023, 11, 14)]),
])
def test_casts(cursor: dbapi.Cursor, column: str, values: pa.Array, stored: list[Any]) -> None:
    """What has one sensible meaning in the column's type is taken; what is finer than it is cut off."""
    rows = {"ts": times(*range(len(values))), "v": pa.array([0] * len(values))} | {column: values}
    cursor.insert_arrow("t", pa.table(rows))
    assert [row[0] for row in select(cursor, f"SELECT {column} FROM t ORDER BY ts")] == stored


@pytest.mark.parametrize(("table", "columns", "words"), [
    ("t", {"v": pa.array([1, 2, 2**31])}, ["row 3, column v", "2147483648", "INT"]),
    ("t", {"v": pa.array(["1", "x", "y"])}, ["row 2, column v", "x"]),
    ("t", {"v": pa.array([1.0, 2.0, float("nan")])}, ["row 3, column v", "nan"]),
    ("t", {"v": pa.array([[1], [2], [3]])}, ["column v takes INT", "list"]),
    ("t", {"ts": times(0, 1, -2 * T0)}, ["row 3: the timestamp"]),
    ("t", {"ts": pa.array([T0, T0, None], pa.timestamp("ms"))}, ["ts must not be NULL"]),
    ("t", {"ts": pa.array([0, 0, 2**60], pa.timestamp("s"))}, ["row 3, column ts"]),
    ("t", {"x": pa.array([1, 2, 3])}, ["column x does not exist in t"]),
    ("m1", {"s": pa.array(["a", "b", "too long"])}, ["row 3, column s", "8 bytes", "VARCHAR(4)"]),
    ("m", {"tbname": pa.array(["m1", "a.b", "m1"])}, ["'a.b' cannot be the name"]),
    ("m", {"tbname": pa.array(["m1", None, "m1"])}, ["None cannot be the name"]),
    ("m", {"tbname": pa.DictionaryArray.from_arrays([0, 1, 0], ["m1", None])}, ["None cannot be the name"]),
    ("m", {"tbname": pa.array(["m1", "m5", "t"])}, ["t is not a child table of m"]),
    ("m", {"tbname": pa.array(["m1", "m5", "m6"]), "a": pa.array([1, 2, 300])}, ["row 3, column a", "TINYINT"]),
    ("m", {}, ["tbname must be among the columns"]),
    ("nothing", {}, ["table d.nothing does not exist"]),
])
def test_what_does_not_fit_names_row_and_column(
    cursor: dbapi.Cursor, table: str, columns: dict[str, pa.Array], words: list[str]
) -> None:
    """Nothing is written, and the error says where and what."""
    with pytest.raises(PenstockError) as caught:
        cursor.insert_arrow(table, pa.table({"ts": times(0, 1, 2)} | columns))
    for word in words:
        assert word in str(caught.value)
    assert select(cursor, "SELECT count(*) FROM t") == select(cursor, "SELECT count(*) FROM m") == [(0,)]
    assert select(cursor, "SELECT TAGS tbname FROM m") == [("m1",)]


def test_a_double_that_float_cannot_hold(cursor: dbapi.Cursor) -> None:
    """A number doesn't become infinite, and what is no finite number is refused, as INSERT refuses it."""
    cursor.execute("CREATE TABLE f (ts TIMESTAMP, v FLOAT)")
    for number in ("inf", "-inf", "nan"):
        with pytest.raises(PenstockError, match=f"row 2, column v: {number} is not a value of type FLOAT"):
            cursor.insert_arrow("f", pa.table({"ts": times(0, 1), "v": [1.0, float(number)]}))
    with pytest.raises(PenstockError, match="row 2, column v: 1e\\+39"):
        cursor.insert_arrow("f", pa.table({"ts": times(1, 2), "v": [1.0, 1e39]}))


def test_pieces(cursor: dbapi.Cursor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are cut into pieces are all written, in order, and errors count rows from the first piece's first."""
    monkeypatch.setattr(arrow_rows, "SLICE_ROWS", 7)
    monkeypatch.setattr(inserts, "_RECORD_ROWS", 3)
    monkeypatch.setattr(arrow_input, "_PIECE_ROWS", 20)
    table = pa.table({"tbname": [f"c{n % 5}" for n in range(100)], "ts": times(*(n % 50 for n in range(100))),
                      "v": list(range(100))})
    for data in (table, table.to_reader(max_chunksize=9)):
        assert cursor.insert_arrow("m", data).rowcount == 100
        assert select(cursor, "SELECT count(*), min(v), sum(v) FROM m") == [(50, 50, sum(range(50, 100)))]
    wrong = table.set_column(2, "v", pa.array([*range(93), 2**40, *range(6)]))
    with pytest.raises(PenstockError, match="row 94, column v"):
        cursor.insert_arrow("m", wrong.to_reader(max_chunksize=9))
    assert cursor.insert_arrow("m", table.slice(0, 0)).rowcount == 0


ROWS = st.lists(st.tuples(st.sampled_from(["c1", "c2", "c3"]), st.integers(0, 5), st.none() | st.integers(-9, 9),
                          st.none() | st.text("aü", max_size=2)), max_size=20)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS, st.integers(1, 7), st.lists(st.sampled_from("vs"), min_size=1, max_size=2, unique=True))
def test_rows_equal_a_dictionary(cursor: dbapi.Cursor, rows: list[Any], chunk: int, columns: list[str]) -> None:
    """Against a dictionary by child and time: the last row of a key wins, in the columns that are given."""
    cursor.execute("DELETE FROM m")
    data = pa.table({
        "tbname": pa.array([row[0] for row in rows], pa.string()), "ts": times(*(row[1] for row in rows)),
        **{name: pa.array([row["vs".index(name) + 2] for row in rows], pa.int64() if name == "v" else pa.string())
           for name in columns}})
    cursor.insert_arrow("m", data.to_reader(max_chunksize=chunk))
    expected = {(row[0], row[1]): tuple(row["vs".index(name) + 2] for name in columns) for row in rows}
    found = cursor.execute(f"SELECT tbname, ts, {', '.join(columns)} FROM m").fetch_arrow().to_pydict()
    names, stamps, *values = found.values()
    assert {(name, round((stamp - AT) / dt.timedelta(milliseconds=1))): value for name, stamp, value in
            zip(names, stamps, zip(*values, strict=True), strict=True)} == expected


# --- ADBC --------------------------------------------------------------------------------------------------------


def test_adbc_modes(cursor: dbapi.Cursor) -> None:
    """create, append, replace and create_append do what their names say."""
    rows = pa.table({"v": [1, 2], "at": times(0, 1), "Name": ["a", "bb"]})
    assert cursor.adbc_ingest("New table", rows) == 2
    assert [row[:2] for row in select(cursor, "DESCRIBE `New table`")] == [
        ("at", "TIMESTAMP"), ("v", "BIGINT"), ("Name", "VARCHAR")]
    with pytest.raises(AlreadyExistsError):
        cursor.adbc_ingest("New table", rows, "create")
    cursor.adbc_ingest("New table", rows.slice(1), "append")
    cursor.adbc_ingest("New table", rows.slice(1).to_reader(), "create_append")
    assert select(cursor, "SELECT v, `Name` FROM `New table`") == [(1, "a"), (2, "bb")]
    assert cursor.adbc_ingest("New table", rows.slice(1), "replace", db_schema_name="d") == 1
    assert select(cursor, "SELECT v FROM `New table`") == [(2,)]
    with pytest.raises(NotFoundError):
        cursor.adbc_ingest("other", rows, "append")
    assert cursor.adbc_ingest("other", rows, "create_append") == 2


@pytest.mark.parametrize("table", ["tick`s", "V", "İ"])
def test_adbc_takes_any_names(cursor: dbapi.Cursor, table: str) -> None:
    """They are what they are, whatever others there are."""
    names = sorted({*NAMES, *CASES})
    rows = pa.table({"ts": times(0), **{name: [place] for place, name in enumerate(names)}})
    assert cursor.adbc_ingest(table, rows) == 1
    cursor.insert_arrow(quoted(table), rows.select(["ts", *reversed(names)]))
    shown = ", ".join(map(quoted, names))
    assert select(cursor, f"SELECT {shown} FROM {quoted(table)}") == [tuple(range(len(names)))]


def test_adbc_makes_super_tables(cursor: dbapi.Cursor) -> None:
    """With tags and tbname; types of all kinds."""
    rows = pa.table({
        "tbname": ["x1", "x2"], "place": pa.array(["Bonn", "Ulm"]).dictionary_encode(), "ts": times(0, 1),
        "b": [True, None], "i": pa.array([1, 2], pa.uint8()), "f": pa.array([1, 2], pa.float32()),
        "d": [Decimal("1.50"), None], "y": [b"\0", None], "long": ["x" * 100, None]})
    assert cursor.adbc_ingest("sup", rows, tags=["place"]) == 2
    assert select(cursor, "SELECT tbname, place, b, i, f, long FROM sup ORDER BY ts") == [
        ("x1", "Bonn", True, 1, 1.0, "x" * 100), ("x2", "Ulm", None, 2, 2.0, None)]
    assert {row[0]: row[1] for row in select(cursor, "DESCRIBE sup")}["i"] == "TINYINT UNSIGNED"


@pytest.mark.parametrize(("columns", "arguments", "words"), [
    ({"v": [1]}, {}, "no column is a timestamp"),
    ({"ts": times(0), "v": [[1]]}, {}, "column v: there is no SQL type"),
    ({"ts": times(0), "v": [1]}, {"tags": ["x"]}, "no column x for a tag"),
    ({"ts": times(0), "v": [1], "x": [1]}, {"tags": ["x"]}, "tbname"),
    ({"ts": times(0), "v": [1], "tbname": ["x"]}, {}, "tags"),
    ({"ts": times(0), "v": [1]}, {"mode": "merge"}, "'merge' is not a mode"),
    ({"ts": times(0), "v": [1]}, {"temporary": True}, "temporary"),
    ({"ts": times(0), "v\n": [1]}, {}, "unprintable"),
    ({"ts": times(-T0 * 2), "v": [1]}, {}, "out of range"),
])
def test_adbc_refusals_leave_no_table(
    cursor: dbapi.Cursor, columns: dict[str, Any], arguments: dict[str, Any], words: str
) -> None:
    """What cannot become a table, or whose rows don't fit, leaves none behind."""
    with pytest.raises(PenstockError, match=words):
        cursor.adbc_ingest("new", pa.table(columns), **arguments)
    with pytest.raises(NotFoundError):
        cursor.execute("DESCRIBE new")


TEXTS, BYTES = ["a", "ü", None], [b"a", b"\xff", None]


@pytest.mark.parametrize(("values", "kind"), [
    *((pa.array(TEXTS, kind), "VARCHAR") for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *((pa.array(BYTES, kind), "VARBINARY") for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    *((pa.DictionaryArray.from_arrays(pa.array([0, 1, None], index), pa.array(words[:2], kind)), name)
      for index in (pa.int8(), pa.uint32())
      for words, kind, name in ((TEXTS, pa.string_view(), "VARCHAR"), (TEXTS, pa.large_string(), "VARCHAR"),
                                (BYTES, pa.binary_view(), "VARBINARY"), ([7, 8], pa.int16(), "SMALLINT"))),
    (pa.array([b"ab", b"cd", None], pa.binary(2)), "VARBINARY"),
    (pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", None])), "VARCHAR"),
    (pa.array([b"0123456789abcdef", None, None], pa.uuid()), "VARBINARY"),
], ids=lambda value: str(value.type) if isinstance(value, pa.Array) else value)
def test_every_encoding_of_a_type(cursor: dbapi.Cursor, values: pa.Array, kind: str) -> None:
    """Views, dictionaries, run ends and extensions make the same tables as plain values, and bring the same rows."""
    rows = pa.table({"ts": times(0, 1, 2), "v": values})
    for mode in ("create", "append"):
        assert cursor.adbc_ingest("encoded", rows, mode=mode) == 3  # type: ignore[arg-type]
        assert [row[0] for row in cursor.execute("SELECT v FROM encoded ORDER BY ts").fetchall()] == \
            [value.bytes if isinstance(value, uuid.UUID) else value for value in values.to_pylist()]
    assert [row[1] for row in cursor.execute("DESCRIBE encoded").fetchall()] == ["TIMESTAMP", kind]


def test_data_frames_of_polars(cursor: dbapi.Cursor) -> None:
    """Categorical, Enum and Binary columns are texts and bytes, of new tables and in tags and names of children."""
    start = dt.datetime(2024, 5, 1)
    frame = polars.DataFrame({
        "ts": [start, start + dt.timedelta(seconds=1)], "b": [b"\xff", None],
        "c": polars.Series(["x", None], dtype=polars.Categorical),
        "e": polars.Series(["y", "z"], dtype=polars.Enum(["y", "z"]))})
    cursor.adbc_ingest("frame", frame)
    assert cursor.execute("SELECT ts, b, c, e FROM frame").fetchall() == frame.rows()
    cursor.adbc_ingest("s", frame.rename({"c": "tbname"}).fill_null("n"), tags=["e"])
    assert cursor.execute("SELECT tbname, e FROM s ORDER BY ts").fetchall() == [("x", "y"), ("n", "z")]


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct({"a": pa.int8()}), pa.null()], ids=str)
def test_types_without_counterpart_are_named(cursor: dbapi.Cursor, kind: pa.DataType) -> None:
    """The error has the column, Arrow's type and the SQL types that there are, or that of the column."""
    rows = pa.table({"ts": times(0), "v": pa.nulls(1, kind)})
    with pytest.raises(InvalidValueError, match=r"column v: there is no SQL type for Arrow's .* VARCHAR or VARBINARY"):
        cursor.adbc_ingest("new", rows)
    if kind != pa.null():
        with pytest.raises(InvalidValueError, match="column n takes INT, not Arrow's"):
            cursor.execute("CREATE TABLE numbers (ts timestamp, n int)").insert_arrow(
                "numbers", rows.rename_columns(["ts", "n"]))


LATIN_1 = pa.StringArray.from_buffers(
    3, pa.py_buffer(b"\0\0\0\0\x01\0\0\0\x03\0\0\0\x04\0\0\0"), pa.py_buffer(b"a\xe9tb"))
OUTSIDE = pa.StringArray.from_buffers(
    3, pa.py_buffer(b"\0\0\0\0\x01\0\0\0\x7f\0\0\0\x04\0\0\0"), pa.py_buffer(b"a\xe9tb"))


@pytest.mark.parametrize(("name", "values", "words"), [
    ("s", LATIN_1, "b'\\xe9t' is not valid UTF-8"),
    ("s", pa.chunked_array([["x"], LATIN_1.slice(1)]), "b'\\xe9t' is not valid UTF-8"),
    ("s", LATIN_1.cast(pa.large_binary()).view(pa.large_string()), "is not valid UTF-8"),
    ("s", LATIN_1.cast(pa.binary_view()).view(pa.string_view()), "is not valid UTF-8"),
    ("s", pa.DictionaryArray.from_arrays([0, 1, 2], LATIN_1), "is not valid UTF-8"),
    ("s", LATIN_1.cast(pa.binary()), "is not valid UTF-8"),
    ("s", pa.array([b"a", b"\xed\xa0\x80", b"b"]).view(pa.string()), "is not valid UTF-8"),
    ("b", LATIN_1, "is not valid UTF-8"), ("tbname", LATIN_1, "is not valid UTF-8"),
    ("tbname", pa.DictionaryArray.from_arrays([0, 1, 2], LATIN_1), "is not valid UTF-8"),
    ("tbname", OUTSIDE, "malformed"), ("s", OUTSIDE, "malformed"),
    ("s", pa.DictionaryArray.from_arrays([0, 7, 0], ["a"], safe=False), "malformed"),
], ids=lambda value: value if isinstance(value, str) else "values")
def test_what_is_not_what_arrow_says_is_refused_with_its_row(
    cursor: dbapi.Cursor, tmp_path: Path, name: str, values: pa.Array | pa.ChunkedArray, words: str
) -> None:
    """From Python, from readers and from Parquet files; nothing is written, and queries go on."""
    columns = {"ts": times(0, 1, 2), "tbname": ["m1", "m1", "m1"], name: values}
    wrong = re.escape(f"row 2, column {name}: ") + ".*" + re.escape(words)
    with pytest.raises(InvalidValueError, match=wrong):
        cursor.insert_arrow("m", pa.table(columns))
    with pytest.raises(InvalidValueError, match=wrong):
        cursor.insert_arrow("m", pa.table(columns).to_reader())
    if values.type == pa.string() and "malformed" not in words:
        pq.write_table(pa.table(columns), tmp_path / "x.parquet")
        with pytest.raises(InvalidValueError, match=wrong):
            cursor.execute(f"INSERT INTO m FILE '{tmp_path}/x.parquet'")
    assert select(cursor, "SELECT upper(s), tbname, b FROM m") == []


def test_python_texts_that_are_none_are_refused(cursor: dbapi.Cursor) -> None:
    """Half a surrogate pair, in statements, names, and lines."""
    for statement in ("INSERT INTO m1 (ts, s) VALUES (1700000000000, '{}')", "SELECT '{}'", "CREATE DATABASE `x{}`",
                      "INSERT INTO `m{}` USING m TAGS (1, 'x') VALUES (1700000000000, 1, 'a')"):
        with pytest.raises(PenstockError, match="not valid Unicode"):
            cursor.execute(statement.format("\ud800"))
    for lines in ('x f="\ud800"', ["x f=1", 'x f="\ud800"']):
        with pytest.raises(PenstockError, match=f"line {1 if isinstance(lines, str) else 2} is not valid UTF-8"):
            cursor.connection.ingest_lines(lines, database="d")


# --- files -------------------------------------------------------------------------------------------------------


def test_csv_into_a_super_table(cursor: dbapi.Cursor, tmp_path: Path) -> None:
    """With a list of columns, tbname among them; children are made with their tags."""
    path = tmp_path / "x.csv"
    path.write_text(f"'m1',9,{T0},1\n'm7',7,'2023-11-14 22:13:20.001',2\n")
    assert cursor.execute(f"INSERT INTO m (tbname, a, ts, v) FILE '{path}'").rowcount == 2
    assert select(cursor, "SELECT tbname, a, v FROM m ORDER BY ts") == [("m1", 1, 1), ("m7", 7, 2)]
    path.write_text(f"'m1',9,{T0},1\n'm8',7,1,2\n")
    with pytest.raises(PenstockError, match=f"{path}, line 2: the timestamp 1 is out of range"):
        cursor.execute(f"INSERT INTO m (tbname, a, ts, v) FILE '{path}'")
    with pytest.raises(InvalidStatementError, match="name the columns"):
        cursor.execute(f"INSERT INTO m FILE '{path}'")


def test_parquet_files(cursor: dbapi.Cursor, tmp_path: Path) -> None:
    """By ending, columns by name: into super tables, children (also with USING) and normal tables."""
    path = tmp_path / "x.PARQUET"
    pq.write_table(pa.table({"s": ["a", "b"], "ts": times(0, 1), "v": [1, 2]}), path)
    assert cursor.execute(f"INSERT INTO m1 FILE '{path}' m9 USING m TAGS (9, 'z') FILE '{path}'").rowcount == 4
    assert select(cursor, "SELECT tbname, v, s, a FROM m ORDER BY tbname, ts") == [
        ("m1", 1, "a", 1), ("m1", 2, "b", 1), ("m9", 1, "a", 9), ("m9", 2, "b", 9)]
    assert cursor.execute(f"INSERT INTO t (ts, v) FILE '{path}'").rowcount == 2
    pq.write_table(pa.table({"tbname": ["m1", "m5"], "ts": times(5, 5), "a": [3, 4]}), path)
    assert cursor.execute(f"INSERT INTO m FILE '{path}'").rowcount == 2
    assert select(cursor, "SELECT tbname, a FROM m WHERE ts = 1700000000005 ORDER BY tbname") == [("m1", 1), ("m5", 4)]


def test_parquet_errors_name_the_file(cursor: dbapi.Cursor, tmp_path: Path) -> None:
    """Missing files, other files, missing columns, and values that don't fit."""
    path = tmp_path / "x.parquet"
    with pytest.raises(NotFoundError, match="there is no file"):
        cursor.execute(f"INSERT INTO t FILE '{path}'")
    path.write_text("no parquet")
    with pytest.raises(PenstockError, match=f"{path} is not a Parquet file"):
        cursor.execute(f"INSERT INTO t FILE '{path}'")
    pq.write_table(pa.table({"ts": times(0, 1), "v": [1, 2**40], "q": [1, 2]}), path)
    with pytest.raises(PenstockError, match=f"{path}, row 2, column v: {2**40}"):
        cursor.execute(f"INSERT INTO t (ts, v) FILE '{path}'")
    with pytest.raises(PenstockError, match=r"has no column w .*ts, v, q"):
        cursor.execute(f"INSERT INTO t (ts, w) FILE '{path}'")
    with pytest.raises(NotFoundError, match="column q does not exist in t"):
        cursor.execute(f"INSERT INTO t FILE '{path}'")
