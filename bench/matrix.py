"""Every kind of small write and small question: `python -m bench.matrix`; a JSON line for each cell, or `--table`.

A base cell (an INSERT of one row in order into a table of 3 columns, by the DB-API, beside no stream; 100 child tables
of a thousand rows) is varied in one dimension at a time: what is written, by which way, rows, columns and child tables
per statement, streams beside it. Rows per statement are varied by each way, some kinds of writes beside streams. The
options choose cells: those are measured that have one of the values that are given, of each dimension.

  what     in-order; late: older than the child table's newest row; rewritten: of a time that is there; composite: into
           a table with a PRIMARY KEY column; new-table: with USING; some-columns; nulls; texts; text-times; now;
           delete: of a row; set-tag; or a question, of 1,000 child tables of a thousand rows
  way      of an engine in this process: execute (statements with their values), prepared (with ?), executemany. Over
           connections from another process, one request at a time: rest, line-protocol, flight-sql and postgresql
           (prepared), websocket. Messages to an ingest: mqtt, kafka
  streams  AT_ONCE, per tag, windows of 1 to 10 s, which compute late rows and updates

A line has statements (or messages) per second; µs of processor of each, of the engine and its workers until streams
have caught up, without clients of another process and brokers, but with the calls of the DB-API, which are made in the
engine's process; the same in units (the time of 1,000 additions in a Python loop, taken beside each cell); µs from a
statement's begin to its answer, or from a message to its rows being seen, one at a time; and how many times as dear
it is as the same in order. More than three is marked. The first line is of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from bench.client_process import ClientProcess, order
from bench.figures import percentiles
from bench.local_server import PASSWORD, USER
from bench.matrix_cells import (
    ANSWERS,
    ASKED_CHILDREN,
    BROKERS,
    CHILDREN,
    FIRST_MS,
    HERE,
    KINDS,
    PERIOD_MS,
    QUESTIONS,
    ROWS_EACH,
    WAYS,
    Cell,
    Writes,
    all_cells,
    is_dear,
    table,
    times_in_order,
)
from bench.node import CONFIG, Node
from bench.processes import cpu_of_each, cpu_since
from bench.served_engine import ServedEngine, TableRows
from bench.setup import DATABASE
from bench.trickle import measure_machine, stream_text, unit_us

_WARM_SHARE = 0.3
_GROWTH = 3
_LEAST = 5
_VALUES_AT_ONCE = 3_000_000
_CAUGHT_UP_S = 60.0
_LOOK_S = 0.001
_DELIVERED_S = 60.0

Run = Callable[[], list[float]]
"""Does what was prepared, and returns the µs that each took; none where that isn't known."""
Prepare = Callable[[int], Run]
"""Prepares so many statements, which isn't measured."""


class LeftOutError(Exception):
    """What a cell needs isn't there; the text says what."""


