"""The rows of the system tables about streams and ingests: their tasks, checkpoints, workers, lateness, events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.common.config import Config
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.coordinator.stream_bounds import state_bytes
from penstock.mnode.coordinator.stream_status import (
    AuditInfo,
    CheckpointInfo,
    StreamInfo,
)
from penstock.mnode.coordinator.task_monitor import TaskReport
from penstock.mnode.coordinator.task_settings import BYTES_PER_MEGABYTE, task_settings
from penstock.mnode.explain.explain_stream import placement
from penstock.mnode.show.history_text import history_text
from penstock.mnode.show.row_source import Maker, Row, Rows
from penstock.mnode.show.task_rows import TaskSetting, task_row, to_ms, watermark_row
from penstock.mnode.streams.audit_incidents import Incidents
from penstock.mnode.streams.ingest_statements import Ingests
from penstock.mnode.streams.stream_lifecycle import Lifecycle
from penstock.mnode.streams.stream_reports import StreamReports
from penstock.planner.streams.external_sink import delivery_promise
from penstock.sql.schema import Table
from penstock.sql.types import Precision
from penstock.tasks.protocol.task_graph import TaskGraph
from penstock.tasks.protocol.worker_nodes import Nodes


class StreamRows:
    """Makes the rows about streams and ingests."""

    def __init__(
        self, catalog: Catalog, streams: StreamReports, savepoints: Lifecycle, ingests: Ingests,
        incidents: Incidents, config: Config,
    ) -> None:
        self._catalog = catalog
        self._streams = streams
        self._savepoints = savepoints
        self._ingests = ingests
        self._incidents = incidents
        self._config = config

    def makers(self) -> dict[str, Maker]:
        return {
            "ins_ingests": self._ingest_rows,
            "ins_streams": self._stream_rows,
            "ins_stream_tasks": self._task_rows,
            "ins_stream_checkpoints": self._checkpoint_rows,
            "ins_stream_savepoints": self._savepoint_rows,
            "ins_stream_workers": self._worker_rows,
            "ins_stream_memory": self._memory_rows,
            "ins_watermarks": self._watermark_rows,
            "ins_late_rows": self._late_row_rows,
            "ins_stream_incidents": self._incident_rows,
            "ins_stream_events": self._event_rows,
        }

    def _stream_rows(self) -> Rows:
        now = self._streams.snapshot()
        for stream in self._catalog.streams.all():
            info = now.infos.get(stream.id)
            if info is None:  # created since
                continue
            reports = now.tasks.get(stream.id, ())
            precision = self._precision(self._catalog.table_by_uid(stream.source_uid))
            yield {
                **self._definition(stream, info), **self._quotas(info), **_progress(stream, reports, precision),
                **_last_checkpoint(now.checkpoints.get(stream.id, ())), "status": _tdengine_status(info.status.state),
                "message": info.status.reason or None, "state": info.status.state,
                "reason": info.status.reason or None, "since": info.status.since_ms, "attempt": stream.attempt,
                "restarts": info.status.restarts, "checkpoint_backup": info.backup, "verdict": info.verdict or None,
                "verdict_kind": info.verdict_kind, **_audit(info.audit),
            }

    def _definition(self, stream: StreamRecord, info: StreamInfo) -> Row:
        """Says what the stream computes, from what, into what, and by which rules."""
        source, target = (self._catalog.table_by_uid(uid) for uid in (stream.source_uid, stream.target_uid))
        known: Row = {
            "stream_name": stream.name, "create_time": stream.asked.created_ms, "stream_id": f"0x{stream.id:x}",
            "sql": stream.asked.text[:1024], "source_db": source.database if source else None,
            "target_db": target.database if target else None, "target_table": target.name if target else None,
            "watermark": 0, "trigger": "window close", "guarantee": "exactly once",
        }
        if info.stored is None:
            return known
        plan = info.stored.plan
        external = plan.sink.text if plan.sink.external is not None else None
        promise = delivery_promise(plan)
        return {
            **known, "target_table": target.name if target else external, "watermark": plan.policies.watermark,
            "trigger": plan.trigger.replace("_", " "), "guarantee": plan.policies.guarantee.replace("_", " "),
            "delivery": "exactly once (upserts)" if promise is None else promise.words,
        }

    def _quotas(self, info: StreamInfo) -> Row:
        """Says how much the stream may do and keep."""
        rates = info.rates or task_settings(self._config).rates
        interval = None if info.stored is None else info.stored.options.checkpoint_interval
        interval_s = self._config.checkpoint_interval if interval is None else interval.in_units("ms") / 1000
        return {
            "checkpoint_interval": f"{interval_s:g} sec", "history_scan_idle": "100a",
            "sink_quota": _rate(rates.sink_bytes_per_second / BYTES_PER_MEGABYTE, "MB/s"),
            "source_quota": _rate(rates.source_rows_per_second, "rows/s"),
            "history_quota": _rate(rates.history_rows_per_second, "rows/s"),
            "sink_calls_quota": _rate(rates.sink_calls_per_second, "calls/s"),
            "state_limit": info.state_limit or None,
        }

    def _ingest_rows(self) -> Rows:
        for info in self._ingests.infos():
            record, plan = info.record, info.plan
            target = self._catalog.table_by_uid(record.target_uid)
            source = None if plan is None else ", ".join(plan.topics) or plan.path or "*"
            yield {
                "ingest_name": record.name, "state": info.state, "reason": info.reason or None,
                "since": info.since_ms, "connection": record.connection, "source": source,
                "target_db": None if target is None else target.database,
                "target_table": None if target is None else target.name, "rows": info.rows,
                "messages": info.messages, "bytes": info.nbytes, "errors": info.errors,
                "unknown_fields": info.unknown, "lag": info.lag, "last_error": info.last_refused or None,
                "guarantee": None if plan is None else plan.guarantee,
                "on_error": None if plan is None else plan.on_error, "tasks": record.tasks,
                "attempt": record.attempt, "restarts": info.restarts, "create_time": record.created_ms,
                "sql": record.text,
            }

    def _task_rows(self) -> Rows:
        now = self._streams.snapshot()
        for stream in self._catalog.streams.all():
            precision = self._precision(self._catalog.table_by_uid(stream.source_uid))
            starts = dict(stream.start_cut)
            info = now.infos.get(stream.id)
            stored = None if info is None else info.stored
            graph = TaskGraph(Nodes(()), ()) if stored is None else stored.graph
            apart = None if stored is None else placement(stored.plan, graph.nodes.snode_ids)
            downstream = {edges.task: edges.downstream for edges in graph.edges(stream.id)}
            checkpoint = _committed(now.checkpoints.get(stream.id, ()))
            group = (info.status.group or None) if info else None
            for report in now.tasks.get(stream.id, ()):
                setting = TaskSetting(stream, graph.nodes, starts, precision, checkpoint,
                                      downstream.get(report.status.task, ()))
                yield {**task_row(report, setting), "worker_group": group, "placement": apart}

    def _checkpoint_rows(self) -> Rows:
        now = self._streams.snapshot()
        for stream in self._catalog.streams.all():
            for info in now.checkpoints.get(stream.id, ()):
                duration = None if info.end_ms is None or info.start_ms is None else float(info.end_ms - info.start_ms)
                yield {
                    "stream_name": stream.name, "checkpoint_id": info.checkpoint_id, "state": info.state,
                    "start_time": info.start_ms, "end_time": info.end_ms, "duration_ms": duration,
                    "bytes": info.bytes_written, "phase": info.phase or None,
                    "slowest_task": info.slowest_task or None, "slowest_ms": info.slowest_ms,
                    "rows_to_replay": info.rows_to_replay, "versions": _versions(info.versions),
                    "reason": info.reason or None,
                }

    def _savepoint_rows(self) -> Rows:
        for savepoint in self._savepoints.savepoints():
            yield {
                "stream_name": savepoint.stream, "savepoint": savepoint.name,
                "checkpoint_id": savepoint.checkpoint_id, "create_time": savepoint.created_ms,
                "state": savepoint.state, "bytes": savepoint.bytes_written,
                "versions": _versions(savepoint.versions), "reason": savepoint.reason or None,
            }

    def _worker_rows(self) -> Rows:
        for worker in self._streams.snapshot().workers:
            yield {
                "worker_group": worker.group, "worker": worker.index, "node_id": worker.node_id,
                "state": worker.state, "reason": worker.reason or None, "pid": worker.pid,
                "address": worker.address, "last_heartbeat": worker.heard_ms,
                "streams": None if worker.group is None else len(worker.streams), "failures": worker.failures,
                "stream_names": ", ".join(worker.streams) or None, "executor": worker.executor,
                "host": worker.host, "slots": worker.slots, "nice": worker.nice, "gathering_ms": worker.gathering_ms,
                "memory_bytes": worker.memory_bytes,
            }

    def _memory_rows(self) -> Rows:
        for info in self._streams.snapshot().memory:
            yield {
                "process": info.process, "pid": info.pid, "memory_bytes": info.memory_bytes,
                "memory_limit": info.limit_bytes,
            }

    def _sources(self) -> Iterator[tuple[StreamRecord, int, TaskReport, Sequence[TaskReport], Precision]]:
        """Yields each source task with its stream, its vnode and the reports of all tasks of the stream."""
        now = self._streams.snapshot()
        for stream in self._catalog.streams.all():
            source = self._catalog.table_by_uid(stream.source_uid)
            database = self._catalog.database(source.database) if source else None
            vgroups = database.vgroup_ids if database else ()
            reports = now.tasks.get(stream.id, ())
            for report in reports:
                if report.status.task.operator == "source" and report.status.task.index < len(vgroups):
                    yield (stream, vgroups[report.status.task.index], report, reports, self._precision(source))

    def _sinks(self) -> Iterator[tuple[StreamRecord, TaskReport]]:
        """Yields each sink task's report with its stream."""
        now = self._streams.snapshot()
        for stream in self._catalog.streams.all():
            for report in now.tasks.get(stream.id, ()):
                if report.status.task.operator == "sink":
                    yield stream, report

    def _watermark_rows(self) -> Rows:
        for stream, vgroup, report, reports, precision in self._sources():
            yield watermark_row(stream.name, vgroup, report, reports, precision)

    def _late_row_rows(self) -> Rows:
        for stream, vgroup, report, _, precision in self._sources():
            for row in report.status.dropped or ():
                yield {
                    "stream_name": stream.name, "node_id": vgroup,
                    "table_name": self._catalog.name_by_uid(stream.source_uids, row.tuid),
                    "ts": to_ms(row.ts, precision), "reason": row.reason,
                    "late_by_ms": to_ms(row.lateness, precision), "ingest_time": row.ingest_time_ms or None,
                    "version": row.version, "message": None,
                }
        for stream, report in self._sinks():
            for row in report.status.dropped or ():
                source = self._catalog.table_by_uid(stream.source_uid)
                yield {
                    "stream_name": stream.name, "node_id": None, "table_name": row.key,
                    "ts": to_ms(row.ts, self._precision(source)), "reason": row.reason, "late_by_ms": None,
                    "ingest_time": None, "version": None, "message": row.message,
                }

    def _incident_rows(self) -> Rows:
        for stream in self._catalog.streams.all():
            for one in self._incidents.of(stream.id):
                yield {
                    "stream_name": stream.name, "incident": one.number, "found_time": one.found_ms, "state": one.state,
                    "table_name": one.child, "ts": None if one.moment is None else to_ms(one.moment, one.precision),
                    "window_end": None if one.ends is None else to_ms(one.ends, one.precision),
                    "stream_values": one.found, "query_values": one.wanted, "versions": _versions(one.versions),
                    "attempt": one.attempt, "action": one.action or None, "equal_since": one.equal_since_ms,
                    "rows": one.rows, "folder": str(self._incidents.folder(one)),
                }

    def _event_rows(self) -> Rows:
        names = {stream.id: stream.name for stream in self._catalog.streams.all()}
        for event in self._streams.snapshot().events:
            yield {
                "event_time": event.at_ms,
                "stream_name": names.get(event.stream_id, f"0x{event.stream_id:x} (dropped)"), "event": event.text,
            }

    def _precision(self, table: Table | None) -> Precision:
        database = self._catalog.database(table.database) if table is not None else None
        return database.precision if database is not None else "ms"


