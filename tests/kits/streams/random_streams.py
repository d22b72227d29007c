"""Random schemas, histories and streams over all kinds of windows, and what a stream must answer, in plain Python.

The model takes rows and gives result rows. It knows nothing of SQL, of tasks or of the planner; only the windows that
follow a calendar it takes from `planner.duckdb_sql.interval_windows.window_bounds`, whose own tests hold it against
the SQL.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from statistics import fmean, pstdev
from typing import Any, Literal

from hypothesis import strategies as st
from kits.basics.extreme_values import CASES, NAMES, ends, extremes, quoted
from kits.streams.stream_kit import Catalog

from penstock.planner.duckdb_sql.interval_windows import grid_of, starts_between, window_bounds
from penstock.sql.schema import Column, UserFunction
from penstock.sql.tree.statements import Duration, IntervalWindow
from penstock.sql.types import INTEGERS, SIGNED, UNITS_PER_SECOND, DataType, Kind, Precision, timestamp

Draw = st.DrawFn
Row = Mapping[str, Any]
Family = Literal["number", "text", "bool", "time"]
Key = tuple[Any, ...]
Answer = dict[Key, tuple[Any, ...]]
FOREVER_MS = 100 * 366 * 86_400_000

# -- schemas ------------------------------------------------------------------------------------------------------

WHOLE = INTEGERS
KINDS = (*WHOLE, Kind.BOOL, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL, Kind.VARCHAR, Kind.NCHAR, Kind.TIMESTAMP)
#: Up to this, sums of numbers don't depend on their order.
MODERATE = 1_000_000
FAMILIES: dict[Kind, Family] = {
    **dict.fromkeys((*WHOLE, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL), "number"), Kind.BOOL: "bool",
    Kind.VARCHAR: "text", Kind.NCHAR: "text", Kind.TIMESTAMP: "time",
}
TAG_KINDS = (Kind.INT, Kind.VARCHAR, Kind.BOOL, Kind.NCHAR)
#: A tick is what windows are a few of. Times begin at a base: before 1970, then, and where a zone turns its clocks, at
#: midnight too, or leaves a day out.
TICKS_MS = {"s": 1_000, "h": 3_600_000, "d": 86_400_000}
PLACES_MS = {
    "s": (("UTC", 0), ("UTC", 1_711_846_770_000), ("UTC", -1_000_000_007_000)),
    "h": (("UTC", 0), ("Europe/Berlin", 1_711_756_800_000), ("Europe/Berlin", 1_729_900_800_000),
          ("America/St_Johns", -18_000_000), ("America/Santiago", 1_725_696_000_000),
          ("America/Havana", 1_730_548_800_000), ("Pacific/Apia", 1_325_185_200_000)),
    "d": (("UTC", 0), ("Europe/Berlin", 1_706_745_600_000), ("America/St_Johns", -1_000_000_000_000),
          ("Pacific/Apia", 1_323_000_000_000), ("Asia/Kolkata", -1_728_000_000)),
}
TICKS = 40


@dataclass(frozen=True)
class Schema:
    """A super table, its child tables and the times of their rows. `scale` names the tick."""

    columns: tuple[Column, ...]
    tags: tuple[Column, ...]
    tag_values: tuple[tuple[Any, ...], ...]
    precision: Precision
    scale: str
    base_ms: int
    zone: str
    vnodes: int

    @property
    def keyed(self) -> bool:
        return self.columns[1].primary_key

    @property
    def units_per_ms(self) -> int:
        return UNITS_PER_SECOND[self.precision] // 1000

    def catalog(self, functions: Sequence[UserFunction]) -> Catalog:
        return Catalog(self.vnodes, len(self.tag_values), functions, columns=self.columns, tags=self.tags,
                       tag_values=self.tag_values, precision=self.precision)


def _type(kind: Kind, precision: Precision) -> DataType:
    match kind:
        case Kind.VARCHAR | Kind.NCHAR:
            return DataType(kind, 16)
        case Kind.DECIMAL:
            return DataType(kind, digits=8, scale=2)
        case Kind.TIMESTAMP:
            return timestamp(precision)
    return DataType(kind)


@st.composite
def schemas(draw: Draw) -> Schema:
    """One to five columns of any types after the timestamp, the first perhaps part of the key; one to three tags."""
    precision: Precision = draw(st.sampled_from(["ms", "ms", "us", "ns"]))
    keyed = draw(st.sampled_from([False, False, False, True]))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=0, max_size=4))
    kinds.insert(0, draw(st.sampled_from([Kind.INT, Kind.VARCHAR] if keyed else WHOLE)))
    # Alone in a SELECT list, k0 is what PARTITION BY calls so.
    names = iter(draw(st.permutations(sorted({*NAMES, *CASES, *(f"c{n}" for n in range(10))} - {"k0"}))))
    columns = [Column("ts", timestamp(precision), "ts")]
    columns += [Column(next(names), _type(kind, precision), f"p{n}", keyed and n == 0) for n, kind in enumerate(kinds)]
    tag_kinds = draw(st.lists(st.sampled_from(TAG_KINDS), min_size=1, max_size=3))
    tags = [Column(next(names), _type(kind, precision), f"g{n}") for n, kind in enumerate(tag_kinds)]
    tables = draw(st.integers(1, 5))
    tag_values = [tuple(draw(_values(tag.type)) for tag in tags) for _ in range(tables)]
    scale = draw(st.sampled_from(["s", "s", "h", "d"]))
    zone, base_ms = draw(st.sampled_from(PLACES_MS[scale]))
    return Schema(tuple(columns), tuple(tags), tuple(tag_values), precision, scale,
                  base_ms, zone, draw(st.sampled_from([1, 1, 1, 2, 2, 3, 4])))


def _values(type: DataType) -> st.SearchStrategy[Any]:
    return st.sampled_from([None, *_known(type)])


def _known(type: DataType) -> Sequence[Any]:
    return extremes(type, UNITS_PER_SECOND[type.precision])


# -- expressions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expression:
    """An expression over one row: its SQL, what it means, and whether its SQL type is an integer."""

    text: str
    family: Family
    value: Callable[[Row], Any]
    whole: bool = False


def _column(column: Column) -> Expression:
    name = column.name
    return Expression(quoted(name), FAMILIES[column.type.kind], lambda row: row[name], column.type.kind in WHOLE)


@dataclass(frozen=True)
class Names:
    """What expressions of one stream may refer to: the columns and, of a super table, the tags."""

    schema: Schema
    tags: bool
    columns: tuple[Expression, ...] = field(init=False)

    def __post_init__(self) -> None:
        known = [_column(column) for column in (*self.schema.columns[1:], *(self.schema.tags if self.tags else ()))]
        object.__setattr__(self, "columns", tuple(known))

    def of(self, *families: Family) -> list[Expression]:
        return [column for column in self.columns if column.family in families]


def _over(text: str, family: Family, call: Callable[..., Any], *parts: Expression, whole: bool = False) -> Expression:
    """An expression over others that is NULL if any of them is."""

    def value(row: Row) -> Any:
        values = [part.value(row) for part in parts]
        return None if None in values else call(*values)

    return Expression(text, family, value, whole)


def numbers(draw: Draw, names: Names, depth: int = 2) -> Expression:
    """A number: a column, arithmetic, a function, a cast, or CASE."""
    known = names.of("number")
    kind = draw(st.sampled_from([*["column"] * 3, "+", "-", "*", "abs", "floor", "case", "cast", "length"]))
    if depth == 0 or not known:
        kind = "column" if known else "length"
    if kind == "length":
        texts = [column for column in names.of("text") if _is_column(names, column, Kind.VARCHAR)]
        if not texts:
            return Expression("1", "number", lambda row: 1, True)
        part = draw(st.sampled_from(texts))
        return _over(f"length({part.text})", "number", lambda a: len(a.encode()), part, whole=True)
    if kind == "column":
        return draw(st.sampled_from(known))
    part = numbers(draw, names, depth - 1)
    match kind:
        case "+" | "-" | "*":
            constant = draw(st.sampled_from([1, 2, 0.5]))
            call = {"+": lambda a: float(a) + constant, "-": lambda a: float(a) - constant,
                    "*": lambda a: float(a) * constant}[kind]
            return _over(f"({part.text} {kind} {constant})", "number", call, part)
        case "abs" if not part.whole:
            return _over(f"abs({part.text})", "number", abs, part)
        case "abs":
            return _absolute(names, part)
        case "floor":
            return _floor(names, part)
        case "cast":
            return _over(f"cast({part.text} as double)", "number", float, part)
    condition, other = conditions(draw, names, depth - 1), numbers(draw, names, 0)
    if _is_wide(names, part) != _is_wide(names, other):
        other = part  # brought to BIGINT UNSIGNED, a negative number would wrap around
    whole = part.whole and other.whole

    def chosen(row: Row) -> Any:
        value = part.value(row) if condition.value(row) else other.value(row)
        return value if whole or value is None else float(value)

    return Expression(f"case when {condition.text} then {part.text} else {other.text} end", "number", chosen, whole)


def _absolute(names: Names, part: Expression) -> Expression:
    """The absolute value of an integer column; the least of its type wraps to itself."""
    column = _column_of(names, part)
    if column is None:
        return part
    _, high = ends(column.type.kind)
    return _over(f"abs({part.text})", "number", lambda a: abs(a) if abs(a) <= high else a, part, whole=True)


def _floor(names: Names, part: Expression) -> Expression:
    """What isn't finite stays as it is; a DECIMAL that has no room for the result is NULL."""
    most = Decimal("999999.99") if _is_column(names, part, Kind.DECIMAL) else math.inf

    def value(row: Row) -> Any:
        found = part.value(row)
        if found is None or not math.isfinite(found):
            return found
        return None if abs(math.floor(found)) > most else math.floor(found)

    if _column_of(names, part) is None and not part.whole:  # it may be a DECIMAL of its own
        return Expression(f"floor(cast({part.text} as double))", "number", value)
    return Expression(f"floor({part.text})", "number", value, part.whole)


