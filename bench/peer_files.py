"""Writes rows as Parquet files for peers: all at once, or one file per tick on a fixed schedule.

Columns: tbname, tag, ts, and those of the source. The tag is joined already, which a peer needn't do then.
"""

from __future__ import annotations

import json
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.isolated import SPAWN, end_with_parent
from bench.load import Schedule, play
from bench.rows import Shape, arrivals, tag_of

_LEAD_NS = 500_000_000


def write_files(directory: Path, shape: Shape, rows_per_file: int) -> int:
    """Writes files in the order of arrival, and returns how many rows they have."""
    directory.mkdir(parents=True)
    tags = np.array([tag_of(shape, number) for number in range(shape.tables)], np.int32)
    count = 0
    for number, batch in enumerate(arrivals(shape, rows_per_file)):
        names = batch.column("tbname")
        table = pa.Table.from_batches([batch.set_column(0, "tbname", names.cast(pa.string()))])
        table = table.set_column(table.schema.get_field_index("ts"), "ts", table.column("ts").cast(
            pa.timestamp("us", "UTC")))
        table = table.append_column("tag", pa.array(tags[names.indices.to_numpy()]))
        pq.write_table(table, directory / f"{number:06}.parquet", compression="snappy")
        count += batch.num_rows
    return count


def start_mover(staged: Path, target: Path, times: Path, schedule: Schedule) -> BaseProcess:
    """Starts a process that moves one file per tick from `staged` to `target`, then writes (due, moved) to `times`."""
    process = SPAWN.Process(target=_move, args=(staged, target, times, schedule), daemon=True)
    process.start()
    return process


def _move(staged: Path, target: Path, times: Path, schedule: Schedule) -> None:
    end_with_parent()
    files = sorted(staged.iterdir())
    moved: list[tuple[int, int]] = []
    pause = threading.Event()

    def send(tick: int, due: int) -> None:
        files[tick].rename(target / files[tick].name)
        moved.append((due, time.monotonic_ns()))

    def wait(left_ns: int) -> None:
        pause.wait(left_ns / 1e9)

    play(schedule, 0, len(files), time.monotonic_ns() + _LEAD_NS, send, time.monotonic_ns, wait)
    times.write_text(json.dumps(moved))
