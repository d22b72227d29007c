"""`penstock generate`: fills databases with rows of made-up devices, and says how fast that was."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter

import numpy as np
import pyarrow as pa

from penstock.common.clock import Clock, SystemClock
from penstock.common.errors import CancelledError, InvalidStatementError
from penstock.shell.api.arrow_input import quoted_table
from penstock.shell.api.dbapi import Connection
from penstock.shell.api.parameter_binding import bind
from penstock.shell.commands.generate_plan import DatabasePlan, GeneratePlan, TablePlan, plan_of
from penstock.shell.commands.generated_rows import GeneratedRows, requests, tag_rows
from penstock.shell.terminal.row_bar import counting_bar
from penstock.sql.dialect.literals import parse_timestamp
from penstock.sql.schema import DatabaseOptions
from penstock.sql.tree.expression_nodes import quote_identifier
from penstock.sql.types import UNITS_PER_SECOND, Precision

_CHILDREN_AT_ONCE = 1000

Ask = Callable[[str], bool]
"""Puts a question to the user that has yes or no for an answer."""


def run_generate(arguments: argparse.Namespace, connection: Connection) -> int:
    """Makes what the command line asks for and prints how fast that was. Raises PenstockErrors."""
    plan = plan_of(arguments)
    ask: Ask = (lambda question: True) if arguments.answer_yes else _ask
    with counting_bar(arguments.progress, plan.total, "rows") as advanced:
        report = RowGenerator(connection, plan, arguments.seed, SystemClock(), advanced, ask).run()
    sys.stdout.writelines(f"{line}\n" for line in report.lines(plan))
    return 0


@dataclass(slots=True)
class GenerateReport:
    """How it went: seconds from the first call to the last, and of each call."""

    rows: int = 0
    seconds: float = 0.0
    calls: list[float] = field(default_factory=list)

    def lines(self, plan: GeneratePlan) -> Iterator[str]:
        names = ", ".join(database.name for database in plan.databases)
        rate = self.rows / self.seconds if self.seconds else 0.0
        yield (f"Spent {self.seconds:.3f} seconds to insert rows: {self.rows} with {plan.threads} thread(s) into "
               f"{names} {rate:,.2f} records/second")
        if self.calls:
            ms = np.array(self.calls) * 1000
            p90, p95, p99 = np.percentile(ms, (90, 95, 99))
            yield (f"insert delay, min: {ms.min():.2f}ms, avg: {ms.mean():.2f}ms, p90: {p90:.2f}ms, p95: {p95:.2f}ms, "
                   f"p99: {p99:.2f}ms, max: {ms.max():.2f}ms")


class RowGenerator:
    """Carries out one plan."""

    def __init__(
        self, connection: Connection, plan: GeneratePlan, seed: int, clock: Clock, advanced: Callable[[str, int], None],
        ask: Ask,
    ) -> None:
        self._connection = connection
        self._plan = plan
        self._seed = seed
        self._clock = clock
        self._advanced = advanced
        self._ask = ask
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._report = GenerateReport()

    def run(self) -> GenerateReport:
        """Raises CancelledError if the user doesn't want a database to be dropped; then nothing has changed."""
        self._confirm()
        for database in self._plan.databases:
            precision = self._make(database)
            for table in database.tables:
                self._make_children(database, table)
                self._fill(database, table, precision)
        return self._report

    def _confirm(self) -> None:
        there = {str(name) for (name,) in self._connection.execute("SHOW DATABASES").fetchall()}
        dropped = [database.name for database in self._plan.databases if database.drop and database.name in there]
        if dropped and not self._ask(f"Database {', '.join(dropped)} exists and will be replaced: its rows are lost"):
            raise CancelledError("nothing was changed")

    def _make(self, database: DatabasePlan) -> Precision:
        if database.drop:
            self._connection.execute(f"DROP DATABASE IF EXISTS {quote_identifier(database.name)}")
        self._connection.execute(database.create)
        for table in database.tables:
            columns = ", ".join(["ts TIMESTAMP", *(column.sql for column in table.columns)])
            tags = ", ".join(tag.sql for tag in table.tags)
            self._connection.execute(
                f"CREATE STABLE IF NOT EXISTS {quoted_table(table.name, database.name)} ({columns}) TAGS ({tags})")
        found = self._connection.execute(
            "SELECT `precision` FROM information_schema.ins_databases WHERE name = ?", (database.name,)).fetchone()
        names: dict[str, Precision] = {"ms": "ms", "us": "us", "ns": "ns"}
        return DatabaseOptions().precision if found is None else names[str(found[0])]

    def _make_children(self, database: DatabasePlan, table: TablePlan) -> None:
        rows = tag_rows(table, self._seed)
        parent = quoted_table(table.name, database.name)
        marks = ", ".join("?" * len(table.tags))
        for first in range(0, len(rows), _CHILDREN_AT_ONCE):
            some = rows[first:first + _CHILDREN_AT_ONCE]
            clauses = " ".join(
                f"IF NOT EXISTS {quoted_table(f'{table.prefix}{number}', database.name)} USING {parent} TAGS ({marks})"
                for number in range(first, first + len(some)))
            self._connection.execute(bind(f"CREATE TABLE {clauses}", [value for row in some for value in row]))

    def _fill(self, database: DatabasePlan, table: TablePlan, precision: Precision) -> None:
        if table.start.strip().lower() == "now":
            start = self._clock.now_ms() * UNITS_PER_SECOND[precision] // 1000
        else:
            start = parse_timestamp(table.start, precision, self._connection.session.time_zone)
        made = GeneratedRows(table, start, pa.timestamp(precision, "UTC"), self._seed, self._plan.unique)
        threads = min(self._plan.threads, table.tables)
        bounds = [table.tables * number // threads for number in range(threads + 1)]
        begun = perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            running = [pool.submit(self._write, database, table, made, first, last)
                       for first, last in pairwise(bounds)]
            try:
                wait(running, return_when=FIRST_EXCEPTION)
            finally:
                self._stopped.set()  # where one thread fails, the others end with their call
            for future in running:
                future.result()
        self._stopped.clear()
        self._report.seconds += perf_counter() - begun

    def _write(self, database: DatabasePlan, table: TablePlan, made: GeneratedRows, first: int, last: int) -> None:
        """Writes the rows of the child tables first <= n < last."""
        name = quoted_table(table.name, database.name)
        cursor = self._connection.cursor()
        for request in requests(first, last, table.rows, table.interlace, self._plan.request_rows):
            if self._stopped.is_set():
                return
            rows = made.table(request)
            begun = perf_counter()
            cursor.insert_arrow(name, rows)
            seconds = perf_counter() - begun
            with self._lock:
                self._report.rows += rows.num_rows
                self._report.calls.append(seconds)
                self._advanced(f"{database.name}.{table.name}", rows.num_rows)
            if request.ends_round and table.interlace and table.interval_ms:
                self._clock.wait(self._stopped, table.interval_ms / 1000)


def _ask(question: str) -> bool:
    if not sys.stdin.isatty():
        raise InvalidStatementError(f"{question}", hint="-y agrees to that")
    return input(f"{question}. Go on? [y/N] ").strip().lower() in ("y", "yes")
