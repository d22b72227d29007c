"""The times that writers have noted in one vnode's WAL: the least and the greatest (WATERMARK FROM WRITERS)."""

from __future__ import annotations

from typing import Any

from penstock.wal.record import TimeMarkRecord


class WriterTimes:
    """The newest note of each writer, in units of the source's precision; `at_ms` is when a record was written.

    A writer that has noted nothing for the timeout holds time back no more. By the WAL's own times that is the same
    for every replay, and rows are classified by that; by the clock it only lets windows close.
    """

    def __init__(self, timeout_ms: int, units_per_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._units_per_ms = units_per_ms
        self._notes: dict[str, tuple[int, int]] = {}
        #: the least time of the live writers, which never goes back; None before the first note
        self.lower: int | None = None
        self._shown: int | None = None

    @property
    def upper(self) -> int | None:
        """The greatest time that was noted."""
        return max((ts for ts, _ in self._notes.values()), default=None)

    @property
    def shown(self) -> int | None:
        """The least time as far as the clock tells: at least `lower`."""
        return max((ts for ts in (self.lower, self._shown) if ts is not None), default=None)

    def note(self, record: TimeMarkRecord) -> None:
        """Takes over a note; a writer that promises less than before keeps its promise."""
        known = self._notes.get(record.writer)
        ts = record.ts_ms * self._units_per_ms
        self._notes[record.writer] = (ts if known is None else max(ts, known[0]), record.ingest_time_ms)
        self.advance(record.ingest_time_ms)

    def advance(self, at_ms: int) -> int | None:
        """Returns `lower` once the log has come to a record of that time."""
        least = self._least(at_ms)
        if least is not None:
            self.lower = least if self.lower is None else max(least, self.lower)
        return self.lower

    def advance_by_clock(self, now_ms: int) -> None:
        """Leaves writers out that are silent by now, for `shown` only."""
        least = self._least(now_ms)
        if least is not None:
            self._shown = least if self._shown is None else max(least, self._shown)

    def next_timeout_ms(self, now_ms: int) -> int | None:
        """Returns when the next of the live writers is left out if it stays silent; None: none is."""
        ends = [heard + self._timeout_ms + 1 for _, heard in self._notes.values()]
        return min((end for end in ends if end > now_ms), default=None)

    def save(self) -> dict[str, Any]:
        return {"notes": self._notes, "lower": self.lower}

    def restore(self, saved: dict[str, Any]) -> None:
        self._notes = {writer: (ts, heard) for writer, (ts, heard) in saved["notes"].items()}
        self.lower = saved["lower"]

    def _least(self, at_ms: int) -> int | None:
        """When all are silent, none of them counts: time stands still."""
        return min((ts for ts, heard in self._notes.values() if at_ms - heard <= self._timeout_ms), default=None)
