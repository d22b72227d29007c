"""PEP 249 connections and cursors to an embedded engine or a server. Parameters become SQL literals.

Timestamps are returned as naive `datetime` in the connection's time zone, truncated to microseconds; `fetch_arrow`
returns them exactly.
"""

from __future__ import annotations

import os
import threading
import zoneinfo
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa

from penstock.common import errors
from penstock.common.closing import Closing
from penstock.common.config import Config, load_config
from penstock.mnode.access.roles import OWNER, Identity
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.admin.engine_lease import EngineLease
from penstock.mnode.write.arrow_schema import create_table
from penstock.shell.api.arrow_input import ArrowData, arrow_tables, quoted_table, spooled
from penstock.shell.api.arrow_values import column_values
from penstock.shell.api.dbapi_errors import (
    ClosedError,
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
    shown_cause,
    translated,
)
from penstock.shell.api.dbapi_types import (
    BINARY,
    DATETIME,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    Date,
    DateFromTicks,
    Description,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
    describe,
)
from penstock.shell.api.interruptible import INTERRUPTS, may_take_long
from penstock.shell.api.parameter_binding import bind, bind_rows
from penstock.shell.api.time_window import TimeWindow
from penstock.sql.dialect.generator import print_sql
from penstock.sql.rows.fitting import marked_as_utc
from penstock.sql.tree.statements import Name

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from penstock.mnode.engine import Engine
    from penstock.shell.flight_sql.client import RemoteEngine, RemoteLease
    from penstock.shell.flight_sql.several_hosts import SeveralHosts

apilevel = "2.0"
threadsafety = 2
paramstyle = "qmark"

IngestMode = Literal["create", "append", "replace", "create_append"]

_NO_ROWS: Iterator[tuple[Any, ...]] = iter(())

_SILENCE_S = 3.0  # of one of several hosts
_REACH_S = 5.0  # one of several hosts


def connect(
    path: str | os.PathLike[str] = "./penstock-data",
    config: Config | str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    user: str | None = None,
    password: str | None = None,
    tls_roots: str | os.PathLike[str] | None = None,
) -> Connection:
    """Returns a connection to the data directory `path`, and starts an engine in this process if none is open.

    Connections to one path share one engine, with the configuration of the first. The engine stops when the last one is
    closed. Raises `DataDirectoryInUseError` if another process has the directory open.

    With `host`, it connects to `penstock serve` on `port` (default `flightPort`), as `user` with `password`.
    `tls_roots` is a PEM file of trusted certificates, and turns TLS on. Only the time zone of the configuration is used
    then. `unix:PATH` is the server's socket (`socketPath`), where the engine's account needs no login.

    Several hosts, `alpha,beta:8816`, are the nodes of a cluster. The connection follows the active node. Statements
    that were refused are repeated there, and so are those without an answer that can safely be repeated: queries, and
    rows with given times. Others raise `NoAnswerError`: it isn't known whether they were executed.

    Raises `UnavailableError` if no server answers, and `UnauthenticatedError` if the login is refused.
    """
    try:
        settings = load_config(config)
        if host is None:
            from penstock.mnode.admin.engine_registry import open_engine  # takes a second, which clients don't wait for

            return Connection(open_engine(Path(path), settings), settings.timezone)
        from penstock.shell.flight_sql.client import RemoteEngine, RemoteLease
        from penstock.shell.flight_sql.several_hosts import SeveralHosts, read_hosts

        roots = _certificates(Path(tls_roots)) if tls_roots is not None else None
        login = (user, password or "") if user is not None else None

        port = port or settings.flight_port
        if host.startswith("unix:") or "," not in host:
            return Connection(RemoteLease(RemoteEngine(host, port, login, roots, settings.timezone)), settings.timezone)

        def connect_to(host: str, port: int) -> RemoteEngine:
            return RemoteEngine(host, port, login, roots, settings.timezone, _REACH_S)

        engine = SeveralHosts(read_hosts(host, port), connect_to, silence_s=_SILENCE_S)
        return Connection(RemoteLease(engine), settings.timezone)
    except errors.PenstockError as error:
        raise translated(error) from shown_cause(error)


