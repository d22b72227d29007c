"""Soaks a stream whose sink can't keep up: `python -m bench.soak --minutes 30 --report soak.json`.

The real engine on Spark runs one stream whose sink may write 0.1 MB a second. Rows come ten times as fast as that,
then a hundred times, and at last ten times while the result's vnode refuses all writes for a minute, as one on a full
disk does. Meanwhile the queues of all tasks, their states, the verdict and the memory of all processes are sampled ten
times a second, and each statement that must answer while every queue is full is timed. At the end the sink's limit is
lifted, live, everything drains, and the result must be the batch answer: window by window, no row lost or doubled.
Then the queues are filled once more, and the stream is dropped.

Prints a JSON line per phase and one for the whole; `--report` gets all of them, with a line of figures per second.
Queues hold `--queue-mib`, by default 60 MiB in runs of half an hour and less in shorter ones, so that they fill.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from bench.background import Background
from bench.node import Node
from bench.processes import ask, tree
from bench.setup import DATABASE
from penstock import __version__
from penstock.common.errors import PenstockError, StorageError, UnavailableError
from penstock.mnode.write.result_store import ResultStore
from penstock.tasks.protocol.messages import ResultWrite

SINK_RATE = 0.1
"""MB per second, the least that a sink may be given."""
_ROW_BYTES = 225
"""What a result row counts for the sink: a timestamp, a BIGINT, the note, and where it goes."""
_NOTE = "x" * 192
_TABLES = 4
_TICK_S = 0.1
_SAMPLE_S = 0.1
_MEMORY_EVERY = 10  # samples
_FAULT_S = 60.0
_BLOCK_MAX = 512 << 10  # A sink never cuts a block: one of 8 MiB would take it longer than it is made to fail.
_FILL_TIMEOUT_S = 900.0
_DRAIN_TIMEOUT_S = 1800.0
_CHECKPOINT_S = 120.0
_HUNDREDFOLD_S = 60.0
"""So long are rows made a hundred times too fast; what is in the log then keeps all queues full for hours."""
_QUERY = "SELECT ts, v, note FROM m PARTITION BY tbname"
_CHECK = ("SELECT tbname, _wstart, count(*) n, sum(v) s, min(v) lo, max(v) hi, count(note) notes FROM {table} "
          "PARTITION BY tbname INTERVAL(1s)")


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run: rows come `factor` times as fast as the sink writes for `produce_s` of `seconds`."""

    name: str
    factor: int
    seconds: float
    produce_s: float
    fault_s: float = 0.0


def phases(minutes: float) -> list[Phase]:
    """Returns what a run of so many minutes consists of."""
    seconds = minutes * 60
    first, second, third = 0.4 * seconds, 0.25 * seconds, 0.35 * seconds
    return [
        Phase("ten times too fast", 10, first, first),
        Phase("a hundred times too fast", 100, second, min(second, _HUNDREDFOLD_S)),
        Phase("a sink that fails", 10, third, third, min(_FAULT_S, third / 3)),
    ]


class RefusingStore:
    """Lets all result writes of this process fail while `refusing`, as a vnode on a full disk does."""

    def __init__(self) -> None:
        self.refusing = False
        self.refused = 0
        begin_write = ResultStore.begin_write

        def begin(store: ResultStore, write: ResultWrite) -> Callable[[], None]:
            if self.refusing:
                self.refused += 1
                raise StorageError("the result's vnode can't write: no space left on device")
            return begin_write(store, write)

        ResultStore.begin_write = begin  # type: ignore[method-assign]


