"""What a dump has: databases, tables, files with their checksums, functions, streams. Plain JSON, for people too."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.common.errors import CorruptionError, NotFoundError
from penstock.common.paths import is_inner
from penstock.common.typed_json import TypedJson
from penstock.mnode.catalog.catalog_records import ConnectionRecord, IngestRecord, StreamRecord
from penstock.sql.schema import RestoredFrom, UserFunction, View

FORMAT_VERSION = 4
_READ = (3, FORMAT_VERSION)  # 3: of version 1.0, where `origin` and `uids` are None
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class DumpFile:
    """A file of a dump: its path in there, what it must be, and how many rows it has."""

    path: str
    size: int
    sha256: str
    rows: int = 0


@dataclass(frozen=True, slots=True)
class DumpTable:
    """A super table with its child tables (tbname and tags) and all of their rows, or a normal table."""

    name: str
    kind: Literal["super", "normal"]
    statement: str
    children: DumpFile | None
    rows: tuple[DumpFile, ...]

    @property
    def row_count(self) -> int:
        return sum(file.rows for file in self.rows)


@dataclass(frozen=True, slots=True)
class DumpDatabase:
    """A database as of a stream cut; `options` as CREATE DATABASE has them. `origin`: see `Database`. `uids`: the
    first and the last one of its child tables; None: `children` don't tell theirs, as in dumps of version 1.0.
    """

    name: str
    options: str
    cut: str
    tables: tuple[DumpTable, ...]
    views: tuple[View, ...] = ()
    origin: RestoredFrom | None = None
    uids: tuple[int, int] | None = None

    @property
    def row_count(self) -> int:
        return sum(table.row_count for table in self.tables)


@dataclass(frozen=True, slots=True)
class DumpStream:
    """A stream as the catalog has it. `target`: database and table, None if it writes into a connection."""

    record: StreamRecord
    target: tuple[str, str] | None

    @property
    def name(self) -> str:
        return self.record.name


@dataclass(frozen=True, slots=True)
class DumpIngest:
    """An ingest as the catalog has it. `target`: database and table."""

    record: IngestRecord
    target: tuple[str, str]

    @property
    def name(self) -> str:
        return self.record.name


@dataclass(frozen=True, slots=True)
class DumpFunction:
    """A user's function as the catalog keeps it, and the file of its code, if it is one of the directory `udfDir`."""

    function: UserFunction
    code: DumpFile | None

    @property
    def name(self) -> str:
        return self.function.name


@dataclass(frozen=True, slots=True)
class DumpUser:
    """A user without the password. `granted`: the GRANT statements that give what was granted."""

    name: str
    role: str
    granted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DumpManifest:
    """All of a dump. `since`, `until`: which rows it has, as the command line said; None is no bound.

    `left_out`: streams and ingests that read or write databases which the dump doesn't have.
    """

    penstock: str
    created_ms: int
    databases: tuple[DumpDatabase, ...]
    functions: tuple[DumpFunction, ...] = ()
    connections: tuple[ConnectionRecord, ...] = ()
    ingests: tuple[DumpIngest, ...] = ()
    streams: tuple[DumpStream, ...] = ()
    left_out: tuple[str, ...] = ()
    users: tuple[DumpUser, ...] = ()
    since: str | None = None
    until: str | None = None

    @property
    def row_count(self) -> int:
        return sum(database.row_count for database in self.databases)

    def files(self) -> Iterator[DumpFile]:
        """Yields every file that the dump must have."""
        for function in self.functions:
            if function.code is not None:
                yield function.code
        for database in self.databases:
            for table in database.tables:
                if table.children is not None:
                    yield table.children
                yield from table.rows

    def encode(self) -> bytes:
        body = _JSON.encode(self)
        document = {"penstock": self.penstock, "format": FORMAT_VERSION, "sha256": _checksum(body), "dump": body}
        return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes, origin: str) -> DumpManifest:
        """Raises CorruptionError if it isn't what was written, or of another format."""
        hint = "copy the dump again"
        try:
            document = json.loads(data)
            body, checksum = document["dump"], document["sha256"]
            version, wrote = document["format"], document["penstock"]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{origin} is not the manifest of a dump", hint=hint) from error
        if checksum != _checksum(body):
            raise CorruptionError(f"{origin} fails its checksum", hint=hint)
        if version not in _READ:
            raise CorruptionError(f"{origin} has format {version} of dumps, this version of Penstock knows "
                                  f"{FORMAT_VERSION}", hint=f"use version {wrote}")
        try:
            manifest = _JSON.decode(body)
        except ValueError as error:
            raise CorruptionError(f"{origin} is not the manifest of a dump: {error}", hint=hint) from error
        _check_files(manifest, origin)
        return manifest


_JSON = TypedJson(DumpManifest)


def _check_files(manifest: DumpManifest, origin: str) -> None:
    """Raises CorruptionError unless all files are in the dump, each once, and code among the functions."""
    times = Counter(file.path for file in manifest.files())
    code = [function.code.path for function in manifest.functions if function.code is not None]
    wrong = next((path for path, count in times.items() if count > 1 or not is_inner(path)), None) or next(
        (path for path in code if not path.startswith("functions/")), None)
    if wrong is not None:
        raise CorruptionError(f"{origin} names the file {wrong[:200]!r}, which no dump has",
                              hint="Penstock didn't write this dump: don't restore it")


def read_manifest(directory: Path) -> DumpManifest:
    """Returns the manifest of a dump. Raises NotFoundError if there is none, CorruptionError."""
    path = directory / MANIFEST
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotFoundError(
            f"{directory} is not a whole dump: {path} cannot be read ({error.strerror})",
            hint="a dump that was interrupted has none: delete the directory and dump again") from error
    return DumpManifest.decode(data, str(path))


def _checksum(body: Any) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
