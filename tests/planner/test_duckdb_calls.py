"""DuckDB's functions in the dialect: which there are, what they give, and that none gets at what isn't in the query."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pytest
from conftest import times
from kits.basics.expression_support import TableScope, compiled, sql_of, value
from kits.basics.query_harness import Harness
from kits.streams.verified_streams import made
from scripts.write_duckdb_functions import LIST, Overload, catalog, module

from penstock.common.errors import InvalidStatementError, InvalidStreamError, NotFoundError, PenstockError
from penstock.planner.duckdb_sql.duckdb_tree import VOLATILE
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.duckdb_calls import listed
from penstock.planner.functions.table import FUNCTIONS, lookup, require
from penstock.sql.dialect.parser import parse_one
from penstock.sql.tree.statements import Select
from penstock.sql.types import BIGINT, DOUBLE, INT, VARCHAR, DataType, Kind, timestamp

SECRET = "s3cr3t-of-the-house"
INSIDES = ("Binder", "Catalog Error", "Candidate", "LINE 1", "STRING_LITERAL", "No function matches")
#: Columns of each type that functions take, with NULL, the ends of the type, and what is in between.
COLUMNS: dict[str, tuple[DataType, list[Any]]] = {
    "bigint": (BIGINT, [None, -(2**63), 2**63 - 1, 0, 3, 2, 7]),
    "integer": (INT, [2, None, -(2**31), 2**31 - 1, 0, 1, 3]),
    "double": (DOUBLE, [0.5, None, math.inf, -math.inf, math.nan, -0.0, 1.7e308]),
    "float": (DataType(Kind.FLOAT), [0.5, 2.0, None, math.inf, 3.4e38, -0.0, 1.0]),
    "varchar": (VARCHAR, ["a,b", "", None, "Größe", "2024-02-29", "[1, 2]", "x" * 300]),
    "blob": (DataType(Kind.VARBINARY), [b"a", None, b"", b"\xff", b"1", b"2", b"3"]),
    "boolean": (DataType(Kind.BOOL), [True, None, False, True, False, True, False]),
    "tinyint": (DataType(Kind.TINYINT), [1, None, -128, 127, 0, 2, 3]),
    "smallint": (DataType(Kind.SMALLINT), [1, None, -(2**15), 2**15 - 1, 0, 2, 3]),
    "ubigint": (DataType(Kind.UBIGINT), [1, None, 2**64 - 1, 0, 2, 3, 4]),
    "uinteger": (DataType(Kind.UINT), [1, None, 2**32 - 1, 0, 2, 3, 4]),
    "timestamp": (timestamp(), [0, None, 1_709_164_800_123, -1, 951_782_400_000, 1, 2]),
}


@cache
def overloads() -> list[Overload]:
    """The forms of all functions that may be called, of argument types that columns have; no volatile ones."""
    functions = catalog()
    names = [name for name, entry in listed().items() if not entry.volatile and name not in FUNCTIONS]
    return [each for name in names for each in functions[name] if not each.varargs
            and all(type_ is not None and type_.lower() in COLUMNS for type_ in each.types)]


def test_the_list_is_that_of_the_catalog() -> None:
    """The script, run with the DuckDB that is here, would write the list as it stands."""
    assert LIST.read_text("utf-8") == module()


def test_functions_of_the_dialect_keep_their_place() -> None:
    """DuckDB's of the same name isn't found by it; names are looked up in any case."""
    assert all(lookup(name) is FUNCTIONS[name] for name in FUNCTIONS.keys() & listed().keys())
    assert lookup("Levenshtein") is require("levenshtein")
    assert len(listed()) > 400


def test_each_can_be_called() -> None:
    """No name is a word of the grammar."""
    names = [name for name in listed() if name not in FUNCTIONS]
    statement = parse_one("SELECT " + ", ".join(f"{name}(a)" for name in names))
    assert isinstance(statement, Select)
    assert [item.expression.this for item in statement.items] == names


def test_volatile_functions_are_known() -> None:
    """What DuckDB calls volatile is what trees know to be so, which TRY doesn't take."""
    functions = catalog()
    assert {name for name in listed() if any(
        overload.stability not in ("CONSISTENT", None) for overload in functions[name])} == VOLATILE
    assert value("date(cast(ifnull(null, uuid()) as varchar))") is None


