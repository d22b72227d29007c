"""The process that test_guarantees.py kills: a stream whose sink tasks append to a database, which keeps all rows.

    python sink_child.py DIRECTORY GUARANTEE MOMENT NUMBER

It kills itself with SIGKILL the NUMBERth time that MOMENT comes: `stepped` (each task had a step), `written` (a sink
task's transaction is in the database), `recorded` (a checkpoint is valid, and the tasks weren't told yet).
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

from kits.streams.stream_kit import StreamKit, unhurried

from penstock.tasks.protocol.messages import ResultWrite, TaskId

ROWS = 60
STEPS_PER_CHECKPOINT = 4
SQL = "CREATE STREAM s TRIGGER AT_ONCE GUARANTEE {} INTO o AS SELECT ts, voltage FROM meters PARTITION BY tbname"


class Death:
    """Kills the process when its moment has come."""

    def __init__(self, moment: str, number: int) -> None:
        self._end = (moment, number)
        self._seen: Counter[str] = Counter()

    def at(self, moment: str) -> None:
        self._seen[moment] += 1
        if (moment, self._seen[moment]) == self._end:
            os.kill(os.getpid(), signal.SIGKILL)


class AppendingWriter:
    """A `TransactionalWriter` that inserts rows into a table without a key: what is written twice is there twice."""

    def __init__(self, task: TaskId, database: sqlite3.Connection, death: Death) -> None:
        self._task = str(task)
        self._database = database
        self._death = death
        self._open: list[int] = []
        self._submitted = 0

    def submit(self, write: ResultWrite) -> None:
        self._submitted += 1
        self._open += write.rows.column("voltage").to_pylist()

    def acknowledged(self) -> int:
        return self._submitted

    def recover(self, checkpoint_id: int | None) -> None:
        self.commit(checkpoint_id or 0)
        with self._database as transaction:
            transaction.execute("DELETE FROM prepared WHERE task = ?", (self._task,))

    def prepare(self, checkpoint_id: int) -> None:
        with self._database as transaction:
            transaction.executemany("INSERT INTO prepared VALUES (?, ?, ?)",
                                    [(self._task, checkpoint_id, value) for value in self._open])
        self._open = []
        self._death.at("written")

    def commit(self, checkpoint_id: int) -> None:
        which = "FROM prepared WHERE task = ? AND checkpoint_id <= ?"
        with self._database as transaction:
            transaction.execute(f"INSERT INTO seen SELECT value {which}", (self._task, checkpoint_id))
            transaction.execute(f"DELETE {which}", (self._task, checkpoint_id))

    def commit_writes(self) -> None:
        with self._database as transaction:
            transaction.executemany("INSERT INTO seen VALUES (?)", [(value,) for value in self._open])
        self._open = []
        self._death.at("written")


def play(root: Path, guarantee: str, moment: str = "", number: int = 0) -> list[int]:
    """Goes on where the process before had come to, until everything is processed and committed, or to the death.

    Returns the values that the sink's database has then, sorted.
    """
    death = Death(moment, number)
    record = root / "RECORD"
    new = not record.exists()
    with closing(sqlite3.connect(root / "sink.db")) as database:
        if new:
            database.execute("CREATE TABLE seen (value INTEGER)")
            database.execute("CREATE TABLE prepared (task TEXT, checkpoint_id INTEGER, value INTEGER)")
            record.write_text("0")
        kit = StreamKit(root, SQL.format(guarantee), vnodes=2, settings=unhurried(block_rows_max=3), restarted=not new,
                        committed=int(record.read_text()) or None,
                        writer=lambda task: AppendingWriter(task, database, death))
        if new:
            for n in range(ROWS):
                kit.insert([(n % 4, 1000 + n, n)], ("voltage",))
        working = True
        while working:
            for _ in range(STEPS_PER_CHECKPOINT):
                working = kit.stream.step()
                death.at("stepped")
            checkpoint_id = kit.barrier_amid()
            temporary = record.with_suffix(".new")
            temporary.write_text(str(checkpoint_id))
            temporary.replace(record)
            death.at("recorded")
            kit.commit(checkpoint_id)
            kit.run_steps(1)
        kit.close()
        return [value for value, in database.execute("SELECT value FROM seen ORDER BY value")]


if __name__ == "__main__":
    play(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
