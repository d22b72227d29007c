"""SOURCE_RATE and HISTORY_RATE hold row by row, are told, and change while a stream runs; so do those of sinks."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kits.streams.stream_kit import MemoryWriter, StreamKit, unhurried

from penstock.mnode.coordinator.stream_status import StreamInfo, StreamStatus
from penstock.mnode.coordinator.task_monitor import Monitor
from penstock.mnode.explain.stream_verdict import TaskNames, verdict
from penstock.tasks.protocol.messages import Pause, Recalculate, ResultWrite, Resume, StartCheckpoint, TaskId
from penstock.tasks.protocol.task_status import TaskStatus
from penstock.tasks.protocol.worker_nodes import Nodes
from penstock.tasks.sink.new_tables import NewTables

PLAIN = "CREATE STREAM s TRIGGER AT_ONCE INTO o AS SELECT ts, voltage FROM meters PARTITION BY tbname"
COUNTS = ("CREATE STREAM s TRIGGER AT_ONCE INTO o AS SELECT _wstart, count(*) n FROM meters PARTITION BY tbname "
          "INTERVAL(1s)")
BY_VALUE = COUNTS.replace("tbname", "voltage")
HISTORY = PLAIN.replace("INTO", "FILL_HISTORY 1 INTO")


def insert(kit: StreamKit, rows: int, *, per_record: int = 1, first: int = 0) -> None:
    for start in range(first, first + rows, per_record):
        kit.insert([(n % 4, n * 1000, n) for n in range(start, min(first + rows, start + per_record))], ("voltage",))


def source(kit: StreamKit) -> TaskStatus:
    (status,) = [status for status in kit.stream.statuses() if status.task.operator == "source"]
    return status


def pace(kit: StreamKit, until_rows: int, patience_s: float = 10_000) -> list[tuple[float, int]]:
    """Lets a stream work as its own deadlines say; returns (time, rows read by then) of each step forward."""
    (task,) = [task for task in kit.tasks if task.id.operator == "source"]
    began = kit.clock.monotonic()
    seen: list[tuple[float, int]] = []
    while True:
        kit.run()
        now = kit.clock.monotonic() - began
        assert now < patience_s
        rows = source(kit).progress.rows_in
        if not seen or rows > seen[-1][1]:
            seen.append((now, rows))
        if rows >= until_rows:
            return seen
        at = task.next_deadline()
        assert at is not None
        assert at > kit.clock.monotonic(), "a deadline that is over keeps the thread spinning"
        kit.clock.advance(at - kit.clock.monotonic())


def assert_within(seen: list[tuple[float, int]], rate: float, burst: float, largest: int) -> None:
    """In no stretch have more rows been read than the rate gives, and a burst and the record that was begun with."""
    for (t0, before), (_, _) in itertools.pairwise([(0.0, 0), *seen]):
        for t1, rows in seen:
            if t1 >= t0:
                assert rows - before <= rate * (t1 - t0) + burst + largest + 1e-6


@pytest.mark.parametrize(("option", "rate", "per_record"), [
    ("", 50.0, 1), ("", 50.0, 60), ("", 1000.0, 7), ("TIME INGESTION", 50.0, 7)])
def test_a_source_reads_no_faster_than_its_rate(tmp_path: Path, option: str, rate: float, per_record: int) -> None:
    """Whatever the size of its records; and no slower than it may either."""
    kit = StreamKit(tmp_path, COUNTS.replace("INTO", f"{option} INTO"), settings=unhurried(source_rows_per_second=rate))
    try:
        insert(kit, 120, per_record=per_record)
        seen = pace(kit, 120)
        assert_within(seen, rate, max(1.0, rate / 10), per_record)
        assert seen[-1][0] <= 120 / rate
    finally:
        kit.close()


def test_history_is_read_at_its_own_rate(tmp_path: Path) -> None:
    """FILL_HISTORY is paced by HISTORY_RATE, what comes behind it isn't; progress and state say so."""
    kit = StreamKit(tmp_path, HISTORY, settings=unhurried(history_rows_per_second=50.0),
                    before=lambda kit: insert(kit, 200, per_record=20))
    try:
        insert(kit, 1000, per_record=100, first=200)
        kit.run()
        status = source(kit)
        assert (status.state, status.reason) == ("RATE_LIMITED", "its history rate limit of 50 rows/s")
        seen = pace(kit, 200)
        assert_within([(at, min(rows, 200)) for at, rows in seen], 50.0, 5.0, 10)
        assert seen[-1][0] >= (200 - 15) / 50
        kit.run()
        assert source(kit).progress.rows_in == 1200
        assert len(kit.results) == 1200
    finally:
        kit.close()


