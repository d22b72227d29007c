"""Aggregate and selection functions per group, against hand-computed values and plain Python."""

from __future__ import annotations

import math
import random
from typing import Any

import duckdb
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.expression_support import sql_of

from penstock.common.errors import InternalError, InvalidStatementError
from penstock.planner.bind.aggregate_calls import ALL_ROWS, aggregate_call
from penstock.planner.duckdb_sql.duckdb_tree import parse_tree
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.group_values import PickedColumn, RowKey
from penstock.planner.lower.duckdb import aggregate_sql
from penstock.sql.tree.statements import Duration
from penstock.sql.types import BIGINT, DOUBLE, INT, UBIGINT, VARCHAR, DataType, Kind, Precision, timestamp

FLOAT = DataType(Kind.FLOAT)
def spelled(sql: str, type: DataType, value: object = None) -> SqlExpr:
    """Returns DuckDB's SQL as a compiled expression."""
    return SqlExpr(parse_tree(sql), type, value)


N, F, S, U, B, T = (spelled(name, kind) for name, kind in (
    ("i", INT), ("f", FLOAT), ("s", VARCHAR), ("u", UBIGINT), ("b", BIGINT), ("ts", timestamp())))
TABLE = spelled("_tuid", UBIGINT)
ROW = RowKey(T, TABLE)
ROWS = [
    # group, ts, table, i, f, s, u, b
    (1, 1000, 1, 5, 1.5, "a", 1, 2**62),
    (1, 2000, 1, None, 2.5, "b", 2, 2**62),
    (1, 3000, 2, 7, None, "c", 3, 1),
    (1, 3000, 1, 8, 4.0, None, 2**64 - 1, None),
    (2, 1000, 1, None, None, None, None, None),
]


def aggregate(name: str, arguments: list[SqlExpr], row: RowKey, precision: Precision = "ms") -> SqlExpr:
    """What DuckDB computes for a call."""
    call = aggregate_call("a", name, arguments, row, precision=precision)
    return SqlExpr(aggregate_sql.aggregate(call), call.type)


def companion(name: str, by: SqlExpr, column: SqlExpr, row: RowKey) -> SqlExpr:
    """What DuckDB computes for a plain column next to a call."""
    return SqlExpr(aggregate_sql.aggregate(PickedColumn("c", name, by, column, row)), column.type)


def constant(item: int | float | str | Duration) -> SqlExpr:
    """A literal argument."""
    if isinstance(item, str):
        return spelled(f"'{item}'", VARCHAR, item)
    if isinstance(item, Duration):
        return spelled("1", BIGINT, item)
    return spelled(repr(item), DOUBLE if isinstance(item, float) else BIGINT, item)


@pytest.fixture(scope="module")
def connection() -> duckdb.DuckDBPyConnection:
    """The rows as a table."""
    con = duckdb.connect()
    con.execute("CREATE TABLE t (g INTEGER, ts BIGINT, _tuid UBIGINT, i INTEGER, f FLOAT, s VARCHAR, u UBIGINT, "
                "b BIGINT)")
    con.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?, ?)", ROWS)
    return con


def per_group(connection: duckdb.DuckDBPyConnection, expression: SqlExpr) -> list[Any]:
    """Evaluates an aggregate per group and checks that it has the type that was promised."""
    sql = f"SELECT {sql_of(expression)}, typeof({sql_of(expression)}) FROM t GROUP BY g ORDER BY g"
    rows = connection.execute(sql).fetchall()
    assert {row[1] for row in rows} <= {expression.type.duckdb(), f"{expression.type.duckdb()}[]"}
    return [row[0] for row in rows]


