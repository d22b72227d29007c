"""Measures streams: `python -m bench.streams QUERY ... [options]`; one JSON line per measurement."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.queries import QUERIES
from bench.rows import Shape


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one JSON line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("queries", nargs="*", default=list(QUERIES), help=f"some of {', '.join(QUERIES)}")
    parser.add_argument("--profile", action="store_true", help="one thread, no Spark: what each task costs")
    parser.add_argument("--calls", type=int, default=0, help="with --profile: functions that take most time, to stderr")
    parser.add_argument("--follow", action="store_true", help="with --profile: the stream works after each INSERT")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--vgroups", type=int, default=1)
    parser.add_argument("--batch-rows", type=int, default=20_000, help="rows per INSERT")
    parser.add_argument("--late", type=float, default=0.0, help="share of rows that come late, 0 to 1")
    parser.add_argument("--updated", type=float, default=0.0, help="share of rows that are written twice, 0 to 1")
    parser.add_argument("--accounts", type=int, default=100_000, help="groups of the query `accounts`")
    parser.add_argument("--trigger", choices=("WINDOW_CLOSE", "AT_ONCE"), default="WINDOW_CLOSE")
    parser.add_argument("--directory", type=Path, help="where data goes (default: a temporary directory)")
    options = parser.parse_args(arguments)
    shape = Shape(options.tables, options.rows, late=options.late, updated=options.updated, accounts=options.accounts)
    for name in options.queries:
        query = QUERIES[name]
        folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=options.directory))
        try:
            from bench.profile import profile

            emit(profile(query, query.of(shape), options.trigger, folder / "data", vgroups=options.vgroups,
                         batch_rows=options.batch_rows, calls=options.calls, follow=options.follow))
        finally:
            shutil.rmtree(folder)


def emit(measurement: dict[str, Any]) -> None:
    """Prints one measurement."""
    sys.stdout.write(json.dumps(measurement) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