def _column_of(names: Names, expression: Expression) -> Column | None:
    return next((column for column in (*names.schema.columns, *names.schema.tags)
                 if quoted(column.name) == expression.text), None)


def _is_wide(names: Names, expression: Expression) -> bool:
    return any(quoted(column.name) in expression.text and column.type.kind is Kind.UBIGINT
               for column in names.schema.columns)


def _is_column(names: Names, expression: Expression, kind: Kind) -> bool:
    return any(quoted(column.name) == expression.text and column.type.kind is kind
               for column in (*names.schema.columns, *names.schema.tags))


def texts(draw: Draw, names: Names) -> Expression:
    """A string: a column, a function of one, or a number as text."""
    known = names.of("text")
    kind = draw(st.sampled_from(["column", "column", "concat", "upper", "case"])) if known else "case"
    if kind == "case":
        condition = conditions(draw, names, 0)
        return Expression(f"case when {condition.text} then 'yes' else 'no' end", "text",
                          lambda row: "yes" if condition.value(row) else "no")
    part = draw(st.sampled_from(known))
    match kind:
        case "concat":
            return _over(f"concat({part.text}, 'z')", "text", lambda a: a + "z", part)
        case "upper" if _is_column(names, part, Kind.VARCHAR):
            return _over(f"upper({part.text})", "text", _upper, part)
    return part


