"""Reading VALUES and tag values: conversions, limits, times, errors, and that fast and careful paths agree."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.common.errors import InvalidValueError, NotSupportedError
from penstock.sql.dialect.literals import parse_duration, parse_timestamp, position, start_of_day, unescape, zone
from penstock.sql.dialect.parser import parse_one
from penstock.sql.rows.constants import Constants
from penstock.sql.rows.values import read_value, read_values
from penstock.sql.schema import Column
from penstock.sql.tree.expression_nodes import quote_string
from penstock.sql.tree.statements import CreateChildTables, Duration, Insert
from penstock.sql.types import UNITS_PER_SECOND, DataType, Kind, Precision

NOW_MS = 1_700_000_000_123
TS = Column("ts", DataType(Kind.TIMESTAMP), "c0")


def column(kind: Kind, length: int | None = None, **fields: int) -> Column:
    return Column("v", DataType(kind, length=length, **fields), "c1")


def read(rows: str, *columns: Column, precision: Precision = "ms", time_zone: str = "UTC") -> list[list[Any]]:
    """Returns the values of each column; timestamps as integers."""
    batch = read_values(rows, 0, columns, rows, precision=precision, time_zone=time_zone, now_ms=NOW_MS)
    assert batch.schema.names == [c.physical for c in columns]
    assert [array.type for array in batch.columns] == [c.type.arrow() for c in columns]
    return [
        (array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array).to_pylist() for array in batch.columns
    ]


def read_cell(text: str, kind: Kind, length: int | None = None, **fields: int) -> Any:
    return read(f"({text})", column(kind, length, **fields))[0][0]


@pytest.mark.parametrize(("text", "kind", "expected"), [
    ("1", Kind.INT, 1), ("-1", Kind.INT, -1),
    ("+0078", Kind.BIGINT, 78), ("0x1F", Kind.INT, 31), ("0b101", Kind.INT, 5),
    ("'3'", Kind.INT, 3), ('"-3"', Kind.TINYINT, -3), ("' 3 '", Kind.INT, 3), ("1.5", Kind.INT, 2),
    ("'1.4'", Kind.INT, 1), ("-0x10", Kind.INT, -16),
    ("1e2", Kind.INT, 100), ("NULL", Kind.INT, None), ("null", Kind.DOUBLE, None), ("'NULL'", Kind.INT, None),
    ("9223372036854775807", Kind.BIGINT, 2**63 - 1), ("-9223372036854775808", Kind.BIGINT, -(2**63)),
    ("18446744073709551615", Kind.UBIGINT, 2**64 - 1), ("255", Kind.UTINYINT, 255), ("-128", Kind.TINYINT, -128),
    ("1.5", Kind.DOUBLE, 1.5), ("'1.5'", Kind.DOUBLE, 1.5), ("-1e-3", Kind.DOUBLE, -0.001), (".5", Kind.DOUBLE, 0.5),
    ("0x10", Kind.DOUBLE, 16.0), ("1e308", Kind.DOUBLE, 1e308),
    ("true", Kind.BOOL, True), ("FALSE", Kind.BOOL, False), ("'True'", Kind.BOOL, True), ("0", Kind.BOOL, False),
    ("2", Kind.BOOL, True), ("'0.0'", Kind.BOOL, False), ("NULL", Kind.BOOL, None),
])
def test_numbers_and_booleans(text: str, kind: Kind, expected: object) -> None:
    """Numbers may be quoted, signed, hexadecimal or binary; integers round; NULL is NULL in any spelling."""
    assert read_cell(text, kind) == expected


@pytest.mark.parametrize(("text", "kind"), [
    ("128", Kind.TINYINT), ("-129", Kind.TINYINT), ("-1", Kind.UINT), ("2147483648", Kind.INT), ("'a'", Kind.INT),
    ("9223372036854775808", Kind.BIGINT), ("1e400", Kind.DOUBLE), ("1e39", Kind.FLOAT), ("nan", Kind.DOUBLE),
    ("'nan'", Kind.DOUBLE), ("inf", Kind.FLOAT), ("abc", Kind.VARCHAR), ("''", Kind.INT), ("'x'", Kind.BOOL),
    ("1_000", Kind.INT), ("'1_0'", Kind.INT), ("'１'", Kind.INT), ("now", Kind.INT), ("now", Kind.VARCHAR),
    ("true", Kind.INT), ("1 + 1", Kind.INT), ("f(1)", Kind.INT), ("a.b", Kind.INT), ("'1'2", Kind.INT),
    ("1 2", Kind.DOUBLE), ("9" * 6000, Kind.INT), ("0x" + "f" * 6000, Kind.INT), ("1e99999999", Kind.INT),
    ("12:00", Kind.TIMESTAMP), ("'12:12:12'", Kind.TIMESTAMP), ("1.5", Kind.TIMESTAMP), ("now + 1n", Kind.TIMESTAMP),
    ("'2020-13-01 00:00:00'", Kind.TIMESTAMP), ("'2020-02-30'", Kind.TIMESTAMP), ("true", Kind.TIMESTAMP),
    ("9223372036854775808", Kind.TIMESTAMP), ("null + 1s", Kind.TIMESTAMP), ("0xFFFFFFFF", Kind.INT),
    ("'a' 'b'", Kind.VARCHAR),
    ("'2020-01-01 00'", Kind.TIMESTAMP), ("'0000-01-01 00:00:00'", Kind.TIMESTAMP), ("'a' /**/ \"b\"", Kind.NCHAR),
    ("'99999999999999999999'", Kind.TIMESTAMP), ("'2020-01-01 25:00:00'", Kind.TIMESTAMP),
])
def test_values_that_do_not_fit_are_refused(text: str, kind: Kind) -> None:
    """Out of range, unparsable or of the wrong kind: the error names the row, the column and the text."""
    with pytest.raises(InvalidValueError) as caught:
        read(f"(1, 1) (2, {text})", TS, column(kind, 20 if kind is Kind.VARCHAR else None))
    message = str(caught.value)
    assert "row 2" in message
    assert "column v" in message or "values" in message
    shown = text[:20].strip("'").replace("now", "now()")
    assert shown in message.replace("now ", "now() ") or "time" in message


@pytest.mark.parametrize(("text", "expected"), [
    ("'abc'", "abc"), ('"abc"', "abc"), ("'it''s'", "it's"), ('"say ""x"""', 'say "x"'), (r"'it\'s'", "it's"),
    (r"'a\nb\tc\\d'", "a\nb\tc\\d"), (r"'100\%\_'", r"100\%\_"), ("''", ""), ("' '", " "), ("'),('", "),("),
    ("'NULL'", "NULL"), ("NULL", None), ("5", "5"), ("-1.50", "-1.50"), ("true", "true"), ("'北京'", "北京"),
    ("'--x'", "--x"), ("'/*x*/'", "/*x*/"),
])
def test_text(text: str, expected: str | None) -> None:
    """Text in either quotes with escapes; numbers and booleans are stored as they are typed."""
    assert read_cell(text, Kind.VARCHAR, 20) == expected
    assert read_cell(text, Kind.NCHAR, 20) == expected