@pytest.fixture(scope="module")
def tables() -> Harness:
    """The columns as a table of the dialect, and as the table `plain` of DuckDB, whose times are DuckDB's."""
    harness = Harness()
    rows = list(zip(*(values for _, values in COLUMNS.values()), strict=True))
    harness.create("n", {name: kind for name, (kind, _) in COLUMNS.items()})
    harness.insert("n", [(number, *row) for number, row in enumerate(rows)])
    harness.connection.execute("CREATE TABLE t (" + ", ".join(
        f'"{name}" {kind.duckdb()}' for name, (kind, _) in COLUMNS.items()) + ")")
    harness.connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(COLUMNS))})", rows)
    harness.connection.execute(
        'CREATE VIEW plain AS SELECT * REPLACE (make_timestamp("timestamp" * 1000) AS "timestamp") FROM t')
    return harness


@pytest.mark.parametrize("group", sorted({entry.group for entry in listed().values()} - {"aggregates"}))
def test_functions_give_what_duckdb_gives(tables: Harness, group: str) -> None:
    """Over columns with NULL and the ends of types: the same values, and an error where DuckDB has one."""
    scope = TableScope({name: kind for name, (kind, _) in COLUMNS.items()})
    compared = 0
    for overload in overloads():
        if listed()[overload.name].group != group:
            continue
        names = [f'"{type_}"'.lower() for type_ in overload.types]
        result = compiled_unless_constant(f"{overload.name}({', '.join(names).replace(chr(34), '`')})", scope)
        if result is None:
            continue
        plain = f'"{overload.name}"({", ".join(names)})'
        if result.type.kind is Kind.TIMESTAMP:
            plain = f"epoch_ms({plain})"
        if result.type.kind is Kind.DECIMAL:
            plain = f"TRY_CAST({plain} AS {result.type.duckdb()})"
        for number in range(len(COLUMNS["bigint"][1]))[::times(2, 1)]:
            got = answer(tables.connection, f"SELECT ({sql_of(result)})::VARCHAR FROM t LIMIT 1 OFFSET {number}")
            want = answer(tables.connection, f"SELECT ({plain})::VARCHAR FROM plain LIMIT 1 OFFSET {number}")
            assert got == want, f"{overload.form} is {got}, not {want}, of row {number}"
            compared += 1
    assert compared


def compiled_unless_constant(call: str, scope: TableScope) -> SqlExpr | None:
    """The compiled call, None if one of its arguments must be a constant."""
    try:
        return compiled(call, scope)
    except InvalidStatementError as error:
        if "must be a constant" in error.message:
            return None
        raise


def answer(connection: duckdb.DuckDBPyConnection, sql: str) -> object:
    """The one value of a query, or how it fails."""
    try:
        row = connection.execute(sql).fetchone()
    except duckdb.Error as error:
        return type(error)
    return None if row is None else row[0]


@pytest.mark.parametrize("call", [
    "median(`double`)", "median(`integer`)", "quantile_disc(`integer`, 0.5)", "bit_or(`integer`)",
    "skewness(`tinyint`)", "string_agg(`varchar`, '-')",
    "bool_and(`boolean`)", "arg_max(`varchar`, `integer`)", "count_if(`boolean`)",
    "product(`float`)", "any_value(`blob`)", "len(list(`integer`))", "mad(`tinyint`)", "regr_slope(`float`, `tinyint`)",
    "entropy(`varchar`)", "geomean(`uinteger`)", "list_sum(list(`tinyint`))", "kurtosis(`smallint`)",
    "median(`varchar`)", "approx_quantile(`tinyint`, 0.5)", "approx_count_distinct(NULL)", "entropy(NULL)",
    "regr_count(NULL, 1)", "median(NULL)",
])
def test_aggregates_give_what_duckdb_gives(tables: Harness, call: str) -> None:
    """Where values are NULL and at the ends of types."""
    want = answer(tables.connection, f"SELECT {call.replace('`', chr(34))} FROM plain")
    [(got,)] = tables.query(f"SELECT {call} FROM n")
    assert str(got) == str(want)


# --- what none may get at ---------------------------------------------------------------------------------------


def everything() -> list[tuple[str, str]]:
    """All functions of DuckDB's, tables and pragmas included, with their kinds; not its hundreds of collations."""
    return duckdb.connect().execute(
        "SELECT DISTINCT function_name, function_type FROM duckdb_functions() "
        "WHERE regexp_full_match(function_name, '[a-zA-Z_][a-zA-Z0-9_]*') "
        "AND NOT regexp_matches(function_name, 'collate_') ORDER BY ALL").fetchall()