def _upper(text: str) -> str:
    """A letter for a letter: what Python makes two of has a capital of its own."""
    return text.replace("ß", "ẞ").upper()


def conditions(draw: Draw, names: Names, depth: int = 1) -> Expression:
    """A condition; NULL where SQL says so."""
    kinds = ["null", "not null"]
    kinds += ["<", ">=", "=", "between", "in"] if names.of("number") else []
    kinds += ["text"] if names.of("text") else []
    kinds += ["bool"] if names.of("bool") else []
    kind = draw(st.sampled_from([*kinds, "and", "or", "not"] if depth else kinds))
    match kind:
        case "null" | "not null":
            part, wanted = draw(st.sampled_from(names.columns)), kind == "null"
            return Expression(f"{part.text} is {kind}", "bool", lambda row: (part.value(row) is None) == wanted)
        case "text":
            return _over(f"{(part := draw(st.sampled_from(names.of('text')))).text} = 'x'", "bool",
                         lambda a: a == "x", part)
        case "bool":
            return _over(f"{(part := draw(st.sampled_from(names.of('bool')))).text} = true", "bool", bool, part)
        case "not":
            part = conditions(draw, names, depth - 1)
            return _over(f"not ({part.text})", "bool", lambda a: not a, part)
        case "and" | "or":
            left, right = conditions(draw, names, depth - 1), conditions(draw, names, depth - 1)
            return Expression(f"({left.text} {kind} {right.text})", "bool", _connective(kind == "or", left, right))
    part = draw(st.sampled_from(names.of("number")))
    low = draw(st.sampled_from([-1, 0, 1]))
    comparisons: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "<": (f"{part.text} < {low}", lambda a: a < low), ">=": (f"{part.text} >= {low}", lambda a: a >= low),
        "=": (f"{part.text} = {low}", lambda a: a == low),
        "between": (f"{part.text} between {low} and 2", lambda a: low <= a <= 2),
        "in": (f"{part.text} in ({low}, 2)", lambda a: a in (low, 2)),
    }
    text, call = comparisons[kind]
    return _over(text, "bool", call, part)


def _connective(decisive: bool, left: Expression, right: Expression) -> Callable[[Row], Any]:
    def value(row: Row) -> Any:
        sides = (left.value(row), right.value(row))
        return decisive if decisive in sides else None if None in sides else not decisive

    return value


# -- aggregates ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Aggregate:
    """A column of the result: SQL and its value over the rows of a window, which are in no particular order."""

    text: str
    value: Callable[[Sequence[Row]], Any]
    family: Family
    whole: bool


def _first(row: Row) -> Key:
    return row["ts"], row["#key"], row["_tuid"]


def _last(row: Row) -> Key:
    return row["ts"], row["#key"], -row["_tuid"]


def _percentile(values: Sequence[Any], percent: float) -> float:
    ranked = sorted(map(float, values))
    below, part = divmod((len(ranked) - 1) * percent / 100, 1)
    low, high = ranked[int(below)], ranked[math.ceil(below + part)]
    return low + (high - low) * part


