"""Worker groups and streams: who shares, what a failure costs, and that no history leads to a contradiction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from conftest import times
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.mnode.checkpoints.transitions import InvalidTransitionError
from penstock.mnode.groups import group_book, group_events
from penstock.mnode.groups.group_book import GroupState, StreamState
from penstock.mnode.groups.group_events import (
    AddStream,
    CancelGroup,
    Cause,
    CloseAll,
    DeployStream,
    ForgetGroup,
    GroupSettings,
    GroupTick,
    HaltStream,
    Instruction,
    JobEnded,
    LateGroupEvent,
    LetStreamRun,
    PreparationFailed,
    PrepareStream,
    RemoveStream,
    ShutdownGroup,
    SlotsKnown,
    StreamDeployed,
    StreamDown,
    StreamFailed,
    StreamPrepared,
    StreamRemoved,
    StreamStopped,
    SubmitGroup,
    WorkerJoined,
    WorkerLost,
)
from penstock.mnode.groups.worker_groups import GroupMachine
from penstock.planner.task_plans.stream_plan import IsolationClass
from penstock.tasks.protocol.worker_nodes import Nodes

BAD_ROW = Cause("InvalidValueError", 0x2600, "source")
SETTINGS = GroupSettings(
    streams_per_worker=2,
    idle_timeout_s=60,
    start_timeout_s=90,
    deploy_timeout_s=120,
    stop_timeout_s=10,
    restart_delay_min_s=1,
    restart_delay_max_s=30,
)
VNODES = Nodes((2, 3))


def validate(machine: GroupMachine) -> None:
    """Fails if streams and groups contradict each other."""
    book = machine._book
    for stream in machine.streams:
        assert stream.stream_id in stream.group.streams
        assert stream.group.number in book.groups
        assert (stream.state in group_book.TIMED_STATES) == (book._timed.get(stream.stream_id) is stream)
        if stream.state in (StreamState.DEPLOYING, StreamState.RUNNING, StreamState.PREPARING):
            assert stream.group.state is GroupState.RUNNING
    for group in machine.groups:
        assert len(group.streams) <= book.settings.streams_max
        assert group.streams <= book.streams.keys()
        assert not group.lacks_slots or (group.state is GroupState.WAITING and machine.missing_slots(group))
        assert group.state is not GroupState.RUNNING or len(group.joined) == group.workers


@pytest.fixture
def machine() -> Iterator[GroupMachine]:
    machine = GroupMachine(SETTINGS)
    yield machine
    validate(machine)


def add(machine: GroupMachine, stream_id: int, now: float = 0.0) -> list[Instruction]:
    return machine.handle(AddStream(stream_id, "db", VNODES), now)


def join(machine: GroupMachine, group: str, now: float = 1.0) -> list[Instruction]:
    instructions = machine.handle(WorkerJoined(group, 0), now)
    return instructions + machine.handle(WorkerJoined(group, 1), now)


def deploy(machine: GroupMachine, stream_id: int, preparation: int, attempt: int, now: float = 2.0) -> None:
    """Takes a prepared stream to RUNNING."""
    group = state_of(machine, stream_id).group.name
    prepared = machine.handle(StreamPrepared(stream_id, preparation, attempt), now)
    assert prepared == [DeployStream(stream_id, attempt, group)]
    assert machine.handle(StreamDeployed(stream_id, attempt, 0), now) == []
    assert machine.handle(StreamDeployed(stream_id, attempt, 1), now) == [LetStreamRun(stream_id, attempt, group)]


def state_of(machine: GroupMachine, stream_id: int) -> group_book.PlacedStream:
    stream = machine.stream(stream_id)
    assert stream is not None
    return stream


def running(machine: GroupMachine, *stream_ids: int) -> None:
    """Brings streams of one group to RUNNING, attempt 1."""
    for stream_id in stream_ids:
        add(machine, stream_id)
    join(machine, "db-1.1")
    for stream_id in stream_ids:
        deploy(machine, stream_id, 1, 1)


def test_the_first_stream_brings_a_group_and_runs_when_all_have_deployed(machine: GroupMachine) -> None:
    """Submit, wait for all workers, prepare, deploy, wait for all again, run."""
    assert add(machine, 1) == [SubmitGroup("db-1.1", "db", VNODES)]
    assert machine.handle(WorkerJoined("db-1.1", 1), 1.0) == []
    assert machine.handle(WorkerJoined("db-1.1", 0), 1.0) == [PrepareStream(1, 1)]
    deploy(machine, 1, 1, 1)
    assert state_of(machine, 1).state is StreamState.RUNNING


def test_streams_of_a_database_share_a_group_up_to_the_limit(machine: GroupMachine) -> None:
    """A free place is taken before a group is started; another database never shares."""
    add(machine, 1)
    assert add(machine, 2) == []
    assert add(machine, 3) == [SubmitGroup("db-2.1", "db", VNODES)]
    assert machine.handle(AddStream(4, "other", Nodes((7,))), 0.0) == [SubmitGroup("other-3.1", "other", Nodes((7,)))]
    assert join(machine, "db-1.1") == [PrepareStream(1, 1), PrepareStream(2, 1)]


@pytest.mark.parametrize(("processors", "shared", "groups"), [
    (0, 2, [2, 2, 2, 2]),  # a cluster: as many groups as it takes
    (1, 2, [5, 3]), (2, 2, [5, 3]),  # one group has a worker for each processor
    (3, 2, [4, 4]), (4, 2, [4, 4]),  # the second one takes the last processors, and both are filled alike
    (6, 2, [3, 3, 2]), (100, 2, [2, 2, 2, 2]), (1, 1, [1] * 8), (1, 6, [6, 2])])
def test_groups_are_packed_once_all_processors_have_workers(processors: int, shared: int, groups: list[int]) -> None:
    """Up to five streams are in a packed group; streams that share with nobody never do."""
    machine = GroupMachine(replace(
        SETTINGS, streams_per_worker=shared, packed_streams_per_worker=5, processors=processors))
    for stream_id in range(1, 9):
        add(machine, stream_id)
    validate(machine)
    assert Counter(state_of(machine, stream_id).group.number for stream_id in range(1, 9)) == dict(enumerate(groups, 1))


@pytest.mark.parametrize("isolation_class", [IsolationClass.USER_CODE, IsolationClass.OPEN_GROUPS])
def test_streams_of_an_isolation_class_share_with_their_like_only(
    machine: GroupMachine, isolation_class: IsolationClass
) -> None:
    """They find no place beside others, nor these beside them; the places are as many."""
    assert add(machine, 1) == [SubmitGroup("db-1.1", "db", VNODES)]
    assert machine.handle(AddStream(2, "db", VNODES, isolation_class=isolation_class), 0.0) == [
        SubmitGroup("db-2.1", "db", VNODES, isolation_class=isolation_class)]
    assert add(machine, 3) == []
    assert machine.handle(AddStream(4, "db", VNODES, isolation_class=isolation_class), 0.0) == []
    assert machine.handle(AddStream(5, "db", VNODES, isolation_class=isolation_class), 0.0) == [
        SubmitGroup("db-3.1", "db", VNODES, isolation_class=isolation_class)]

    assert {group.name: group.streams for group in machine.groups} == {
        "db-1.1": {1, 3}, "db-2.1": {2, 4}, "db-3.1": {5}}


def test_streams_on_snodes_share_with_their_like_and_wait_for_all_workers(machine: GroupMachine) -> None:
    """A group has a worker more for each snode: it joins, deploys, stops, and is missed, as the others are."""
    add(machine, 1)
    snodes = Nodes((2, 3), (1001,))
    assert machine.handle(AddStream(2, "db", snodes), 0.0) == [SubmitGroup("db-2.1", "db", snodes)]
    assert machine.handle(AddStream(3, "db", snodes), 0.0) == []
    assert machine.handle(AddStream(4, "db", Nodes((2, 3), (1002,))), 0.0) == [
        SubmitGroup("db-3.1", "db", Nodes((2, 3), (1002,)))]
    machine.handle(RemoveStream(3), 0.0)
    assert join(machine, "db-2.1") == []
    assert machine.handle(WorkerJoined("db-2.1", 2), 1.0) == [PrepareStream(2, 1)]
    machine.handle(StreamPrepared(2, 1, 1), 2.0)
    assert [machine.handle(StreamDeployed(2, 1, index), 2.0) for index in range(3)] == [
        [], [], [LetStreamRun(2, 1, "db-2.1")]]
    assert machine.handle(WorkerLost("db-2.1", 2, "killed"), 3.0)[-1] == CancelGroup("db-2.1")
    machine.handle(JobEnded("db-2.1", "killed"), 4.0)
    machine.handle(SlotsKnown(7), 4.0)
    assert machine.handle(GroupTick(), 5.0) == []
    group = state_of(machine, 2).group
    assert machine.waits_for(group) == "1 slot is missing: its worker group needs 3, 2 of Spark's 7 are free"


def test_a_stream_added_to_a_running_group_is_prepared_at_once(machine: GroupMachine) -> None:
    """A running group with a free place is preferred to one that still starts."""
    running(machine, 1)
    assert add(machine, 2, 5.0) == [PrepareStream(2, 1)]


def test_a_failed_stream_is_stopped_everywhere_before_its_next_attempt(machine: GroupMachine) -> None:
    """Its neighbour runs on; the failed stream waits, longer each time, and gets another attempt."""
    running(machine, 1, 2)
    now = 3.0
    for failures, delay in enumerate([1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0], start=1):
        attempt = state_of(machine, 1).attempt
        failed = machine.handle(StreamFailed(1, attempt, "bad row", BAD_ROW), now)
        assert failed == [StreamDown(1, "bad row"), HaltStream(1, attempt, "db-1.1")]
        machine.handle(StreamStopped(1, attempt, 0), now)
        assert state_of(machine, 1).state is StreamState.STOPPING
        machine.handle(StreamStopped(1, attempt, 1), now)
        assert state_of(machine, 1).state is StreamState.BACKOFF
        assert state_of(machine, 1).reason == "bad row"
        assert machine.next_deadline() == now + delay
        assert machine.handle(GroupTick(), now + delay - 0.1) == []
        now += delay
        assert machine.handle(GroupTick(), now) == [PrepareStream(1, failures + 1)]
        deploy(machine, 1, failures + 1, attempt + 1, now)
    assert state_of(machine, 1).restarts == 7
    assert state_of(machine, 2).attempt == 1


def test_a_stream_that_ran_well_starts_with_the_short_delay_again(machine: GroupMachine) -> None:
    """Failures long ago don't count."""
    running(machine, 1)
    state_of(machine, 1).failures = 5
    machine.handle(StreamFailed(1, 1, "bad row", BAD_ROW), 1000.0)
    for index in (0, 1):
        machine.handle(StreamStopped(1, 1, index), 1000.0)
    assert state_of(machine, 1).retry_at == 1001.0


