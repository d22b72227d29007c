"""A computer gives what DuckDB gives for a statement that it sees for the first time, however often it has run it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.streams.failing_functions import SOUND

from penstock.common.clock import ManualClock
from penstock.common.closed_duckdb import DuckdbBounds, closed_duckdb
from penstock.common.errors import InternalError, InvalidValueError
from penstock.common.quantities import MIB
from penstock.planner.task_plans.user_calls import UserCall
from penstock.sql.types import BIGINT, INT
from penstock.tasks.compute import duckdb_computer
from penstock.tasks.compute.duckdb_computer import Computer
from penstock.tasks.compute.function_runtime import UserFunctions

STATEMENTS = (
    "SELECT * FROM rows ORDER BY ALL", "SELECT sum(a) AS s, count(*) AS n FROM rows",
    "SELECT r.a, x.b AS xb FROM rows r LEFT JOIN others x USING (a) ORDER BY ALL",
)
FRESH = duckdb.connect()
TYPES = (pa.int32(), pa.int64(), pa.float64())


@pytest.fixture
def computer() -> Iterator[Computer]:
    with closing(Computer()) as opened:
        yield opened


def tables() -> st.SearchStrategy[pa.Table]:
    """Tables whose columns differ in number, type and order; some are too large to be thought small."""
    columns = st.permutations(["a", "b", "c"]).map(lambda names: [name for name in names if name != "c"] + ["c"])
    return st.builds(
        lambda names, type_, rows, more: pa.table(
            {name: pa.array(range(rows), type_) for name in (names if more else names[:2])}),
        columns, st.sampled_from(TYPES), st.sampled_from([0, 1, 3, 3, 30]), st.booleans())


@given(st.lists(st.tuples(st.sampled_from(STATEMENTS), tables(), tables()), min_size=2, max_size=8))
def test_each_answer_is_that_of_a_new_duckdb(calls: list[tuple[str, pa.Table, pa.Table]]) -> None:
    """Statements, tables and columns change as they like."""
    with pytest.MonkeyPatch.context() as patch, closing(Computer()) as computer, FRESH.cursor() as fresh:
        patch.setattr(duckdb_computer, "_SMALL_ROWS", 10)
        patch.setattr(duckdb_computer, "_PREPARED_MAX", 2)
        for sql, rows, others in calls:
            fresh.register("rows", rows)
            fresh.register("others", others)
            assert computer.table(sql, rows=rows, others=others).equals(fresh.sql(sql).to_arrow_table())


def test_a_statement_is_planned_once(computer: Computer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next table with these columns takes the place of the one before."""
    planned: list[str] = []
    prepare = Computer._prepare
    monkeypatch.setattr(Computer, "_prepare", lambda self, sql: planned.append(sql) or prepare(self, sql))
    for n in range(5):
        assert computer.table("SELECT a + 1 AS b FROM rows", rows=pa.table({"a": [n]})).to_pydict() == {"b": [n + 1]}
    assert len(planned) == 1


def test_a_registered_table_stays_until_the_next(computer: Computer) -> None:
    """Statements that are prepared read the next one."""
    sql = "SELECT rows.a, known.b FROM rows JOIN known USING (a)"
    for b in (1, 2):
        computer.register("known", pa.table({"a": [7], "b": [b]}))
        for _ in range(2):
            assert computer.table(sql, rows=pa.table({"a": [7]})).to_pydict() == {"a": [7], "b": [b]}


