"""The verdict names the true bottleneck, on staged reports and on real tasks; time is counted where it is spent."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from kits.streams.stream_kit import Catalog, Store, StreamKit, unhurried

from penstock.common.clock import ManualClock
from penstock.mnode.coordinator.stream_status import StreamInfo, StreamStatus
from penstock.mnode.coordinator.task_monitor import Monitor, TaskReport
from penstock.mnode.explain.stream_verdict import TaskNames, Verdict, verdict, with_verdict
from penstock.sql.schema import UserFunction
from penstock.sql.types import INT
from penstock.tasks.operators.state_tracker import StateTracker
from penstock.tasks.protocol.messages import ResultWrite, TaskId
from penstock.tasks.protocol.task_status import (
    FunctionStatus,
    FutureRows,
    LateRows,
    LeadingRow,
    Pacing,
    QueueStatus,
    StateSize,
    TaskStatus,
    TimeSpent,
)
from penstock.tasks.protocol.worker_nodes import Nodes
from penstock.tasks.source.source_task import SourceTask
from penstock.tasks.window.window_agg import WindowAggTask
from penstock.tasks.worker.runner import StreamRunner, drive_once, statuses
from penstock.tasks.worker.timesheet import Timesheet
from penstock.tasks.worker.turn_threads import TurnThreads
from penstock.tasks.worker.turns import Gathering, TurnQueue

RUNNING = StreamInfo(StreamStatus("RUNNING"))
AT_2_MB = TimeSpent(limit="its rate limit of 2 MB/s")
NAMES = TaskNames("s1", Nodes((2, 3, 4)))


def report(level: Any, index: int = 0, *, stalled_s: float | None = None, silent_s: float | None = None,
           rate: float = 0.0, lag: int | None = None, busy: float | None = 0.1, blocked: float | None = 0.0,
           limited: float | None = 0.0, udf: float | None = 0.0, **status: Any) -> TaskReport:
    if level == "source" and lag is None:
        lag = 0
    return TaskReport(TaskStatus(TaskId(7, level, index), **{"state": "RUNNING", **status}), rate, 0, 0, lag,
                      silent_s, stalled_s, busy, blocked, limited, udf)


def told(*reports: TaskReport) -> Verdict:
    return verdict(RUNNING, reports, NAMES)


# --- staged reports --------------------------------------------------------------------------------------------------


def test_a_sink_at_its_rate_limit_is_named_through_the_chain() -> None:
    """Source waits for agg, agg for the sink, the sink for its rate."""
    found = told(
        report("source", state="BACKPRESSURED", blocked_by=TaskId(7, "agg", 0), blocked=0.9, lag=500),
        report("agg", state="BACKPRESSURED", blocked_by=TaskId(7, "sink", 0), blocked=0.8),
        report("sink", state="RATE_LIMITED", spent=AT_2_MB, blocked=0.99, limited=0.97, busy=0.01),
    )
    assert found == Verdict("sink", "sink s1/v2 is the bottleneck: its rate limit of 2 MB/s", TaskId(7, "sink", 0))


def test_a_sink_at_its_rate_limit_is_named_before_anybody_waits() -> None:
    """Queues of 60 MB take long to fill; a sink without a free moment is told at once, one with none waiting isn't."""
    sink = {"state": "RATE_LIMITED", "spent": AT_2_MB, "blocked": 0.95, "limited": 0.95}
    assert told(report("source", rate=9.0), report("sink", queues=QueueStatus(10), **sink)).kind == "sink"
    assert told(report("source", rate=9.0), report("sink", queues=QueueStatus(0), **sink)).kind == "healthy"


def test_a_sink_whose_writes_take_long_is_told_apart_from_a_limited_one() -> None:
    """It was limited once, but nearly all of its time goes into waiting for acknowledgements."""
    found = told(report("source", state="BACKPRESSURED", blocked_by=TaskId(7, "sink", 0), blocked=0.9),
                 report("sink", state="WRITING", spent=AT_2_MB, blocked=0.9, limited=0.1))
    assert found.text == "sink s1/v2 is the bottleneck: its writes are acknowledged slowly"


