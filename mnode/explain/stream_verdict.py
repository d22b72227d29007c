"""The verdict on a running stream, in one line: whom everybody waits for, and why. Pure; looks at reports only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock.common.moments import moment_text
from penstock.common.quantities import mebibytes
from penstock.mnode.coordinator.stream_bounds import state_bytes
from penstock.mnode.coordinator.stream_status import StreamInfo, StreamStatus, VerdictKind
from penstock.mnode.coordinator.task_monitor import TaskReport
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.protocol.task_status import LeadingRow
from penstock.tasks.protocol.worker_nodes import Nodes

_SAME_AGAIN = 3
"""Attempts that fail for the same cause, from which on it is no passing one."""
_STATE_FULL = 0.9
"""Share of its bound from which on state counts as exhausted."""
_BLOCKED_ENOUGH = 0.2
"""Share of the last seconds that a task must have been blocked, so that a moment's fullness makes no bottleneck."""
_SATURATED = 0.85
"""Share of its time from which on the thread of a stream on one worker has no room left."""
_FAR_BUSIER = 3
_LATE_ENOUGH = 10
"""Late rows without one in time that are reported where the watermark isn't ahead of the log; fewer are disorder."""
_FAR_BEHIND, _RECORDS_BEHIND = 4, 10
"""A vnode is slow if it is so many times as many records behind as the others are, and so many more."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` is for the operator; `task`: the one it is about, if it is about one."""

    kind: VerdictKind
    reason: str
    task: TaskId | None = None

    @property
    def text(self) -> str:
        return f"STALLED: {self.reason}" if self.kind == "stalled" else self.reason


class TaskNames:
    """What operators call a stream's tasks: `sink s1/v2` is the one of stream s1 on vnode 2.

    The name of an agg task that is on an snode says so too. `right_vgroup_ids`: the vnodes of a join's right side.
    `table`: returns the name of a child or normal table by its uid.
    """

    def __init__(self, stream: str, nodes: Nodes, right_vgroup_ids: tuple[int, ...] = (),
                 table: Callable[[int], str] = str) -> None:
        self._stream = stream
        self.nodes = nodes
        self._right = right_vgroup_ids
        self.table = table

    @property
    def vnodes(self) -> int:
        return len(self.nodes.vgroup_ids)

    def vnode(self, index: int) -> str:
        right = index - self.vnodes
        if 0 <= right < len(self._right):
            return f"v{self._right[right]} (right side)"
        return f"v{self.nodes.vgroup_ids[index] if index < self.vnodes else f'?{index}'}"

    def __call__(self, task: TaskId) -> str:
        name, worker = f"{task.operator} {self._stream}/{self.vnode(task.index)}", self.nodes.worker_of(task)
        return name if worker == task.index or task.operator == "source" else f"{name} on {self.nodes.node_of(worker)}"


def with_verdict(info: StreamInfo, reports: Sequence[TaskReport], names: TaskNames) -> StreamInfo:
    """Returns the info with its verdict; a running stream that gets nowhere becomes STALLED, and one that can't write
    its results says why in its reason.
    """
    found = verdict(info, reports, names)
    if found.kind == "stalled":
        stalled = replace(info.status, state="STALLED", reason=found.reason)
        info = replace(info, status=stalled)
    elif found.kind == "external":
        info = replace(info, status=replace(info.status, reason=found.reason))
    return replace(info, verdict=found.text, verdict_kind=found.kind)