def test_a_relation_that_was_large_is_not_the_one_before(
    computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large table that took its place leaves nothing behind."""
    monkeypatch.setattr(duckdb_computer, "_SMALL_ROWS", 1)
    sql = "SELECT count(*) AS n FROM rows"
    computer.register("rows", pa.table({"a": [1]}))
    assert computer.table(sql).to_pydict() == {"n": [1]}
    assert computer.table(sql, rows=pa.table({"a": [1, 2]})).to_pydict() == {"n": [2]}
    with pytest.raises(InternalError):
        computer.table(sql)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[duckdb.DuckDBPyConnection]:
    """The DuckDBs that computers have opened for themselves."""
    found: list[duckdb.DuckDBPyConnection] = []

    def opening(bounds: DuckdbBounds) -> duckdb.DuckDBPyConnection:
        found.append(closed_duckdb(bounds))
        return found[-1]

    monkeypatch.setattr(duckdb_computer, "closed_duckdb", opening)
    return found


def test_tasks_with_few_rows_share_a_duckdb(opened: list[duckdb.DuckDBPyConnection]) -> None:
    """A hundred streams would have two hundred; what one registers and prepares the others don't see."""
    with ExitStack() as stack:
        for n in range(8):
            computer = stack.enter_context(closing(Computer()))
            computer.register("known", pa.table({"a": [1], "b": [n]}))
            found = computer.table("SELECT b FROM rows JOIN known USING (a)", rows=pa.table({"a": [1]}))
            assert found.to_pydict() == {"b": [n]}
    assert not opened


def test_a_task_with_many_rows_has_a_duckdb_of_its_own(
    computer: Computer, opened: list[duckdb.DuckDBPyConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From then on, with what was registered before."""
    monkeypatch.setattr(duckdb_computer, "_SMALL_ROWS", 1)
    sql = "SELECT b, count(*) AS n FROM rows JOIN known USING (a) GROUP BY b"
    computer.register("known", pa.table({"a": [1], "b": [7]}))
    for rows in (1, 3, 1):
        assert computer.table(sql, rows=pa.table({"a": [1] * rows})).to_pydict() == {"b": [7], "n": [rows]}
    assert len(opened) == 1
    with closing(Computer()) as other:
        other.register("known", pa.table({"a": [1, 2], "b": [7, 8]}))
        assert other.table(sql, rows=pa.table({"a": [2]})).to_pydict() == {"b": [8], "n": [1]}
    assert len(opened) == 2


def test_what_is_computed_row_by_row_needs_no_duckdb_of_its_own(
    computer: Computer, opened: list[duckdb.DuckDBPyConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows they are; what fails says so as ever."""
    monkeypatch.setattr(duckdb_computer, "_SMALL_ROWS", 1)
    schema = pa.schema([("b", pa.int64())])
    for rows in (1, 5, 1):
        found = computer.run_by_row("SELECT a + 1 AS b FROM rows", schema, rows=pa.table({"a": [*range(rows)]}))
        assert found.column(0).to_pylist() == [*range(1, rows + 1)]
    assert not opened
    with pytest.raises(InvalidValueError):
        computer.run_by_row("SELECT a::BIGINT FROM rows", schema, rows=pa.table({"a": ["1", "x"]}))
    with closed_duckdb(DuckdbBounds(2 * MIB)) as small:
        monkeypatch.setattr(duckdb_computer, "small_duckdb", small.cursor)
        with closing(Computer()) as other:
            sql = "SELECT count(DISTINCT md5(r::VARCHAR)) AS n FROM rows, range(50000) t(r) GROUP BY a"
            assert other.run_by_row(sql, schema, rows=pa.table({"a": [1, 2]})).column(0).to_pylist() == [50_000] * 2
    assert len(opened) == 1


def test_who_finds_no_memory_beside_others_has_its_own(
    computer: Computer, opened: list[duckdb.DuckDBPyConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows may be long."""
    sql = "SELECT count(DISTINCT md5(r::VARCHAR)) AS n FROM rows, range(50000) t(r)"
    with closed_duckdb(DuckdbBounds(2 * MIB)) as small:
        monkeypatch.setattr(duckdb_computer, "small_duckdb", small.cursor)
        for _ in range(2):
            assert computer.table(sql, rows=pa.table({"a": [1]})).to_pydict() == {"n": [50_000]}
    assert len(opened) == 1


def test_values_are_given_by_name(computer: Computer) -> None:
    """Each time others."""
    for low in (1, 2):
        found = computer.table("SELECT a FROM rows WHERE a > $low", {"low": low}, rows=pa.table({"a": [1, 2, 3]}))
        assert found.to_pydict() == {"a": list(range(low + 1, 4))}


def test_a_failing_row_does_not_spoil_the_statement(computer: Computer) -> None:
    """The error names the row as the cause, and the next rows are computed."""
    sql = "SELECT a::INT AS a FROM rows"
    for _ in range(2):
        with pytest.raises(InvalidValueError):
            computer.table(sql, rows=pa.table({"a": ["x"]}))
        assert computer.table(sql, rows=pa.table({"a": ["1"]})).to_pydict() == {"a": [1]}


def test_a_relation_that_is_not_given_is_a_defect(computer: Computer) -> None:
    """Not a fault of rows, which would be left out."""
    sql = "SELECT * FROM rows"
    with pytest.raises(InternalError):
        computer.table(sql)
    computer.table(sql, rows=pa.table({"a": [1]}))
    with pytest.raises(InternalError):
        computer.table(sql)


def test_users_functions_are_asked_each_time(tmp_path: Path) -> None:
    """Of constants, too: what a function says may change."""
    call = UserCall("scalar", SOUND, (BIGINT,), INT)
    functions = UserFunctions([call], tmp_path, ManualClock(), strict=False)
    with closing(Computer(functions)) as computer:
        for times in (1, 2, 3):
            computer.table(f'SELECT "{call.name}"(5) AS five FROM rows', rows=pa.table({"a": [1]}))
            assert functions.times_called == times