def test_a_slow_function_is_named() -> None:
    """The agg task is busy, and nearly all of it in one function."""
    found = told(
        report("source", state="BACKPRESSURED", blocked_by=TaskId(7, "agg", 0), blocked=0.9, lag=70),
        report("agg", busy=0.97, udf=0.93, functions=FunctionStatus(slowest="crunch"), queues=QueueStatus(99)),
    )
    assert found == Verdict("function", "agg s1/v2 is the bottleneck: 93% of its time goes into the function crunch",
                            TaskId(7, "agg", 0))


def test_one_slow_vnode_is_named() -> None:
    """Its tasks are far behind those of the others, and it has no time left."""
    found = told(report("source", 0, lag=4), report("source", 1, lag=3000, busy=0.96), report("source", 2, lag=9))
    assert found == Verdict(
        "vnode", "vnode v3 is 3000 records behind, the others at most 9; source s1/v3 is the bottleneck: busy 96% of "
        "the time", TaskId(7, "source", 1))
    assert told(report("source", 0, lag=2000), report("source", 1, lag=3000, busy=0.96)).kind == "busy"


LED = LeadingRow(11, 1_704_103_200_000, 1_704_067_200_000, True, 3, 0, 11, 1)
BECAUSE = "are late since 2024-01-01 00:00:00.000, because of 11's row of 2024-01-01 10:00:00.000"


@pytest.mark.parametrize(("row", "told_of"), [
    (LED, f"all rows {BECAUSE}: 3 by now, at source s1/v2"),
    (LED._replace(timely=4), f"rows of 11 {BECAUSE}: 3 of 7 by now, at source s1/v2"),
    (LED._replace(timely=4, silent=3), f"rows of 11 and 2 other tables {BECAUSE}: 3 of 7 by now, at source s1/v2"),
    (LED._replace(timely=4, silent_tuid=None, silent=0), None),
    (LED._replace(ahead=False, late=9), None),
    (LED._replace(ahead=False, late=10), f"all rows {BECAUSE}: 10 by now, at source s1/v2"),
    (LED._replace(ahead=False, late=99, timely=1), None),
])
def test_a_row_that_silences_others_is_named(row: LeadingRow, told_of: str | None) -> None:
    """Nothing holds the stream up, and nothing comes out of it; disorder in what comes is no such case."""
    found = told(report("source", late=LateRows(row.late, leading=row)), report("source", 1), report("agg"))
    assert found.kind == ("idle" if told_of is None else "late")
    assert told_of in (None, found.text)


def test_rows_from_the_future_are_named_beside_what_else_is_said() -> None:
    """They are left out, and all is well with the others."""
    late = LateRows(future_rows=2, future=FutureRows(12, 4_070_908_800_000, 1_704_067_200_000))
    assert told(report("source", late=late)).text == (
        "idle: all rows are processed; rows from the future are left out since 2024-01-01 "
        "00:00:00.000: 2 by now, such as 12's of 2099-01-01 00:00:00.000")


def test_a_skewed_group_is_named() -> None:
    """One of the agg tasks has far more work than its siblings, and all sources wait for it."""
    sources = [report("source", n, state="BACKPRESSURED", blocked_by=TaskId(7, "agg", 1), blocked=0.7, lag=800)
               for n in (0, 1)]
    found = told(*sources, report("agg", 0, busy=0.2), report("agg", 1, busy=0.95, queues=QueueStatus(10)))
    assert found == Verdict(
        "skew", "agg s1/v3 is the bottleneck: its groups take far more time than those of other agg tasks, 95% busy "
        "against at most 20%", TaskId(7, "agg", 1))
    assert told(*sources, report("agg", 0, busy=0.8), report("agg", 1, busy=0.95)).kind == "busy"


def test_a_source_whose_rows_others_wait_for_is_named() -> None:
    """MAX_SKEW holds the fast side back in the agg task's queue: the slow side is what everybody waits for."""
    found = told(
        report("source", 0, state="BACKPRESSURED", blocked_by=TaskId(7, "agg", 0), blocked=0.9, lag=500),
        report("source", 1, state="RATE_LIMITED", spent=TimeSpent(limit="its rate limit of 10 rows/s"), blocked=0.9,
               limited=0.9, lag=9),
        report("agg", state="IDLE", blocked_by=TaskId(7, "source", 1), queues=QueueStatus(99)))
    assert found == Verdict("source", "source s1/v3 is the bottleneck: its rate limit of 10 rows/s; others wait, "
                            "since they are ahead of its rows by more than MAX_SKEW", TaskId(7, "source", 1))


