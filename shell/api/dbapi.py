"""PEP 249 connections and cursors over an engine in this process or a server; parameters become literals of SQL.

Timestamps come out as naive `datetime` in the connection's time zone; what is finer than a microsecond is cut off
there, and exact in `fetch_arrow`.
"""

from __future__ import annotations

import os
import threading
import zoneinfo
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import pyarrow as pa

from penstock.common import errors
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
    from penstock.shell.flight_sql.client import RemoteLease, ServerEngine

apilevel = "2.0"
threadsafety = 2
paramstyle = "qmark"

IngestMode = Literal["create", "append", "replace", "create_append"]

C = TypeVar("C", bound="Connection")

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
    """Returns a connection to the data directory `path`, starting an engine in this process if none is open.

    Connections to one path share one engine, which stops when the last of them is closed; its configuration is
    that of the first. `DataDirectoryInUseError` if another process has the directory open.

    With `host` it is a connection to `penstock serve` there instead: on `port` (`flightPort` if left out), as `user`
    with `password`, and by TLS if `tls_roots` names a PEM file of the certificates to trust. Of the configuration the
    time zone counts then. `unix:PATH` is the server's socket (`socketPath`), where the engine's account needs no login.
    Several hosts, `alpha,beta:8816`, are the nodes of a cluster: the connection is with the active one, also when that
    is another one later. A statement that was refused, or lost and does no harm twice (queries, and rows with times of
    their own), is done there; for others `NoAnswerError` says that nobody knows whether they were.
    `UnavailableError` if nobody answers, `UnauthenticatedError` if the login is refused.
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
        raise translated(error) from error


class Connection:
    """A session with an engine: the current database is per connection. May be used by several threads.

    There are no transactions: `commit` does nothing, since every statement is durable when it returns, and
    `rollback` is refused.
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
    def lease(self) -> EngineLease:
        """The connection's hold on its engine. `InterfaceError` if it is closed, `NotSupportedError` without an engine
        in this process.
        """
        lease = self._open_lease()
        if not isinstance(lease, EngineLease):
            raise translated(errors.NotSupportedError("that takes the engine in this process, not at a server"))
        return lease

    @property
    def executor(self) -> Engine | ServerEngine:
        """Who executes the connection's statements. `InterfaceError` if the connection is closed."""
        return self._open_lease().engine

    def _open_lease(self) -> EngineLease | RemoteLease:
        lease = self._lease
        if lease is None:
            raise ClosedError("the connection is closed")
        return lease

    def set_time_zone(self, name: str) -> None:
        """Makes an IANA name the zone of times without one, in statements and results. `DataError` for other names."""
        if name not in zoneinfo.available_timezones():
            raise translated(errors.InvalidValueError(f"there is no time zone {name}"))
        self._open_lease().set_time_zone(name)
        self._session.time_zone = name

    def cursor(self) -> Cursor:
        _ = self._open_lease()
        return Cursor(self)

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> Cursor:
        """Returns a new cursor that has executed the statement."""
        return self.cursor().execute(statement, parameters)

    def ingest_lines(
        self, lines: str | bytes | Iterable[str | bytes], *, database: str | None = None, precision: str = "ns"
    ) -> int:
        """Writes lines of InfluxDB's line protocol and returns how many there were.

        `lines`: text with any number of lines, or single lines. `precision`: the unit of their timestamps, one of h,
        m, s, ms, us, ns; without a timestamp it is now. `database`: the one in use if left out. Super tables and
        child tables are made, and columns and tags added, as the lines need them. A mistake in any line refuses them
        all, with its number and text; writing the same lines again changes nothing.
        """
        engine = self.executor
        target = database or self._session.database
        try:
            if target is None:
                raise errors.InvalidStatementError("no database is in use", hint="name one with database=")
            return engine.ingest_lines(_as_bytes(lines), target, precision, self._session)
        except errors.PenstockError as error:
            raise translated(error) from error

    def time_window(self, database: str | None = None, *, since: str | None = None) -> TimeWindow:
        """Returns what was written to a database up to now: a `TimeWindow`, to be read and closed.

        `since`: the stream cut that it begins at, such as the `last` of another window; None: at the very beginning.
        `database`: the one in use if left out. Windows that follow each other have each row exactly once, unless it
        was written again.
        """
        engine = self.lease.engine
        name = database or self._session.database
        try:
            if name is None:
                raise errors.InvalidStatementError("no database is in use", hint="name one with database=")
            first, last, hold = engine.parts.cuts.hold(name, since)
        except errors.PenstockError as error:
            raise translated(error) from error
        return TimeWindow(first, last, lambda cut: self.time_window(name, since=cut),
                          lambda: engine.parts.cuts.release(name, hold))

    def cancel(self) -> None:
        """Ends what the connection's statements compute, which raise `CancelledError`; any thread may call it.

        What a statement changes it changes whole or not at all.
        """
        self._open_lease().cancel(self._session.connection_id)

    def commit(self) -> None:
        _ = self._open_lease()

    def rollback(self) -> None:
        raise translated(errors.NotSupportedError("there are no transactions: a statement that returned is durable"))

    def close(self) -> None:
        """Closes the connection; the last one of a data directory stops its engine. Closing twice is allowed."""
        with self._lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.logout(self._session.connection_id)
            try:
                lease.release()
            except errors.PenstockError as error:
                raise translated(error) from error

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Cursor:
    """Executes statements and hands out their rows. One thread at a time."""

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
        """One 7-tuple per result column (name, type, None, bytes, digits, scale, True), or None without rows."""
        if not self._result.has_rows:
            return None
        return [describe(column.name, column.type) for column in self._result.columns]

    @property
    def rowcount(self) -> int:
        """Rows of the result, or rows changed, or -1 before the first statement."""
        return self._rowcount

    @property
    def rownumber(self) -> int:
        return self._fetched

    @property
    def lag_seconds(self) -> float | None:
        """How old the rows may be, if a node of a cluster has answered that isn't the active one; None otherwise, or if
        nobody knows.
        """
        return self._result.lag_s

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> Cursor:
        """Executes one statement; `?` in it are replaced by `parameters`.

        `ProgrammingError` if they are too many or too few, `DataError` if one is of a type without literals.
        """
        self._check_open()
        try:
            text = bind(statement, parameters, self.connection.session.time_zone) if parameters else statement
        except errors.PenstockError as error:
            raise translated(error) from error
        self._run(text)
        return self

    def executemany(self, statement: str, rows: Sequence[Sequence[object]]) -> Cursor:
        """Executes the statement once per row. An INSERT of one row becomes few INSERTs of many."""
        self._check_open()
        changed = 0
        try:
            for text in bind_rows(statement, rows, self.connection.session.time_zone):
                self._run(text)
                changed += self._result.affected
        except errors.PenstockError as error:
            raise translated(error) from error
        self._rowcount = changed
        return self

    def insert_arrow(self, table: str, rows: ArrowData, first_row: int = 0) -> Cursor:
        """Inserts Arrow data: its columns by name; for a super table also `tbname` and tags.

        `table` is a name as in SQL, for example `db.meters`. `rows`: a table, a batch, a reader of batches, or
        whatever has Arrow's C interface or is a pandas data frame. Columns that are missing keep what they have.
        Timestamps may be Arrow timestamps or integers in the database's precision; those without a zone are local times
        of the connection, as naive datetimes are, but for those of `fetch_arrow`, which are known again. All rows are
        checked before any is written; those of a reader piece by piece, so that they needn't fit into memory. Errors
        count rows from `first_row`.
        """
        self._check_open()
        engine = self.connection.executor
        affected = 0
        try:
            for part in arrow_tables(rows):
                affected += engine.insert_arrow(
                    table, part, self.connection.session, first_row=first_row + affected).affected
        except errors.PenstockError as error:
            raise translated(error) from error
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
        """Inserts Arrow data and returns the number of rows, as ADBC's cursors do.

        `mode`: `create` makes the table, which must not exist; `append` needs it; `replace` drops it first;
        `create_append` makes it where it is missing. `db_schema_name`: its database, else the one in use. A table
        that is made has the types of the data, and its first timestamp as key; `tags` (names of columns) make it a
        super table whose children the column `tbname` names. A table is dropped again if its first rows don't fit.
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
            raise translated(error) from error

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
        """Returns the whole result, whatever was fetched before; timestamps are naive and in UTC."""
        self._check_result()
        return marked_as_utc(self._result.table)

    fetch_arrow_table = fetch_arrow
    """What ADBC's cursors call it."""

    def fetch_df(self) -> pd.DataFrame:
        """Returns the whole result as pandas' data frame; timestamps as in `fetch_arrow`. Takes the package pandas."""
        frame: pd.DataFrame = self.fetch_arrow().to_pandas()
        return frame

    def fetch_pl(self) -> pl.DataFrame:
        """Returns the whole result as Polars' data frame; timestamps as in `fetch_arrow`. Takes the package polars."""
        import polars

        return polars.from_arrow(self.fetch_arrow())

    def setinputsizes(self, sizes: Sequence[object]) -> None:
        """Does nothing; PEP 249 wants it."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Does nothing; PEP 249 wants it."""

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

    def __enter__(self) -> Cursor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
            raise translated(error) from error

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
