"""InfluxDB's line protocol: what lines mean, what they make of tables, and what is refused with which words."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.embedded import NOW_MS, Embedded

import penstock
from penstock.common.errors import InUseError, InvalidValueError, NotFoundError, PenstockError
from penstock.sql.rows import line_protocol
from penstock.sql.rows.line_protocol import Points, parse_lines
from penstock.sql.rows.line_scanner import parse_value
from penstock.sql.types import Kind

T0 = 1_700_000_000_000  # ms
METERS = "meters,location=a,groupid=2 current=10.3,voltage=219i,phase=0.31 1648791213000000000"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("lines"))
    yield embedded
    embedded.close()


@pytest.fixture
def db(engine: Embedded) -> Embedded:
    """A fresh database `d`."""
    engine.all("DROP DATABASE IF EXISTS d", "CREATE DATABASE d VGROUPS 2", "USE d")
    return engine


def ingest(db: Embedded, lines: str, precision: str = "ms", database: str = "d") -> int:
    return db.engine.ingest_lines(lines.encode(), database, precision, db.session)


def refused(db: Embedded, lines: str, precision: str = "ms") -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        ingest(db, lines, precision)
    return caught.value


def rows_of(points: list[Points]) -> list[tuple[Any, ...]]:
    """Returns (line, measurement, tags, fields with kinds, time) of all lines in their order."""
    rows = []
    for group in points:
        columns = [(field.name, field.kind, field.values.to_pylist()) for field in group.fields]
        for row in range(group.num_rows):
            fields = tuple((name, kind, values[row]) for name, kind, values in columns)
            rows.append((int(group.lines[row]), group.measurement, group.series[group.index[row]].tags, fields,
                         int(group.times[row])))
    return sorted(rows)


def child_name(text: str) -> str:
    return "t_" + hashlib.md5(text.encode()).hexdigest()


# --- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "kind", "value"), [
    ("1", Kind.DOUBLE, 1.0), ("-1.5e3", Kind.DOUBLE, -1500.0), ("+.5", Kind.DOUBLE, 0.5), ("2.", Kind.DOUBLE, 2.0),
    ("1.5f64", Kind.DOUBLE, 1.5), ("1.5f32", Kind.FLOAT, 1.5), ("7i", Kind.BIGINT, 7), ("-7i64", Kind.BIGINT, -7),
    ("-128i8", Kind.TINYINT, -128), ("32767i16", Kind.SMALLINT, 32767), ("5i32", Kind.INT, 5),
    ("18446744073709551615u", Kind.UBIGINT, 2**64 - 1), ("255u8", Kind.UTINYINT, 255), ("9u16", Kind.USMALLINT, 9),
    ("9u32", Kind.UINT, 9), ("9u64", Kind.UBIGINT, 9), ("t", Kind.BOOL, True), ("F", Kind.BOOL, False),
    ("TRUE", Kind.BOOL, True), ("false", Kind.BOOL, False), ('""', Kind.VARCHAR, ""), ('"a b"', Kind.VARCHAR, "a b"),
    ('L"ü"', Kind.NCHAR, "ü"), ('B"ab"', Kind.VARBINARY, b"ab"), (r'B"\x00ff"', Kind.VARBINARY, b"\x00\xff"),
    (r'"a\"b\\c\d"', Kind.VARCHAR, 'a"b\\c\\d'),
])
@pytest.mark.parametrize("neighbours", [1, 3])
def test_suffix_tells_the_type(text: str, kind: Kind, value: object, neighbours: int) -> None:
    """Each suffix has its type, in one line and in a column of lines."""
    assert parse_value(text) == (kind, value)
    lines = "\n".join(f"m f={text} {number}" for number in range(1, neighbours + 1))
    found = rows_of(parse_lines(lines.encode()))
    assert [row[3] for row in found] == [(("f", kind, value),)] * neighbours


@pytest.mark.parametrize("text", [
    "x", "1x", "1i9", "1.5i", "-1u", "300i8", "256u8", "0x10", "nan", "inf", "1e400", "1e39f32", "1_000", "--1", "i",
    "9223372036854775808i", '"open', 'open"', '"a"b', '"a""b"', 'X"a"', 'G"POINT(1 1)"', 'B"\\xZZ"', "tru",
    "1" * 200 + "i",
])
@pytest.mark.parametrize("before", ["", "m f=1 1\nm f=2 2\n", 'm f="a" 1\n'])
def test_wrong_values_name_line_and_text(text: str, before: str) -> None:
    """Whatever stands before it, a wrong value is refused with the number and the text of its line."""
    line = before.count("\n") + 1
    with pytest.raises(InvalidValueError) as caught:
        parse_lines(f"{before}m f={text} 9".encode())
    assert f"line {line}" in caught.value.message
    assert f"m f={text[:20]}" in caught.value.message


@pytest.mark.parametrize("line", [
    "m", "m,", "m ", "m f", "m f=", "m =1", "m f=1,", "m f=1,=2", "m,t f=1", "m,t= f=1", "m,=v f=1", ",t=v f=1",
    "m,t=a=b f=1", "m f=1 x", "m f=1 1.5", "m f=1 1 2", "m f=1,f=2", "m,t=1,t=2 f=1", " ,a=1 f=1",
    "m f=1 99999999999999999999", "m f=1 9223372036854775808", 'm f="a" b"', "m f=1 -",
])
def test_broken_lines_name_line_and_text(line: str) -> None:
    """Lines that aren't of the form `measurement,tags fields time` are refused, among good ones too."""
    for text in (line, f"m f=1 1\n\n{line}\nm f=2 2"):
        with pytest.raises(InvalidValueError, match=r"line [13]\b") as caught:
            parse_lines(text.encode())
        assert line.strip() in caught.value.message


