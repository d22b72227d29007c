"""Results as messages: their bytes, and which of them a target has refused."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.common.errors import RowRefusedError
from penstock.planner.task_plans.column_names import OPERATION
from penstock.planner.task_plans.external_rows import IDENTITY
from penstock.sql.tree.statements import ExternalFormat
from penstock.tasks.external.emit.result_events import ExternalRows, ResultEvent, json_text


class Encoder:
    """Makes a message of each event: JSON with names, a line of CSV in the order of the columns, a record of Avro."""

    def __init__(self, format_: ExternalFormat | None, rows: ExternalRows) -> None:
        self._rows = rows
        self._csv = format_ == "csv"
        self._names = (OPERATION, IDENTITY, *(column.name for column in rows.columns))
        self._record: Callable[[Mapping[str, Any]], bytes] | None = None
        if format_ == "avro":
            from penstock.tasks.external.connectors.avro import writer

            self._record = writer(rows.avro_schema)

    def __call__(self, batch: pa.RecordBatch) -> Iterator[tuple[ResultEvent, bytes]]:
        """Yields the events of rows that `ExternalRows.of` made, each with its bytes."""
        if self._record is None:
            for event in self._rows.events(batch):
                yield event, self._text(event)
        else:
            for event, record in self._rows.records(batch):
                yield event, self._record(record)

    def _text(self, event: ResultEvent) -> bytes:
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