def test_text_that_is_too_long_is_refused() -> None:
    """VARCHAR counts bytes, NCHAR characters; nothing is cut off."""
    assert read_cell("'北京a'", Kind.VARCHAR, 7) == "北京a"
    assert read_cell("'北京a'", Kind.NCHAR, 3) == "北京a"
    for text, kind, length in (("'北京a'", Kind.VARCHAR, 6), ("'北京ab'", Kind.NCHAR, 3), ("12345", Kind.VARCHAR, 4)):
        with pytest.raises(InvalidValueError, match="row 1, column v"):
            read_cell(text, kind, length)


@pytest.mark.parametrize(("text", "expected"), [
    ("X'4142'", b"AB"), (r"'\x4142'", b"AB"), ("'AB'", b"AB"), ("'北'", "北".encode()), ("NULL", None), ("X''", b""),
])
def test_binary_values(text: str, expected: bytes | None) -> None:
    """VARBINARY takes hexadecimal in two spellings, or text as UTF-8."""
    assert read_cell(text, Kind.VARBINARY, 4) == expected


@pytest.mark.parametrize("text", ["X'414'", "X'zz'", "12", r"'\x0'", "'abcde'"])
def test_bad_binary_values_are_refused(text: str) -> None:
    """Half bytes, wrong digits, numbers and too many bytes are errors."""
    with pytest.raises(InvalidValueError):
        read_cell(text, Kind.VARBINARY, 4)


