"""Results as messages: their bytes, and which of them a target has refused."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from penstock.common.errors import RowRefusedError
from penstock.sql.statements import OutsideFormat
from penstock.tasks.emit.rows import IDENTITY, OPERATION, Event, OutsideRows, json_text


class Encoder:
    """Makes the bytes of one event: JSON with names, or a line of CSV in the order of the columns."""

    def __init__(self, format_: OutsideFormat | None, rows: OutsideRows) -> None:
        self._csv = format_ == "csv"
        self._names = (OPERATION, IDENTITY, *(column.name for column in rows.columns))

    def __call__(self, event: Event) -> bytes:
        if not self._csv:
            return json_text(event.named).encode()
        line = io.StringIO()
        named = event.named
        csv.writer(line, lineterminator="").writerow([named.get(name) for name in self._names])
        return line.getvalue().encode()


def refuse(refused: Sequence[tuple[int, str]]) -> None:
    """Raises for the first of the messages, (place, reason), that weren't taken."""
    if refused:
        row, reason = refused[0]
        raise RowRefusedError(f"a message is refused: {reason}", row=row)
