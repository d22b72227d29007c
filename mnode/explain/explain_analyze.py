"""EXPLAIN ANALYZE STREAM: what each task of a running stream did between two looks at it. Doesn't wait itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.common.errors import UnavailableError
from penstock.mnode.access.session import Result, rows_result
from penstock.mnode.coordinator.stream_status import StreamInfo
from penstock.mnode.coordinator.task_monitor import TaskReport
from penstock.mnode.explain.explain_stream import work_of
from penstock.mnode.explain.stream_verdict import TaskNames
from penstock.planner.task_plans.stream_plan import StreamPlan
from penstock.sql.types import BIGINT, DOUBLE, DataType, Kind
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.protocol.task_graph import TaskGraph
from penstock.tasks.protocol.task_status import TaskStatus

_TEXT = DataType(Kind.VARCHAR)
COLUMNS = (
    ("operator", _TEXT), ("rows_in_per_second", DOUBLE), ("rows_out_per_second", DOUBLE), ("busy_ms", DOUBLE),
    ("udf_ms", DOUBLE), ("blocked_percent", DOUBLE), ("starved_percent", DOUBLE), ("input_bytes", BIGINT),
    ("output_bytes", BIGINT), ("state_bytes", BIGINT), ("lag", BIGINT), ("remark", _TEXT),
)


def analysis(
    plan: StreamPlan, graph: TaskGraph, names: TaskNames, before: Sequence[TaskReport], after: Sequence[TaskReport],
    info: StreamInfo,
) -> Result:
    """Returns a line per task, upstream first, and one of the whole stream with its verdict.

    Rates and milliseconds are per second between the tasks' two reports. Raises UnavailableError if no task has
    reported twice.
    """
    earlier = {report.status.task: report.status for report in before}
    later = {report.status.task: report for report in after}
    rows: list[tuple[Any, ...]] = []
    total_in = total_out = 0.0
    for edge in graph.edges(next(iter(later)).stream_id if later else 0):
        first, last = earlier.get(edge.task), later.get(edge.task)
        if first is None or last is None or last.status.spent.elapsed_s <= first.spent.elapsed_s:
            continue
        row = _row(edge.task, names, work_of(plan, edge), first, last)
        rows.append(row)
        rows_in, rows_out = row[1:3]
        if edge.task.operator == "source":
            total_in += rows_in
        elif edge.task.operator == "sink":
            total_out += rows_out
    if not rows:
        raise UnavailableError("no task has reported during the measurement",
                               hint="FOR must be longer than heartbeatInterval, and the stream must run")
    rows.append(("stream", round(total_in, 1), round(total_out, 1), *[None] * 8, info.verdict))
    return rows_result(COLUMNS, rows)


def _row(task: TaskId, names: TaskNames, work: str, first: TaskStatus, last: TaskReport) -> tuple[Any, ...]:
    status, since = last.status, first.spent
    spent, passed = status.spent, status.progress
    seconds = spent.elapsed_s - since.elapsed_s

    def per_second(earlier: float, later: float) -> float:
        return max(0.0, (later - earlier) / seconds)

    busy = min(1.0, per_second(since.busy_s, spent.busy_s))
    blocked = min(1.0, per_second(since.blocked_s, spent.blocked_s))
    remark = f"{work}; blocked by {names(status.blocked_by)}" if status.blocked_by else work
    return (
        names(task), round(per_second(first.progress.rows_in, passed.rows_in), 1),
        round(per_second(first.progress.rows_out, passed.rows_out), 1), round(1000 * busy, 1),
        round(1000 * per_second(since.udf_s, spent.udf_s), 1), round(100 * blocked, 1),
        round(100 * max(0.0, 1.0 - busy - blocked), 1), status.queues.input_bytes, status.queues.output_bytes,
        status.size.bytes, last.lag, remark,
    )
