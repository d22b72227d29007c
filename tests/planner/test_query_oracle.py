"""Random rows through window, fill, interpolation and series queries, against plain Python that does the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import duckdb
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.basics.query_harness import Harness

from penstock.planner.duckdb_sql.interval_windows import window_bounds
from penstock.sql.tree.statements import Duration, IntervalWindow
from penstock.sql.types import BOOL, INT, UNITS_PER_SECOND, VARCHAR, Precision

CONNECTION = duckdb.connect(config={"threads": 1})
# 2024-03-30 22:00 UTC: the clocks in Berlin change three hours later.
START = 1_711_836_000


@dataclass(frozen=True)
class Row:
    """One row of the oracle: the same as in the table."""

    ts: int
    table: str
    v: int | None
    s: str | None
    f: bool | None


def spread(rows: Sequence[Row]) -> tuple[int, int | None, int | None, int | None, int | None]:
    """count(*), sum(v), min(v), first(v), last(v) of rows in time order."""
    values = [row.v for row in rows if row.v is not None]
    if not values:
        return len(rows), None, None, None, None
    return len(rows), sum(values), min(values), values[0], last_value(rows)


def last_value(rows: Sequence[Row]) -> int | None:
    """The newest value; among rows of equal time the one of the first table."""
    present = [row for row in rows if row.v is not None]
    newest = max(row.ts for row in present)
    return next(row.v for row in present if row.ts == newest)


AGGREGATES = "count(*), sum(v), min(v), first(v), last(v)"


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Rows of two child tables within some hours; times meet often."""
    step = draw(st.sampled_from([1, 60, 1800]))
    rows = []
    for table in ("a", "b"):
        for at in sorted(draw(st.sets(st.integers(0, 24), max_size=10))):
            rows.append(Row(START + at * step, table, draw(st.one_of(st.none(), st.integers(-5, 5))),
                            draw(st.sampled_from([None, "x", "y"])), draw(st.sampled_from([None, True, False]))))
    return sorted(rows, key=lambda row: (row.ts, row.table))


def harness(rows: Iterable[Row], precision: Precision, zone: str) -> Harness:
    loaded = Harness(precision=precision, time_zone=zone, connection=CONNECTION)
    loaded.create("t", {"v": INT, "s": VARCHAR, "f": BOOL}, {"n": INT})
    for number, name in enumerate(("a", "b")):
        loaded.child(name, "t", number)
    unit = UNITS_PER_SECOND[precision]
    for row in rows:
        loaded.insert(row.table, [(row.ts * unit, row.v, row.s, row.f)])
    return loaded


def in_units(rows: Iterable[Row], precision: Precision) -> list[Row]:
    unit = UNITS_PER_SECOND[precision]
    return [Row(row.ts * unit, row.table, row.v, row.s, row.f) for row in rows]


Windows = Callable[[Sequence[Row]], list[tuple[int, int, list[Row]]]]


def check_windows(rows: list[Row], precision: Precision, zone: str, clause: str, windows: Windows) -> None:
    """Compares the windows of a clause, merged and per table, with those that `windows` finds."""
    loaded = harness(rows, precision, zone)
    rows = in_units(rows, precision)
    expected = [(start, end, *spread(part)) for start, end, part in windows(rows)]
    assert sorted(map(repr, loaded.query(f"select _wstart, _wend, {AGGREGATES} from t {clause}"))) == sorted(
        map(repr, expected))
    expected = []
    for name in ("a", "b"):
        expected += [(name, start, end, *spread(part))
                     for start, end, part in windows([row for row in rows if row.table == name])]
    got = loaded.query(f"select tbname, _wstart, _wend, {AGGREGATES} from t partition by tbname {clause}")
    assert sorted(map(repr, got)) == sorted(map(repr, expected))


