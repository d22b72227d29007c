"""Writes a dump of a data directory: schema, rows as Parquet, functions, streams. The directory isn't changed.

Only files are read, so that it makes no difference whether an engine has the directory open. Each database is as of one
stream cut, however long it takes. The manifest is written last: a directory without it is no dump.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from penstock import __version__
from penstock.common.clock import Clock
from penstock.common.errors import (
    AlreadyExistsError,
    InvalidStatementError,
    NotFoundError,
    StorageError,
    UnavailableError,
)
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths
from penstock.common.private import make_private, open_private, write_private
from penstock.common.suggestions import did_you_mean
from penstock.mnode.admin.dump_manifest import (
    MANIFEST,
    DumpDatabase,
    DumpFile,
    DumpFunction,
    DumpIngest,
    DumpManifest,
    DumpStream,
    DumpTable,
    DumpUser,
)
from penstock.mnode.catalog import entry_kinds as kinds
from penstock.mnode.catalog.catalog_reader import CatalogReader
from penstock.mnode.catalog.catalog_records import ConnectionRecord, IngestRecord, StreamRecord, StreamUses, UserRecord
from penstock.mnode.query.detached_table import TBNAME, DetachedTable, RowBounds
from penstock.mnode.query.table_scans import tag_array
from penstock.mnode.show.show_statements import create_database_statement
from penstock.mnode.streams.stream_planning import NO_TARGET
from penstock.sql.cuts import Cut, cut_text
from penstock.sql.dialect.create_statements import grant_statement, table_statement
from penstock.sql.dialect.generator import print_sql
from penstock.sql.dialect.literals import parse_timestamp
from penstock.sql.dialect.statement_forms import database_options
from penstock.sql.schema import ChildTable, Database, Table, UserFunction
from penstock.vnode.read.detached_reader import DetachedVnode
from penstock.vnode.read.snapshot import SnapshotTooOldError
from penstock.wal.record import TUID_COLUMN

GROUP_ROWS = 1 << 18
"""Rows in one row group of a file: so many are in memory."""

FILE_ROWS = 1 << 23
"""Rows in one file, about."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")