def test_blank_lines_comments_and_line_ends() -> None:
    """Comments and empty lines count as lines but hold no points; CRLF and missing last line ends don't matter."""
    text = b'\r\n# comment, with=a "quote\r\n\r\nm f=1 1\r\n  m  f=2   2  \r\n#m f=3 3\r\nm f=4 4'
    found = rows_of(parse_lines(text))
    assert [(row[0], row[4]) for row in found] == [(4, 1), (5, 2), (7, 4)]
    assert parse_lines(b"") == parse_lines(b"\n\n# x\n") == []


def test_text_that_is_not_utf8_names_its_line() -> None:
    """Bytes that are no UTF-8 are refused before anything is read."""
    with pytest.raises(InvalidValueError, match="line 3 is not valid UTF-8"):
        parse_lines(b"m f=1 1\nm f=1 2\nm,t=\xff f=1 3\n")


def test_a_field_keeps_its_type_across_lines_and_shapes() -> None:
    """Two types of one field in one call are an error that names both lines."""
    for lines in ("m f=1 1\nm f=2i 2", "m f=1 1\nm f=t 2\nm f=1 3", "m f=1,g=1 1\nm f=2i 2", 'm f=1 1\nm f="a" 2'):
        with pytest.raises(InvalidValueError, match=r"line 2.* line 1"):
            parse_lines(lines.encode())
    assert len(parse_lines(b"m f=1 1\nk f=2i 2")) == 2


def test_the_first_wrong_line_is_the_one_that_is_named() -> None:
    """Whichever shape is read first: of several mistakes the one in the first line is told."""
    with pytest.raises(InvalidValueError, match=r"line 2: field g: x is not"):
        parse_lines(b"m f=1 1\nm f=1,g=x 1\nm f=x 1\nm,t= f=1")


ALPHABET = st.sampled_from(["m", "f", "1", "2i", "t", '"', '"', ",", ",", "=", "=", " ", " ", "\\", ".", "L", "#", "ü"])


@settings(max_examples=times(160, 4000), deadline=None)
@given(st.lists(st.lists(ALPHABET, max_size=14).map("".join), min_size=1, max_size=4))
def test_reading_in_bulk_equals_reading_one_by_one(lines: list[str]) -> None:
    """Whatever the text, lines mean the same in bulk as by the scanner, which a tab at the end calls for."""

    def outcome(text: str) -> object:
        try:
            return rows_of(parse_lines(text.encode()))
        except InvalidValueError:
            return "refused"

    assert outcome("\n".join(lines)) == outcome("\n".join(f"{line}\t" for line in lines))