def _progress(stream: StreamRecord, reports: Sequence[TaskReport], precision: Precision) -> Row:
    """Says what the tasks of a stream have done together."""
    sources = [report.status for report in reports if report.status.task.operator == "source"]
    sinks = [report.status for report in reports if report.status.task.operator == "sink"]
    lags = [report.lag for report in reports if report.lag is not None]
    marks = [status.time.watermark for status in sources if status.time.watermark is not None and not status.time.idle]
    all_marks = marks or [status.time.watermark for status in sources if status.time.watermark is not None]
    history = [status.history for status in sources if status.history is not None]
    filling = any(not progress.done for progress in history)
    forgotten = [count for report in reports if (count := report.status.size.forgotten_groups) is not None]
    return {
        "history_id": f"0x{stream.id:x}" if filling else None, "history": history_text(history, precision),
        "rows_in": sum(status.progress.rows_in for status in sources),
        "rows_out": sum(status.progress.rows_out for status in sinks),
        "late_rows": sum(report.status.late.late_rows for report in reports), "lag": sum(lags) if lags else None,
        "event_time_watermark": to_ms(min(all_marks), precision) if all_marks else None,
        "blocked_by": next((str(report.status.blocked_by) for report in reports if report.status.blocked_by), None),
        "state_bytes": state_bytes(report.status for report in reports),
        "forgotten_groups": sum(forgotten) if forgotten else None,
        "refused_rows": sum(status.late.refused_rows for status in sinks),
        "notify_sent": sum(status.notified.sent for status in sinks),
        "notify_failed": sum(status.notified.failed for status in sinks),
        "notify_waiting": sum(status.notified.waiting for status in sinks),
        "notify_error": next((status.notified.error for status in sinks if status.notified.error), None),
    }