class Connection(Closing):
    """A session with an engine. It has a current database, and several threads may use it.

    Transactions aren't supported: every statement is durable when it returns. `commit` does nothing, and `rollback`
    raises NotSupportedError.
    """

    Warning = Warning
    Error = Error
    InterfaceError = InterfaceError
    DatabaseError = DatabaseError
    DataError = DataError
    OperationalError = OperationalError
    IntegrityError = IntegrityError
    InternalError = InternalError
    ProgrammingError = ProgrammingError
    NotSupportedError = NotSupportedError

    def __init__(self, lease: EngineLease | RemoteLease, time_zone: str, identity: Identity = OWNER) -> None:
        self._lease: EngineLease | RemoteLease | None = lease
        self._session = SessionState(time_zone, identity=identity, connection_id=lease.login(identity.name))
        self._lock = threading.Lock()

    @property
    def session(self) -> SessionState:
        """The session's state: current database, time zone, settings."""
        return self._session

    @property
    def is_embedded(self) -> bool:
        """Whether the engine is in this process. Raises `InterfaceError` if the connection is closed."""
        return isinstance(self._open_lease(), EngineLease)

    @property
    def lease(self) -> EngineLease:
        """The connection's hold on its engine. Raises `InterfaceError` if it is closed, and `NotSupportedError` if the
        engine is in another process.
        """
        lease = self._open_lease()
        if not isinstance(lease, EngineLease):
            raise translated(errors.NotSupportedError("this needs an embedded engine, not a server"))
        return lease

    @property
    def executor(self) -> Engine | RemoteEngine | SeveralHosts:
        """Executes the connection's statements. Raises `InterfaceError` if the connection is closed."""
        return self._open_lease().engine

    def _open_lease(self) -> EngineLease | RemoteLease:
        lease = self._lease
        if lease is None:
            raise ClosedError("the connection is closed")
        return lease

    def set_time_zone(self, name: str) -> None:
        """Sets the time zone of times without one, in statements and results: an IANA name. Raises `DataError` for
        other names.
        """
        if name not in zoneinfo.available_timezones():
            raise translated(errors.InvalidValueError(f"unknown time zone {name}"))
        self._open_lease().set_time_zone(name)
        self._session.time_zone = name

    def cursor(self) -> Cursor:
        _ = self._open_lease()
        return Cursor(self)

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> Cursor:
        """Executes the statement and returns a new cursor with its result."""
        return self.cursor().execute(statement, parameters)

    def ingest_lines(
        self, lines: str | bytes | Iterable[str | bytes], *, database: str | None = None, precision: str = "ns"
    ) -> int:
        """Writes lines of InfluxDB's line protocol and returns their number.

        `lines` is text with any number of lines, or an iterable of lines. `precision` is the unit of their timestamps:
        h, m, s, ms, us or ns. Lines without a timestamp get the current time. `database` is the current one by default.
        Super tables, child tables, columns and tags are created as needed. An error in a line, with its number and
        text, refuses all lines. Writing the same lines again changes nothing.
        """
        engine = self.executor
        target = database or self._session.database
        try:
            if target is None:
                raise errors.InvalidStatementError("no database is in use", hint="name one with database=")
            return engine.ingest_lines(_as_bytes(lines), target, precision, self._session)
        except errors.PenstockError as error:
            raise translated(error) from shown_cause(error)

    def time_window(self, database: str | None = None, *, since: str | None = None) -> TimeWindow:
        """Returns a `TimeWindow` with the rows written to a database after `since`; close it after use.

        `since` is a stream cut, such as `last` of another window; None is the beginning. `database` is the current one
        by default. Consecutive windows contain each row exactly once, unless it was written again.
        """
        engine = self.lease.engine
        name = database or self._session.database
        try:
            if name is None:
                raise errors.InvalidStatementError("no database is in use", hint="name one with database=")
            first, last, hold = engine.parts.cuts.hold(name, since)
        except errors.PenstockError as error:
            raise translated(error) from shown_cause(error)
        return TimeWindow(first, last, lambda cut: self.time_window(name, since=cut),
                          lambda: engine.parts.cuts.release(name, hold))

    def cancel(self) -> None:
        """Cancels the running statements of the connection, which raise `CancelledError`. Any thread may call it.

        A cancelled statement has all of its changes, or none.
        """
        self._open_lease().cancel(self._session.connection_id)

    def commit(self) -> None:
        _ = self._open_lease()

    def rollback(self) -> None:
        raise translated(errors.NotSupportedError(
            "transactions are not supported: each statement is durable when it returns"))

    def close(self) -> None:
        """Closes the connection, and stops the engine if it was the last one. May be called twice."""
        with self._lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.logout(self._session.connection_id)
            try:
                lease.release()
            except errors.PenstockError as error:
                raise translated(error) from shown_cause(error)


