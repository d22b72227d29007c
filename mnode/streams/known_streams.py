"""What the engine knows of streams beyond the catalog: their plans, and why some don't run."""

from __future__ import annotations

from collections import deque

from penstock.common.clock import Clock
from penstock.common.errors import InternalError, InvalidStatementError, NotFoundError, PenstockError
from penstock.common.logging import about, logger
from penstock.common.suggestions import did_you_mean
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.coordinator.stored_plan import StoredPlan
from penstock.mnode.coordinator.stream_status import AuditInfo, EventInfo

_MISSING = 0x03F1
_EVENTS_KEPT = 200

_log = logger(__name__)


class KnownStreams:
    """The plans by which streams run, by id, and what those failed with that can't; and what is told of any."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self.plans: dict[int, StoredPlan] = {}
        #: with the time (ms) of the failure
        self.failures: dict[int, tuple[PenstockError, int]] = {}
        #: what the audit has found, by stream
        self.audits: dict[int, AuditInfo] = {}
        self._events: deque[EventInfo] = deque(maxlen=_EVENTS_KEPT)

    def find(self, name: str, *, if_exists: bool) -> StreamRecord | None:
        """Returns the stream of this name; raises NotFoundError unless `if_exists`."""
        stream = self._catalog.streams.named(name)
        if stream is None and not if_exists:
            raise NotFoundError(f"stream {name} does not exist", code=_MISSING,
                                hint=did_you_mean(name, (other.name for other in self._catalog.streams.all())))
        return stream

    def require(self, name: str) -> StreamRecord:
        """Returns the stream of this name; raises NotFoundError."""
        stream = self.find(name, if_exists=False)
        assert stream is not None
        return stream

    def forget(self, stream_id: int) -> None:
        self.plans.pop(stream_id, None)
        self.failures.pop(stream_id, None)
        self.audits.pop(stream_id, None)

    def note_failure(self, stream: StreamRecord, error: Exception) -> None:
        """Notes why a stream can't be started."""
        self.failures[stream.id] = (told_failure("stream", stream.name, error), self._clock.now_ms())

    def tell(self, stream_id: int, text: str) -> None:
        """Notes something that people should hear of; see `ins_stream_events`."""
        _log.info("stream %x: %s", stream_id, text)
        self._events.append(EventInfo(self._clock.now_ms(), stream_id, text))

    def events(self) -> list[EventInfo]:
        """Returns what was told lately, oldest first."""
        return list(self._events)


def told_failure(what: str, name: str, error: Exception) -> PenstockError:
    """Logs why a stream or an ingest can't be started; returns the error to be told of it."""
    told = error if isinstance(error, PenstockError) else InternalError.of(error)
    _log.error("%s %s cannot be started: %s", what, name, told, extra=about(stream=name),
               exc_info=None if told is error else error)
    return told


def refuse_stopped(stream: StreamRecord, verb: str) -> None:
    """Raises InvalidStatementError for a stream that was stopped."""
    if stream.wanted == "stopped":
        raise InvalidStatementError(f"stream {stream.name} is stopped and can't be {verb}", hint="START STREAM it")