def test_exhausted_state_is_named() -> None:
    """State that has nearly reached its bound is told before it fails, whatever else is the case."""
    found = told(report("source", state="BACKPRESSURED", blocked_by=TaskId(7, "agg", 0)),
                 report("agg", size=StateSize(95 << 20, 100 << 20)))
    assert found.text == ("agg s1/v2 is the bottleneck: its state of 95.0 MiB has nearly reached its limit of "
                          "100.0 MiB")


def test_a_stream_near_its_state_limit_is_told_with_the_task_that_has_most() -> None:
    """All tasks count together, nine tenths are enough, and no limit is none."""
    reports = [report("source", size=StateSize(10 << 20)), report("agg", 1, size=StateSize(81 << 20))]
    found = verdict(replace(RUNNING, state_limit=100 << 20), reports, NAMES)
    assert found == Verdict("state", "agg s1/v3 is the bottleneck: it has most of the stream's state, 91.0 MiB of "
                            "STATE_LIMIT 100.0 MiB", TaskId(7, "agg", 1))
    assert verdict(replace(RUNNING, state_limit=102 << 20), reports, NAMES).kind != "state"
    assert verdict(RUNNING, reports, NAMES).kind != "state"


def test_a_stream_that_fails_again_and_again_is_told_what_to_do() -> None:
    """A reason that doesn't pass by itself needs somebody; one that was there twice may pass yet."""
    held = StreamInfo(StreamStatus("RESTARTING", "the state is held by process 12", alike=2))
    assert verdict(held, [], NAMES).text == "RESTARTING: the state is held by process 12"
    text = verdict(replace(held, status=replace(held.status, alike=3)), [], NAMES).text
    assert text.startswith("RESTARTING: the state is held by process 12; 3 attempts in a row have failed")
    assert "restart the engine" in text


def test_an_idle_source_is_no_bottleneck() -> None:
    """Everything is read and nothing comes; as soon as rows come the stream is healthy."""
    assert told(report("source", state="IDLE", busy=0.0), report("sink", state="IDLE", busy=0.0)).kind == "idle"
    healthy = told(report("source", rate=100.0, busy=0.3), report("sink", busy=0.1))
    assert healthy.text == "healthy: source s1/v2 is the busiest, 30% of the time"


def test_gathering_at_its_bound_is_told() -> None:
    """Rows come later then than they could; below the bound, and where nothing gathers, there is nothing to say."""
    def text(gathering_s: float, bound_s: float) -> str:
        return told(report("source", rate=100.0, busy=0.3, pacing=Pacing(5, gathering_s, bound_s))).text

    assert text(0.02, 0.02) == ("healthy: source s1/v2 is the busiest, 30% of the time; rows gather for 20 ms, "
                                "the maximum, since its workers are busy")
    assert text(0.015, 0.02) == text(0.0, 0.02) == text(0.0, 0.0) == (
        "healthy: source s1/v2 is the busiest, 30% of the time")


def test_a_moment_without_room_makes_no_bottleneck() -> None:
    """A task that happens to be blocked when it is asked, and hardly ever was, isn't held up by anybody."""
    assert told(report("source", state="BACKPRESSURED", blocked_by=TaskId(7, "sink", 0), blocked=0.02, rate=1.0),
                report("sink")).kind == "healthy"


def test_tasks_of_one_vnode_share_a_thread() -> None:
    """Neither task is busy all the time, together they are: the busier one is named."""
    found = told(report("source", busy=0.4, lag=5), report("agg", busy=0.55))
    assert found.text == "agg s1/v2 is the bottleneck: busy 55% of the time"
    assert told(report("source", busy=0.4), report("agg", busy=0.55)).kind == "idle"