def test_recalculation_is_paced_beside_the_live_flow(tmp_path: Path) -> None:
    """RECALCULATE STREAM reads the store by HISTORY_RATE; rows that come meanwhile don't wait for it."""
    kit = StreamKit(tmp_path, COUNTS, settings=unhurried(history_rows_per_second=20.0))
    try:
        insert(kit, 100, per_record=10)
        kit.run()
        read = len(kit.writes)
        kit.stream.post(Recalculate(0, 99_000))
        kit.run()
        assert source(kit).reason == "its history rate limit of 20 rows/s"
        assert source(kit).progress.recalculates
        insert(kit, 10, first=100)
        kit.run()
        assert source(kit).progress.rows_in == 110
        paced_writes = len(kit.writes) - read
        kit.pass_time(1)
        assert len(kit.writes) - read > paced_writes
        for _ in range(60):
            kit.pass_time(0.1)
        assert (source(kit).state, source(kit).progress.recalculates) == ("IDLE", False)
    finally:
        kit.close()


def set_rates(kit: StreamKit, **rates: float) -> None:
    kit.settings = replace(kit.settings, **rates)  # type: ignore[arg-type]
    kit.stream.post(kit.settings.rates)
    kit.run()


def test_a_source_rate_changes_at_once(tmp_path: Path) -> None:
    """Higher, lower, none and again one: what was read ahead under the old one counts by the new one."""
    kit = StreamKit(tmp_path, PLAIN, settings=unhurried(source_rows_per_second=1.0))
    try:
        insert(kit, 5000, per_record=10)
        kit.run()
        assert source(kit).progress.rows_in == 10
        set_rates(kit, source_rows_per_second=1000.0)
        assert pace(kit, 1000, patience_s=1.1)
        read = source(kit).progress.rows_in
        set_rates(kit, source_rows_per_second=10.0)
        kit.pass_time(1)
        assert source(kit).progress.rows_in <= read + 20
        kit.pass_time(1)
        assert source(kit).progress.rows_in > read
        set_rates(kit, source_rows_per_second=0.0)
        assert source(kit).progress.rows_in == 5000
        insert(kit, 100, per_record=100, first=5000)
        kit.run()
        insert(kit, 100, per_record=1, first=5100)
        set_rates(kit, source_rows_per_second=10.0)
        assert source(kit).progress.rows_in < 5110
    finally:
        kit.close()


def test_sink_rates_change_at_once(tmp_path: Path) -> None:
    """A sink that waits for a token under the old rate goes by the new one."""
    kit = StreamKit(tmp_path, PLAIN, settings=unhurried(sink_bytes_per_second=100.0, block_bytes_max=1024))
    try:
        insert(kit, 2000, per_record=100)
        kit.run()
        written = len(kit.results)
        assert written < 2000
        (sink,) = [status for status in kit.stream.statuses() if status.task.operator == "sink"]
        assert sink.reason == "its rate limit of 0.0001 MB/s"
        set_rates(kit, sink_bytes_per_second=0.0, sink_calls_per_second=1.0)
        assert written < len(kit.results) < 2000
        (sink,) = [status for status in kit.stream.statuses() if status.task.operator == "sink"]
        assert sink.reason == "its limit of 1 write calls per second"
        set_rates(kit, sink_calls_per_second=0.0)
        assert len(kit.results) == 2000
    finally:
        kit.close()


def sink(kit: StreamKit) -> TaskStatus:
    (status,) = [status for status in kit.stream.statuses() if status.task.operator == "sink"]
    return status


def children_by_write(kit: StreamKit) -> list[set[str]]:
    """Returns which child tables each write has rows for."""
    return [{write.children[place].name for place in write.rows.column("_child").to_pylist()} for write in kit.writes]


class SlowWriter(MemoryWriter):
    """Takes three seconds, and a millisecond for each new child table, before it acknowledges a write."""

    def __init__(self, kit: StreamKit) -> None:
        super().__init__(kit.results, kit.writes, kit.plan.sink)
        self._clock = kit.clock
        self._known: set[str] = set()
        self.busy: list[tuple[float, float]] = []

    def submit(self, write: ResultWrite) -> None:
        names = {write.children[place].name for place in write.rows.column("_child").to_pylist()} - self._known
        begins = max([self._clock.monotonic(), *(end for _, end in self.busy)])
        self.busy.append((begins, begins + 3.0 + 0.001 * len(names)))
        self._known |= names
        super().submit(write)

    def acknowledged(self) -> int:
        return sum(end <= self._clock.monotonic() for _, end in self.busy)


