"""Operators, comparisons, CASE and CAST of the dialect, run in DuckDB."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kits.basics.expression_support import (
    NOW_MS,
    TableScope,
    column_values,
    compiled,
    condition,
    parsed,
    rows_where,
    run_over,
    sql_of,
    value,
)

from penstock.common.errors import InvalidStatementError, InvalidValueError, NotFoundError, PenstockError
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.duckdb_sql.duckdb_tree import column, render
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.scalar.scalar_cast import cast, cut_to_bytes
from penstock.sql.schema import Session
from penstock.sql.types import BIGINT, BOOL, DOUBLE, INT, UBIGINT, VARCHAR, DataType, Kind, timestamp

FLOAT = DataType(Kind.FLOAT)
TINYINT = DataType(Kind.TINYINT)
JSON = DataType(Kind.JSON)
NCHAR = DataType(Kind.NCHAR, 20)
BITS = {Kind.TINYINT: 8, Kind.SMALLINT: 16, Kind.INT: 32, Kind.BIGINT: 64,
        Kind.UTINYINT: 8, Kind.USMALLINT: 16, Kind.UINT: 32, Kind.UBIGINT: 64}
SIGNED = {Kind.TINYINT, Kind.SMALLINT, Kind.INT, Kind.BIGINT}


def wrapped(number: int, kind: Kind) -> int:
    """The number modulo 2^bits, in the range of the integer kind."""
    bits = BITS[kind]
    low = number & ((1 << bits) - 1)
    return low - (1 << bits) if kind in SIGNED and low >> (bits - 1) else low


ARITHMETIC = [
    ("1 + 1", 2.0), ("1 / 2", 0.5), ("7 / 2", 3.5), ("0.1 + 0.2", 0.3), ("5 % 3", 2.0), ("-5 % 3", -2.0),
    ("5.5 % 2", 1.5), ("1 / 0", None), ("1 % 0", None), ("1 + null", None), ("2 * (3 - 1)", 4.0), ("'3' + 4", 7.0),
    ("true + 1", 2.0), ("'12abc' * 2", 24.0), ("-(2 + 3)", -5.0), ("1 + 1n", 2.0),
    ("0.06 + 0.01 = 0.07", True), ("0.3 - 0.1 = 0.2", True), ("1.1 * 3 = 3.3", True),
    ("5 & 3", 1), ("5 | 3", 7), ("null & 1", None), ("7.9 & 3", 3),
    ("1 = 1.0", True), ("'10' > 9", True), ("'abc' = 0", True), ("'a' < 'B'", False), ("1 <> null", None),
    ("true = 1", True), ("'true' = true", True), ("2 between 1 and 3", True), ("2 not between 1 and 3", False),
    ("1 in (2, 1)", True), ("1 in (2, null)", None), ("1 not in (1, null)", False), ("'1' in (1, 2)", True),
    ("null is null", True), ("1 is not null", True), ("not 0", True), ("1 and 0", False), ("0 or 2", True),
    ("null and 0", False), ("null or 1", True),
    ("9223372036854775807", 2**63 - 1), ("9223372036854775808", 2**63), ("-9223372036854775808", -(2**63)),
    ("1e3", 1000.0), ("-1.5", -1.5), ("0x1F", 31),
    ("cast(1 as timestamp) + 1n", 31 * 86_400_000 + 1), ("cast(1 as timestamp) + 1y", 365 * 86_400_000 + 1),
    ("timestamp '1970-03-31 00:00:00' - 1n", 58 * 86_400_000), ("timestamptz '1970-01-01 02:00:00+02:00' + 1", 1),
    ("now - today()", NOW_MS % 86_400_000), ("now + 1", NOW_MS + 1), ("1s + now", NOW_MS + 1000),
]

LIKES = [
    ("'abc' like 'a%'", True), ("'abc' like 'A%'", False), ("'abc' like '_b_'", True), ("'abc' not like 'b%'", True),
    (r"'a_c' like 'a\_c'", True), (r"'abc' like 'a\_c'", False), (r"'50%' like '50\%'", True),
    (r"'a\\b' like 'a\\\\b'", True), (r"'abc' like 'ab\\'", False), ("null like 'a'", None),
    ("'abc' match 'b'", True), ("'abc' match '^b'", False), ("'n_1' match '^n_[[:digit:]]$'", True),
    ("'abc' ~ 'b'", True), ("'abc' !~ '^b'", True), ("'abc' similar to 'b'", False), ("'abc' similar to '.b.'", True),
    ("'abc' nmatch 'b'", False), ("'ABC' match '[[:lower:]]+'", False),
]

CASES = [
    ("case when null then 1 end", None), ("case 3 when 3 then 4 end", 4), ("case 3 when 1 then 4 else 2 end", 2),
    ("case when 0 then 1 when 1 then 5 else 3 end", 5), ("case when 1 > 2 then 7 end", None),
    ("case when 1 then 1 else 2.5 end", 1.0), ("case when 0 then 'a' else 5 end", "5"),
    ("case when 1 then 'a' else null end", "a"), ("case when 0 then 1 else true end", 1),
    ("case 'b' when 'a' then 1 when 'b' then 2 end", 2), ("case null when null then 1 else 0 end", 0),
]

CASTS = [
    ("cast(2147483648 as int)", -(2**31)), ("cast(2147483648 as int unsigned)", 2**31),
    ("cast(2147483648 as smallint)", 0), ("cast(2147483648 as tinyint unsigned)", 0),
    ("cast(2147483648 as double)", 2147483648.0), ("cast(2147483648 as bool)", True),
    ("cast(2147483648 as varchar(10))", "2147483648"), ("cast(-1 as bigint unsigned)", 2**64 - 1),
    ("cast(3.14159 as int)", 3), ("cast(-3.99 as int)", -3), ("cast(3.14159 as varchar(5))", "3.141"),
    ("cast(3.14159 as binary(10))", "3.141590"), ("cast(1e300 as int)", -(2**31)), ("cast(1e300 as bigint)", -(2**63)),
    ("cast('bcdefg' as binary(3))", "bcd"), ("cast('北京' as nchar(1))", "北"), ("cast('北京' as binary(4))", "北"),
    ("cast('bcdef' as int)", 0), ("cast('12.9xyz' as int)", 12), ("cast('bcdef' as double)", 0.0),
    ("cast('1.5e2x' as double)", 150.0), ("cast('' as int)", 0), ("cast(' 7' as int)", 7),
    ("cast('99999999999999999999' as bigint)", 2**63 - 1), ("cast('-1' as bigint unsigned)", 2**64 - 1),
    ("cast('99999999999999999999' as bigint unsigned)", 2**64 - 1), ("cast('2147483648' as int)", -(2**31)),
    ("cast('9' as bool)", True), ("cast('no' as bool)", False), ("cast('TRUE' as bool)", True),
    ("cast(null as int)", None), ("cast(true as int)", 1), ("cast(true as varchar(10))", "true"),
    ("cast('1970-01-01 00:00:01' as timestamp)", 1000), ("cast('abc' as timestamp)", 0), ("cast(5.9 as timestamp)", 5),
    ("cast(cast(5 as timestamp) as varchar(20))", "5"), ("cast(cast(5 as timestamp) as bigint)", 5),
    ("cast(0.1 as float)", struct.unpack("f", struct.pack("f", 0.1))[0]), ("cast('x' as varchar)", "x"),
]


@pytest.mark.parametrize(("expression", "want"), [*ARITHMETIC, *LIKES, *CASES, *CASTS])
def test_expression_gives_known_value(expression: str, want: object) -> None:
    """Constant expressions give TDengine's values, in the type that was promised."""
    got = value(expression)
    if isinstance(want, float) and isinstance(got, float):
        assert math.isclose(got, want, rel_tol=1e-12)
    else:
        assert got == want
        assert type(got) is type(want)


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from(sorted(BITS)))
def test_cast_of_bigint_wraps(number: int, kind: Kind) -> None:
    """An integer that does not fit is reduced modulo the width of the target."""
    assert value(f"cast({number} as {kind})") == wrapped(number, kind)