class Producer(Background):
    """Writes rows on a schedule; one that falls behind doesn't catch up. A context manager."""

    def __init__(self, node: Node) -> None:
        super().__init__("producer")
        self._node = node
        self._rows_per_tick = 0
        self.rows = 0
        self._failure: BaseException | None = None

    def set_factor(self, factor: float) -> None:
        """Rows come so many times as fast as the sink writes; 0: none come."""
        self._rows_per_tick = round(factor * SINK_RATE * 1e6 * _TICK_S / _ROW_BYTES)

    def check(self) -> None:
        """Raises what an insert failed with."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while not self._stop.wait(_TICK_S):
            if self._rows_per_tick:
                try:
                    self._write(self._rows_per_tick)
                except PenstockError as error:
                    self._failure = error
                    return

    def _write(self, rows: int) -> None:
        numbers = np.arange(self.rows, self.rows + rows, dtype=np.int64)
        self._node.insert(f"{DATABASE}.m", pa.record_batch({
            "tbname": pa.array([f"t{n % _TABLES}" for n in numbers.tolist()]),
            "ts": pa.array(1_700_000_000_000 + numbers, pa.timestamp("ms")),
            "v": pa.array(numbers),
            "note": pa.repeat(_NOTE, rows),
        }))
        self.rows += rows


@dataclass(slots=True)
class Sample:
    """What was seen at one moment. `queues`: (task and side, bytes, most ever, bound); memory in MiB by kind."""

    at: float
    state: str
    verdict: str
    tasks: dict[str, str]
    queues: list[tuple[str, int, int, int]]
    aside: int
    lag: int
    rows_out: int
    rss: dict[str, int] = field(default_factory=dict)


class Watch(Background):
    """Samples the engine ten times a second, memory once a second. A context manager."""

    def __init__(self, node: Node) -> None:
        super().__init__("watch")
        self._node = node
        self._root = psutil.Process()
        self.samples: list[Sample] = []
        self.late = 0

    @property
    def full(self) -> bool:
        """Whether nothing fits the stream's queues any more: its source waits for the sink, with its log read ahead.

        What the sink has set aside counts as in its queue.
        """
        last = self.samples[-1] if self.samples else None
        if last is None or last.tasks.get("source") != "BACKPRESSURED" or not last.lag:
            return False
        return all(2 * (size + (last.aside if name == "sink input" else 0)) > bound
                   for name, size, _, bound in last.queues if name.endswith("input"))

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            if time.monotonic() - due > _SAMPLE_S:
                self.late += 1
                due = time.monotonic()
            due += _SAMPLE_S
            try:
                self.samples.append(self._sample())
            except PenstockError as error:
                print(f"no sample: {error}", file=sys.stderr)

    def _sample(self) -> Sample:
        now = self._node.status()
        info = next(iter(now.infos.values()), None)
        reports = [report for each in now.tasks.values() for report in each]
        statuses = [report.status for report in reports]
        queues = [(f"{status.task.operator} {side}", size, peak, bound) for status in statuses
                  for side, size, peak, bound in (
                      ("input", status.queues.input_bytes, status.queues.input_peak, status.queues.input_capacity),
                      ("output", status.queues.output_bytes, status.queues.output_peak, status.queues.output_capacity))
                  if size is not None and peak is not None and bound]
        sample = Sample(
            time.monotonic(), info.status.state if info is not None else "", info.verdict if info is not None else "",
            {status.task.operator: status.state for status in statuses}, queues,
            sum(status.queues.in_flight_bytes for status in statuses), sum(report.lag or 0 for report in reports),
            self._node.results.rows)
        if len(self.samples) % _MEMORY_EVERY == 0:
            sample.rss = self._memory()
        return sample

    def _memory(self) -> dict[str, int]:
        used: collections.Counter[str] = collections.Counter()
        for process in tree(self._root):
            name, memory = ask(process.name), ask(process.memory_info)
            if name is not None and memory is not None:
                used["engine" if process == self._root else "java" if "java" in name else "workers"] += memory.rss
        return {kind: size >> 20 for kind, size in used.items()}


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """Returns the figures of some samples, in their order."""
    states = [sample.tasks.get("source", "") for sample in samples]
    turns = [(before, after) for before, after in itertools.pairwise(states) if before != after]
    queues: dict[str, dict[str, int]] = {}
    for sample in samples:
        for name, size, peak, bound in sample.queues:
            seen = queues.setdefault(name, {"most_sampled": 0, "most_ever": 0, "bound": bound})
            seen["most_sampled"] = max(seen["most_sampled"], size)
            seen["most_ever"] = max(seen["most_ever"], peak)
    memory = [sample.rss for sample in samples if sample.rss]
    quarter = max(1, len(memory) // 4)
    kinds = ("engine", "java", "workers") if memory else ()
    return {
        "samples": len(samples),
        "queues": queues,
        "over_bound": sum(size > bound or peak > bound for sample in samples for _, size, peak, bound in sample.queues),
        "source_paused": sum(after == "BACKPRESSURED" for _, after in turns),
        "source_resumed": sum(before == "BACKPRESSURED" for before, _ in turns),
        "source_paused_share": round(states.count("BACKPRESSURED") / max(1, len(states)), 3),
        "aside_most": max((sample.aside for sample in samples), default=0),
        "states": dict(collections.Counter(sample.state for sample in samples)),
        "verdicts": dict(collections.Counter(_words(sample.verdict) for sample in samples).most_common(4)),
        "rss_mib": {kind: {
            "first_quarter": round(statistics.median(one.get(kind, 0) for one in memory[:quarter])),
            "last_quarter": round(statistics.median(one.get(kind, 0) for one in memory[-quarter:])),
            "most": max(one.get(kind, 0) for one in memory)} for kind in kinds},
    }


def _words(verdict: str) -> str:
    """Returns a verdict without its numbers of seconds and percents, which make each one another."""
    return verdict if "rate limit" in verdict else verdict.split(":")[0]


def timed(action: Callable[[], Any]) -> float:
    """Returns the seconds that an action took."""
    began = time.monotonic()
    action()
    return round(time.monotonic() - began, 3)


def controls(node: Node) -> dict[str, float | None]:
    """Returns how long each statement took to answer, and until the checkpoint was valid (None: over two minutes)."""
    began = time.monotonic()
    ordered = node.rows("CHECKPOINT STREAM s")[0]["checkpoint_id"]
    took: dict[str, float | None] = {"CHECKPOINT STREAM": round(time.monotonic() - began, 3)}
    for statement in ("SHOW STREAMS", "SHOW STREAM TASKS", "SHOW QUEUES", "SHOW CHECKPOINTS", "PAUSE STREAM s",
                      "RESUME STREAM s"):
        took[statement] = timed(partial(node.execute, statement))
    took["checkpoint valid"] = round(time.monotonic() - began, 3) if _over(node, ordered) else None
    return took


def _over(node: Node, checkpoint: int) -> bool:
    """Waits until a checkpoint is valid, for two minutes; returns whether it is."""
    try:
        node.wait_until(lambda: any(row["checkpoint_id"] >= checkpoint and row["state"] == "COMMITTED"
                                    for row in node.rows("SHOW CHECKPOINTS")), _CHECKPOINT_S)
    except UnavailableError:
        return False
    return True


def soak(folder: Path, minutes: float, queue_bytes: int, say: Callable[[dict[str, Any]], None]) -> list[Sample]:
    """Runs all phases, tells the figures of each, and returns all samples. Raises SystemExit if a row is lost."""
    refusing = RefusingStore()
    config = {"streamSinkDataRate": SINK_RATE, "streamQueueSize": queue_bytes, "heartbeatInterval": "100ms",
              "checkpointInterval": f"{max(5.0, 6 * minutes):g}s", "blockBytesMax": min(_BLOCK_MAX, queue_bytes // 8)}
    with Node(folder / "data", config) as node:
        for statement in (f"CREATE DATABASE {DATABASE} VGROUPS 1 KEEP 36500d", f"USE {DATABASE}",
                          "CREATE STABLE m (ts TIMESTAMP, v BIGINT, note VARCHAR(200)) TAGS (g INT)",
                          *(f"CREATE TABLE t{n} USING m TAGS ({n})" for n in range(_TABLES)),
                          f"CREATE STREAM s TRIGGER AT_ONCE INTO out SUBTABLE (concat('r_', tbname)) AS {_QUERY}"):
            node.execute(statement)
        node.wait_running()
        with Watch(node) as watch, Producer(node) as producer:
            for phase in phases(minutes):
                first, rows, written = len(watch.samples), producer.rows, node.results.rows
                took = _play(node, watch, producer, refusing, phase)
                say({"phase": phase.name, "seconds": phase.seconds, "rows": producer.rows - rows,
                     "written": node.results.rows - written, "refused": refusing.refused, "answers_s": took,
                     **summary(watch.samples[first:])})
            producer.set_factor(0)
            say(_drain(node, watch, producer.rows))
            say(_drop(node, watch, producer))
            say({"phase": "all", "late_samples": watch.late, **summary(watch.samples)})
        return watch.samples


def _play(
    node: Node, watch: Watch, producer: Producer, refusing: RefusingStore, phase: Phase
) -> list[dict[str, float | None]]:
    """Lets a phase pass; returns how long statements took each time that all queues were found full."""
    began, took, idle = time.monotonic(), [], threading.Event()
    asked_at = began
    producer.set_factor(phase.factor)
    while (passed := time.monotonic() - began) < phase.seconds:
        producer.check()
        if passed > phase.produce_s:
            producer.set_factor(0)
        refusing.refusing = phase.fault_s > 0 and phase.seconds / 3 < passed < phase.seconds / 3 + phase.fault_s
        if watch.full and not refusing.refusing and time.monotonic() - asked_at > phase.seconds / 6:
            took.append(controls(node))
            asked_at = time.monotonic()
        idle.wait(_TICK_S)
    refusing.refusing = False
    return took


def _drain(node: Node, watch: Watch, rows: int) -> dict[str, Any]:
    """Lifts the sink's limit while the stream runs, waits until all is written, and compares."""
    first = len(watch.samples)
    altered = timed(lambda: node.execute("ALTER STREAM s SET SINK_RATE 0"))
    seconds = timed(lambda: node.wait_done(node.log_ends(), _DRAIN_TIMEOUT_S))
    found = {table: node.rows(_CHECK.format(table=table)) for table in ("m", "out")}
    # Result child tables are called r_t0_out_1001 and the like.
    want, got = (sorted((row["tbname"].removeprefix("r_").partition("_")[0], *list(row.values())[1:])
                        for row in found[table]) for table in ("m", "out"))
    if want != got:
        different = next((pair for pair in zip(want, got, strict=False) if pair[0] != pair[1]), None)
        raise SystemExit(f"the result isn't the batch answer: {len(want)} windows, {len(got)} are there; {different}")
    if sum(row["n"] for row in found["out"]) != rows:
        raise SystemExit(f"{rows} rows were written, {sum(row['n'] for row in found['out'])} are in the result")
    return {"phase": "drained by ALTER STREAM", "altered_s": altered, "seconds": seconds, "rows": rows,
            "windows_compared": len(want), "answer": "equal", **summary(watch.samples[first:])}