def verdict(info: StreamInfo, reports: Sequence[TaskReport], names: TaskNames) -> Verdict:
    """Returns what holds a stream up. `reports`: those of its tasks, in whichever order."""
    if info.status.state != "RUNNING" or info.status.reason:
        return Verdict("down", _down(info.status))
    silent = next((report for report in reports if report.silent_s is not None), None)
    if silent is not None:
        return Verdict("silent", f"{names(silent.status.task)}: {silent.status.reason}", silent.status.task)
    away = next((report for report in reports if report.status.state == "RETRYING"), None)
    if away is not None:
        return Verdict("external", f"{names(away.status.task)} can't deliver: {away.status.reason}", away.status.task)
    stalled = _stalled(reports)
    if stalled is not None:
        return Verdict("stalled", f"{names(stalled.status.task)} {stalled_reason(stalled)}", stalled.status.task)
    lost = _without_intake(reports, names) or _unbalanced(info, reports, names)
    if lost is not None:
        return lost
    late = _silenced(reports, names)
    if late is not None:
        return late
    if info.audit is not None and info.audit.mismatches:
        return Verdict("mismatch", f"the audit has found {info.audit.mismatches} wrong results: see SHOW INCIDENTS")
    full = next((report for report in reports if _state_share(report) >= _STATE_FULL), None)
    if full is not None:
        why = (f"its state of {mebibytes(full.status.size.bytes or 0)} has nearly reached its limit of "
               f"{mebibytes(full.status.size.capacity or 0)}")
        return Verdict("state", _sentence(names(full.status.task), why), full.status.task)
    limited = _near_state_limit(info, reports, names)
    if limited is not None:
        return limited
    end = _end_of_chain(reports) or _held_up(reports) or _saturated(reports, names.nodes)
    if end is not None:
        return _bottleneck(end, reports, names)
    return _at_ease(reports, names)


def _down(status: StreamStatus) -> str:
    text = f"{status.state}: {status.reason}" if status.reason else status.state
    if status.state != "RESTARTING" or status.alike < _SAME_AGAIN:
        return text
    return (f"{text}; {status.alike} attempts in a row have failed with this error, so it won't go away by itself: "
            "follow its hint; if there is none, see the log, or restart the engine, which ends all of its processes")


def _near_state_limit(info: StreamInfo, reports: Sequence[TaskReport], names: TaskNames) -> Verdict | None:
    held = state_bytes(report.status for report in reports)
    if not info.state_limit or held < _STATE_FULL * info.state_limit:
        return None
    task = max(reports, key=lambda report: report.status.size.bytes or 0).status.task
    why = f"it has most of the stream's state, {mebibytes(held)} of STATE_LIMIT {mebibytes(info.state_limit)}"
    return Verdict("state", _sentence(names(task), why), task)


def _without_intake(reports: Sequence[TaskReport], names: TaskNames) -> Verdict | None:
    """Returns the verdict on a source task that reads nothing although its log has more, and nothing keeps it."""
    for report in reports:
        if report.intake is not None and report.intake.unread_s is not None:
            why = (f"doesn't read: it has been at version {report.status.log.processed_version} of its log for "
                   f"{report.intake.unread_s:.0f} s, {report.intake.behind} records behind, without a known cause")
            return Verdict("intake", f"{names(report.status.task)} {why}", report.status.task)
    return None


def _unbalanced(info: StreamInfo, reports: Sequence[TaskReport], names: TaskNames) -> Verdict | None:
    """Returns the verdict on a source task that has lost rows, or made more of them."""
    for report in reports:
        account, task = report.status.account, report.status.task
        if account.missing:
            counts = ", ".join(f"{count} {name.replace('_', ' ')}"
                               for name, count in zip(account._fields, account, strict=True) if count)
            return Verdict("unbalanced", f"{names(task)} is unbalanced in attempt {info.status.attempt}: "
                           f"{account.missing} rows are unaccounted for; {counts}", task)
        if report.intake is not None and report.intake.passed_over:
            return Verdict("unbalanced", f"{names(task)} is unbalanced in attempt {info.status.attempt}: it has "
                           f"skipped {report.intake.passed_over} rows of its log", task)
    return None


def _silenced(reports: Sequence[TaskReport], names: TaskNames) -> Verdict | None:
    """Returns the verdict on a source task whose time a row has set so that others are late; of several tasks, on the
    one with most late rows."""
    found = [(row.late, report.status.task, row) for report in reports
             if (row := report.status.late.leading) is not None and _silences(row)]
    if not found:
        return None
    late, task, row = max(found, key=lambda one: one[0])
    because = (f"are late since {moment_text(row.since_ms)}, because of {names.table(row.tuid)}'s row of "
               f"{moment_text(row.ts_ms)}")
    if not row.timely:
        return Verdict("late", f"all rows {because}: {late} by now, at {names(task)}", task)
    whose = "" if row.silent_tuid is None else names.table(row.silent_tuid)
    if row.silent > 1:
        whose += f" and {row.silent - 1} other tables"
    return Verdict("late", f"rows of {whose} {because}: {late} of {late + row.timely} by now, at {names(task)}", task)


