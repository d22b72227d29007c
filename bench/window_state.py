"""What open windows cost the one task that keeps them: `python -m bench.window_state --groups 1000000`.

A window table alone, in one thread: no rows, no logs, no Spark. Blocks of partials of random groups come, each group
with `--windows` windows that stay open, until every one of them has been met about `--rounds` times; then a checkpoint,
a small change and another checkpoint, a restart, and all windows are read as if they closed. Each (group, window) has
an average, a greatest value and a count. Times are seconds of the processor, and by the clock where there are two.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.planner.task_plans.stream_plan import Accumulator, Field, TimeWindows, WindowsPlan
from penstock.sql.tree.statements import Duration, IntervalWindow
from penstock.sql.types import BIGINT, DOUBLE
from penstock.tasks.compiled.compiled_loops import load
from penstock.tasks.compute.accumulators import Values
from penstock.tasks.compute.partial_columns import PartialColumns
from penstock.tasks.protocol.block_schema import ADD
from penstock.tasks.state.state_cache import StateCache
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.window.window_table import WindowTable

_MIB = 1 << 20
_WIDTH = 10_000
_KEYS = (Field("k0", BIGINT),)
_PLAN = WindowsPlan(
    TimeWindows(IntervalWindow(Duration(10, "s")), "ms", "UTC"),
    (Accumulator("add", (Field("p0", DOUBLE),)), Accumulator("add", (Field("p1", BIGINT),)),
     Accumulator("pick", (Field("p2", DOUBLE),), ((0, False),)), Accumulator("add", (Field("p3", BIGINT),))), "")


class _Run:
    """One table over one store. `buffer`: bytes that its windows may take in memory."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._options = options
        self._folder = folder
        self._buffer = options.buffer * _MIB
        self._random = np.random.default_rng(7)
        self._base = _resident()
        self._open()

    def _open(self) -> None:
        self.store = StateStore(self._folder, 1 << 36, StateCache(self._options.cache * _MIB))
        self.table = WindowTable(_PLAN, _KEYS, 1, self.store)

    def measure(self) -> dict[str, Any]:
        options = self._options
        pairs, updates, slowest, peak = options.groups * options.windows, 0, 0.0, 0
        with _Timer() as filled:
            for block in self._blocks(int(options.rounds * options.groups)):
                started = time.process_time()
                self.table.merge(block, ADD, 0)
                self.table.spill(self._buffer, None)
                slowest = max(slowest, time.process_time() - started)
                peak = max(peak, _resident())
                updates += len(block.starts)
        slots, memory = self.table.slots_used, _resident() - self._base
        with _Timer() as first:
            meta, written = self._checkpoint(1)
        with _Timer() as changed:
            for block in self._blocks(options.block):
                self.table.merge(block, ADD, 0)
        with _Timer() as second:
            meta, rewritten = self._checkpoint(2)
        self.store.close()
        del self.table
        with _Timer() as restored:
            self._open()
            self.store.restore(2)
            self.table.restore(meta, None)
        with _Timer() as after:
            for block in self._blocks(options.block):
                self.table.merge(block, ADD, 0)
        with _Timer() as closed:
            rows = self._close()
        self.store.close()
        return {
            "groups": options.groups, "windows": options.windows, "pairs": pairs, "buffer_mib": options.buffer,
            "updates": updates, "seconds": filled.seconds, "updates_per_s": round(updates / filled.seconds),
            "slowest_block_ms": round(1000 * slowest), "slots_in_memory": slots, "resident_mib": round(memory / _MIB),
            "bytes_per_slot": round(memory / max(slots, 1), 1), "peak_mib": round(peak / _MIB),
            "checkpoint": first.both, "checkpoint_mib": written, "small_change": changed.both,
            "next_checkpoint": second.both, "next_checkpoint_mib": rewritten, "restore": restored.both,
            "first_block_after": after.both, "closing": closed.both, "rows": rows, "disk_mib": self._disk()}

    def _checkpoint(self, number: int) -> tuple[dict[str, Any], float]:
        meta = self.table.save()
        stored = self.store.checkpoint(number, {})
        self.store.committed(number)
        return meta, round(stored.bytes_written / _MIB, 1)

    def _close(self) -> int:
        """Reads all windows, oldest first, and returns how many rows they have."""
        rows = 0
        for start in self.table.starts():
            _, groups = self.table.members([start])
            rows += int(self.table.state(np.full(len(groups), start), groups).rows.sum())
            self.table.spill(self._buffer, start + _WIDTH)
        return rows

    def _blocks(self, rows: int) -> Iterator[PartialColumns]:
        """Yields rows of random groups, each in all windows."""
        windows, options = self._options.windows, self._options
        for begin in range(0, rows, options.block):
            groups = np.unique(self._random.integers(0, options.groups, min(options.block, rows - begin)))
            self._random.shuffle(groups)
            count = windows * len(groups)
            keys = pa.array(np.tile(groups, windows))
            ids = np.tile(groups.astype(np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15), windows)
            values, ones, valid = self._random.random(count), np.ones(count, np.int64), np.ones(count, bool)
            counts = Values(pa.int64(), ones, valid)
            yield PartialColumns(
                ids, lambda places, keys=keys: [keys.take(pa.array(places))],
                np.repeat(np.arange(windows) * _WIDTH, len(groups)), ones,
                [Values(pa.float64(), values, valid), counts, Values(pa.float64(), values, valid), counts])

    def _disk(self) -> int:
        return round(sum(path.stat().st_blocks * 512 for path in self._folder.iterdir()) / _MIB)


class _Timer:
    """`both`: seconds of the processor, and by the clock."""

    def __enter__(self) -> _Timer:
        self._started = time.process_time(), time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = round(time.process_time() - self._started[0], 3)
        self.both = self.seconds, round(time.monotonic() - self._started[1], 3)


def _resident() -> int:
    """Bytes of memory, but for the pages of files that are mapped: those of the store are the system's to take away."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench.window_state", description=__doc__)
    parser.add_argument("--groups", type=int, default=200_000)
    parser.add_argument("--windows", type=int, default=10, help="open windows of each group")
    parser.add_argument("--rounds", type=float, default=3.0, help="how often each group comes, on average")
    parser.add_argument("--block", type=int, default=20_000, help="groups per block")
    parser.add_argument("--buffer", type=int, default=1 << 20, help="MiB that windows may take in memory")
    parser.add_argument("--cache", type=int, default=128, help="MiB of changed state that the store may keep in memory")
    parser.add_argument("--directory", type=Path, help="where state is written")
    options = parser.parse_args(arguments)
    load()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        print(json.dumps(_Run(Path(folder), options).measure()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