def test_tasks_on_an_snode_share_its_thread_and_no_other() -> None:
    """Agg tasks there are told so; with a vnode they have no more in common than a number."""
    names = TaskNames("s1", Nodes((2, 3), (1012,)))
    apart = [report("source", busy=0.5, lag=5), report("agg", 0, busy=0.5)]
    assert verdict(RUNNING, apart, names).kind == "healthy"
    full = verdict(RUNNING, [*apart, report("agg", 1, busy=0.45, queues=QueueStatus(9))], names)
    assert full.text == "agg s1/v2 on snode 1012 is the bottleneck: busy 50% of the time"
    sources = [report("source", 0, lag=4, state="BACKPRESSURED", blocked_by=TaskId(7, "agg", 1), blocked=0.9),
               report("source", 1, lag=3000, state="BACKPRESSURED", blocked_by=TaskId(7, "agg", 1), blocked=0.9)]
    assert verdict(RUNNING, [*sources, report("agg", 1, busy=0.96)], names).kind == "busy"
    assert told(*sources, report("agg", 1, busy=0.96)).kind == "vnode"


def test_a_circle_of_waiting_tasks_ends() -> None:
    """Reports are of different moments, so two tasks may seem to wait for each other."""
    assert "bottleneck" in told(report("source", blocked_by=TaskId(7, "agg", 0), blocked=None, busy=None),
                                report("agg", blocked_by=TaskId(7, "source", 0), blocked=None, busy=None)).text


def test_stalled_and_silent_tasks_are_named() -> None:
    """A stalled task makes the stream STALLED; a silent one is told; a state that isn't RUNNING keeps its reason."""
    stalled = with_verdict(RUNNING, [report("source"), report("agg", stalled_s=31.0)], NAMES)
    assert stalled.status.state == "STALLED"
    assert stalled.status.reason == "agg s1/v2 has work to do and made no progress for 31 s; was RUNNING"
    assert stalled.verdict == f"STALLED: {stalled.status.reason}"
    assert told(report("sink", silent_s=4.0, reason="no heartbeat for 4 s")).text == "sink s1/v2: no heartbeat for 4 s"
    paused = with_verdict(StreamInfo(StreamStatus("PAUSED", "by the user")), [report("agg", stalled_s=31.0)], NAMES)
    assert (paused.status.state, paused.verdict) == ("PAUSED", "PAUSED: by the user")


def test_a_task_that_waits_for_a_moving_one_is_not_stalled() -> None:
    """A sink that takes a minute per block holds its source up without a standstill; one that hangs is the culprit."""
    source = report("source", state="BACKPRESSURED", blocked_by=TaskId(7, "sink", 0), blocked=1.0, stalled_s=60.0,
                    lag=9)
    limited = {"state": "RATE_LIMITED", "spent": AT_2_MB, "blocked": 1.0, "limited": 1.0}
    assert told(source, report("sink", **limited)).kind == "sink"
    assert told(source, report("sink", **limited, stalled_s=60.0)).task == TaskId(7, "sink", 0)


# --- real tasks ------------------------------------------------------------------------------------------------------


def watched(
    kit: StreamKit, seconds: int, feed: Callable[[], None] = lambda: None
) -> tuple[Verdict, dict[str, TaskReport]]:
    """Lets the stream work for some seconds of the virtual clock; returns what is made of its heartbeats.

    `feed` is called before each heartbeat.
    """
    monitor = Monitor(100, 100)
    until = kit.clock.monotonic() + seconds
    while kit.clock.monotonic() < until:
        feed()
        monitor.heartbeat(kit.stream.statuses(), kit.clock.monotonic())
        for _ in range(5):
            kit.stream.step()
            kit.clock.advance(0.02)
    reports = monitor.report(kit.clock.monotonic())
    names = TaskNames("s", Nodes(tuple(kit.vnodes)))
    return verdict(RUNNING, reports, names), {r.status.task.operator: r for r in reports}


def rows(count: int, first: int = 0) -> list[tuple[Any, ...]]:
    return [(n % 4, first + n, 220, 1.0, "x" * 10) for n in range(count)]


