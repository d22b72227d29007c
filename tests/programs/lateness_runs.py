"""Runs one stream over the same disordered rows in many ways, and compares what it keeps with the row-exact answer.

`python -m programs.lateness_runs --rows 2000000` is the size that is run by night; `make test` has a small one.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from kits.streams.stream_kit import SUPER_UID, StreamKit

from penstock.tasks.protocol.deployment import TaskSettings
from penstock.tasks.worker.runner import drive_once

FIRST_TS = 1_600_000_000_000
WINDOW_MS, WATERMARK_MS, LATE_MS = 10_000, 5_000, 20_000
TABLES = 16
SQL = (f"CREATE STREAM s TRIGGER WINDOW_CLOSE WATERMARK {WATERMARK_MS}a IGNORE EXPIRED 1 IGNORE UPDATE 1 INTO o "
       f"AS SELECT _wstart, count(*) AS n, sum(voltage) AS s FROM meters INTERVAL({WINDOW_MS}a)")


@dataclass(frozen=True)
class Rows:
    """Rows of one vnode in their order: `table` and `ts` of each, cut into records that end at `ends`."""

    table: npt.NDArray[np.int64]
    ts: npt.NDArray[np.int64]
    ends: Sequence[int]


@dataclass(frozen=True)
class Way:
    """How one run reads: rows per block, which share of its turns each source task gets, and whether tasks die."""

    seed: int
    block_rows: int
    turns: tuple[float, ...]
    kill: bool


@dataclass(frozen=True)
class Answer:
    """Rows kept per window, and rows counted late per vnode."""

    kept: dict[int, int]
    late: tuple[int, ...]


def disordered(count: int, tables: Sequence[int], seed: int) -> Rows:
    """Returns rows of a vnode, two a millisecond, of which 5 % are late by up to 20 s."""
    random_ = np.random.default_rng(seed)
    table = random_.choice(np.array(tables), count)
    ts = FIRST_TS + np.arange(count) // 2
    late = random_.random(count) < 0.05
    ts = np.where(late, ts - random_.integers(1, LATE_MS, count), ts)
    ends, at = [], 0
    while at < count:
        at = min(count, at + int(random_.integers(1, 400)))
        ends.append(at)
    return Rows(table, ts, ends)


def exact(rows: Rows) -> tuple[dict[int, int], int]:
    """Returns the rows kept per window and how many are late, judged one by one in their order.

    A row is late if its window has ended by what its vnode had seen before its record, and its table has had a newer
    window. A key that comes again is no other row.
    """
    newest: int | None = None
    last: dict[int, int] = {}
    kept: dict[int, int] = {}
    late = start = 0
    for end in rows.ends:
        record = dict.fromkeys(zip(rows.table[start:end].tolist(), rows.ts[start:end].tolist(), strict=True))
        for table, ts in record:
            window_end = ts - ts % WINDOW_MS + WINDOW_MS
            known = last.get(table)
            if (newest is not None and known is not None and ts <= known and window_end <= newest - WATERMARK_MS
                    and window_end < known - known % WINDOW_MS + WINDOW_MS):
                late += 1
            else:
                kept[window_end - WINDOW_MS] = kept.get(window_end - WINDOW_MS, 0) + 1
        for table, ts in record:
            last[table] = max(ts, last.get(table, ts))
            newest = ts if newest is None else max(newest, ts)
        start = end
    return kept, late


def ways(count: int, vnodes: int) -> list[Way]:
    """Returns different ways to read the same rows; every other one is killed in the middle."""
    chosen = random.Random(7)
    return [Way(seed, chosen.choice((17, 250, 4_000, 65_536)),
                tuple(chosen.choice((1.0, 0.3, 0.05)) for _ in range(vnodes)), kill=seed % 2 == 1)
            for seed in range(count)]


def run(directory: Path, data: Sequence[Rows], way: Way) -> Answer:
    """Inserts the rows, interleaved by the way's seed, while the stream reads them, and returns what came out."""
    settings = TaskSettings(block_rows_max=way.block_rows, sink_bytes_per_second=0, sink_calls_per_second=0,
                            state_map_bytes=1 << 28)
    kit = StreamKit(directory, SQL, vnodes=len(data), tables=TABLES, settings=settings)
    chance = random.Random(way.seed)
    places = [0] * len(data)
    records = sum(len(rows.ends) for rows in data)
    try:
        for step in range(records):
            open_ = [n for n, rows in enumerate(data) if places[n] < len(rows.ends)]
            vnode = chance.choice(open_)
            _write(kit, vnode, data[vnode], places[vnode])
            places[vnode] += 1
            if step % 50 == 0:
                kit.checkpoint_amid() if chance.random() < 0.02 else _turn(kit, way, chance)
            if way.kill and step == records // 2:
                kit.kill()
        end = FIRST_TS + 10**9
        for vgroup, vnode in kit.vnodes.items():
            child = next(child for child in kit.catalog.child_list if child.vgroup_id == vgroup)
            vnode.write(SUPER_UID, _batch([child.uid], [end]))
        kit.run()
        sources = sorted((status for status in kit.stream.statuses() if status.task.operator == "source"),
                         key=lambda status: status.task.index)
        kept = {int(row["_wstart"].timestamp() * 1000): row["n"] for row in kit.rows()}
        return Answer(kept, tuple(status.late.late_rows for status in sources))
    finally:
        kit.close()


