"""Full queues in front of slow sinks: checkpoints, PAUSE and DROP don't wait for what is in them; nothing is lost."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import in_turn
from kits.streams.journal import Journal, JournalWriter
from kits.streams.stream_kit import StreamKit, unhurried

from penstock.common.config import load_config
from penstock.mnode.coordinator.task_settings import task_settings
from penstock.tasks.protocol.messages import (
    CheckpointAbandoned,
    CheckpointCommitted,
    Pause,
    ResultWrite,
    Resume,
    StartCheckpoint,
    TaskId,
)
from penstock.tasks.protocol.task_status import TaskStatus

PLAIN = "SELECT ts, voltage, note FROM meters PARTITION BY tbname"
WINDOWS = "SELECT _wstart, count(*) n, last(note) note FROM meters PARTITION BY note INTERVAL(10s)"
SLOW = unhurried(sink_bytes_per_second=1000.0, queue_bytes=16_384, block_bytes_max=2048)
PATIENCE_S = 0.25


def stuffed(root: Path, query: str, guarantee: str = "EXACTLY_ONCE", **kit: Any) -> StreamKit:
    """Returns a stream whose sinks write 1 kB/s, and whose queues are as full as they get."""
    made = StreamKit(root, f"CREATE STREAM s TRIGGER AT_ONCE GUARANTEE {guarantee} INTO o AS {query}",
                     **{"vnodes": 2, "settings": SLOW, **kit})
    for first in range(0, 4000, 100):
        made.insert([(n % 4, n * 1000, n, 1.0, f"note {n}") for n in range(first, first + 100)])
    made.run()
    return made


def by_operator(kit: StreamKit, level: str) -> list[TaskStatus]:
    return [status for status in kit.stream.statuses() if status.task.operator == level]


def acknowledged(kit: StreamKit) -> set[TaskId]:
    return {ack.task for ack in kit.acknowledged if ack.checkpoint_id == kit.checkpoints}


def begin(kit: StreamKit) -> None:
    kit.checkpoints += 1
    kit.stream.post(StartCheckpoint(kit.checkpoints))
    kit.run()


def commit(kit: StreamKit) -> None:
    assert acknowledged(kit) == {task.id for task in kit.tasks}
    kit.committed = kit.checkpoints
    kit.post(CheckpointCommitted(kit.checkpoints))


def write_for(kit: StreamKit, seconds: int) -> None:
    """Lets the sinks write as their rates allow."""
    for _ in range(2 * seconds):
        kit.pass_time(0.5)


def drain(kit: StreamKit) -> None:
    """Starts the tasks again from the last checkpoint, without limits, and lets them finish."""
    kit.settings = replace(kit.settings, sink_bytes_per_second=0.0)
    kit.kill()
    kit.run()


@pytest.mark.parametrize(("query", "guarantee"), in_turn([PLAIN, WINDOWS], ["EXACTLY_ONCE", "AT_LEAST_ONCE"]))
def test_a_checkpoint_does_not_wait_for_what_is_in_full_queues(tmp_path: Path, query: str, guarantee: str) -> None:
    """It is complete once its barriers could be read, with almost nothing written meanwhile; a kill loses nothing."""
    kit = stuffed(tmp_path, query, guarantee)
    try:
        assert {status.state for status in by_operator(kit, "source")} == {"BACKPRESSURED"}
        written = len(kit.writes)
        begin(kit)
        assert not any(status.queues.in_flight_bytes for status in by_operator(kit, "sink"))
        kit.pass_time(PATIENCE_S)
        commit(kit)
        assert len(kit.writes) <= written + 2 * len(by_operator(kit, "sink"))
        assert all(status.queues.in_flight_bytes > SLOW.queue_bytes / 2 for status in by_operator(kit, "sink"))
        assert all(ack.unwritten for ack in kit.acknowledged if ack.task.operator == "sink")
        drain(kit)
        if query == PLAIN:
            assert {row["voltage"] for row in kit.rows()} == set(range(4000))
        else:
            assert sum(row["n"] for row in kit.rows()) >= 4000
            assert guarantee == "AT_LEAST_ONCE" or sum(row["n"] for row in kit.rows()) == 4000
        assert not any(status.queues.in_flight_bytes for status in by_operator(kit, "sink"))
        kit.checkpoint()
        assert not any(ack.unwritten for ack in kit.acknowledged if ack.checkpoint_id == kit.checkpoints)
    finally:
        kit.close()


def write_between_checkpoints(kit: StreamKit) -> None:
    """Takes two checkpoints that set results aside; sinks write some of those after each."""
    for _ in range(2):
        begin(kit)
        kit.pass_time(PATIENCE_S)
        commit(kit)
        write_for(kit, 12)


def test_checkpoints_that_follow_each_other_take_what_is_still_unwritten(tmp_path: Path) -> None:
    """Some of what was set aside is written, and more comes: each checkpoint holds the rest, in order."""
    kit = stuffed(tmp_path, PLAIN)
    try:
        write_between_checkpoints(kit)
        sent = len(kit.results)
        assert 0 < sent < 4000
        drain(kit)
        assert len(kit.results) == 4000
        rows = [row["voltage"] for write in kit.writes for row in write.rows.to_pylist()]
        for table in range(4):
            written = [voltage for voltage in rows if voltage % 4 == table]
            # Each attempt writes in order, and goes on where the last checkpoint was.
            assert sum(later < earlier for earlier, later in itertools.pairwise(written)) <= 1
    finally:
        kit.close()


def test_a_writer_that_cannot_replace_rows_gets_what_was_set_aside_once(tmp_path: Path) -> None:
    """Rows set aside belong to the transaction in which they are written, not to the checkpoint that holds them."""
    journals: dict[TaskId, Journal] = {}
    kit = stuffed(tmp_path, PLAIN, writer=lambda task: JournalWriter(journals.setdefault(task, Journal())))
    try:
        write_between_checkpoints(kit)
        drain(kit)
        kit.checkpoint()
        assert sorted(row["voltage"] for journal in journals.values() for row in journal.seen) == list(range(4000))
    finally:
        kit.close()


def test_what_is_set_aside_takes_the_place_of_what_would_fill_the_queue(tmp_path: Path) -> None:
    """Checkpoint after checkpoint, none waits and nothing grows: sources read no more than sinks have written."""
    kit = stuffed(tmp_path, PLAIN, vnodes=1)
    try:
        sizes = []
        for _ in range(12):
            begin(kit)
            kit.pass_time(PATIENCE_S)
            commit(kit)
            write_for(kit, 8)
            (sink,) = by_operator(kit, "sink")
            sizes.append(sink.queues.in_flight_bytes + sink.queues.input_bytes)
        assert max(sizes) < 2.5 * SLOW.queue_bytes
        assert len(kit.results) < 4000
        drain(kit)
        assert len(kit.results) == 4000
    finally:
        kit.close()


def test_an_abandoned_checkpoint_sets_nothing_more_aside(tmp_path: Path) -> None:
    """Whoever gives a checkpoint up has the sinks write again as they did before."""
    kit = stuffed(tmp_path, PLAIN)
    try:
        begin(kit)
        kit.stream.post(CheckpointAbandoned(kit.checkpoints))
        kit.pass_time(PATIENCE_S)
        assert not any(status.queues.in_flight_bytes for status in by_operator(kit, "sink"))
    finally:
        kit.close()


def test_short_queues_set_nothing_aside(tmp_path: Path) -> None:
    """A sink that can write what is there writes it: the checkpoint costs what it always did."""
    kit = StreamKit(tmp_path, f"CREATE STREAM s TRIGGER AT_ONCE INTO o AS {PLAIN}", vnodes=2,
                    settings=replace(task_settings(load_config({}, environment={})), state_map_bytes=1 << 26))
    try:
        kit.insert([(n % 4, n * 1000, n, 1.0, "x") for n in range(1000)])
        begin(kit)
        kit.pass_time(PATIENCE_S)
        commit(kit)
        assert not any(ack.unwritten for ack in kit.acknowledged)
    finally:
        kit.close()


def test_a_source_that_is_paused_says_so_while_its_queue_is_full(tmp_path: Path) -> None:
    """PAUSE waits for PAUSED: a source that can't send what it has made makes nothing more either."""
    kit = stuffed(tmp_path, PLAIN)
    try:
        kit.stream.post(Pause())
        kit.run()
        assert {status.state for status in by_operator(kit, "source")} == {"PAUSED"}
        assert {status.blocked_by for status in by_operator(kit, "source")} == {None}
        read = [status.progress.rows_in for status in by_operator(kit, "source")]
        kit.pass_time(5)
        assert [status.progress.rows_in for status in by_operator(kit, "source")] == read
        kit.stream.post(Resume())
        kit.run()
        assert {status.state for status in by_operator(kit, "source")} == {"BACKPRESSURED"}
    finally:
        kit.close()