def _audit(audit: AuditInfo | None) -> Row:
    """Says what the audit has found."""
    if audit is None:
        return {}
    looked_at = audit.last_ms is not None or audit.mismatches
    return {"last_audit": audit.last_ms, "audited_cut": _versions(audit.cut), "audited_results": audit.results,
            "mismatches": audit.mismatches if looked_at else None, "audit_note": audit.note or None}


def _last_checkpoint(checkpoints: Sequence[CheckpointInfo]) -> Row:
    last = _committed(checkpoints)
    return {} if last is None else {"checkpoint_id": last.checkpoint_id, "checkpoint_time": last.end_ms}


def _committed(checkpoints: Sequence[CheckpointInfo]) -> CheckpointInfo | None:
    """Returns the newest committed checkpoint."""
    return next((one for one in reversed(checkpoints) if one.state == "COMMITTED"), None)


def _rate(per_second: float, unit: str) -> str:
    return f"{per_second:.12g} {unit}" if per_second else "unlimited"


def _versions(versions: Sequence[tuple[int, int]]) -> str | None:
    return ", ".join(f"{vgroup}:{version}" for vgroup, version in versions) or None


def _tdengine_status(state: str) -> str:
    """Returns TDengine's word for a stream's state."""
    return {"RUNNING": "ready", "STARTING": "init", "RESTARTING": "recover", "PAUSED": "paused",
            "WAITING": "init", "FAILED": "failed", "STOPPED": "stop"}.get(state, "ready")