Advanced = Callable[[str, int], None]
"""(what is being written, how many rows have been written of it since the last call)"""


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What is dumped: `databases` by name, all of them if there are none; rows with since <= ts < until.

    `since` and `until` are instants as in SQL, in the local time of `time_zone` where they name no zone.
    """

    databases: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class _Schema:
    """What the catalog has of the databases that are dumped."""

    databases: list[Database]
    tables: dict[int, Table] = field(default_factory=dict)
    streams: list[StreamRecord] = field(default_factory=list)
    ingests: list[IngestRecord] = field(default_factory=list)
    functions: list[UserFunction] = field(default_factory=list)
    connections: list[ConnectionRecord] = field(default_factory=list)
    users: list[DumpUser] = field(default_factory=list)


class Dump:
    """One dump of the data directory `root` into the directory `target`, which is made and must be empty."""

    def __init__(
        self, root: Path, target: Path, functions: Path, options: DumpOptions, fs: Fs, clock: Clock, advanced: Advanced
    ) -> None:
        """`functions` is where the code of users' functions is."""
        self._paths = DataPaths(root)
        self._target = target
        self._functions = functions
        self._options = options
        self._fs = fs
        self._clock = clock
        self._advanced = advanced

    def run(self) -> DumpManifest:
        """Writes everything and returns the manifest. Raises PenstockErrors; then there is no manifest."""
        if not self._paths.format.exists():
            raise NotFoundError(f"{self._paths.root} is not a data directory", hint="name one with --data")
        now_ms = self._clock.now_ms()
        schema = self._schema()
        self._make_target()
        chosen = self._options.databases
        streams = [stream for stream in schema.streams
                   if _is_whole({stream.source_uid, *stream.written_uids}, stream.uses.dlq, schema.tables, chosen)]
        ingests = [ingest for ingest in schema.ingests
                   if _is_whole({ingest.target_uid}, ingest.dlq, schema.tables, chosen)]
        left_out = [*(stream.name for stream in schema.streams if stream not in streams),
                    *(ingest.name for ingest in schema.ingests if ingest not in ingests)]
        try:
            manifest = DumpManifest(
                __version__, now_ms,
                tuple(self._database(number, database) for number, database in enumerate(schema.databases, 1)),
                tuple(DumpFunction(function, self._code(function)) for function in schema.functions),
                tuple(schema.connections),
                tuple(DumpIngest(ingest, _name(schema.tables[ingest.target_uid])) for ingest in ingests),
                tuple(_stream(stream, schema.tables) for stream in streams), tuple(left_out),
                tuple(schema.users), self._options.since, self._options.until)
        except OSError as error:
            raise StorageError(f"the dump cannot be written: {error}", hint="make room, and dump again") from error
        self._fs.write_atomic(self._target / MANIFEST, manifest.encode())
        return manifest

    # --- the catalog -------------------------------------------------------------------------------------------

    def _schema(self) -> _Schema:
        wanted = self._options.databases
        with closing(CatalogReader.of_other_process(self._paths.catalog)) as catalog:
            every = catalog.all(kinds.DATABASE)
            names = [database.name for database in every]
            for name in wanted:
                if name not in names:
                    raise NotFoundError(f"database {name} does not exist", hint=did_you_mean(name, names))
            tables = {table.uid: table for name in names for table in catalog.tables(name)}
            return _Schema(
                [database for database in every if not wanted or database.name in wanted], tables,
                [stream for stream in catalog.all(kinds.STREAM) if stream.replaces is None],
                catalog.all(kinds.INGEST), catalog.all(kinds.FUNCTION), catalog.all(kinds.CONNECTION),
                [_user(user) for user in catalog.all(kinds.USER)])

    def _make_target(self) -> None:
        try:
            make_private(self._target)
            if next(self._target.iterdir(), None) is not None:
                raise AlreadyExistsError(
                    f"{self._target} is not empty", hint="name a new directory; if this one is of a dump that was "
                                                         f"interrupted, without {MANIFEST}, delete it")
        except OSError as error:
            raise StorageError(f"{self._target} cannot be used: {error.strerror}") from error

    def _code(self, function: UserFunction) -> DumpFile | None:
        """Copies the file of a function's code, if it is one of the directory of functions."""
        module = function.source.partition(":")[0]
        name = module if module.endswith(".py") else f"{module.replace('.', '/')}.py"
        source = self._functions / name
        if not source.is_file():
            return None
        copy = self._target / "functions" / name
        make_private(copy.parent)
        write_private(copy, source.read_bytes())
        return DumpFile(f"functions/{name}", *digest(copy))

    # --- databases ---------------------------------------------------------------------------------------------

    def _database(self, number: int, database: Database) -> DumpDatabase:
        # The catalog knows a child table before the log has rows of it: read behind the cut, it knows all of them.
        cut = tuple((vgroup_id, self._vnode(vgroup_id).acknowledged_version()) for vgroup_id in database.vgroup_ids)
        with closing(CatalogReader.of_other_process(self._paths.catalog)) as catalog:
            tables = [(table, list(catalog.children(table.uid)) if table.kind == "super" else [])
                      for table in catalog.tables(database.name)]
            views = [view for view in catalog.all(kinds.VIEW) if view.database == database.name]
        folder = f"{number:03d}_{_safe(database.name)}"
        dumped = [self._table(f"{folder}/{place:05d}_{_safe(table.name)}", database, table, children, cut)
                  for place, (table, children) in enumerate(tables, 1)]
        options = create_database_statement(database).options
        return DumpDatabase(database.name, database_options(options), cut_text(cut), tuple(dumped), tuple(views),
                            database.origin, _bounds_of([child.uid for _, children in tables for child in children]))

    def _vnode(self, vgroup_id: int) -> DetachedVnode:
        return DetachedVnode(self._paths.vnode(vgroup_id), vgroup_id, self._fs)

    def _table(
        self, folder: str, database: Database, table: Table, children: Sequence[ChildTable], cut: Cut
    ) -> DumpTable:
        make_private(self._target / folder)
        listed = None
        if table.kind == "super":
            listed = self._written(f"{folder}/children.parquet", iter([_children(table, children)]))
        stored_table = DetachedTable(self._paths.root, database.name, table.name)
        bounds = RowBounds(None, None) if table.keyed else self._bounds(database)
        files: list[DumpFile] = []
        for vgroup_id, version in cut:
            if vgroup_id in stored_table.vgroup_ids:
                files += self._rows(folder, stored_table, vgroup_id, version, bounds)
        return DumpTable(table.name, "normal" if listed is None else "super", print_sql(table_statement(table)), listed,
                         tuple(files))

    def _bounds(self, database: Database) -> RowBounds:
        def units(text: str | None) -> int | None:
            return None if text is None else parse_timestamp(text, database.precision, self._options.time_zone)

        first, behind = units(self._options.since), units(self._options.until)
        if first is not None and behind is not None and first >= behind:
            raise InvalidStatementError("--since must be before --until")
        return RowBounds(first, None if behind is None else behind - 1)

    def _rows(
        self, folder: str, stored_table: DetachedTable, vgroup_id: int, version: int, bounds: RowBounds
    ) -> Iterator[DumpFile]:
        """Writes the rows of a table that one vnode has, as of a version, and yields the files."""
        table = stored_table.table
        names = [*([TBNAME] if table.kind == "super" else []), *(column.name for column in table.columns)]
        what = f"{table.database}.{table.name}"

        def told(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
            for piece in pieces:
                self._advanced(what, piece.num_rows)
                yield piece

        groups = _grouped(told(stored_table.rows(vgroup_id, names, version, bounds)))
        number = 0
        try:
            while (first := next(groups, None)) is not None:
                number += 1
                yield self._written(f"{folder}/rows-{vgroup_id}-{number:04d}.parquet", _some(first, groups))
        except SnapshotTooOldError as error:
            raise UnavailableError(
                f"rows of {what} were overwritten, and collapsed, while they were dumped",
                hint="dump again, when less is written, or while no engine has the directory open") from error

    def _written(self, path: str, groups: Iterator[pa.Table]) -> DumpFile:
        """Writes the tables, which there is one of at least, into a Parquet file: a row group each."""
        rows = 0
        with open_private(self._target / path, "wb") as file:
            checked = _Checked(file)
            first = next(groups)
            with pq.ParquetWriter(checked, first.schema, compression="zstd") as writer:
                group: pa.Table | None = first
                while group is not None:
                    writer.write_table(group, row_group_size=max(group.num_rows, 1))
                    rows += group.num_rows
                    group = next(groups, None)
            file.flush()
            os.fsync(file.fileno())
        return DumpFile(path, checked.size, checked.hash.hexdigest(), rows)


class _Checked(io.RawIOBase):
    """Hands bytes on to a file, and knows how many there were and their checksum."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.hash = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]  # whatever has the buffer interface
        self.hash.update(view)
        self._file.write(view)
        self.size += view.nbytes
        return view.nbytes


def digest(path: Path) -> tuple[int, str]:
    """Returns size and SHA-256 of a file."""
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _safe(name: str) -> str:
    """Returns what of a name can be part of a file's name anywhere; it needn't be unique."""
    return _UNSAFE.sub("_", name)[:60]


def _bounds_of(uids: Sequence[int]) -> tuple[int, int] | None:
    return (min(uids), max(uids)) if uids else None


def _children(table: Table, children: Sequence[ChildTable]) -> pa.Table:
    children = sorted(children, key=attrgetter("uid"))
    arrays = {TBNAME: pa.array([child.name for child in children], pa.string()),
              TUID_COLUMN: pa.array([child.uid for child in children], pa.uint64())}
    for place, tag in enumerate(table.tags):
        arrays[tag.name] = tag_array(tag, [child.tag_values[place] for child in children]).cast(tag.type.arrow())
    return pa.table(arrays)


def _grouped(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Joins small tables to such of GROUP_ROWS rows, about; empty ones fall away."""
    pending: list[pa.Table] = []
    rows = 0
    for piece in pieces:
        if piece.num_rows:
            pending.append(piece)
            rows += piece.num_rows
        if rows >= GROUP_ROWS:
            yield pa.concat_tables(pending)
            pending, rows = [], 0
    if pending:
        yield pa.concat_tables(pending)


def _some(first: pa.Table, more: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yields `first`, and as many more as one file takes."""
    rows = first.num_rows
    yield first
    while rows < FILE_ROWS and (group := next(more, None)) is not None:
        rows += group.num_rows
        yield group


def _is_whole(
    uids: set[int], dlq: tuple[str, str] | None, tables: dict[int, Table], databases: Sequence[str]
) -> bool:
    """Tells whether all tables that something reads and writes are in these databases; in any, if there are none."""
    needed = [tables.get(uid) for uid in uids - {NO_TARGET}]
    names = {table.database for table in needed if table is not None} | ({dlq[0]} if dlq else set())
    return None not in needed and (not databases or names <= set(databases))


def _name(table: Table) -> tuple[str, str]:
    return table.database, table.name


def _stream(stream: StreamRecord, tables: dict[int, Table]) -> DumpStream:
    target = None if stream.target_uid == NO_TARGET else _name(tables[stream.target_uid])
    return DumpStream(replace(stream, plan="", uses=StreamUses(), savepoints=()), target)


def _user(user: UserRecord) -> DumpUser:
    return DumpUser(user.name, user.role, tuple(print_sql(grant_statement(user.name, right)) for right in user.granted))