# --- against a slow reference ------------------------------------------------------------------------------------

NAMES = st.text(st.sampled_from("ab ,=ü\"\\'"), min_size=1, max_size=4).filter(
    lambda name: not name.endswith("\\") and not name.startswith(("\\", "#")) and name == name.strip()
    and not any(f"\\{special}" in name for special in ",= \\"))
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
FIELDS: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    "d": (FLOATS, repr), "i": (st.integers(-2**63, 2**63 - 1), lambda v: f"{v}i"),
    "u 8": (st.integers(0, 255), lambda v: f"{v}u8"), "b,": (st.booleans(), lambda v: "TRUE" if v else "f"),
    "s=": (TEXTS, lambda v: quoted(v)), "n": (TEXTS, lambda v: "L" + quoted(v)),
    "f": (st.floats(width=32, allow_nan=False, allow_infinity=False), lambda v: f"{v!r}f32"),
}


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def escaped(text: str, special: str = ",= ") -> str:
    return "".join(f"\\{character}" if character in special else character for character in text)


Point = tuple[str, dict[str, str], dict[str, Any], int]


@st.composite
def points(draw: st.DrawFn) -> Point:
    fields = draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=4, unique=True))
    return (
        draw(st.sampled_from(["m", "x y,z"])),
        draw(st.dictionaries(st.sampled_from(["t", "u=", "v w"]), NAMES, max_size=2)),
        {name: draw(FIELDS[name][0]) for name in fields},
        T0 + draw(st.integers(0, 2)),
    )


def rendered(point: Point) -> str:
    measurement, tags, fields, time = point
    head = ",".join([escaped(measurement, ", "), *(f"{escaped(key)}={escaped(tags[key])}" for key in tags)])
    body = ",".join(f"{escaped(name)}={FIELDS[name][1](value)}" for name, value in fields.items())
    return f"{head} {body} {time}"


@settings(max_examples=times(10, 250), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(points(), min_size=1, max_size=12), st.booleans())
def test_tables_hold_what_the_lines_say(engine: Embedded, given_points: list[Point], at_once: bool) -> None:
    """Against a dictionary that takes one line after the other: later lines win, field by field; twice is as once."""
    engine.all("DROP DATABASE IF EXISTS d", "CREATE DATABASE d VGROUPS 2", "USE d")
    lines = [rendered(point) for point in given_points]
    for text in ["\n".join(lines)] * 2 if at_once else lines:
        ingest(engine, text)
    expected: dict[tuple[str, str, int], dict[str, Any]] = {}
    tags_of: dict[str, dict[str, str]] = {}
    for measurement, tags, fields, time in given_points:
        name = child_name(",".join([measurement, *(f"{key}={tags[key]}" for key in sorted(tags))]))
        tags_of[name] = tags
        expected.setdefault((measurement, name, time), {}).update(fields)
    found = {}
    for measurement in {point[0] for point in given_points}:
        described = [row[0] for row in engine.run(f"DESCRIBE `{measurement}`")]
        table = engine.execute(f"SELECT *, tbname FROM `{measurement}`").table
        assert table is not None
        for row in table.rename_columns([*described, "tbname"]).to_pylist():
            time = int(np.datetime64(row.pop("_ts"), "ms").astype(np.int64))
            name = row.pop("tbname")
            stored_tags = {key: row.pop(key) for key in ("t", "u=", "v w", "_tag_null") if key in row}
            assert {key: value for key, value in stored_tags.items() if value is not None} == tags_of[name]
            found[measurement, name, time] = {key: value for key, value in row.items() if value is not None}
    assert found == expected


# --- tables ------------------------------------------------------------------------------------------------------


