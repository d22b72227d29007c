"""The rows of the system tables about one task of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.coordinator.stream_status import CheckpointInfo
from penstock.mnode.coordinator.task_monitor import TaskReport
from penstock.mnode.explain.stream_verdict import stalled_reason
from penstock.mnode.show.history_text import history_text
from penstock.mnode.show.lateness_text import histogram_text, suggestion
from penstock.mnode.show.row_source import Row
from penstock.sql.types import UNITS_PER_SECOND, Precision
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.protocol.task_status import TaskStatus
from penstock.tasks.protocol.worker_nodes import Nodes, WorkerNode

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TaskSetting:
    """What a task's stream is like. `starts`: by vgroup, the version that the stream began behind.

    `checkpoint` is the newest committed one, `downstream` the tasks that get what this one sends.
    """

    stream: StreamRecord
    nodes: Nodes
    starts: Mapping[int, int]
    precision: Precision
    checkpoint: CheckpointInfo | None
    downstream: Sequence[TaskId]


def task_row(report: TaskReport, setting: TaskSetting) -> Row:
    """Returns a line of ins_stream_tasks, but for what only its stream knows."""
    return {
        **_state(report, setting), **_place(report, setting), **_queues(report), **_work(report, setting),
        **_checkpoint(report, setting), **_notifications(report.status)}


def _state(report: TaskReport, setting: TaskSetting) -> Row:
    """Says what the task does now, and since when."""
    status, attempt = report.status, setting.stream.attempt
    filling = status.history is not None and not status.history.done
    paused = status.state == "PAUSED"
    state: str = status.state
    reason = status.reason
    if report.stalled_s is not None:
        state, reason = "STALLED", stalled_reason(report)
    return {
        "stream_name": setting.stream.name, "task_id": str(status.task), "level": status.task.operator,
        "status": "scan-history" if filling and not paused else _task_status(status.state),
        "stage": attempt, "start_id": attempt, "attempt": attempt, "start_time": status.since_ms or None,
        "history_task_id": f"{status.task}-history" if filling else None,
        "history_task_status": None if not filling else "paused" if paused else "scan-history",
        "history": history_text([status.history], setting.precision) if status.history is not None else None,
        "state": state, "reason": "; ".join(filter(None, (reason, status.functions.report))) or None,
        "since": status.since_ms or None, "blocked_by": str(status.blocked_by) if status.blocked_by else None,
        "downstream": ", ".join(map(str, setting.downstream)) or None,
    }


def _place(report: TaskReport, setting: TaskSetting) -> Row:
    """Says where the task is, and how far it has read there."""
    status, operator = report.status, report.status.task.operator
    node, vgroup = _node(setting, status.task), _vgroup(setting, status.task)
    start = setting.starts.get(vgroup) if vgroup is not None and operator == "source" else None
    info = None
    if operator == "source" and status.log.processed_version is not None:
        info = f"{status.log.processed_version} [{(start or 0) + 1}, {status.log.wal_version}]"
    elif operator == "sink":
        info = f"{status.progress.bytes_out / _MIB:.2f} MiB"
    return {
        "node_type": None if node is None else node.type, "node_id": None if node is None else node.id,
        "info": info, "start_ver": start, "processed_version": status.log.processed_version,
        "wal_version": status.log.wal_version, "wal_access": status.log.wal_access, "lag": report.lag,
    }


def _node(setting: TaskSetting, task: TaskId) -> WorkerNode | None:
    worker = setting.nodes.worker_of(task)
    return setting.nodes.node_of(worker) if worker < setting.nodes.workers else None


def _vgroup(setting: TaskSetting, task: TaskId) -> int | None:
    node = _node(setting, task)
    return node.id if node is not None and node.type == "vnode" else None


def _queues(report: TaskReport) -> Row:
    """Says what waits before and behind the task, and what has passed it."""
    queues, passed, is_sink = report.status.queues, report.status.progress, report.status.task.operator == "sink"
    used = 100.0 * queues.input_bytes / queues.input_capacity if queues.input_capacity else 0.0
    return {
        "in_queue": f"{queues.input_bytes / _MIB:.2f} MiB ({used:.2f}%)",
        "process_total": f"{passed.bytes_in / _MIB:.2f} MiB",
        "process_throughput": f"{report.bytes_in_rate / 1024:.2f} KiB/s",
        "out_total": None if is_sink else f"{passed.bytes_out / _MIB:.2f} MiB",
        "out_throughput": None if is_sink else f"{report.bytes_out_rate / 1024:.2f} KiB/s",
        "input_bytes": queues.input_bytes, "input_capacity": queues.input_capacity, "input_peak": queues.input_peak,
        "output_bytes": queues.output_bytes, "output_capacity": queues.output_capacity,
        "output_peak": queues.output_peak, "rows_in": passed.rows_in, "rows_out": passed.rows_out,
        "bytes_in": passed.bytes_in, "bytes_out": passed.bytes_out, "aside_bytes": queues.in_flight_bytes,
    }


def _work(report: TaskReport, setting: TaskSetting) -> Row:
    """Says what time it is for the task, what it holds, and what its own time goes into."""
    status, precision = report.status, setting.precision
    time, size, spent = status.time, status.size, status.spent
    return {
        "event_time_watermark": to_ms(time.watermark, precision),
        "max_event_time": to_ms(time.max_event_time, precision), "idle": time.idle,
        "late_rows": status.late.late_rows, "refused_rows": status.late.refused_rows, **_account(report),
        "windows_open": size.windows_open, "forgotten_groups": size.forgotten_groups, "state_bytes": size.bytes,
        "state_capacity": size.capacity, "udf_errors": status.functions.errors,
        "starved_percent": _percent(report.starved), "busy_percent": _percent(report.busy),
        "blocked_percent": _percent(report.blocked), "udf_percent": _percent(report.udf),
        "blocked_seconds": spent.blocked_now_s, "busy_total_seconds": spent.busy_s,
        "blocked_total_seconds": spent.blocked_s, "udf_total_seconds": spent.udf_s, **_pacing(status),
    }


def _account(report: TaskReport) -> Row:
    """Says what became of the rows that a source task took, and since when it takes none."""
    account, intake = report.status.account, report.intake
    if report.status.log.rows_read is None:
        return {"unread_seconds": None if intake is None else intake.unread_s}
    return {"taken_rows": account.taken, "handed_on_rows": account.handed_on, "filtered_rows": account.filtered,
            "missing_rows": account.missing + (0 if intake is None else intake.passed_over),
            "unread_seconds": None if intake is None else intake.unread_s}


def _pacing(status: TaskStatus) -> Row:
    """Says how the task's stream gathers rows."""
    pacing = status.pacing
    return {"turns": pacing.turns, "gathering_ms": round(pacing.gathering_s * 1000, 1),
            "rows_per_turn": round(status.progress.rows_in / pacing.turns, 1) if pacing.turns else None}


