"""A source task that takes nothing in while its log grows is told within two seconds; nobody else is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kits.engines.sandboxes import T0, TestBed

from penstock.mnode.coordinator.task_intake import IntakeFault, IntakeWatch
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.protocol.task_status import LogProgress, QueueStatus, TaskState, TaskStatus, TimeSpent
from penstock.tasks.source.log_input import LogInput
from penstock.tasks.source.source_task import SourceTask
from penstock.vnode.read.vnode_reader import LoggedRows
from penstock.wal.record import OtherRecord

SOURCE = TaskId(7, "source", 0)
TABLE = object()


def at(version: int, rows: int | None = None, state: TaskState = "IDLE", *, waiting: int = 0, old: float = 0.0,
       skipped_to: int = 0) -> TaskStatus:
    """The status of a source task that has come so far."""
    return TaskStatus(SOURCE, state, log=LogProgress(version, version, "files", skipped_to, rows),
                      queues=QueueStatus(waiting), spent=TimeSpent(unanswered_s=old))


def logged(version: int, rows: int = 0, acknowledged: int | None = None, life: object = TABLE) -> LoggedRows:
    return LoggedRows(version, rows, version if acknowledged is None else acknowledged, life)


def told(*seen: tuple[TaskStatus, LoggedRows | None]) -> IntakeFault | None:
    """What is told after heartbeats a second apart."""
    watch = IntakeWatch()
    for second, (status, log) in enumerate(seen):
        watch.observe(status, log, float(second))
    return watch.fault(float(len(seen) - 1))


def test_a_task_that_rests_beside_a_log_with_more_is_told() -> None:
    """Whether still more come or not."""
    assert told((at(4), logged(4)), (at(4), logged(9)), (at(4), logged(12))) == IntakeFault(1.0, 8, 0)
    assert told((at(4), logged(9)), (at(4), logged(9))) == IntakeFault(1.0, 5, 0)


@pytest.mark.parametrize("seen", [
    [(at(4), logged(9))],
    [(at(4), logged(4)), (at(4), logged(4))],
    [(at(4), logged(4, acknowledged=9)), (at(4), logged(4, acknowledged=19))],
    [(at(4), logged(9, acknowledged=8)), (at(4), logged(9, acknowledged=8)), (at(4), logged(9, acknowledged=8))],
    [(at(4), logged(900)), (at(5), logged(910)), (at(6), logged(920))],
    [(at(4, state=state), logged(9)) for state in ("PAUSED", "PAUSED")],
    [(at(4, state=state), logged(9)) for state in ("BACKPRESSURED", "BACKPRESSURED")],
    [(at(4, state=state), logged(9)) for state in ("RUNNING", "RUNNING")],
    [(at(4, waiting=10), logged(9)), (at(4, waiting=10), logged(9))],
    [(at(4, old=1.5), logged(9)), (at(4, old=2.5), logged(9))],
    [(at(4), None), (at(4), None)],
], ids=["only now", "quiet", "others' rows", "not acknowledged", "slow", "paused", "backpressure", "recalculates",
        "in its queue", "in a long step", "vnode closed"])
def test_nobody_else_is_told(seen: list[tuple[TaskStatus, LoggedRows]]) -> None:
    """Where nothing is to be read, or something is known that keeps the task from it."""
    assert told(*seen) is None


def test_rows_that_a_task_passes_over_are_counted() -> None:
    """Counted is from when it had come to the end for the first time; what the log had before is not its concern."""
    start = at(4, 0), logged(4, 100)
    assert told(start, (at(9, 50), logged(9, 150))) is None
    assert told(start, (at(9, 47), logged(9, 150))) == IntakeFault(None, 0, 3)
    assert told(start, (at(9, 0), logged(9, 150))) == IntakeFault(None, 0, 50)
    assert told((at(2, 0), logged(4, 100)), (at(4, 40), logged(4, 100)), (at(9, 90), logged(9, 150))) is None


def test_rows_are_compared_while_more_are_written() -> None:
    """The newest record isn't acknowledged at any look: then those before it count."""
    start = at(4, 0), logged(4, 100)
    busy = (at(8, 30), logged(9, 140, acknowledged=8)), (at(12, 70), logged(13, 180, acknowledged=12))
    assert told(start, *busy) is None
    assert told(start, busy[0], (at(12, 30), logged(13, 180, acknowledged=12))) == IntakeFault(None, 0, 10)


def test_counting_begins_anew_where_rows_may_be_passed_over() -> None:
    """After RESUME STREAM IGNORE UNTREATED, and where the vnode counts anew."""
    start = at(4, 0), logged(4, 100)
    assert told(start, (at(9, 10, skipped_to=9), logged(9, 150)), (at(12, 12, skipped_to=9), logged(12, 152))) is None
    assert told(start, (at(9, 0), logged(9, 5, life=object()))) is None


# --- faults planted in streams -----------------------------------------------------------------------------------


@pytest.fixture
def bed() -> Iterator[TestBed]:
    with TestBed() as found:
        found.all("CREATE DATABASE d VGROUPS 1", "USE d", "CREATE STABLE m (ts TIMESTAMP, v INT) TAGS (g INT)",
                  "CREATE TABLE a USING m TAGS (1)", "CREATE TABLE other (ts TIMESTAMP, v INT)")
        yield found