def test_lines_make_tables(db: Embedded) -> None:
    """A super table per measurement, `_ts` first, NCHAR tags; one child per set of tags, named by MD5."""
    assert ingest(db, METERS + "\n" + METERS.replace("2 cur", "3 cur"), "ns") == 2
    columns = "current, voltage, phase, location, groupid, tbname"
    assert db.run(f"SELECT {columns} FROM meters ORDER BY groupid")[0] == (
        10.3, 219, 0.31, "a", "2", child_name("meters,groupid=2,location=a"))
    assert [row[:2] for row in db.run("DESCRIBE meters")] == [
        ("_ts", "TIMESTAMP"), ("current", "DOUBLE"), ("voltage", "BIGINT"), ("phase", "DOUBLE"),
        ("location", "NCHAR"), ("groupid", "NCHAR")]
    ingest(db, METERS.replace("location=a,groupid=2", "groupid=2,location=a"), "ns")
    assert db.run("SELECT count(*) FROM meters") == [(2,)]


def test_names_keep_their_case_and_lose_their_dots(db: Embedded) -> None:
    """Measurements differ by case; a dot, which no table name can have, becomes an underscore."""
    ingest(db, f"M f=1 {T0}\nm f=2 {T0}\ncpu.load F=3 {T0}")
    assert db.run("SELECT f FROM `M`") == [(1.0,)]
    assert db.run("SELECT f, _tag_null FROM m") == [(2.0, None)]
    assert db.run("SELECT `F` FROM cpu_load") == [(3.0,)]


def test_columns_tags_and_lengths_grow(db: Embedded) -> None:
    """New fields and tags are added, text becomes longer, what is absent reads as NULL, and nothing is dropped."""
    ingest(db, f'm,a=1 f=1,s="short",n=L"ü" {T0}')
    ingest(db, f'm,a=1,b={"y" * 40} g=2i,s="{"x" * 100}",n=L"{"ü" * 50}" {T0 + 1}')
    assert db.run("SELECT f, length(s), char_length(n), g, a, char_length(b) FROM m ORDER BY _ts") == [
        (1.0, 5, 1, None, "1", None), (None, 100, 50, 2, "1", 40)]
    lengths = {row[0]: row[2] for row in db.run("DESCRIBE m")}
    assert (lengths["s"], lengths["n"], lengths["a"], lengths["b"]) == (128, 64, 16, 64)
    db.reopen()
    assert db.run("SELECT count(*), count(f), count(g) FROM m") == [(2, 1, 1)]


def test_absent_fields_keep_what_a_key_has(db: Embedded) -> None:
    """As with every INSERT, writing a key again changes only the fields that are given, in the order of the lines."""
    ingest(db, f"m f=1,g=1 {T0}\nm f=2 {T0}\nm f=3,g=3 {T0}\nm g=4 {T0}\nm f=9,g=9 {T0 + 1}")
    assert db.run("SELECT f, g FROM m ORDER BY _ts") == [(3.0, 4.0), (9.0, 9.0)]


@pytest.mark.parametrize(("lines", "words"), [
    (f"new f=1 {T0}\nm f=2i {T0}", "line 2, field f: m has it as DOUBLE"),
    (f"new f=1 {T0}\nm,f=x g=1 {T0}", "f is a tag here"),
    (f"new f=1 {T0}\nm a=1 {T0}", "a is a tag of m"),
    (f"new f=1 {T0}\nm f=1 1", "line 2: the timestamp 1 (ms) is out of range"),
    (f"new f=1 {T0}\nm _ts=1 {T0}", "_ts"),
    (f"new f=1 {T0}\nnormal f=1 {T0}", "line 2: normal is a normal table"),
    (f"new f=1 {T0}\ncomposite f=1 {T0}", "line 2: super table composite has a composite key"),
    (f"new f=1 {T0}\nm,tbname=x f=1 {T0}", "tbname"),
    (f"new f=1 {T0}\nother,x=1 x=2 {T0}", "line 2: super table other"),
    (f'new f=1 {T0}\nm s="{"x" * 70_000}" {T0}', "70000"),
    (f"new f=1 {T0}\n{'n' * 200} f=1 {T0}", "line 2"),
])
def test_one_mistake_refuses_the_whole_call(db: Embedded, lines: str, words: str) -> None:
    """Nothing is written, no table is made and none is changed."""
    db.all("CREATE TABLE normal (ts TIMESTAMP, f DOUBLE)",
           "CREATE STABLE composite (ts TIMESTAMP, k INT PRIMARY KEY, f DOUBLE) TAGS (t INT)")
    ingest(db, f"m,a=1 f=1 {T0}")
    before = db.run("DESCRIBE m")
    assert words in str(refused(db, lines))
    assert db.run("SELECT * FROM m") != []
    assert db.run("DESCRIBE m") == before
    assert sorted(row[0] for row in db.run("SHOW STABLES")) == ["composite", "m"]


