"""How much of the log a row takes that comes in an INSERT of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock
from bench.setup import DATABASE
from penstock.common.paths import DataPaths

_FIRST_MS = 1_700_000_000_000
_ROWS = 2000
_VALUES = 8 + 8 + 4  # bytes of a TIMESTAMP, a DOUBLE and an INT


def measure_log_space(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the bytes of log per row, and how many of them are beside its values."""
    directory = folder / "log_space"
    with penstock.connect(directory, {"timezone": "UTC"}) as connection:
        for text in (f"CREATE DATABASE {DATABASE} VGROUPS 1", f"USE {DATABASE}",
                     "CREATE TABLE m (ts TIMESTAMP, v DOUBLE, k INT) TAGS (g INT)", "CREATE TABLE d USING m TAGS (1)"):
            connection.execute(text)
        [(vgroup_id,)] = connection.execute(
            f"SELECT vgroup_id FROM information_schema.ins_vgroups WHERE db_name = '{DATABASE}'").fetchall()
        log = DataPaths(directory).wal(vgroup_id)
        sizes = []
        for number in range(_ROWS + 1):
            connection.execute(f"INSERT INTO d VALUES ({_FIRST_MS + number}, {number * 0.5}, {number})")
            if number in (0, _ROWS):  # before the first row is what is there once
                sizes.append(sum(file.stat().st_size for file in log.iterdir()))
    per_row = (sizes[1] - sizes[0]) / _ROWS
    yield {"measure": "log_space", "bytes_per_row": round(per_row, 1), "beside_values": round(per_row - _VALUES, 1)}