def test_a_lost_worker_costs_the_group_and_all_its_streams_come_back(machine: GroupMachine) -> None:
    """The job is cancelled, resubmitted after the delay, and each stream prepared anew."""
    running(machine, 1, 2)
    reason = "worker 1 of group db-1.1: connection closed"
    lost = machine.handle(WorkerLost("db-1.1", 1, "connection closed"), 5.0)
    assert lost == [StreamDown(1, reason), StreamDown(2, reason), CancelGroup("db-1.1")]
    assert isinstance(machine.handle(WorkerLost("db-1.1", 0, "connection closed"), 5.0)[0], LateGroupEvent)
    assert machine.handle(JobEnded("db-1.1", "job aborted"), 6.0) == [ForgetGroup("db-1.1")]
    assert machine.handle(GroupTick(), 7.0) == [SubmitGroup("db-1.2", "db", VNODES)]
    assert isinstance(machine.handle(WorkerJoined("db-1.1", 0), 7.0)[0], LateGroupEvent)
    assert join(machine, "db-1.2", 8.0) == [PrepareStream(1, 2), PrepareStream(2, 2)]
    deploy(machine, 1, 2, 2, 8.0)
    assert state_of(machine, 1).reason == ""


def test_a_job_that_ends_by_itself_counts_as_a_failure(machine: GroupMachine) -> None:
    """If Spark gives the job up without a word from the workers, the group comes back as well."""
    running(machine, 1)
    assert machine.handle(JobEnded("db-1.1", "executor lost"), 5.0) == [
        ForgetGroup("db-1.1"),
        StreamDown(1, "the job of group db-1.1 ended: executor lost")
    ]
    assert machine.handle(GroupTick(), 6.0) == [SubmitGroup("db-1.2", "db", VNODES)]