def _silences(row: LeadingRow) -> bool:
    """Whether rows are late because of this one, not by the disorder that they come in."""
    if row.ahead:
        return not row.timely or row.silent > 0
    return not row.timely and row.late >= _LATE_ENOUGH


def stalled_reason(report: TaskReport) -> str:
    """Returns why a task counts as stalled."""
    return f"has work to do and made no progress for {report.stalled_s or 0:.0f} s; was {report.status.state}"


def _stalled(reports: Sequence[TaskReport]) -> TaskReport | None:
    """Returns the task that gets nowhere. One that waits for another is only as stalled as that one is."""
    by_task = _by_task(reports)
    for report in reports:
        if report.stalled_s is not None:
            end = _follow(report, by_task)
            if end.stalled_s is not None:
                return end
    return None


def _end_of_chain(reports: Sequence[TaskReport]) -> TaskReport | None:
    """Follows who blocks whom to the task at the end, from the task that has been blocked most of all."""
    blocked = [report for report in reports if report.status.blocked_by and (
        report.blocked is None or report.blocked >= _BLOCKED_ENOUGH)]
    if not blocked:
        return None
    return _follow(max(blocked, key=lambda report: report.blocked or 0.0), _by_task(reports))


def _by_task(reports: Sequence[TaskReport]) -> dict[TaskId, TaskReport]:
    return {report.status.task: report for report in reports}


def _follow(report: TaskReport, by_task: dict[TaskId, TaskReport]) -> TaskReport:
    # Reports are of different moments, so two tasks may seem to wait for each other.
    seen = {report.status.task}
    while (task := report.status.blocked_by) and task in by_task and task not in seen:
        seen.add(task)
        report = by_task[task]
    return report


def _held_up(reports: Sequence[TaskReport]) -> TaskReport | None:
    """Returns a task that is held up by nobody in the stream and holds nobody up yet.

    A sink that can't write as fast as results come, or else a source that may not read as fast as rows come.
    """
    waiting = [report for report in reports if report.status.blocked_by is None and report.status.task.operator != "agg"
               and _has_more(report) and (report.blocked or 0.0) >= _SATURATED]
    return max(waiting, key=lambda report: (report.status.task.operator == "sink", _waiting(report)), default=None)


def _saturated(reports: Sequence[TaskReport], nodes: Nodes) -> TaskReport | None:
    """Returns the busiest task of the worker whose tasks together leave no time, if some have more to do."""
    threads: dict[int, list[TaskReport]] = {}
    for report in reports:
        threads.setdefault(nodes.worker_of(report.status.task), []).append(report)
    full = [tasks for tasks in threads.values() if _busy(tasks) >= _SATURATED and any(map(_has_more, tasks))]
    return _busiest(max(full, key=_busy)) if full else None


def _busy(tasks: Sequence[TaskReport]) -> float:
    return sum(report.busy or 0.0 for report in tasks)


def _busiest(tasks: Sequence[TaskReport]) -> TaskReport:
    return max(tasks, key=lambda report: report.busy or 0.0)


def _has_more(report: TaskReport) -> bool:
    return bool(report.lag) or _waiting(report) > 0


def _waiting(report: TaskReport) -> int:
    return report.status.queues.input_bytes + report.status.queues.in_flight_bytes


