"""A row writer that notes its time, for streams with WATERMARK FROM WRITERS."""

from __future__ import annotations

import threading
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.clock import Clock, SystemClock
from penstock.common.closing import Closing
from penstock.sql.dialect.parser import parse_table_name
from penstock.sql.rows.constants import Constants
from penstock.sql.rows.fitting import converted
from penstock.sql.schema import Column
from penstock.sql.tree.expression_nodes import quote_identifier, quote_string
from penstock.sql.types import timestamp

if TYPE_CHECKING:
    from penstock.shell.api.dbapi import Connection

Notes = Literal["asked", "commit", "clock"]


class Writer(Closing):
    """Inserts Arrow data under a name, and notes in the database's logs up to which time it is complete.

    `notes` is when it notes time: "asked": only with `note_time`; "commit": with each `commit`, the newest inserted
    time; "clock": with each `commit`, the wall clock. With `note_time_every`, it notes the wall clock every so many
    seconds until it is closed. Rows are durable when `insert` returns; `commit` only notes time. Only one thread may
    use a writer at a time. Closing it notes nothing.
    """

    def __init__(self, connection: Connection, name: str, *, database: str | None = None,
                 notes: Notes = "asked", note_time_every: float | None = None, clock: Clock | None = None) -> None:
        """`database`: where time is noted, and where tables are that are named without one; the connection's current
        one if left out. `clock`: the system's if left out.

        Raises ValueError without a database, or if `note_time_every` isn't positive.
        """
        found = database or connection.session.database
        if found is None:
            raise ValueError("no database is in use: name one with database=")
        if note_time_every is not None and note_time_every <= 0:
            raise ValueError(f"note_time_every is {note_time_every}: it takes seconds, more than 0")
        self._connection = connection
        self.name = name
        self._database = found
        self._notes = notes
        self._newest: Any = None
        self._clock = clock or SystemClock()
        # No time is noted while an insert is under way: its rows may be older.
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None
        if note_time_every is not None:
            self._thread = threading.Thread(target=self._note_regularly, args=(note_time_every,), daemon=True,
                                            name=f"writer {name}")
            self._thread.start()

    def close(self) -> None:
        """Stops noting time. Raises the error of noting time in the background, if there was one."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._check()

    def insert(self, table: str, rows: Any) -> Writer:
        """Inserts what `Cursor.insert_arrow` accepts, except readers. `table` is a name as in SQL.

        Raises the error of noting time in the background, if there was one, before it inserts.
        """
        self._check()
        data = pa.table(rows) if not isinstance(rows, pa.Table | pa.RecordBatch) else rows
        name = parse_table_name(table)
        own = f"{quote_identifier(name.database or self._database)}.{quote_identifier(name.name)}"
        with self._lock:
            self._connection.cursor().insert_arrow(own, data)
        times = next((data.column(n) for n, field in enumerate(data.schema) if pa.types.is_timestamp(field.type)), None)
        if times is not None and data.num_rows:
            newest = self._instant(pc.max(times))
            self._newest = max((one for one in (newest, self._newest) if one is not None), default=None)
        return self

    def _instant(self, time: pa.TimestampScalar) -> int | None:
        """Returns nanoseconds since the epoch; a time without zone is local, as for `insert_arrow`."""
        column = Column("time", timestamp("ns"), "time")
        constants = Constants("ns", self._connection.session.time_zone, 0)
        instant: int | None = converted(column, pa.array([time]), constants)[0].value
        return instant

    def note_time(self, ts: datetime | int | str) -> Writer:
        """Notes that no row before `ts` follows: a datetime, milliseconds, or text as in SQL."""
        if isinstance(ts, datetime):
            if ts.tzinfo is None:
                raise ValueError("a datetime needs a time zone")
            ts = round(ts.timestamp() * 1000)
        with self._lock:
            self._note(f"'{ts}'" if isinstance(ts, str) else str(ts))
        return self

    def commit(self) -> Writer:
        """Notes time according to `notes`."""
        self._check()
        if self._notes == "clock":
            self.note_time(self._clock.now_ms())
        elif self._notes == "commit" and self._newest is not None:
            self.note_time(self._newest // 1_000_000)
        return self

    def _note_regularly(self, every_s: float) -> None:
        while not self._clock.wait(self._closed, every_s):
            try:
                with self._lock:
                    self._note(str(self._clock.now_ms()))
            except Exception as error:  # noqa: BLE001
                # It belongs to whoever uses the writer, in another thread.
                self._failure = error
                return

    def _check(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _note(self, instant: str) -> None:
        self._connection.execute(
            f"NOTE TIME {instant} WRITER {quote_string(self.name)} ON {quote_identifier(self._database)}")