class Bench:
    """An engine, its clients and a database for the cells of one kind after the other."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._brokers_end = stack.enter_context(ExitStack())  # after their clients, which would complain of it
        self._served = stack.enter_context(ServedEngine(folder / "data", CONFIG))
        self._node = Node(folder / "data", engine=self._served.engine)
        self._cursor = stack.enter_context(penstock.connect(folder / "data")).cursor()
        self._clients = stack.enter_context(ClientProcess())
        self._apart = [self._clients.pid]
        self._brokers: dict[str, dict[str, Any]] = {}
        self._writes = Writes()
        self._rows: Counter[str] = Counter()

    def open_database(self, cell: Cell) -> None:
        """Makes the database that a cell needs: child tables, their rows, streams that run."""
        children = ASKED_CHILDREN if cell.is_question else CHILDREN
        schema = None if cell.is_question else KINDS[cell.kind].schema
        names = ["v" if place == 0 else "k" if place == 1 else f"c{place}" for place in range(cell.columns - 1)]
        columns = schema or "ts TIMESTAMP, " + ", ".join(
            f"{name} {'INT' if place % 2 else 'DOUBLE'}" for place, name in enumerate(names))
        for text in (f"CREATE DATABASE {DATABASE} VGROUPS 1 KEEP 36500d", f"USE {DATABASE}",
                     f"CREATE TABLE m ({columns}) TAGS (g INT)",
                     "CREATE TABLE " + " ".join(f"d{n} USING m TAGS ({n % 10})" for n in range(children))):
            self._cursor.execute(text)
        rounds = max(1, _VALUES_AT_ONCE // (children * cell.columns))
        for first in range(0, ROWS_EACH, rounds):
            self._cursor.insert_arrow("m", _rounds(columns, children, first, min(rounds, ROWS_EACH - first)))
        self._cursor.execute(f"FLUSH DATABASE {DATABASE}")
        self._node.execute(f"USE {DATABASE}")
        for number in range(cell.streams):
            self._cursor.execute(stream_text(DATABASE, number, " IGNORE EXPIRED 0 IGNORE UPDATE 0"))
        if cell.streams:
            self._node.wait_running()
            self._node.wait_done(self._node.log_ends(), _CAUGHT_UP_S)
        self._writes, self._rows = Writes(), Counter(m=children * ROWS_EACH)

    def close_database(self, cell: Cell) -> None:
        """Takes it away again."""
        for number in range(cell.streams):
            self._cursor.execute(f"DROP STREAM {DATABASE}_s{number}")
        self._cursor.execute(f"DROP DATABASE {DATABASE}")

    def measure(self, cell: Cell, seconds: float) -> dict[str, Any]:
        """Returns the figures of a cell. Raises LeftOutError; RuntimeError if the table has other rows than it should.
        """
        with ExitStack() as stack:
            prepare = self._prepared(cell, stack)
            # What is done once, by the process or for a table, isn't measured: connecting, preparing, compiling.
            prepare(1 if cell.is_question else CHILDREN)()
            self._cursor.execute(f"FLUSH DATABASE {DATABASE}")  # or a cell would do it for the one before
            count, taken = 1, 0.0
            while taken < seconds * _WARM_SHARE:
                count *= _GROWTH
                taken = _timed(prepare(count))[0]
            count = max(_LEAST, round(count / taken * seconds))
            unit, run = unit_us(), prepare(count)
            before = cpu_of_each(self._apart)
            taken, latencies = _timed(run)
            if cell.streams:
                self._node.wait_done(self._node.log_ends(), _CAUGHT_UP_S)
            spent = cpu_since(before, cpu_of_each(self._apart)) / count * 1e6
            if cell.way in BROKERS:
                latencies = self._one_by_one(prepare, seconds)
            self._check(cell)
        return {"measure": "matrix", **asdict(cell), "statements": count, "per_second": round(count / taken),
                "cpu_us": round(spent, 1), "unit_us": round(unit, 1), "units": round(spent / unit, 2),
                "latency_us": percentiles(np.array(latencies))}

    @staticmethod
    def _one_by_one(prepare: Prepare, seconds: float) -> list[float]:
        """Returns the µs that single messages take."""
        found: list[float] = []
        until = time.monotonic() + seconds
        while len(found) < _LEAST or time.monotonic() < until:
            found.append(_timed(prepare(1))[0] * 1e6)
        return found

    def _check(self, cell: Cell) -> None:
        if cell.is_question or KINDS[cell.kind].added is None:
            return
        found, expected = self._count(_table(cell)), self._rows[_table(cell)]
        if found != expected:
            raise RuntimeError(f"{cell}: the table has {found} rows, not {expected}")

    def _count(self, name: str) -> int:
        [(found,)] = self._cursor.execute(f"SELECT count(*) FROM {name}").fetchall()
        return int(found)

    # --- what is sent ------------------------------------------------------------------------------------------------

    def _prepared(self, cell: Cell, stack: ExitStack) -> Prepare:
        if cell.is_question:
            return self._questions(cell)
        if cell.way in HERE:
            return self._here(cell)
        if cell.way in BROKERS:
            return self._messages(cell, stack)
        return lambda count: self._ordered(self._order(cell, self._made(cell, count)))

    def _made(self, cell: Cell, count: int) -> list[list[TableRows]]:
        """Returns the rows of so many statements, and counts what will be in the table then."""
        self._rows[_table(cell)] += (KINDS[cell.kind].added or 0) * cell.rows * count
        return [self._writes.next(cell) for _ in range(count)]

    def _questions(self, cell: Cell) -> Prepare:
        asked, ask = QUESTIONS[cell.kind], self._cursor.execute

        def prepare(count: int) -> Run:
            texts = [asked(number) for number in range(count)]
            [found] = {len(ask(text).fetchall()) for text in texts[:1]}
            if found != ANSWERS.get(cell.kind, found):
                raise RuntimeError(f"{texts[0]}: {found} rows instead of {ANSWERS[cell.kind]}")
            return lambda: _each(lambda text: ask(text).fetchall(), texts)

        return prepare

    def _here(self, cell: Cell) -> Prepare:
        cursor, kind = self._cursor, KINDS[cell.kind]
        marks = "(" + ", ".join("?" * cell.columns) + ")"

        def prepare(count: int) -> Run:
            if cell.way == "execute":
                numbers = range(self._writes.number, self._writes.number + count * cell.rows, cell.rows)
                made = self._made(cell, count)
                texts = [*map(kind.text, made, numbers)]
                return lambda: _each(cursor.execute, texts)
            alone = [write for [write] in self._made(cell, count)]
            if cell.way == "prepared":
                filled = [(f"INSERT INTO d{each.table} VALUES {' '.join([marks] * cell.rows)}",
                           [value for row in each.rows for value in row]) for each in alone]
                return lambda: _each(lambda one: cursor.execute(*one), filled)
            rows = [(f"INSERT INTO d{each.table} VALUES {marks}", each.rows) for each in alone]
            return lambda: _each(lambda one: cursor.executemany(*one), rows)

        return prepare

    def _order(self, cell: Cell, made: Sequence[Sequence[TableRows]]) -> str:
        served, alone = self._served, [write for [write] in made]
        if cell.way == "rest":
            return order("sockets", {"port": served.http_port}, [served.rest(alone)])
        if cell.way == "line-protocol":
            return order("sockets", {"port": served.http_port}, [served.line_protocol(alone)])
        if cell.way == "flight-sql":
            return order("sockets", {"port": served.flight_port}, [served.flight_prepared(alone)])
        if cell.way == "postgresql":
            marks = ", ".join(["(%s, %s, %s)"] * cell.rows)
            return order("postgres", {"port": served.postgres_port, "user": USER, "password": PASSWORD},
                         [[f"INSERT INTO {DATABASE}.d{each.table} VALUES {marks}",
                           [value for row in each.rows for value in row]] for each in alone])
        return order("websocket", {"port": served.web_socket_port},
                     [f"INSERT INTO {DATABASE}.d{each.table} VALUES {each.values()}" for each in alone])

    def _ordered(self, line: str) -> Run:
        return lambda: self._clients.run(line).latencies_us

    # --- ingests -----------------------------------------------------------------------------------------------------

    def _messages(self, cell: Cell, stack: ExitStack) -> Prepare:
        """Starts an ingest, which `stack` drops, for messages of one row or of an array of rows."""
        if cell.way not in self._brokers:
            self._brokers[cell.way] = self._open_broker(cell.way)
        topic = f"rows{cell.rows}"
        field = "$" if cell.rows == 1 else "$.values[*]"
        self._cursor.execute(
            f"CREATE INGEST {topic} FROM CONNECTION {cell.way} (TOPIC '{topic}', FORMAT JSON) INTO m "
            f"(v = {field}.v, k = {field}.k) TAGS (g = $.g) TBNAME ($.name) TS FROM {field}.ts ON_ERROR FAIL")
        stack.callback(self._cursor.execute, f"DROP INGEST {topic}")

        def is_running() -> bool:
            self._cursor.execute("SELECT state FROM information_schema.ins_ingests")
            return self._cursor.fetchall() == [("RUNNING",)]

        self._node.wait_until(is_running, _DELIVERED_S)

        def ordered(count: int) -> str:
            sent = [[topic, f"d{write.table}", _message(write)] for [write] in self._made(cell, count)]
            return order(cell.way, self._brokers[cell.way], sent)

        def is_there() -> bool:
            return self._count("m") >= self._rows["m"]

        def is_delivered() -> bool:
            """Sends until something comes: MQTT's broker forgets what it gets before the ingest has subscribed."""
            self._clients.run(first)
            return is_there()

        first = ordered(1)
        self._node.wait_until(is_delivered, _DELIVERED_S)

        def prepare(count: int) -> Run:
            line = ordered(count)

            def run() -> list[float]:
                self._clients.run(line)
                self._node.wait_until(is_there, _DELIVERED_S, _LOOK_S)
                return []

            return run

        return prepare

    def _open_broker(self, way: str) -> dict[str, Any]:
        """Starts a broker, and returns where clients find it. Raises LeftOutError if it isn't installed."""
        try:
            import pytest

            from bench.external import Kafka, Mosquitto
        except ImportError as error:
            raise LeftOutError(str(error)) from error
        try:
            if way == "kafka":
                kafka = Kafka(1)
                self._brokers_end.callback(kafka.close)
                for rows in (1, 20, 1000):
                    kafka.create_topic(f"rows{rows}", 4)
                self._apart.append(kafka.pid)
                self._cursor.execute(f"CREATE CONNECTION kafka TYPE kafka WITH (servers='{kafka.servers}')")
                return {"servers": kafka.servers}
            folder = self._folder / "mosquitto"
            folder.mkdir()
            broker = Mosquitto(folder, "max_queued_messages 0", "max_inflight_messages 1000", "log_type none")
            broker.start()
        except pytest.skip.Exception as skipped:
            raise LeftOutError(str(skipped)) from skipped
        self._brokers_end.callback(broker.stop)
        self._apart.append(broker.pid)
        os.environ["BENCH_MQTT"] = broker.password
        self._cursor.execute(f"CREATE CONNECTION mqtt TYPE mqtt WITH (url='{broker.url}', "
                             f"username='{broker.username}', password='env:BENCH_MQTT')")
        return {"port": broker.port, "username": broker.username, "password": broker.password}