def hostile_arguments(path: Path) -> list[str]:
    """What somebody would try who wants to read what isn't theirs."""
    select = f"SELECT content FROM read_text('{path}')"
    return ["", f"'{path}'", f"'{path}', 1", "'secret'", "'HOUSE_SECRET'", "'temp_directory'", f'"{select}"', "s",
            f"['{path}'], lambda x: read_text(x)", f"['{path}'], x -> (SELECT content FROM read_text(x))",
            f"json_serialize_sql('{select.replace(chr(39), chr(92) + chr(39))}')"]


@pytest.mark.slow
def test_no_function_reads_what_is_not_in_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each function that DuckDB has, called in many ways, in a DuckDB that is open to files and settings.

    By day each is called in every sixth of these ways, one beginning with the first, the next with the second.
    """
    path = tmp_path / "file.csv"
    path.write_text(f"{SECRET}\n", "utf-8")
    monkeypatch.setenv("HOUSE_SECRET", SECRET)
    reader = Harness()
    reader.create("n", {"s": VARCHAR})
    reader.insert("n", [(1, "a")])
    for statement in (f"SET temp_directory = '{tmp_path / SECRET}'", f"SET VARIABLE secret = '{SECRET}'",
                      f'CREATE TABLE "{SECRET}" (a INTEGER)'):
        reader.connection.execute(statement)
    for leak in (f"SELECT content FROM read_text('{path}')", "SELECT current_setting('temp_directory')",
                 "SELECT getvariable('secret')", "SELECT table_name FROM duckdb_tables()"):
        assert SECRET in str(answer(reader.connection, leak)), "what is hidden is there to be found"
    calls, apart = 0, times(6, 1)
    for number, (name, kind) in enumerate(everything()):
        if lookup(name) is None and kind in ("scalar", "aggregate", "macro", "window"):
            continue
        query = "SELECT * FROM {}" if kind.startswith("table") else "SELECT CAST({} AS VARCHAR) FROM n"
        for arguments in hostile_arguments(path)[number % apart::apart]:
            asked = query.format(f"{name}({arguments})")
            assert SECRET not in outcome(reader, asked), asked
            calls += 1
    assert calls > 5_000 // apart


def outcome(harness: Harness, query: str) -> str:
    """All that somebody is told who asks."""
    try:
        return str(harness.query(query))
    except PenstockError as error:
        return f"{error} {error.hint}"


def test_what_is_not_listed_is_not_there() -> None:
    """A function is the dialect's, or listed, or it doesn't exist, whatever DuckDB has."""
    for name, _ in everything():
        known = name.lower() in FUNCTIONS or name.lower() in listed()
        assert (lookup(name) is not None) == known
    for name in ("getenv", "current_setting", "getvariable", "read_text", "query", "nextval", "pg_sleep", "write_log",
                 "current_query", "duckdb_settings", "printf", "json_execute_serialized_sql"):
        with pytest.raises(NotFoundError):
            require(name)


# --- types, times and errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "want"), [
    ("len(string_split('a,b,c', ','))", 3), ("cast(list_value(1, 2) as varchar(20))", "[1, 2]"),
    ("cast(last_day(cast('2024-02-04' as timestamp)) as timestamp)", 1_709_164_800_000),
    ("cast(make_date(2024, 2, 3) as varchar(20))", "2024-02-03"), ("list_value(1) = list_value(1)", True),
    ("isnull(list_value(1))", False), ("list_contains(ifnull(null, list_value(1, 2)), 2)", True),
    ("len(if(false, list_value(1), list_value(1, 2)))", 2), ("gcd(12, 18)", 6), ("round_even(2.5, 0)", 2.0),
    ("json_extract('{\"a\": [1]}', '$.a')", "[1]"), ("lcase(null)", None), ("split_part('a,b', ',', 2)", "b"),
    ("typeof(1)", "INTEGER"), ("typeof(1 + 1)", "DOUBLE"), ("typeof(2.5)", "DOUBLE"), ("typeof(now())", "TIMESTAMP"),
    ("struct_keys(from_json('{}', '{\"x) AS a0, (SELECT 1\": \"INT\"}'))", ["x) AS a0, (SELECT 1"]),
    ("strptime('2024-01-02', '%Y-%m-%d')", 1_704_153_600_000), ("epoch_ms(1234)", 1234),
    ("format_bytes(1024 * 1024 - 1)", "1023.9 KiB"),
    ("date_diff('day', '2024-01-01', cast('2024-03-01' as timestamp))", 60), ("coalesce(list_value(1), null)", [1]),
])
def test_known_values(call: str, want: object) -> None:
    """Values of other types go from function to function; what has a type of the dialect is of that."""
    assert value(call) == want


def test_wide_integers_keep_all_digits() -> None:
    """They are of DuckDB's own types, and so is what is computed of them."""
    for call, type_name, want in (("factorial(20) + 1", "HUGEINT", "2432902008176640001"),
                                  ("md5_number('b') // 1", "UHUGEINT", "190532336368564675417118094528692087698")):
        result = compiled(call)
        assert result.type.sql() == type_name
        assert answer(duckdb.connect(), f"SELECT {sql_of(result)}::VARCHAR") == want