def _drop(node: Node, watch: Watch, producer: Producer) -> dict[str, Any]:
    """Fills all queues once more, and drops the stream."""
    node.execute(f"ALTER STREAM s SET SINK_RATE {SINK_RATE}")
    producer.set_factor(100)
    node.wait_until(lambda: watch.full, _FILL_TIMEOUT_S)
    took = controls(node)
    producer.set_factor(0)
    took["DROP STREAM"] = timed(lambda: node.execute("DROP STREAM s"))
    return {"phase": "dropped with full queues", "answers_s": [took]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a JSON line per phase; returns 1 if a queue was above its bound."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="of all phases together (default 30)")
    parser.add_argument("--queue-mib", type=float, help="bound of each queue (default 60, less if under 30 minutes)")
    parser.add_argument("--report", type=Path, help="write all figures as JSON to this file")
    options = parser.parse_args(arguments)
    queue_mib = options.queue_mib or min(60.0, 2 * options.minutes)
    lines: list[dict[str, Any]] = []

    def say(figures: dict[str, Any]) -> None:
        lines.append({"measure": "soak", "version": __version__, "minutes": options.minutes, "queue_mib": queue_mib,
                      **figures})
        print(json.dumps(lines[-1]), flush=True)

    folder = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    try:
        samples = soak(folder, options.minutes, int(queue_mib * (1 << 20)), say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.report is not None:
        options.report.write_text(json.dumps({"phases": lines, "seconds": per_second(samples)}), encoding="utf-8")
    return 1 if lines[-1]["over_bound"] else 0


def per_second(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Returns a line of figures for each sample that has the memory in it: about one per second."""
    start = samples[0].at if samples else 0.0
    return [{"at_s": round(sample.at - start, 1), "state": sample.state, "verdict": sample.verdict,
             "tasks": sample.tasks, "queues": {name: size for name, size, _, _ in sample.queues}, "aside": sample.aside,
             "lag": sample.lag, "rows_written": sample.rows_out, "rss_mib": sample.rss}
            for sample in samples if sample.rss]


if __name__ == "__main__":
    sys.exit(main())