def test_a_slow_sink_is_found_on_real_tasks(tmp_path: Path) -> None:
    """Queues are small, the sink may write 1 kB/s: it is blocked by its limit, the source by it."""
    kit = StreamKit(
        tmp_path, "CREATE STREAM s TRIGGER AT_ONCE INTO o AS SELECT ts, voltage, note FROM meters PARTITION BY tbname",
        settings=unhurried(sink_bytes_per_second=1000.0, queue_bytes=16_384, block_bytes_max=2048))
    for batch in range(20):
        kit.insert(rows(100, batch * 100))
    found, reports = watched(kit, 20)
    assert found.text == "sink s/v1 is the bottleneck: its rate limit of 0.001 MB/s"
    sink, source = reports["sink"], reports["source"]
    assert source.status.state == "BACKPRESSURED"
    assert source.blocked is not None
    assert source.blocked > 0.9
    assert source.status.spent.blocked_now_s > 1
    assert sink.limited is not None
    assert sink.limited > 0.9
    kit.close()


def test_a_slow_function_is_found_on_real_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that takes a second per block takes nearly all of the source's time."""
    function = UserFunction("crunch", False, (INT,), INT, "slow:crunch", 1, 1, 7)
    (tmp_path / "slow.py").write_text(
        "import staged_clock\n\ndef crunch(x):\n    staged_clock.clock.advance(1.0)\n    return x\n")
    store = Store(tmp_path, Catalog(1, 4, (function,)))
    monkeypatch.setitem(sys.modules, "staged_clock", SimpleNamespace(clock=store.clock))
    kit = StreamKit(
        tmp_path, "CREATE STREAM s TRIGGER AT_ONCE INTO o AS SELECT ts, crunch(voltage) v FROM meters "
        "PARTITION BY tbname",
        settings=unhurried(functions_directory=tmp_path), store=store)
    found, reports = watched(kit, 20, lambda: kit.insert(rows(10)))
    assert found.kind == "function"
    assert found.text.startswith("source s/v1 is the bottleneck: 9")
    assert found.text.endswith("of its time goes into the function crunch")
    assert reports["source"].busy is not None
    assert reports["source"].busy > 0.9
    assert reports["source"].udf == pytest.approx(reports["source"].busy)
    assert reports["sink"].busy == 0
    kit.close()
    store.close()


def test_a_skewed_group_is_found_on_real_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging takes its time per row, and nearly all rows are of one group: its agg task holds both sources up."""
    kit = StreamKit(
        tmp_path, "CREATE STREAM s TRIGGER AT_ONCE INTO o AS SELECT _wstart, count(*) FROM meters PARTITION BY note "
        "INTERVAL(10s)", vnodes=2, tables=8, settings=unhurried(queue_bytes=32_768, block_bytes_max=2048))
    merge = WindowAggTask._merge

    def slow(task: WindowAggTask, data: pa.RecordBatch, input: int) -> None:
        kit.clock.advance(0.05 * data.num_rows)
        merge(task, data, input)

    monkeypatch.setattr(WindowAggTask, "_merge", slow)
    fed = itertools.count()

    def feed() -> None:
        numbers = [next(fed) for _ in range(400)]
        kit.insert([(n % 8, n * 10_000, 1, 1.0, "many" if n % 20 else f"few{n % 7}") for n in numbers])

    found, _ = watched(kit, 60, feed)
    assert found.kind == "skew"
    assert found.task is not None
    assert found.task.operator == "agg"
    busy = {task.id: status.spent.busy_s for task, status in zip(kit.tasks, kit.stream.statuses(), strict=True)}
    assert max(busy, key=busy.__getitem__) == found.task
    kit.close()


def test_one_slow_vnode_is_found_on_real_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each vnode has a thread of its own; on the second one a step of the source takes nearly a second, and it falls
    behind, while the first one reads all that comes."""
    kit = StreamKit(
        tmp_path, "CREATE STREAM s TRIGGER AT_ONCE INTO o AS SELECT ts, voltage FROM meters PARTITION BY tbname",
        vnodes=2, tables=8, settings=unhurried(block_rows_max=1))
    step = SourceTask.step

    def slow(task: SourceTask) -> bool:
        if task.id.index == 1:
            kit.clock.advance(0.9)
        return step(task)

    monkeypatch.setattr(SourceTask, "step", slow)
    fast, held_up = ([task for task in kit.tasks if task.id.index == place] for place in range(2))
    sheets = [Timesheet(kit.clock, len(tasks)) for tasks in (fast, held_up)]
    monitor = Monitor(100, 100)
    for second in range(20):
        for batch in range(5):
            kit.insert([(table, 10 * second + batch, 1, 1.0, "x") for table in range(8)])
        while drive_once(fast, kit.stream.links, sheets[0]):
            pass
        drive_once(held_up, kit.stream.links, sheets[1])
        kit.clock.advance(0.1)
        for tasks, sheet in zip((fast, held_up), sheets, strict=True):
            monitor.heartbeat(sheet.filled_in(statuses(tasks, kit.stream.links)), kit.clock.monotonic())
    reports = monitor.report(kit.clock.monotonic())
    found = verdict(RUNNING, reports, TaskNames("s", Nodes(tuple(kit.vnodes))))
    behind = max(report.lag or 0 for report in reports)
    assert behind >= 20 * 5 - 20
    assert found.text == (f"vnode v2 is {behind} records behind, the others at most 0; source s/v2 is the bottleneck: "
                          "busy 90% of the time")
    kit.close()


