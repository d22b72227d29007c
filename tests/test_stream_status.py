"""What is said about a running stream in one line: stalled tasks, silence, and who holds the others up."""

from __future__ import annotations

from typing import Any

from penstock.mnode.monitor import TaskReport
from penstock.mnode.stream_status import StreamInfo, judged
from penstock.tasks.messages import TaskId, TaskStatus

RUNNING = StreamInfo("RUNNING")


def report(level: Any, index: int = 0, stalled_s: float | None = None, silent_s: float | None = None,
           **status: Any) -> TaskReport:
    return TaskReport(TaskStatus(TaskId(7, level, index), **{"state": "RUNNING", **status}), 0, 0, 0, 0, None,
                      silent_s, stalled_s)


def test_a_healthy_stream_has_no_reason() -> None:
    """Tasks that run or idle leave the stream RUNNING, without words."""
    assert judged(RUNNING, [report("source"), report("sink", state="IDLE")]) == RUNNING
    assert judged(RUNNING, []) == RUNNING


def test_the_bottleneck_is_the_task_at_the_end_of_the_chain() -> None:
    """Source waits for agg, agg for the sink, the sink for its rate: the sink is named, with its state."""
    told = judged(RUNNING, [
        report("source", state="BACKPRESSURED", blocked_by="7-agg-0"),
        report("agg", state="BACKPRESSURED", blocked_by="7-sink-0"),
        report("sink", state="RATE_LIMITED", reason="2 MB/s"),
    ])
    assert (told.state, told.reason) == ("RUNNING", "7-sink-0 is the bottleneck: RATE_LIMITED, 2 MB/s")


def test_a_circle_of_waiting_tasks_ends() -> None:
    """Reports are of different moments, so two tasks may seem to wait for each other."""
    told = judged(RUNNING, [report("source", blocked_by="7-agg-0"), report("agg", blocked_by="7-source-0")])
    assert "bottleneck" in told.reason


def test_stalled_and_silent_tasks_are_named() -> None:
    """A stalled task makes the stream STALLED; a silent one is told; a state that isn't RUNNING keeps its reason."""
    stalled = judged(RUNNING, [report("source"), report("agg", stalled_s=31.0)])
    assert stalled.state == "STALLED"
    assert stalled.reason.startswith("7-agg-0 has work to do and made no progress for 31 s")
    silent = judged(RUNNING, [report("sink", silent_s=4.0, reason="no heartbeat for 4 s")])
    assert (silent.state, silent.reason) == ("RUNNING", "7-sink-0: no heartbeat for 4 s")
    paused = StreamInfo("PAUSED", "by the user")
    assert judged(paused, [report("agg", stalled_s=31.0)]) == paused