def test_decimals_are_exact() -> None:
    """DECIMAL rounds half up to its scale, exactly, and refuses what has too many digits."""
    def decimal(text: str) -> Any:
        return read_cell(text, Kind.DECIMAL, digits=38, scale=2)

    assert decimal("123456789012345678901234567890.125") == Decimal("123456789012345678901234567890.13")
    assert decimal("'-0.005'") == Decimal("-0.01")
    assert decimal("1e3") == Decimal("1000.00")
    for text in ("1" * 37, "'abc'", "1e40", "nan"):
        with pytest.raises(InvalidValueError):
            decimal(text)


def test_geometry_is_not_supported() -> None:
    """Values that cannot be stored are refused, not mangled."""
    with pytest.raises(NotSupportedError):
        read_cell("'POINT(1 2)'", Kind.GEOMETRY, 100)


@pytest.mark.parametrize(("text", "expected"), [
    ("1648791213000", 1648791213000), ("-5", -5), ("'-100'", -100), ("'NULL'", None), ("NULL", None),
    ("now", NOW_MS), ("NOW()", NOW_MS), ("now + 1s", NOW_MS + 1000), ("now()-1d", NOW_MS - 86_400_000),
    ("now - 1h + 5m", NOW_MS - 3_300_000), ("today", 1_699_920_000_000), ("today() + 1w", 1_700_524_800_000),
    ("1500000000000 + 1000a", 1500000001000), ("1 + 1d", 86_400_001), ("'1970-01-02' - 1d", 0),
    ("'2019-12-09T08:27:35Z'", 1575880055000), ("'2019-12-09 16:27:35.5+08:00'", 1575880055500),
    ("'2019-12-09T08:27:35.123456-0030'", 1575881855123), ("'2020-1-1 1:1:1'", 1577840461000),
    ("'2020-01-01'", 1577836800000), ("'2020-01-01 00:01'", 1577836860000), ("'1969-12-31 23:59:59.999'", -1),
    ("timestamp '1970-01-01 00:00:01'", 1000),
])
def test_times(text: str, expected: int | None) -> None:
    """Times are integers, text with or without zone, or NOW and TODAY, plus and minus durations."""
    assert read_cell(text, Kind.TIMESTAMP) == expected


def test_today_and_text_are_in_the_local_zone() -> None:
    """Without a zone of its own a time belongs to the session's; every row of a statement sees the same NOW."""
    values = read("(today, 'x')('2023-11-14 00:00:00', 'y')('2023-11-14T00:00:00Z', 'z')(now, '')(now, '')", TS,
                  column(Kind.VARCHAR, 8), time_zone="Asia/Shanghai")[0]
    midnight = int(dt.datetime(2023, 11, 15, tzinfo=ZoneInfo("Asia/Shanghai")).timestamp() * 1000)
    assert values == [midnight, midnight - 86_400_000, midnight - 86_400_000 + 28_800_000, NOW_MS, NOW_MS]


@pytest.mark.parametrize(("precision", "factor"), [("ms", 1), ("us", 1000), ("ns", 1_000_000)])
def test_precision(precision: Precision, factor: int) -> None:
    """Integers are units of the database's precision, text and NOW are scaled, finer digits are cut off."""
    ts = Column("ts", DataType(Kind.TIMESTAMP, precision=precision), "c0")
    rows = "(7)('1970-01-01 00:00:01')('1970-01-01 00:00:00.001999999999')(now)(now + 1b)(0 + 1u)"
    assert read(rows, ts, precision=precision)[0] == [
        7, 1000 * factor, 1 * factor + 999_999 * factor // 1_000_000, NOW_MS * factor,
        NOW_MS * factor + (precision == "ns"), factor // 1000,
    ]


def test_wall_clock_changes() -> None:
    """A time that exists twice is the first one; both paths read times that don't exist alike."""
    text = "('2024-10-27 02:30:00')"
    first = int(dt.datetime(2024, 10, 27, 0, 30, tzinfo=dt.UTC).timestamp() * 1000)
    assert read(text, TS, time_zone="Europe/Oslo")[0] == [first]
    missing = "2024-03-31 02:30:00"
    assert read(f"('{missing}')", TS, time_zone="Europe/Oslo")[0] == [parse_timestamp(missing, "ms", "Europe/Oslo")]


def test_rows_may_be_written_in_many_ways() -> None:
    """Commas between rows are optional; spaces, line breaks and comments may stand anywhere."""
    columns = (TS, column(Kind.VARCHAR, 10))
    rows = "(1,'a')(2,'b') , ( 3 , 'c' )\n,(4,NULL) -- it's a comment (\n(5,/* ) */'e'),(6, \"f'\")"
    assert read(rows, *columns) == [[1, 2, 3, 4, 5, 6], ["a", "b", "c", None, "e", "f'"]]
    assert read("(1,2)\n(3,4)\t,(5,6) ", TS, column(Kind.INT)) == [[1, 3, 5], [2, 4, 6]]


