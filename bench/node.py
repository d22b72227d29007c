"""An engine that is measured: the real one with Spark, with a note of when each result became visible.

A result is visible once what `ResultStore.begin_write` has returned is through: the vnode has acknowledged the rows,
and every query that starts from then on finds them (`Snapshot`s are taken under the same lock). So the time is taken
right there, by a callback around that call; nothing polls, and the measurement costs the engine one clock reading per
write call of a sink. The callback is put around the class's method, for good: a `Node` belongs into a process of its
own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from bench.setup import DATABASE
from penstock.common.clock import SystemClock
from penstock.common.config import load_config
from penstock.common.errors import UnavailableError
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.coordinator.stream_status import StreamsSnapshot
from penstock.mnode.engine import Engine
from penstock.mnode.write.result_store import ResultStore
from penstock.tasks.protocol.messages import ResultWrite
from penstock.tasks.protocol.task_status import TaskStatus

_POLL_S = 0.05
_START_TIMEOUT_S = 180.0
CONFIG: Mapping[str, Any] = {
    "timezone": "UTC", "streamSinkDataRate": 0, "sinkTablesShare": 1, "heartbeatInterval": "200ms"}


class ResultLog:
    """When results became visible. Thread-safe."""

    def __init__(self, keep: bool) -> None:
        """`keep`: keeps the rows as well."""
        self._keep = keep
        self._lock = threading.Lock()
        self._writes: list[tuple[int, ResultWrite]] = []
        self.rows = 0
        self.calls = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self._news = threading.Event()
        #: is told of each write and its time (ns)
        self.hear: Callable[[int, ResultWrite], None] | None = None

    def note(self, write: ResultWrite) -> None:
        """Notes a write that has just been acknowledged."""
        now = time.monotonic_ns()
        with self._lock:
            self.rows += write.rows.num_rows
            self.calls += 1
            self.first_ns = self.first_ns or now
            self.last_ns = now
            if self._keep:
                self._writes.append((now, write))
            if self.hear is not None:
                self.hear(now, write)
        self._news.set()

    def wait_for_news(self, timeout_s: float) -> bool:
        """Waits for the next write; returns whether there was one."""
        self._news.clear()
        return self._news.wait(timeout_s)

    def writes(self) -> list[tuple[int, ResultWrite]]:
        """Returns the writes with the times (ns) at which they became visible."""
        with self._lock:
            return list(self._writes)

    def visible(self, column: str, target_uid: int, count: str = "c") -> pa.Table:
        """Returns all rows written to a result table: the group (tag value) as `column`, ts (int64), the count as `c`,
        `shown_ns`."""
        parts = []
        for at, write in self.writes():
            if write.target_uid != target_uid:
                continue
            rows = write.rows
            groups = pa.array([child.tag_values[0] for child in write.children])
            columns = {column: groups.take(rows.column("_child")), "ts": rows.column("ts").cast(pa.int64())}
            if count in rows.schema.names:
                columns["c"] = rows.column(count)
            parts.append(pa.table({**columns, "shown_ns": pa.repeat(pa.scalar(at, pa.int64()), rows.num_rows)}))
        return pa.concat_tables(parts, promote_options="default")


def _note_results(note: Callable[[ResultWrite], None]) -> None:
    """Has every result write of this process noted once it is done."""
    begin_write = ResultStore.begin_write

    def noting(store: ResultStore, write: ResultWrite) -> Callable[[], None]:
        wait = begin_write(store, write)

        def wait_and_note() -> None:
            wait()
            note(write)

        return wait_and_note

    ResultStore.begin_write = noting  # type: ignore[method-assign]


class Node:
    """An engine in this process. `execute`, `insert`; a context manager."""

    def __init__(self, directory: Path, config: Mapping[str, Any] | None = None, *, keep: bool = False,
                 engine: Engine | None = None) -> None:
        """`keep`: the rows of results are kept for `results.visible`. `engine`: the directory's, if it is open."""
        self.results = ResultLog(keep)
        self.session = SessionState("UTC")
        _note_results(self.results.note)
        self.engine = engine or Engine(directory, load_config({**CONFIG, **(config or {})}, environment={}))

    def execute(self, text: str) -> Result:
        return self.engine.execute(text, self.session)

    def rows(self, text: str) -> list[dict[str, Any]]:
        """Returns the rows of a query."""
        table = self.execute(text).table
        assert table is not None
        found: list[dict[str, Any]] = table.to_pylist()
        return found

    def insert(self, table: str, batch: pa.RecordBatch) -> None:
        self.engine.insert_arrow(table, pa.Table.from_batches([batch]), self.session)

    def status(self) -> StreamsSnapshot:
        """Returns how all streams are, as of their last heartbeats."""
        return self.engine.streams.reports.snapshot()

    def tasks(self) -> list[TaskStatus]:
        """Returns how the tasks of all streams are."""
        return [report.status for reports in self.status().tasks.values() for report in reports]

    def all_run(self) -> bool:
        """Tells whether all streams are RUNNING; some of their tasks may still be STARTING."""
        return all(info.status.state == "RUNNING" for info in self.status().infos.values())

    def wait_running(self) -> None:
        """Waits until the tasks of all streams run. Raises UnavailableError after three minutes."""
        self.wait_until(lambda: self.all_run()
                         and all(task.state != "STARTING" for task in self.tasks()), _START_TIMEOUT_S)

    def log_ends(self) -> list[int]:
        """Returns the acknowledged version of each vnode's log, in the order of the database's vnodes."""
        database = self.engine.catalog.database(DATABASE)
        assert database is not None
        return [self.engine.storage.vnode(vgroup_id).acknowledged_version for vgroup_id in database.vgroup_ids]

    def wait_done(self, ends: Sequence[int], timeout_s: float, stream: str | None = None) -> None:
        """Waits until all tasks, or those of one stream, have processed the logs up to these versions and rest.

        Raises UnavailableError.
        """
        record = None if stream is None else self.engine.catalog.streams.named(stream)
        self.wait_until(lambda: self._is_done(ends, None if record is None else record.id), timeout_s)

    def _is_done(self, ends: Sequence[int], stream_id: int | None) -> bool:
        calls = self.results.calls
        # Blocks may be on their way between workers: rest counts if the next heartbeats say so too.
        return (self._rests(ends, stream_id)
                and not self.results.wait_for_news(self.engine.config.heartbeat_interval * 1.5)
                and self._rests(ends, stream_id) and self.results.calls == calls)

    def _rests(self, ends: Sequence[int], stream_id: int | None) -> bool:
        tasks = [task for task in self.tasks() if stream_id in (None, task.task.stream_id)]
        return bool(tasks) and all(
            task.state == "IDLE" and not task.reason.startswith("gathers changes")
            and not task.queues.input_bytes and not task.queues.output_bytes
            # Source tasks of further tables are behind those of the first one, a vnode's each.
            and (task.log.processed_version is None or task.log.processed_version >= ends[task.task.index % len(ends)])
            for task in tasks)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float, poll_s: float = _POLL_S) -> None:
        """Waits until a condition holds, and looks every `poll_s`. Raises UnavailableError."""
        clock, never = SystemClock(), threading.Event()
        deadline = clock.monotonic() + timeout_s
        while not condition():
            if clock.monotonic() > deadline:
                raise UnavailableError(f"after {timeout_s:g} s the streams are not there yet: " + "; ".join(
                    f"{task.task} {task.state} {task.reason}" for task in self.tasks()))
            clock.wait(never, poll_s)

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
