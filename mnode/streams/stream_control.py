"""PAUSE, RESUME and RECALCULATE STREAM, REPLAY DLQ, and altered connections: what is asked of streams that run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from penstock.common.connection import ExternalConnection
from penstock.common.errors import InvalidStatementError, NotSupportedError, PenstockError, UnavailableError
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog_records import PauseCause, StreamRecord, Unlike
from penstock.mnode.controller.stream_controller import StreamController
from penstock.mnode.streams.known_streams import KnownStreams, refuse_stopped
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.streams.stream_starts import StreamStarts
from penstock.planner.bind.instants import instant
from penstock.planner.task_plans.stream_plan import ForcePlan, JoinPlan, PeriodPlan, StreamPlan
from penstock.sql.schema import Session
from penstock.sql.tree.statements import PauseStream, RecalculateStream, ResumeStream
from penstock.tasks.protocol.messages import DeadRow, Recalculate, Replay
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN

_PAUSE_TIMEOUT_S = 1.5
_PAUSE_POLL_S = 0.02
_PASSED_OVER = "RESUME STREAM IGNORE UNTREATED has left rows out"
_BROUGHT_IN = "RECALCULATE STREAM has brought in rows from before the stream"


class StreamControl:
    """Executes the statements."""

    def __init__(
        self, services: StreamServices, known: KnownStreams, starts: StreamStarts, closing: threading.Event
    ) -> None:
        """`closing` is set when the engine closes."""
        self._services = services
        self._known = known
        self._starts = starts
        self._closing = closing
        #: deletes rows of a result table that the answer doesn't have
        self.delete_extra: Callable[[StreamRecord], None]
        services.connections.watch(self._use_connection)

    def pause(self, stream: StreamRecord, _: PauseStream) -> Result:
        """Executes PAUSE STREAM; returns when its sources rest, or after a moment."""
        refuse_stopped(stream, "paused")
        self._services.catalog.streams.set_wanted(stream.id, "paused", stream.pause)
        if self._running is not None and stream.id not in self._known.failures:
            self._running.pause(stream.id)
            self.await_sources(self._running, stream.id, paused=True)
        return Result()

    def note_paused(self, stream_id: int, cause: PauseCause) -> None:
        """Keeps in mind that the controller has paused a stream, unless it was resumed or ended since."""
        stream = self._services.catalog.streams.by_id(stream_id)
        status = None if self._running is None else self._running.stream_states().get(stream_id)
        if stream is not None and stream.wanted == "running" and status is not None and status.pause == cause:
            self._services.catalog.streams.set_wanted(stream_id, "paused", cause)

    def await_sources(self, controller: StreamController, stream_id: int, *, paused: bool) -> None:
        """Waits, not for long, until all source tasks rest, or none does.

        So rows that are written after PAUSE are not processed, and those after RESUME IGNORE UNTREATED are.
        """
        deadline = self._services.clock.monotonic() + _PAUSE_TIMEOUT_S
        while self._services.clock.monotonic() < deadline:
            state = controller.stream_states().get(stream_id)
            if state is None or state.state not in ("RUNNING", "PAUSED"):
                return
            sources = [status for status in controller.statuses()
                       if status.task.stream_id == stream_id and status.task.operator == "source"]
            if sources and all((status.state == "PAUSED") is paused for status in sources):
                return
            self._services.clock.wait(self._closing, _PAUSE_POLL_S)

    def resume(self, stream: StreamRecord, statement: ResumeStream) -> Result:
        """Executes RESUME STREAM; a stream that failed to start is started again."""
        refuse_stopped(stream, "resumed")
        stream = self._services.catalog.streams.set_wanted(stream.id, "running")
        if stream.id in self._known.failures:
            self._starts.begin(stream)
        elif self._running is not None:
            if statement.ignore_untreated and not self._is_of_any_query(stream):
                self._services.catalog.streams.add_unlike(stream.id, Unlike(_PASSED_OVER, TS_MIN, TS_MAX))
            self._running.resume(stream.id, statement.ignore_untreated)
            if statement.ignore_untreated:
                self.await_sources(self._running, stream.id, paused=False)
        return Result()

    def recalculate(self, stream: StreamRecord, statement: RecalculateStream, session: Session) -> Result:
        """Orders a stream to compute a range of time again, beside its live flow; returns once that is sure to happen.

        The range is part of the stream's next checkpoint, which is awaited for a moment: from then on no crash can
        make it forgotten.
        """
        plan = self._check_recalculates(stream, "RECALCULATE STREAM")
        first = instant(statement.first, plan.source.precision, session)
        last = TS_MAX if statement.last is None else instant(statement.last, plan.source.precision, session)
        if first > last:
            raise InvalidStatementError("RECALCULATE STREAM: the range ends before it begins")
        self.recalculate_range(stream, first, last)
        return Result()

    def recalculate_range(self, stream: StreamRecord, first: int, last: int) -> None:
        """Does what `recalculate` does; the times are in units of the source's precision."""
        plan = self._check_recalculates(stream, "RECALCULATE STREAM")
        assert self._running is not None
        if plan.sink.keyed:
            self.delete_extra(stream)  # tasks write all groups that they know, but have no part in others
        if plan.source.history is None and not self._is_of_any_query(stream):
            self._services.catalog.streams.add_unlike(stream.id, Unlike(_BROUGHT_IN, first, last))
        self._running.recalculate(stream.id, Recalculate(first, last))

    def check_replay(self, name: str) -> None:
        """Raises unless the stream runs and can compute single windows again."""
        stream = self._known.require(name)
        self._check_recalculates(stream, "REPLAY DLQ")

    def replay(self, name: str, rows: Sequence[tuple[int, DeadRow]]) -> None:
        """Orders rows of a stream's DLQ, each with its vnode, to be tried again; as sure as `recalculate`."""
        stream = self._known.require(name)
        assert self._running is not None
        self._running.recalculate(stream.id, Replay(tuple(rows)))

    def _is_of_any_query(self, stream: StreamRecord) -> bool:
        """Whether the result is of all rows at all times."""
        stored = self._known.plans.get(stream.id)
        return stored is not None and stored.plan.holds_answer

    def _check_recalculates(self, stream: StreamRecord, statement: str) -> StreamPlan:
        refuse_stopped(stream, "recalculated")
        stored = self._known.plans.get(stream.id)
        if stored is None or self._running is None or stream.id in self._known.failures:
            raise UnavailableError(f"stream {stream.name} doesn't run", hint="RESUME it first")
        plan = stored.plan
        if isinstance(plan.computation, JoinPlan):
            raise NotSupportedError(f"{statement} is not for joins: changes are taken into account anyway",
                                    hint="CREATE OR REPLACE STREAM computes all of it again, beside the running one")
        if isinstance(plan.computation, ForcePlan | PeriodPlan) or plan.policies.time.clock != "event":
            raise NotSupportedError(f"{statement} needs a stream by event time: results by the clock are "
                                    "computed once")
        return plan

    def _use_connection(self, connection: ExternalConnection) -> None:
        """Has streams into an altered connection write by what it is now; those that were paused for it go on."""
        for stream in self._services.catalog.streams.all():
            stored = self._known.plans.get(stream.id)
            if stored is None or connection.name not in stored.plan.connections:
                continue
            controller = self._services.controller.of(stream)
            if controller is None:
                continue
            try:
                controller.use_connection(
                    stream.id, self._services.connections.open_for(f"stream {stream.name}", connection.name))
            except PenstockError as error:
                self._known.tell(stream.id, f"connection {connection.name} was altered, but can't be used: {error}")
                continue
            if stream.wanted == "paused" and stream.pause is not None and stream.pause.connection == connection.name:
                self._services.catalog.streams.set_wanted(stream.id, "running")
                controller.resume(stream.id)

    @property
    def _running(self) -> StreamController | None:
        return self._services.controller.running()
