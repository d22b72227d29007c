"""A join on real workers: two databases with different numbers of vnodes, and a worker that is killed on the way."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from kits.basics.waiting import wait_until

T0 = 1_700_000_000_000


@pytest.mark.spark
def test_a_join_of_two_databases_survives_a_killed_worker(con: Any) -> None:
    """Rows cross between processes by their keys; what was lost with a worker is read again; nothing counts twice."""
    def soon(query: str, wanted: list[tuple[Any, ...]]) -> None:
        wait_until(lambda: con.execute(query).fetchall() == wanted, 90.0, f"{query} never gave {wanted}")

    def written(first: int, last: int) -> None:
        for ts in range(first, last):
            con.execute(" ".join(["INSERT INTO", *(
                f"{table}{n} USING {table} TAGS ({n}) VALUES ({T0 + ts}, {ts}, {n})"
                for table in ("d.s", "e.t") for n in range(4))]))

    for statement in (
        "CREATE DATABASE d VGROUPS 2 KEEP 36500", "CREATE DATABASE e VGROUPS 3 KEEP 36500", "USE d",
        "CREATE STABLE d.s (ts TIMESTAMP, v INT, k INT) TAGS (g INT)",
        "CREATE STABLE e.t (ts TIMESTAMP, w INT, k INT) TAGS (g INT)",
        "CREATE STREAM j TRIGGER AT_ONCE IGNORE EXPIRED 0 INTO o AS SELECT a.ts, a.v, b.w FROM s a "
        "LEFT JOIN e.t b ON a.k = b.k AND a.ts = b.ts PARTITION BY a.tbname",
    ):
        con.execute(statement)
    written(0, 20)
    soon("SELECT count(*), sum(w) FROM o", [(80, 4 * sum(range(20)))])
    ((pid,),) = con.execute("SELECT max(pid) FROM information_schema.ins_stream_workers").fetchall()
    os.kill(pid, signal.SIGKILL)
    written(20, 40)
    con.execute(f"DELETE FROM e.t0 WHERE ts < {T0 + 10}")
    soon("SELECT count(*), count(w), sum(w) FROM o", [(160, 150, 4 * sum(range(40)) - sum(range(10)))])
