"""A writer of rows that says how far its time is, for streams with WATERMARK FROM WRITERS."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.sql.dialect import quote_identifier, quote_string

if TYPE_CHECKING:
    from penstock.shell.dbapi import Connection

Notes = Literal["asked", "commit", "clock"]


class Writer:
    """Inserts Arrow data under a name, and notes in the database's logs that nothing older comes from it any more.

    `notes`: when it notes time by itself. "asked": never; "commit": with each `commit`, the newest time that it has
    inserted; "clock": with each `commit`, the wall clock. Rows are durable when `insert` returns; `commit` is for time.
    """

    def __init__(self, connection: Connection, name: str, *, database: str | None = None,
                 notes: Notes = "asked") -> None:
        """`database`: where time is noted; the connection's current one if left out."""
        self._connection = connection
        self.name = name
        self._database = database or connection.session.database
        self._notes = notes
        self._newest: Any = None

    def insert(self, table: str, rows: Any) -> Writer:
        """Inserts what `Cursor.insert_arrow` takes, but for readers, which can be read only once."""
        data = pa.table(rows) if not isinstance(rows, pa.Table | pa.RecordBatch) else rows
        self._connection.cursor().insert_arrow(table, data)
        times = next((data.column(n) for n, field in enumerate(data.schema) if pa.types.is_timestamp(field.type)), None)
        if times is not None and data.num_rows:
            newest = pc.max(times).cast(pa.timestamp("ns")).value
            self._newest = newest if self._newest is None else max(newest, self._newest)
        return self

    def note_time(self, ts: datetime | int | str) -> Writer:
        """Promises that nothing older than `ts` comes: a datetime, milliseconds, or text as in SQL."""
        if isinstance(ts, datetime):
            if ts.tzinfo is None:
                raise ValueError("a datetime without a time zone could be any instant")
            ts = round(ts.timestamp() * 1000)
        self._note(f"'{ts}'" if isinstance(ts, str) else str(ts))
        return self

    def commit(self) -> Writer:
        """Notes time as `notes` says."""
        if self._notes == "clock":
            self._note("now")
        elif self._notes == "commit" and self._newest is not None:
            self.note_time(self._newest // 1_000_000)
        return self

    def _note(self, instant: str) -> None:
        if self._database is None:
            raise ValueError("no database is in use: name one with database=")
        self._connection.execute(
            f"NOTE TIME {instant} WRITER {quote_string(self.name)} ON {quote_identifier(self._database)}")