def test_exhausted_state_is_found_on_real_tasks(tmp_path: Path) -> None:
    """Windows without end: the agg task is named once all state is nearly as much as the stream's STATE_LIMIT, or its
    own nearly as much as stateMapSize; before that, nothing is."""
    limit, map_bytes = 1 << 19, 1 << 20
    kit = StreamKit(
        tmp_path, "CREATE STREAM s INTO o AS SELECT _wstart, count(*) FROM meters PARTITION BY note INTERVAL(10s)",
        settings=unhurried(state_map_bytes=map_bytes))
    kinds: list[tuple[str, str]] = []
    for first in range(0, 30_000, 1000):
        kit.insert([(0, 10_000 * n, 1, 1.0, "x") for n in range(first, first + 1000)])
        kit.run()
        monitor = Monitor(100, 100)
        monitor.heartbeat(kit.stream.statuses(), kit.clock.monotonic())
        reports = monitor.report(kit.clock.monotonic())
        held = [report.status.size.bytes or 0 for report in reports]
        verdicts = [verdict(info, reports, TaskNames("s", Nodes((1,))))
                    for info in (replace(RUNNING, state_limit=limit), RUNNING)]
        assert [found.kind == "state" for found in verdicts] == [sum(held) >= 0.9 * limit, max(held) >= 0.9 * map_bytes]
        assert {found.task for found in verdicts if found.kind == "state"} <= {TaskId(1, "agg", 0)}
        kinds.append((verdicts[0].kind, verdicts[1].kind))
        if kinds[-1] == ("state", "state"):
            break
    assert kinds[0] == ("idle", "idle")
    assert ("state", "idle") in kinds
    assert kinds[-1] == ("state", "state")
    kit.close()


class Deaf:
    """Takes writes and never acknowledges one."""

    def submit(self, write: ResultWrite) -> None:
        return

    def acknowledged(self) -> int:
        return 0


def test_the_watchdog_finds_real_tasks_that_get_nowhere(tmp_path: Path) -> None:
    """A sink whose writes are never acknowledged, with more behind them, is STALLED after the timeout, not before."""
    kit = StreamKit(
        tmp_path, "CREATE STREAM s TRIGGER AT_ONCE INTO o AS SELECT ts, voltage FROM meters PARTITION BY tbname",
        writer=lambda task: Deaf())
    monitor, names = Monitor(100, 30), TaskNames("s", Nodes((1,)))
    seen = []
    for second in range(40):
        kit.insert(rows(5, second * 5))
        kit.run()
        monitor.heartbeat(kit.stream.statuses(), kit.clock.monotonic())
        seen.append(verdict(RUNNING, monitor.report(kit.clock.monotonic()), names).kind)
        kit.clock.advance(1.0)
    assert "stalled" not in seen[:31]
    assert seen[-5:] == ["stalled"] * 5
    last = with_verdict(RUNNING, monitor.report(kit.clock.monotonic()), names)
    assert last.status.state == "STALLED"
    assert last.verdict.startswith("STALLED: sink s/v1 has work to do and made no progress for 3")
    kit.close()


