"""An engine that is measured: the real one with Spark, with a note of when each result became visible.

A result is visible once the engine's `ResultStore.write_results` has returned: the vnode has acknowledged the rows, and
every query that starts from then on finds them (`Snapshot`s are taken under the same lock). So the time is taken right
there, by a callback around that call; nothing polls, and the measurement costs the engine one clock reading per write
call of a sink. The engine has a seam for it: whoever opens an `Engine` may give it the controller of its streams.
"""

from __future__ import annotations

import secrets
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
from penstock.mnode.controller import ControllerSettings, StreamController
from penstock.mnode.engine import Engine, spark_runtime
from penstock.mnode.service import DnodeService
from penstock.mnode.session import Result, SessionState
from penstock.tasks.messages import ResultWrite

_POLL_S = 0.02
_START_TIMEOUT_S = 120.0
CONFIG: Mapping[str, Any] = {"timezone": "UTC", "streamSinkDataRate": 0, "heartbeatInterval": "200ms"}


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
        self._news.set()

    def wait_for_news(self, timeout_s: float) -> bool:
        """Waits for the next write; returns whether there was one."""
        self._news.clear()
        return self._news.wait(timeout_s)

    def visible(self, column: str, count: str = "c") -> pa.Table:
        """Returns all rows written: the group (tag value) as `column`, ts (int64), the count as `c`, `shown_ns`."""
        parts = []
        for at, write in self._writes:
            rows = write.rows
            groups = pa.array([child.tag_values[0] for child in write.children])
            columns = {column: groups.take(rows.column("_child")), "ts": rows.column("ts").cast(pa.int64())}
            if count in rows.schema.names:
                columns["c"] = rows.column(count)
            parts.append(pa.table({**columns, "shown_ns": pa.repeat(pa.scalar(at, pa.int64()), rows.num_rows)}))
        return pa.concat_tables(parts, promote_options="default")


class Node:
    """An engine in this process. `execute`, `insert`; a context manager."""

    def __init__(self, directory: Path, config: Mapping[str, Any] | None = None, *, keep: bool = False) -> None:
        """`keep`: the rows of results are kept for `results.visible`."""
        self.results = ResultLog(keep)
        self.session = SessionState("UTC")
        self._controller: StreamController | None = None
        self._service: DnodeService | None = None
        settings = load_config({**CONFIG, **(config or {})}, environment={})
        self._runtime = spark_runtime(settings, directory)
        self.engine = Engine(directory, settings, controller=self._make_controller)

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

    @property
    def controller(self) -> StreamController:
        """Who runs the streams; there must be one."""
        assert self._controller is not None
        return self._controller

    def stream_ids(self) -> list[int]:
        return [stream.id for stream in self.engine.catalog.streams()]

    def wait_running(self) -> None:
        """Waits until the tasks of all streams run. Raises UnavailableError after two minutes."""
        for stream_id in self.stream_ids():
            if not self.controller.wait_running(stream_id, _START_TIMEOUT_S):
                raise UnavailableError("the stream does not start")

    def log_ends(self) -> list[int]:
        """Returns the acknowledged version of each vnode's log, in the order of the database's vnodes."""
        database = self.engine.catalog.database(DATABASE)
        assert database is not None
        return [self.engine.storage.vnode(vgroup_id).acknowledged_version for vgroup_id in database.vgroup_ids]

    def wait_done(self, ends: Sequence[int], timeout_s: float) -> None:
        """Waits until all tasks have processed the logs up to these versions and rest. Raises UnavailableError."""
        clock = SystemClock()
        deadline = clock.monotonic() + timeout_s
        while clock.monotonic() < deadline:
            calls = self.results.calls
            # Blocks may be on their way between workers: rest counts if the next heartbeats say so too.
            if (self._rests(ends) and not self.results.wait_for_news(self.engine.config.heartbeat_interval * 1.5)
                    and self._rests(ends) and self.results.calls == calls):
                return
            clock.wait(threading.Event(), _POLL_S)
        raise UnavailableError(f"the streams are not done after {timeout_s:g} s: " + "; ".join(
            f"{status.task} {status.state} {status.reason}" for status in self.controller.statuses()))

    def _rests(self, ends: Sequence[int]) -> bool:
        statuses = self.controller.statuses()
        return bool(statuses) and all(
            status.state == "IDLE" and not status.input_bytes and not status.output_bytes
            and (status.processed_version is None or status.processed_version >= ends[status.task.index])
            for status in statuses)

    def close(self) -> None:
        self.engine.close()
        if self._service is not None:
            self._service.shutdown()

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_controller(
        self, engine: Engine, on_checkpoint: Callable[[int, Mapping[int, int]], None]
    ) -> StreamController:
        secret = secrets.token_bytes(32)
        host = engine.config.host

        def write_results(write: ResultWrite) -> None:
            engine.results.write_results(write)
            self.results.note(write)

        self._service = DnodeService(secret, write_results, engine.results.read, host)
        self._controller = StreamController(
            engine.paths, engine.fs, engine.clock, ControllerSettings.from_config(engine.config), self._runtime,
            self._service.address, secret, on_checkpoint)
        return self._controller
