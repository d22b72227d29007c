"""A staged overview of streams, as the engine gives it, for tests of those that show it."""

from __future__ import annotations

from typing import Any

from penstock.mnode.overview import overview
from penstock.mnode.sandbox import Sandbox
from penstock.mnode.system_schema import INFORMATION_SCHEMA

T0 = 1_700_000_000_000


def staged(**changes: Any) -> dict[str, Any]:
    """Returns what a sandbox with one stream over two vnodes tells: 40 rows read, one checkpoint, one late row."""
    with Sandbox(now_ms=T0 + 60_000, config={"checkpointsKept": 2}) as bed:
        bed.execute("CREATE DATABASE p VGROUPS 2")
        bed.execute("CREATE STABLE p.m (ts TIMESTAMP, v INT) TAGS (g INT)")
        bed.execute("USE p")
        bed.execute("CREATE STREAM s1 INTO p.o AS SELECT _wstart, count(*) FROM p.m PARTITION BY g INTERVAL(10s)")
        for table in range(4):
            rows = ", ".join(f"({T0 + 1000 * n}, {n})" for n in range(10))
            bed.execute(f"INSERT INTO d{table} USING p.m TAGS ({table}) VALUES {rows}")
        for table in range(4):
            bed.execute(f"INSERT INTO d{table} VALUES ({T0 + 40_000}, 1)")
        bed.execute(f"INSERT INTO d0 VALUES ({T0 + 1}, 1)")
        bed.checkpoint()
        tables = bed.engine.system_tables
        found = overview(lambda name: tables.read(INFORMATION_SCHEMA, name), bed.clock.now_ms(), "9.9")
    found["streams"][0].update(changes)
    return found
