"""What planning takes: medians for statements of growing size, to see how the time grows.

`python -m bench.planning` prints a line of JSON per kind and size; `--repeat` says how often each is planned.
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
from penstock.mnode.engine import Engine
from penstock.mnode.session import SessionState

SIZES = (1_000, 10_000, 100_000)
KINDS: dict[str, Callable[[int], str]] = {
    "IN": lambda n: f"SELECT ts FROM t WHERE v IN ({', '.join(map(str, range(n)))})",
    "OR": lambda n: f"SELECT ts FROM t WHERE {' OR '.join(f'v = {k}' for k in range(n))}",
    "CASE": lambda n: f"SELECT CASE {' '.join(f'WHEN v = {k} THEN {k}' for k in range(n))} END FROM t",
    "columns": lambda n: f"SELECT {', '.join(f'v c{k}' for k in range(n))} FROM t",
}


def main() -> int:
    """Measures, and prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(Path(folder) / "data", load_config({"disableStream": True}, environment={}))
        session = SessionState("UTC")
        for text in ("CREATE DATABASE d", "USE d", "CREATE TABLE t (ts TIMESTAMP, v INT)"):
            engine.execute(text, session)
        for kind, text_of in KINDS.items():
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
