"""How soon the first streams of a fresh engine run, and what importing `penstock` takes, in a process of its own."""

from __future__ import annotations

import time

_BEGUN = time.perf_counter()  # before what is measured is imported

# ruff: noqa: E402
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TIMEOUT_S = 60.0
_STREAMS = 3


def measure_starts(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields what a fresh process takes: to import, to connect, until its first stream runs, and from CREATE STREAM on
    until the others do.
    """
    done = subprocess.run([sys.executable, "-m", "bench.first_streams", str(folder / "first")], capture_output=True,
                          text=True, check=True)
    yield {"measure": "starts", **json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    """Writes when what was there, in seconds."""
    never = threading.Event()
    begun = time.perf_counter()
    import penstock

    marks = {"import_s": time.perf_counter() - begun}
    with penstock.connect(sys.argv[1], {"timezone": "UTC"}) as connection:
        for text in ("CREATE DATABASE b VGROUPS 1", "USE b", "CREATE TABLE m (ts TIMESTAMP, v DOUBLE) TAGS (g INT)",
                     "CREATE TABLE d1 USING m TAGS (1)"):
            connection.execute(text)
        marks["connected_s"] = time.perf_counter() - _BEGUN
        for number in range(1, _STREAMS + 1):
            created = _BEGUN if number == 1 else time.perf_counter()
            connection.execute(f"CREATE STREAM s{number} TRIGGER AT_ONCE INTO o{number} AS "
                               "SELECT _wstart, count(*) c FROM m PARTITION BY tbname INTERVAL(1s)")
            state = f"SELECT state FROM information_schema.ins_streams WHERE stream_name = 's{number}'"
            while connection.execute(state).fetchall() != [("RUNNING",)] and time.perf_counter() - created < _TIMEOUT_S:
                never.wait(0.002)
            marks[f"stream_{number}_runs_s"] = time.perf_counter() - created
    sys.stdout.write(json.dumps({name: round(seconds, 3) for name, seconds in marks.items()}) + "\n")


if __name__ == "__main__":
    main()
