"""DuckDB as an engine for expressions: within bounds of memory, threads and disk, and without a way to files."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import duckdb

from penstock.common.quantities import MIB

SMALL_BYTES = 128 * MIB
"""Memory that is enough for computing constants and conditions on tags."""

#: Has DuckDB make what it makes once, at its first statement.
_WARMING = "SELECT avg(a) FROM (VALUES (1)) AS t(a) GROUP BY a"

_opening = threading.Lock()


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


def small_duckdb() -> duckdb.DuckDBPyConnection:
    """Returns a connection to the process's DuckDB for what is small, with `SMALL_BYTES` for all; who asks closes it.

    Tables that it registers, and statements that it prepares, are its own. A DuckDB takes 4 MiB and 15 ms before it has
    computed anything, for the functions that it knows; a connection takes next to nothing.
    """
    with _opening:
        return _small_database().cursor()


def open_before_forks() -> None:
    """Opens what `small_duckdb` connects to: processes forked from then on share its memory, and needn't open theirs,
    which takes 25 ms each. It has one thread, the caller's, and connections of different processes draw different
    random numbers.
    """
    with small_duckdb() as connection:
        connection.execute(_WARMING).fetchall()


@cache
def _small_database() -> duckdb.DuckDBPyConnection:
    """Threads share it. After a fork, such as the one that starts Spark's Java, Python destroys in the child what is
    local to other threads, and destroying a DuckDB there crashes the child.
    """
    return closed_duckdb(DuckdbBounds(SMALL_BYTES))