def test_an_idle_stream_is_told_on_real_tasks(tmp_path: Path) -> None:
    """Once everything is read and seconds have gone by without rows, there is no bottleneck to look for."""
    kit = StreamKit(
        tmp_path, "CREATE STREAM s TRIGGER AT_ONCE INTO o AS SELECT ts, voltage FROM meters PARTITION BY tbname")
    kit.insert(rows(100))
    kit.run()
    assert watched(kit, 10)[0].text == "idle: all rows are processed"
    kit.close()


# --- time accounting -------------------------------------------------------------------------------------------------


def test_a_tracker_adds_up_blocked_time() -> None:
    """Going from one kind of waiting to another goes on; what is counted as limited is a part of it."""
    clock = ManualClock()
    tracker = StateTracker(clock)
    for name, reason in (("WRITING", ""), ("RATE_LIMITED", "1 MB/s"), ("RUNNING", ""), ("BACKPRESSURED", "full")):
        tracker.enter(name, reason)  # type: ignore[arg-type]
        clock.advance(2.0)
    blocked = tracker.blocked()
    assert (blocked.total_s, blocked.now_s, blocked.limited_s, blocked.limit) == (6.0, 2.0, 2.0, "1 MB/s")
    tracker.enter("IDLE")
    clock.advance(9.0)
    assert (tracker.blocked().total_s, tracker.blocked().now_s) == (6.0, 0.0)


def test_a_timesheet_counts_steps_also_the_one_under_way() -> None:
    """Each second belongs to one task or to none; a task in a long step is seen at work, who was blocked still is."""
    clock = ManualClock()
    sheet = Timesheet(clock, 2)
    answered = (TaskStatus(TaskId(1, "source", 0), "IDLE"),
                TaskStatus(TaskId(1, "sink", 0), "BACKPRESSURED", spent=TimeSpent(blocked_s=5.0, blocked_now_s=1.0)))
    for place in (0, 1, None):
        sheet.turn_to(place)
        clock.advance(1.0)
    first = sheet.filled_in(answered)
    assert [(status.spent.busy_s, status.spent.elapsed_s) for status in first] == [(1.0, 3.0), (1.0, 3.0)]
    sheet.turn_to(0)
    clock.advance(4.0)
    source, sink = sheet.filled_in(first, answered_at=3.0)
    assert (source.spent.busy_s, source.state, source.reason) == (5.0, "RUNNING", "in the same step for 4 s")
    spent = sink.spent
    assert (spent.busy_s, spent.blocked_s, spent.blocked_now_s, spent.elapsed_s) == (1.0, 9.0, 5.0, 7.0)


def test_a_runner_in_a_long_step_reports_it() -> None:
    """While a step lasts, who asks sees the task at work for ever longer, not what it was before."""
    clock = ManualClock()
    in_step, go_on = threading.Event(), threading.Event()

    class Stuck:
        id = TaskId(1, "source", 0)

        def step(self) -> bool:
            in_step.set()
            go_on.wait()
            return False

        def next_deadline(self) -> None:
            return None

        def status(self) -> TaskStatus:
            return TaskStatus(self.id, "IDLE")

        def close(self) -> None:
            return

    failures: list[Any] = []
    threads = TurnThreads(clock, TurnQueue(Gathering(1.0, 0.0)), 2)
    runner = StreamRunner("s", clock, threads, lambda: ([Stuck()], []), lambda tasks: runner.start(),  # type: ignore[list-item]
                          lambda task, error: failures.append(error), lambda: None)
    runner.launch()
    assert in_step.wait(60)
    runner.ask_statuses()
    (first,) = runner.statuses()
    clock.advance(4.0)
    (second,) = runner.statuses()
    assert (first.state, first.reason, first.spent.busy_s) == ("RUNNING", "", 0.0)
    assert (second.state, second.reason, second.spent.busy_s) == ("RUNNING", "in the same step for 4 s", 4.0)
    go_on.set()
    runner.stop()
    assert runner.join(60)
    assert not failures
