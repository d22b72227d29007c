"""PEP 249: connections, cursors, parameters, values and errors, over a real engine."""

from __future__ import annotations

import datetime as dt
import logging
import subprocess
import sys
import traceback
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.common.errors import (
    DataDirectoryInUseError,
    InternalError,
    InvalidStatementError,
    InvalidValueError,
    NotFoundError,
    PenstockError,
    SqlSyntaxError,
)
from penstock.mnode.admin.engine_registry import open_engine
from penstock.mnode.engine import Engine
from penstock.shell.api import dbapi
from penstock.shell.api.parameter_binding import bind, bind_rows, literal
from penstock.sql.dialect.parser import parse_one
from penstock.sql.tree.statements import Select

CONFIG = {"timezone": "UTC"}


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[dbapi.Connection]:
    with penstock.connect(str(tmp_path), CONFIG) as opened:
        opened.execute("CREATE DATABASE d VGROUPS 1 KEEP 36500")
        opened.execute("USE d")
        yield opened


def test_module_says_what_pep_249_wants() -> None:
    """The module's constants are there, on the package too."""
    assert (dbapi.apilevel, dbapi.threadsafety, dbapi.paramstyle) == ("2.0", 2, "qmark")
    assert (penstock.apilevel, penstock.threadsafety, penstock.paramstyle) == ("2.0", 2, "qmark")


def test_rows_come_one_by_one_in_parts_and_all(connection: dbapi.Connection) -> None:
    """fetchone, fetchmany, fetchall and iteration share one position in the result."""
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE t (ts timestamp, v int)")
    assert cursor.description is None
    cursor.executemany("INSERT INTO t VALUES (?, ?)", [(1_700_000_000_000 + i, i) for i in range(10)])
    assert cursor.rowcount == 10
    cursor.execute("SELECT v FROM t ORDER BY ts")
    assert cursor.rowcount == 10
    assert cursor.fetchone() == (0,)
    assert cursor.fetchmany() == [(1,)]
    assert cursor.fetchmany(3) == [(2,), (3,), (4,)]
    assert next(cursor) == (5,)
    assert cursor.rownumber == 6
    assert list(cursor) == [(6,), (7,), (8,), (9,)]
    assert cursor.fetchone() is None
    assert cursor.fetchall() == []
    assert cursor.fetch_arrow().num_rows == 10


def test_description_names_and_types_columns(connection: dbapi.Connection) -> None:
    """Seven fields per column; type codes compare with the type objects."""
    cursor = connection.execute("SELECT 'x' AS s, 1.5 AS d, now() AS t")
    assert cursor.description is not None
    names = [column[0] for column in cursor.description]
    types = [column[1] for column in cursor.description]
    assert names == ["s", "d", "t"]
    assert types == [dbapi.STRING, dbapi.NUMBER, dbapi.DATETIME]
    assert types[0] != dbapi.NUMBER
    assert all(len(column) == 7 for column in cursor.description)


def test_values_of_every_type_come_back(connection: dbapi.Connection) -> None:
    """What is bound as a parameter is read back as the same Python value."""
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE t (ts timestamp, b bool, i bigint, u bigint unsigned, f double, s varchar(40), "
                   "n nchar(20), x varbinary(8), d decimal(10,2))")
    when = dt.datetime(2024, 2, 29, 12, 30, 15, 123000)
    row = (when, True, -(2**63), 2**64 - 1, 0.1, "it's \\ \"q\" ? `b`\n", "Öl 🛢", b"\x00\xff'", Decimal("-12.34"))
    cursor.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    assert cursor.execute("SELECT * FROM t").fetchall() == [row]
    cursor.execute("SELECT count(*) FROM t WHERE s = ? AND i = ?", (row[5], np.int64(row[2])))
    assert cursor.fetchall() == [(1,)]
    zoned = when.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))
    cursor.execute("INSERT INTO t (ts, i) VALUES (?, ?)", (zoned, None))
    assert cursor.execute("SELECT ts, i FROM t ORDER BY ts").fetchone() == (when - dt.timedelta(hours=2), None)


