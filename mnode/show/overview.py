"""All that is known of streams as one plain value: for the web page, the metrics and `penstock top`.

It is made of the system tables' rows, so that all of them say what SQL says. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

_EVENTS_SHOWN = 50
_PARTS = {"tasks": "ins_stream_tasks", "watermarks": "ins_watermarks", "checkpoints": "ins_stream_checkpoints"}

Row = dict[str, Any]
Overview = dict[str, Any]


def overview(read: Callable[[str], pa.Table], now_ms: int, version: str) -> Overview:
    """Returns {now_ms, version, streams, ingests, cluster, memory, ports, events: [...]}, as JSON can hold it.

    A stream is its row of ins_streams with `tasks`, `watermarks` and `checkpoints`: its rows of those tables. `read`
    returns a table of information_schema.
    """
    parts = {part: _rows(read(table)) for part, table in _PARTS.items()}
    streams = _rows(read("ins_streams"))
    for stream in streams:
        for part, rows in parts.items():
            stream[part] = [row for row in rows if row["stream_name"] == stream["stream_name"]]
    return {"now_ms": now_ms, "version": version, "streams": streams, "ingests": _rows(read("ins_ingests")),
            "cluster": _rows(read("ins_cluster")), "memory": _rows(read("ins_stream_memory")),
            "ports": _rows(read("ins_ports")),
            "events": _rows(read("ins_stream_events"))[-_EVENTS_SHOWN:]}


def _rows(table: pa.Table) -> list[Row]:
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            in_ms = table.column(place).cast(pa.timestamp("ms")).cast(pa.int64())
            table = table.set_column(place, field.name, in_ms)
    rows: list[Row] = table.to_pylist()
    return rows
