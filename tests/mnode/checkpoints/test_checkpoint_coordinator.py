"""Checkpoints of streams: valid only when all have acknowledged and the record is written; records on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs

from penstock.common.errors import CorruptionError, InternalError, StorageError
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.mnode.checkpoints import checkpoint_machine
from penstock.mnode.checkpoints.checkpoint_machine import (
    Acknowledgement,
    Announce,
    AttemptEnds,
    AttemptRuns,
    Begin,
    CallOff,
    CheckpointMachine,
    CheckpointPhase,
    CheckpointRequest,
    CheckpointSettings,
    CheckpointTick,
    Event,
    Finished,
    Instruction,
    LateCheckpointEvent,
    RecordFailed,
    RecordWritten,
    WriteRecord,
)
from penstock.mnode.checkpoints.commit_records import CommitRecord, CommitRecords, TaskRecord
from penstock.mnode.checkpoints.transitions import InvalidTransitionError
from penstock.tasks.protocol.messages import OperatorKind, TaskCheckpoint, TaskId

LEVELS: tuple[OperatorKind, ...] = ("source", "agg", "sink")
TASKS = frozenset(TaskId(1, level, index) for level in LEVELS for index in (0, 1))
RUNS = AttemptRuns(1, 3, TASKS, (20, 21), 7)


def validate(machine: CheckpointMachine) -> None:
    """Fails if the books don't balance."""
    for progress in machine._streams.values():
        assert progress.acknowledged.keys() <= progress.tasks
        if progress.phase in (CheckpointPhase.COMMITTING, CheckpointPhase.COLLECTING):
            is_whole = progress.acknowledged.keys() == progress.tasks
            assert is_whole == (progress.phase is CheckpointPhase.COMMITTING)


@pytest.fixture
def machine() -> Iterator[CheckpointMachine]:
    machine = CheckpointMachine(CheckpointSettings(interval_s=180, timeout_s=60))
    machine.handle(RUNS, 0.0, 1_000_000)
    yield machine
    validate(machine)


def handle(machine: CheckpointMachine, event: Event, now: float) -> list[Instruction]:
    return machine.handle(event, now, 1_000_000 + round(now * 1000))


def acknowledge(task: TaskId, checkpoint_id: int, attempt: int = 3) -> Acknowledgement:
    version = 100 + task.index if task.operator == "source" else None
    return Acknowledgement(TaskCheckpoint(task, checkpoint_id, 10, 1.0, version, f"d{task.index}"), attempt)


def acknowledge_all(machine: CheckpointMachine, checkpoint_id: int, now: float) -> CommitRecord:
    *first, last = sorted(TASKS)
    for task in first:
        assert handle(machine, acknowledge(task, checkpoint_id), now) == []
    (write,) = handle(machine, acknowledge(last, checkpoint_id), now)
    assert isinstance(write, WriteRecord)
    return write.record


def test_a_checkpoint_starts_every_interval_and_commits_when_all_have_acknowledged(machine: CheckpointMachine) -> None:
    """Ids go on from the last one used; the record holds the cut, the digests and the time that it took."""
    assert machine.next_deadline() == 180.0
    assert handle(machine, CheckpointTick(), 179.0) == []
    assert handle(machine, CheckpointTick(), 180.0) == [Begin(1, 3, 8)]
    record = acknowledge_all(machine, 8, 182.5)
    assert record.versions == ((20, 100), (21, 101))
    assert record.tasks[0] == TaskRecord("1-agg-0", "d0", 10, 2500.0, 1.0)
    assert record.slowest is not None
    assert record.slowest.after_ms == 2500.0
    assert (record.attempt, record.started_ms, record.duration_ms) == (3, 1_180_000, 2500.0)
    written = handle(machine, RecordWritten(1, 8), 183.0)
    assert written == [Announce(record), Finished(1, 8, "committed", "")]
    assert machine.next_deadline() == 360.0


def test_nothing_is_announced_before_the_record_is_written(machine: CheckpointMachine) -> None:
    """A record that can't be written abandons the checkpoint; the next one gets another id."""
    handle(machine, CheckpointRequest(1), 5.0)
    acknowledge_all(machine, 8, 6.0)
    called_off, finished = handle(machine, RecordFailed(1, 8, "disk full"), 7.0)
    assert called_off == CallOff(1, 8)
    assert finished == Finished(1, 8, "abandoned", "its record could not be written: disk full")
    assert handle(machine, CheckpointRequest(1), 8.0) == [Begin(1, 3, 9)]


