"""No query ends what computes queries: DuckDB is opened anew once values have broken it, wherever it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from penstock.common.closed_duckdb import (
    UNBOUNDED,
    RenewableDuckdb,
    closed_duckdb,
    renew_small_duckdb_if_broken,
    small_duckdb,
)
from penstock.common.errors import (
    InternalError,
    InvalidValueError,
    PenstockError,
    UnavailableError,
)
from penstock.mnode.query.process_backend import ProcessBackend
from penstock.mnode.query.query_execution import RunnableQuery
from penstock.mnode.query.query_process import ProcessSettings
from penstock.mnode.query.query_runner import EngineBackend, QueryBackend
from penstock.planner.duckdb_sql import folding
from penstock.planner.duckdb_sql.duckdb_tree import number
from penstock.shell.api.arrow_values import column_values
from penstock.shell.terminal.result_format import Style, format_table
from penstock.tasks.compute.duckdb_computer import Computer

#: text that isn't UTF-8, as data directories of earlier versions may hold it
BAD = pa.table({"s": pa.StringArray.from_buffers(
    2, pa.py_buffer(b"\0\0\0\0\x01\0\0\0\x03\0\0\0"), pa.py_buffer(b"a\xe9t"))})
GOOD = pa.table({"s": ["a", "b"]})
SCHEMA = pa.schema([("x", pa.string())])
BREAKS = "SELECT upper(s) AS x FROM t"


def in_engine() -> QueryBackend:
    return EngineBackend(RenewableDuckdb(lambda: closed_duckdb(UNBOUNDED)))


@pytest.fixture(params=["engine", "process"])
def backend(request: pytest.FixtureRequest) -> Iterator[QueryBackend]:
    if request.param == "engine":
        yield in_engine()
        return
    process = ProcessBackend(ProcessSettings(UNBOUNDED, (), 0))
    yield process
    process.close()


def test_the_next_query_finds_a_duckdb_that_works(backend: QueryBackend) -> None:
    """Whichever way its rows were taken; others that ran over the broken one are told to try again."""
    takes: list[Callable[[Any], object]] = [lambda run: run.table(), lambda run: list(run.batches(10)),
                                            lambda run: list(run.json(10))]
    for take in takes:
        with closing(backend.open(RunnableQuery(BREAKS, {"t": GOOD}, SCHEMA))) as other:
            with closing(backend.open(RunnableQuery(BREAKS, {"t": BAD}, SCHEMA))) as run, \
                    pytest.raises((InternalError, InvalidValueError)):
                take(run)
            if isinstance(backend, EngineBackend):
                with pytest.raises(UnavailableError, match="try again"):
                    take(other)
        with closing(backend.open(RunnableQuery(BREAKS, {"t": GOOD}, SCHEMA))) as run:
            assert run.table().to_pydict() == {"x": ["A", "B"]}


def test_texts_that_are_none_are_named(backend: QueryBackend) -> None:
    """In rows for Python, in JSON, and at the prompt."""
    query = RunnableQuery("SELECT s AS x FROM t", {"t": BAD}, SCHEMA)
    named = pytest.raises(InvalidValueError, match="b'\\\\xe9t' in the result is not valid UTF-8")
    with closing(backend.open(query)) as run, named:
        list(run.json(10))
    with closing(backend.open(query)) as run:
        table = run.table()
    with named:
        column_values(table.column(0), "UTC")
    with named:
        format_table(table, "box", Style())


@pytest.mark.parametrize("sql", ["SELECT CAST(s AS INT) AS x FROM t", "SELECT nosuch AS x", "SELEC"])
def test_other_errors_leave_it_as_it_is(sql: str) -> None:
    """A DuckDB that works is kept, with its memory."""
    opened: list[duckdb.DuckDBPyConnection] = []

    def opening() -> duckdb.DuckDBPyConnection:
        opened.append(closed_duckdb(UNBOUNDED))
        return opened[-1]

    backend = EngineBackend(RenewableDuckdb(opening))
    for _ in range(3):
        with closing(backend.open(RunnableQuery(sql, {"t": GOOD}, SCHEMA))) as run, pytest.raises(PenstockError):
            run.table()
    assert len(opened) == 1


@pytest.mark.parametrize("rows", [2, 20_000])
def test_tasks_compute_on(rows: int) -> None:
    """A task whose values break DuckDB is told so; it goes on with others, as do the tasks that share it."""
    bad = pa.concat_tables([BAD] * (rows // 2))
    with closing(Computer()) as one, closing(Computer()) as other:
        one.register("kept", GOOD)
        for _ in range(2):
            assert other.run(BREAKS, SCHEMA, t=GOOD).to_pydict() == {"x": ["A", "B"]}
            with pytest.raises(InvalidValueError, match="a row cannot be computed"):
                one.run(BREAKS, SCHEMA, t=bad)
            assert one.run("SELECT s AS x FROM kept", SCHEMA).to_pydict() == {"x": ["a", "b"]}
        assert other.run(BREAKS, SCHEMA, t=GOOD).to_pydict() == {"x": ["A", "B"]}


def test_statements_are_planned_on() -> None:
    """Constants are computed by what tasks share."""
    assert folding.evaluate(number(1)) == 1
    with small_duckdb() as broken:
        broken.register("t", BAD)
        with pytest.raises(duckdb.Error):
            broken.sql(BREAKS).fetchall()
        assert folding.evaluate(number(2)) == 2
    assert not renew_small_duckdb_if_broken()

