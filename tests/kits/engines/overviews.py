"""A staged overview of streams, as the engine gives it, for tests of those that show it."""

from __future__ import annotations

from typing import Any

from kits.streams.ingest_kit import FakeBroker

from penstock.mnode.admin.sandbox import Sandbox
from penstock.mnode.catalog.system_schema import INFORMATION_SCHEMA
from penstock.mnode.show.overview import overview

T0 = 1_700_000_000_000


def staged(**changes: Any) -> dict[str, Any]:
    """Returns what a sandbox with one stream over two vnodes tells: 40 rows read, one checkpoint, one late row.

    Beside it an ingest has read four messages, one of which was no use, and has one still to read.
    """
    broker = FakeBroker(partitions=1, piece=4)
    with Sandbox(now_ms=T0 + 60_000, config={"checkpointsKept": 2}, consumers=broker.consumer) as bed:
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
        for place in range(4):
            broker.send(b'{"device": "e0", "ts": %d, "w": 1}' % (T0 + place) if place else b"nothing")
        bed.execute("CREATE STABLE p.n (ts TIMESTAMP, w INT) TAGS (g INT)")
        bed.execute("CREATE CONNECTION k TYPE kafka WITH (servers='127.0.0.1:1')")
        bed.execute("CREATE INGEST i1 FROM CONNECTION k (TOPIC 't') INTO p.n TBNAME ($.device) ON_ERROR SKIP")
        broker.send(b'{"device": "e0", "ts": 1, "w": 1}')
        bed.streams.report()
        tables = bed.engine.system_tables
        found = overview(lambda name: tables.read(INFORMATION_SCHEMA, name), bed.clock.now_ms(), "9.9")
    found["streams"][0].update(changes)
    return found
