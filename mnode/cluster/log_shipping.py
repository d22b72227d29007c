"""One log on its way from the active node to one standby: matched, sent in chunks with a bound, sent again.

Knows no clock and no socket: messages come in, messages go out, `now` is the monotonic clock in seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from penstock.common.errors import NotFoundError
from penstock.mnode.cluster.cluster_messages import Ack, Append, LogChunk, LogMatch, LogState
from penstock.mnode.cluster.log_epochs import common_end
from penstock.mnode.cluster.stored_logs import StoredLog


@dataclass(frozen=True, slots=True)
class ShippingSettings:
    """Bytes of a chunk, bytes under way per log, and seconds without an answer after which a message is sent again.

    A record that is larger than a chunk may be is one by itself, and is alone under way.
    """

    chunk_size_max: int = 1 << 20
    in_flight_max: int = 8 << 20
    resend_after_s: float = 1.0


class ShippingPhase(Enum):
    """How far a standby's log has come."""

    UNKNOWN = "the standby has not yet told what it has"
    MATCHED = "the standby's log is a prefix of the active's, and gets what follows"
    COPYING = "the standby needs a copy of the vnode"


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """What a standby has of a log in this epoch: last version written, and last version on disk for good."""

    written: int = 0
    synced: int = 0

    def at_level(self, wal_level: int) -> int:
        """Returns the last version that counts at a database's WAL_LEVEL."""
        return self.written if wal_level == 1 else self.synced


class LogShipping:
    """One log and one session of one standby, for one epoch.

    `proven`: up to this version the active's log was acknowledged, as the standby's tables show.
    """

    def __init__(self, epoch: int, session: int, log: int, stored: StoredLog, settings: ShippingSettings) -> None:
        self.phase = ShippingPhase.UNKNOWN
        self.progress = CopyProgress()
        self.proven = 0
        self._epoch = epoch
        self._session = session
        self._log = log
        self._stored = stored
        self._settings = settings
        self._request = 0
        self._match: LogMatch | None = None
        self._match_due = False
        self._sent = 0
        self._in_flight: deque[tuple[int, int]] = deque()
        self._in_flight_size = 0
        self._quiet_since = 0.0
        self._gap_at = -1

    @property
    def kept_from(self) -> int | None:
        """The first version that the active's log must keep for this standby; None if it needs none."""
        return self.progress.written + 1 if self.phase is ShippingPhase.MATCHED else None

    def on_state(self, now: float, message: LogState) -> None:
        """The standby tells what it has. What it has told already is answered as before and changes nothing."""
        if message.request < self._request:
            return
        self._match_due = True
        if message.request == self._request:
            return
        bounds = self._stored.bounds()
        version = common_end(self._stored.epochs(), bounds.written, message.epochs, message.written)
        reason = (f"the active's log begins at version {bounds.begin}, this one is the same up to {version}"
                  if version + 1 < bounds.begin else None)
        self._request = message.request
        self.phase = ShippingPhase.MATCHED if reason is None else ShippingPhase.COPYING
        self.progress = CopyProgress()
        self.proven = min(message.floor, version)
        self._send_from(now, version)
        self._match = LogMatch(self._epoch, self._session, self._log, message.request, version, reason)

    def on_ack(self, now: float, message: Ack) -> None:
        """The standby tells what it has got; old news change nothing."""
        if self.phase is not ShippingPhase.MATCHED or message.request != self._request:
            return
        written = min(message.written, self._stored.bounds().written)
        if written > self.progress.written:
            self._quiet_since = now
        self.progress = CopyProgress(max(written, self.progress.written),
                                     max(min(message.synced, written), self.progress.synced))
        while self._in_flight and self._in_flight[0][0] <= self.progress.written:
            self._in_flight_size -= self._in_flight.popleft()[1]
        self._sent = max(self._sent, self.progress.written)
        # All that was under way behind a gap tells of it: one of these is enough.
        if message.gap and message.written == self.progress.written != self._gap_at:
            self._gap_at = message.written
            self._send_from(now, message.written)

    def poll(self, now: float, acknowledged: int) -> list[LogMatch | Append]:
        """Returns what to send now. `acknowledged`: the version up to which the log will never be cut."""
        messages: list[LogMatch | Append] = []
        quiet = now - self._quiet_since >= self._settings.resend_after_s
        if self._match is not None and (self._match_due or (self.phase is ShippingPhase.COPYING and quiet)):
            messages.append(self._match)
            self._match_due = False
            self._quiet_since = now
        if self.phase is ShippingPhase.MATCHED and self._match is not None:
            if self._in_flight and quiet:
                self._send_from(now, max(self.progress.written, self._match.version))
            try:
                messages += self._appends(now, acknowledged)
            except NotFoundError as error:
                self.phase = ShippingPhase.COPYING
                self._match = LogMatch(self._epoch, self._session, self._log, self._request, self._sent, error.message)
                messages.append(self._match)
        return messages

    def _send_from(self, now: float, version: int) -> None:
        self._sent = version
        self._in_flight.clear()
        self._in_flight_size = 0
        self._quiet_since = now

    def _appends(self, now: float, acknowledged: int) -> list[Append]:
        appends = []
        while self._has_room():
            chunk: LogChunk | None = self._stored.read(self._sent, self._settings.chunk_size_max)
            if chunk is None:
                break
            if not self._in_flight:
                self._quiet_since = now
            self._sent = chunk.last
            self._in_flight.append((chunk.last, len(chunk.data)))
            self._in_flight_size += len(chunk.data)
            appends.append(Append(self._epoch, self._session, self._log, chunk, acknowledged))
        return appends

    def _has_room(self) -> bool:
        return not self._in_flight or (
            self._in_flight_size + self._settings.chunk_size_max <= self._settings.in_flight_max)