@given(st.integers(0, 2**64 - 1), st.sampled_from(sorted(BITS)))
def test_cast_of_unsigned_bigint_wraps(number: int, kind: Kind) -> None:
    """The same from BIGINT UNSIGNED, through a column."""
    converted = cast(SqlExpr(column("u"), UBIGINT), DataType(kind), "ms", "UTC")
    got = run_over(sql_of(converted), {"u": (UBIGINT, [number, None])})
    assert got == [wrapped(number, kind), None]


@given(st.floats(-(2.0**31), 2.0**31 - 1), st.sampled_from(sorted(BITS)))
def test_cast_of_double_cuts_and_wraps(number: float, kind: Kind) -> None:
    """A DOUBLE loses its fraction and then wraps as an integer does."""
    converted = cast(SqlExpr(column("d"), DOUBLE), DataType(kind), "ms", "UTC")
    got = run_over(sql_of(converted), {"d": (DOUBLE, [number, None])})
    assert got == [wrapped(int(number), kind), None]


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=12), st.integers(0, 20))
def test_cut_texts_are_whole_characters_within_the_bytes(text: str, length: int) -> None:
    """CAST to VARCHAR(n) keeps as many whole characters as fit into n bytes."""
    got = run_over(render(cut_to_bytes(column("s"), length)), {"s": (VARCHAR, [text, None])})
    want = text.encode()[:length].decode(errors="ignore")
    assert got == [want, None]