def test_values_of_duckdbs_types_come_as_pythons(connection: dbapi.Connection) -> None:
    """What Python has no value for comes as text, and leaves the others as they are."""
    cursor = connection.cursor()
    cursor.execute("SELECT d, [1] l, {'a': 1} s FROM (SELECT date '2024-02-29' d UNION ALL SELECT date '5000000-01-01' "
                   "UNION ALL SELECT NULL)")
    rows = sorted(cursor.fetchall(), key=str)
    assert rows == [("5000000-01-01", [1], {"a": 1}), (None, [1], {"a": 1}), (dt.date(2024, 2, 29), [1], {"a": 1})]
    assert [column[1] for column in cursor.description or ()] == ["DATE", "INTEGER[]", "STRUCT(a INTEGER)"]
    assert dbapi.DATETIME == "DATE"


def test_timestamps_follow_the_time_zone(tmp_path: Path) -> None:
    """Naive datetimes are local times of the connection's zone, in and out; Arrow stays UTC and exact."""
    with penstock.connect(str(tmp_path), {"timezone": "Asia/Kolkata"}) as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE DATABASE d PRECISION 'ns' KEEP 36500")
        cursor.execute("CREATE TABLE d.t (ts timestamp, v int)")
        cursor.execute("INSERT INTO d.t VALUES ('2024-01-01 05:30:00.123456789', 1)")
        assert cursor.execute("SELECT ts FROM d.t").fetchone() == (dt.datetime(2024, 1, 1, 5, 30, 0, 123456),)
        exact = cursor.fetch_arrow().column("ts").cast(pa.int64()).to_pylist()
        assert exact == [1_704_067_200_123_456_789]


def test_parameters_are_only_where_they_are_meant() -> None:
    """Question marks in strings, names and comments are text; the number of parameters must fit."""
    text = "SELECT '?', \"?\", `?`, ? -- ?\n, /* ? */ ?"
    assert bind(text, (1, "a'b")) == "SELECT '?', \"?\", `?`, 1 -- ?\n, /* ? */ 'a\\'b'"
    assert bind("SELECT '%s', 5 % ?, '?%'", ("%d",)) == "SELECT '%s', 5 % '%d', '?%'"
    assert bind("SELECT ?, ?, ?", (np.float64(1.5), np.int8(3), True)) == "SELECT 1.5, 3, true"
    with pytest.raises(InvalidStatementError, match="2 parameters were given, the statement has 1"):
        bind("SELECT ?", (1, 2))
    with pytest.raises(InvalidStatementError, match="more than 1 parameters"):
        bind("SELECT ?, ?", (1,))
    with pytest.raises(InvalidValueError):
        literal(float("nan"))
    with pytest.raises(InvalidValueError):
        literal(object())


def test_wrong_parameters_are_errors_of_the_interface(connection: dbapi.Connection) -> None:
    """Too many or too few parameters are a ProgrammingError, one that no literal can hold is a DataError."""
    cursor = connection.cursor()
    with pytest.raises(penstock.ProgrammingError, match="2 parameters were given"):
        cursor.execute("SELECT ?", (1, 2))
    with pytest.raises(penstock.ProgrammingError, match="more than 1 parameters"):
        cursor.executemany("INSERT INTO t VALUES (?, ?)", [(1,)])
    with pytest.raises(penstock.DataError, match="a time cannot be a parameter"):
        cursor.execute("SELECT ?", (dt.time(1),))


def test_results_come_as_data_frames(connection: dbapi.Connection) -> None:
    """Arrow, pandas and Polars get the same whole result, whatever was fetched before."""
    cursor = connection.execute("SELECT 1 AS a, 'x' AS b UNION ALL SELECT 2, 'y'")
    cursor.fetchone()
    rows = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert cursor.fetch_arrow_table().to_pylist() == rows
    assert cursor.fetch_df().to_dict("records") == rows
    assert cursor.fetch_pl().to_dicts() == rows


@pytest.mark.filterwarnings("ignore:pandas only supports SQLAlchemy")
def test_data_frames_read_over_the_interface(connection: dbapi.Connection) -> None:
    """What pandas and Polars do with drivers that they don't know works."""
    query = "SELECT 1 AS a, 'x' AS b, cast('2024-01-01' AS timestamp) AS c"
    row = {"a": 1, "b": "x", "c": dt.datetime(2024, 1, 1)}
    assert pd.read_sql(query, connection).to_dict("records") == [row]  # type: ignore[call-overload]
    assert polars.read_database(query, connection).to_dicts() == [row]


