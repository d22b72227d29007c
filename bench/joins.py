"""Measures streams over joins in one process, without Spark: `python -m bench.joins`.

One JSON line per case. Both sides' rows are in the log before the tasks are driven, in one thread, to the end; rows of
both sides count. In lookups, which are in a table of 10,000 rows, those count that look up, as in the stream beside
them that looks nothing up. `latency`: rows of both sides are written, a few at a time, and the tasks are driven after
each: from the end of the write to the result's. Each run checks how many results there are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.mnode.admin.sandbox import Sandbox
from penstock.sql.schema import Table

TABLES = 100
FIRST_MS = 1_700_000_000_000
STEP_MS = 1_000
PER_INSERT = 10_000
PROBES = 200
NEAR = "a.k = b.k AND a.ts BETWEEN b.ts - 1s AND b.ts + 1s"
EQUAL = "a.k = b.k AND a.ts = b.ts"
CASES = {
    "range": f"SELECT a.ts, a.v, b.v w FROM s a JOIN t b ON {NEAR} PARTITION BY a.tbname",
    "equal times": f"SELECT a.ts, a.v, b.v w FROM s a LEFT JOIN t b ON {EQUAL} PARTITION BY a.tbname",
    "asof": "SELECT a.ts, a.v, b.v w FROM s a LEFT ASOF JOIN t b ON a.k = b.k PARTITION BY a.tbname",
    "windows": f"SELECT _wstart, count(*), avg(b.v) FROM s a JOIN t b ON {NEAR} PARTITION BY a.k INTERVAL(10s)",
}

LOOKUPS = {
    "lookup": "SELECT a.ts, a.v, w.site FROM s a LEFT JOIN w ON a.k = w.k PARTITION BY a.tbname",
    "lookup, windows": "SELECT _wstart, count(*), avg(a.v) FROM s a JOIN w ON a.k = w.k PARTITION BY w.site "
                       "INTERVAL(10s)",
    "no lookup, windows": "SELECT _wstart, count(*), avg(v) FROM s PARTITION BY k INTERVAL(10s)",
}
PLACES = 10_000


class Pair(Sandbox):
    """Two super tables of 100 tables each in one vnode; table n of both sides has the key n."""

    def __init__(self, query: str, trigger: str) -> None:
        super().__init__(config={"streamSinkDataRate": 0})
        for statement in ("CREATE DATABASE d VGROUPS 1", "USE d", *(
                f"CREATE STABLE {side} (ts TIMESTAMP, v INT, k INT) TAGS (g INT)" for side in "st"), *(
                f"CREATE TABLE {side}{n} USING {side} TAGS ({n})" for side in "st" for n in range(TABLES))):
            self.execute(statement)
        self.execute("CREATE TABLE w (ts TIMESTAMP, k INT, site INT)")
        self.execute("INSERT INTO w VALUES " + " ".join(f"({FIRST_MS + n}, {n}, {n % TABLES})" for n in range(PLACES)))
        self.execute(f"CREATE STREAM x TRIGGER {trigger} INTO o AS {query}")
        database = self.engine.catalog.database("d")
        assert database is not None
        self._vnode = self.engine.storage.vnode(database.vgroup_ids[0])

    def table(self, name: str) -> Table:
        found = self.engine.catalog.table("d", name)
        assert found is not None
        return found

    def write(self, first: int, last: int) -> None:
        """Writes the rows with these numbers into both sides: table after table, one second after the other."""
        numbers = np.arange(first, last)
        for side in "st":
            table = self.table(side)
            uids = np.array([self.table(f"{side}{n}").uid for n in range(TABLES)], np.uint64)
            times = (FIRST_MS + numbers // TABLES * STEP_MS).astype("datetime64[ms]")
            self._vnode.write(table.uid, pa.RecordBatch.from_arrays(
                [pa.array(uids[numbers % TABLES]), pa.array(times), pa.array(numbers.astype(np.int32)),
                 pa.array((numbers % TABLES).astype(np.int32))],
                names=["_tuid", *(column.physical for column in table.columns)]))

    def results(self) -> int:
        table = self.execute("SELECT count(*) FROM o").table
        assert table is not None
        return int(table.column(0)[0].as_py())


def throughput(name: str, trigger: str, rows: int) -> dict[str, object]:
    """Returns rows per second, by the clock and by the processor."""
    sides = 2 if name in CASES else 1
    with Pair((CASES | LOOKUPS)[name], trigger) as pair:
        for first in range(0, rows, PER_INSERT):
            pair.write(first, min(rows, first + PER_INSERT))
        started, worked = time.perf_counter(), time.process_time()
        pair.run()
        seconds, busy = time.perf_counter() - started, time.process_time() - worked
        found = pair.results()
    if found < (rows // TABLES - 10) * (TABLES if "windows" not in name else TABLES / 10) * 0.9:
        raise SystemExit(f"{name}: only {found} results")
    return {"case": name, "trigger": trigger, "rows": sides * rows, "rows_per_s": round(sides * rows / seconds),
            "rows_per_cpu_s": round(sides * rows / busy), "results": found}


def latency(name: str, trigger: str) -> dict[str, object]:
    """Returns from the write of one row per table to the result of what it made final."""
    taken: list[float] = []
    with Pair((CASES | LOOKUPS)[name], trigger) as pair:
        for probe in range(PROBES):
            pair.write(probe * TABLES, (probe + 1) * TABLES)
            started = time.perf_counter()
            pair.run()
            taken.append((time.perf_counter() - started) * 1000)
    steady = sorted(taken[PROBES // 10:])
    return {"case": name, "trigger": trigger, "latency_p50_ms": round(statistics.median(steady), 1),
            "latency_p99_ms": round(steady[len(steady) * 99 // 100], 1)}


def measured(rows: int) -> Iterator[dict[str, object]]:
    for name in (*CASES, *LOOKUPS):
        for trigger in ("AT_ONCE",) if name == "lookup" else ("WINDOW_CLOSE", "AT_ONCE"):
            yield {**throughput(name, trigger, rows), **latency(name, trigger)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000, help="rows of each side")
    for line in measured(parser.parse_args().rows):
        json.dump(line, sys.stdout)
        print(flush=True)


if __name__ == "__main__":
    main()
