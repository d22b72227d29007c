"""The cells of `bench.matrix`: what each writes or asks, in which order they are measured, and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.served_engine import TableRows

CHILDREN, ROWS_EACH, ASKED_CHILDREN = 100, 1000, 1000
"""Child tables of writes, rows of each before anything is measured, and child tables of questions."""
FIRST_MS = 1_700_000_000_000
PERIOD_MS = 1000
"""From a row of a child table to its next one, of the rows that are there at first."""
_NEWEST_MS = FIRST_MS + ROWS_EACH * PERIOD_MS
_MINUTE_MS = 60_000
_DEAR = 3.0
_KEYS_PER_TIME = 4

HERE = ("execute", "prepared", "executemany")
SOCKETS = ("rest", "line-protocol", "flight-sql", "postgresql", "websocket")
BROKERS = ("mqtt", "kafka")
WAYS = (*HERE, *SOCKETS, *BROKERS)


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured: a kind of write or question. `rows`, `tables`: per statement; `columns`: of the table, its time
    among them.
    """

    kind: str = "in-order"
    rows: int = 1
    columns: int = 3
    tables: int = 1
    way: str = "execute"
    streams: int = 0

    @property
    def is_question(self) -> bool:
        return self.kind in QUESTIONS

    @property
    def database(self) -> tuple[object, ...]:
        """Cells for which this is equal follow each other and share a database."""
        if self.is_question:
            return ("questions",)
        return self.kind, self.columns, self.streams, self.way in BROKERS


# --- writes ----------------------------------------------------------------------------------------------------------


def _values(number: int, columns: int) -> tuple[Any, ...]:
    """Returns the values of a row behind its time: a DOUBLE and an INT in turn."""
    return tuple(number if place % 2 else number * 0.5 for place in range(columns - 1))


def _insert(writes: Sequence[TableRows], names: str = "") -> str:
    return "INSERT INTO " + " ".join(f"d{each.table}{names} VALUES {each.values()}" for each in writes)


def _newer(number: int) -> int:
    return _NEWEST_MS + number