def tables_of(vnodes: int, directory: Path) -> list[list[int]]:
    """Returns the numbers of each vnode's tables."""
    kit = StreamKit(directory, SQL, vnodes=vnodes, tables=TABLES)
    kit.close()
    return [[n for n, child in enumerate(kit.catalog.child_list) if child.vgroup_id == vgroup] for vgroup in kit.vnodes]


def _turn(kit: StreamKit, way: Way, chance: random.Random) -> None:
    """Gives each task one step; source tasks only as often as the way says."""
    tasks = [task for task in kit.tasks
             if task.id.operator != "source" or chance.random() < way.turns[task.id.index]]
    drive_once(tasks, kit.stream.links)


def _write(kit: StreamKit, vnode: int, rows: Rows, record: int) -> None:
    start, end = rows.ends[record - 1] if record else 0, rows.ends[record]
    vgroup = list(kit.vnodes)[vnode]
    uids = np.array([child.uid for child in kit.catalog.child_list], np.uint64)
    kit.vnodes[vgroup].write(SUPER_UID, _batch(uids[rows.table[start:end]], rows.ts[start:end]))


def _batch(uids: Sequence[int] | npt.NDArray[np.uint64], ts: Sequence[int] | npt.NDArray[np.int64]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({
        "_tuid": pa.array(uids, pa.uint64()), "ts": pa.array(ts, pa.int64()).cast(pa.timestamp("ms")),
        "voltage": pa.array(np.ones(len(ts), np.int32))})


def main() -> None:
    """Prints what each run kept and counted; ends with 1 if one differs from the row-exact answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--vnodes", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        tables = tables_of(options.vnodes, Path(root) / "tables")
        data = [disordered(options.rows // options.vnodes, found, seed) for seed, found in enumerate(tables)]
        answers = [exact(rows) for rows in data]
        late = tuple(count for _, count in answers)
        kept = sum(sum(windows.values()) for windows, _ in answers)
        print(f"row-exact: {kept} rows kept, {sum(late)} late")
        wrong = 0
        for way in ways(options.runs, options.vnodes):
            answer = run(Path(root) / str(way.seed), data, way)
            same = answer.late == late and sum(answer.kept.values()) == kept
            wrong += not same
            print(f"{'same' if same else 'DIFFERS'}: {sum(answer.kept.values())} rows kept, {sum(answer.late)} late: "
                  f"{way}")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
