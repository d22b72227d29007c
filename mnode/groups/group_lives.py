"""What becomes of worker groups: jobs are submitted while there are slots, lost, tried again, and ended."""

from __future__ import annotations

from penstock.mnode.groups.group_book import Group, GroupBook, GroupState, PlacedStream, StreamState
from penstock.mnode.groups.group_events import (
    JOB_ENDED,
    NOT_JOINED,
    WORKER_LOST,
    CancelGroup,
    Cause,
    ForgetGroup,
    Instruction,
    JobEnded,
    LateGroupEvent,
    ShutdownGroup,
    SlotsKnown,
    SubmitGroup,
    WorkerJoined,
    WorkerLost,
)
from penstock.mnode.groups.stream_lives import StreamLives


class GroupLives:
    """Changes the states of groups, and of their streams with them."""

    def __init__(self, book: GroupBook, streams: StreamLives) -> None:
        self._book = book
        self._streams = streams

    def submit(self, group: Group, now: float) -> list[Instruction]:
        """Starts the group's next job, or lets it wait for slots; groups that host nothing give theirs back for it."""
        missing = self._book.missing_slots(group)
        group.lacks_slots = missing > 0
        if group.lacks_slots:
            return self._end_idle(missing, now)
        group.submissions += 1
        group.joined.clear()
        group.cancelled = False
        self._book.move_group(group, GroupState.STARTING, group.reason, now)
        return [SubmitGroup(group.name, group.database, group.nodes, group.isolation_class)]

    def forget(self, stream: PlacedStream, now: float) -> list[Instruction]:
        """Forgets a stream of which no worker has anything left; a group that nothing is placed in gives way."""
        group = stream.group
        removed = self._streams.remove(stream, now)
        if group.streams:
            return [removed]
        group.empty_since = now
        if group.state is GroupState.WAITING:
            self._book.move_group(group, GroupState.GONE, "no stream needs it", now)
        return [removed, *self._submit_waiting(now)]

    def slots_known(self, event: SlotsKnown, now: float) -> list[Instruction]:
        """Notes how many slots there are: jobs that don't fit are cancelled, waiting ones that fit are submitted."""
        self._book.slots = event.slots
        instructions: list[Instruction] = []
        # Jobs that were submitted before their slots were counted would wait in Spark, where nobody sees why.
        excess = -(self._book.free_slots or 0)
        for group in reversed(self._book.groups.values()):
            if excess > 0 and group.state is GroupState.STARTING and not group.joined:
                excess -= group.slots
                group.cancelled = True
                self._book.move_group(group, GroupState.ENDING, "there are no slots for it", now)
                instructions.append(CancelGroup(group.name))
        return instructions + self._submit_waiting(now)

    def joined(self, event: WorkerJoined, now: float) -> list[Instruction]:
        """Counts a worker; with the last one the group runs, and its streams are prepared."""
        group = self._book.group(event.group)
        if group is None or group.state is not GroupState.STARTING:
            return [LateGroupEvent(event, "the group doesn't wait for workers")]
        group.joined.add(event.index)
        if len(group.joined) < group.workers:
            return []
        self._book.move_group(group, GroupState.RUNNING, "", now)
        group.empty_since = now
        waiting = [stream for stream in self._book.streams_of(group) if stream.state is StreamState.WAITING]
        return [*(self._streams.prepare(stream, now) for stream in waiting), *self._submit_waiting(now)]

    def lost(self, event: WorkerLost, now: float) -> list[Instruction]:
        """Gives the group's job up: its other workers can't go on without the lost one."""
        group = self._book.group(event.group)
        if group is None or group.state not in (GroupState.STARTING, GroupState.RUNNING):
            return [LateGroupEvent(event, "the group is ending anyway")]
        reason = f"worker {event.index} of group {group.name}: {event.reason}"
        return self.fail(group, reason, WORKER_LOST, now)

    def job_ended(self, event: JobEnded, now: float) -> list[Instruction]:
        """Lets a group whose job is over wait for the next one, or go if nothing is placed in it."""
        group = self._book.group(event.group)
        if group is None or group.state in (GroupState.WAITING, GroupState.GONE):
            return [LateGroupEvent(event, "the group has no job")]
        # A job that ends because Spark does leaves workers behind, which hold the locks of the next attempt's state.
        instructions: list[Instruction] = [ForgetGroup(group.name)]
        reason = group.reason
        if group.state is not GroupState.ENDING:
            reason = f"the job of group {group.name} ended: {event.reason or 'all workers left'}"
            if group.state is GroupState.RUNNING and now - group.since > self._book.settings.restart_delay_max_s:
                group.failures = 0
            group.failures += 1
            instructions += self._streams.suspend(group, reason, JOB_ENDED, now)
        elif event.reason is not None:
            reason = f"{reason}; its job: {event.reason}"
        # No group that waits is submitted before this one is moved: it would still count as one that has slots to give.
        instructions += [self._streams.remove(stream, now) for stream in self._book.streams_of(group)
                         if stream.remove or self._book.closing]
        if group.streams:
            group.retry_at = now + self._book.delay(group.failures)
            self._book.move_group(group, GroupState.WAITING, reason, now)
        else:
            self._book.move_group(group, GroupState.GONE, reason, now)
        return instructions + self._submit_waiting(now)

    def fail(self, group: Group, reason: str, cause: Cause, now: float) -> list[Instruction]:
        """Gives the group's job up; its streams wait for the next one."""
        if group.state is GroupState.RUNNING and now - group.since > self._book.settings.restart_delay_max_s:
            group.failures = 0
        group.failures += 1
        instructions = self._streams.suspend(group, reason, cause, now)
        self._book.move_group(group, GroupState.ENDING, reason, now)
        group.cancelled = True
        return [*instructions, CancelGroup(group.name)]

    def end(self, group: Group, reason: str, now: float) -> list[Instruction]:
        """Ends a group that isn't needed: gently if its workers are there to be told."""
        gently = group.state is GroupState.RUNNING
        self._book.move_group(group, GroupState.ENDING, reason, now)
        group.cancelled = not gently
        return [ShutdownGroup(group.name) if gently else CancelGroup(group.name)]

    def tick(self, group: Group, now: float) -> list[Instruction]:
        """Does what is due by the time: a start that took too long, a retry, an idle group, an end that hangs."""
        settings = self._book.settings
        if group.state is GroupState.STARTING and now >= group.since + settings.start_timeout_s:
            missing = group.workers - len(group.joined)
            reason = f"{missing} of {group.workers} workers have not come within {settings.start_timeout_s:g} s"
            return self.fail(group, reason, NOT_JOINED, now)
        if group.state is GroupState.WAITING and not group.lacks_slots and now >= group.retry_at:
            return self.submit(group, now)
        idle = group.state is GroupState.RUNNING and not group.streams
        if idle and now >= group.empty_since + settings.idle_timeout_s:
            return self.end(group, "it hosts no stream", now)
        late = group.state is GroupState.ENDING and now >= group.since + settings.stop_timeout_s
        if late and not group.cancelled:
            group.cancelled = True
            return [CancelGroup(group.name)]
        return []

    def _end_idle(self, slots: int, now: float) -> list[Instruction]:
        """Ends groups that host nothing, until so many slots come free, with those of groups that are ending."""
        coming = sum(group.slots for group in self._book.groups.values() if group.state is GroupState.ENDING)
        instructions: list[Instruction] = []
        for group in list(self._book.groups.values()):
            if coming < slots and group.state is GroupState.RUNNING and not group.streams:
                coming += group.slots
                instructions += self.end(group, "another group needs its slots", now)
        return instructions

    def _submit_waiting(self, now: float) -> list[Instruction]:
        """Starts the jobs of groups that wait for slots, the oldest group first, or sees to it that slots come free."""
        instructions: list[Instruction] = []
        if self._book.closing:
            return instructions
        for group in list(self._book.groups.values()):
            if group.lacks_slots:
                instructions += self.submit(group, now)
        return instructions
