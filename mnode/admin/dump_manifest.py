"""What a dump has: databases, tables, files with their checksums, functions, streams. Plain JSON, for people too."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from penstock.common.connection import ConnectionKind, Options
from penstock.common.errors import CorruptionError, NotFoundError
from penstock.common.paths import is_inner

FORMAT_VERSION = 2  # 1 has no views
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
class DumpView:
    """A view: the query, and what else `sql.schema.View` has that is the same wherever it is made."""

    name: str
    text: str
    columns: tuple[str, ...]
    time_zone: str
    invoker: bool
    created_ms: int


@dataclass(frozen=True, slots=True)
class DumpDatabase:
    """A database as of a stream cut; `options` as CREATE DATABASE has them."""

    name: str
    options: str
    cut: str
    tables: tuple[DumpTable, ...]
    views: tuple[DumpView, ...] = ()

    @property
    def row_count(self) -> int:
        return sum(table.row_count for table in self.tables)


@dataclass(frozen=True, slots=True)
class DumpStream:
    """A stream: its statement and what it was meant in; see `catalog.StreamRecord`.

    `target`: database and table, None if it writes into a connection.
    """

    name: str
    text: str
    database: str | None
    time_zone: str
    created_ms: int
    target: tuple[str, str] | None
    created_target: bool
    wanted: Literal["running", "paused", "stopped"]
    wanted_reason: str = ""
    wanted_connection: str | None = None
    defaults: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DumpConnection:
    """A connection to an external server; secrets are references, as the catalog has them."""

    name: str
    kind: ConnectionKind
    options: Options
    created_ms: int


@dataclass(frozen=True, slots=True)
class DumpIngest:
    """An ingest: its statement and what it was meant in; see `catalog.IngestRecord`. Tables are (database, name)."""

    name: str
    text: str
    database: str | None
    time_zone: str
    created_ms: int
    target: tuple[str, str]
    connection: str
    tasks: int
    dlq: tuple[str, str] | None
    wanted: Literal["running", "paused", "stopped"]
    wanted_reason: str = ""


@dataclass(frozen=True, slots=True)
class DumpFunction:
    """A user's function as the catalog keeps it, and the file of its code, if it is one of the directory `udfDir`."""

    definition: dict[str, Any]
    code: DumpFile | None

    @property
    def name(self) -> str:
        return str(self.definition["name"])


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
    connections: tuple[DumpConnection, ...] = ()
    ingests: tuple[DumpIngest, ...] = ()
    streams: tuple[DumpStream, ...] = ()
    left_out: tuple[str, ...] = ()
    users: tuple[DumpUser, ...] = ()
    since: str | None = None
    until: str | None = None
    format: int = FORMAT_VERSION

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
        body = asdict(self)
        return json.dumps({"sha256": _checksum(body), "dump": body}, indent=1, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes, origin: str) -> DumpManifest:
        """Raises CorruptionError if it isn't what was written, or of a newer format."""
        hint = "copy the dump again"
        try:
            document = json.loads(data)
            body, checksum = document["dump"], document["sha256"]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{origin} is not the manifest of a dump", hint=hint) from error
        if not isinstance(body, dict) or checksum != _checksum(body):
            raise CorruptionError(f"{origin} fails its checksum", hint=hint)
        if body["format"] > FORMAT_VERSION:
            raise CorruptionError(f"{origin} has format {body['format']} of dumps, this version of Penstock knows "
                                  f"{FORMAT_VERSION}", hint=f"use version {body['penstock']} or newer")
        body["databases"] = tuple(_database(value) for value in body["databases"])
        body["functions"] = tuple(DumpFunction(value["definition"], _file(value["code"]))
                                  for value in body["functions"])
        body["connections"] = tuple(
            DumpConnection(**{**value, "options": tuple((name, text) for name, text in value["options"])})
            for value in body["connections"])
        body["ingests"] = tuple(
            DumpIngest(**{**value, "target": tuple(value["target"]), "dlq": _pair(value["dlq"])})
            for value in body["ingests"])
        body["streams"] = tuple(
            DumpStream(**{**value, "target": _pair(value["target"])}) for value in body["streams"])
        body["left_out"] = tuple(body["left_out"])
        body["users"] = tuple(
            DumpUser(**{**value, "granted": tuple(value.get("granted", ()))}) for value in body["users"])
        manifest = cls(**body)
        _check_files(manifest, origin)
        return manifest


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


def _database(value: dict[str, Any]) -> DumpDatabase:
    tables = []
    for table in value.pop("tables"):
        children, rows = _file(table.pop("children")), tuple(DumpFile(**file) for file in table.pop("rows"))
        tables.append(DumpTable(**table, children=children, rows=rows))
    views = tuple(DumpView(**{**view, "columns": tuple(view["columns"])}) for view in value.pop("views", ()))
    return DumpDatabase(**value, tables=tuple(tables), views=views)


def _file(value: dict[str, Any] | None) -> DumpFile | None:
    return None if value is None else DumpFile(**value)


def _pair(value: list[str] | None) -> tuple[str, str] | None:
    return None if value is None else (value[0], value[1])


def _checksum(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
