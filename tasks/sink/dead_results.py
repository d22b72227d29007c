"""Results that an external target doesn't take, in the stream's DLQ table. Writing one again changes nothing."""

from __future__ import annotations

import threading

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.sql.types import UNITS_PER_SECOND, Precision
from penstock.tasks.dropped.dead_letter_writer import DeadLetters
from penstock.tasks.external.emit.result_events import ExternalRows, json_text
from penstock.tasks.protocol.messages import DeadRow, DroppedRow

_LOOK_EVERY_S = 0.01
_CONTENT_MAX = 8_000


class DeadResultTable:
    """The DLQ's side of one sink task; called by one thread."""

    def __init__(
        self, letters: DeadLetters, rows: ExternalRows, place: str, precision: Precision, clock: Clock
    ) -> None:
        """`letters` writes by a connection of its own, into a table with times of this `precision`; `place` names the
        target."""
        self._per_ms = UNITS_PER_SECOND[precision] // 1_000
        self._letters = letters
        self._rows = rows
        self._place = place
        self._clock = clock
        self._never = threading.Event()

    def keep(self, rows: pa.RecordBatch, message: str) -> None:
        self._letters.add(self._dead(rows, message))
        while not self._letters.settled:
            if not self._letters.step():
                self._clock.wait(self._never, _LOOK_EVERY_S)

    def _dead(self, rows: pa.RecordBatch, message: str) -> list[DeadRow]:
        place = self._rows.time_place
        if place is None:  # it is there when it was refused, since it is of no time
            per_ms = self._per_ms
            times = [self._clock.now_ms() * per_ms] * rows.num_rows
        else:
            per_ms = UNITS_PER_SECOND[self._rows.columns[place].type.precision] // 1_000
            times = rows.column(1 + place).view(pa.int64()).to_pylist()
        found = []
        for event, ts in zip(self._rows.events(rows), times, strict=True):
            # Told apart and found again by what the result is, not by when it was refused.
            number = int(event.id[:14], 16)
            dropped = DroppedRow(0, ts, 0, "refused", 0, ts // per_ms)
            found.append(DeadRow(dropped, number, self._place, message, json_text(event.named)[:_CONTENT_MAX]))
        return found