def _older(number: int) -> int:
    """Returns times between those that are there at first, of each child table another one each time."""
    lap, place = divmod(number // CHILDREN, ROWS_EACH)
    return FIRST_MS + PERIOD_MS * place + 1 + lap % (PERIOD_MS - 1)


def _known(number: int) -> int:
    """Returns times that are there at first."""
    return FIRST_MS + PERIOD_MS * (number // CHILDREN % ROWS_EACH)


def _of_many_keys(number: int) -> int:
    return _NEWEST_MS + number // (CHILDREN * _KEYS_PER_TIME)


def _as_text(ts: int) -> str:
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ts)
    return f"'{moment:%Y-%m-%d %H:%M:%S}.{ts % 1000:03}'"


def _of_one(text: Callable[[int, int, Any, Any, int], str]) -> Callable[[Sequence[TableRows], int], str]:
    """Makes a statement of one row of `text(table, time, v, k, number of the row)`."""
    def made(writes: Sequence[TableRows], number: int) -> str:
        [write] = writes
        [(ts, v, k)] = write.rows
        return text(write.table, ts, v, k, number)

    return made


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of write. `text`: its statement, by its rows and the number of the first of them; `time_ms`: of a row, by
    its number; `added`: how many rows each row adds to the table, None if times may be the same.
    """

    text: Callable[[Sequence[TableRows], int], str]
    time_ms: Callable[[int], int] = _newer
    added: int | None = 1
    schema: str | None = None
    """Columns of the super table; None: `columns` of them."""


KINDS: Mapping[str, Kind] = {
    "in-order": Kind(lambda writes, number: _insert(writes)),
    "late": Kind(lambda writes, number: _insert(writes), _older),
    "rewritten": Kind(lambda writes, number: _insert(writes), _known, 0),
    "composite": Kind(_of_one(lambda table, ts, v, k, number:
                              f"INSERT INTO d{table} VALUES ({ts}, {number // CHILDREN % _KEYS_PER_TIME}, {v})"),
                      _of_many_keys, schema="ts TIMESTAMP, k INT PRIMARY KEY, v DOUBLE"),
    "new-table": Kind(_of_one(lambda table, ts, v, k, number:
                              f"INSERT INTO n{number} USING m TAGS ({table % 10}) VALUES ({ts}, {v}, {k})")),
    "some-columns": Kind(_of_one(lambda table, ts, v, k, number: f"INSERT INTO d{table} (ts, v) VALUES ({ts}, {v})")),
    "nulls": Kind(_of_one(lambda table, ts, v, k, number: f"INSERT INTO d{table} VALUES ({ts}, NULL, {k})")),
    "texts": Kind(_of_one(lambda table, ts, v, k, number:
                          f"INSERT INTO d{table} VALUES ({ts}, 'pump {k} of hall {table} runs', 'state {k}')"),
                  schema="ts TIMESTAMP, a VARCHAR(64), b VARCHAR(64)"),
    "text-times": Kind(_of_one(lambda table, ts, v, k, number:
                               f"INSERT INTO d{table} VALUES ({_as_text(ts)}, {v}, {k})")),
    "now": Kind(_of_one(lambda table, ts, v, k, number: f"INSERT INTO d{table} VALUES (now, {v}, {k})"), added=None),
    "delete": Kind(_of_one(lambda table, ts, v, k, number: f"DELETE FROM d{table} WHERE ts = {ts}"), _known, -1),
    "set-tag": Kind(_of_one(lambda table, ts, v, k, number:
                            f"ALTER TABLE d{table} SET TAG g = {(table + number // CHILDREN) % 10}"), added=0),
}


class Writes:
    """Makes the rows of statements, each newer, or at least other ones, than those before. `number`: rows so far."""

    def __init__(self) -> None:
        self.number = 0
        self._statements = 0

    def next(self, cell: Cell) -> list[TableRows]:
        """Returns the rows of the next statement of a cell, by table."""
        kind, first, table = KINDS[cell.kind], self.number, self._statements * cell.tables
        made = [(kind.time_ms(number), *_values(number, cell.columns)) for number in range(first, first + cell.rows)]
        self.number += cell.rows
        self._statements += 1
        return [TableRows((table + place) % CHILDREN, made[place::cell.tables]) for place in range(cell.tables)]


# --- questions -------------------------------------------------------------------------------------------------------


def _minutes(number: int, minutes: int) -> str:
    """Returns the condition of so many minutes, another beginning each time, of those that have all of their rows."""
    whole = range(-(-FIRST_MS // _MINUTE_MS), _NEWEST_MS // _MINUTE_MS - minutes + 1)
    first = _MINUTE_MS * whole[number % len(whole)]
    return f"ts >= {first} AND ts < {first + _MINUTE_MS * minutes}"


def _ten(number: int) -> str:
    return ", ".join(f"'d{(number * 10 + place) % ASKED_CHILDREN}'" for place in range(10))


QUESTIONS: Mapping[str, Callable[[int], str]] = {
    "newest-of-one": lambda number: f"SELECT last_row(*) FROM d{number % ASKED_CHILDREN}",
    "newest-of-all": lambda number: "SELECT tbname, last_row(*) FROM m PARTITION BY tbname",
    "minute-of-one": lambda number: f"SELECT * FROM d{number % ASKED_CHILDREN} WHERE {_minutes(number, 1)}",
    "count": lambda number: "SELECT count(*) FROM m",
    "ten-windows-of-ten": lambda number: f"SELECT _wstart, tbname, avg(v) FROM m WHERE tbname IN ({_ten(number)}) "
                                         f"AND {_minutes(number, 10)} PARTITION BY tbname INTERVAL(1m)",
    "explain": lambda number: f"EXPLAIN SELECT avg(v) FROM m WHERE {_minutes(number, 1)}",
    "show": lambda number: "SHOW TABLES",
}
ANSWERS: Mapping[str, int] = {"newest-of-one": 1, "newest-of-all": ASKED_CHILDREN, "minute-of-one": 60, "count": 1,
                              "ten-windows-of-ten": 100, "show": ASKED_CHILDREN}
"""How many rows an answer has."""


# --- the matrix ------------------------------------------------------------------------------------------------------


_BESIDE_STREAMS = ("in-order", "late", "rewritten", "composite", "new-table")


def all_cells() -> Iterator[Cell]:
    """Yields all cells, in the order in which they are measured: the in-order sibling of each before it.

    What starts Spark comes last, so that it isn't there beside the others.
    """
    base = Cell()
    for rows in (1, 20, 1000):
        yield from (replace(base, rows=rows, way=way) for way in (*HERE, *SOCKETS))
    yield from (replace(base, rows=20, tables=20), replace(base, rows=1000, tables=100))
    yield from (replace(base, columns=columns) for columns in (30, 300))
    yield from (replace(base, kind=kind) for kind in KINDS if kind != base.kind)
    yield from (replace(base, kind=kind) for kind in QUESTIONS)
    yield from (replace(base, way=way, rows=rows) for way in BROKERS for rows in (1, 20, 1000))
    yield from (replace(base, kind=kind, streams=streams) for streams in (1, 10) for kind in _BESIDE_STREAMS)


def times_in_order(cell: Cell, cpu_us: Mapping[Cell, float]) -> float | None:
    """Returns how many times as dear a write is as the same in order, None where there is nothing to compare with."""
    sibling = replace(cell, kind="in-order")
    if cell.is_question or cell == sibling or sibling not in cpu_us:
        return None
    return round(cpu_us[cell] / cpu_us[sibling], 2)


_HEAD = ("what", "way", "streams", "rows", "columns", "tables", "per second", "µs of processor", "units", "p50, µs",
         "p99, µs", "times in order")


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Returns the Markdown table of the lines of a run: first of its machine, then of cells and what was left out."""
    machine = lines[0]
    rows = [_HEAD, tuple("---" for _ in _HEAD)]
    told = []
    for line in lines[1:]:
        if "left_out" in line:
            told.append(f"Left out: {line['left_out']}, since {line['reason']}.")
            continue
        times = line["times_in_order"]
        mark = "" if times is None else f"**{times:,.1f}**" if is_dear(times) else f"{times:,.1f}"
        shape = ("", "", "") if line["kind"] in QUESTIONS else (line["rows"], line["columns"], line["tables"])
        rows.append((line["kind"], line["way"], line["streams"], *(f"{each:,}" if each else "" for each in shape),
                     f"{line['per_second']:,}", f"{line['cpu_us']:,.1f}", f"{line['units']:,.2f}",
                     *(f"{line['latency_us'][name]:,.0f}" for name in ("p50", "p99")), mark))
    units = [line["unit_us"] for line in lines[1:] if "unit_us" in line]
    spread = f", {min(units)} to {max(units)} µs beside the cells" if units else ""
    return "\n".join([
        f"A unit took {machine['unit_us']} µs at the beginning{spread}; waking a thread and being woken by it "
        f"{machine['thread_round_trip_us']} µs; load {machine['load']}, {machine['cores']} processors.", "",
        *("| " + " | ".join(map(str, row)) + " |" for row in rows), *(["", *told] if told else [])])


def is_dear(times: float | None) -> bool:
    """Whether a write costs so much more than the same in order that it is marked."""
    return times is not None and times > _DEAR