NUMBERS = st.one_of(st.none(), st.integers(-(2**31), 2**31), st.floats(-1e9, 1e9))


@given(NUMBERS, NUMBERS, st.sampled_from("+-*/%"))
def test_arithmetic_is_that_of_doubles(left: float | None, right: float | None, operator: str) -> None:
    """+ - * / % give the DOUBLE that Python computes, NULL for NULL and for division by 0."""
    data: dict[str, tuple[DataType, list[Any]]] = {"a": (DOUBLE, [left]), "b": (DOUBLE, [right])}
    [got] = column_values(f"a {operator} b", data)
    if left is None or right is None or (operator in "/%" and right == 0):
        assert got is None
        return
    want = {"+": lambda: left + right, "-": lambda: left - right, "*": lambda: left * right,
            "/": lambda: left / right, "%": lambda: math.fmod(left, right)}[operator]()
    assert math.isclose(got, want, rel_tol=1e-12, abs_tol=1e-300)


def test_float_equals_the_literal_it_was_written_as() -> None:
    """FLOAT columns compare with literals as FLOAT, not as DOUBLE."""
    data = {"k": (FLOAT, [8.001, 8.0, 9.5, None])}
    assert rows_where("k = 8.001", data) == [0]
    assert rows_where("8.001 = k", data) == [0]
    assert rows_where("k > 8.001", data) == [2]
    assert rows_where("k >= 8.001", data) == [0, 2]
    assert rows_where("k in (8.001, 9.5)", data) == [0, 2]
    assert rows_where("k between 8 and 8.001", data) == [0, 1]
    assert rows_where("k <> 8.001", data) == [1, 2]
    assert rows_where("k < 1e300", data) == [0, 1, 2]
    assert rows_where("k = '8.001'", data) == [0]


