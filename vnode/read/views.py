"""Views with which any DuckDB reads the tables while the engine writes: over Parquet files, newest version wins."""

from __future__ import annotations

import json
import os
import string
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa

from penstock.common.errors import StorageError
from penstock.common.fs import Fs, OsFs
from penstock.common.paths import DataPaths
from penstock.common.private import FILE_MODE
from penstock.vnode.read.snapshot_sql import quoted, text_literal
from penstock.vnode.store.parts import parquet_bytes

#: in views.sql, before the directory whose files the views read, as JSON
_OF = "-- Data directory: "

#: DuckDB's oldest file format, which every version from 1.0 on reads, and every tool that has one inside
STORAGE_VERSION = "v1.0.0"

# How DuckDB knows the file that it writes, and what it has open besides: schemas, which may have any name that a
# database may have, must not be called like them.
_FILE, _NOTHING = '"the file of the views"', '"no file of views"'
_lock = threading.Lock()
_SMALL = {ord(letter): letter.lower() for letter in string.ascii_uppercase}


@dataclass(frozen=True, slots=True)
class ViewTable:
    """A super or normal table as the views show it.

    `columns`: (name, physical name); `tags`: (name, name in children/<uid>.parquet); `keys`: the physical names of the
    columns that tell rows of one child table apart, the one that orders them first; `kind`: "super" or "normal".
    """

    database: str
    name: str
    table_uid: int
    columns: tuple[tuple[str, str], ...]
    keys: tuple[str, ...]
    tags: tuple[tuple[str, str], ...] = ()
    kind: str = "super"


def view_sql(paths: DataPaths, table: ViewTable) -> str:
    """Returns the CREATE VIEW statement of one table.

    A view shows `tbname`, the columns and the tags; a child table is the rows `WHERE tbname = '...'`.
    """
    uid = table.table_uid
    vnodes = paths.root.absolute() / "vnode"
    parts = text_literal(f"{vnodes}/*/store/parts/{uid}/*.parquet")
    tombstones = text_literal(f"{vnodes}/*/store/tombstones/{uid}/*.parquet")
    ts = quoted(table.keys[0])
    keys = ["r._tuid", *(f"r.{quoted(physical)}" for physical in table.keys)]
    values = {name: f"r.{quoted(physical)}" for name, physical in table.columns}
    join = ""
    if table.kind == "super":
        child = {name: f"c.{quoted(stored)}" for name, stored in (("tbname", "name"), *table.tags)}
        values |= child
        # They depend on _tuid, and stand here only so that DuckDB pushes conditions on them below the window.
        keys += child.values()
        join = f"\nJOIN read_parquet({text_literal(str(paths.children(uid).absolute()))}) AS c ON c.uid = r._tuid"
    # Whatever columns are called, child tables are told apart by `tbname`.
    names = sorted(values, key=lambda name: name != "tbname")
    shown_as = dict(zip(names, distinct_names(names), strict=True))
    shown = [f"{value} AS {quoted(shown_as[name])}" for name, value in values.items()]
    return f"""CREATE OR REPLACE VIEW {quoted(table.database)}.{quoted(table.name)} AS
SELECT {', '.join(shown)}
FROM (
  SELECT * FROM read_parquet({parts}, union_by_name = true) AS p
  ANTI JOIN (SELECT * FROM read_parquet({tombstones}) WHERE first_ts = last_ts) AS o
  ON o._tuid = p._tuid AND o.first_ts = p.{ts} AND p._ver < o._ver
  ANTI JOIN (SELECT * FROM read_parquet({tombstones}) WHERE first_ts < last_ts) AS d
  ON d._tuid = p._tuid AND p._ver < d._ver AND p.{ts} BETWEEN d.first_ts AND d.last_ts
) AS r{join}
QUALIFY row_number() OVER (PARTITION BY {', '.join(keys)} ORDER BY r._ver DESC) = 1;"""


def distinct_names(names: Sequence[str]) -> list[str]:
    """Returns names that DuckDB tells apart, which takes capitals from A to Z for small letters.

    Of names that are the same to it the first stays, the others get a number: `V`, `v_2`.
    """
    known = {_folded(name) for name in names}
    found: dict[str, str] = {}
    for name in names:
        distinct, number = name, 2
        while _folded(distinct) in found or (distinct != name and _folded(distinct) in known):
            distinct, number = f"{name}_{number}", number + 1
        found[_folded(distinct)] = distinct
    return list(found.values())


def _folded(name: str) -> str:
    return name.translate(_SMALL)