NUMERIC: dict[str, Callable[[Sequence[Any]], Any]] = {
    "sum": sum, "avg": fmean, "min": min, "max": max,
    "spread": lambda values: _finite(float(max(values)) - float(min(values))),
    "stddev": pstdev,
}
def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


PERCENTILES: dict[str, Callable[[Sequence[Any]], Any]] = {
    f"apercentile {percent}": partial(_percentile, percent=percent) for percent in (0, 12.5, 50, 100)
}
#: Those that are 0 where there are no values.
COUNTING: dict[str, Callable[[Sequence[Any]], int]] = {
    "count": len, "hyperloglog": lambda values: len(set(values)),
}


def aggregates(draw: Draw, names: Names, *, intervals: bool, plain: bool) -> Aggregate:
    """An aggregate or selecting function; `plain`: over a column that FILL(LINEAR) treats as one expects."""
    functions = ["*", *COUNTING, "first", "last", *(() if intervals or plain else ("last_row",))]
    name = draw(st.sampled_from([*NUMERIC, "apercentile", *functions]))
    if name == "apercentile":
        name = draw(st.sampled_from(list(PERCENTILES)))
    if name == "*":
        return Aggregate("count(*)", len, "number", True)
    if plain:
        families: tuple[Family, ...] = ("number",) if name in (*NUMERIC, *PERCENTILES) else ("number", "text")
        # What lies between two DECIMALs is rounded to their scale, what lies between two BIGINTs to what DOUBLE has.
        known = [column for column in names.of(*families)
                 if not any(_is_column(names, column, kind) for kind in (Kind.DECIMAL, Kind.BIGINT, Kind.UBIGINT))]
        if not known:
            return Aggregate("count(*)", len, "number", True)
        over = draw(st.sampled_from(known))
    elif name in (*NUMERIC, *PERCENTILES):
        over = numbers(draw, names)
    else:
        over = draw(st.sampled_from(names.columns)) if draw(st.booleans()) else texts(draw, names)
    unbounded = name in ("min", "max", "spread", "first", "last", "last_row", *COUNTING)
    summed = _column_of(names, over) if name == "sum" and over.whole else None
    if over.family == "number" and summed is None and (not unbounded or (plain and not over.whole)):
        over = _moderate(over)
    function, *constants = name.split()
    counts = name in COUNTING
    return Aggregate(f"{function}({', '.join([over.text, *constants])})", _aggregated(name, over, summed),
                     "number" if counts else over.family,
                     counts or (over.whole and name in ("sum", "min", "max", "first", "last", "last_row")))


def _moderate(over: Expression) -> Expression:
    """What is added and multiplied: numbers whose sum is the same in any order, and fits."""
    def value(row: Row) -> Any:
        found = over.value(row)
        return found if found is not None and -MODERATE <= found <= MODERATE else None

    return Expression(f"case when {over.text} between -{MODERATE} and {MODERATE} then {over.text} end", "number", value,
                      over.whole)


def _aggregated(name: str, over: Expression, summed: Column | None) -> Callable[[Sequence[Row]], Any]:
    def value(rows: Sequence[Row]) -> Any:
        if name == "last_row":
            return over.value(max(rows, key=_last))
        known = [(row, value) for row in rows if (value := over.value(row)) is not None]
        match name:
            case "count" | "hyperloglog":
                return COUNTING[name]([value for _, value in known])
            case _ if not known:
                return None
            case "first":
                return min(known, key=lambda pair: _first(pair[0]))[1]
            case "last":
                return max(known, key=lambda pair: _last(pair[0]))[1]
        found = {**NUMERIC, **PERCENTILES}[name]([value for _, value in known])
        if summed is None:
            return found
        low, high = ends(Kind.BIGINT if summed.type.kind in SIGNED else Kind.UBIGINT)
        return found if low <= found <= high else None

    return value


# -- windows ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A window that has rows. `closed_by` is the watermark from which on it is closed."""

    start: int
    end: int
    rows: Sequence[Row]
    closed_by: int


Windows = Callable[[Sequence[Row]], list[Found]]


@dataclass(frozen=True)
class Window:
    """A window clause; `find` takes the rows of one group in order. `between`: starts of windows between two others."""

    kind: str
    text: str
    find: Windows
    between: Callable[[int, int], Iterator[int]] | None = None


def _unit(number: int, scale: str) -> Duration:
    return Duration(number, {"s": "s", "h": "h", "d": "d"}[scale])  # type: ignore[arg-type]