def test_timestamps_compare_with_texts_and_integers() -> None:
    """A literal next to a timestamp is a time: text in the session's zone, integers in units."""
    data = {"ts": (timestamp(), [0, 86_400_000, None])}
    assert rows_where("ts = '1970-01-02'", data) == [1]
    assert rows_where("ts >= 86400000", data) == [1]
    assert rows_where("'1970-01-01 00:00:00' <= ts", data) == [0, 1]
    assert rows_where("ts between '1970-01-01' and '1970-01-01 23:59:59.999'", data) == [0]
    assert rows_where("ts in ('1970-01-02', 0)", data) == [0, 1]
    assert rows_where("ts < now + 9223372036854775807", data) == [0, 1]
    assert rows_where("ts < now - 1d and ts + 1d = '1970-01-02 00:00:00Z'", data) == [0]
    assert rows_where("ts = cast('1970-01-02' as timestamp)", data) == [1]
    assert column_values("ts = '1970-01-01 08:00:00'", data, time_zone="Asia/Shanghai") == [True, False, None]
    assert column_values("ts + 1.5", data) == [1.5, 86_400_001.5, None]
    assert column_values("ts - cast(1 as timestamp)", data) == [-1, 86_399_999, None]


def test_texts_in_columns_compare_with_numbers() -> None:
    """A text counts as the number that it begins with."""
    data = {"s": (VARCHAR, ["10", "9.5", "abc", None]), "i": (INT, [10, 9, 0, 0]),
            "b": (BOOL, [True, False, None, True])}
    assert rows_where("s > 9", data) == [0, 1]
    assert rows_where("s = i", data) == [0, 2]
    assert rows_where("i = '10'", data) == [0]
    assert rows_where("b in (0, 3)", data) == [0, 1, 3]
    assert rows_where("b = 1", data) == [0, 3]
    assert rows_where("b", data) == [0, 3]
    assert rows_where("i", data) == [0, 1]


def test_decimals_at_their_ends() -> None:
    """A result that a DECIMAL has no room for is NULL; of two DECIMALs the common one has the digits of both."""
    narrow, wide = (DataType(Kind.DECIMAL, digits=digits, scale=scale) for digits, scale in ((8, 2), (38, 3)))
    low, high, most = Decimal("-999999.99"), Decimal("999999.99"), Decimal("99999999999999999999999999999999999.999")
    data: dict[str, tuple[DataType, list[Any]]] = {"a": (narrow, [low, high]), "b": (wide, [most, None])}
    for function, want in (("ceil(a)", [-999_999, None]), ("floor(a)", [None, 999_999]), ("round(a)", [None, None]),
                           ("round(a, 1)", [None, None]), ("abs(a)", [high, high]), ("ceil(b)", [None, None]),
                           ("greatest(a, b)", [most, None]), ("least(b, a)", [low, None]),
                           ("case when a > 0 then a else b end", [most, high]),
                           ("case when a < 0 then a else b end", [low, None])):
        assert column_values(function, data) == want, function
    scope = TableScope({"a": narrow, "b": wide, "c": DataType(Kind.DECIMAL, digits=38, scale=30)})
    for expression, digits, scale in (("greatest(a, b)", 38, 3), ("case when 1 then a else a end", 8, 2),
                                      ("case when 1 then b else c end", 38, 3)):
        assert compiled(expression, scope).type == DataType(Kind.DECIMAL, digits=digits, scale=scale)


@given(
    st.sampled_from([(15, 2), (15, 15), (15, 0), (9, 4), (17, 2), (38, 10)]),
    st.lists(st.integers(0, 10**17), min_size=1, max_size=4),
    st.sampled_from(["0", "24", "-3", "0.07", "0.06 + 0.01", "1.005", "1e300", "1e-9", "-99999999999999.9",
                     "900000000000000", "9999999999999.99"]))