def test_tables_made_by_sql_take_lines(db: Embedded) -> None:
    """The time column keeps its name, VARCHAR tags are fine, unmentioned columns are NULL."""
    db.all("CREATE STABLE meters (ts TIMESTAMP, current DOUBLE, other INT) TAGS (location VARCHAR(4), n INT)")
    ingest(db, f"meters,location=Rom current=1.5 {T0}\nmeters,location=Nürnberg current=2.5 {T0}")
    assert db.run("SELECT current, other, location, n FROM meters ORDER BY current") == [
        (1.5, None, "Rom", None), (2.5, None, "Nürnberg", None)]
    assert "n is a tag here" in str(refused(db, f"meters,n=1 current=1 {T0}"))


def test_columns_that_a_stream_reads_stay_as_they_are(db: Embedded) -> None:
    """Text that is too long for a column that a stream reads is refused by name; new columns are not."""
    ingest(db, f'm,a=1 f=1,s="x" {T0}')
    db.all("CREATE STREAM st INTO r AS SELECT _wstart, last(s) FROM m PARTITION BY tbname INTERVAL(1s)")
    try:
        ingest(db, f'm,a=1 f=2,g=1 {T0 + 1}')
        assert isinstance(refused(db, f'm s="{"x" * 50}" {T0 + 2}'), InUseError)
    finally:
        db.all("DROP STREAM st")