def test_workers_that_do_not_come_fail_the_group_with_a_reason(machine: GroupMachine) -> None:
    """A group that isn't complete in time is cancelled; the reason says how many are missing."""
    add(machine, 1)
    machine.handle(WorkerJoined("db-1.1", 0), 1.0)
    assert machine.handle(GroupTick(), 89.0) == []
    assert machine.handle(GroupTick(), 90.0) == [CancelGroup("db-1.1")]
    assert "1 of 2 workers" in machine.groups[0].reason


def test_an_empty_group_is_given_back_after_a_while(machine: GroupMachine) -> None:
    """Its workers are told to leave; a stream that comes in time keeps the group."""
    running(machine, 1)
    assert machine.handle(RemoveStream(1), 10.0) == [
        StreamDown(1, "it is being removed"),
        HaltStream(1, 1, "db-1.1"),
    ]
    machine.handle(StreamStopped(1, 1, 0), 11.0)
    assert machine.handle(StreamStopped(1, 1, 1), 11.0) == [StreamRemoved(1)]
    assert machine.handle(GroupTick(), 70.0) == []
    assert machine.handle(GroupTick(), 71.0) == [ShutdownGroup("db-1.1")]
    assert isinstance(machine.handle(WorkerLost("db-1.1", 0, "left"), 71.5)[0], LateGroupEvent)
    assert machine.handle(JobEnded("db-1.1", None), 72.0) == [ForgetGroup("db-1.1")]
    assert machine.groups == ()


