"""Writers in Python: rows, and what they note of time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.common.clock import ManualClock
from penstock.common.errors import PenstockError
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.shell.api.dbapi import Connection
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalReader
from penstock.wal.record import Record, RowsRecord, TimeMarkRecord

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
NOON_MS = round(NOON.timestamp() * 1000)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    with penstock.connect(str(tmp_path / "data"), {"timezone": "UTC"}) as connection:
        for statement in ("CREATE DATABASE d VGROUPS 2", "USE d", "CREATE TABLE t (ts TIMESTAMP, v INT)"):
            connection.execute(statement)
        yield connection


def logs(tmp_path: Path, connection: Connection) -> list[list[Record]]:
    """Returns the records of each vnode, without those about tables."""
    ((_, cut),) = connection.execute("SHOW CUT").fetchall()
    found = []
    for part in cut.split(","):
        reader = WalReader(LogFiles(DataPaths(tmp_path / "data").wal(int(part.split(":")[0])), OsFs()), 1)
        records = []
        while batch := reader.read(1000, 1 << 20):
            records += [record for record in batch if isinstance(record, RowsRecord | TimeMarkRecord)]
        reader.close()
        found.append(records)
    return found


def rows(*minutes: int) -> pa.Table:
    return pa.table({"ts": pa.array([NOON_MS + 60_000 * minute for minute in minutes], pa.timestamp("ms")),
                     "v": pa.array(list(minutes), pa.int32())})


def test_each_commit_notes_the_newest_time_behind_its_rows(tmp_path: Path, connection: Connection) -> None:
    """The note is in the log of every vnode, and behind the rows."""
    writer = penstock.Writer(connection, "line 1", notes="commit")
    writer.insert("t", rows(1, 5, 3)).commit()
    writer.insert("t", rows(2)).commit()
    records = logs(tmp_path, connection)
    assert [[type(record).__name__ for record in log] for log in records if len(log) > 2] == [
        ["RowsRecord", "TimeMarkRecord", "RowsRecord", "TimeMarkRecord"]]
    for log in records:
        marks = [record for record in log if isinstance(record, TimeMarkRecord)]
        assert [(mark.writer, mark.ts_ms) for mark in marks] == [("line 1", NOON_MS + 5 * 60_000)] * 2


@pytest.mark.parametrize("instant", [NOON, NOON_MS, "2024-05-01 12:00:00"])
def test_time_can_be_noted_in_any_form(tmp_path: Path, connection: Connection, instant: datetime | int | str) -> None:
    """A datetime, milliseconds and text are the same instant; names may have quotes."""
    penstock.Writer(connection, "it's").note_time(instant).commit()
    assert [[(mark.writer, mark.ts_ms) for mark in log if isinstance(mark, TimeMarkRecord)]
            for log in logs(tmp_path, connection)] == [[("it's", NOON_MS)]] * 2


def test_the_wall_clock_can_be_noted(tmp_path: Path, connection: Connection) -> None:
    """With notes="clock" a commit says that it is now."""
    penstock.Writer(connection, "w", database="d", notes="clock", clock=ManualClock(NOON_MS)).commit()
    for log in logs(tmp_path, connection):
        assert [mark.ts_ms for mark in log if isinstance(mark, TimeMarkRecord)] == [NOON_MS]


def test_tables_are_those_of_the_writers_database(connection: Connection) -> None:
    """Unless their names say otherwise, whatever database is in use."""
    connection.cursor().execute("CREATE DATABASE other").execute("USE other")
    penstock.Writer(connection, "w", database="d").insert("t", rows(1)).insert("d.t", rows(2))
    assert connection.cursor().execute("SELECT count(*) > 0 FROM d.t").fetchall() == [(True,)]
    with pytest.raises(penstock.Error, match="other"):
        penstock.Writer(connection, "w").insert("t", rows(1))


class Ticks:
    """A clock that goes on by a second whenever `tick` is called, and wakes who waits."""

    def __init__(self) -> None:
        self.now = NOON_MS
        self.ticks: queue.Queue[None] = queue.Queue()
        self.waits = threading.Semaphore(0)

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.waits.release()
        self.ticks.get(timeout=60)
        return event.is_set()

    def tick(self) -> None:
        """Lets the writer note once, and waits until it has."""
        self.now += 1000
        self.ticks.put(None)
        assert self.waits.acquire(timeout=60)


def test_time_is_noted_regularly_until_the_writer_is_closed(tmp_path: Path, connection: Connection) -> None:
    """With note_time_every the wall clock is noted also while nothing is written, and never after the end."""
    clock = Ticks()
    writer = penstock.Writer(connection, "w", note_time_every=1.0, clock=clock)
    assert clock.waits.acquire(timeout=60)
    clock.tick()
    writer.insert("t", rows(1))
    clock.tick()
    clock.ticks.put(None)
    writer.close()
    marks = [[mark.ts_ms for mark in log if isinstance(mark, TimeMarkRecord)] for log in logs(tmp_path, connection)]
    assert all(log[:2] == [NOON_MS + 1000, NOON_MS + 2000] and len(log) <= 3 for log in marks)


def test_a_failure_of_regular_notes_comes_to_who_uses_the_writer(connection: Connection) -> None:
    """It is raised by the next call, not lost in a thread."""
    clock = Ticks()
    writer = penstock.Writer(connection, "w", note_time_every=1.0, clock=clock)
    assert clock.waits.acquire(timeout=60)
    connection.execute("DROP DATABASE d")
    noting = next(thread for thread in threading.enumerate() if thread.name == "writer w")
    clock.ticks.put(None)
    noting.join(30)
    with pytest.raises(PenstockError, match="d does not exist"):
        writer.commit()
    writer.close()


@pytest.mark.parametrize(("options", "message"), [({"database": None}, "no database is in use"),
                                                  ({"database": "d", "note_time_every": 0}, "more than 0")])
def test_what_a_writer_cannot_be(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    """It needs a database to note time in, and time to pass between notes."""
    with penstock.connect(str(tmp_path / "data")) as connection, pytest.raises(ValueError, match=message):
        penstock.Writer(connection, "w", **options)


def test_a_datetime_without_zone_is_refused(connection: Connection) -> None:
    """It could be any instant."""
    with pytest.raises(ValueError, match="needs a time zone"):
        penstock.Writer(connection, "w").note_time(NOON.replace(tzinfo=None))
