"""Time windows of INTERVAL ... SLIDING: alignment, bounds and membership, as DuckDB SQL and as plain Python.

All times are integers in units of the database's precision since 1970-01-01 UTC. Windows are half open: a window
[start, end) holds its start and not its end. Intervals in b, u, a, s, m and h lie on a grid that is aligned to the
epoch in UTC. Intervals in d, w, n and y lie on a grid of local wall-clock time: days begin at local midnight (and
last 23 or 25 hours where the zone says so), weeks are blocks of seven local days counted from Thursday, 1970-01-01,
blocks of n months or years are counted from January 1900. It does not know rows, groups or aggregates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from penstock.common.errors import InvalidStatementError
from penstock.sql.statements import Duration, IntervalWindow
from penstock.sql.types import UNITS_PER_SECOND, Precision

DAY_SECONDS = 86_400
MAX_YEARS = 1_000
MAX_SLIDES = 100
# No zone has ever turned its clock back by more than this; a wall-clock time that occurs twice does so within it.
_FOLD_SECONDS = 3 * 3_600
# Parameters of lambdas hide columns of the same name: these are names that no user's column has.
_CELL, _START, _LOCAL = '"#cell"', '"#start"', '"#local"'
_UTC_NAMES = ("UTC", "Etc/UTC", "GMT", "Etc/GMT", "Zulu", "Etc/Zulu", "Universal", "Etc/Universal", "UCT", "Etc/UCT")


@dataclass(frozen=True, slots=True)
class Grid:
    """Where windows start and how long they are.

    Starts are `offset` + k * `step`, for all integers k. `step`, `width` and `offset` each are a number of units and
    a number of months, one of which is zero. `zone` None: times are UTC; else the grid is one of local times there.
    """

    step: int
    step_months: int
    width: int
    width_months: int
    offset: int
    offset_months: int
    precision: Precision
    zone: str | None

    @property
    def tumbling(self) -> bool:
        """Whether each instant is in one window."""
        return (self.step, self.step_months) == (self.width, self.width_months)

    @property
    def day(self) -> int:
        """Units per day."""
        return DAY_SECONDS * UNITS_PER_SECOND[self.precision]

    @property
    def whole_days(self) -> bool:
        """Whether all starts have the same time of day."""
        return self.step_months > 0 or self.step % self.day == 0

    @property
    def longest(self) -> int:
        """Units that no window exceeds."""
        return self.width + 31 * self.width_months * self.day


def months_of(duration: Duration) -> int:
    """Returns the length of a duration in n or y in months, 0 for other units."""
    return duration.value * {"n": 1, "y": 12}.get(duration.unit, 0)


def check_interval(window: IntervalWindow, precision: Precision) -> None:
    """Checks the numbers of INTERVAL, its offset and SLIDING; raises InvalidStatementError with TDengine's codes."""
    interval = window.interval
    months = months_of(interval)
    day = DAY_SECONDS * UNITS_PER_SECOND[precision]
    units = 0 if months else interval.in_units(precision)
    if interval.value <= 0 or (not months and units <= 0):
        raise InvalidStatementError(
            f"INTERVAL({interval}) is too short", code=0x2615,
            hint=f"the shortest interval is one unit of the database's precision, {precision}")
    if months > MAX_YEARS * 12 or units > MAX_YEARS * 366 * day:
        raise InvalidStatementError(f"INTERVAL({interval}) is too long", code=0x2615,
                                    hint=f"the longest interval is {MAX_YEARS} years")
    shortest = units or 28 * months * day
    longest = units or 31 * months * day
    if isinstance(window.offset, Duration):
        _check_offset(interval, window.offset, shortest, precision)
    if window.sliding is not None:
        _check_sliding(interval, window.sliding, shortest, longest, precision)


def _check_offset(interval: Duration, offset: Duration, shortest: int, precision: Precision) -> None:
    if offset.value <= 0:
        raise InvalidStatementError(f"the offset {offset} of INTERVAL({interval}) must be positive", code=0x262D)
    if offset.is_calendar and not interval.is_calendar:
        raise InvalidStatementError(f"the offset {offset} needs an interval in months or years, not {interval}",
                                    code=0x262E)
    if offset.unit == "y" and interval.unit == "n":
        raise InvalidStatementError(f"an interval in months cannot have an offset in years: {interval}, {offset}",
                                    code=0x262E)
    too_big = (months_of(offset) >= months_of(interval) if offset.is_calendar
               else offset.in_units(precision) >= shortest)
    if too_big:
        raise InvalidStatementError(f"the offset {offset} must be shorter than the interval {interval}", code=0x262F)