def test_workers_that_do_not_leave_are_cut_off(machine: GroupMachine) -> None:
    """A group that was told to leave and doesn't is cancelled, once."""
    running(machine, 1)
    assert machine.handle(CloseAll(), 5.0) == [StreamDown(1, "the engine closes"), ShutdownGroup("db-1.1")]
    assert machine.handle(GroupTick(), 15.0) == [CancelGroup("db-1.1")]
    assert machine.handle(GroupTick(), 16.0) == []
    assert machine.handle(JobEnded("db-1.1", None), 17.0) == [ForgetGroup("db-1.1"), StreamRemoved(1)]
    assert machine.groups == ()


def test_a_worker_that_does_not_stop_a_stream_loses_the_group(machine: GroupMachine) -> None:
    """If a stream isn't stopped in time, the job goes; the stream that was to be removed is gone with it."""
    running(machine, 1, 2)
    machine.handle(RemoveStream(1), 5.0)
    machine.handle(StreamStopped(1, 1, 0), 5.0)
    instructions = machine.handle(GroupTick(), 15.0)
    assert instructions[-1] == CancelGroup("db-1.1")
    assert "workers [1] have not stopped" in machine.groups[0].reason
    assert StreamRemoved(1) in machine.handle(JobEnded("db-1.1", None), 16.0)
    assert state_of(machine, 2).state is StreamState.WAITING


def test_attempts_that_fail_for_the_same_cause_are_counted(machine: GroupMachine) -> None:
    """Whatever their reasons say; another cause, or an attempt that runs for long, begins anew."""
    held, refused = Cause("UnavailableError", None, "agg"), Cause("UnavailableError", None, "sink")
    running(machine, 1)
    now = 2.0
    for attempt, (reason, cause, ran_s, alike) in enumerate(
            [("held by 7", held, 1, 1), ("held by java", held, 1, 2), ("held by 9", held, 1, 3),
             ("held by 9", refused, 1, 1), ("bad row", BAD_ROW, 1, 1), ("bad row", BAD_ROW, 1, 2),
             ("bad row", BAD_ROW, 31, 1)], 1):
        now += ran_s
        machine.handle(StreamFailed(1, attempt, reason, cause), now)
        assert state_of(machine, 1).alike == alike
        for index in (0, 1):
            machine.handle(StreamStopped(1, attempt, index), now)
        now += 30
        assert machine.handle(GroupTick(), now) == [PrepareStream(1, attempt + 1)]
        deploy(machine, 1, attempt + 1, attempt + 1, now)


