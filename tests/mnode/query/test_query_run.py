"""Running plans: types of result columns, errors of DuckDB as errors of Penstock, nothing left behind."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from kits.basics.query_harness import Harness

from penstock.common.closed_duckdb import RenewableDuckdb
from penstock.common.errors import (
    CancelledError,
    InternalError,
    InvalidStatementError,
    InvalidValueError,
    PenstockError,
)
from penstock.mnode.query.query_execution import typed
from penstock.mnode.query.query_runner import EngineBackend, OpenQuery
from penstock.planner.query.batch_plan import QueryPlan
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.sql.types import INT, DataType, Kind


@pytest.mark.parametrize("precision", ["ms", "us", "ns"])
def test_timestamps_have_the_precision_of_the_database(precision: str) -> None:
    """TIMESTAMP columns come out as Arrow timestamps, whatever computed them."""
    harness = Harness(precision=precision)  # type: ignore[arg-type]
    harness.create("n", {"v": INT})
    harness.insert("n", [(7, 1)])
    table = harness.arrow("select ts, last(ts), _wstart, v, count(*) from n partition by ts, v interval(1s)")
    assert [str(field.type) for field in table.schema] == [f"timestamp[{precision}]"] * 3 + ["int32", "int64"]
    assert table.column(0).cast(pa.int64()).to_pylist() == [7]


def test_empty_results_have_types() -> None:
    """A result without rows has the same columns."""
    harness = Harness()
    harness.create("n", {"v": DataType(Kind.DECIMAL, digits=10, scale=2)})
    table = harness.arrow("select ts, v, sum(v), null from n group by ts, v")
    assert table.num_rows == 0
    assert [str(field.type) for field in table.schema] == [
        "timestamp[ms]", "decimal128(10, 2)", "decimal128(38, 2)", "null"]


def plan(sql: str, *columns: ResultColumn) -> QueryPlan:
    return QueryPlan(sql, (), columns)


@pytest.mark.parametrize("sql", ["SELECT CAST('x' AS INTEGER) AS o0", "SELECT nosuch AS o0", "SELEC"])
def test_errors_of_duckdb_are_translated(sql: str) -> None:
    """No DuckDB error gets out."""
    with pytest.raises(PenstockError):
        OpenQuery(plan(sql, ResultColumn("x", INT)), Harness(), EngineBackend(RenewableDuckdb(duckdb.connect))).table()


@pytest.mark.parametrize("sql", [
    "SELECT bitstring_agg(x) AS o0 FROM (SELECT unnest([1]) AS x)",
    "SELECT histogram(x, [NULL]) AS o0 FROM (SELECT 1 AS x)",
    "SELECT row_number() OVER (RANGE BETWEEN UNBOUNDED FOLLOWING AND UNBOUNDED PRECEDING) AS o0",
])
def test_what_is_wrong_with_the_statement_is_no_internal_error(sql: str) -> None:
    """DuckDB sees it only as it binds the whole query."""
    with pytest.raises(InvalidStatementError):
        opened(sql, ResultColumn("x", INT)).table()


@pytest.mark.parametrize("sql", [
    "SELECT '%' LIKE '%' ESCAPE '%' AS o0", "SELECT time_bucket(INTERVAL '-3 hours', TIME '10:00:00') AS o0",
    "SELECT list_reduce(CAST([] AS INTEGER[]), lambda x, y: x + y) AS o0",
])
def test_what_duckdb_cannot_do_with_a_value_is_no_internal_error(sql: str) -> None:
    """Somebody's value is wrong, not the plan."""
    with pytest.raises(InvalidValueError, match="a value in the query is invalid"):
        opened(sql, ResultColumn("x", INT)).table()


def opened(sql: str, *columns: ResultColumn) -> OpenQuery:
    return OpenQuery(plan(sql, *columns), Harness(), EngineBackend(RenewableDuckdb(duckdb.connect)))


def test_rows_come_batch_by_batch() -> None:
    """Batches have the plan's names and types, and no more rows than was asked for."""
    with opened("SELECT range AS o0 FROM range(5000)", ResultColumn("n", INT)) as query:
        batches = list(query.batches(2048))
    assert max(batch.num_rows for batch in batches) <= 2048
    assert pa.Table.from_batches(batches).to_pydict() == {"n": list(range(5000))}
    assert batches[0].schema == pa.schema([("n", pa.int32())])


def test_errors_between_batches_are_translated() -> None:
    """A value that only a later batch stumbles over is told as any other one, though DuckDB may be ahead of us."""
    sql = "SELECT CASE WHEN range > 900000 THEN CAST('x' AS INT) ELSE 1 END AS o0 FROM range(1000000)"
    with opened(sql.replace("'x'", "'x' || range"), ResultColumn("n", INT)) as query:
        batches = query.batches(2048)
        with pytest.raises(InvalidValueError, match="Could not convert string 'x9"):
            list(batches)


def test_a_query_can_be_left_half_read() -> None:
    """Whoever has seen enough closes the query, though its rows are still being computed."""
    harness = Harness()
    harness.create("n", {"v": INT})
    harness.insert("n", [(second * 1000, second) for second in range(10_000)])
    backend = EngineBackend(RenewableDuckdb(lambda: harness.connection))
    with OpenQuery(harness.plan("select v from n"), harness, backend) as query:
        batches = query.batches(100)
        assert next(batches).num_rows == 100
    assert harness.query("select count(*) from n") == [(10_000,)]


@pytest.mark.parametrize("taken", [0, 1])
def test_a_cancelled_query_ends(taken: int) -> None:
    """Whether it has begun or not, a cancelled query gives no more rows; cancelling one that is over does nothing."""
    with opened("SELECT range AS o0 FROM range(100000000)", ResultColumn("n", INT)) as query:
        batches = query.batches(2048)
        for _ in range(taken):
            next(batches)
        query.cancel()
        with pytest.raises(CancelledError):
            next(batches)
    query.cancel()


def test_constant_tables_are_gone_after_the_query() -> None:
    """What was registered for a query does not stay on the connection."""
    harness = Harness()
    harness.create("st", {"v": INT}, {"t": INT})
    harness.child("c", "st", 5)
    assert harness.query("select tags tbname, t from st") == [("c", 5)]
    assert harness.connection.execute("SELECT count(*) FROM duckdb_views() WHERE NOT internal").fetchone() == (0,)


def test_wide_integers_are_narrowed() -> None:
    """DuckDB's wide sums become the type that the plan says; NULL columns have Arrow's null type."""
    table = pa.table({"a": pa.array([1], pa.decimal128(38, 0)), "b": pa.array([None], pa.int32()),
                      "c": pa.array([3], pa.int64())})
    schema = pa.schema([("a", pa.int64()), ("a", pa.null()), ("c", pa.timestamp("us"))])
    result = typed(table, schema)
    assert result.column_names == ["a", "a", "c"]
    assert [str(field.type) for field in result.schema] == ["int64", "null", "timestamp[us]"]
    with pytest.raises(InternalError):
        typed(table, pa.schema([schema.field(0), schema.field(1)]))