def _check_sliding(
    interval: Duration, sliding: Duration, shortest: int, longest: int, precision: Precision
) -> None:
    if sliding.is_calendar:
        raise InvalidStatementError(f"SLIDING({sliding}) cannot be in months or years", code=0x2630,
                                    hint="use b, u, a, s, m, h, d or w")
    step = sliding.in_units(precision)
    if step > shortest:
        raise InvalidStatementError(f"SLIDING({sliding}) is longer than INTERVAL({interval})", code=0x2631)
    if step < UNITS_PER_SECOND[precision] // 1_000 or step <= 0:
        raise InvalidStatementError(f"SLIDING({sliding}) is shorter than one millisecond", code=0x2632)
    if longest // step > MAX_SLIDES:
        raise InvalidStatementError(
            f"SLIDING({sliding}) is too short for INTERVAL({interval})", code=0x2632,
            hint=f"an instant can be in at most {MAX_SLIDES} windows")


def grid_of(window: IntervalWindow, precision: Precision, time_zone: str) -> Grid:
    """Returns the grid of a checked window. `window.offset` must not be "auto" any more."""
    interval, offset, sliding = window.interval, window.offset, window.sliding
    if offset == "auto":
        raise ValueError("the automatic offset must be resolved before the grid is known")
    width_months = months_of(interval)
    width = 0 if width_months else interval.in_units(precision)
    step_months, step = (width_months, width) if sliding is None else (0, sliding.in_units(precision))
    offset_months = months_of(offset) if offset else 0
    offset_units = offset.in_units(precision) if offset and not offset_months else 0
    if not step_months and not offset_months:
        offset_units %= step
    return Grid(step, step_months, width, width_months, offset_units, offset_months, precision,
                time_zone if is_local(window, time_zone) else None)