def test_a_checkpoint_that_takes_too_long_is_abandoned_and_says_whose_fault_it_is(machine: CheckpointMachine) -> None:
    """The missing tasks are named; acknowledgements that come later count for nothing."""
    handle(machine, CheckpointRequest(1), 0.0)
    late = TaskId(1, "sink", 1)
    for task in sorted(TASKS - {late}):
        handle(machine, acknowledge(task, 8), 1.0)
    assert machine.next_deadline() == 60.0
    called_off, finished = handle(machine, CheckpointTick(), 60.0)
    assert called_off == CallOff(1, 8)
    assert finished == Finished(1, 8, "abandoned", "not acknowledged by 1-sink-1 within 60 s")
    (ignored,) = handle(machine, acknowledge(late, 8), 61.0)
    assert isinstance(ignored, LateCheckpointEvent)


def test_one_that_timed_out_does_not_begin_again_at_once() -> None:
    """However much longer than its interval a checkpoint took, the stream gets an interval to recover; its own one
    goes before that of all."""
    machine = CheckpointMachine(CheckpointSettings(interval_s=180, timeout_s=600))
    handle(machine, replace(RUNS, interval_s=10.0), 0.0)
    assert handle(machine, CheckpointTick(), 10.0) == [Begin(1, 3, 8)]
    assert len(handle(machine, CheckpointTick(), 610.0)) == 2
    assert machine.next_deadline() == 620.0
    assert handle(machine, CheckpointTick(), 619.0) == []
    assert handle(machine, CheckpointTick(), 620.0) == [Begin(1, 3, 9)]


def test_a_slow_checkpoint_does_not_overlap_with_the_next(machine: CheckpointMachine) -> None:
    """While one is under way none starts; what was due meanwhile starts after it."""
    machine = CheckpointMachine(CheckpointSettings(interval_s=10, timeout_s=60))
    handle(machine, RUNS, 0.0)
    assert handle(machine, CheckpointTick(), 10.0) == [Begin(1, 3, 8)]
    assert handle(machine, CheckpointTick(), 30.0) == []
    acknowledge_all(machine, 8, 31.0)
    assert handle(machine, CheckpointTick(), 32.0) == []
    handle(machine, RecordWritten(1, 8), 33.0)
    assert handle(machine, CheckpointTick(), 33.0) == [Begin(1, 3, 9)]


def test_a_request_while_one_is_under_way_gets_its_own(machine: CheckpointMachine) -> None:
    """Two requests while a checkpoint runs lead to one more, right behind it."""
    assert handle(machine, CheckpointRequest(1), 1.0) == [Begin(1, 3, 8)]
    assert handle(machine, CheckpointRequest(1), 2.0) == []
    assert handle(machine, CheckpointRequest(1), 2.0) == []
    acknowledge_all(machine, 8, 3.0)
    instructions = handle(machine, RecordWritten(1, 8), 4.0)
    assert instructions[1:] == [Finished(1, 8, "committed", ""), Begin(1, 3, 9)]
    acknowledge_all(machine, 9, 5.0)
    assert len(handle(machine, RecordWritten(1, 9), 6.0)) == 2


def test_the_end_of_an_attempt_ends_its_checkpoint(machine: CheckpointMachine) -> None:
    """What the old attempt acknowledges after its end doesn't count for the new one."""
    handle(machine, CheckpointRequest(1), 1.0)
    assert handle(machine, AttemptEnds(1, "a task failed"), 2.0) == [Finished(1, 8, "abandoned", "a task failed")]
    assert machine.progress(1) is None
    handle(machine, AttemptRuns(1, 4, TASKS, (20, 21), 8), 3.0)
    assert handle(machine, CheckpointRequest(1), 4.0) == [Begin(1, 4, 9)]
    (ignored,) = handle(machine, acknowledge(TaskId(1, "agg", 0), 9, attempt=3), 5.0)
    assert isinstance(ignored, LateCheckpointEvent)
    (written,) = handle(machine, RecordWritten(1, 8), 5.0)
    assert isinstance(written, LateCheckpointEvent)


def test_a_stream_that_does_not_run_cannot_be_checkpointed(machine: CheckpointMachine) -> None:
    """The request is answered at once."""
    assert handle(machine, CheckpointRequest(9), 0.0) == [Finished(9, 0, "abandoned", "the stream isn't running")]


