"""The state of streams as SHOW has it: from the controller, or from the catalog for streams that don't run."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from penstock.common.errors import StateLayoutError, UnavailableError
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.coordinator.checkpoint_infos import checkpoint_infos
from penstock.mnode.coordinator.stream_status import CheckpointInfo, StreamInfo, StreamsSnapshot, StreamStatus
from penstock.mnode.coordinator.task_monitor import TaskReport
from penstock.mnode.explain.explain_analyze import analysis
from penstock.mnode.explain.stream_verdict import TaskNames, with_verdict
from penstock.mnode.streams.known_streams import KnownStreams
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.streams.stream_settings import state_limit
from penstock.sql.tree.statements import AnalyzeStream
from penstock.tasks.protocol.task_status import TaskStatus
from penstock.tasks.protocol.worker_nodes import Nodes


class StreamReports:
    """Looks at streams; changes nothing."""

    def __init__(self, services: StreamServices, known: KnownStreams, closing: threading.Event) -> None:
        """`closing` is set when the engine closes."""
        self._services = services
        self._known = known
        self._closing = closing

    def snapshot(self) -> StreamsSnapshot:
        """Returns how all streams are now."""
        controller, records = self._services.controller.running(), self._services.stores.records
        if controller is None:
            streams = self._services.catalog.streams.all()
            return StreamsSnapshot(
                {stream.id: self._with_verdict(stream, self._idle_info(stream)) for stream in streams},
                checkpoints={stream.id: checkpoint_infos(records.all(stream.id), None, None)
                             for stream in streams})
        states = controller.stream_states()
        tasks: dict[int, list[TaskReport]] = {}
        for report in controller.task_reports():
            tasks.setdefault(report.status.task.stream_id, []).append(report)
        infos: dict[int, StreamInfo] = {}
        checkpoints: dict[int, list[CheckpointInfo]] = {}
        for stream in self._services.catalog.streams.all():
            status = states.get(stream.id)
            if status is None:
                infos[stream.id] = self._with_verdict(stream, self._idle_info(stream))
                checkpoints[stream.id] = checkpoint_infos(records.all(stream.id), None, None)
                continue
            info = replace(self._idle_info(stream), status=status)
            known = tasks.get(stream.id, [])
            tasks[stream.id] = self._with_silent_tasks(stream, info, known)
            infos[stream.id] = self._with_verdict(stream, info, tasks[stream.id])
            checkpoints[stream.id] = checkpoint_infos(records.all(stream.id), status, _rows_total(known))
        events = sorted([*controller.events(), *self._known.events()], key=lambda event: event.at_ms)
        return StreamsSnapshot(infos, tasks, checkpoints, events, controller.workers(), controller.memory())

    def analyze(self, statement: AnalyzeStream) -> Result:
        """Watches a running stream for a while; returns what its tasks did meanwhile. Raises UnavailableError."""
        stream = self._known.require(statement.name)
        before = self.snapshot()
        info, stored = before.infos[stream.id], self._known.plans.get(stream.id)
        if stored is None or info.status.state not in ("RUNNING", "STALLED", "PAUSED"):
            raise UnavailableError(f"stream {stream.name} isn't running: {info.verdict or info.status.state}")
        self._services.clock.wait(self._closing, statement.seconds)
        after = self.snapshot()
        return analysis(stored.plan, stored.graph, self._names(stream), before.tasks.get(stream.id, ()),
                        after.tasks.get(stream.id, ()), after.infos.get(stream.id, info))

    def _with_verdict(self, stream: StreamRecord, info: StreamInfo, reports: Sequence[TaskReport] = ()) -> StreamInfo:
        return with_verdict(info, reports, self._names(stream))

    def _names(self, stream: StreamRecord) -> TaskNames:
        stored = self._known.plans.get(stream.id)
        if stored is None:
            return TaskNames(stream.name, Nodes(()))
        return TaskNames(stream.name, stored.graph.nodes, stored.graph.right_vgroup_ids, partial(
            self._table_name, stream))

    def _table_name(self, stream: StreamRecord, uid: int) -> str:
        """Returns the name of a table whose rows the stream reads."""
        return self._services.catalog.name_by_uid(stream.source_uids, uid) or "a table that was dropped"

    def _with_silent_tasks(
        self, stream: StreamRecord, info: StreamInfo, reports: list[TaskReport]
    ) -> list[TaskReport]:
        """Returns the reports with one for each task that has not sent a heartbeat yet: it is shown as starting."""
        heard = {report.status.task for report in reports}
        stored = self._known.plans.get(stream.id)
        known = () if stored is None else stored.graph.edges(stream.id)
        silent = [
            TaskReport(TaskStatus(edges.task, "STARTING", info.status.reason, info.status.since_ms or 0),
                       0, 0, 0, None, None, None)
            for edges in known if edges.task not in heard
        ]
        return reports + silent

    def _idle_info(self, stream: StreamRecord) -> StreamInfo:
        """Returns what is known of a stream that the controller doesn't have."""
        stored = self._known.plans.get(stream.id)
        info = StreamInfo(self._idle_status(stream), audit=self._known.audits.get(stream.id))
        if stored is None:
            return info
        return replace(info, stored=stored, rates=self._services.settings(stored.options).rates,
                       state_limit=state_limit(self._services.config, stored.options),
                       backup=self._backup_text(stream.id))

    def _idle_status(self, stream: StreamRecord) -> StreamStatus:
        failed = self._known.failures.get(stream.id)
        if stream.wanted == "stopped":
            return StreamStatus("STOPPED", "by STOP STREAM")
        if failed is not None:
            state = "MISMATCHED" if isinstance(failed[0], StateLayoutError) else "FAILED"
            return StreamStatus(state, str(failed[0]), failed[1])
        if self._services.config.disable_stream:
            return StreamStatus("STOPPED", "disableStream is set")
        return StreamStatus("STARTING", since_ms=stream.asked.created_ms)

    def _backup_text(self, stream_id: int) -> str:
        info = self._services.stores.backups.info(stream_id)
        if info is None:
            return "none"
        copied = "nothing yet" if info.checkpoint_id is None else f"checkpoint {info.checkpoint_id}"
        return f"{copied}; failed: {info.problem}" if info.problem else copied


def _rows_total(reports: Iterable[TaskReport]) -> int | None:
    """Returns how many rows the source tasks have read since the stream was created, or None if none has said it."""
    totals = [report.status.progress.rows_total for report in reports if report.status.progress.rows_total is not None]
    return sum(totals) if totals else None
