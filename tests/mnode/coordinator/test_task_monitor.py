"""What heartbeats tell: rates over the last seconds, lag, silence and stalls."""

from __future__ import annotations

import pytest

from penstock.mnode.coordinator.task_monitor import Monitor
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.protocol.task_status import LogProgress, QueueStatus, TaskProgress, TaskState, TaskStatus

SOURCE = TaskId(1, "source", 0)


def status(rows: int = 0, version: int = 0, end: int = 0, state: TaskState = "RUNNING", queued: int = 0) -> TaskStatus:
    return TaskStatus(
        SOURCE, state, progress=TaskProgress(rows, bytes_in=rows * 8), log=LogProgress(version, end),
        queues=QueueStatus(queued)
    )


def test_rates_are_taken_over_the_last_seconds() -> None:
    """A burst long ago doesn't count; the rate follows what came lately."""
    monitor = Monitor(3, 30)
    for second, rows in enumerate([0, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_100]):
        monitor.heartbeat([status(rows)], float(second))
    (report,) = monitor.report(7.0)
    assert report.rows_in_rate == pytest.approx(20.0)
    assert report.bytes_in_rate == pytest.approx(160.0)
    assert report.silent_s is None


def test_a_new_attempt_starts_its_rates_anew() -> None:
    """Counters that fall mean another attempt; no rate is negative."""
    monitor = Monitor(3, 30)
    monitor.heartbeat([status(1000)], 0.0)
    monitor.heartbeat([status(10)], 1.0)
    assert monitor.report(1.0)[0].rows_in_rate == 0.0
    monitor.heartbeat([status(30)], 2.0)
    assert monitor.report(2.0)[0].rows_in_rate == pytest.approx(20.0)


def test_lag_counts_records_and_is_unknown_without_a_wal() -> None:
    """Lag is what the task has still to read; tasks that don't read a WAL have none."""
    monitor = Monitor(3, 30)
    monitor.heartbeat([status(0, 7, 10), TaskStatus(TaskId(1, "sink", 0), "IDLE")], 0.0)
    assert [report.lag for report in monitor.report(0.0)] == [None, 3]


def test_a_silent_task_says_so() -> None:
    """Without heartbeats the last state isn't shown as if it were current."""
    monitor = Monitor(3, 30)
    monitor.heartbeat([status()], 0.0)
    assert monitor.report(3.0)[0].silent_s is None
    (report,) = monitor.report(10.0)
    assert report.silent_s == 10.0
    assert report.status.reason == "no heartbeat for 10 s; was RUNNING"


def test_a_task_with_work_that_gets_nowhere_is_stalled() -> None:
    """Having work without progress counts from the last progress; resting, paused and moving tasks aren't stalled."""
    monitor = Monitor(100, 30)
    for second in range(0, 100, 10):
        monitor.heartbeat([status(5, 1, 9, queued=80)], float(second))
    (report,) = monitor.report(90.0)
    assert report.stalled_s == 90.0
    assert report.status.reason == "stalled for 90 s: RUNNING"
    monitor.heartbeat([status(6, 2, 9)], 91.0)
    assert monitor.report(91.0)[0].stalled_s is None
    for now, still in ((200.0, status(6, 9, 9)), (300.0, status(6, 2, 9, state="PAUSED", queued=5))):
        monitor.heartbeat([still], now - 50)
        monitor.heartbeat([still], now)
        assert monitor.report(now)[0].stalled_s is None


def test_a_task_that_rests_is_heard_of_without_a_status() -> None:
    """It is neither silent nor stalled, its rates fall to nothing and rise at once with the next rows; tasks of the
    stream on another worker, which says nothing, are silent."""
    monitor = Monitor(3, 30)
    other = TaskStatus(TaskId(1, "source", 1), "IDLE")
    monitor.heartbeat([status(0)], 0.0, worker=0)
    monitor.heartbeat([status(1000)], 1.0, worker=0)
    monitor.heartbeat([other], 1.0, worker=1)
    for second in range(2, 60):
        monitor.still([1, 7], float(second), worker=0)
    rests, silent = monitor.report(59.0)
    assert (rests.silent_s, rests.stalled_s, rests.rows_in_rate, silent.silent_s) == (None, None, 0.0, 58.0)
    monitor.heartbeat([status(2000)], 60.0, worker=0)
    assert monitor.report(60.0)[0].rows_in_rate == pytest.approx(1000 / 6)


def test_a_busy_task_may_be_told_of_later() -> None:
    """It isn't silent meanwhile; its rates, and whether it gets anywhere, are as it told itself."""
    monitor = Monitor(3, 30)
    for second in range(0, 60, 5):
        monitor.heartbeat([status(second * 10, 1, 9)], float(second))
        for later in range(1, 5):
            monitor.untold([1], float(second + later), worker=0)
    (report,) = monitor.report(59.0)
    assert (report.silent_s, report.stalled_s, report.rows_in_rate) == (None, None, 10.0)
    for second in range(60, 100):
        monitor.untold([1], float(second), worker=0)
    (report,) = monitor.report(99.0)
    assert (report.silent_s, report.stalled_s) == (None, 44.0)


def test_a_forgotten_stream_leaves_nothing() -> None:
    """After the stream is dropped, its tasks aren't reported."""
    monitor = Monitor(3, 30)
    other = TaskStatus(TaskId(2, "sink", 0), "IDLE")
    monitor.heartbeat([status(), other], 0.0)
    monitor.forget(1)
    assert monitor.statuses() == [other]