@example((17, 2), [1], "900000000000000")
def test_decimals_and_constants_compare_as_doubles(type_: tuple[int, int], whole: list[int], constant: str) -> None:
    """Where DECIMALs are compared as such, that says the same."""
    digits, scale = type_
    value = float(0.07 if "+" in constant else constant)
    near = round(min(abs(value), 1e20) * 10**scale)
    units = [number % 10**min(digits, 17) for number in (*whole, near, near + 1)]
    numbers = [Decimal(unit).scaleb(-scale) for unit in (*units, *(-unit for unit in units))]
    data: dict[str, tuple[DataType, list[Any]]] = {"a": (DataType(Kind.DECIMAL, digits=digits, scale=scale), numbers)}
    for operator, holds in (("=", float.__eq__), ("<=", float.__le__), (">", float.__gt__)):
        want = [place for place, number in enumerate(numbers) if holds(float(number), value)]
        assert rows_where(f"a {operator} {constant}", data) == want
    assert rows_where(f"a between -1 and {constant}", data) == [
        place for place, number in enumerate(numbers) if -1 <= float(number) <= value]
    assert rows_where(f"a in ({constant}, 1e30)", data) == [
        place for place, number in enumerate(numbers) if float(number) == value]


def test_decimals_meet_constants_as_they_are() -> None:
    """So DuckDB can tell by what Parquet says of a column which rows it needn't read."""
    scope = TableScope({"a": DataType(Kind.DECIMAL, digits=15, scale=2)})
    assert "DOUBLE" not in render(compiled("a between 0.06 - 0.01 and 24", scope).node)
    assert "DOUBLE" in render(compiled("a < 0.005", scope).node)


def test_json_values_compare_by_their_own_type() -> None:
    """`->` is text with quotes or nine decimals in results, and typed in comparisons."""
    documents = ['{"k":"femail","n":35,"b":true}', '{"k":5}', '{"k":false,"q":"a\\"b"}', '{"k":null}', '{"k":1.232}',
                 "{}", None]
    data = {"j": (JSON, documents)}
    assert column_values("j->'k'", data) == ['"femail"', "5.000000000", "false", "null", "1.232000000", None, None]
    assert rows_where("j->'k' = 'femail'", data) == [0]
    assert rows_where("j->'k' = 5", data) == [1]
    assert rows_where("j->'k' > 1.23", data) == [1, 4]
    assert rows_where("j->'k' = false", data) == [2]
    assert rows_where("j->'k' is null", data) == [3, 5, 6]
    assert rows_where("j->'k' is not null", data) == [0, 1, 2, 4]
    assert rows_where("j contains 'k'", data) == [0, 1, 2, 3, 4]
    assert rows_where("j is null", data) == [6]
    assert rows_where("j->'k' like 'fe%'", data) == [0]
    assert rows_where("j->'k' match '^f'", data) == [0]
    assert rows_where("j->'k' in ('femail', 5)", data) == [0, 1]
    assert rows_where("j->'q' = 'a\"b'", data) == [2]
    assert rows_where("j->'missing' = 1", data) == []


def test_bytes_compare_with_texts() -> None:
    """VARBINARY meets a text as its bytes, or as the bytes that '\\x..' spells."""
    data = {"v": (DataType(Kind.VARBINARY, 8), [b"ab", b"\x7f\xff", None])}
    assert rows_where("v = 'ab'", data) == [0]
    assert rows_where("v = '\\x7fff'", data) == [1]
    assert column_values("cast('ab' as varbinary(8)) = v", data) == [True, False, None]
    assert column_values("length(v)", data) == [2, 2, None]


def test_constants_are_known_while_planning() -> None:
    """Bounds on time need the values of literals, of NOW and of arithmetic with them."""
    assert compiled("now - 1h").constant == NOW_MS - 3_600_000
    assert compiled("'abc'").constant == "abc"
    assert compiled("1000 + 5").constant == 1005
    assert compiled("1000 - 5s").constant == -4000
    assert compiled("timestamp '1970-01-02'").constant == 86_400_000
    assert compiled("cast('1970-01-02' as timestamp) + 1d").constant == 2 * 86_400_000
    assert compiled("timetruncate(now, 1d)").constant == NOW_MS - NOW_MS % 86_400_000
    assert compiled("to_timestamp('1970-01-03', 'yyyy-mm-dd')").constant == 2 * 86_400_000
    assert compiled("ts", TableScope({"ts": timestamp()})).constant is None