def test_a_preparation_that_fails_is_tried_again(machine: GroupMachine) -> None:
    """A catalog or file error while preparing costs a delay and shows as the reason."""
    add(machine, 1)
    join(machine, "db-1.1")
    failed = PreparationFailed(1, 1, "disk full", Cause("StorageError"))
    assert machine.handle(failed, 2.0) == [StreamDown(1, "disk full")]
    assert state_of(machine, 1).reason == "disk full"
    assert machine.handle(GroupTick(), 3.0) == [PrepareStream(1, 2)]
    assert isinstance(machine.handle(StreamPrepared(1, 1, 9), 3.0)[0], LateGroupEvent)


def test_a_group_waits_until_there_are_slots_for_it(machine: GroupMachine) -> None:
    """It says how many it lacks, and starts once another group has left; a stream beside those that run needs none."""
    assert machine.handle(SlotsKnown(3), 0.0) == []
    running(machine, 1)
    assert machine.handle(AddStream(2, "other", Nodes((7, 8))), 2.0) == []
    waiting = state_of(machine, 2).group
    assert (waiting.lacks_slots, machine.missing_slots(waiting)) == (True, 1)
    assert machine.waits_for(waiting) == "1 slot is missing: its worker group needs 2, 1 of Spark's 3 are free"
    assert add(machine, 3, 2.0) == [PrepareStream(3, 1)]
    assert machine.next_deadline() is None
    assert machine.handle(GroupTick(), 500.0) == []
    machine.handle(WorkerLost("db-1.1", 0, "killed"), 500.0)
    assert machine.handle(JobEnded("db-1.1", "killed"), 501.0) == [
        ForgetGroup("db-1.1"), SubmitGroup("other-2.1", "other", Nodes((7, 8)))]
    assert not waiting.lacks_slots
    assert machine.handle(GroupTick(), 510.0) == []
    assert state_of(machine, 1).group.lacks_slots
    assert machine.handle(SlotsKnown(4), 511.0) == [SubmitGroup("db-1.2", "db", VNODES)]


def test_an_idle_group_gives_its_slots_to_one_that_waits(machine: GroupMachine) -> None:
    """At once, not after the idle timeout; no more groups go than are needed."""
    machine.handle(SlotsKnown(4), 0.0)
    for stream_id, database in ((1, "a"), (2, "b")):
        machine.handle(AddStream(stream_id, database, VNODES), 0.0)
        name = f"{database}-{stream_id}.1"
        join(machine, name)
        deploy(machine, stream_id, 1, 1)
        machine.handle(RemoveStream(stream_id), 3.0)
        for index in (0, 1):
            machine.handle(StreamStopped(stream_id, 1, index), 3.0)
    assert machine.handle(AddStream(3, "c", VNODES), 4.0) == [ShutdownGroup("a-1.1")]
    assert machine.handle(AddStream(4, "c", VNODES), 4.0) == []
    assert machine.handle(JobEnded("a-1.1", None), 5.0) == [
        ForgetGroup("a-1.1"), SubmitGroup("c-3.1", "c", VNODES)]


def test_a_group_that_becomes_idle_gives_its_slots_away_at_once(machine: GroupMachine) -> None:
    """Whether its last stream ends, or its workers come when nobody needs them any more."""
    machine.handle(SlotsKnown(4), 0.0)
    running(machine, 1)
    machine.handle(AddStream(2, "b", VNODES), 0.0)
    machine.handle(AddStream(3, "c", VNODES), 0.0)
    assert machine.handle(RemoveStream(2), 1.0) == [StreamRemoved(2)]
    assert join(machine, "b-2.1", 2.0) == [ShutdownGroup("b-2.1")]
    assert machine.handle(JobEnded("b-2.1", None), 3.0) == [
        ForgetGroup("b-2.1"), SubmitGroup("c-3.1", "c", VNODES)]
    machine.handle(AddStream(4, "d", VNODES), 4.0)
    machine.handle(RemoveStream(1), 5.0)
    machine.handle(StreamStopped(1, 1, 0), 5.0)
    assert machine.handle(StreamStopped(1, 1, 1), 5.0) == [StreamRemoved(1), ShutdownGroup("db-1.1")]


