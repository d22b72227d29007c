"""Which streams run in which worker group, and what to do when either fails: events in, instructions out.

Pure: no clock, no threads, no Spark. The controller performs the instructions and reports what came of them. A group
serves one source database; streams share it up to a limit, if their tasks are on the same vnodes and snodes. Those that
call users' functions share only with each other, and so do those whose groups nothing bounds: what such a function, or
so much state, does to its process must not be felt by other streams. A failed worker costs its whole group: Spark ends
the job, and each stream of it gets a new attempt in the group's next job.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.mnode.groups.group_book import Group, GroupBook, GroupState, PlacedStream, StreamState
from penstock.mnode.groups.group_events import (
    NOT_DEPLOYED,
    NOT_STOPPED,
    AddStream,
    CloseAll,
    Event,
    GroupSettings,
    GroupTick,
    Instruction,
    JobEnded,
    LateGroupEvent,
    PreparationFailed,
    RemoveStream,
    SlotsKnown,
    StreamDeployed,
    StreamFailed,
    StreamPrepared,
    StreamRemoved,
    StreamStopped,
    WorkerJoined,
    WorkerLost,
)
from penstock.mnode.groups.group_lives import GroupLives
from penstock.mnode.groups.stream_lives import StreamLives


class GroupMachine:
    """The state of all groups and streams of an engine. `handle` is the only mutator."""

    def __init__(self, settings: GroupSettings) -> None:
        self._book = book = GroupBook(settings)
        self._streams = streams = StreamLives(book)
        self._groups = groups = GroupLives(book, streams)
        self._handlers: dict[type, Callable[..., list[Instruction]]] = {
            AddStream: self._add_stream,
            RemoveStream: self._remove_stream,
            StreamPrepared: streams.prepared,
            PreparationFailed: streams.preparation_failed,
            StreamDeployed: streams.deployed,
            StreamFailed: streams.failed,
            StreamStopped: self._stream_stopped,
            WorkerJoined: groups.joined,
            WorkerLost: groups.lost,
            JobEnded: groups.job_ended,
            SlotsKnown: groups.slots_known,
            GroupTick: self._tick,
            CloseAll: self._close_all,
        }

    @property
    def groups(self) -> tuple[Group, ...]:
        return tuple(self._book.groups.values())

    @property
    def streams(self) -> tuple[PlacedStream, ...]:
        return tuple(self._book.streams.values())

    def stream(self, stream_id: int) -> PlacedStream | None:
        return self._book.streams.get(stream_id)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Takes an event that happened at `now` (monotonic seconds); returns what is to be done, in order."""
        return self._handlers[type(event)](event, now)

    def next_deadline(self) -> float | None:
        """Returns the earliest time at which a GroupTick would change something, or None."""
        return self._book.next_deadline()

    def missing_slots(self, *groups: Group) -> int:
        """Returns how many slots these groups, which have no job, would need besides those that are free."""
        return self._book.missing_slots(*groups)

    def waits_for(self, group: Group) -> str:
        """Returns what a group says that lacks slots."""
        return self._book.waits_for(group)

    def _add_stream(self, event: AddStream, now: float) -> list[Instruction]:
        if self.stream(event.stream_id) is not None:
            return [LateGroupEvent(event, "the stream is there already")]
        if self._book.closing:
            return [LateGroupEvent(event, "the engine is closing")]
        group = self._book.place(event, now)
        stream = PlacedStream(event.stream_id, group, now)
        self._book.streams[event.stream_id] = stream
        group.streams.add(event.stream_id)
        stream.story.append(f"{now:.3f} added to group {group.name}")
        if group.state is GroupState.RUNNING:
            return [self._streams.prepare(stream, now)]
        if group.state is GroupState.WAITING and group.submissions == 0:
            return self._groups.submit(group, now)
        return []

    def _remove_stream(self, event: RemoveStream, now: float) -> list[Instruction]:
        stream = self._book.streams.get(event.stream_id)
        if stream is None:
            return [StreamRemoved(event.stream_id)]
        stream.remove = True
        if stream.state in (StreamState.DEPLOYING, StreamState.RUNNING):
            return self._streams.halt(stream, "it is being removed", None, now)
        if stream.state is StreamState.STOPPING or (
            stream.group.state is GroupState.ENDING and stream.attempt > 0
        ):
            return []  # removed once no worker has it
        return self._groups.forget(stream, now)

    def _stream_stopped(self, event: StreamStopped, now: float) -> list[Instruction]:
        stream = self._book.streams.get(event.stream_id)
        if stream is None or stream.state is not StreamState.STOPPING or stream.attempt != event.attempt:
            return [LateGroupEvent(event, "nobody waits for it")]
        stream.answered.add(event.index)
        if len(stream.answered) < stream.group.workers:
            return []
        if stream.remove:
            return self._groups.forget(stream, now)
        self._streams.back_off(stream, stream.reason, now)
        return []

    def _tick(self, event: GroupTick, now: float) -> list[Instruction]:
        instructions: list[Instruction] = []
        for group in list(self._book.groups.values()):
            instructions += self._groups.tick(group, now)
        for stream in self._book.timed():
            if stream.group.state is GroupState.RUNNING:  # still: another one may have cost it its group
                instructions += self._tick_stream(stream, now)
        return instructions

    def _tick_stream(self, stream: PlacedStream, now: float) -> list[Instruction]:
        settings = self._book.settings
        if stream.state is StreamState.BACKOFF and now >= stream.retry_at:
            return [self._streams.prepare(stream, now)]
        if stream.state is StreamState.DEPLOYING and now >= stream.since + settings.deploy_timeout_s:
            missing = sorted(set(range(stream.group.workers)) - stream.answered)
            reason = f"workers {missing} have not deployed it within {settings.deploy_timeout_s:g} s"
            return self._streams.halt(stream, reason, NOT_DEPLOYED, now)
        if stream.state is StreamState.STOPPING and now >= stream.since + settings.stop_timeout_s:
            # A worker that doesn't stop one stream cannot be trusted with the others.
            missing = sorted(set(range(stream.group.workers)) - stream.answered)
            reason = f"workers {missing} have not stopped stream {stream.stream_id:x} in time"
            return self._groups.fail(stream.group, reason, NOT_STOPPED, now)
        return []

    def _close_all(self, event: CloseAll, now: float) -> list[Instruction]:
        self._book.closing = True
        instructions: list[Instruction] = []
        for group in list(self._book.groups.values()):
            if group.state is GroupState.WAITING:
                for stream in self._book.streams_of(group):
                    instructions += self._groups.forget(stream, now)
            elif group.state is not GroupState.ENDING:
                instructions += self._streams.suspend(group, "the engine closes", None, now)
                instructions += self._groups.end(group, "the engine closes", now)
        return instructions