def intervals(draw: Draw, schema: Schema) -> Window:
    """INTERVAL with or without offset and SLIDING, of fixed length or by the calendar."""
    fixed = schema.scale == "s" or (schema.scale == "h" and draw(st.booleans()))
    if fixed:
        return _fixed(draw, schema)
    choices: dict[str, list[tuple[Duration, Duration | None, Duration | None]]] = {
        "h": [(Duration(1, "d"), None, None), (Duration(1, "d"), Duration(5, "h"), None),
              (Duration(2, "d"), None, Duration(12, "h")), (Duration(1, "d"), Duration(90, "m"), Duration(1, "h"))],
        "d": [(Duration(1, "w"), None, None), (Duration(10, "d"), Duration(3, "d"), None),
              (Duration(1, "w"), Duration(1, "d"), Duration(1, "d")), (Duration(1, "n"), None, None),
              (Duration(2, "n"), Duration(1, "n"), None), (Duration(1, "n"), Duration(3, "d"), None),
              (Duration(1, "n"), None, Duration(7, "d")), (Duration(1, "y"), Duration(1, "n"), None)],
    }
    window = IntervalWindow(*draw(st.sampled_from(choices[schema.scale])))
    precision, zone = schema.precision, schema.zone

    def find(rows: Sequence[Row]) -> list[Found]:
        found: dict[tuple[int, int], list[Row]] = {}
        for row in rows:
            for bounds in window_bounds(row["ts"], window, precision, zone):
                found.setdefault(bounds, []).append(row)
        return [Found(start, end, members, end) for (start, end), members in found.items()]

    return Window("interval", _interval_text(window), find,
                  lambda after, before: starts_between(after, before, grid_of(window, precision, zone)))


def _fixed(draw: Draw, schema: Schema) -> Window:
    tick = TICKS_MS[schema.scale] * schema.units_per_ms
    width = draw(st.integers(2, 12))
    step = draw(st.one_of(st.none(), st.integers(1, width)))
    offset = draw(st.one_of(st.none(), st.integers(1, (step or width) - 1))) if (step or width) > 1 else None
    window = IntervalWindow(_unit(width, schema.scale), offset and _unit(offset, schema.scale),
                            step and _unit(step, schema.scale))
    length, stride, shift = width * tick, (step or width) * tick, (offset or 0) * tick

    def find(rows: Sequence[Row]) -> list[Found]:
        found: dict[int, list[Row]] = {}
        for row in rows:
            start = (row["ts"] - shift) // stride * stride + shift
            while start + length > row["ts"]:
                found.setdefault(start, []).append(row)
                start -= stride
        return [Found(start, start + length, members, start + length) for start, members in found.items()]

    return Window("interval", _interval_text(window), find,
                  lambda after, before: iter(range(after + stride, before, stride)))


def _interval_text(window: IntervalWindow) -> str:
    offset = f", {window.offset}" if window.offset else ""
    return f"interval({window.interval}{offset})" + (f" sliding({window.sliding})" if window.sliding else "")


def sessions(draw: Draw, schema: Schema) -> Window:
    """SESSION with a gap of some ticks."""
    ticks = draw(st.integers(1, 5))
    gap = ticks * TICKS_MS[schema.scale] * schema.units_per_ms

    def find(rows: Sequence[Row]) -> list[Found]:
        parts: list[list[Row]] = []
        for row in rows:
            if parts and row["ts"] - parts[-1][-1]["ts"] <= gap:
                parts[-1].append(row)
            else:
                parts.append([row])
        return [_by_rows(part, gap) for part in parts]

    return Window("session", f"session(ts, {_unit(ticks, schema.scale)})", find)


def _by_rows(rows: Sequence[Row], added: int = 0) -> Found:
    return Found(rows[0]["ts"], rows[-1]["ts"] + added, rows, rows[-1]["ts"] + 1)


def _true_for(draw: Draw, schema: Schema) -> tuple[str, Callable[[list[list[Row]]], list[Found]]]:
    """TRUE_FOR or nothing: its text, and what leaves shorter windows out."""
    ticks = draw(st.sampled_from([0, 0, 1, 3]))
    least = ticks * TICKS_MS[schema.scale] * schema.units_per_ms
    text = f" true_for({_unit(ticks, schema.scale)})" if ticks else ""
    return text, lambda parts: [_by_rows(part) for part in parts if part[-1]["ts"] - part[0]["ts"] >= least]


def states(draw: Draw, names: Names) -> Window:
    """STATE_WINDOW over an integer, a boolean or a string, as a column, a cast or CASE."""
    known = [column for column in names.columns if (column.whole or column.family in ("bool", "text"))
             and not any(quoted(tag.name) == column.text for tag in names.schema.tags)]
    kind = draw(st.sampled_from(["column", "cast", "case"])) if known else "case"
    if kind == "case":
        condition = conditions(draw, names)
        state = Expression(f"case when {condition.text} then 1 else 0 end", "number",
                           lambda row: int(bool(condition.value(row))))
    else:
        state = draw(st.sampled_from(known))
        if kind == "cast" and state.family == "bool":
            state = _over(f"cast({state.text} as int)", "number", int, state)
        elif kind == "cast" and state.family == "number":
            state = _over(f"cast({state.text} as varchar(24))", "text", str, state)
    least_text, found = _true_for(draw, names.schema)

    def find(rows: Sequence[Row]) -> list[Found]:
        parts: list[list[Row]] = []
        known_rows = [row for row in rows if state.value(row) is not None]
        for _, part in itertools.groupby(known_rows, state.value):
            parts.append(list(part))
        return found(parts)

    return Window("state", f"state_window({state.text}){least_text}", find)