def _checkpoint(report: TaskReport, setting: TaskSetting) -> Row:
    status, checkpoint, vgroup = report.status, setting.checkpoint, _vgroup(setting, report.status.task)
    known: Row = {
        "checkpoint_time": status.checkpoint_time_ms, "checkpoint_id": status.checkpoint_id,
        "checkpoint_backup": "none"}
    if checkpoint is None:
        return known
    version = None if vgroup is None else dict(checkpoint.versions).get(vgroup)
    return {**known, "checkpoint_ver": version, "checkpoint_size": checkpoint.task_bytes.get(str(status.task))}


def _notifications(status: TaskStatus) -> Row:
    """Says how the notifications of a sink task go; the others send none."""
    if status.task.operator != "sink":
        return {}
    return {"notify_sent": status.notified.sent, "notify_failed": status.notified.failed,
            "notify_waiting": status.notified.waiting, "notify_error": status.notified.error or None}


def watermark_row(
    stream: str, vgroup: int, report: TaskReport, reports: Sequence[TaskReport], precision: Precision
) -> Row:
    """Returns a line of ins_watermarks: what time it is for one vnode of a stream."""
    status = report.status
    time, late = status.time, status.late
    aggs = [other.status for other in reports if other.status.task.operator == "agg"]
    index = status.task.index
    mine = [agg for agg in aggs if agg.task.index == index] or aggs
    marks = [agg.time.watermark for agg in mine if agg.time.watermark is not None]
    holds = any(index in agg.time.held_back_by for agg in aggs)
    per_second = UNITS_PER_SECOND[precision]
    return {
        "stream_name": stream, "node_id": vgroup, "event_time_watermark": to_ms(time.watermark, precision),
        "max_event_time": to_ms(time.max_event_time, precision),
        "upper_bound": to_ms(time.upper_bound, precision), "idle": time.idle, "lag": report.lag,
        "late_rows": late.late_rows + sum(dict(agg.late.late_forgotten).get(index, 0) for agg in aggs),
        "late_kept": sum(dict(each.late.late_kept).get(index, 0) for each in (status, *aggs)),
        "future_rows": late.future_rows, "error_rows": late.error_rows, "idle_since": time.idle_since_ms,
        "holds_back": holds, "processed_version": status.log.processed_version,
        "stream_watermark": to_ms(min(marks), precision) if marks else None,
        "suggested_watermark": suggestion(late.lateness, per_second),
        "lateness": histogram_text(late.lateness, per_second),
    }


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100.0 * share, 1)


def _task_status(state: str) -> str:
    """Returns TDengine's word for a task's state."""
    return {"STARTING": "uninit", "PAUSED": "paused", "STOPPED": "stop", "FAILED": "dropped",
            "ALIGNING": "checkpoint"}.get(state, "ready")


def to_ms(units: int | None, precision: Precision) -> int | None:
    """Returns milliseconds of units of a database's precision."""
    return None if units is None else units * 1000 // UNITS_PER_SECOND[precision]