PARAMETERS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.datetimes() | st.binary()
SOME_OF_ONE_TYPE = st.sampled_from([st.integers(), st.floats(allow_nan=False, allow_infinity=False), PARAMETERS])


ROWS_OF_PARAMETERS = st.lists(SOME_OF_ONE_TYPE, min_size=1, max_size=3).flatmap(
    lambda kinds: st.lists(st.tuples(*kinds), max_size=9))


@given(ROWS_OF_PARAMETERS, st.sampled_from([2, 2, 3]))
def test_rows_are_bound_as_one_by_one(rows: list[tuple[Any, ...]], marks: int) -> None:
    """An INSERT of many rows has the literals of each, and the same errors."""
    row = f"({', '.join('?' * marks)}, '?%')"

    def outcome(make: Any) -> Any:
        try:
            return make()
        except PenstockError as error:
            return type(error)

    one_by_one = outcome(lambda: [f"INSERT INTO t VALUES {''.join(bind(row, each) for each in rows)}"] if rows else [])
    assert outcome(lambda: list(bind_rows(f"INSERT INTO t VALUES {row}", rows))) == one_by_one


@given(st.text(max_size=30))
def test_any_text_survives_as_a_literal(text: str) -> None:
    """Whatever a string holds, its literal parses as one string with that value."""
    statement = parse_one(f"SELECT {literal(text)}")
    assert isinstance(statement, Select)
    assert statement.items[0].expression.this == text


def test_executemany_makes_few_statements(connection: dbapi.Connection) -> None:
    """Many rows of one INSERT go in as one statement, so a mistake in one of them writes none."""
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE t (ts timestamp, v tinyint)")
    rows: list[tuple[Any, ...]] = [(1_700_000_000_000 + i, 1) for i in range(100)]
    with pytest.raises(dbapi.DataError):
        cursor.executemany("INSERT INTO t (ts, v) VALUES (?, ?)", [*rows, (1_700_000_000_200, 1000)])
    assert cursor.execute("SELECT count(*) FROM t").fetchone() == (0,)
    cursor.executemany("INSERT INTO t (ts, v) VALUES (?, ?)", rows)
    cursor.executemany("DELETE FROM t WHERE ts = ?", [(row[0],) for row in rows[:5]])
    assert cursor.execute("SELECT count(*) FROM t").fetchone() == (95,)


def test_arrow_goes_in_and_out(connection: dbapi.Connection) -> None:
    """An Arrow table that was inserted comes back equal."""
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE t (ts timestamp, v double)")
    rows = pa.table({"ts": pa.array([1_700_000_000_000, 1_700_000_000_001], pa.timestamp("ms")), "v": [1.5, None]})
    assert cursor.insert_arrow("t", rows).rowcount == 2
    assert cursor.execute("SELECT * FROM t ORDER BY ts").fetch_arrow() == rows


def test_errors_are_in_both_hierarchies(connection: dbapi.Connection) -> None:
    """Each error is a PenstockError with its code and position, and the PEP 249 class for its kind."""
    expected: list[tuple[str, type[dbapi.Error], int | None]] = [
        ("SELEKT 1", dbapi.ProgrammingError, 0x2600), ("SELECT * FROM nosuch", dbapi.ProgrammingError, 0x2603),
        ("CREATE DATABASE d", dbapi.ProgrammingError, 0x0381), ("SHOW TOPICS", dbapi.NotSupportedError, None),
        ("DROP STREAM nosuch", dbapi.ProgrammingError, 0x03F1),
    ]
    for statement, kind, code in expected:
        with pytest.raises(kind) as caught:
            connection.execute(statement)
        assert isinstance(caught.value, PenstockError)
        assert isinstance(caught.value, dbapi.DatabaseError)
        assert caught.value.code == code
    with pytest.raises(NotFoundError):
        connection.execute("SELECT * FROM nosuch")
    assert connection.ProgrammingError is dbapi.ProgrammingError


