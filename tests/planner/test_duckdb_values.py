"""Values of DuckDB's own types in the dialect: as DuckDB computes them, within bounds, with errors of the dialect."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.expression_support import CONNECTION, TableScope, column_values, compiled, run_over, sql_of, value
from kits.basics.query_harness import Harness

from penstock.common.duckdb_types import arrow_type, is_plain, json_values, plain, texts
from penstock.common.errors import PenstockError, SqlSyntaxError
from penstock.sql.types import BIGINT, INT, VARCHAR, DataType, Kind, other_type, timestamp

ROWS = 6
TIMES = [datetime(2024, 1, 31), None, datetime(1969, 12, 31, 23, 59), datetime(2024, 2, 29, 12), datetime(1, 1, 1),
         datetime(9999, 12, 31)]
#: Columns as the dialect has them, where times are integers, and as DuckDB does.
OTHERS: dict[str, tuple[DataType, list[Any]]] = {
    "d": (other_type("DATE"), [date(2024, 1, 31), None, date(1970, 1, 1), date(2024, 2, 29), date(1, 1, 1), date.max]),
    "t": (other_type("TIME"), [time(10), None, time(0), time(23, 59, 59, 999999), time(1), time(2)]),
    "i": (other_type("INTERVAL"), [timedelta(days=1), None, timedelta(0), timedelta(-3, 5), timedelta(hours=30),
                                   timedelta(microseconds=1)]),
    "h": (other_type("HUGEINT"), [1, None, 0, -(2**100), 2**100, 7]),
    "l": (other_type("INTEGER[]"), [[1, 2], None, [], [None], [3, 1, 2], [2**31 - 1]]),
    "x": (other_type("STRUCT(a INTEGER, b VARCHAR)"), [{"a": 1, "b": "x"}, None, {"a": None, "b": None},
                                                       {"a": 2, "b": "y"}, {"a": 3, "b": ""}, {"a": 1, "b": "x"}]),
    "v": (INT, [1, None, 0, -5, 2**31 - 1, 3]),
    "s": (VARCHAR, ["abc", None, "", "2024-01-31", "a%", "10:00:00"]),
}


def milliseconds(instant: datetime | None) -> int | None:
    """Returns the units that a column of the dialect has."""
    return None if instant is None else (instant.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        milliseconds=1)


def both(expression: str) -> tuple[list[Any], list[Any]]:
    """Returns an expression over the columns, computed by the dialect and by DuckDB, as texts."""
    ours = OTHERS | {"ts": (timestamp(), [milliseconds(each) for each in TIMES])}
    plainly = OTHERS | {"ts": (other_type("TIMESTAMP"), TIMES)}
    scope = TableScope({name: kind for name, (kind, _) in ours.items()})
    found = compiled(expression, scope)
    wanted = f"epoch_ms({expression})" if found.type.kind is Kind.TIMESTAMP else expression
    return run_over(f"CAST({sql_of(found)} AS VARCHAR)", ours), run_over(f"CAST({wanted} AS VARCHAR)", plainly)


@pytest.mark.parametrize("expression", [
    "d + 1", "d - d", "d + i", "d - interval '1' month", "ts + i", "ts - interval '2 days 3 hours'", "i + ts",
    "i + interval '1' day", "i * 3", "i / 2", "-i", "h + 1", "h * 3", "h // 3", "h % 7", "-h", "d + t",
    "d < date '2024-02-01'", "d = ts", "ts >= d", "d <> '2024-01-31'", "d IN ('2024-01-31', date '0001-01-01')",
    "d BETWEEN date '2024-01-01' AND '2024-12-31'", "d IS NOT DISTINCT FROM NULL", "t > '10:00:00'",
    "i > interval '1' hour",
    "h = 1", "h > v", "l = [1, 2]", "l < [2]", "x = {'a': 1, 'b': 'x'}", "(v, s) = (1, 'abc')",
    "(v, s) IN ((1, 'abc'), (0, ''))", "[v, 2]", "[v, NULL][1]", "l[1]", "l[-1]", "l[2:]", "l[:1]", "s[2]", "s[1:2]",
    "struct_pack(a := v, b := s)",
    "{'a': v, 'b': {'c': s}}", "map {'k': v, 'n': 2}", "map {'k': v}['k']", "(x).a", "x['b']", "row(v, s)", "[ts, d]",
    "CAST(ts AS DATE)", "ts::TIME", "d::TIMESTAMP", "CAST(v AS HUGEINT)", "h::VARCHAR", "TRY_CAST(s AS DATE)",
    "TRY_CAST(s AS TIME)", "TRY_CAST(s AS INTEGER[])", "TRY_CAST(h AS INTEGER)", "[v]::DOUBLE[]", "l::VARCHAR[]",
    "TRY_CAST(s AS DECIMAL(10, 2))", "s::ENUM('abc', '', '2024-01-31', 'a%', '10:00:00')",
    "CASE WHEN v > 0 THEN d END", "CASE WHEN v > 0 THEN d ELSE ts END", "CASE WHEN v > 0 THEN l ELSE [1.5] END",
    "coalesce(d, ts)", "extract(year FROM d)", "extract(epoch FROM i)", "extract(month FROM ts)",
    "l || [4]", "d || '!'", "list_filter(l, lambda y: y > 1)", "list_filter(l, lambda y, n: n > 1)",
    "list_transform(l, lambda y: d)", "list_transform([ts], lambda y: y + interval '1' day)",
    "list_transform([s], lambda y: y || '!')", "list_transform(l, lambda y: [y, 1])", "s LIKE s",
    "s LIKE 'a!%' ESCAPE '!'", "~v", "~ ~h",
    "s GLOB 'a*'", "s ~ 'a.*'", "s !~ 'a.*'", "s SIMILAR TO '[a-z]+'", "s NOT ILIKE 'A%'", "v // 2", "v >> 1",
    "greatest(d, date '2000-01-01')", "abs(h)", "length(l)", "interval (v) day", "interval '1' month * v",
])
def test_values_are_those_of_duckdb(expression: str) -> None:
    """Over rows with NULLs and the ends of types, for what both have the same rules for."""
    got, wanted = both(expression)
    assert got == wanted
    assert len(got) == ROWS


@pytest.mark.parametrize(("expression", "want"), [
    ("interval '1' day = 1d", True), ("date '2024-01-01' + 1d", 1_704_153_600_000), ("2 + 3 ^ 2 * 2", 20.0),
    ("-2 ^ 2", 4.0), ("list_reduce([1, 2, 3], (a, x) -> a + x)", 6.0), ("list_transform([1], x -> x + 1)", [2.0]),
    ("list_filter([1, 2], x -> 'true')", [1, 2]),
    ("list_transform([1], x -> list_transform([2], x -> list_transform([3], y -> x)))", [[[2]]]),
    ("'{\"a\": {\"b\": 1}}' -> 'a' -> 'b'", "1"), ("'{\"a\": \"x\"}' ->> 'a'", "x"),
    ("current_date", date(2023, 11, 14)), ("1 << 3", 8),
    ("current_timestamp", 1_700_000_000_123), ("contains('abc', 'b')", True), ("[1, 2, 3][-2:-1]", [2, 3]),
    ("cast(now() as date)", date(2023, 11, 14)), ("try_cast('x' as int)", None), ("cast('x' as int)", 0),
])
def test_known_values(expression: str, want: object) -> None:
    """Durations are intervals for them; numbers have the types and rules of the dialect."""
    assert value(expression) == want


def test_the_calendar_is_that_of_the_session() -> None:
    """A day begins when it does there, and days are as long as they are there."""
    zone = "Europe/Berlin"
    before = "cast(1711753200000 as timestamp)"  # 2024-03-30 00:00 in Berlin, a day before clocks go forward
    assert value(f"cast({before} as date)", time_zone=zone) == date(2024, 3, 30)
    assert value(f"cast({before} as date)") == date(2024, 3, 29)
    assert value(f"({before} + interval '2' day) - {before}", time_zone=zone) == 47 * 3_600_000
    assert value(f"{before} = date '2024-03-30'", time_zone=zone) is True
    assert value("cast(0 as timestamp) at time zone 'Asia/Tokyo'") == 9 * 3_600_000
    assert value("extract(hour from cast(0 as timestamp) at time zone 'Asia/Tokyo')", time_zone=zone) == 9


@pytest.mark.parametrize("precision", ["ms", "us", "ns"])
def test_times_have_the_precision_of_the_database(precision: Any) -> None:
    """Also such as come of dates."""
    units = {"ms": 10**3, "us": 10**6, "ns": 10**9}[precision]
    assert value("date '1970-01-02' + interval '1' second", precision=precision) == 86_401 * units
    assert value("cast(0 as timestamp) < date '1970-01-02'", precision=precision) is True


@pytest.mark.parametrize(("expression", "message"), [
    ("date '2024-01-01' = time '10:00'", "DATE cannot be compared with TIME"),
    ("[1] + 1", "there is no + of INTEGER[]"),
    ("cast([1] as int)", "cannot cast INTEGER[] to INT"), ("cast(true as date)", "cannot cast BOOL to DATE"),
    ("[1] = 1", "cannot be compared"), ("'01'::bit > 1.5", "BIT cannot be compared with DOUBLE"),
    ("interval '1 day' + 1", "there is no + of INTERVAL"),
    ("interval 'x'", "Could not convert string 'x' to INTERVAL"), ("date '2024-02-30'", "out of range"),
    ("[1]::date", "cannot cast INTEGER[] to DATE"), ("'x'::uuid", "UUID"), ("'z'::enum('x')", "Could not convert"),
    ("list_reduce(['a'], (a, x) -> a || x)", "makes numbers, not VARCHAR"),
    ("list_transform(1, x -> x)", "takes a list, not BIGINT"),
    ("list_transform(lambda x: x, [1])", "takes a list, then"),
    ("list_transform([1], x -> sum(x))", "is not allowed here"), ("upper([1])", "there is no upper(INTEGER[])"),
    ("now() at time zone 'Nowhere'", "is not a time zone"), ("'a' like 'b' escape 'xx'", "ESCAPE takes one character"),
    ("'a' collate nocase", "there is no COLLATE"), ("5 -> 'a'", "need a JSON tag, not BIGINT"),
    ("{'a': 1}.b", 'Could not find key "b"'),
])
def test_errors_are_of_the_dialect(expression: str, message: str) -> None:
    """They tell the place, and nothing of what DuckDB is inside."""
    with pytest.raises(PenstockError) as caught:
        value(expression)
    assert message in caught.value.message
    assert caught.value.position is not None
    assert "Binder" not in str(caught.value)


@pytest.mark.parametrize("name", [
    "regclass", "regtype", "oid", "`secret`", "main.t", "int[0]", "int[99999]", "struct()", "map(int)",
    "enum(select 1)", "enum(1)", "union", "any", "table", "geometry[]", "null", "int" + "[]" * 60,
    "struct(a " * 60 + "int" + ")" * 60,
])
def test_types_are_a_closed_set(name: str) -> None:
    """None is looked up anywhere, and none is deeper than expressions may be."""
    with pytest.raises(SqlSyntaxError):
        compiled(f"cast('x' as {name})")


# --- results ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "values"), [
    ("DATE", ["2024-01-31", "infinity", "-infinity", "5000000-01-01", "0044-03-15 (BC)"]),
    ("TIME", ["10:00:01.5", "24:00:00"]), ("INTERVAL", ["1 year 2 months 3 days 04:05:06.7", "-1 day"]),
    ("HUGEINT", ["170141183460469231731687303715884105727", "-1"]), ("INTEGER[]", ["[1, NULL]", "[]"]),
    ("DOUBLE[]", ["[nan, inf, 1.5]"]), ("STRUCT(a INTEGER, b DATE)", ["{'a': 1, 'b': infinity}"]),
    ("MAP(VARCHAR, INTEGER)", ["{a=1}"]), ("TIMESTAMP[]", ["[infinity]"]), ("INTEGER[2]", ["[1, 2]"]),
])
def test_arrow_keeps_all_values(name: str, values: list[str]) -> None:
    """What a column of a result has is what DuckDB has; NULL, too."""
    rows = ", ".join(f"(CAST({text!r} AS {name}))" for text in values).replace('"', "$$")
    table = CONNECTION.execute(f"SELECT * FROM (VALUES {rows}, (NULL))").to_arrow_table()
    assert table.column(0).type == arrow_type(name)
    assert texts(table.column(0)).to_pylist() == [*values, None]
    assert len(json_values(table.column(0))) == len(values) + 1


def test_json_has_lists_and_objects() -> None:
    """And no numbers that aren't finite."""
    table = CONNECTION.execute("SELECT {'a': ['nan'::DOUBLE, 1.5], 'b': DATE 'infinity', 'c': MAP {1: 'x'}} a")
    assert json_values(table.to_arrow_table().column(0)) == [{"a": [None, 1.5], "b": "infinity", "c": {"1": "x"}}]


def test_results_are_text_where_arrow_has_no_type() -> None:
    """And all that is of the dialect stays as it is."""
    for name in ("UUID", "BIT", "ENUM('a')", "UHUGEINT", "TIME WITH TIME ZONE", "UUID[]", "UNION(a INTEGER)"):
        assert is_plain(arrow_type(name)), name
    numbers = CONNECTION.execute("SELECT 1 a").to_arrow_table().column(0)
    assert plain(numbers) is numbers
    found = Harness().query("select 'x'::enum('x'), '0101'::bit, '5'::uhugeint, NULL::uuid")
    assert found == [("x", "0101", "5", None)]


@given(st.lists(st.one_of(st.none(), st.dates()), max_size=5))
def test_any_date_comes_back(days: list[date | None]) -> None:
    """From the dialect's SQL."""
    data = {"d": (other_type("DATE"), [*days, None])}
    assert column_values("d", data) == [*days, None]
    assert column_values("d - d", data) == [None if day is None else 0 for day in [*days, None]]
    assert compiled("d - d", TableScope({"d": other_type("DATE")})).type == BIGINT