COMMON = settings(max_examples=times(5, 120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
PRECISIONS = st.sampled_from(["ms", "us", "ns"])
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata"])


@COMMON
@given(tables(), PRECISIONS, ZONES, st.sampled_from([
    IntervalWindow(Duration(90, "s")), IntervalWindow(Duration(1, "h"), Duration(20, "m"), Duration(25, "m")),
    IntervalWindow(Duration(1, "d")), IntervalWindow(Duration(1, "d"), None, Duration(6, "h")),
    IntervalWindow(Duration(1, "n")), IntervalWindow(Duration(1, "y"), Duration(1, "n"))]))
def test_interval_windows(rows: list[Row], precision: Precision, zone: str, window: IntervalWindow) -> None:
    """Each row is in every window that holds its time, also on the day when the clock changes."""
    def windows(part: Sequence[Row]) -> list[tuple[int, int, list[Row]]]:
        found: dict[tuple[int, int], list[Row]] = {}
        for row in part:
            for bounds in window_bounds(row.ts, window, precision, zone):
                found.setdefault(bounds, []).append(row)
        return [(start, end, members) for (start, end), members in found.items()]

    offset = f", {window.offset}" if window.offset else ""
    sliding = f" sliding({window.sliding})" if window.sliding else ""
    check_windows(rows, precision, zone, f"interval({window.interval}{offset}){sliding}", windows)


def closed(parts: Iterable[list[Row]]) -> list[tuple[int, int, list[Row]]]:
    return [(part[0].ts, part[-1].ts, part) for part in parts if part]


@COMMON
@given(tables(), PRECISIONS, st.sampled_from([1, 60, 3600]))
def test_session_windows(rows: list[Row], precision: Precision, gap: int) -> None:
    """A gap of more than so many seconds ends a session."""
    def windows(part: Sequence[Row]) -> list[tuple[int, int, list[Row]]]:
        parts: list[list[Row]] = []
        for row in part:
            if parts and row.ts - parts[-1][-1].ts <= gap * UNITS_PER_SECOND[precision]:
                parts[-1].append(row)
            else:
                parts.append([row])
        return closed(parts)

    check_windows(rows, precision, "UTC", f"session(ts, {gap}s)", windows)


@COMMON
@given(tables())
def test_state_windows(rows: list[Row]) -> None:
    """Rows of equal state in a row are a window; rows without state are in none and end none."""
    def windows(part: Sequence[Row]) -> list[tuple[int, int, list[Row]]]:
        parts: list[list[Row]] = []
        for row in part:
            if row.s is None:
                continue
            if parts and parts[-1][-1].s == row.s:
                parts[-1].append(row)
            else:
                parts.append([row])
        return closed(parts)

    check_windows(rows, "ms", "UTC", "state_window(s)", windows)


@COMMON
@given(tables())
def test_event_windows(rows: list[Row]) -> None:
    """A window opens with its start condition and closes with its end condition; open ones don't count."""
    def windows(part: Sequence[Row]) -> list[tuple[int, int, list[Row]]]:
        parts: list[list[Row]] = []
        current: list[Row] | None = None
        for row in part:
            if current is None and row.v is not None and row.v > 0:
                current = []
            if current is not None:
                current.append(row)
                if row.f:
                    parts.append(current)
                    current = None
        return closed(parts)

    check_windows(rows, "ms", "UTC", "event_window start with v > 0 end with f = true", windows)


@COMMON
@given(tables(), st.integers(2, 5), st.data())
def test_count_windows(rows: list[Row], count: int, data: st.DataObject) -> None:
    """Every slide opens a window of so many rows, however few are left."""
    sliding = data.draw(st.integers(1, count))

    def windows(part: Sequence[Row]) -> list[tuple[int, int, list[Row]]]:
        return closed([list(part[at:at + count]) for at in range(0, len(part), sliding)])

    check_windows(rows, "ms", "UTC", f"count_window({count}, {sliding})", windows)


@COMMON
@given(tables(), st.sampled_from(["null", "value", "prev", "next", "linear", "null_f", "value_f"]))
def test_fill(rows: list[Row], mode: str) -> None:
    """Windows without rows get the values of their mode, for each group that has rows."""
    loaded = harness(rows, "ms", "UTC")
    width = 600_000
    first, last = START * 1000, (START + 25 * 1800) * 1000
    values = ", 7, 8" if mode.startswith("value") else ""
    got = loaded.query(
        f"select tbname, _wstart, sum(v), count(*) from t where ts >= {first} and ts <= {last} "
        f"partition by tbname interval(10m) fill({mode}{values}) order by tbname, _wstart")
    expected: list[tuple[object, ...]] = []
    for name in ("a", "b"):
        part = [row for row in in_units(rows, "ms") if row.table == name]
        if not part:
            continue
        found: dict[int, list[Row]] = {}
        for row in part:
            found.setdefault(row.ts // width * width, []).append(row)
        starts = range(first // width * width, last + 1, width)
        known = {start: (spread(found[start])[1], len(found[start])) if start in found else None for start in starts}
        for start in starts:
            expected.append((name, start, *(fill_value(known, start, index, mode) for index in (0, 1))))
    assert got == expected


def fill_value(known: dict[int, tuple[int | None, int] | None], start: int, index: int, mode: str) -> int | None:
    """The value of column `index` in the window at `start`."""
    here = known[start]
    if here is not None and (here[index] is not None or mode in ("null", "null_f", "linear")):
        return here[index]
    before = [values[index] for at, values in known.items() if at < start and values and values[index] is not None]
    after = [values[index] for at, values in known.items() if at > start and values and values[index] is not None]
    match mode:
        case "value" | "value_f":
            return (7, 8)[index]
        case "prev":
            return before[-1] if before else None
        case "next":
            return after[0] if after else None
        case "linear":
            left = max((at for at, values in known.items() if at < start and values), default=None)
            right = min((at for at, values in known.items() if at > start and values), default=None)
            if left is None or right is None:
                return None
            low, high = known[left], known[right]
            assert low is not None
            assert high is not None
            a, b = low[index], high[index]
            return None if a is None or b is None else int(a + (b - a) * (start - left) / (right - left))
    return None


@COMMON
@given(tables(), st.sampled_from(["null", "value", "prev", "next", "linear", "near"]), st.booleans())
def test_interp(rows: list[Row], mode: str, ignore_null: bool) -> None:
    """Instants of the grid have the value of the row there, or what their mode takes from the rows around."""
    loaded = harness(rows, "ms", "UTC")
    first, last, step = START * 1000, (START + 25 * 60) * 1000, 90_000
    values = ", 7" if mode == "value" else ""
    got = loaded.query(f"select tbname, _irowts, interp(v, {int(ignore_null)}) from t partition by tbname "
                       f"range({first}, {last}) every(90s) fill({mode}{values}) order by tbname, _irowts")
    expected = []
    for name in ("a", "b"):
        part = [row for row in in_units(rows, "ms") if row.table == name]
        points = [(row.ts, row.v) for row in part if row.v is not None or not ignore_null]
        for at in range(first, last + 1, step) if part else ():
            result = instant(points, at, mode)
            if result is not None:
                expected.append((name, at, result[0]))
    assert got == expected


def instant(points: Sequence[tuple[int, int | None]], at: int, mode: str) -> tuple[int | None] | None:
    """The value at an instant in a tuple, or None if there is no row for it."""
    before = [point for point in points if point[0] <= at]
    after = [point for point in points if point[0] > at]
    if before and before[-1][0] == at:
        return (before[-1][1],)
    match mode:
        case "null":
            return (None,)
        case "value":
            return (7,)
        case "prev":
            return (before[-1][1],) if before else None
        case "next":
            return (after[0][1],) if after else None
        case "near":
            nearest = min((*before[-1:], *after[:1]), key=lambda point: abs(point[0] - at), default=None)
            return (nearest[1],) if nearest else None
    if not before or not after:
        return None
    (left, a), (right, b) = before[-1], after[0]
    return (None,) if a is None or b is None else (int(a + (b - a) * (at - left) / (right - left)),)


@COMMON
@given(tables())
def test_series(rows: list[Row]) -> None:
    """DIFF, CSUM, MAVG and STATECOUNT run along the time line of each table."""
    loaded = harness(rows, "ms", "UTC")
    diffs, sums, means, counts = [], [], [], []
    for name in ("a", "b"):
        part = [row for row in rows if row.table == name]
        previous: int | None = None
        for number, row in enumerate(part):
            if number:
                diffs.append((name, None if row.v is None or previous is None else row.v - previous))
            previous = row.v if row.v is not None else previous
        values = [row.v for row in part if row.v is not None]
        sums += [(name, sum(values[:n + 1])) for n in range(len(values))]
        means += [(name, (a + b) / 2) for a, b in pairwise(values)]
        run = 0
        for row in part:
            run = run if row.v is None else run + 1 if row.v > 0 else 0
            counts.append((name, None if row.v is None else run if row.v > 0 else -1))
    for call, expected in (("diff(v)", diffs), ("csum(v)", sums), ("mavg(v, 2)", means),
                           ("statecount(v, 'gt', 0)", counts)):
        assert loaded.query(f"select tbname, {call} from t partition by tbname order by tbname, ts") == expected


@COMMON
@given(tables(), st.integers(1, 4))
def test_picked_rows(rows: list[Row], count: int) -> None:
    """TOP, BOTTOM, TAIL and UNIQUE pick the rows that sorting finds; the oldest of equals."""
    loaded = harness(rows, "ms", "UTC")
    part = [row for row in in_units(rows, "ms") if row.table == "a"]
    present = [row for row in part if row.v is not None]
    unique: dict[int | None, Row] = {}
    for row in part:
        unique.setdefault(row.v, row)
    picked = {
        f"top(v, {count})": sorted(present, key=lambda row: (-(row.v or 0), row.ts))[:count],
        f"bottom(v, {count})": sorted(present, key=lambda row: (row.v or 0, row.ts))[:count],
        f"tail(v, {count})": part[-count:],
        "unique(v)": list(unique.values()),
    }
    for call, chosen in picked.items():
        expected = sorted((row.ts, row.v) for row in chosen)
        assert loaded.query(f"select ts, {call} from a order by ts") == expected


@COMMON
@given(tables())
def test_time_weighted_average_of_windows(rows: list[Row]) -> None:
    """TWA interpolates at the borders of windows and divides the area by the time that rows cover."""
    loaded = harness(rows, "ms", "UTC")
    part = [(row.ts, row.v) for row in in_units(rows, "ms") if row.table == "a" and row.v is not None]
    width = 600_000

    def value(at: int) -> float:
        for (left, a), (right, b) in pairwise(part):
            if left <= at <= right:
                return a + (b - a) * (at - left) / (right - left)
        return float(next(v for ts, v in part if ts == at))

    expected = {}
    for start in sorted({ts // width * width for ts, _ in part}):
        inside = [(ts, float(v)) for ts, v in part if start <= ts < start + width]
        points = list(inside)
        if part[0][0] < start:
            points.insert(0, (start, value(start)))
        if part[-1][0] >= start + width:
            points.append((start + width - 1, value(start + width - 1)))
        points = sorted(dict(points).items())
        area = sum((a + b) / 2 * (right - left) for (left, a), (right, b) in pairwise(points))
        length = points[-1][0] - points[0][0]
        expected[start] = area / length if length else points[0][1]
    got = dict(loaded.query("select _wstart, twa(v) from a where v is not null interval(10m)"))
    assert got.keys() == expected.keys()
    for start, average in expected.items():
        assert abs(float(str(got[start])) - average) < 1e-9
