"""How the log is read ahead: what waits counts as what it takes in memory, and rows that come during a turn gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from penstock.common.clock import ManualClock
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.operators.state_tracker import StateTracker
from penstock.tasks.protocol.deployment import TaskSettings
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.source.log_input import LogInput
from penstock.tasks.source.source_rates import SourceRates
from penstock.wal.log import Access
from penstock.wal.record import Record, RowsRecord, TimeMarkRecord

TASK = TaskId(1, "source", 0)
PAYLOAD_BYTES = 40
T = TypeVar("T")


class GrowingLog:
    """A reader of a log of small records. `end` is how many there are."""

    access: Access

    def __init__(self) -> None:
        self.end = 0
        self.read_to = 0
        self.bytes_read = 0

    @property
    def acknowledged_version(self) -> int:
        return self.end

    def read(self, max_records: int = 1024, max_bytes: int = 16 << 20) -> list[Record]:
        first, self.read_to = self.read_to + 1, min(self.end, self.read_to + max_records)
        versions = range(first, self.read_to + 1)
        self.bytes_read += PAYLOAD_BYTES * len(versions)
        return [TimeMarkRecord(version, 0, "w", version) for version in versions]

    def derived(self, records: Sequence[RowsRecord], what: str, make: Callable[[], T]) -> T:
        return make()

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def log() -> GrowingLog:
    return GrowingLog()


def opened(**settings: Any) -> LogInput:
    """Returns an input whose queue has 1 MiB."""
    known, clock = TaskSettings(queue_bytes=1 << 20, block_bytes_max=100_000, **settings), ManualClock()
    queue: ChannelQueue[TaskId] = ChannelQueue(known.queue_bytes, [TASK], lambda: None)
    return LogInput(queue, TASK, 7, known, SourceRates(known, clock, StateTracker(clock)))


def test_small_records_count_as_what_they_take_in_memory(log: GrowingLog) -> None:
    """A task that is blocked reads ahead until its queue is full: by payloads alone, 26,000 records were one MiB."""
    log.end = 100_000
    source = opened()
    while source.read_ahead(log):
        continue
    assert 500 < log.read_to < 1_000
    assert source.bytes_read == PAYLOAD_BYTES * log.read_to


def test_what_comes_during_a_turn_waits_for_the_next_if_rows_gather(log: GrowingLog) -> None:
    """Else a stream would have a pass for each row, as long as others write."""
    source = opened()
    log.end = 10
    assert source.read_ahead(log, 1)
    log.end = 13
    assert not source.read_ahead(log, 1)
    assert [record.version for record in source.next_part()] == list(range(1, 11))
    assert source.read_ahead(log, 2)
    assert len(source.next_part()) == 3
    log.end = 14
    assert source.read_ahead(log, None)


def test_who_is_far_behind_reads_on_in_a_turn(log: GrowingLog) -> None:
    """However long rounds are: nobody wakes it for what was there before."""
    source = opened(block_rows_max=10)
    log.end = 25
    found = []
    while source.read_ahead(log, 1):
        found.append(len(source.next_part()))
    assert found == [10, 10, 5]