class Cursor(Closing):
    """Executes statements and returns their rows. Only one thread may use a cursor at a time."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self._result = Result()
        self._rowcount = -1
        self._rows = _NO_ROWS
        self._fetched = 0
        self._closed = False

    @property
    def description(self) -> list[Description] | None:
        """A 7-tuple per result column (name, type, None, bytes, digits, scale, True); None without rows."""
        if not self._result.has_rows:
            return None
        return [describe(column.name, column.type) for column in self._result.columns]

    @property
    def rowcount(self) -> int:
        """Number of rows of the result, or of changed rows; -1 before the first statement."""
        return self._rowcount

    @property
    def rownumber(self) -> int:
        return self._fetched

    @property
    def lag_seconds(self) -> float | None:
        """Maximum age of the rows in seconds, if a standby of a cluster has answered and knows it; otherwise None."""
        return self._result.lag_s

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> Cursor:
        """Executes one statement; `parameters` replace the `?` in it.

        Raises `ProgrammingError` for a wrong number of parameters, and `DataError` for a type without SQL literals.
        """
        self._check_open()
        try:
            text = bind(statement, parameters, self.connection.session.time_zone) if parameters else statement
        except errors.PenstockError as error:
            raise translated(error) from shown_cause(error)
        self._run(text)
        return self

    def executemany(self, statement: str, rows: Sequence[Sequence[object]]) -> Cursor:
        """Executes the statement once per row of parameters. INSERTs of one row are combined."""
        self._check_open()
        changed = 0
        try:
            for text in bind_rows(statement, rows, self.connection.session.time_zone):
                self._run(text)
                changed += self._result.affected
        except errors.PenstockError as error:
            raise translated(error) from shown_cause(error)
        self._rowcount = changed
        return self

    def insert_arrow(self, table: str, rows: ArrowData, first_row: int = 0) -> Cursor:
        """Inserts Arrow data by column names; for a super table also `tbname` and the tags.

        `table` is a name as in SQL, such as `db.meters`. `rows` is a table, a batch, a reader of batches, a pandas data
        frame, or an object with Arrow's C interface. Missing columns keep their values. Timestamps are Arrow
        timestamps, or integers in the database's precision. Timestamps without zone are in the connection's time zone,
        except those from `fetch_arrow`. All rows are checked before any is written; those of a reader batch by batch,
        so that they needn't fit into memory. Errors count rows from `first_row`.
        """
        self._check_open()
        engine = self.connection.executor
        affected = 0
        try:
            for part in arrow_tables(rows):
                affected += engine.insert_arrow(
                    table, part, self.connection.session, first_row=first_row + affected).affected
        except errors.PenstockError as error:
            raise translated(error) from shown_cause(error)
        self._take(Result(affected=affected))
        return self

    def adbc_ingest(
        self,
        table_name: str,
        data: ArrowData,
        mode: IngestMode = "create",
        *,
        catalog_name: str | None = None,
        db_schema_name: str | None = None,
        temporary: bool = False,
        tags: Sequence[str] = (),
    ) -> int:
        """Inserts Arrow data and returns the number of rows, as ADBC cursors do.

        `mode`: `create` creates the table, which must not exist; `append` needs an existing table; `replace` drops it
        first; `create_append` creates it if it doesn't exist. `db_schema_name` is its database, by default the current
        one. A new table has the types of the data, and its first timestamp as key. `tags`, names of columns, make it a
        super table; the column `tbname` names its child tables. A new table is dropped if its first rows don't fit.
        """
        self._check_open()
        try:
            if catalog_name is not None or temporary:
                raise errors.NotSupportedError("there are no catalogs and no temporary tables")
            if mode not in get_args(IngestMode):
                raise errors.InvalidStatementError(f"{mode!r} is not a mode",
                                                   hint=", ".join(get_args(IngestMode)))
            return self._ingest(Name(table_name, db_schema_name), data, mode, tags)
        except errors.PenstockError as error:
            raise translated(error) from shown_cause(error)

    def _ingest(self, table: Name, data: ArrowData, mode: IngestMode, tags: Sequence[str]) -> int:
        name = quoted_table(table.name, table.database)
        if mode == "append":
            return self.insert_arrow(name, data).rowcount
        with spooled(data) as rows:
            create = print_sql(create_table(table, rows, tags))
            return self._create_and_fill(
                name, create, rows.to_reader() if isinstance(data, pa.RecordBatchReader) else rows, mode)

    def _create_and_fill(self, name: str, create: str, rows: ArrowData, mode: IngestMode) -> int:
        exists = False
        if mode == "replace":
            self._run(f"DROP TABLE IF EXISTS {name}")
        try:
            self._run(create)
        except errors.AlreadyExistsError:
            if mode != "create_append":
                raise
            exists = True
        try:
            return self.insert_arrow(name, rows).rowcount
        except errors.PenstockError:
            if not exists:
                self._run(f"DROP TABLE {name}")
            raise

    def fetchone(self) -> tuple[Any, ...] | None:
        self._check_result()
        row = next(self._rows, None)
        self._fetched += row is not None
        return row

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        self._check_result()
        wanted = self.arraysize if size is None else size
        rows = [row for _, row in zip(range(wanted), self._rows, strict=False)]
        self._fetched += len(rows)
        return rows

    def fetchall(self) -> list[tuple[Any, ...]]:
        self._check_result()
        rows = list(self._rows)
        self._fetched += len(rows)
        return rows

    def fetch_arrow(self) -> pa.Table:
        """Returns the whole result, also after other fetches. Timestamps are naive and in UTC."""
        self._check_result()
        return marked_as_utc(self._result.table)

    fetch_arrow_table = fetch_arrow
    """What ADBC's cursors call it."""

    def fetch_df(self) -> pd.DataFrame:
        """Returns the whole result as a pandas data frame, with timestamps as in `fetch_arrow`. Needs pandas."""
        frame: pd.DataFrame = self.fetch_arrow().to_pandas()
        return frame

    def fetch_pl(self) -> pl.DataFrame:
        """Returns the whole result as a Polars data frame, with timestamps as in `fetch_arrow`. Needs polars."""
        import polars

        return polars.from_arrow(self.fetch_arrow())

    def setinputsizes(self, sizes: Sequence[object]) -> None:
        """Does nothing; required by PEP 249."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Does nothing; required by PEP 249."""

    def close(self) -> None:
        self._closed = True
        self._take(Result())

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self

    def __next__(self) -> tuple[Any, ...]:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    def _run(self, statement: str) -> None:
        self._check_open()
        connection = self.connection
        engine, session = connection.executor, connection.session
        try:
            if may_take_long(statement):
                result = INTERRUPTS.during(lambda: engine.execute(statement, session), self.connection.cancel)
            else:
                result = engine.execute(statement, session)
            self._take(result)
        except errors.PenstockError as error:
            self._take(Result())
            raise translated(error) from shown_cause(error)

    def _take(self, result: Result) -> None:
        self._result = result
        self._fetched = 0
        if result.table is None:
            self._rowcount, self._rows = result.affected, _NO_ROWS
        else:
            self._rowcount = result.table.num_rows
            self._rows = _rows(result.table, self.connection.session.time_zone)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the cursor is closed")

    def _check_result(self) -> None:
        self._check_open()
        if not self._result.has_rows:
            raise ClosedError("the statement returned no rows",
                              hint="fetch only after SELECT, SHOW, DESCRIBE or EXPLAIN")