def _bottleneck(end: TaskReport, reports: Sequence[TaskReport], names: TaskNames) -> Verdict:
    task = end.status.task
    why, kind = _why(end)
    if task.operator == "source" and any(report.status.blocked_by == task for report in reports):
        why += "; others wait, since they are ahead of its rows by more than MAX_SKEW"
    if kind in ("sink", "source"):
        return Verdict(kind, _sentence(names(task), why), task)
    behind = _far_behind(reports)
    if behind == names.nodes.worker_of(task):
        others = max(report.lag or 0 for report in reports if report.status.task.index != behind)
        lag = max(report.lag or 0 for report in reports if report.status.task.index == behind)
        text = f"vnode {names.vnode(behind)} is {lag} records behind, the others at most {others}; "
        return Verdict("vnode", text + _sentence(names(task), why), task)
    siblings = [report for report in reports if report.status.task.operator == "agg" and report is not end]
    if kind == "busy" and task.operator == "agg" and siblings and (
            (end.busy or 0.0) >= _FAR_BUSIER * (_busiest(siblings).busy or 0.0)):
        why = f"its groups take far more time than those of other agg tasks, {end.busy:.0%} busy against at most " \
              f"{_busiest(siblings).busy or 0.0:.0%}"
        return Verdict("skew", _sentence(names(task), why), task)
    return Verdict(kind, _sentence(names(task), why), task)


def _why(end: TaskReport) -> tuple[str, VerdictKind]:
    status = end.status
    kind: VerdictKind = "sink" if status.task.operator == "sink" else "source"
    if end.blocked is None or end.blocked >= (end.busy or 0.0):
        if status.spent.limit and (end.limited is None or 2 * end.limited >= (end.blocked or 0.0)):
            return status.spent.limit, kind
        if kind == "sink" and status.state in ("WRITING", "RATE_LIMITED"):
            return "its writes are acknowledged slowly", "sink"
    busy = end.busy
    if busy is None:
        return f"{status.state}, {status.reason}" if status.reason else status.state, "busy"
    if end.udf is not None and busy > 0 and 2 * end.udf >= busy:
        return f"{end.udf:.0%} of its time goes into the function {status.functions.slowest}", "function"
    return f"busy {busy:.0%} of the time", "busy"


def _far_behind(reports: Sequence[TaskReport]) -> int | None:
    """Returns the place of the one vnode that is far more records behind than all others."""
    lags: dict[int, int] = {}
    for report in reports:
        if report.lag is not None:
            lags[report.status.task.index] = report.lag
    if len(lags) < 2:
        return None
    *_, others, most = sorted(lags.values())
    if most < others * _FAR_BEHIND + _RECORDS_BEHIND:
        return None
    return next(index for index, lag in lags.items() if lag == most)


def _at_ease(reports: Sequence[TaskReport], names: TaskNames) -> Verdict:
    left_out = _from_the_future(reports, names)
    if not reports:
        return Verdict("healthy", "healthy")
    if not any(_has_more(report) or report.rows_in_rate for report in reports):
        return Verdict("idle", f"idle: all rows are processed{left_out}")
    busiest = _busiest(reports)
    if busiest.busy is None:
        return Verdict("healthy", f"healthy{left_out}")
    text = f"healthy: {names(busiest.status.task)} is the busiest, {busiest.busy:.0%} of the time"
    gathering_ms = max((round(report.status.pacing.gathering_s * 1000, 1) for report in reports
                        if report.status.pacing.is_at_its_bound), default=0.0)
    if gathering_ms:
        text += f"; rows gather for {gathering_ms:g} ms, the maximum, since its workers are busy"
    return Verdict("healthy", text + left_out, busiest.status.task)


def _from_the_future(reports: Sequence[TaskReport], names: TaskNames) -> str:
    """Says which rows are left out since they are too far in the future; empty if none are."""
    rows = sum(report.status.late.future_rows for report in reports)
    known = [row for report in reports if (row := report.status.late.future) is not None]
    if not known:
        return ""
    last = max(known, key=lambda row: row.since_ms)
    return (f"; rows from the future are left out since {moment_text(min(row.since_ms for row in known))}: {rows} by "
            f"now, such as {names.table(last.tuid)}'s of {moment_text(last.ts_ms)}")


def _state_share(report: TaskReport) -> float:
    status = report.status
    return (status.size.bytes or 0) / status.size.capacity if status.size.capacity else 0.0


def _sentence(name: str, why: str) -> str:
    return f"{name} is the bottleneck: {why}"
