"""`make demo` as a measure: how fast its rows go in beside its streams, and what all of it takes."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_RUN, _INSERTED = re.compile(r"streams run after ([\d.]+) s"), re.compile(r"([\d,]+) rows inserted after ([\d.]+) s")


def measure_demo(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows per second between the start of the streams and the last row, and the seconds in all."""
    begun, cpu = time.monotonic(), _cpu_of_children()
    done = subprocess.run([sys.executable, "-m", "examples.flights", "--data", str(folder / "demo")],
                          capture_output=True, text=True, check=False)
    taken = time.monotonic() - begun
    run, inserted = _RUN.search(done.stdout), _INSERTED.search(done.stdout)
    if run is None or inserted is None:
        raise RuntimeError(f"the demo failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    rows = int(inserted[1].replace(",", ""))
    yield {"measure": "demo", "matches": done.returncode == 0, "streams_run_after_s": float(run[1]), "rows": rows,
           "rows_per_second": round(rows / (float(inserted[2]) - float(run[1]))), "seconds_in_all": round(taken, 1),
           "cpu_seconds": round(_cpu_of_children() - cpu, 1)}


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