def views_sql(paths: DataPaths, tables: Sequence[ViewTable]) -> str:
    """Returns the statements that create all views, schema by schema."""
    lines = ["-- Written by Penstock: views over its Parquet files for any DuckDB. Rewritten when schemas change.",
             f"{_OF}{json.dumps(str(paths.root.absolute()))}"]
    databases: dict[str, list[ViewTable]] = {}
    for table in tables:
        databases.setdefault(table.database, []).append(table)
    for schema, members in zip(distinct_names(list(databases)), databases.values(), strict=True):
        lines.append(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};")
        members.sort(key=lambda table: table.table_uid)
        views = distinct_names([table.name for table in members])
        lines += [view_sql(paths, replace(table, database=schema, name=name))
                  for name, table in zip(views, members, strict=True)]
    return "\n".join(lines) + "\n"


def write_views(paths: DataPaths, tables: Iterable[ViewTable], *, fs: Fs | None = None) -> None:
    """Writes views.sql and views.duckdb, each replaced atomically.

    Every table must have been defined in at least one vnode (that creates the file its view's glob needs), and super
    tables need their children file (`write_children`). Raises StorageError.
    """
    write_sql(paths, views_sql(paths, list(tables)), fs or OsFs())


def write_sql(paths: DataPaths, text: str, files: Fs) -> None:
    """Writes views.sql and views.duckdb as the statements say. Raises StorageError."""
    files.make_dirs(paths.root)
    temporary = paths.root / f"views.{os.getpid()}.tmp.duckdb"
    files.remove(temporary)
    try:
        with _lock, _attached(_connection(), temporary) as connection:
            connection.execute(text)
        temporary.chmod(FILE_MODE)
        files.write_atomic(paths.views_sql, text.encode())
        files.rename(temporary, paths.views_duckdb)
        files.fsync_dir(paths.root)
    except duckdb.Error as error:
        raise StorageError(f"cannot create the views in {paths.root}: {error}") from error
    finally:
        for path in (temporary, Path(f"{temporary}.wal")):
            files.remove(path)


@contextmanager
def _attached(connection: duckdb.DuckDBPyConnection, file: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Has unqualified names mean those in a new database file; after that it is written and closed."""
    connection.execute(
        f"ATTACH {text_literal(str(file))} AS {_FILE} (STORAGE_VERSION '{STORAGE_VERSION}'); USE {_FILE}")
    try:
        yield connection
    finally:
        connection.execute(f"USE {_NOTHING}; DETACH {_FILE}")


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    """Returns the process's DuckDB for writing views: to open one takes longer than to write most views."""
    connection = duckdb.connect(
        config={"threads": 1, "async_threads": 0, "memory_limit": "256MiB", "temp_directory": ""})
    connection.execute(f"ATTACH ':memory:' AS {_NOTHING}; USE {_NOTHING}; DETACH memory")
    return connection


def moved_views(paths: DataPaths) -> str | None:
    """Returns the statements for views over the files of this directory if those in it are over another's, or None.

    Views hold absolute paths, since DuckDB binds none that depend on where a database lies: those of a copied directory
    read the original until an engine has opened the copy.
    """
    try:
        text = paths.views_sql.read_text("utf-8")
    except FileNotFoundError:
        return None
    root = _root_of(text)
    here = str(paths.root.absolute())
    if root is None or root == here or (os.path.exists(root) and os.path.samefile(root, here)):
        return None
    old, new = (f"{_OF}{json.dumps(one)}" for one in (root, here))
    return text.replace(old, new).replace(f"read_parquet('{_quoted(root)}/", f"read_parquet('{_quoted(here)}/")


def _root_of(text: str) -> str | None:
    """Returns the directory that views are over."""
    for line in text.splitlines():
        if line.startswith(_OF):
            found: str = json.loads(line.removeprefix(_OF))
            return found
    return None


def _quoted(path: str) -> str:
    return path.replace("'", "''")


def open_duckdb(paths: DataPaths) -> duckdb.DuckDBPyConnection:
    """Returns an in-memory DuckDB connection with the views as the database `penstock`, in use and not to be written.

    In a copy of a data directory they are over the files of the copy.
    """
    connection = duckdb.connect()
    moved = moved_views(paths)
    if moved is None:
        connection.execute(f"ATTACH {text_literal(str(paths.views_duckdb))} AS penstock (READ_ONLY)")
        connection.execute("USE penstock")
    else:
        connection.execute("ATTACH ':memory:' AS penstock")
        connection.execute("USE penstock")
        connection.execute(moved)
    return connection


def write_children(paths: DataPaths, table_uid: int, children: pa.Table, *, fs: Fs | None = None) -> None:
    """Replaces the list of child tables of a super table: `uid` uint64, `name` string, one column per tag."""
    files = fs or OsFs()
    path = paths.children(table_uid)
    files.make_dirs(path.parent)
    files.write_atomic(path, parquet_bytes(children))