STREAMS = {
    "windows": "CREATE STREAM s TRIGGER AT_ONCE INTO o AS SELECT _wstart, count(*) n FROM m INTERVAL(1s)",
    "rows": "CREATE STREAM s INTO o AS SELECT ts, v FROM m WHERE v > 100 PARTITION BY tbname",
    "forced": "CREATE STREAM s TRIGGER FORCE_WINDOW_CLOSE INTO o AS "
              "SELECT _wstart, count(*) n FROM m PARTITION BY tbname INTERVAL(1s)",
    "arrivals": "CREATE STREAM s TIME PROCESSING INTO o AS SELECT _wstart, count(*) n FROM m INTERVAL(1s)",
    "join": "CREATE STREAM s INTO o AS SELECT a.ts, a.v, b.v w FROM m a JOIN other b ON a.ts = b.ts AND a.v = b.v",
}


def source_task(bed: TestBed) -> Any:
    (stream,) = bed.streams.local_streams().values()
    return stream.tasks[0]


def insert(bed: TestBed, *seconds: int, table: str = "a") -> None:
    bed.execute(f"INSERT INTO {table} VALUES " + ", ".join(f"({T0 + 1000 * n}, {n})" for n in seconds))


def verdict(bed: TestBed) -> tuple[str, str]:
    ((kind, text),) = bed.rows("SELECT verdict_kind, verdict FROM information_schema.ins_streams")
    return kind, text


@pytest.mark.parametrize("name", STREAMS)
def test_a_reader_that_yields_nothing_is_told_within_two_seconds(
    bed: TestBed, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says which vnode, for how long, and how far behind; once the reader is well again there is nothing to say."""
    bed.execute(STREAMS[name])
    insert(bed, 1)
    task = source_task(bed)
    with monkeypatch.context() as broken:
        broken.setattr(task._wal, "read", lambda *ignored: [])
        bed.advance(1)
        insert(bed, 2)
        assert verdict(bed)[0] != "intake"
        bed.advance(1)
        insert(bed, 3, 4)
        kind, text = verdict(bed)
        assert kind == "intake"
        assert re.fullmatch(r"source s/v2 doesn't read: it has been at version \d of its log for 1 s, [24] records "
                            "behind, without a known cause", text)
        ((unread,),) = bed.rows("SELECT unread_seconds FROM information_schema.ins_stream_tasks WHERE level = 'source' "
                                "AND unread_seconds IS NOT NULL")
        assert unread == pytest.approx(1.0)
    bed.advance(1)
    bed.advance(1)
    assert verdict(bed)[0] not in ("intake", "unbalanced")


def test_a_reader_that_is_blind_to_the_end_of_the_log_is_told(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own lag is 0: only who writes the log knows better."""
    bed.execute(STREAMS["windows"])
    reader = source_task(bed)._wal
    monkeypatch.setattr(type(reader), "acknowledged_version", reader.acknowledged_version)
    monkeypatch.setattr(reader, "read", lambda *ignored: [])
    insert(bed, 1)
    bed.advance(1)
    assert verdict(bed)[0] == "intake"


def test_a_reader_that_passes_rows_over_is_told(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its position moves on as that of a healthy one does."""
    bed.execute(STREAMS["windows"])
    insert(bed, 1, 2)
    reader = source_task(bed)._wal
    read = reader.read
    monkeypatch.setattr(reader, "read", lambda *bounds: [
        OtherRecord(record.version, record.ingest_time_ms) for record in read(*bounds)])
    insert(bed, 3)
    insert(bed, 4, 5)
    assert verdict(bed) == (
        "unbalanced", "source s/v2 is unbalanced in attempt 1: it has skipped 3 rows of its log")
    assert bed.rows("SELECT missing_rows FROM information_schema.ins_stream_tasks WHERE level = 'source'") == [(3,)]


LOSSES: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "in its queue": (LogInput, "next_part", lambda log: log.discard() and ()),
    "in its step": (SourceTask, "_process", lambda task, records: None),
}


@pytest.mark.parametrize("place", LOSSES)
def test_rows_that_are_lost_on_their_way_are_told(
    bed: TestBed, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream goes on; what it has counted is named."""
    bed.execute(STREAMS["windows"])
    insert(bed, 1, 2)
    bed.loses_rows = True
    with monkeypatch.context() as broken:
        broken.setattr(*LOSSES[place])
        insert(bed, 3, 4, 5)
    insert(bed, 6)
    assert verdict(bed) == (
        "unbalanced", "source s/v2 is unbalanced in attempt 1: 3 rows are unaccounted for; 6 taken, 3 handed on")
    assert bed.rows("SELECT taken_rows, handed_on_rows, filtered_rows, missing_rows FROM "
                    "information_schema.ins_stream_tasks WHERE level = 'source'") == [(6, 3, 0, 3)]
    bed.kill()
    assert verdict(bed)[0] != "unbalanced", "it counts by attempts"


@pytest.mark.parametrize("name", STREAMS)
def test_no_healthy_stream_is_told(bed: TestBed, name: str) -> None:
    """Quiet ones, those of which WHERE leaves out most, rows of other tables, deletes, restarts, RESUME that skips."""
    bed.execute(STREAMS[name])
    for number in range(1, 6):
        if number in (2, 3):
            insert(bed, number, number + 100)
        elif number == 4:
            bed.execute(f"DELETE FROM a WHERE ts = {T0 + 2000}")
            bed.all("PAUSE STREAM s", "ALTER TABLE a SET TAG g = 2")
            insert(bed, 40, 41)
            bed.execute("RESUME STREAM IGNORE UNTREATED s")
            bed.checkpoint()
        else:
            bed.kill()
        insert(bed, number, table="other")
        for _ in range(3):
            bed.advance(1)
            assert verdict(bed)[0] in ("idle", "healthy"), (number, verdict(bed))
