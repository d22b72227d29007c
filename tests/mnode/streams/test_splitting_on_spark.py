"""ALTER DATABASE ... VGROUPS with real workers, while rows are written: streams go on over more workers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from kits.basics.waiting import wait_until

import penstock

pytestmark = pytest.mark.spark

T0 = 1_700_000_000_000
CONFIG: dict[str, Any] = {"heartbeatInterval": "100ms", "timezone": "UTC", "restartDelayMin": "50ms",
                          "idleTimeout": "200ms"}
OPTIONS = "TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0"
PAIRS = (
    ("SELECT nm, ts, n, s FROM d.per_table",
     "SELECT tbname, _wstart, count(*), sum(v) FROM d.m PARTITION BY tbname INTERVAL(10s)"),
    ("SELECT g, ts, n, s FROM d.per_site",
     "SELECT g, _wstart, count(*), sum(v) FROM d.m PARTITION BY g INTERVAL(10s)"),
    ("SELECT g, n, s FROM d.sums", "SELECT g, count(*), sum(v) FROM d.m GROUP BY g"),
)


def test_streams_go_on_over_more_workers_while_rows_come(tmp_path: Path) -> None:
    """Nothing that is written before, during and behind the statement is lost or counts twice."""
    with penstock.connect(str(tmp_path), CONFIG) as connection:
        cursor = connection.cursor()

        def rows(sql: str) -> list[tuple[Any, ...]]:
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

        for statement in (
            "CREATE DATABASE d VGROUPS 1 KEEP 36500", "CREATE STABLE d.m (ts timestamp, v int) TAGS (g int)",
            *(f"CREATE TABLE d.t{n} USING d.m TAGS ({n % 3})" for n in range(8)),
            f"CREATE STREAM per_table {OPTIONS} INTO d.per_table TAGS (nm VARCHAR(20)) AS SELECT _wstart ts, "
            "count(*) n, sum(v) s FROM d.m PARTITION BY tbname nm INTERVAL(10s)",
            f"CREATE STREAM per_site {OPTIONS} INTO d.per_site TAGS (g INT) AS SELECT _wstart ts, count(*) n, "
            "sum(v) s FROM d.m PARTITION BY g INTERVAL(10s)",
            "CREATE VIEW d.by_g AS SELECT g, count(*) n, sum(v) s FROM m GROUP BY g",
            "CREATE MATERIALIZED VIEW d.sums AS SELECT * FROM d.by_g",
        ):
            rows(statement)
        ended, written = threading.Event(), []

        def write() -> None:
            """Rows of all tables, mostly later than the ones before, until told to end."""
            own = connection.cursor()
            while not ended.is_set():
                number = len(written)
                own.execute("INSERT INTO " + " ".join(
                    f"d.t{n} VALUES ({T0 + (number - 15 * (n == number % 8)) * 400}, {number})" for n in range(8)))
                written.append(number)
            own.close()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            wait_until(lambda: rows("SELECT count(*) FROM d.per_site")[0][0] > 0, 60.0)
            before = len(written)
            rows("ALTER DATABASE d VGROUPS 2")
            wait_until(lambda: len(written) > before + 20)
        finally:
            ended.set()
            writer.join()
        assert [row[2] > 0 for row in rows("SHOW d.VGROUPS")] == [True, True]
        for results, batch in PAIRS:
            wait_until(lambda results=results, batch=batch: sorted(rows(results)) == sorted(rows(batch)), 60.0)
        assert rows("SELECT count(*) FROM information_schema.ins_stream_tasks") == [(15,)]
        assert rows("VERIFY STREAM sums")[-1][3] == "3 results are equal, 0 aren't"