def test_times_are_of_the_wall_clock_of_the_session() -> None:
    """For functions of the calendar; the others see instants, also in the hour that comes twice."""
    zone = "Europe/Berlin"
    assert value("date_part('hour', cast(0 as timestamp))", time_zone=zone) == 1
    assert value("dayname(cast(1709247600000 as timestamp))", time_zone=zone) == "Friday"
    assert value("date_trunc('day', cast(1709247600000 as timestamp))", time_zone=zone) == 1_709_247_600_000
    assert value("strptime('1970-01-01 01:00', '%Y-%m-%d %H:%M')", time_zone=zone) == 0
    for twice in (1_729_989_000_000, 1_729_992_600_000):
        assert value(f"epoch_ms(cast({twice} as timestamp))", time_zone=zone) == twice
        assert value(f"list_max(list_value(cast({twice} as timestamp)))", time_zone=zone) == twice


@pytest.mark.parametrize(("call", "message"), [
    ("levenshtein('a', 1)", "there is no levenshtein(VARCHAR(1), BIGINT)"), ("levenshtein('a')", "no levenshtein("),
    ("split_part(1, now(), 2)", "no split_part("), ("fmod(1)", "no fmod("),
    ("date_part('nosuch', now())", 'extract specifier "nosuch" not recognized'),
    ("regexp_matches('a', '(')", "missing )"),
    ("list_value(1) + 1", "there is no + of INTEGER[] and BIGINT"), ("list_value(1) = now()", "cannot be compared"),
    ("cast(true as date)", "cannot cast BOOL to DATE"), ("list_value(true, now())", "no list_value("),
    ("list_aggregate(list_value(1), 'nosuch')", "name nosuch does not exist"),
])
def test_errors_are_of_the_dialect(call: str, message: str) -> None:
    """They tell the place, and nothing of what DuckDB is inside."""
    with pytest.raises(InvalidStatementError) as caught:
        value(call)
    assert message in caught.value.message
    assert caught.value.position is not None
    assert not any(inside in f"{caught.value} {caught.value.hint}" for inside in INSIDES)


def test_other_types_go_through_sub_queries(tables: Harness) -> None:
    """A list that an inner query makes is one for the outer."""
    got = tables.query("select len(y) from (select string_split(`varchar`, ',') y from n) where y is not null")
    assert sorted(got) == [(1,), (1,), (1,), (1,), (2,), (2,)]


def test_an_hour_that_comes_twice_is_the_later_one() -> None:
    """Where a time comes back from the wall clock."""
    for twice in (1_729_989_000_000, 1_729_992_600_000):
        call = f"date_trunc('hour', cast({twice} as timestamp))"
        assert value(call, time_zone="Europe/Berlin") == 1_729_990_800_000


def test_long_calls_are_typed_like_short_ones() -> None:
    """Their types aren't remembered."""
    assert value(f"starts_with('{'x' * 5000}', 'x')") is True


@pytest.mark.parametrize(("query", "place", "message"), [
    ("SELECT ts, uuid() u FROM m PARTITION BY tbname", "uuid()", "its value differs"),
    ("SELECT ts, v FROM m WHERE random() < 1 PARTITION BY tbname", "random()", "its value differs"),
])
def test_streams_refuse_what_they_cannot_keep_up_to_date(query: str, place: str, message: str) -> None:
    """The error tells the place and the reason."""
    with made() as bed, pytest.raises(InvalidStreamError, match=message) as caught:
        bed.execute(f"CREATE STREAM s INTO o AS {query}")
    assert caught.value.position is not None
    assert caught.value.position.text == place


def test_no_column_of_a_stream_is_of_another_type() -> None:
    """Neither results nor groups: nothing could keep them."""
    for query in ("SELECT ts, list_value(v) l FROM m PARTITION BY tbname",
                  "SELECT _wstart, count(*) FROM m PARTITION BY list_value(v) INTERVAL(10s)"):
        with made() as bed, pytest.raises(InvalidStatementError, match="no columns of the type INTEGER"):
            bed.execute(f"CREATE STREAM s INTO o AS {query}")