@pytest.mark.parametrize("rows", [
    "(1)", "(1,2,3)", "(1,2)(3)", "(1,2)(3,4,5)(6)", "(1,2) 3", "(1,)", "(,1)", "(1,2", "()", "((1,2))", "(1,2)(",
    "(1,2);(3,4)", "('a,b')", "(1,2),(3", "1,2", "(1,'2)", "(1--1,2)",
])
def test_malformed_rows_are_refused(rows: str) -> None:
    """Wrong numbers of values and unbalanced text are errors that name the row."""
    with pytest.raises(InvalidValueError, match=r"row [12]"):
        read(rows, TS, column(Kind.INT))


CELLS = st.one_of(
    st.integers(-(2**31), 2**31 - 1).map(str), st.just("NULL"),
    st.floats(-1e30, 1e30).map(lambda number: repr(number)), st.integers(0, 100).map(lambda number: f"'{number}'"),
)


@settings(max_examples=times(24, 600), deadline=None)
@given(
    st.lists(st.tuples(CELLS, CELLS, st.text(max_size=8)), min_size=1, max_size=20), st.sampled_from(["", " ", ",\n"])
)
def test_bulk_and_single_conversions_agree(rows: list[tuple[str, str, str]], between: str) -> None:
    """Whatever path a column takes, its values are those that the careful conversion gives cell by cell."""
    columns = (
        Column("a", DataType(Kind.DOUBLE), "a"), Column("b", DataType(Kind.FLOAT), "b"),
        Column("c", DataType(Kind.NCHAR, length=8), "c"),
    )
    cells = [(a, b, quote_string(c)) for a, b, c in rows]
    text = between.join(f"({', '.join(row)})" for row in cells)
    constants = Constants("ms", "UTC", NOW_MS)
    expected = [
        pa.array([constants.read(row[i], columns[i].type) for row in cells], columns[i].type.arrow()).to_pylist()
        for i in range(3)
    ]
    assert read(text, *columns) == expected
    assert read(text, *columns)[2] == [c for _, _, c in rows]


@settings(max_examples=times(24, 600), deadline=None)
@given(
    st.lists(st.integers(-(10**12), 10**13), min_size=1, max_size=10),
    st.sampled_from(["UTC", "Asia/Shanghai", "America/St_Johns"]),
)
@example([2_688_615_000_000], "America/St_Johns")
@example([-94_000_000_000, 1_700_000_000_000], "America/St_Johns")
def test_times_read_back_as_they_were_written(times: list[int], time_zone: str) -> None:
    """A time printed in the local zone reads back, in bulk and alone, unless the clock was turned back then."""
    utc = [dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=time) for time in times]
    local = [moment.astimezone(zone(time_zone)).replace(fold=0) for moment in utc]
    expected = [round(moment.timestamp() * 1000) for moment in local]
    texts = [moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}" for moment in local]
    texts = [text.zfill(23) for text in texts]
    assert read("".join(f"('{text}')" for text in texts), TS, time_zone=time_zone)[0] == expected
    assert [parse_timestamp(text, "ms", time_zone) for text in texts] == expected


@settings(max_examples=times(60, 1500), deadline=None)
@given(st.text(alphabet="()'\",\\ab1.-+*/ \nnow", max_size=30))
def test_any_rows_give_values_or_an_error(rows: str) -> None:
    """No text of rows raises anything but InvalidValueError."""
    try:
        read(f"({rows})", TS, column(Kind.VARCHAR, 10))
    except InvalidValueError as error:
        assert str(error)  # noqa: PT017 - either outcome is fine


def tag(text: str, kind: Kind, length: int | None = None) -> Any:
    statement = parse_one(f"create table c using st tags ({text})")
    assert isinstance(statement, CreateChildTables)
    return read_value(statement.tables[0].tag_values[0], column(kind, length), precision="ms", time_zone="UTC",
                      now_ms=NOW_MS)