def _table(cell: Cell) -> str:
    """Returns the super table that a cell's rows go to."""
    return "lines" if cell.way == "line-protocol" else "m"


def _message(write: TableRows) -> str:
    rows = [dict(zip(("ts", "v", "k"), row, strict=True)) for row in write.rows]
    head = {"name": f"d{write.table}", "g": write.table % 10}
    return json.dumps({**head, **rows[0]} if len(rows) == 1 else {**head, "values": rows})


def _each(call: Callable[[Any], object], things: Sequence[Any]) -> list[float]:
    """Calls for each thing, and returns the µs that each call took."""
    found = []
    for thing in things:
        begun = time.perf_counter()
        call(thing)
        found.append((time.perf_counter() - begun) * 1e6)
    return found


def _timed(run: Run) -> tuple[float, list[float]]:
    begun = time.perf_counter()
    latencies = run()
    return time.perf_counter() - begun, latencies


def _rounds(columns: str, children: int, first: int, count: int) -> pa.Table:
    """Returns rounds of rows, from the one of this number on, for columns as CREATE TABLE has them."""
    number = np.arange(children * count)
    made = {"tbname": pa.array([f"d{n}" for n in range(children)]).take(pa.array(number % children))}
    for column in columns.split(", "):
        name, kind = column.split()[:2]
        if kind == "TIMESTAMP":
            made[name] = pa.array(FIRST_MS + PERIOD_MS * (first + number // children), pa.timestamp("ms"))
        elif kind.startswith("VARCHAR"):
            made[name] = pa.array([f"state {n % 100}" for n in number])
        else:
            # Keys are 0 at first.
            made[name] = pa.array(np.sin(number)) if kind == "DOUBLE" else pa.array(np.zeros(len(number), np.int32))
    return pa.table(made)


def measure(cells: Sequence[Cell], seconds: float, folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the line of the machine, and then one of each cell, or of each way that must be left out."""
    yield measure_machine()
    cpu_us: dict[Cell, float] = {}
    left_out: set[str] = set()
    with ExitStack() as stack:
        bench = Bench(folder, stack)
        for _, group in groupby(cells, key=lambda cell: cell.database):
            first, *others = group
            bench.open_database(first)
            for cell in (first, *others):
                if cell.way in left_out:
                    continue
                try:
                    line = bench.measure(cell, seconds)
                except LeftOutError as error:
                    left_out.add(cell.way)
                    yield {"measure": "matrix", "left_out": cell.way, "reason": str(error)}
                    continue
                cpu_us[cell] = line["cpu_us"]
                times = times_in_order(cell, cpu_us)
                yield {**line, "times_in_order": times, "is_dear": is_dear(times)}
            bench.close_database(first)


def chosen(options: argparse.Namespace) -> list[Cell]:
    """Returns the cells that the options choose."""
    return [cell for cell in all_cells() if all(
        not wanted or getattr(cell, name) in wanted for name, wanted in (
            ("kind", options.kinds), ("way", options.ways), ("streams", options.streams), ("rows", options.rows),
            ("columns", options.columns), ("tables", options.tables)))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a JSON line per cell, or the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.matrix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS, *QUESTIONS], metavar="WHAT",
                        help=f"only these, of {', '.join([*KINDS, *QUESTIONS])}")
    parser.add_argument("--ways", nargs="+", choices=WAYS, metavar="WAY",
                        help=f"only these, of {', '.join(WAYS)}")
    for name, what in (("rows", "rows per statement"), ("columns", "columns of the table"),
                       ("tables", "child tables per statement"), ("streams", "streams beside it")):
        values = sorted({getattr(cell, name) for cell in all_cells()})
        parser.add_argument(f"--{name}", nargs="+", type=int, choices=values,
                            help=f"only so many {what} ({', '.join(map(str, values))})")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each cell, warming up apart (default 1)")
    parser.add_argument("--table", action="store_true", help="print a table in Markdown in place of lines")
    options = parser.parse_args(arguments)
    cells = chosen(options)
    if not cells:
        parser.error("no cell has all of these values")
    lines = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=Path.cwd()) as folder:
        for line in measure(cells, options.seconds, Path(folder)):
            lines.append(line)
            if not options.table:
                print(json.dumps(line), flush=True)
            if "kind" in line:
                print(f"{len(lines) - 1} of {len(cells)}: {line['kind']}, {line['way']}, {line['rows']} rows, "
                      f"{line['columns']} columns, {line['streams']} streams: {line['cpu_us']} µs", file=sys.stderr)
    if options.table:
        print(table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
