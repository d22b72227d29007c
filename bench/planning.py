"""What planning takes: medians for statements of growing size, to see how the time grows.

`python -m bench.planning` prints a line of JSON per kind and size; `--repeat` says how often each is planned. With
`--small` statements as users write them are planned instead, `--repeat` times 50, and the CPU time of each is told.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from penstock.common.config import load_config
from penstock.mnode.access.session import SessionState
from penstock.mnode.engine import Engine
from penstock.planner.query.select import plan_query
from penstock.planner.streams.stream_planner import plan_stream
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session
from penstock.sql.tree.statements import CreateStream, Select

SIZES = (1_000, 10_000, 100_000)
KINDS: dict[str, Callable[[int], str]] = {
    "IN": lambda n: f"SELECT ts FROM t WHERE v IN ({', '.join(map(str, range(n)))})",
    "OR": lambda n: f"SELECT ts FROM t WHERE {' OR '.join(f'v = {k}' for k in range(n))}",
    "CASE": lambda n: f"SELECT CASE {' '.join(f'WHEN v = {k} THEN {k}' for k in range(n))} END FROM t",
    "columns": lambda n: f"SELECT {', '.join(f'v c{k}' for k in range(n))} FROM t",
}
SMALL = {
    "stream, interval per table": "CREATE STREAM s WATERMARK 5s INTO o AS SELECT _wstart, avg(v) FROM m PARTITION BY "
                                  "tbname INTERVAL(10s)",
    "stream, sliding per tag": "CREATE STREAM s INTO o AS SELECT _wstart, count(*), sum(v), max(x), stddev(x), "
                               "first(n) FROM m WHERE v > 3 PARTITION BY site INTERVAL(10s) SLIDING(2s)",
    "stream, session": "CREATE STREAM s INTO o AS SELECT _wstart, _wend, count(*) FROM m PARTITION BY tbname "
                       "SESSION(ts, 10s)",
    "stream, rows": "CREATE STREAM s TRIGGER AT_ONCE INTO o AS SELECT ts, v * 2 + 1 AS w, concat(n, 'x') FROM m "
                    "WHERE x > 1.5 PARTITION BY tbname",
    "rows": "SELECT ts, v + 1, upper(n) FROM m WHERE v > 3 ORDER BY ts DESC LIMIT 10",
    "groups": "SELECT site, count(*), sum(v) FROM m GROUP BY site HAVING count(*) > 1",
    "interval": "SELECT _wstart, avg(v), max(x) FROM m PARTITION BY tbname INTERVAL(10s)",
    "interval, filled": "SELECT _wstart, avg(v) FROM m WHERE ts >= 0 AND ts < 100000 INTERVAL(1s) FILL(LINEAR)",
    "join": "SELECT a.ts, a.v, b.v FROM m a JOIN m b ON a.ts = b.ts AND a.site = b.site",
}


def small(engine: Engine, repeat: int) -> None:
    """Prints the median CPU time of reading and planning each of SMALL."""
    state, session = SessionState("UTC"), Session("d", "UTC", 0)
    for text in ("USE d", "CREATE TABLE m (ts TIMESTAMP, v INT, x DOUBLE, n VARCHAR(16)) TAGS (site VARCHAR(16))",
                 "CREATE TABLE m1 USING m TAGS ('a')"):
        engine.execute(text, state)
    for kind, text in SMALL.items():
        taken = []
        for _ in range(50 * repeat):
            started = time.process_time()
            statement = parse_one(text)
            if isinstance(statement, CreateStream):
                plan_stream(statement, engine.catalog, session)
            else:
                assert isinstance(statement, Select)
                plan_query(statement, engine.catalog, session)
            taken.append(time.process_time() - started)
        sys.stdout.write(json.dumps({"bench": "planning", "kind": kind,
                                     "median_us": round(1e6 * statistics.median(taken))}) + "\n")


def main() -> int:
    """Measures, and prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(Path(folder) / "data", load_config({"disableStream": True}, environment={}))
        session = SessionState("UTC")
        for text in ("CREATE DATABASE d", "USE d", "CREATE TABLE t (ts TIMESTAMP, v INT)"):
            engine.execute(text, session)
        if options.small:
            small(engine, options.repeat)
        for kind, text_of in () if options.small else KINDS.items():
            for size in options.sizes:
                text = f"EXPLAIN {text_of(size)}"
                taken = []
                for _ in range(options.repeat):
                    started = time.perf_counter()
                    engine.execute(text, session)
                    taken.append(time.perf_counter() - started)
                sys.stdout.write(json.dumps({"bench": "planning", "kind": kind, "size": size,
                                             "median_s": round(statistics.median(taken), 4)}) + "\n")
                sys.stdout.flush()
        engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