def test_tag_values() -> None:
    """Tags take the same constants as columns, from parsed expressions."""
    assert tag("-5", Kind.INT) == -5
    assert tag("- -5", Kind.INT) == 5
    assert tag('"a\'b"', Kind.VARCHAR, 5) == "a'b"
    assert tag("null", Kind.INT) is None
    assert tag("now + 1s", Kind.TIMESTAMP) == NOW_MS + 1000
    assert tag("'2020-01-01'", Kind.TIMESTAMP) == 1577836800000
    assert tag("100", Kind.VARCHAR, 5) == "100"
    for text, kind in (("'abc'", Kind.INT), ("'abcdef'", Kind.VARCHAR), ("300", Kind.TINYINT), ("1 + 1", Kind.INT)):
        with pytest.raises(InvalidValueError, match="tag v"):
            tag(text, kind, 5 if kind is Kind.VARCHAR else None)


@pytest.mark.parametrize(("text", "expected"), [
    ('{"a": 1, "b": "x", "c": null, "d": true, "e": 1.5}', '{"a":1,"b":"x","c":null,"d":true,"e":1.5}'),
    ('{"a":"","a":null}', '{"a":""}'), ('{"k":"收到货"}', '{"k":"收到货"}'), ("", None), ("\t", None), ("null", None),
    ("{}", None), ('{"":1}', None),
])
def test_json_tags(text: str, expected: str | None) -> None:
    """JSON tags are stored compactly; the first of equal keys counts; blank text and empty objects are NULL."""
    assert tag(quote_string(text), Kind.JSON) == expected


@pytest.mark.parametrize("text", [
    "[1]", "1", '"x"', "{a:1}", '{"a":{}}', '{"a":[1]}', '{"é":1}', '{"a":NaN}', "{", "true",
    '{"a":"' + "x" * 5000 + '"}', '{"' + "k" * 257 + '":1}', "[" * 100000,
])
def test_bad_json_tags_are_refused(text: str) -> None:
    """Only flat objects with printable ASCII keys are JSON tags."""
    with pytest.raises(InvalidValueError):
        tag(quote_string(text), Kind.JSON)


def test_durations() -> None:
    """Durations in quotes are read, also with a sign; other text gives None."""
    assert parse_duration("10s") == Duration(10, "s")
    assert parse_duration("-1N") == Duration(-1, "n")
    assert parse_duration("500") == Duration(500, "")
    assert [parse_duration(text) for text in ("", "s", "1.5s", "1 s", "1x", "9" * 30)] == [None] * 6


@given(st.text())
def test_strings_read_back(text: str) -> None:
    """A string printed as a literal reads back as the same string."""
    assert unescape(quote_string(text)) == text


@given(st.text(alphabet="ab\n", max_size=20), st.integers(0, 25), st.integers(0, 5))
def test_positions_point_at_the_text(text: str, offset: int, length: int) -> None:
    """Line and column lead back to the offset."""
    place = position(text, offset, length)
    offset = min(offset, len(text))
    lines = text.split("\n")
    assert sum(len(line) + 1 for line in lines[: place.line - 1]) + place.column - 1 == offset
    assert place.text == text[offset:offset + length]


def test_start_of_day_follows_the_zone() -> None:
    """TODAY is the local midnight, also on days of 23 and 25 hours."""
    noon = int(dt.datetime(2024, 3, 31, 12, tzinfo=dt.UTC).timestamp() * 1000)
    oslo = dt.datetime(2024, 3, 31, tzinfo=ZoneInfo("Europe/Oslo"))
    assert start_of_day(noon, "Europe/Oslo") == int(oslo.timestamp() * 1000)
    with pytest.raises(InvalidValueError):
        start_of_day(noon, "Nowhere/Else")


def test_a_big_insert_is_read_whole() -> None:
    """Tens of thousands of rows come through the parser and the reader unharmed."""
    rows = " ".join(f"({1_600_000_000_000 + i}, {i / 8}, {-i}, 'n{i}')" for i in range(20_000))
    statement = parse_one(f"insert into t values {rows}")
    assert isinstance(statement, Insert)
    assert statement.targets[0].rows is not None
    ts, halves, negatives, names = read(
        statement.targets[0].rows, TS, Column("d", DataType(Kind.DOUBLE), "d"), Column("i", DataType(Kind.INT), "i"),
        Column("s", DataType(Kind.VARCHAR, length=10), "s"),
    )
    assert (len(ts), ts[-1], names[-1]) == (20_000, 1_600_000_019_999, "n19999")
    assert math.isclose(sum(halves), -sum(negatives) / 8)
    assert UNITS_PER_SECOND["ms"] == 1000