def events(draw: Draw, names: Names) -> Window:
    """EVENT_WINDOW between two conditions."""
    start, end = conditions(draw, names), conditions(draw, names)
    least_text, found = _true_for(draw, names.schema)

    def find(rows: Sequence[Row]) -> list[Found]:
        parts: list[list[Row]] = []
        current: list[Row] = []
        for row in rows:
            if current or start.value(row):
                current.append(row)
                if end.value(row):
                    parts.append(current)
                    current = []
        return found(parts)

    return Window("event", f"event_window start with {start.text} end with {end.text}{least_text}", find)


def counts(draw: Draw, names: Names) -> Window:
    """COUNT_WINDOW, sliding or not, over all rows or those with a value in a column."""
    count = draw(st.integers(2, 5))
    sliding = draw(st.one_of(st.none(), st.integers(1, count)))
    column = draw(st.one_of(st.none(), st.sampled_from(names.columns)))

    def find(rows: Sequence[Row]) -> list[Found]:
        line = [row for row in rows if column is None or column.value(row) is not None]
        return [_by_rows(line[n:n + count]) for n in range(0, len(line), sliding or count)]

    text = ", ".join([str(count), *([str(sliding)] if sliding else []), *([column.text] if column else [])])
    return Window("count", f"count_window({text})", find)


# -- streams ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fill:
    """FILL: its mode, and the constants of VALUE."""

    mode: str
    constants: tuple[Any, ...]

    @property
    def text(self) -> str:
        values = "".join(f", {value!r}" for value in self.constants) if self.mode == "value" else ""
        return f" fill({self.mode}{values})"


