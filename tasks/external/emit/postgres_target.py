"""Writes results into a table of PostgreSQL: upserts and deletes by their keys, one transaction per delivery."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.connection import OpenedConnection
from penstock.common.errors import (
    ConnectionFailedError,
    ContentRefusedError,
    RowRefusedError,
    StaleAttemptError,
    TargetMissingError,
)
from penstock.tasks.external.connectors import postgres
from penstock.tasks.external.emit.async_sink_writer import Delivery
from penstock.tasks.external.emit.postgres_target_table import FoundColumn, PostgresTable
from penstock.tasks.protocol.messages import TaskId

_FOUND_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, NULL), a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
    FROM pg_attribute a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_FOUND_KEYS = """
    SELECT ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey))
    FROM pg_index i WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
"""
_HOLDER = """
    SELECT l.pid, s.application_name FROM pg_locks l LEFT JOIN pg_stat_activity s USING (pid)
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND (l.classid::bigint << 32 | l.objid::bigint) = %s
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_TAKEOVER_TRIES = 50


class PostgresTarget:
    """A table by one connection, which one sink task writes to.

    While it is open it holds an advisory lock of its task, and is known by its attempt: a later attempt ends the
    sessions of earlier ones, so that nothing of theirs is written behind it.
    """

    def __init__(
        self, connection: OpenedConnection, table: PostgresTable, task: TaskId, stream: str, attempt: int, *,
        known: bool,
    ) -> None:
        """Creates the table if it isn't there, unless it was `known`: then somebody has dropped it, with what was in
        it. Raises ExternalSystemErrors, TargetMissingError if it doesn't fit."""
        self._connection = connection
        self._table = table
        self._known = known
        self._attempt = attempt
        self._mark = f"penstock {stream} {task} {attempt}"[:63]
        key = f"penstock {stream} {task} {'.'.join(table.path)}"
        self._lock = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1
        self._session = postgres.connect(connection, autocommit=True)
        try:
            with postgres.translating(connection):
                self._prepare()
        except BaseException:
            self._session.close()
            raise

    def deliver(self, delivery: Delivery) -> None:
        try:
            self._write(delivery.rows, keep=True)
        except ContentRefusedError as error:
            if self._session.broken:
                raise
            row = self._first_refused(delivery.rows)
            if row is None:
                raise
            text = ", ".join(f"{name}={value}" for name, value in self._key_of(delivery.rows, row).items())
            raise RowRefusedError(f"{error.message}; the row of {text}", row=row) from None

    def close(self) -> None:
        self._session.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        timeout_ms = round(self._connection.timeout_s * 1000)
        # Whoever waits for a lock shall hear so, and not only that it took too long.
        for name, value in (("TimeZone", "UTC"), ("statement_timeout", str(timeout_ms)),
                            ("lock_timeout", str(timeout_ms * 4 // 5)), ("application_name", self._mark)):
            self._session.execute("SELECT set_config(%s, %s, false)", (name, value))
        self._fence()
        if not self._ask("SELECT to_regclass(%s) IS NOT NULL", self._table.name)[0][0]:
            if self._known:
                raise TargetMissingError(
                    f"table {'.'.join(self._table.path)} was dropped, and the results that it had with it",
                    hint=f"to go on without them: {self._table.create}")
            self._session.execute(self._table.create)
        found = [FoundColumn(*row) for row in self._ask(_FOUND_COLUMNS, self._table.name)]
        problems = self._table.problems(found, [row[0] for row in self._ask(_FOUND_KEYS, self._table.name)])
        if problems:
            raise TargetMissingError(f"table {'.'.join(self._table.path)} doesn't fit: {'; '.join(problems)}",
                                     hint="ALTER it, or rename it, and the stream makes its own")

    def _ask(self, statement: str, *values: object) -> list[Any]:
        return self._session.execute(statement, values).fetchall()

    def _fence(self) -> None:
        """Takes the task's lock from earlier attempts. Raises StaleAttemptError if a later one has it."""
        for _ in range(_TAKEOVER_TRIES):
            if self._ask("SELECT pg_try_advisory_lock(%s)", self._lock)[0][0]:
                return
            for pid, mark in self._ask(_HOLDER, self._lock):
                attempt = str(mark or "").rsplit(" ", 1)[-1]
                if attempt.isdigit() and int(attempt) > self._attempt:
                    raise StaleAttemptError(f"attempt {self._attempt} was superseded by {attempt}")
                self._ask("SELECT pg_terminate_backend(%s)", pid)
            self._ask("SELECT pg_sleep(0.05)")
        raise ConnectionFailedError("a session of an earlier attempt doesn't end",
                                    hint="look for application_name penstock in pg_stat_activity")

    def _write(self, rows: pa.RecordBatch, *, keep: bool) -> None:
        with postgres.translating(self._connection), self._session.transaction(force_rollback=not keep):
            operations = rows.column(0).to_numpy()
            if operations.any():
                self._delete(rows.filter(pa.array(operations == 1)))
                rows = rows.filter(pa.array(operations == 0))
            if rows.num_rows:
                self._session.execute(self._table.upsert, _values(rows, len(self._table.columns)), prepare=True)

    def _delete(self, rows: pa.RecordBatch) -> None:
        """Deletes keys, those together that have NULL in the same places."""
        columns = _values(rows, len(self._table.deleted_by))
        keys = sorted(zip(*columns, strict=True), key=_nulls)
        for nulls, group in groupby(keys, _nulls):
            values = [list(column) for column in zip(*group, strict=True)]
            self._session.execute(self._table.delete(nulls), values, prepare=True)

    def _first_refused(self, rows: pa.RecordBatch) -> int | None:
        """Returns the first row with which the ones before it are refused; None: it isn't a row's fault."""
        if self._fails(rows.slice(0, 0)) or not self._fails(rows):
            return None
        taken, refused = 0, int(rows.num_rows)
        while refused - taken > 1:
            middle = (taken + refused) // 2
            if self._fails(rows.slice(0, middle)):
                refused = middle
            else:
                taken = middle
        return refused - 1

    def _fails(self, rows: pa.RecordBatch) -> bool:
        try:
            self._write(rows, keep=False)
        except ContentRefusedError:
            return True
        return False

    def _key_of(self, rows: pa.RecordBatch, row: int) -> dict[str, Any]:
        return {name: rows.column(name)[row].as_py() for name in self._table.key}


def _values(rows: pa.RecordBatch, columns: int) -> Sequence[list[Any]]:
    """Returns the first columns behind `_op`, as psycopg takes them; nanoseconds are numbers."""
    return [_plain(rows.column(n)) for n in range(1, columns + 1)]


def _plain(values: pa.Array) -> list[Any]:
    if values.type == pa.timestamp("ns"):
        values = pc.cast(values, pa.int64())
    return list(values.to_pylist())


def _nulls(key: Sequence[object]) -> list[bool]:
    return [value is None for value in key]