def test_contradictions_are_defects(machine: CheckpointMachine) -> None:
    """A stranger's acknowledgement, a source without a version, and a move outside of the table raise."""
    handle(machine, CheckpointRequest(1), 0.0)
    with pytest.raises(InternalError, match="isn't in"):
        handle(machine, acknowledge(TaskId(1, "agg", 9), 8), 1.0)
    progress = machine.progress(1)
    assert progress is not None
    with pytest.raises(InvalidTransitionError, match=r"COLLECTING -> COLLECTING .*before: .*RESTING"):
        machine._move(progress, CheckpointPhase.COLLECTING, "again", 1.0)


def test_every_state_is_reachable_and_only_ended_is_final() -> None:
    """The transition table has no dead ends and no islands."""
    assert set().union(*checkpoint_machine.TRANSITIONS.values()) == set(CheckpointPhase)
    assert [state.name for state, next_states in checkpoint_machine.TRANSITIONS.items() if not next_states] == ["ENDED"]


@given(st.lists(st.tuples(st.sampled_from(["ack", "tick", "request", "written", "failed", "restart"]),
                          st.integers(0, 11), st.sampled_from([0.1, 5.0, 61.0, 181.0])), max_size=80))
def test_no_history_commits_without_all_tasks(steps: list[tuple[str, int, float]]) -> None:
    """Whatever is said in whatever order: a record is written only for a checkpoint that all tasks of the attempt
    acknowledged, each at most once, and announced only after it is written."""
    machine = CheckpointMachine(CheckpointSettings(interval_s=180, timeout_s=60))
    now, attempt, begun = 0.0, 1, 0
    said: set[tuple[int, TaskId, int]] = set()
    to_write: list[CommitRecord] = []
    announced: set[int] = set()
    tasks = sorted(TASKS)
    instructions = handle(machine, AttemptRuns(1, attempt, TASKS, (20, 21), 0), now)
    for kind, number, seconds in steps:
        now += seconds
        if kind == "ack":
            acknowledgement = acknowledge(tasks[number % 6], max(begun - number // 6, 0), attempt)
            said.add((attempt, acknowledgement.checkpoint.task, acknowledgement.checkpoint.checkpoint_id))
            instructions = handle(machine, acknowledgement, now)
        elif kind in ("written", "failed") and to_write:
            record = to_write.pop(0)
            event: Event = RecordWritten(1, record.checkpoint_id)
            if kind == "failed":
                event = RecordFailed(1, record.checkpoint_id, "disk full")
            instructions = handle(machine, event, now)
        elif kind == "restart":
            attempt += 1
            instructions = handle(machine, AttemptRuns(1, attempt, TASKS, (20, 21), begun), now)
        else:
            instructions = handle(machine, CheckpointRequest(1) if kind == "request" else CheckpointTick(), now)
        for instruction in instructions:
            match instruction:
                case Begin(_, _, checkpoint_id):
                    assert checkpoint_id > begun
                    begun = checkpoint_id
                case WriteRecord(record):
                    assert {(record.attempt, task, record.checkpoint_id) for task in tasks} <= said
                    to_write.append(record)
                case Announce(record):
                    assert record.checkpoint_id not in announced
                    assert record.attempt == attempt
                    announced.add(record.checkpoint_id)
        validate(machine)


# --- records on disk ---------------------------------------------------------------------------------------------


def record_of(checkpoint_id: int) -> CommitRecord:
    return CommitRecord(
        0x2A, checkpoint_id, 3, ((20, 100), (21, 2**40)), (TaskRecord("2a-source-0", "ab", 7),), 1_600_000_000_000, 12.5
    )


@pytest.fixture
def records(tmp_path: Path) -> CommitRecords:
    return CommitRecords(DataPaths(tmp_path), OsFs())


def reopened(root: Path) -> CommitRecords:
    """Returns the records as whoever starts next finds them."""
    return CommitRecords(DataPaths(root), OsFs())


def test_records_are_read_back_and_only_the_last_three_stay(records: CommitRecords) -> None:
    """The newest of several records is found; older ones than the kept ones are removed."""
    assert records.newest(0x2A) is None
    for checkpoint_id in (8, 9, 10, 11):
        records.write(record_of(checkpoint_id))
    assert records.ids(0x2A) == [11, 10, 9]
    assert records.newest(0x2A) == record_of(11)


def test_wal_is_needed_back_to_the_oldest_record(records: CommitRecords, tmp_path: Path) -> None:
    """A restart may have to go back to the oldest intact record; its cut is what holds the WAL."""
    assert records.oldest_versions(0x2A) == {}
    for checkpoint_id in (8, 9):
        records.write(replace(record_of(checkpoint_id), versions=((20, checkpoint_id * 10),)))
    assert records.oldest_versions(0x2A) == {20: 80}
    (DataPaths(tmp_path).checkpoints(0x2A) / "8.json").write_bytes(b"")
    assert reopened(tmp_path).oldest_versions(0x2A) == {20: 90}


@pytest.mark.parametrize("failing", [(2,), (2, 3), (2, 4)])
def test_a_record_that_failed_means_the_same_to_the_next_start(tmp_path: Path, failing: tuple[int, ...]) -> None:
    """A record whose directory couldn't be synced is nowhere, or counts before and after a restart alike."""
    fs = FailingCalls(failing)
    records = CommitRecords(DataPaths(tmp_path), fs)
    with pytest.raises(StorageError):
        records.write(record_of(8))
    assert records.ids(0x2A) == reopened(tmp_path).ids(0x2A)
    assert records.ids(0x2A) == ([] if failing != (2, 3) else [8])
    records.write(record_of(9))
    assert records.newest(0x2A) == reopened(tmp_path).newest(0x2A) == record_of(9)


class FailingCalls(FaultyFs):
    """Fails at several calls: 1 writes the record, 2 syncs its directory, 3 and 4 take it back."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        super().__init__()
        self._numbers = numbers

    def trip(self, what: str, *, sync: bool = False) -> bool:
        self.calls += 1
        return self.calls in self._numbers


def test_records_of_savepoints_stay_until_they_are_none(records: CommitRecords) -> None:
    """A savepoint's record is kept besides the newest ones, and holds the WAL; without the name it goes."""
    for checkpoint_id in range(1, 9):
        records.write(replace(record_of(checkpoint_id), versions=((20, checkpoint_id),)), {2})
    assert records.ids(0x2A) == [8, 7, 6, 2]
    assert records.oldest_versions(0x2A) == {20: 2}
    records.prune(0x2A, ())
    assert records.ids(0x2A) == [8, 7, 6]


def test_going_back_removes_what_is_newer(records: CommitRecords, tmp_path: Path) -> None:
    """After the removal of newer records the older one is the newest, also for whoever reads them next."""
    for checkpoint_id in (1, 2, 3):
        records.write(record_of(checkpoint_id))
    records.remove(0x2A, [2, 3])
    assert records.newest(0x2A) == reopened(tmp_path).newest(0x2A) == record_of(1)


def test_checkpoints_that_a_task_cannot_restore_are_passed_over(records: CommitRecords) -> None:
    """The record is intact, but the state isn't: the one before is the newest; without any, that is an error."""
    for checkpoint_id in (1, 2):
        records.write(record_of(checkpoint_id))
    assert records.newest(0x2A, {2}) == record_of(1)
    with pytest.raises(CorruptionError, match="no checkpoint of stream 2a is intact"):
        records.newest(0x2A, {1, 2})


def test_a_damaged_record_is_passed_over(records: CommitRecords, tmp_path: Path) -> None:
    """If the newest record is damaged, the one before it is used; if all are, that is an error, not a new start."""
    for checkpoint_id in (8, 9):
        records.write(record_of(checkpoint_id))
    directory = DataPaths(tmp_path).checkpoints(0x2A)
    (directory / "9.json").write_bytes((directory / "9.json").read_bytes()[:-3])
    assert reopened(tmp_path).newest(0x2A) == record_of(8)
    assert [one.damage == "" for one in reopened(tmp_path).all(0x2A)] == [False, True]
    (directory / "8.json").write_bytes(b"")
    with pytest.raises(CorruptionError, match=r"9\.json"):
        reopened(tmp_path).newest(0x2A)


def test_a_record_under_another_name_is_not_believed(records: CommitRecords, tmp_path: Path) -> None:
    """A copied or renamed record doesn't stand for another checkpoint."""
    records.write(record_of(8))
    directory = DataPaths(tmp_path).checkpoints(0x2A)
    (directory / "12.json").write_bytes((directory / "8.json").read_bytes())
    assert reopened(tmp_path).newest(0x2A) == record_of(8)


def test_every_flipped_byte_is_noticed() -> None:
    """No single changed byte of a record goes through."""
    data = record_of(8).encode()
    assert CommitRecord.decode(data, "x") == record_of(8)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        with pytest.raises(CorruptionError):
            CommitRecord.decode(bytes(damaged), "x")