@dataclass(frozen=True)
class Stream:
    """One CREATE STREAM and its meaning. `window` None: rows without windows, with `columns` as their values.

    `spoilt`: rows that meet it can't be computed, and are left out (ON_ERROR SKIP). `mark_ms`: DELETE_MARK, which
    bounds state and changes no answer.
    """

    schema: Schema
    table: str
    where: Expression | None
    groups: tuple[Expression, ...]
    window: Window | None
    columns: tuple[Aggregate, ...] | tuple[Expression, ...]
    trigger: str
    watermark: int
    fill: Fill | None
    history: bool
    tags: bool
    by_table: bool
    block_rows: int
    memory: int
    spoilt: Expression | None
    mark_ms: int | None

    @property
    def sql(self) -> str:
        options = [f"trigger {self.trigger}", f"watermark {self.watermark // self.schema.units_per_ms}a"]
        if self.spoilt is not None:
            options.append("on_error skip")
        if not self.trigger.startswith("continuous"):
            expired = int(self.window is not None and self.window.kind == "count")
            options.append(f"ignore expired {expired} ignore update 0")
        if self.history:
            options.append("fill_history 1")
        if self.mark_ms is not None:
            options.append(f"delete_mark {self.mark_ms}a")
        named = ", ".join(f"k{n} varchar(80)" for n in range(len(self.groups)))
        into = f"o tags({named})" if self.tags and self.groups else "o"
        failing = "" if self.spoilt is None else f"sound(case when {self.spoilt.text} then 1 else 0 end) = 1"
        return (f"create stream s {' '.join(options)} into {into} as "
                f"{self._select(failing)}{self.fill.text if self.fill else ''}")

    @property
    def query(self) -> str:
        """The SELECT without FILL."""
        return self._select("" if self.spoilt is None else f"case when {self.spoilt.text} then 1 else 0 end = 0")

    def _select(self, condition: str) -> str:
        if self.window is None:
            key = f", {quoted(self.schema.columns[1].name)}" if self.schema.keyed else ""
            items = [f"ts{key}", *(f"{column.text} a{n}" for n, column in enumerate(self.columns)), "tbname k0"]
        else:
            items = ["_wstart", "_wend e", *(f"{column.text} a{n}" for n, column in enumerate(self.columns)),
                     *(f"k{n}" for n in range(len(self.groups)))]
        wanted = [text for text in (condition, f"({self.where.text})" if self.where is not None else "") if text]
        where = f" where {' and '.join(wanted)}" if wanted else ""
        partition = ", ".join(f"{group.text} k{n}" for n, group in enumerate(self.groups))
        return (f"select {', '.join(items)} from {self.table}{where}{f' partition by {partition}' if partition else ''}"
                f"{f' {self.window.text}' if self.window else ''}")

    def answer(self, rows: Sequence[Row], until: Callable[[Row], int] | None = None, *, fill: bool = True) -> Answer:
        """Returns the batch answer over the stored rows; with `until`, of the windows that the watermark has closed.

        `until` gives the watermark that holds for the group of a row. Without `fill`, gaps stay gaps.
        """
        kept = [row for row in rows if self._counts(row)]
        if self.window is None:
            return {self._row_key(row): tuple(column.value(row) for column in self.columns) for row in kept}
        grouped: dict[Key, list[Row]] = {}
        for row in sorted(kept, key=lambda row: (row["ts"], row["_tuid"])):
            grouped.setdefault(tuple(group.value(row) for group in self.groups), []).append(row)
        answer: Answer = {}
        for key, members in grouped.items():
            found = [window for window in self.window.find(members)
                     if (until is None or window.closed_by <= until(members[0])) and self._has_row(window)]
            values = {window.start: (window.end, *(column.value(window.rows) for column in self.columns))
                      for window in found}
            if fill and self.fill is not None:
                values = self._filled(values)
            answer.update({(*key, start): row for start, row in values.items()})
        return answer

    def _has_row(self, window: Found) -> bool:
        """Nothing but first and last of NULLs makes no row."""
        return not all(column.text.startswith(("first(", "last(")) and column.value(window.rows) is None
                       for column in self.columns)

    def _counts(self, row: Row) -> bool:
        return (self.table in ("meters", row["tbname"]) and (self.where is None or bool(self.where.value(row)))
                and (self.spoilt is None or not self.spoilt.value(row)))

    def _row_key(self, row: Row) -> Key:
        return (row["tbname"], row["ts"], row["#key"]) if self.schema.keyed else (row["tbname"], row["ts"])

    def _filled(self, windows: dict[int, tuple[Any, ...]]) -> dict[int, tuple[Any, ...]]:
        fill, window = self.fill, self.window
        assert fill is not None
        assert window is not None
        assert window.between is not None
        if fill.mode in ("prev", "next"):
            found: tuple[Any, ...] = (None,) * len(self.columns)
            whole = {}
            for start in sorted(windows, reverse=fill.mode == "next"):
                end, *values = windows[start]
                found = tuple(old if new is None else new for new, old in zip(values, found, strict=True))
                whole[start] = (end, *found)
            windows = whole
        filled = {}
        for start, (end, *values) in windows.items():
            if fill.mode == "value":
                values = [constant if value is None else value
                          for value, constant in zip(values, fill.constants, strict=True)]
            filled[start] = (end, *values)
        for before, after in itertools.pairwise(sorted(windows)):
            for start in window.between(before, after):
                part = (start - before) / (after - before)
                pairs = zip(windows[before][1:], windows[after][1:], strict=True)
                filled[start] = (None, *(self._between(n, left, right, part) for n, (left, right) in enumerate(pairs)))
        return filled

    def _between(self, place: int, left: Any, right: Any, part: float) -> Any:
        assert self.fill is not None
        match self.fill.mode:
            case "value":
                return self.fill.constants[place]
            case "prev":
                return left
            case "next":
                return right
            case "linear" if left is not None and right is not None and not isinstance(left, str):
                value = left + (right - left) * part
                column = self.columns[place]
                return math.trunc(value + math.copysign(1e-9, value)) if column.whole else value
        return None


def streams(draw: Draw, schema: Schema) -> Stream:
    """Draws one stream over a schema."""
    super_table = draw(st.sampled_from([True, True, True, True, False]))
    names = Names(schema, tags=super_table)
    kinds = ["interval", "interval", "interval", "session", "scalar"]
    kinds += [] if schema.keyed else ["state", "event", "count"]
    kind = draw(st.sampled_from(kinds))
    needs_table = super_table and kind in ("state", "event", "count", "scalar")
    groups = list(_groups(draw, names)) if kind != "scalar" else []
    if needs_table or (super_table and draw(st.sampled_from([True, False, False]))):
        groups.insert(0, Expression("tbname", "text", lambda row: row["tbname"]))
    trigger = _trigger(draw, kind)
    where = conditions(draw, names) if draw(st.sampled_from([True, False, False])) else None
    fill: Fill | None = None
    if kind == "scalar":
        window = None
        columns: Any = tuple(numbers(draw, names) if draw(st.booleans()) else texts(draw, names)
                             for _ in range(draw(st.integers(1, 3))))
    else:
        window = _window(draw, kind, names)
        mode = draw(st.sampled_from(["", "", "", "null", "value", "prev", "next", "linear"]))
        mode = mode if kind == "interval" else ""
        columns = tuple(aggregates(draw, names, intervals=kind == "interval", plain=mode in ("value", "linear"))
                        for _ in range(draw(st.integers(1, 4))))
        if mode:
            fill = Fill(mode, tuple("none" if column.family == "text" else 7 for column in columns))
    # What was left out stays so, whatever tags its table gets.
    spoils = draw(st.sampled_from([True, False, False, False]))
    spoilt = conditions(draw, Names(schema, tags=False)) if spoils else None
    watermark = draw(st.sampled_from([0, 2])) * TICKS_MS[schema.scale] if kind != "count" else FOREVER_MS
    ticks = draw(st.sampled_from([None, 1, 6])) if kind == "interval" else None
    by_table = not super_table or any(group.text == "tbname" for group in groups)
    return Stream(
        schema, "meters" if super_table else "d0", where, tuple(groups), window, columns, trigger,
        watermark * schema.units_per_ms, fill, draw(st.booleans()), draw(st.booleans()), by_table,
        draw(st.sampled_from([1, 4, 4, 100, 100])), draw(st.sampled_from([0, 1_000, 1 << 27])),
        spoilt, ticks and ticks * TICKS_MS[schema.scale])


