"""Records on their way into a log that nobody writes yet. Guarded by the writer's lock."""

from __future__ import annotations

from penstock.common.errors import StorageError
from penstock.wal.record_plan import PlannedRecord


class Ticket:
    """The promise of one enqueued record, with `size` bytes of payload; `WalWriter.commit` redeems it."""

    __slots__ = ("done", "error", "size", "version")

    def __init__(self, version: int, size: int) -> None:
        self.version = version
        self.size = size
        self.done = False
        self.error: StorageError | None = None


PendingRecord = tuple[Ticket, PlannedRecord]


class PendingRecords:
    """Nobody gets a record that continues with another one before that has come, too."""

    def __init__(self) -> None:
        self._records: list[PendingRecord] = []
        self._held: list[PendingRecord] = []

    def add(self, planned: PlannedRecord) -> Ticket:
        ticket = Ticket(planned.tail.version, planned.size)
        if planned.continues or self._held:
            self._held.append((ticket, planned))
            if not planned.continues:
                self._records += self._held
                self._held = []
        else:
            self._records.append((ticket, planned))
        return ticket

    def take(self) -> list[PendingRecord]:
        """Returns all that is whole; it is pending no more."""
        taken, self._records = self._records, []
        return taken

    def drop_held(self) -> bool:
        """Forgets records whose other ones haven't come; returns whether there were any."""
        held, self._held = self._held, []
        return bool(held)

    @property
    def newest(self) -> Ticket | None:
        """The ticket of the last record that can be taken."""
        return self._records[-1][0] if self._records else None

    def __bool__(self) -> bool:
        return bool(self._records or self._held)