@pytest.mark.parametrize("option", ["", "TIME INGESTION"])
def test_a_source_that_cannot_send_waits_without_a_deadline(tmp_path: Path, option: str) -> None:
    """No clock would change anything before there is room; a deadline that is over would keep the thread spinning."""
    kit = StreamKit(tmp_path, f"CREATE STREAM s TRIGGER AT_ONCE {option} INTO o AS {WINDOWS}", settings=SLOW)
    try:
        for first in range(0, 4000, 100):
            kit.insert([(n % 4, n * 1000, n, 1.0, f"note {n}") for n in range(first, first + 100)])
        kit.run()
        (source,) = [task for task in kit.tasks if task.id.operator == "source"]
        assert source.status().state == "BACKPRESSURED"
        kit.pass_time(60)
        assert source.status().state == "BACKPRESSURED"
        assert source.next_deadline() is None
    finally:
        kit.close()


class Stuck:
    """Takes writes and acknowledges them only when it is told to."""

    def __init__(self) -> None:
        self.writes: list[ResultWrite] = []
        self.done = 0

    def submit(self, write: ResultWrite) -> None:
        self.writes.append(write)

    def acknowledged(self) -> int:
        return self.done


def test_a_checkpoint_waits_for_writes_that_are_under_way(tmp_path: Path) -> None:
    """Nobody knows whether they will succeed: they are neither done nor to be done again until that is known."""
    writer = Stuck()
    kit = stuffed(tmp_path, PLAIN, vnodes=1, writer=lambda task: writer)
    try:
        begin(kit)
        kit.pass_time(PATIENCE_S)
        sink = next(task.id for task in kit.tasks if task.id.operator == "sink")
        assert sink not in acknowledged(kit)
        assert writer.writes
        writer.done = len(writer.writes)
        kit.run()
        assert sink in acknowledged(kit)
    finally:
        kit.close()