def _groups(draw: Draw, names: Names) -> Iterator[Expression]:
    known = [column for column in names.columns if column.whole or column.family in ("bool", "text")]
    if known and draw(st.booleans()):
        yield draw(st.sampled_from(known))
    if draw(st.sampled_from([True, False, False, False])):
        condition = conditions(draw, names, 0)
        yield Expression(f"case when {condition.text} then 'a' else 'b' end", "text",
                         lambda row: "a" if condition.value(row) else "b")


def _trigger(draw: Draw, kind: str) -> str:
    if kind == "scalar":
        return "at_once"
    triggers = ["at_once", "at_once", "window_close", "max_delay 5s"]
    return draw(st.sampled_from([*triggers, *(["continuous_window_close recalculate 10m"] * (kind == "interval"))]))


def _window(draw: Draw, kind: str, names: Names) -> Window:
    match kind:
        case "interval":
            return intervals(draw, names.schema)
        case "session":
            return sessions(draw, names.schema)
        case "state":
            return states(draw, names)
        case "event":
            return events(draw, names)
    return counts(draw, names)


# -- histories ----------------------------------------------------------------------------------------------------

Step = tuple[str, Any]
STREAMS = 4


@dataclass(frozen=True)
class History:
    """Streams over one schema, what happens before those with FILL_HISTORY are created, and what happens after."""

    schema: Schema
    streams: tuple[Stream, ...]
    before: tuple[Step, ...]
    after: tuple[Step, ...]


@st.composite
def histories(draw: Draw) -> History:
    """A schema, some streams over it, and random steps."""
    schema = draw(schemas())
    chosen = tuple(streams(draw, schema) for _ in range(STREAMS))
    before = draw(st.lists(_changes(schema), max_size=4))
    after: list[Step] = []
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        for change in draw(st.lists(_changes(schema), min_size=1, max_size=3)):
            after += [change, *draw(st.lists(INTERRUPTIONS, max_size=1))]
        after.append(("look", None))
    return History(schema, chosen, tuple(before), tuple(after))


INTERRUPTIONS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("steps"), st.integers(1, 6)), st.tuples(st.just("checkpoint"), st.booleans()),
    st.tuples(st.just("amid"), st.none()), st.tuples(st.just("kill"), st.none()))


def _changes(schema: Schema) -> st.SearchStrategy[Step]:
    times = _times(schema)
    tables = st.integers(0, len(schema.tag_values) - 1)
    key = [st.sampled_from(_known(schema.columns[1].type))] if schema.keyed else []
    rest = schema.columns[2:] if schema.keyed else schema.columns[1:]
    full = st.tuples(tables, times, *key, *(_values(column.type) for column in rest))
    rows = st.lists(full, min_size=1, max_size=6)
    step = TICKS_MS[schema.scale] * schema.units_per_ms
    kinds = [
        st.tuples(st.just("insert"), rows), st.tuples(st.just("insert"), rows), st.tuples(st.just("each"), rows),
        st.tuples(st.just("delete"), st.tuples(
            st.one_of(st.none(), st.lists(tables, min_size=1, max_size=2)), times,
            st.integers(0, 15).map(lambda n: n * step))),
    ]
    if rest:
        kinds.append(st.tuples(st.just("partial"), rows))
    tagged = st.tuples(tables, st.tuples(*(_values(tag.type) for tag in schema.tags)))
    kinds.append(st.tuples(st.sampled_from(["retag", "renew"]), tagged))
    return st.one_of(kinds)


def _times(schema: Schema) -> st.SearchStrategy[int]:
    tick = TICKS_MS[schema.scale] * schema.units_per_ms
    base = schema.base_ms * schema.units_per_ms
    return st.tuples(st.integers(-2, TICKS), st.sampled_from([0, 0, 1, tick // 3, tick - 1])).map(
        lambda parts: base + parts[0] * tick + parts[1])
