"""Which streams are paused: by whom or for what, until when."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.common.clock import Clock
from penstock.common.logging import about, logger
from penstock.mnode.catalog.catalog_records import PauseCause
from penstock.mnode.controller.controller_state import ControlledStream, ControllerState
from penstock.mnode.controller.mailbox import Mailbox
from penstock.mnode.coordinator.stream_bounds import over_state_limit, state_bytes
from penstock.mnode.ddl.connections import report_health
from penstock.planner.streams.ingest_plan import IngestPlan
from penstock.tasks.protocol.messages import Pause, Resume

_log = logger(__name__)


class StreamPauses:
    """Pauses streams and lets them go on."""

    def __init__(
        self, clock: Clock, mailbox: Mailbox, state: ControllerState, on_pause: Callable[[int, PauseCause], None]
    ) -> None:
        self._clock = clock
        self._mailbox = mailbox
        self._state = state
        self._on_pause = on_pause

    def pause(self, stream_id: int) -> None:
        """Pauses a stream because somebody says so. Raises NotFoundError."""
        stream = self._state.require(stream_id)
        self._pause(stream)
        # Whatever it was paused for before, it goes on when somebody says so.
        stream.pause, stream.until_room = None, 0

    def resume(self, stream_id: int, skip_to_end: bool) -> None:
        """Lets a stream go on. Raises NotFoundError."""
        stream = self._state.require(stream_id)
        stream.paused, stream.paused_ms, stream.pause, stream.until_room = False, 0, None, 0
        stream.resumed_ms = self._clock.now_ms()
        stream.skip_pending = skip_to_end and not self._state.runs(stream_id)
        self._state.order(stream_id, Resume(skip_to_end))

    def pause_for(self, stream: ControlledStream, cause: PauseCause, *, until_room: bool = False) -> None:
        """Pauses a stream that has too much, or nowhere to write to; what it has read already still flows on.

        `until_room`: it goes on by itself when there is memory, and so it does when the engine is started again.
        """
        stream.pause = cause
        self._pause(stream)
        self._state.tell(stream.stream_id, f"paused: {cause.text}", logging.WARNING)
        if until_room:
            stream.until_room = 1 + max(each.until_room for each in self._state)
            return
        self._mailbox.helper(self._call_on_pause, stream.stream_id, cause)

    def give_room(self) -> None:
        """Resumes the stream that was paused last for want of memory: one for each measurement."""
        waiting = [stream for stream in self._state if stream.until_room]
        if waiting:
            stream = max(waiting, key=lambda stream: stream.until_room)
            self.resume(stream.stream_id, skip_to_end=False)
            self._state.tell(stream.stream_id, "resumed: memory is available again")

    def watch(self, stream_id: int) -> None:
        """Looks at what the tasks of a stream have told last: it is paused if that is more than it may have."""
        stream = self._state[stream_id]
        self._keep_state_limit(stream)
        self._watch_health(stream)

    def _pause(self, stream: ControlledStream) -> None:
        if not stream.paused:
            stream.paused_ms = self._clock.now_ms()
        stream.paused = True
        self._state.order(stream.stream_id, Pause())

    def _keep_state_limit(self, stream: ControlledStream) -> None:
        limit = stream.stream.state_limit
        if limit and not stream.paused:
            held = state_bytes(self._state.monitor.statuses_of(stream.stream_id))
            reason = over_state_limit(stream.stream.name, held, limit)
            if reason is not None:
                self.pause_for(stream, PauseCause(reason))

    def _watch_health(self, stream: ControlledStream) -> None:
        """Records the health of what a stream or an ingest is connected to.

        A stream that has tried for long enough is paused, unless it has a DLQ for that.
        """
        running = stream.stream
        if not running.connected:
            return
        statuses = self._state.monitor.statuses_of(stream.stream_id)
        report_health(statuses, stream.contacts, running.keeper.note_health)
        external = None if isinstance(running.plan, IngestPlan) else running.plan.sink.external
        away = next((status for status in statuses if status.connection.outage_since_ms is not None), None)
        if external is None or away is None or away.connection.outage_since_ms is None:
            return
        tried_ms = self._clock.now_ms() - max(away.connection.outage_since_ms, stream.resumed_ms)
        long_enough = tried_ms > running.settings.retry_time_s * 1000
        if long_enough and external.on_failure == "pause" and not stream.paused:
            self.pause_for(stream, PauseCause(
                f"{away.reason}; to go on: RESUME STREAM {running.name}", external.connection))

    def _call_on_pause(self, stream_id: int, cause: PauseCause) -> None:
        try:
            self._on_pause(stream_id, cause)
        except Exception:  # noqa: BLE001
            # It is paused all the same, though not for longer than the engine runs.
            _log.exception("that stream %x is paused could not be noted", stream_id,
                           extra=about(stream=self._state.name(stream_id)))