@pytest.mark.parametrize("sizes", [(10_000,), (7, 4_000, 1, 5_992)])
def test_new_child_tables_take_a_share_of_the_time(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Where columns of rows tell groups apart; a kill in the middle loses none, and known ones aren't held up."""
    kit = StreamKit(tmp_path, BY_VALUE, settings=unhurried(sink_tables_share=0.25))
    writers: list[SlowWriter] = []

    def writer(_: TaskId) -> SlowWriter:
        writers.append(SlowWriter(kit))
        return writers[-1]

    kit.writer = writer
    try:
        kit.kill()  # its tasks get the writer that takes time
        first = 0
        for size in sizes:
            insert(kit, size, per_record=size, first=first)
            first += size
        kit.run()
        assert len(kit.results) == 1_000
        reasons = set()
        for _ in range(200):
            kit.pass_time(0.25)
            reasons.add(sink(kit).reason)
        assert "its share of 25% of the time for new child tables" in reasons
        assert 1_000 < len(kit.results) <= 5_000
        kit.stream.post(StartCheckpoint(1))
        for _ in range(80):
            kit.pass_time(0.25)
        assert {ack.task for ack in kit.acknowledged} == {task.id for task in kit.tasks}
        kit.commit(1)
        kit.kill()
        for _ in range(800):
            kit.pass_time(0.25)
        assert len(kit.results) == 10_000
        for each in writers:
            for first, (began, _) in enumerate(each.busy):
                for last, (begun, _) in enumerate(each.busy[first:], first):
                    took = sum(ends - begins for begins, ends in each.busy[first:last])
                    assert took <= 5 + 0.25 * (begun - began) + 0.001
        known: set[str] = set()
        for names in children_by_write(kit):
            assert len(names - known) <= 1_000, "a write with so many took longer than others should wait"
            known |= names
        before = 0
        for start in (10_000, 20_000):
            before = len(kit.writes)
            kit.insert([(n % 4, (start + n) * 1000, n) for n in range(10_000)], ("voltage",))
            for _ in range(800):
                kit.pass_time(0.25)  # those from before the kill are new to this attempt
        assert [len(names) for names in children_by_write(kit)[before:]] == [10_000]
    finally:
        kit.close()


def test_a_write_has_as_many_new_child_tables_as_are_made_in_a_moment() -> None:
    """Twice as many as before at most, and no fewer than a write takes there and back; a few say nothing of that."""
    tables, now = NewTables(0.5, 0.0), 0.0
    for took_per_table, least, most in ((0.0, 50_000, 50_000), (0.0001, 2_000, 3_000), (0.00001, 20_000, 30_000),
                                        (1.0, 1_000, 1_000)):
        for _ in range(30):
            assert tables.available_at(0, now) == now
            now = tables.available_at(tables.at_once, now)
            tables.submitted(tables.at_once, now)
            assert tables.available_at(1, now) == math.inf
            took = tables.at_once * took_per_table
            now += took
            tables.acknowledged(tables.at_once, now)
        assert least <= tables.at_once <= most
        tables.submitted(1, now)
        tables.acknowledged(1, now)
        assert least <= tables.at_once <= most


def test_a_sink_that_awaits_a_write_has_no_deadline(tmp_path: Path) -> None:
    """What it waited for before has no more to do with it, once results with new child tables have come along."""
    kit = StreamKit(tmp_path, BY_VALUE, settings=unhurried(sink_tables_share=0.25, sink_calls_per_second=2.0))
    kit.writer = lambda _: SlowWriter(kit)
    try:
        kit.kill()
        insert(kit, 4, per_record=4)
        kit.run()
        assert len(kit.writes) == 1
        kit.insert([(n, 10_000, n) for n in range(4)], ("voltage",))
        kit.run()
        assert sink(kit).reason == "its limit of 2 write calls per second"
        insert(kit, 4, per_record=4, first=20)
        kit.run()
        assert sink(kit).reason == "waits for the dnode to acknowledge a write"
        kit.clock.advance(1.0)
        (task,) = [task for task in kit.tasks if task.id.operator == "sink"]
        assert not task.step()
        assert task.next_deadline() is None, "a deadline that is over keeps the thread spinning"
        kit.pass_time(3.0)
        kit.pass_time(3.0)
        assert len(kit.results) == 12
    finally:
        kit.close()


def test_a_write_that_was_held_up_holds_up_new_child_tables_for_a_while_only() -> None:
    """An engine that didn't get to it for hours says nothing of what child tables cost."""
    tables = NewTables(0.1, 0.0)
    tables.submitted(1, 0.0)
    tables.acknowledged(1, 10_000.0)
    assert 10_000.0 <= tables.available_at(1, 10_000.0) <= 10_001.0
    tables.submitted(1, 10_001.0)
    tables.acknowledged(1, 20_001.0)
    assert 20_001.0 <= tables.available_at(1, 20_001.0) <= 20_051.1


@pytest.mark.parametrize("by", ["tbname", "site"])
def test_groups_by_tables_have_no_rate_of_new_child_tables(tmp_path: Path, by: str) -> None:
    """There are no more of them than tables."""
    kit = StreamKit(tmp_path, COUNTS.replace("tbname", by), settings=unhurried(sink_tables_share=0.01))
    try:
        insert(kit, 400, per_record=100)
        kit.run()
        assert len({name for names in children_by_write(kit) for name in names}) > 1
        assert sink(kit).state == "IDLE"
    finally:
        kit.close()


def test_a_limited_source_is_checkpointed_paused_and_killed_as_any_other(tmp_path: Path) -> None:
    """In the middle of a block that was read ahead: the cut is behind the last record that passed."""
    kit = StreamKit(tmp_path, PLAIN, settings=unhurried(source_rows_per_second=10.0))
    try:
        insert(kit, 100)
        kit.pass_time(2)
        kit.checkpoint()
        cut = source(kit).progress.rows_in
        assert 0 < cut < 100
        kit.stream.post(Pause())
        kit.pass_time(5)
        assert (source(kit).state, source(kit).progress.rows_in) == ("PAUSED", cut)
        kit.stream.post(Resume())
        kit.pass_time(2)
        assert source(kit).progress.rows_in > cut
        kit.kill()
        pace(kit, 100 - cut)
        assert len(kit.results) == 100
        assert source(kit).log.processed_version == 100
    finally:
        kit.close()


def test_a_source_that_skips_to_the_end_forgets_what_it_had_read_ahead(tmp_path: Path) -> None:
    """RESUME IGNORE UNTREATED leaves out everything that wasn't processed, also the rest of a block."""
    kit = StreamKit(tmp_path, PLAIN, settings=unhurried(source_rows_per_second=10.0))
    try:
        insert(kit, 100)
        kit.run()
        read = source(kit).progress.rows_in
        kit.stream.post(Pause())
        kit.stream.post(Resume(skip_to_end=True))
        kit.pass_time(60)
        assert source(kit).progress.rows_in == read
        insert(kit, 1, first=100)
        kit.run()
        assert source(kit).progress.rows_in == read + 1
    finally:
        kit.close()


@pytest.mark.parametrize(("sql", "rates", "said"), [
    (PLAIN, {"source_rows_per_second": 50.0}, "its rate limit of 50 rows/s"),
    (HISTORY, {"history_rows_per_second": 50.0}, "its history rate limit of 50 rows/s"),
])
def test_the_verdict_names_a_limited_source(tmp_path: Path, sql: str, rates: dict[str, Any], said: str) -> None:
    """It is blocked by nothing but its rate, and never stalled, however long its rows wait."""
    kit = StreamKit(tmp_path, sql, settings=unhurried(**rates), before=lambda kit: insert(kit, 5000, per_record=100))
    monitor = Monitor(100, 1)
    try:
        insert(kit, 5000, per_record=100, first=5000)
        for _ in range(200):
            kit.pass_time(0.1)
            monitor.heartbeat(kit.stream.statuses(), kit.clock.monotonic())
        names = TaskNames("s", Nodes(tuple(kit.vnodes)))
        found = verdict(StreamInfo(StreamStatus("RUNNING")), monitor.report(kit.clock.monotonic()), names)
        assert (found.kind, found.text) == ("source", f"source s/v1 is the bottleneck: {said}")
    finally:
        kit.close()


def test_a_checkpoint_does_not_wait_for_a_limited_source(tmp_path: Path) -> None:
    """The barrier follows what has passed, not what is waiting."""
    kit = StreamKit(tmp_path, PLAIN, settings=unhurried(source_rows_per_second=1.0))
    try:
        insert(kit, 100)
        kit.run()
        kit.checkpoints += 1
        kit.stream.post(StartCheckpoint(1))
        kit.run()
        assert {ack.task for ack in kit.acknowledged} == {task.id for task in kit.tasks}
    finally:
        kit.close()