@pytest.mark.parametrize(("name", "args", "want"), [
    ("count", [ALL_ROWS], [4, 1]), ("count", [N], [3, 0]), ("sum", [N], [20, None]),
    ("sum", [F], [8.0, None]), ("sum", [U], [None, None]), ("sum", [B], [None, None]),
    ("avg", [N], [20 / 3, None]),
    ("avg", [F], [8 / 3, None]), ("min", [N], [5, None]), ("max", [F], [4.0, None]), ("max", [S], ["c", None]),
    ("spread", [N], [3.0, None]), ("spread", [T], [2000.0, 0.0]), ("stddev", [N], [math.sqrt(14 / 9), None]),
    ("stddev_pop", [N], [math.sqrt(14 / 9), None]), ("var_pop", [N], [14 / 9, None]),
    ("std", [N], [math.sqrt(14 / 9), None]), ("variance", [N], [14 / 9, None]),
    ("var_samp", [N], [14 / 6, None]), ("stddev_samp", [N], [math.sqrt(14 / 6), None]),
    ("corr", [N, N], [1.0, None]), ("corr", [N, F], [1.0, None]),
    ("group_concat", [S], ["a,b,c", None]), ("group_concat", [S, S, constant("-")], ["aa-bb-cc", None]),
    ("first", [N], [5, None]), ("last", [N], [8, None]), ("last", [S], ["c", None]), ("first", [S], ["a", None]),
    ("last_row", [S], [None, None]), ("last_row", [N], [8, None]), ("mode", [N], [5, None]),
    ("percentile", [N, constant(50)], [7.0, None]), ("percentile", [N, constant(25)], [6.0, None]),
    ("percentile", [N, constant(0), constant(25), constant(100)], ["[5.000000, 6.000000, 8.000000]", None]),
    ("apercentile", [N, constant(50), constant("t-digest")], [7.0, None]), ("hyperloglog", [S], [3, 0]),
    ("leastsquares", [N, constant(1), constant(1)], ["{slop:1.000000, intercept:4.666667}", None]),
    ("leastsquares", [N, constant(0), constant(2)], ["{slop:0.500000, intercept:5.666667}", None]),
    ("irate", [F], [1.5, None]),
    ("histogram", [N, constant("user_input"), constant("[1, 5, 7]"), constant(0)],
     [['{"lower_bin":1, "upper_bin":5, "count":1}', '{"lower_bin":5, "upper_bin":7, "count":1}'],
      ['{"lower_bin":1, "upper_bin":5, "count":0}', '{"lower_bin":5, "upper_bin":7, "count":0}']]),
])
def test_aggregate_gives_known_value(
    connection: duckdb.DuckDBPyConnection, name: str, args: list[SqlExpr], want: list[Any],
) -> None:
    """Aggregates ignore NULLs and have the promised type; groups of NULLs give NULL, counts 0."""
    got = per_group(connection, aggregate(name, args, ROW))
    for value, expected in zip(got, want, strict=True):
        if isinstance(expected, float):
            assert math.isclose(value, expected, rel_tol=1e-9)
        else:
            assert value == expected


def test_empty_input_gives_no_value_and_counts_zero(connection: duckdb.DuckDBPyConnection) -> None:
    """Without rows the one result row has NULLs, and 0 where something is counted."""
    for name, args in (("count", [ALL_ROWS]), ("count", [N]), ("hyperloglog", [N])):
        assert connection.execute(f"SELECT {sql_of(aggregate(name, args, ROW))} FROM t WHERE false").fetchone() == (0,)
    for name in ("sum", "avg", "min", "max", "first", "last", "last_row", "mode", "irate", "stddev", "spread"):
        sql = sql_of(aggregate(name, [N], ROW))
        assert connection.execute(f"SELECT {sql} FROM t WHERE false").fetchone() == (None,), name


def test_companions_come_from_the_selected_row(connection: duckdb.DuckDBPyConnection) -> None:
    """A plain column next to a selecting function is that row's, also if it is NULL."""
    table = spelled("_tuid", UBIGINT)
    for name, column, want in (
        ("min", S, ["a", None]), ("max", S, [None, None]), ("first", S, ["a", None]), ("last", S, [None, None]),
        ("last_row", N, [8, None]), ("max", T, [3000, None]), ("min", table, [1, None]), ("last_row", table, [1, 1]),
    ):
        assert per_group(connection, companion(name, N, column, ROW)) == want, name


VALUES = st.one_of(st.none(), st.integers(-3, 3))


ROW_LISTS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3), VALUES), min_size=1, max_size=12,
                     unique_by=lambda row: row[:2])


@given(ROW_LISTS, st.randoms(use_true_random=False))
@settings(max_examples=times(16, 400), deadline=None)
def test_ties_go_to_the_earliest_row_then_to_the_lowest_table(
    rows: list[tuple[int, int, int | None]], shuffle: random.Random,
) -> None:
    """The picked row depends on the rows alone, not on their order."""
    shuffled = list(rows)
    shuffle.shuffle(shuffled)
    known = [row for row in rows if row[2] is not None]
    expected = {
        "min": min(known, key=lambda r: (r[2], r[0], r[1]), default=None),
        "max": min(known, key=lambda r: (-(r[2] or 0), r[0], r[1]), default=None),
        "first": min(known, key=lambda r: (r[0], r[1]), default=None),
        "last": min(known, key=lambda r: (-r[0], r[1]), default=None),
        "last_row": min(rows, key=lambda r: (-r[0], r[1])),
    }
    con = duckdb.connect()
    con.execute("CREATE TABLE r (ts BIGINT, _tuid UBIGINT, i INTEGER)")
    con.executemany("INSERT INTO r VALUES (?, ?, ?)", shuffled)
    for name, row in expected.items():
        place = [sql_of(companion(name, N, spelled(column, BIGINT), ROW)) for column in ("ts", "_tuid", "i")]
        got = con.execute(f"SELECT {sql_of(aggregate(name, [N], ROW))}, {', '.join(place)} FROM r").fetchone()
        assert got == ((None,) * 4 if row is None else (row[2], *row))


