"""DuckDB as an engine for expressions: within bounds of memory, threads and disk, and without a way to files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb

from penstock.common.quantities import MIB

SMALL_BYTES = 128 * MIB
"""Memory that is enough for computing constants and conditions on tags."""

#: Has DuckDB make what it makes once, at its first statement.
_WARMING = "SELECT avg(a) FROM (VALUES (1)) AS t(a) GROUP BY a"


@dataclass(frozen=True, slots=True)
class DuckdbBounds:
    """What one DuckDB may take. `memory_bytes` 0: no bound but DuckDB's own; `threads` 0: as many as cores.

    `spill`: a directory for what doesn't fit into memory, up to `spill_bytes`; None: it must fit.
    """

    memory_bytes: int = 0
    threads: int = 1
    spill: Path | None = None
    spill_bytes: int = 0


UNBOUNDED = DuckdbBounds()


def closed_duckdb(bounds: DuckdbBounds, readable: Sequence[Path] = ()) -> duckdb.DuckDBPyConnection:
    """Returns an in-memory DuckDB that opens no file but those below `readable`, whatever SQL it is given.

    Its settings can't be changed, it loads no extension, and names mean registered tables, never Python's variables.
    """
    config: dict[str, str | bool | int | float | list[str]] = {
        "preserve_insertion_order": True, "python_enable_replacements": False,
        "autoinstall_known_extensions": False, "autoload_known_extensions": False,
        "temp_directory": "" if bounds.spill is None else str(bounds.spill),
    }
    if bounds.threads:
        config["threads"] = bounds.threads
    if not readable:
        config["async_threads"] = 0  # they read ahead in files; each DuckDB would start eight
    if bounds.memory_bytes:
        config["memory_limit"] = f"{bounds.memory_bytes}B"
    if bounds.spill is not None:
        # DuckDB makes the last part of the path only.
        bounds.spill.parent.mkdir(parents=True, exist_ok=True)
    connection = duckdb.connect(":memory:", config=config)
    if bounds.spill is not None:
        # Among the options of `connect` DuckDB shows it, and doesn't heed it.
        connection.execute(f"SET max_temp_directory_size = '{bounds.spill_bytes}B'")
    if readable:
        connection.execute("SET allowed_directories = ?", [[str(path.absolute()) for path in readable]])
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")
    return connection


class RenewableDuckdb:
    """A DuckDB that many use, and that is opened anew when one of them has broken it.

    What DuckDB doesn't expect, such as text that isn't UTF-8, makes it refuse everything from then on. Safe for many
    threads.
    """

    def __init__(self, open_duckdb: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        """`open_duckdb` is called when somebody asks for it."""
        self._open = open_duckdb
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Returns a connection to it, which the caller closes."""
        with self._lock:
            if self._connection is None:
                self._connection = self._open()
            return self._connection.cursor()

    def renew_if_broken(self) -> bool:
        """Sees to it that the next one who asks gets one that works; to be called after an error of DuckDB's.

        Returns whether it was broken: connections to it are of no use then.
        """
        with self._lock:
            if self._connection is None or not is_broken(self._connection):
                return False
            self._connection = None  # others still have connections to it: it ends with the last one
            return True

    def close(self) -> None:
        """Lets go of it."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def is_broken(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether the DuckDB of a connection computes nothing any more, whatever it is asked."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1").fetchall()
    except duckdb.FatalException:
        return True
    except duckdb.Error:  # short of memory, for example
        return False
    return False


def small_duckdb() -> duckdb.DuckDBPyConnection:
    """Returns a connection to the process's DuckDB for what is small, with `SMALL_BYTES` for all; who asks closes it.

    Tables that it registers, and statements that it prepares, are its own. A DuckDB takes 4 MiB and 15 ms before it has
    computed anything, for the functions that it knows; a connection takes next to nothing.
    """
    return _small.cursor()


def renew_small_duckdb_if_broken() -> bool:
    """Does for what `small_duckdb` connects to what `RenewableDuckdb.renew_if_broken` does."""
    return _small.renew_if_broken()


def open_before_forks() -> None:
    """Opens what `small_duckdb` connects to: processes forked from then on share its memory, and needn't open theirs,
    which takes 25 ms each. It has one thread, the caller's, and connections of different processes draw different
    random numbers.
    """
    with small_duckdb() as connection:
        connection.execute(_WARMING).fetchall()


# Threads share it. After a fork, such as the one that starts Spark's Java, Python destroys in the child what is local
# to other threads, and destroying a DuckDB there crashes the child.
_small = RenewableDuckdb(partial(closed_duckdb, DuckdbBounds(SMALL_BYTES)))
