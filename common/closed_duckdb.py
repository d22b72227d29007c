"""DuckDB as an engine for expressions: within bounds of memory, threads and disk, and without a way to files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from penstock.common.quantities import MIB

SMALL_BYTES = 128 * MIB
"""Memory that is enough for computing constants and conditions on tags."""


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