def test_jobs_for_which_there_are_no_slots_are_taken_back(machine: GroupMachine) -> None:
    """What was submitted before Spark had told how many there are waits here, not in Spark; the newest waits."""
    machine.handle(AddStream(1, "a", VNODES), 0.0)
    machine.handle(AddStream(2, "b", VNODES), 0.0)
    machine.handle(AddStream(3, "c", VNODES), 0.0)
    assert machine.handle(SlotsKnown(3), 1.0) == [CancelGroup("c-3.1"), CancelGroup("b-2.1")]
    machine.handle(JobEnded("c-3.1", None), 1.5)
    machine.handle(JobEnded("b-2.1", None), 1.5)
    machine.handle(GroupTick(), 40.0)
    assert [group.lacks_slots for group in machine.groups] == [False, True, True]
    assert machine.missing_slots(*machine.groups[1:]) == 3


def test_late_answers_are_ignored_with_a_reason(machine: GroupMachine) -> None:
    """What older attempts report changes nothing."""
    running(machine, 1)
    for event in (
        StreamDeployed(1, 0, 0), StreamFailed(1, 0, "old", BAD_ROW), StreamStopped(1, 0, 0), StreamPrepared(1, 7, 3),
        StreamFailed(99, 1, "unknown", BAD_ROW), JobEnded("db-9.1", None), WorkerJoined("db-9.1", 0),
    ):  # fmt: skip
        (ignored,) = machine.handle(event, 5.0)
        assert isinstance(ignored, LateGroupEvent)
        assert ignored.reason
    assert state_of(machine, 1).state is StreamState.RUNNING


def test_a_wrong_transition_raises_with_the_story(machine: GroupMachine) -> None:
    """A move that the table doesn't know is a defect, told with what led there."""
    running(machine, 1)
    stream = state_of(machine, 1)
    with pytest.raises(InvalidTransitionError, match=r"RUNNING -> PREPARING .*before: .*DEPLOYING -> RUNNING"):
        machine._book.move_stream(stream, StreamState.PREPARING, "no reason", 3.0)


def test_a_group_whose_job_is_over_is_not_ended_for_one_that_waits(machine: GroupMachine) -> None:
    """Its last stream goes with the job, and so do its slots: there is nothing to shut down."""
    running(machine, 1)
    machine.handle(SlotsKnown(state_of(machine, 1).group.slots), 3.0)
    assert machine.handle(AddStream(2, "other", VNODES), 4.0) == []
    machine.handle(RemoveStream(1), 5.0)
    assert machine.handle(JobEnded("db-1.1", "killed"), 6.0) == [
        ForgetGroup("db-1.1"), StreamRemoved(1), SubmitGroup("other-2.1", "other", VNODES)]


def test_every_state_is_reachable_and_only_gone_is_final() -> None:
    """The transition tables have no dead ends and no islands."""
    tables = ((group_book.GROUP_TRANSITIONS, GroupState.WAITING),
              (group_book.STREAM_TRANSITIONS, StreamState.WAITING))
    for table, first in tables:
        reached, todo = {first}, [first]
        while todo:
            for state in table[todo.pop()]:  # type: ignore[index]
                if state not in reached:
                    reached.add(state)
                    todo.append(state)
        assert reached == set(table)
        assert [state.name for state in table if not table[state]] == ["GONE"]  # type: ignore[index]


