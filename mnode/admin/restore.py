"""Brings a dump into an engine: databases, rows, functions, streams; counts and checksums are compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import lt
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.common.errors import (
    AlreadyExistsError,
    CorruptionError,
    InvalidStatementError,
    NotFoundError,
    PenstockError,
    UserFunctionError,
)
from penstock.common.private import make_private, write_private
from penstock.common.suggestions import did_you_mean
from penstock.mnode.access.session import SessionState
from penstock.mnode.admin.dump import digest
from penstock.mnode.admin.dump_manifest import (
    DumpDatabase,
    DumpFile,
    DumpFunction,
    DumpIngest,
    DumpManifest,
    DumpStream,
    DumpTable,
    read_manifest,
)
from penstock.mnode.catalog.catalog_records import AskedStream, ConnectionRecord, PauseCause
from penstock.mnode.catalog.name_lookup import require_database
from penstock.mnode.coordinator.task_settings import functions_directory
from penstock.mnode.engine import Engine
from penstock.mnode.show.show_statements import create_database_statement
from penstock.sql.dialect.create_statements import table_statement
from penstock.sql.dialect.generator import print_sql
from penstock.sql.dialect.parser import parse_database_options, parse_one
from penstock.sql.dialect.renaming import with_databases
from penstock.sql.dialect.stream_options import altered
from penstock.sql.rows.fitting import marked_as_utc
from penstock.sql.schema import Database, RestoredFrom, Table, TagValue, View
from penstock.sql.time_bounds import oldest_allowed
from penstock.sql.tree.expression_nodes import quote_identifier
from penstock.sql.tree.statements import CreateDatabase, CreateStream, StreamOptions
from penstock.tasks.compute.function_loader import load
from penstock.wal.record import TUID_COLUMN

PIECE_ROWS = 1 << 18
_CHILDREN_AT_ONCE = 10_000
_TBNAME = "tbname"
_UID_MAX = 1 << 48
_PAUSED = ("restored: it would send to the same place as the stream that was dumped, if that one still runs; "
           "RESUME STREAM when it doesn't")
_INGEST_PAUSED = ("restored: it would read the same messages as the ingest that was dumped, if that one still runs; "
                  "RESUME INGEST when it doesn't")

Advanced = Callable[[str, int], None]
"""(what is being read, how many of its rows or bytes have been since the last call)"""


@dataclass(slots=True)
class RestoreReport:
    """What a restore did. `expired`: rows that KEEP doesn't allow any more. `problems`: by view, function or
    stream, why it could not be restored.
    """

    rows: int = 0
    expired: int = 0
    databases: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


class Restore:
    """One dump on its way into an engine. Construct, `verify`, `check`, `run`; nothing changes before `run`."""

    def __init__(self, directory: Path, renames: Mapping[str, str] | None = None, *, resume: bool = False) -> None:
        """`renames`: new names of databases by those in the dump. `resume`: tables that are there already, and are as
        in the dump, are filled again. Raises NotFoundError, CorruptionError or InvalidStatementError.
        """
        self.manifest: DumpManifest = read_manifest(directory)
        self._directory = directory
        self._renames = dict(renames or {})
        self._resume = resume
        names = [database.name for database in self.manifest.databases]
        for old in self._renames:
            if old not in names:
                raise NotFoundError(f"the dump has no database {old}", hint=did_you_mean(old, names))
        if len({self.new_name(name) for name in names}) < len(names):
            raise InvalidStatementError("two databases would get the same name", hint="choose others with --rename")

    def new_name(self, database: str) -> str:
        """Returns the name that a database of the dump gets."""
        return self._renames.get(database, database)

    def verify(self, advanced: Advanced) -> None:
        """Reads every file and compares sizes and checksums. Raises CorruptionError that names the file."""
        for file in self.manifest.files():
            path = self._directory / file.path
            hint = "the dump is damaged: copy this file again, or dump again"
            try:
                found = digest(path)
            except OSError as error:
                raise CorruptionError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
            if found != (file.size, file.sha256):
                raise CorruptionError(f"{path} was changed after the dump: its checksum or size differs", hint=hint)
            advanced(file.path, file.size)

    def check(self, databases: Collection[str], streams: Collection[str]) -> None:
        """Raises AlreadyExistsError if names are taken; `databases` and `streams` are those that are there."""
        if self._resume:
            return
        for database in self.manifest.databases:
            name = self.new_name(database.name)
            if name in databases:
                raise AlreadyExistsError(
                    f"database {name} exists already",
                    hint=f"--rename {database.name}:another_name; or, if an earlier restore of this dump was "
                         "interrupted, --resume")
        taken = next((stream.name for stream in self.manifest.streams if stream.name in streams), None)
        if taken is not None:
            raise AlreadyExistsError(f"stream {taken} exists already",
                                     hint="drop it first, or restore without streams: --no-streams")

    def run(self, engine: Engine, session: SessionState, advanced: Advanced, *, streams: bool = True) -> RestoreReport:
        """Restores everything into an engine whose streams don't run (disableStream); they start with its next start.

        What of functions and streams can't be is told in the report. Raises PenstockErrors for databases.
        """
        report = RestoreReport()
        for database in self.manifest.databases:
            _DatabaseRestore(engine, session, self._directory, database, self.new_name(database.name),
                             resume=self._resume, report=report, advanced=advanced).run()
        for database in self.manifest.databases:
            for view in database.views:
                with _noted(report, f"view {self.new_name(database.name)}.{view.name}"):
                    self._restore_view(engine, self.new_name(database.name), view)
        if streams:
            for function in self.manifest.functions:
                with _noted(report, f"function {function.name}"):
                    self._restore_function(engine, function)
                    report.functions.append(function.name)
            for record in self.manifest.connections:
                with _noted(report, f"connection {record.connection.name}"):
                    self._restore_connection(engine, record)
            for ingest in self.manifest.ingests:
                with _noted(report, f"ingest {ingest.name}"):
                    self._restore_ingest(engine, ingest)
            for stream in self.manifest.streams:
                with _noted(report, f"stream {stream.name}"):
                    self._restore_stream(engine, stream)
                    report.streams.append(stream.name)
        return report

    # --- functions and streams ---------------------------------------------------------------------------------

    def _restore_function(self, engine: Engine, dumped: DumpFunction) -> None:
        function = dumped.function
        directory = functions_directory(engine.config, engine.paths)
        if dumped.code is not None:
            source = self._directory / dumped.code.path
            target = directory / Path(dumped.code.path).relative_to("functions")
            if target.exists() and digest(target) != (dumped.code.size, dumped.code.sha256):
                raise AlreadyExistsError(f"{target} exists and has other code", hint="compare both, and keep one")
            make_private(target.parent)
            write_private(target, source.read_bytes())
        known = engine.catalog.function(function.name)
        if known is not None:
            if replace(known, uid=0, create_time_ms=0) != replace(function, uid=0, create_time_ms=0):
                raise AlreadyExistsError(f"function {function.name} exists already and is another one",
                                         hint="drop one of both")
            return
        try:
            load(replace(function, uid=0), directory)
        except UserFunctionError as error:
            raise UserFunctionError(
                error.message, hint=f"bring its code into {directory}, and CREATE FUNCTION") from error
        engine.catalog.functions.create(replace(function, uid=0), replacing=False)

    def _restore_connection(self, engine: Engine, dumped: ConnectionRecord) -> None:
        name = dumped.connection.name
        known = engine.catalog.connections.named(name)
        if known is None:
            engine.catalog.connections.put(dumped)
        elif replace(known.connection, version=dumped.connection.version) != dumped.connection:
            raise AlreadyExistsError(f"connection {name} exists already with other options, and keeps them")

    def _restore_ingest(self, engine: Engine, dumped: DumpIngest) -> None:
        record = dumped.record
        text = with_databases(record.text, self._renames)
        existing = engine.catalog.ingests.named(record.name)
        if existing is not None and existing.text == text and self._resume:
            return
        restored = replace(
            record, text=text, database=None if record.database is None else self.new_name(record.database),
            target_uid=self._target(engine, dumped.target).uid, attempt=0,
            dlq=None if record.dlq is None else (self.new_name(record.dlq[0]), record.dlq[1]))
        if record.wanted == "running":
            restored = replace(restored, wanted="paused", wanted_reason=_INGEST_PAUSED)
        engine.catalog.ingests.create(restored)

    def _restore_view(self, engine: Engine, database: str, dumped: View) -> None:
        """Makes a view whatever it reads, which may come later. It belongs to who needs no login."""
        engine.catalog.schema.put_view(View(
            0, database, dumped.name, with_databases(dumped.text, self._renames), dumped.columns, dumped.time_zone,
            invoker=dumped.invoker, create_time_ms=dumped.create_time_ms))

    def _target(self, engine: Engine, dumped: tuple[str, str]) -> Table:
        database, name = dumped
        table = engine.catalog.table(self.new_name(database), name)
        if table is None:
            raise NotFoundError(f"the table {database}.{name}, which it writes into, is not in the dump")
        return table

    def _restore_stream(self, engine: Engine, dumped: DumpStream) -> None:
        record, asked = dumped.record, dumped.record.asked
        asked = replace(asked, text=with_databases(asked.text, self._renames),
                        database=None if asked.database is None else self.new_name(asked.database))
        asked = replace(asked, text=restored_text(asked, leaves=dumped.target is None))
        existing = engine.catalog.streams.named(record.name)
        if existing is not None and existing.asked.text == asked.text and self._resume:
            return
        record = replace(record, asked=asked, start_cut=(), attempt=0, last_checkpoint_id=0, unlike=None)
        statement = _statement(asked.text)
        if record.wanted == "running" and (statement.target.external is not None or statement.notify is not None):
            record = replace(record, wanted="paused", pause=PauseCause(_PAUSED))
        if dumped.target is not None:
            record = replace(record, target_uid=self._target(engine, dumped.target).uid)
        engine.streams.creation.restore(record)


def restored_text(asked: AskedStream, *, leaves: bool) -> str:
    """Returns a stream's statement such that it computes the rows that are there, too, where it can.

    Streams by the clock, or by when rows arrive, have no history: they stay as they are. Those whose results leave
    Penstock must not send everything once more.
    """
    statement = _statement(asked.text)
    options = statement.options
    by_event_time = (options.time or asked.defaults.clock) == "event"
    if leaves:
        return altered(
            statement, StreamOptions() if options.fill_history is None else StreamOptions(fill_history=False))
    by_clock = statement.calculation is not None and statement.calculation.period is not None
    if (by_clock or options.trigger == "force_window_close"
            or (statement.select.window is not None and not by_event_time)):
        return altered(statement, StreamOptions())
    return altered(statement, StreamOptions(fill_history=True))


def _statement(text: str) -> CreateStream:
    statement = parse_one(text)
    assert isinstance(statement, CreateStream)
    return statement


@contextmanager
def _noted(report: RestoreReport, what: str) -> Iterator[None]:
    """Takes an error down as a problem of the report, so that what else there is can be restored."""
    try:
        yield
    except PenstockError as error:
        report.problems[what] = str(error)


class _DatabaseRestore:
    """One database on its way."""

    def __init__(
        self, engine: Engine, session: SessionState, directory: Path, dumped: DumpDatabase, name: str, *,
        resume: bool, report: RestoreReport, advanced: Advanced,
    ) -> None:
        self._engine = engine
        self._session = session
        self._directory = directory
        self._dumped = dumped
        self._name = name
        self._resume = resume
        self._report = report
        self._advanced = advanced
        self._shift = 0  # of uids of child tables
        self._reserved = range(0)
        self._given: set[int] = set()  # of those, to child tables that there were before

    def run(self) -> None:
        database = self._create()
        self._session.database = self._name
        for dumped in self._dumped.tables:
            table = self._create_table(dumped)
            self._create_children(table, dumped)
            self._fill(database, table, dumped)
        self._report.databases.append(self._name)

    def _create(self) -> Database:
        statement = CreateDatabase(self._name, parse_database_options(self._dumped.options))
        if not (self._resume and self._engine.catalog.database(self._name) is not None):
            self._engine.execute(print_sql(statement), self._session)
        database = require_database(self._name, self._engine.catalog)
        if create_database_statement(database) != statement:
            raise AlreadyExistsError(f"database {self._name} exists with other options than the dumped one",
                                     hint="choose another name with --rename")
        self._find_origin(database)
        return database

    def _find_origin(self, database: Database) -> None:
        """Has uids reserved for a new database, and finds out which are free in one that is there already."""
        catalog, dumped = self._engine.catalog, self._dumped
        before = dumped.origin or RestoredFrom(dumped.name, 0)
        tables = [*catalog.tables(self._name, "super"), *catalog.tables(self._name, "normal")]
        origin = database.origin
        if origin is None and not tables:
            origin = catalog.schema.set_origin(self._name, before, _checked(dumped.uids, before.shift))
        if origin is not None and origin.uids is not None:
            self._shift = origin.shift - before.shift
            self._reserved = range(origin.uids[0], origin.uids[1] + 1)
            self._given = {child.uid for table in tables if table.kind == "super"
                           for child in catalog.children(table.uid)}

    def _create_table(self, dumped: DumpTable) -> Table:
        table = self._engine.catalog.table(self._name, dumped.name)
        if table is None:
            self._engine.execute(dumped.statement, self._session)
            table = self._engine.catalog.table(self._name, dumped.name)
        if table is None or table_statement(table) != parse_one(dumped.statement):
            raise AlreadyExistsError(f"table {self._name}.{dumped.name} exists and differs from the dumped table",
                                     hint="choose another name for the database with --rename")
        return table

    def _create_children(self, table: Table, dumped: DumpTable) -> None:
        if dumped.children is None:
            return
        for batch in self._batches(dumped.children, _CHILDREN_AT_ONCE):
            names = batch.column(_TBNAME).to_pylist()
            columns = [_tag_values(batch.column(tag.name)) for tag in table.tags]
            tags: Sequence[tuple[TagValue, ...]] = list(zip(*columns, strict=True))
            if self._dumped.uids is not None:
                there, uids = self._engine.catalog.children_beside(table), self._uids_of(batch)
                missing = [place for place, (uid, name) in enumerate(zip(uids, names, strict=True))
                           if name not in there and uid in self._reserved and uid not in self._given]
                given = [uids[place] for place in missing]
                self._engine.children.create(table.uid, [(names[place], tags[place]) for place in missing], given)
                self._given.update(given)
                if len(given) == len(names):
                    continue
            # Others get new ones: those of an earlier restore of another dump may have these.
            self._engine.children.ensure(table, dict(zip(names, tags, strict=True)))

    def _uids_of(self, children: pa.RecordBatch) -> list[int]:
        """Returns the uids of child tables, which are as far from each other as they were."""
        assert self._dumped.uids is not None
        first, last = self._dumped.uids
        place = children.schema.get_field_index(TUID_COLUMN)
        uids: list[int] = [] if place < 0 else children.column(place).to_pylist()
        if (place < 0 or children.column(place).type != pa.uint64() or children.column(place).null_count
                or not all(first <= uid <= last for uid in uids) or not all(map(lt, uids, uids[1:]))):
            raise CorruptionError(f"the dump of {self._dumped.name} has uids of child tables that no catalog has given",
                                  hint="the dump is damaged: dump again")
        return [uid + self._shift for uid in uids]

    def _fill(self, database: Database, table: Table, dumped: DumpTable) -> None:
        what = f"{self._name}.{dumped.name}"
        name = f"{quote_identifier(self._name)}.{quote_identifier(dumped.name)}"
        if self._engine.catalog.streams.maker_of(table) is not None:
            # Streams come last: an earlier restore has brought all rows of what this one writes.
            self._report.rows += self._count(name)
            return
        written = 0
        coded = (_TBNAME,) if dumped.kind == "super" else ()
        for file in dumped.rows:
            for batch in self._batches(file, PIECE_ROWS, coded):
                rows = self._kept(database, pa.Table.from_batches([batch]), dumped)
                self._report.expired += batch.num_rows - rows.num_rows
                if rows.num_rows:
                    self._engine.insert_arrow(name, marked_as_utc(rows), self._session)
                written += rows.num_rows
                self._advanced(what, batch.num_rows)
        count = self._count(name)
        if count != written:
            raise CorruptionError(f"table {what} has {count:,} rows, {written:,} were restored",
                                  hint="no other client may write to it during the restore")
        self._report.rows += written

    def _count(self, name: str) -> int:
        result = self._engine.execute(f"SELECT count(*) FROM {name}", self._session)
        assert result.table is not None
        return int(result.table.column(0)[0].as_py())

    def _kept(self, database: Database, rows: pa.Table, dumped: DumpTable) -> pa.Table:
        """Returns the rows that KEEP allows, which are all of a table that has a KEY in place of a time."""
        times = rows.column(1 if dumped.kind == "super" else 0)
        if not pa.types.is_timestamp(times.type):
            return rows
        times = times.cast(pa.int64())
        oldest = oldest_allowed(database, self._engine.clock.now_ms())
        if rows.num_rows and pc.min(times).as_py() < oldest:
            return rows.filter(pc.greater_equal(times, oldest))
        return rows

    def _batches(self, file: DumpFile, rows: int, coded: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yields a file's rows, so many at a time, with the columns `coded` as dictionaries."""
        path = self._directory / file.path
        try:
            with pq.ParquetFile(path, read_dictionary=list(coded)) as source:
                yield from source.iter_batches(rows)
        except (pa.ArrowInvalid, OSError) as error:
            raise CorruptionError(f"{path} cannot be read: {error}",
                                  hint="the dump is damaged: copy this file again, or dump again") from error


def _checked(uids: tuple[int, int] | None, shift: int) -> tuple[int, int] | None:
    """Returns uids if a catalog can have given them, and those that are so much lower, too."""
    if uids is not None and not max(0, shift) < uids[0] <= uids[1] < _UID_MAX + min(0, shift):
        raise CorruptionError(f"the dump has child tables from {uids[0]} to {uids[1]}",
                              hint="the dump is damaged: dump again")
    return uids


def _tag_values(column: pa.Array) -> list[TagValue]:
    """Returns tag values as the catalog keeps them: timestamps as integers."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: list[TagValue] = column.to_pylist()
    return values
