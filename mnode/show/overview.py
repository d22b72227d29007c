"""All that is known of streams as one plain value: for the web page, the metrics and `penstock top`.

It is made of the system tables' rows, so that all of them say what SQL says. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

_EVENTS_SHOWN = 50
_PARTS = {"tasks": "ins_stream_tasks", "watermarks": "ins_watermarks", "checkpoints": "ins_stream_checkpoints"}

Row = dict[str, Any]
Overview = dict[str, Any]


def overview(read: Callable[[str], pa.Table], now_ms: int, version: str) -> Overview:
    """Returns {now_ms, version, streams, ingests, cluster, memory, ports, events: [...]}, as JSON can hold it.

    A stream is as `streams_with` returns it, with all parts. `read` returns a table of information_schema.
    """
    return {"now_ms": now_ms, "version": version, "streams": streams_with(read, _PARTS),
            "ingests": _rows(read("ins_ingests")),
            "cluster": _rows(read("ins_cluster")), "memory": _rows(read("ins_stream_memory")),
            "ports": _rows(read("ins_ports")),
            "events": _rows(read("ins_stream_events"))[-_EVENTS_SHOWN:]}


def streams_with(read: Callable[[str], pa.Table], parts: Iterable[str]) -> list[Row]:
    """Returns rows of ins_streams. Each has its rows of other tables as `parts`: tasks, watermarks, checkpoints."""
    of_parts = {part: _rows(read(_PARTS[part])) for part in parts}
    streams = _rows(read("ins_streams"))
    for stream in streams:
        for part, rows in of_parts.items():
            stream[part] = [row for row in rows if row["stream_name"] == stream["stream_name"]]
    return streams


def _rows(table: pa.Table) -> list[Row]:
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            in_ms = table.column(place).cast(pa.timestamp("ms")).cast(pa.int64())
            table = table.set_column(place, field.name, in_ms)
    rows: list[Row] = table.to_pylist()
    return rows