def test_composite_keys_order_rows_of_one_time() -> None:
    """Of rows with one time, first takes the least key and last the greatest."""
    con = duckdb.connect()
    con.execute("CREATE TABLE r AS SELECT * FROM (VALUES (1, 1, 'b', 10), (1, 1, 'a', 20), (1, 1, 'c', 30)) "
                "v(ts, _tuid, k, i)")
    key = RowKey(T, TABLE, (spelled("k", VARCHAR),))
    for name, want in (("first", 20), ("last", 30), ("last_row", 30)):
        assert con.execute(f"SELECT {sql_of(aggregate(name, [N], key))} FROM r").fetchone() == (want,)
        assert con.execute(f"SELECT {sql_of(companion(name, N, N, key))} FROM r").fetchone() == (want,)
    bare = sql_of(aggregate("last", [N], RowKey(T)))
    beside = sql_of(companion("max", N, N, RowKey(T)))
    assert con.execute(f"SELECT {bare} IS NOT NULL, {beside} FROM r").fetchone() == (True, 30)


def test_rates_count_a_fall_as_a_restart() -> None:
    """IRATE is per second between the last two values; one value alone is 0."""
    con = duckdb.connect()
    con.execute("CREATE TABLE r (ts BIGINT, _tuid UBIGINT, i DOUBLE)")
    con.execute("INSERT INTO r VALUES (0, 1, 2.116), (360000, 1, 2.028)")
    sql = sql_of(aggregate("irate", [spelled("i", DOUBLE)], ROW))
    assert con.execute(f"SELECT {sql} FROM r").fetchone()[0] == pytest.approx(2.028 / 360)  # type: ignore[index]
    assert con.execute(f"SELECT {sql} FROM r WHERE ts = 0").fetchone() == (0.0,)


@pytest.mark.parametrize(("precision", "unit"), [("ms", 1), ("us", 1_000), ("ns", 1_000_000)])
def test_rates_follow_the_precision(precision: Precision, unit: int) -> None:
    """Rates are per second in every precision."""
    con = duckdb.connect()
    con.execute("CREATE TABLE r AS SELECT i * ? AS ts, 1::UBIGINT AS _tuid, i / 10 AS v FROM range(0, 5000, 500) x(i)",
                [unit])
    row = RowKey(spelled("ts", timestamp(precision)))
    rate = aggregate("irate", [spelled("v", DOUBLE)], row, precision=precision)
    assert con.execute(f"SELECT {sql_of(rate)} FROM r").fetchone() == (100.0,)


def test_histogram_bins(connection: duckdb.DuckDBPyConnection) -> None:
    """Linear and logarithmic bins, with or without the open ones, and normalized counts."""
    linear = constant('{"start": 0, "width": 5, "count": 2, "infinity": true}')
    got = per_group(connection, aggregate("histogram", [N, constant("linear_bin"), linear, constant(1)], ROW))[0]
    assert [text.partition('"count":')[2] for text in got] == ["0.000000}", "0.333333}", "0.666667}", "0.000000}"]
    log = constant('{"start": 1, "factor": 2, "count": 3, "infinity": false}')
    got = per_group(connection, aggregate("histogram", [N, constant("log_bin"), log, constant(0)], ROW))[0]
    assert got == ['{"lower_bin":1, "upper_bin":2, "count":0}', '{"lower_bin":2, "upper_bin":4, "count":0}',
                   '{"lower_bin":4, "upper_bin":8, "count":3}']


@pytest.mark.parametrize(("bin_type", "bins"), [
    ("user_input", "[3, 1]"), ("user_input", "[1]"), ("user_input", "x"), ("user_input", '["a", "b"]'),
    ("linear_bin", '{"start": 0, "width": 0, "count": 2, "infinity": true}'), ("linear_bin", "[1, 2]"),
    ("log_bin", '{"start": 0, "factor": 2, "count": 2, "infinity": true}'), ("linear_bin", '{"start": 0}'),
    ("log_bin", '{"start": 1, "factor": 1e200, "count": 3, "infinity": false}'),
])
def test_bins_that_make_no_sense_are_refused(bin_type: str, bins: str) -> None:
    """A description of bins is checked while planning."""
    with pytest.raises(InvalidStatementError, match="describes no bins"):
        aggregate("histogram", [N, constant(bin_type), constant(bins), constant(0)], ROW)


def test_one_point_has_no_line(connection: duckdb.DuckDBPyConnection) -> None:
    """LEASTSQUARES over one value prints nan, as TDengine does."""
    sql = sql_of(aggregate("leastsquares", [N, constant(1), constant(1)], ROW))
    row = connection.execute(f"SELECT {sql} FROM t WHERE i = 5").fetchone()
    assert row == ("{slop:nan, intercept:nan}",)


def test_null_literal_is_aggregated(connection: duckdb.DuckDBPyConnection) -> None:
    """max(NULL) is NULL, count(NULL) is 0."""
    null = spelled("NULL", DataType(Kind.NULL))
    assert connection.execute(f"SELECT {sql_of(aggregate('max', [null], ROW))} FROM t").fetchone() == (None,)
    assert connection.execute(f"SELECT {sql_of(aggregate('count', [null], ROW))} FROM t").fetchone() == (0,)


def test_functions_over_rows_are_no_aggregates() -> None:
    """DIFF, TOP and the like belong to the query planner."""
    with pytest.raises(InternalError):
        aggregate("diff", [N], ROW)