class GroupHistories(RuleBasedStateMachine):
    """Random histories of a small world that answers, or fails to answer, what the machine asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = GroupMachine(replace(SETTINGS, packed_streams_per_worker=3, processors=3))
        self.now = 0.0
        self.attempt = 0
        self.jobs: set[str] = set()
        self.known: set[str] = set()
        self.pending: list[group_events.Event] = []
        self.up: set[int] = set()
        self.isolation_class: dict[int, IsolationClass] = {}
        self.nodes: dict[int, Nodes] = {}
        self.workers: dict[str, int] = {}

    def handle(self, event: group_events.Event) -> None:
        for instruction in self.machine.handle(event, self.now):
            self.perform(instruction)

    def perform(self, instruction: Instruction) -> None:
        match instruction:
            case SubmitGroup(group, _, nodes, _):
                assert group not in self.jobs
                self.jobs.add(group)
                self.known.add(group)
                self.workers[group] = nodes.workers
                self.pending += [WorkerJoined(group, index) for index in range(nodes.workers)]
            case ShutdownGroup(group) | CancelGroup(group):
                assert group in self.jobs
                self.pending.append(JobEnded(group, None))
            case ForgetGroup(group):
                self.known.remove(group)
            case PrepareStream(stream_id, preparation):
                self.attempt += 1
                self.pending.append(StreamPrepared(stream_id, preparation, self.attempt))
            case DeployStream(stream_id, attempt, group):
                assert group in self.jobs
                self.pending += [StreamDeployed(stream_id, attempt, index) for index in range(self.workers[group])]
            case LetStreamRun(stream_id):
                assert stream_id not in self.up
                self.up.add(stream_id)
            case HaltStream(stream_id, attempt, group):
                self.pending += [StreamStopped(stream_id, attempt, index) for index in range(self.workers[group])]
            case StreamDown(stream_id) | StreamRemoved(stream_id):
                self.up.discard(stream_id)

    @rule(stream_id=st.integers(1, 6), database=st.sampled_from(["a", "b"]),
          isolation_class=st.sampled_from(IsolationClass), snodes=st.sampled_from([(), (), (9,)]))
    def add(self, stream_id: int, database: str, isolation_class: IsolationClass, snodes: tuple[int, ...]) -> None:
        nodes = Nodes((2, 3), snodes)
        if self.machine.stream(stream_id) is None:
            self.isolation_class[stream_id], self.nodes[stream_id] = isolation_class, nodes
        self.handle(AddStream(stream_id, database, nodes, isolation_class))

    @rule(slots=st.integers(0, 6))
    def count_slots(self, slots: int) -> None:
        self.handle(SlotsKnown(slots))

    @rule(stream_id=st.integers(1, 6))
    def remove(self, stream_id: int) -> None:
        self.handle(RemoveStream(stream_id))

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        event = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        if isinstance(event, JobEnded):
            self.jobs.discard(event.group)
        self.handle(event)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def repeat_an_answer(self, data: st.DataObject) -> None:
        event = data.draw(st.sampled_from(self.pending))
        if not isinstance(event, JobEnded):
            self.handle(event)

    @precondition(lambda self: self.up)
    @rule(data=st.data())
    def fail_stream(self, data: st.DataObject) -> None:
        stream = self.machine.stream(data.draw(st.sampled_from(sorted(self.up))))
        assert stream is not None
        self.handle(StreamFailed(stream.stream_id, stream.attempt, "bad row", BAD_ROW))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def lose_worker(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(self.jobs)))
        self.handle(WorkerLost(group, data.draw(st.integers(0, self.workers[group] - 1)), "killed"))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def lose_job(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(self.jobs)))
        self.jobs.discard(group)
        self.handle(JobEnded(group, "executor lost"))

    @rule(seconds=st.sampled_from([0.1, 1.0, 11.0, 95.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.handle(GroupTick())

    @invariant()
    def books_balance(self) -> None:
        validate(self.machine)
        running = {s.stream_id for s in self.machine.streams if s.state is StreamState.RUNNING}
        assert running == self.up
        assert self.jobs <= self.known <= self.jobs | {
            event.group for event in self.pending if isinstance(event, JobEnded)}
        assert all(self.isolation_class[stream.stream_id] is stream.group.isolation_class
                   for stream in self.machine.streams)
        assert all(self.nodes[stream.stream_id] == stream.group.nodes for stream in self.machine.streams)

    def teardown(self) -> None:
        """Once the world behaves, every stream runs; and once the engine closes, nothing is left."""
        self.handle(SlotsKnown(100))
        for _ in range(12):
            self.settle()
            self.now += 31
            self.handle(GroupTick())
        self.settle()
        states = {s.stream_id: (s.state, s.story) for s in self.machine.streams}
        assert all(state is StreamState.RUNNING for state, _ in states.values()), states
        self.handle(CloseAll())
        self.settle()
        assert self.machine.groups == ()
        assert self.machine.streams == ()

    def settle(self) -> None:
        while self.pending:
            event = self.pending.pop(0)
            if isinstance(event, JobEnded):
                self.jobs.discard(event.group)
            self.handle(event)


TestGroupHistories = GroupHistories.TestCase
TestGroupHistories.settings = settings(max_examples=times(24, 600), stateful_step_count=40, deadline=None)