@pytest.mark.parametrize(("precision", "given", "stored"), [
    ("h", T0 // 3_600_000, T0 // 3_600_000 * 3_600_000), ("m", T0 // 60_000, T0 // 60_000 * 60_000),
    ("s", T0 // 1000, T0), ("ms", T0 + 7, T0 + 7), ("us", T0 * 1000 + 7999, T0 + 7),
    ("ns", T0 * 1_000_000 + 7_999_999, T0 + 7), ("ns", -1_500_000, -1), ("ns", "", NOW_MS), ("ns", 0, NOW_MS),
])
def test_precision_is_the_unit_of_the_lines(db: Embedded, precision: str, given: object, stored: int) -> None:
    """Coarser units are multiplied, finer ones cut towards zero; no timestamp, or 0, is now."""
    db.all("DROP DATABASE d", "CREATE DATABASE d KEEP 36500d", "USE d")
    ingest(db, f"m f=1 {given}\nm f=2 {given}", precision)
    table = db.execute("SELECT _ts FROM m").table
    assert table is not None
    assert table.column(0).cast("int64").to_pylist() == [stored]


def test_precisions_and_databases_that_are_not_there(db: Embedded) -> None:
    """Both are refused."""
    assert "h, m, s" in str(refused(db, "m f=1", "minutes"))
    with pytest.raises(NotFoundError, match="database dd does not exist"):
        ingest(db, "m f=1", database="dd")
    with pytest.raises(PenstockError, match="system database"):
        ingest(db, "m f=1", database="information_schema")


@pytest.mark.parametrize(("config", "names"), [
    ({"smlChildTableName": "id"}, {"d_1": {"a": "x"}, child_name("m,a=x"): {"a": "x"}}),
    ({"smlAutoChildTableNameDelimiter": "-"}, {"x-d_1": {"a": "x", "id": "d.1"}, "x": {"a": "x", "id": None}}),
])
def test_configuration_names_children(tmp_path: Path, config: dict[str, str], names: dict[str, dict[str, Any]]) -> None:
    """A tag can give the name, which then isn't a tag, or all tag values joined; dots become underscores."""
    embedded = Embedded(tmp_path, config)
    try:
        embedded.all("CREATE DATABASE d", "USE d")
        ingest(embedded, f"m,id=d.1,a=x f=1 {T0}\nm,a=x f=1 {T0}")
        wanted = sorted(next(iter(names.values())))
        found = {row[0]: dict(zip(wanted, row[1:], strict=True))
                 for row in embedded.run(f"SELECT tbname, {', '.join(wanted)} FROM m")}
        assert found == names
    finally:
        embedded.close()


@pytest.mark.parametrize("shape", range(3))
def test_many_lines_of_many_shapes(db: Embedded, shape: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several measurements, sets of fields and blocks in one text; every line finds its table and its number."""
    monkeypatch.setattr(line_protocol, "BLOCK_BYTES", (1 << 23, 1000, 64)[shape])
    monkeypatch.setattr(line_protocol, "_MAX_SHAPES", (64, 2, 1)[shape])
    lines = [f"m{number % 3},host=h{number % 7} f{number % 5}={number}i,x=1 {T0 + number}" for number in range(500)]
    assert ingest(db, "\n".join(lines)) == 500
    for measurement in range(3):
        sums = db.run(f"SELECT {', '.join(f'sum(f{field})' for field in range(5))}, count(x) FROM m{measurement}")
        mine = [number for number in range(500) if number % 3 == measurement]
        assert sums == [(*(sum(n for n in mine if n % 5 == field) for field in range(5)), len(mine))]
    lines[444] += "x"
    assert str(refused(db, "\n".join(lines))).startswith("line 445")


def test_threads_that_extend_the_same_table(db: Embedded) -> None:
    """Each thread adds tags, fields and children of its own; all of them arrive."""

    def work(thread: int) -> int:
        return sum(ingest(db, f"m,t{thread}={number},u{number % 4}=x f{thread}={number} {T0 + number}")
                   for number in range(5))

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(work, range(3))) == 15
    assert db.run("SELECT count(*), count(f0), count(f1), count(f2) FROM m") == [(15, 5, 5, 5)]
    assert db.run("SELECT count(*) FROM (SELECT DISTINCT tbname FROM m)") == [(15,)]


def test_python_functions_take_text_bytes_and_lines(tmp_path: Path) -> None:
    """`ingest_lines` of a path and of a connection, with whatever holds lines; PEP 249 errors."""
    path = str(tmp_path / "data")
    with penstock.connect(path) as connection:
        connection.execute("CREATE DATABASE d")
    line = f"m,a=1 f=1 {T0}"
    assert penstock.ingest_lines(path, line, database="d", precision="ms") == 1
    with penstock.connect(path) as connection:
        assert connection.ingest_lines([line, f"m,a=2 f=1 {T0}\n".encode()], database="d", precision="ms") == 2
        connection.execute("USE d")
        assert penstock.ingest_lines(connection, line.encode(), database="d", precision="ms") == 1
        assert connection.ingest_lines(line, precision="ms") == 1
        assert connection.execute("SELECT count(*) FROM m").fetchone() == (2,)
        with pytest.raises(connection.DataError, match="line 2"):
            connection.ingest_lines([line, "nonsense"], precision="ms")
    with penstock.connect(path) as connection, pytest.raises(connection.ProgrammingError, match="no database"):
        connection.ingest_lines(line)


def test_floats_are_read_exactly() -> None:
    """Bulk reading of numbers gives the same bits as Python's."""
    values = [0.1, 1e-300, 1.7976931348623157e308, -0.0, 5e-324, 123456789.123456789]
    found = rows_of(parse_lines("\n".join(f"m f={value!r} 1" for value in values).encode()))
    assert [row[3][0][2] for row in found] == values
    assert math.copysign(1, found[3][3][0][2]) == -1