def pane_of(window: IntervalWindow, precision: Precision) -> IntervalWindow:
    """Returns the tumbling window whose cells are the panes of `window`.

    Each window is a whole number of panes if the interval is fixed; otherwise panes are as long as the slide, and a
    window's last pane may stick out of it.
    """
    if window.sliding is None:
        return window
    step = window.sliding.in_units(precision)
    if not window.interval.is_calendar:
        step = math.gcd(window.interval.in_units(precision), step)
    day = DAY_SECONDS * UNITS_PER_SECOND[precision]
    pane = Duration(step // day, "d") if window.interval.unit in ("d", "w") and step % day == 0 else Duration(step, "")
    return IntervalWindow(pane, window.offset)


def auto_offset(window: IntervalWindow, first_ts: int | None, precision: Precision, time_zone: str) -> IntervalWindow:
    """Returns `window` with its AUTO offset replaced, such that a window starts at `first_ts` (None: no offset)."""
    plain = IntervalWindow(window.interval, None, window.sliding)
    if first_ts is None:
        return plain
    tumbling = IntervalWindow(window.interval)
    start = window_bounds(first_ts, tumbling, precision, time_zone)[0][0]
    shift = first_ts - start
    return IntervalWindow(window.interval, Duration(shift, ""), window.sliding) if shift else plain


# --- SQL ------------------------------------------------------------------------------------------------------


def interval_start_sql(ts_sql: str, window: IntervalWindow, precision: Precision, time_zone: str) -> str:
    """Returns SQL for the newest window start that is not after the BIGINT `ts_sql`.

    Without SLIDING that is the start of the one window that holds the instant; with SLIDING it is the start of the
    last of them.
    """
    grid = grid_of(window, precision, time_zone)
    if grid.zone is None:
        return _cell_start(ts_sql, grid)
    local = _local(ts_sql, grid)
    # Around a change of the clock, the wall-clock time alone doesn't tell the cell: compare instants.
    slack = 0 if grid.whole_days else _FOLD_SECONDS * UNITS_PER_SECOND[precision]
    first = f"{_cell_number(f'({local} - {slack})', grid)} - 1"
    last = f"{_cell_number(f'({local} + {slack})', grid)} + 2"
    starts = _starts(first, last, grid)
    return f"list_max(list_filter({starts}, lambda {_START}: {_START} <= {ts_sql}))"


def interval_end_sql(start_sql: str, window: IntervalWindow, precision: Precision, time_zone: str) -> str:
    """Returns SQL for the exclusive end of the window that starts at the BIGINT `start_sql`."""
    grid = grid_of(window, precision, time_zone)
    return _end(start_sql, grid)


def expand_windows_sql(ts_sql: str, window: IntervalWindow, precision: Precision, time_zone: str) -> str:
    """Returns SQL for the starts of all windows that hold the instant, oldest first, as a BIGINT[] to be unnested."""
    grid = grid_of(window, precision, time_zone)
    if grid.tumbling:
        return f"[{interval_start_sql(ts_sql, window, precision, time_zone)}]"
    if grid.zone is None and not grid.width_months:
        last = _cell_start(ts_sql, grid)
        count = -(-grid.width // grid.step)
        first = f"({last} - {(count - 1) * grid.step})"
        if grid.width % grid.step:
            first = f"CASE WHEN {first} + {grid.width} > {ts_sql} THEN {first} ELSE {first} + {grid.step} END"
        return f"generate_series({first}, {last}, {grid.step})"
    slack = 0 if grid.zone is None else _FOLD_SECONDS * UNITS_PER_SECOND[precision]
    local = _local(ts_sql, grid)
    first = f"{_cell_number(f'({local} - {grid.longest + slack})', grid)} - 1"
    last = f"{_cell_number(f'({local} + {slack})', grid)} + 2"
    starts = _starts(first, last, grid)
    inside = f"list_filter({starts}, lambda {_START}: {_START} <= {ts_sql} AND {_end(_START, grid)} > {ts_sql})"
    return f"list_sort(list_distinct({inside}))"


def is_local(window: IntervalWindow, time_zone: str) -> bool:
    """Tells whether windows lie on a grid of local times, so that changes of the clock matter."""
    return window.interval.unit in ("d", "w", "n", "y") and time_zone not in _UTC_NAMES


def window_table_sql(rows: str, ts_sql: str, window: IntervalWindow, precision: Precision, time_zone: str) -> str:
    """Returns a SELECT of the starts `s` and ends `e` of all windows between the least and the greatest `ts_sql`.

    For many rows in few windows, joining with it is far cheaper than asking for each row's windows where the grid is
    one of local time.
    """
    grid = grid_of(window, precision, time_zone)
    slack = grid.longest + (0 if grid.zone is None else _FOLD_SECONDS * UNITS_PER_SECOND[precision])
    low, high = _local("lo", grid), _local("hi", grid)
    first = f"{_cell_number(f'({low} - {slack})', grid)} - 1"
    last = f"{_cell_number(f'({high} + {slack})', grid)} + 2"
    starts = f"list_distinct({_starts(first, last, grid)})"
    ends = f"(SELECT min({ts_sql}) AS lo, max({ts_sql}) AS hi FROM {rows})"
    return f"SELECT s, {_end('s', grid)} AS e FROM (SELECT unnest({starts}) AS s FROM {ends})"


def starts_between_sql(first: int, last: int, window: IntervalWindow, precision: Precision, time_zone: str) -> str:
    """Returns SQL for the window starts in [first, last], oldest first, as a BIGINT[]."""
    grid = grid_of(window, precision, time_zone)
    if grid.zone is None and not grid.step_months:
        lowest = grid.offset - (grid.offset - first) // grid.step * grid.step
        return f"generate_series({lowest}::BIGINT, {last}::BIGINT, {grid.step})"
    slack = 0 if grid.zone is None else _FOLD_SECONDS * UNITS_PER_SECOND[precision]
    low = _number(_to_local(first, grid) - slack, grid) - 1
    high = _number(_to_local(last, grid) + slack, grid) + 2
    starts = _starts(str(low), str(high), grid)
    inside = f"list_filter({starts}, lambda {_START}: {_START} BETWEEN {first} AND {last})"
    return f"list_sort(list_distinct({inside}))"


def count_between(first: int, last: int, window: IntervalWindow, precision: Precision, time_zone: str) -> int:
    """Returns about how many windows start in [first, last]; exact but for changes of the clock."""
    grid = grid_of(window, precision, time_zone)
    return max(0, _number(_to_local(last, grid), grid) - _number(_to_local(first, grid), grid) + 1)


def _floor_to(value: str, step: int) -> str:
    return f"({value} - (({value} % {step}) + {step}) % {step})"


def _floor_div(value: str, step: int) -> str:
    return f"({_floor_to(value, step)} // {step})" if step != 1 else value


def _minus(value: str, amount: int) -> str:
    return f"({value} - {amount})" if amount else value


def _plus(value: str, amount: int) -> str:
    return f"({value} + {amount})" if amount else value


def _cell_start(ts: str, grid: Grid) -> str:
    """SQL for the start of the cell of a UTC grid that holds `ts`."""
    if grid.step_months:
        return _cell_local(_cell_number(ts, grid), grid)
    return _plus(_floor_to(_minus(ts, grid.offset), grid.step), grid.offset)


def _cell_number(local: str, grid: Grid) -> str:
    """SQL for the number of the cell that holds the local time."""
    shifted = _minus(local, grid.offset)
    if grid.step_months:
        months = f"date_diff('month', TIMESTAMP '1900-01-01', make_timestamp({_micros(shifted, grid)}))"
        return _floor_div(_minus(months, grid.offset_months), grid.step_months)
    return _floor_div(shifted, grid.step)


def _cell_local(number: str, grid: Grid) -> str:
    """SQL for the local time at which the cell `number` starts."""
    if grid.step_months:
        months = _plus(f"{number} * {grid.step_months}", grid.offset_months)
        return _plus(_month_start(months, grid), grid.offset)
    return _plus(f"({number} * {grid.step})", grid.offset)


def _starts(first: str, last: str, grid: Grid) -> str:
    """SQL of the list of the starts of the cells `first`, ..., `last` - 1."""
    return f"list_transform(range({first}, {last}), lambda {_CELL}: {_utc(_cell_local(_CELL, grid), grid)})"


def _month_start(months: str, grid: Grid) -> str:
    """SQL for the first instant of a month, given as a count since January 1900."""
    micros = f"epoch_us(TIMESTAMP '1900-01-01' + to_months(({months})::INTEGER))"
    return _from_micros(micros, grid)


def _end(start: str, grid: Grid) -> str:
    if grid.zone is None and not grid.width_months:
        return f"({start} + {grid.width})"
    local = _local(start, grid)
    if grid.tumbling:
        return _utc(_cell_local(f"({_cell_number(local, grid)} + 1)", grid), grid)
    if grid.whole_days:
        # A start that the clock skipped reads as the first local time after the gap: go back to the grid.
        local = _cell_local(_cell_number(local, grid), grid)
    if not grid.width_months:
        return _utc(f"({local} + {grid.width})", grid)
    micros = f"epoch_us(make_timestamp({_micros(local, grid)}) + to_months({grid.width_months}))"
    moved = _from_micros(micros, grid)
    if grid.precision == "ns":
        moved = f"({moved} + (({local} % 1000) + 1000) % 1000)"
    return _utc(moved, grid)


def _micros(value: str, grid: Grid) -> str:
    match grid.precision:
        case "ms":
            return f"({value} * 1000)"
        case "us":
            return value
        case "ns":
            return _floor_div(value, 1000)


def _from_micros(micros: str, grid: Grid) -> str:
    match grid.precision:
        case "ms":
            return _floor_div(f"({micros})", 1000)
        case "us":
            return f"({micros})"
        case "ns":
            return f"({micros} * 1000)"


def _zone_shift(utc: str, grid: Grid) -> str:
    """SQL for local time minus UTC at an instant, in units."""
    micros = _micros(utc, grid)
    shift = f"(epoch_us(timezone('{grid.zone}', make_timestamptz({micros}))) - {micros})"
    return {"ms": f"({shift} // 1000)", "us": shift, "ns": f"({shift} * 1000)"}[grid.precision]


def _local(utc: str, grid: Grid) -> str:
    return utc if grid.zone is None else f"({utc} + {_zone_shift(utc, grid)})"


def _utc(local: str, grid: Grid) -> str:
    """SQL for the instant of a local time: the first if it occurs twice, shifted past the gap if it never does."""
    if grid.zone is None:
        return local
    fold = _FOLD_SECONDS * 1_000_000
    micros = _micros(_LOCAL, grid)
    early = f"epoch_us(timezone('{grid.zone}', make_timestamp({micros} - {fold}))) + {fold}"
    plain = f"epoch_us(timezone('{grid.zone}', make_timestamp({micros})))"
    same = f"epoch_us(timezone('{grid.zone}', make_timestamptz({early}))) = {micros}"
    utc_micros = f"CASE WHEN {same} THEN {early} ELSE {plain} END"
    shift = f"(({utc_micros}) - {micros})"
    units = {"ms": f"({shift} // 1000)", "us": shift, "ns": f"({shift} * 1000)"}[grid.precision]
    # The list binds the local time to a name, so that its text isn't repeated six times.
    return f"list_transform([{local}], lambda {_LOCAL}: {_LOCAL} + {units})[1]"


# --- plain Python ---------------------------------------------------------------------------------------------


def window_bounds(ts: int, window: IntervalWindow, precision: Precision, time_zone: str) -> list[tuple[int, int]]:
    """Returns [start, end) of every window that holds the instant `ts`, oldest first; without SLIDING exactly one."""
    grid = grid_of(window, precision, time_zone)
    slack = 0 if grid.zone is None else _FOLD_SECONDS * UNITS_PER_SECOND[precision]
    local = _to_local(ts, grid)
    first = _number(local - grid.longest - slack, grid) - 1
    last = _number(local + slack, grid) + 1
    starts = sorted({_to_utc(_start_local(number, grid), grid) for number in range(first, last + 1)})
    bounds = [(start, end_of(start, grid)) for start in starts]
    return [(start, end) for start, end in bounds if start <= ts < end]


def end_of(start: int, grid: Grid) -> int:
    """Returns the exclusive end of the window of `grid` that starts at `start`."""
    local = _to_local(start, grid)
    if grid.tumbling:
        return _to_utc(_start_local(_number(local, grid) + 1, grid), grid)
    if grid.whole_days:
        local = _start_local(_number(local, grid), grid)
    if grid.width_months:
        return _to_utc(_add_months(local, grid.width_months, grid), grid)
    return _to_utc(local + grid.width, grid)


def starts_between(after: int, before: int, grid: Grid) -> Iterator[int]:
    """Yields the starts of the windows that start after `after` and before `before`, oldest first."""
    if grid.zone is None and not grid.step_months:
        yield from range(after + grid.step - (after - grid.offset) % grid.step, before, grid.step)
        return
    slack = 0 if grid.zone is None else _FOLD_SECONDS * UNITS_PER_SECOND[grid.precision]
    last = after
    for number in itertools.count(_number(_to_local(after, grid) - slack, grid)):
        start = _to_utc(_start_local(number, grid), grid)
        if start >= before:
            return
        if start > last:
            yield start
            last = start


def _number(local: int, grid: Grid) -> int:
    shifted = local - grid.offset
    if not grid.step_months:
        return shifted // grid.step
    moment = _calendar(shifted // UNITS_PER_SECOND[grid.precision])
    months = (moment.year - 1900) * 12 + moment.month - 1 - grid.offset_months
    return months // grid.step_months


def _start_local(number: int, grid: Grid) -> int:
    if not grid.step_months:
        return number * grid.step + grid.offset
    years, month = divmod(number * grid.step_months + grid.offset_months, 12)
    moment = datetime(1900 + years, month + 1, 1, tzinfo=UTC)
    return round(moment.timestamp()) * UNITS_PER_SECOND[grid.precision] + grid.offset


def _add_months(local: int, months: int, grid: Grid) -> int:
    seconds, rest = divmod(local, UNITS_PER_SECOND[grid.precision])
    moment = _calendar(seconds)
    years, month = divmod((moment.year - 1900) * 12 + moment.month - 1 + months, 12)
    first = datetime(1900 + years, month + 1, 1, tzinfo=UTC)
    length = (datetime(1900 + years + month // 11, (month + 1) % 12 + 1, 1, tzinfo=UTC) - first).days
    day = min(moment.day, length)
    moved = first + timedelta(days=day - 1, seconds=seconds % DAY_SECONDS)
    return round(moved.timestamp()) * UNITS_PER_SECOND[grid.precision] + rest


def _calendar(seconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def _to_local(utc: int, grid: Grid) -> int:
    if grid.zone is None:
        return utc
    unit = UNITS_PER_SECOND[grid.precision]
    shift = _calendar(utc // unit).astimezone(_zone(grid.zone)).utcoffset()
    assert shift is not None
    return utc + round(shift.total_seconds()) * unit


def _to_utc(local: int, grid: Grid) -> int:
    if grid.zone is None:
        return local
    unit = UNITS_PER_SECOND[grid.precision]
    # fold=0 is the first of two occurrences, and in a gap the offset that was valid before it.
    shift = _calendar(local // unit).replace(tzinfo=_zone(grid.zone), fold=0).utcoffset()
    assert shift is not None
    return local - round(shift.total_seconds()) * unit
