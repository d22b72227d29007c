"""What becomes of single streams: attempts are prepared, deployed, run, stopped, and tried again."""

from __future__ import annotations

from penstock.mnode.groups.group_book import Group, GroupBook, PlacedStream, StreamState
from penstock.mnode.groups.group_events import (
    Cause,
    DeployStream,
    HaltStream,
    Instruction,
    LateGroupEvent,
    LetStreamRun,
    PreparationFailed,
    PrepareStream,
    StreamDeployed,
    StreamDown,
    StreamFailed,
    StreamPrepared,
    StreamRemoved,
)


class StreamLives:
    """Changes the states of streams; their groups stay as they are."""

    def __init__(self, book: GroupBook) -> None:
        self._book = book

    def prepare(self, stream: PlacedStream, now: float) -> Instruction:
        """Begins an attempt: its state and its positions are to be found."""
        self._book.move_stream(stream, StreamState.PREPARING, stream.reason, now)
        stream.preparation += 1
        return PrepareStream(stream.stream_id, stream.preparation)

    def prepared(self, event: StreamPrepared, now: float) -> list[Instruction]:
        """Deploys the attempt that was prepared."""
        stream = self._awaiting(event)
        if isinstance(stream, LateGroupEvent):
            return [stream]
        self._book.move_stream(stream, StreamState.DEPLOYING, stream.reason, now)
        if stream.attempt > 0:
            stream.restarts += 1
        stream.attempt = event.attempt
        stream.answered.clear()
        return [DeployStream(stream.stream_id, event.attempt, stream.group.name)]

    def preparation_failed(self, event: PreparationFailed, now: float) -> list[Instruction]:
        """Lets the stream wait for its next attempt."""
        stream = self._awaiting(event)
        if isinstance(stream, LateGroupEvent):
            return [stream]
        self._note_failure(stream, event.cause, now)
        self.back_off(stream, event.reason, now)
        return [StreamDown(stream.stream_id, event.reason)]

    def _awaiting(self, event: StreamPrepared | PreparationFailed) -> PlacedStream | LateGroupEvent:
        stream = self._book.streams.get(event.stream_id)
        if stream is None or stream.state is not StreamState.PREPARING:
            return LateGroupEvent(event, "nobody waits for it")
        return stream if stream.preparation == event.preparation else LateGroupEvent(
            event, "a later preparation is under way")

    def deployed(self, event: StreamDeployed, now: float) -> list[Instruction]:
        """Counts a worker's answer; with the last one the stream runs."""
        stream = self._book.streams.get(event.stream_id)
        if stream is None or stream.state is not StreamState.DEPLOYING or stream.attempt != event.attempt:
            return [LateGroupEvent(event, "nobody waits for it")]
        stream.answered.add(event.index)
        if len(stream.answered) < stream.group.workers:
            return []
        self._book.move_stream(stream, StreamState.RUNNING, "", now)
        return [LetStreamRun(stream.stream_id, stream.attempt, stream.group.name)]

    def failed(self, event: StreamFailed, now: float) -> list[Instruction]:
        """Halts an attempt of which a task has failed."""
        stream = self._book.streams.get(event.stream_id)
        running = (StreamState.DEPLOYING, StreamState.RUNNING)
        if stream is None or stream.attempt != event.attempt or stream.state not in running:
            return [LateGroupEvent(event, "the attempt is over")]
        return self.halt(stream, event.reason, event.cause, now)

    def halt(self, stream: PlacedStream, reason: str, cause: Cause | None, now: float) -> list[Instruction]:
        """Ends the attempt on all workers. `cause` None: it is no failure."""
        if stream.state is StreamState.RUNNING and now - stream.since > self._book.settings.restart_delay_max_s:
            stream.failures = 0
        if cause is not None:
            self._note_failure(stream, cause, now)
        self._book.move_stream(stream, StreamState.STOPPING, reason, now)
        stream.answered.clear()
        return [
            StreamDown(stream.stream_id, reason),
            HaltStream(stream.stream_id, stream.attempt, stream.group.name),
        ]

    def suspend(self, group: Group, reason: str, cause: Cause | None, now: float) -> list[Instruction]:
        """Puts streams of a group that loses its workers back to waiting; those to be removed stay STOPPING.

        `cause` None: it is no failure.
        """
        instructions: list[Instruction] = []
        for stream in self._book.streams_of(group):
            if stream.state is StreamState.STOPPING and stream.remove:
                continue
            if cause is not None and stream.state is not StreamState.STOPPING:  # it has been noted why
                self._note_failure(stream, cause, now)
            if stream.state in (StreamState.DEPLOYING, StreamState.RUNNING):
                instructions.append(StreamDown(stream.stream_id, reason))
            if stream.state is StreamState.WAITING:
                stream.reason = reason
            else:
                self._book.move_stream(stream, StreamState.WAITING, reason, now)
        return instructions

    def back_off(self, stream: PlacedStream, reason: str, now: float) -> None:
        stream.failures += 1
        stream.retry_at = now + self._book.delay(stream.failures)
        self._book.move_stream(stream, StreamState.BACKOFF, reason, now)

    def remove(self, stream: PlacedStream, now: float) -> Instruction:
        """Forgets a stream of which no worker has anything left."""
        self._book.move_stream(stream, StreamState.GONE, stream.reason, now)
        stream.group.streams.discard(stream.stream_id)
        del self._book.streams[stream.stream_id]
        return StreamRemoved(stream.stream_id)

    def _note_failure(self, stream: PlacedStream, cause: Cause, now: float) -> None:
        ran = stream.state is StreamState.RUNNING and now - stream.since > self._book.settings.restart_delay_max_s
        stream.alike = stream.alike + 1 if cause == stream.failed_for and not ran else 1
        stream.failed_for = cause
