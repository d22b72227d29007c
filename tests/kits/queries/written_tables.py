"""A super table with extreme values, written in every way, and its rows in a dictionary and in plain DuckDB."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from zoneinfo import ZoneInfo

import duckdb
import pyarrow as pa
from hypothesis import strategies as st
from kits.basics.extreme_values import CASES, NAMES, extremes, quoted
from kits.queries.targets import Target

from penstock.sql.types import UNITS_PER_SECOND, DataType, Kind, Precision, timestamp

Draw = st.DrawFn
Way = Literal["text", "parameters", "arrow"]
Step = tuple[str, Any]
Rows = dict[tuple[int, int, Any], dict[str, Any]]  # child, time, key: columns

WHOLE = (Kind.TINYINT, Kind.SMALLINT, Kind.INT, Kind.BIGINT, Kind.UTINYINT, Kind.USMALLINT, Kind.UINT, Kind.UBIGINT)
KEY_TYPES = (DataType(Kind.INT), DataType(Kind.UBIGINT), DataType(Kind.VARCHAR, 12))
TAG_KINDS = (Kind.INT, Kind.VARCHAR, Kind.BOOL, Kind.NCHAR, Kind.BIGINT, Kind.DOUBLE)
#: Zones, and seconds about which something happens there: clocks are turned, at midnight too; a day is left out.
PLACES = (("UTC", -1_000_000_000), ("UTC", 0), ("Europe/Berlin", 1_711_846_770), ("Europe/Berlin", 1_729_990_800),
          ("America/Santiago", 1_725_768_000), ("America/Havana", 1_730_610_000), ("Asia/Kolkata", -1_000_000_000),
          ("Pacific/Apia", 1_325_239_200), ("America/New_York", -86_400))
TICKS = 24
#: The type of a column that goes before another takes its name.
GONE = DataType(Kind.INT)
#: Units of INTERVAL that follow the calendar.
CALENDAR = ("d", "w", "n", "y")


@dataclass(frozen=True)
class Column:
    """A column or tag: how Penstock names it, and what DuckDB calls it."""

    name: str
    plain: str
    type: DataType

    @property
    def quoted(self) -> str:
        return quoted(self.name)


@dataclass(frozen=True)
class Design:
    """What a super table is and what happens to it.

    `keyed`: the first column is part of the key. `since`: the step before which a column is added, 0 for those that the
    table is made with; the last column, if it is added, takes the place of another of the same name.
    """

    columns: tuple[Column, ...]
    tags: tuple[Column, ...]
    children: tuple[tuple[str, tuple[Any, ...]], ...]
    precision: Precision
    zone: str
    vgroups: int
    keyed: bool
    since: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def units(self) -> int:
        return UNITS_PER_SECOND[self.precision]


def column_types(precision: Precision) -> list[DataType]:
    sized = [DataType(Kind.VARCHAR, 12), DataType(Kind.VARCHAR, 40), DataType(Kind.NCHAR, 1), DataType(Kind.NCHAR, 12),
             DataType(Kind.VARBINARY, 6), DataType(Kind.DECIMAL, digits=8, scale=2),
             DataType(Kind.DECIMAL, digits=38, scale=3), timestamp(precision)]
    return [*map(DataType, (*WHOLE, Kind.BOOL, Kind.FLOAT, Kind.DOUBLE, Kind.DOUBLE)), *sized]


@st.composite
def designs(draw: Draw) -> Design:
    """One to six columns of any types, one or two tags, one to four children, and some steps."""
    precision: Precision = draw(st.sampled_from(["ms", "us", "ns"]))
    types = draw(st.lists(st.sampled_from(column_types(precision)), min_size=1, max_size=6))
    keyed = draw(st.sampled_from([False, False, False, True]))
    if keyed:
        types[0] = draw(st.sampled_from(KEY_TYPES))
    tag_types = [DataType(kind, 12 if kind in (Kind.VARCHAR, Kind.NCHAR) else None)
                 for kind in draw(st.lists(st.sampled_from(TAG_KINDS), min_size=1, max_size=2))]
    names = iter(draw(st.permutations(sorted({*NAMES, *CASES, *(f"c{n}" for n in range(12))}))))
    columns = tuple(Column(next(names), f"c{n}", type) for n, type in enumerate(types))
    tags = tuple(Column(next(names), f"g{n}", type) for n, type in enumerate(tag_types))
    children = tuple((name, tuple(draw(values(tag.type, precision)) for tag in tags))
                     for name in draw(st.permutations(["d0", "d1", "D 2", "ß3"]))[:draw(st.integers(1, 4))])
    unit = UNITS_PER_SECOND[precision]
    zone, base = draw(st.sampled_from(PLACES))
    tick = draw(st.sampled_from([1, 1, 3_600, 86_400]))
    times = st.tuples(st.integers(-2, TICKS), st.sampled_from([0, 0, 0, 1, unit - 1])).map(
        lambda parts: (base + parts[0] * tick) * unit + parts[1])
    kinds = _steps(columns, keyed, len(children), times, precision) | _retagging(tags, len(children), precision)
    steps = draw(st.lists(kinds, min_size=1, max_size=6))
    late = sorted(draw(st.lists(st.integers(0, len(steps) - 1), max_size=len(columns) - 1)))
    since = (0,) * (len(columns) - len(late)) + tuple(late)
    return Design(columns, tags, children, precision, zone, draw(st.integers(1, 3)), keyed, since, tuple(steps))


def values(type: DataType, precision: Precision) -> st.SearchStrategy[Any]:
    """A value of a type, or NULL."""
    return st.sampled_from([None, *extremes(type, UNITS_PER_SECOND[precision])])


def _retagging(tags: Sequence[Column], children: int, precision: Precision) -> st.SearchStrategy[Step]:
    tagged = st.tuples(st.integers(0, children - 1), st.tuples(*(values(tag.type, precision) for tag in tags)))
    return st.tuples(st.sampled_from(["retag", "renew"]), tagged)


def _steps(columns: Sequence[Column], keyed: bool, children: int, times: st.SearchStrategy[int],
           precision: Precision) -> st.SearchStrategy[Step]:
    child = st.integers(0, children - 1)
    given = [values(column.type, precision) for column in columns]
    if keyed:
        given[0] = given[0].filter(lambda value: value is not None)
    row = st.tuples(child, times, *given)
    ways = st.sampled_from(["text", "parameters", "arrow"])
    rows = st.tuples(ways, st.lists(row, min_size=1, max_size=8), st.integers(1, len(columns)))
    return st.one_of(
        st.tuples(st.just("insert"), rows), st.tuples(st.just("insert"), rows), st.tuples(st.just("insert"), rows),
        st.tuples(st.just("delete"), st.tuples(st.one_of(st.none(), child), times, st.integers(0, 4))),
        st.tuples(st.just("flush"), st.none()))


NUMBERS = itertools.count()


@dataclass
class Written:
    """A design in an engine and in DuckDB, each table under a name of its own."""

    design: Design
    target: Target
    rows: Rows = field(default_factory=dict)
    children: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    known: int = 0
    name: str = field(default_factory=lambda: f"st{next(NUMBERS)}")

    def write(self) -> None:
        """Creates the table and plays all steps."""
        self.create()
        for number in range(len(self.design.steps)):
            self.play(number)
        for child in range(len(self.design.children)):
            self._need(child)

    def create(self) -> None:
        """Creates the table and half of its children; others come when something needs them."""
        design = self.design
        database = f"q{design.vgroups}{design.precision}"
        execute = self.target.execute
        execute(f"CREATE DATABASE IF NOT EXISTS {database} VGROUPS {design.vgroups} PRECISION '{design.precision}' "
                "KEEP 365000")
        execute(f"USE {database}")
        self.target.set_time_zone(design.zone)
        self.known = design.since.count(0)
        gone = [replace(design.columns[-1], type=GONE)] if design.since[-1] else []
        defined = [*design.columns[:self.known], *gone]
        columns, tags = (", ".join(f"{column.quoted} {column.type.sql()}" for column in part)
                         for part in (defined, design.tags))
        if design.keyed:
            columns = columns.replace(defined[0].type.sql(), f"{defined[0].type.sql()} PRIMARY KEY", 1)
        execute(f"CREATE STABLE {self.name} (ts TIMESTAMP, {columns}) TAGS ({tags})")
        for child in range(len(design.children) // 2):
            self._need(child)

    def play(self, number: int) -> None:
        """Plays a step, after the columns that come before it."""
        self._add_columns(self.design.since[self.known:].count(number))
        self._step(*self.design.steps[number])

    def _need(self, child: int) -> None:
        if child not in self.children:
            self._create(child, self.design.children[child][1])

    def _create(self, child: int, tags: tuple[Any, ...]) -> None:
        self.target.execute(f"CREATE TABLE {self.child(child)} USING {self.name} "
                                f"TAGS ({', '.join(map(literal, tags))})")
        self.children[child] = tags  # in the order in which they were made

    def _add_columns(self, count: int) -> None:
        for column in self.design.columns[self.known:self.known + count]:
            if column is self.design.columns[-1]:
                self.target.execute(f"ALTER STABLE {self.name} DROP COLUMN {column.quoted}")
            self.target.execute(f"ALTER STABLE {self.name} ADD COLUMN {column.quoted} {column.type.sql()}")
        self.known += count

    def child(self, number: int) -> str:
        """A child's name as statements write it; names are the database's, which tables of other examples share."""
        return f"`{self.child_name(number)}`"

    def child_name(self, number: int) -> str:
        return f"{self.name} {self.design.children[number][0]}"

    def _step(self, kind: str, what: Any) -> None:
        if kind not in ("insert", "flush") and what[0] is not None:
            self._need(what[0])
        match kind:
            case "insert":
                self._insert(*what)
            case "delete":
                child, first, seconds = what
                last = first + seconds * self.design.units
                table = self.name if child is None else self.child(child)
                self.target.execute(f"DELETE FROM {table} WHERE ts BETWEEN {first} AND {last}")
                self.rows = {key: row for key, row in self.rows.items()
                             if child not in (None, key[0]) or not first <= key[1] <= last}
            case "retag":
                child, tags = what
                for tag, value in zip(self.design.tags, tags, strict=True):
                    self.target.execute(f"ALTER TABLE {self.child(child)} SET TAG {tag.quoted} = {literal(value)}")
                self.children[child] = tags
            case "renew":
                child, tags = what
                self.target.execute(f"DROP TABLE {self.child(child)}")
                del self.children[child]
                self.rows = {key: row for key, row in self.rows.items() if key[0] != child}
                self._create(child, tags)
            case "flush":
                self.target.execute(f"FLUSH DATABASE q{self.design.vgroups}{self.design.precision}")

    def _insert(self, way: Way, rows: Sequence[tuple[Any, ...]], width: int) -> None:
        columns = self.design.columns[:min(width, self.known)]
        width = len(columns) + 1
        listed = ", ".join(["ts", *(column.quoted for column in columns)])
        if way == "text":
            parts = [f"{self._written_child(child)} ({listed}) VALUES ({', '.join(map(literal, row[:width]))})"
                     for child, *row in rows]
            self.target.execute(f"INSERT INTO {' '.join(parts)}")
        elif way == "parameters":
            marks = ", ".join("?" * width)
            for child, *row in rows:
                self._need(child)
                self.target.execute(f"INSERT INTO {self.child(child)} ({listed}) VALUES ({marks})",
                                    row[:width])
        else:
            for child, *_ in rows:
                self._need(child)
            arrays = {"tbname": pa.array([self.child_name(row[0]) for row in rows])}
            for n, (name, type) in enumerate([("ts", timestamp(self.design.precision)),
                                              *((column.name, column.type) for column in columns)], 1):
                kind = pa.timestamp(type.precision, "UTC") if type.kind is Kind.TIMESTAMP else type.arrow()
                arrays[name] = pa.array([row[n] for row in rows], kind)
            self.target.insert_arrow(self.name, pa.table(arrays))
        for child, ts, *written in rows:
            key = written[0] if self.design.keyed else None
            before = self.rows.setdefault((child, ts, key), {column.plain: None for column in self.design.columns})
            before.update({column.plain: value for column, value in zip(columns, written, strict=False)})

    def _written_child(self, child: int) -> str:
        """A child as INSERT names it: with its tags, where it makes the child."""
        if child in self.children:
            return self.child(child)
        tags = self.children[child] = self.design.children[child][1]
        return f"{self.child(child)} USING {self.name} TAGS ({', '.join(map(literal, tags))})"

    def load(self, peer: duckdb.DuckDBPyConnection, name: str) -> None:
        """Makes a table of DuckDB of what is left: `tb`, `ord` as children were made, tags, `ts`, columns.

        The table `..._children` has what children have without rows.
        """
        design = self.design
        told = [("tb", pa.string()), ("ord", pa.int64()), *((tag.plain, plain_type(tag.type)) for tag in design.tags)]
        children = {child: (self.child_name(child), n, *tags) for n, (child, tags) in enumerate(self.children.items())}
        load_rows(peer, f"{name}_children", told, list(children.values()))
        columns = [("ts", pa.int64()), *((column.plain, plain_type(column.type)) for column in design.columns)]
        load_rows(peer, name, [*told, *columns],
              [(*children[child], ts, *row.values()) for (child, ts, _), row in self.rows.items()])

        bounds = [("ts", pa.int64()), *((f"{unit}{end}", pa.int64()) for unit in CALENDAR for end in ("", "_end"))]
        load_rows(peer, "calendar", bounds, [
            (ts, *itertools.chain(*(calendar_window(ts, unit, design) for unit in CALENDAR)))
            for ts in sorted({ts for _, ts, _ in self.rows})])

    def drop(self) -> None:
        self.target.execute(f"DROP STABLE IF EXISTS {self.name}")


def calendar_window(ts: int, unit: str, design: Design) -> tuple[int, int]:
    """The day, week, month or year of an instant in the design's zone; weeks begin on Thursdays, as 1970 did."""
    zone = ZoneInfo(design.zone)
    day = datetime.fromtimestamp(ts // design.units, zone).date()
    match unit:
        case "d":
            first, end = day, day + timedelta(days=1)
        case "w":
            first = day - timedelta(days=(day.weekday() - 3) % 7)
            end = first + timedelta(days=7)
        case "n":
            first = day.replace(day=1)
            end = (first + timedelta(days=31)).replace(day=1)
        case _:
            first, end = day.replace(month=1, day=1), date(day.year + 1, 1, 1)
    start, stop = (round(datetime(on.year, on.month, on.day, tzinfo=zone).timestamp()) * design.units
                   for on in (first, end))
    return start, stop


def load_rows(peer: duckdb.DuckDBPyConnection, name: str, columns: Sequence[tuple[str, pa.DataType]],
          rows: Sequence[tuple[Any, ...]]) -> None:
    given = pa.table({column: pa.array([row[n] for row in rows], type) for n, (column, type) in enumerate(columns)})
    peer.register("given", given)
    peer.execute(f"CREATE OR REPLACE TABLE {name} AS FROM given")
    peer.unregister("given")


def plain_type(type: DataType) -> pa.DataType:
    return pa.int64() if type.kind is Kind.TIMESTAMP else type.arrow()


def literal(value: Any) -> str:
    """A value as a statement writes it."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0").replace("\n", "\\n")
            return f"'{escaped}'"
        case bytes():
            return f"'\\x{value.hex()}'"
        case Decimal():
            return format(value, "f")
    return repr(value)