def ingest_lines(
    path_or_connection: str | os.PathLike[str] | Connection,
    lines: str | bytes | Iterable[str | bytes],
    *,
    database: str,
    precision: str = "ns",
) -> int:
    """Writes lines of InfluxDB's line protocol into a data directory or an open connection; see `Connection`."""
    if isinstance(path_or_connection, Connection):
        return path_or_connection.ingest_lines(lines, database=database, precision=precision)
    with connect(path_or_connection) as connection:
        return connection.ingest_lines(lines, database=database, precision=precision)


def _certificates(path: Path) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise errors.NotFoundError(f"cannot read {path}: {error.strerror}") from error


def _as_bytes(lines: str | bytes | Iterable[str | bytes]) -> bytes:
    if isinstance(lines, bytes):
        return lines
    if isinstance(lines, str):
        return lines.encode(errors="surrogatepass")  # what is no text is refused with its line
    single = (line if isinstance(line, bytes) else line.encode(errors="surrogatepass") for line in lines)
    return b"\n".join(line.removesuffix(b"\n") for line in single)


def _rows(table: pa.Table, time_zone: str) -> Iterator[tuple[Any, ...]]:
    """Yields rows batch by batch, so that a client that stops early doesn't pay for all."""
    for batch in table.to_batches(max_chunksize=8192):
        columns = [column_values(column, time_zone) for column in batch.columns]
        yield from zip(*columns, strict=True)


__all__ = [
    "BINARY", "DATETIME", "NUMBER", "ROWID", "STRING", "Binary", "Connection", "Cursor", "DataError", "DatabaseError",
    "Date", "DateFromTicks", "Error", "IntegrityError", "InterfaceError", "InternalError", "NotSupportedError",
    "OperationalError", "ProgrammingError", "Time", "TimeFromTicks", "Timestamp", "TimestampFromTicks", "Warning",
    "apilevel", "connect", "ingest_lines", "paramstyle", "threadsafety",
]