def test_errors_stand_alone_unless_they_are_defects(
    connection: dbapi.Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was wrong is told once; where in the code that was found is for the log. A defect tells all."""
    monkeypatch.setattr(logging.getLogger("penstock"), "propagate", True)
    with caplog.at_level(logging.DEBUG, "penstock.shell.api"), pytest.raises(dbapi.ProgrammingError) as caught:
        connection.execute("SELEKT 1")
    assert "The above exception" not in "".join(traceback.format_exception(caught.value))
    record = next(record for record in caplog.records if record.name == "penstock.shell.api.dbapi_errors")
    assert record.levelno == logging.DEBUG
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], SqlSyntaxError)

    def broken(*_: object) -> None:
        raise InternalError("a wheel came off")

    monkeypatch.setattr(Engine, "execute", broken)
    with pytest.raises(dbapi.InternalError) as defect:
        connection.execute("SELECT 1")
    assert "in broken" in "".join(traceback.format_exception(defect.value))


def test_closed_things_say_so(tmp_path: Path) -> None:
    """Closed connections and cursors, and statements without rows, raise InterfaceError; closing twice is fine."""
    connection = penstock.connect(str(tmp_path), CONFIG)
    cursor = connection.cursor()
    with pytest.raises(dbapi.InterfaceError):
        cursor.fetchall()
    connection.commit()
    with pytest.raises(dbapi.NotSupportedError):
        connection.rollback()
    other = connection.cursor()
    other.close()
    with pytest.raises(dbapi.InterfaceError):
        other.execute("SELECT 1")
    connection.close()
    connection.close()
    with pytest.raises(dbapi.InterfaceError):
        cursor.execute("SELECT 1")
    with pytest.raises(dbapi.InterfaceError):
        connection.cursor()


def test_connections_of_a_process_share_the_engine(tmp_path: Path) -> None:
    """The second connection sees the first one's tables, has its own database, and keeps the engine open."""
    first = penstock.connect(str(tmp_path), CONFIG)
    second = penstock.connect(str(tmp_path / "." / ""), CONFIG)
    assert first.lease.engine is second.lease.engine
    first.execute("CREATE DATABASE d VGROUPS 1")
    first.execute("USE d")
    assert second.execute("SELECT database()").fetchone() == (None,)
    first.close()
    assert second.execute("SHOW USER DATABASES").fetchall() == [("d",)]
    engine = second.lease.engine
    second.close()
    with penstock.connect(str(tmp_path), CONFIG) as third:
        assert third.lease.engine is not engine


def test_connections_and_their_statements_are_listed(connection: dbapi.Connection) -> None:
    """perf_connections lists each connection while it is open, SHOW QUERIES the statements that run."""
    path = connection.lease.engine.paths.root
    with penstock.connect(str(path), CONFIG):
        assert len(connection.execute("SELECT * FROM performance_schema.perf_connections").fetchall()) == 2
    assert len(connection.execute("SELECT * FROM performance_schema.perf_connections").fetchall()) == 1
    running = connection.execute("SHOW QUERIES").fetchall()
    assert [row[4] for row in running] == ["SHOW QUERIES"]


def test_another_process_is_told_that_the_directory_is_in_use(tmp_path: Path) -> None:
    """A second process gets DataDirectoryInUseError, and can open it after the first has closed."""
    code = ("import sys, penstock\n"
            "try: penstock.connect(sys.argv[1])\n"
            "except penstock.shell.api.dbapi.OperationalError as error: print(type(error).__name__)\n")
    lease = open_engine(tmp_path, penstock.shell.api.dbapi.load_config(CONFIG))
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == DataDirectoryInUseError.__name__
    lease.release()
    penstock.connect(str(tmp_path), CONFIG).close()


def test_a_newer_data_directory_is_refused(tmp_path: Path) -> None:
    """A directory that a later version wrote is not opened, and not locked for ever either."""
    penstock.connect(str(tmp_path), CONFIG).close()
    (tmp_path / "FORMAT").write_text("99\n")
    for _ in range(2):
        with pytest.raises(dbapi.OperationalError, match="format 99"):
            penstock.connect(str(tmp_path), CONFIG)