@pytest.mark.parametrize(("expression", "want"), [
    ("ti", TINYINT), ("ti + 1", DOUBLE), ("ti & 1", BIGINT), ("abs(ti)", TINYINT), ("round(f, 1)", FLOAT),
    ("ti > 1", BOOL), ("ts + 1s", timestamp()), ("ts - ts", BIGINT), ("case when 1 then ti else 5 end", BIGINT),
    ("case when 1 then f else ti end", DOUBLE), ("concat(n, 'x')", DataType(Kind.NCHAR, 21)),
    ("case when 1 then n else 'x' end", DataType(Kind.NCHAR)), ("cast(1 as smallint)", DataType(Kind.SMALLINT)),
    ("'abc'", DataType(Kind.VARCHAR, 3)), ("1", BIGINT), ("1.0", DOUBLE), ("null", DataType(Kind.NULL)),
])
def test_result_types(expression: str, want: DataType) -> None:
    """Types follow the rules of the dialect, which stream targets are created from."""
    scope = TableScope({"ti": TINYINT, "f": FLOAT, "ts": timestamp(), "n": NCHAR})
    assert compiled(expression, scope).type == want


@pytest.mark.parametrize("expression", [
    "now - 1y > now", "ts > now - 1n", "ts < '12:12:12'", "ts match '.*'", "ti nmatch '.*'", "f match 'a'",
    "b match 'x'",
    "nosuch = 1", "j = 'a'", "j + 1", "ti -> 'k' = 1", "s contains 'k'", "s match '('",
    "s match '(?=a)'", "ti like 'a'", "s & 1",
    "not (null)", "_wstart > 0", "sum(ti) > 1", "nosuchfunction(1)", "cast(j as int) = 1", "ts + ts > 0",
])
def test_wrong_conditions_are_refused(expression: str) -> None:
    """What makes no sense is told while planning, with the place."""
    scope = TableScope({"ts": timestamp(), "ti": TINYINT, "f": FLOAT, "b": BOOL, "s": VARCHAR, "j": JSON})
    with pytest.raises(PenstockError) as caught:
        condition(expression, scope)
    assert caught.value.position is not None
    assert isinstance(caught.value, InvalidStatementError | NotFoundError)


@pytest.mark.parametrize("word", ["timestamp", "timestamptz"])
def test_times_that_are_none_are_refused(word: str) -> None:
    """Instead of becoming 1970, as CAST makes of them."""
    with pytest.raises(InvalidValueError, match="is not a timestamp"):
        compiled(f"{word} '2021-05-25 04:55:03 EST'")


def test_position_names_line_column_and_text() -> None:
    """An error points at the offending part of the statement."""
    with pytest.raises(NotFoundError) as caught:
        compiled("1 +\n  nosuch")
    position = caught.value.position
    assert position is not None
    assert (position.line, position.column, position.text) == (2, 3, "nosuch")


def test_deep_nesting_does_not_double_the_sql() -> None:
    """Functions that need their argument twice still give SQL of linear length."""
    expression = "s"
    for _ in range(12):
        expression = f"cast(cast({expression} as int) as varchar(5))"
    sql = sql_of(compiled(expression, TableScope({"s": VARCHAR})))
    assert len(sql) < 50_000
    assert run_over(sql, {"s": (VARCHAR, ["123456x", None])}) == ["12345", None]


def test_long_chains_compile() -> None:
    """Hundreds of conditions joined by OR are one flat expression."""
    chain = " or ".join(f"i = {number}" for number in range(800))
    assert rows_where(chain, {"i": (INT, [5, 900])}) == [0]


def test_scope_without_positions_is_enough() -> None:
    """Scopes that know no statement text may leave `position` out."""

    class Bare:
        session = Session()
        precision = "ms"

        def column(self, name: str, qualifier: str | None, node: object) -> SqlExpr:
            raise NotFoundError(name)

    with pytest.raises(NotFoundError) as caught:
        compile_expression(parsed("x", TableScope()), Bare())  # type: ignore[arg-type]
    assert caught.value.position is None
