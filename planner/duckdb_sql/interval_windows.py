"""Time windows of INTERVAL ... SLIDING: alignment, bounds and membership, as trees of DuckDB SQL and as plain Python.

All times are integers in units of the database's precision since 1970-01-01 UTC. Windows are half open: a window
[start, end) holds its start and not its end. Intervals in b, u, a, s, m and h lie on a grid that is aligned to the
epoch in UTC. Intervals in d, w, n and y lie on a grid of local wall-clock time: days begin at local midnight (and
last 23 or 25 hours where the zone says so), weeks are blocks of seven local days counted from Thursday, 1970-01-01,
blocks of n months or years are counted from January 1900. Where there is no window at all, all time is one. It does
not know rows, groups or aggregates. Parameters of lambdas hide columns of the same name: theirs are names that no
user's column has.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from penstock.common.errors import InvalidStatementError
from penstock.planner.duckdb_sql.duckdb_tree import Template, Tree, call, column, fragment, hole, named, number, select
from penstock.sql.tree.statements import Duration, IntervalWindow
from penstock.sql.types import UNITS_PER_SECOND, Precision

DAY_SECONDS = 86_400
MAX_YEARS = 1_000
EVER_START, EVER_END = -(1 << 63) + 1, (1 << 63) - 1
MAX_SLIDES = 100
# No clock is turned by more than this, but where a zone has left a day out, or had it twice.
_TURN_SECONDS = 3 * 3_600
_YEARS = range(1840, 2040)
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
    def endless(self) -> bool:
        """Whether all time is one window, from EVER_START to EVER_END."""
        return self.width == EVER_END - EVER_START

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

    @property
    def shortest_step(self) -> int:
        """Units by which two starts are apart at least, but for changes of the clock."""
        return self.step or 28 * self.step_months * self.day

    @property
    def turn(self) -> int:
        """Units by which the clock is turned at most."""
        return 0 if self.zone is None else _turn_seconds(self.zone) * UNITS_PER_SECOND[self.precision]


@lru_cache(maxsize=256)
def _turn_seconds(zone: str) -> int:
    """Returns by how many seconds a zone turns its clock at most."""
    place = ZoneInfo(zone)
    offsets = [datetime(year, month, 1, tzinfo=place).utcoffset() for year in _YEARS for month in (1, 7)]
    known = [offset.total_seconds() for offset in offsets if offset is not None]
    spread = round(max(known) - min(known))
    return spread + _TURN_SECONDS if spread > DAY_SECONDS // 2 else _TURN_SECONDS


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


def grid_of(window: IntervalWindow | None, precision: Precision, time_zone: str) -> Grid:
    """Returns the grid of a checked window. `window.offset` must not be "auto" any more. None: all time is one."""
    if window is None:
        return Grid(EVER_END - EVER_START, 0, EVER_END - EVER_START, 0, EVER_START, 0, precision, None)
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


def auto_offset(window: IntervalWindow, first_ts: int | None, precision: Precision, time_zone: str) -> IntervalWindow:
    """Returns `window` with its AUTO offset replaced, such that a window starts at `first_ts` (None: no offset)."""
    plain = IntervalWindow(window.interval, None, window.sliding)
    if first_ts is None:
        return plain
    tumbling = IntervalWindow(window.interval)
    start = window_bounds(first_ts, tumbling, precision, time_zone)[0][0]
    shift = first_ts - start
    return IntervalWindow(window.interval, Duration(shift, ""), window.sliding) if shift else plain


# --- DuckDB ---------------------------------------------------------------------------------------------------


def interval_start(ts: Tree, window: IntervalWindow, precision: Precision, time_zone: str) -> Tree:
    """Returns the newest window start that is not after the BIGINT `ts`.

    Without SLIDING that is the start of the one window that holds the instant; with SLIDING it is the start of the
    last of them.
    """
    return _start_of(grid_of(window, precision, time_zone)).filled(ts=ts)


def quick_start(ts: Tree, window: IntervalWindow, precision: Precision, time_zone: str) -> Tree:
    """Returns what `interval_start` does, at half its cost for times after the first window of the epoch."""
    return _quick_start_of(grid_of(window, precision, time_zone)).filled(ts=ts)


@lru_cache(maxsize=256)
def _quick_start_of(grid: Grid) -> Template:
    ts, start = hole("ts"), _start_of(grid)
    if grid.zone is not None or grid.step_months:
        return start
    quick = _plus(fragment("(:since // :step * :step)", since=_minus(ts, grid.offset), step=grid.step), grid.offset)
    return Template(fragment("CASE WHEN :ts >= :offset THEN :quick ELSE :start END", ts=ts, offset=grid.offset,
                             quick=quick, start=start.filled(ts=ts)))


@lru_cache(maxsize=256)
def _start_of(grid: Grid) -> Template:
    ts = hole("ts")
    if grid.zone is None:
        return Template(_cell_start(ts, grid))
    local = _local(ts, grid)
    # Around a change of the clock, the wall-clock time alone doesn't tell the cell: compare instants.
    slack = 0 if grid.whole_days else grid.turn
    return Template(fragment('list_max(list_filter(:starts, lambda "#start": "#start" <= :ts))', ts=ts,
                             starts=_starts_around(_minus(local, slack), _plus(local, slack), grid)))


def interval_end(start: Tree, window: IntervalWindow, precision: Precision, time_zone: str) -> Tree:
    """Returns the exclusive end of the window that starts at the BIGINT `start`."""
    return _end_of(grid_of(window, precision, time_zone)).filled(start=start)


@lru_cache(maxsize=256)
def _end_of(grid: Grid) -> Template:
    return Template(_end(hole("start"), grid))


def expanded_windows(ts: Tree, window: IntervalWindow, precision: Precision, time_zone: str) -> Tree:
    """Returns the starts of all windows that hold the instant, oldest first, as a BIGINT[] to be unnested."""
    return _starts_of(grid_of(window, precision, time_zone)).filled(ts=ts)


@lru_cache(maxsize=256)
def _starts_of(grid: Grid) -> Template:
    ts = hole("ts")
    if grid.tumbling:
        return Template(fragment("[:start]", start=_start_of(grid).filled(ts=ts)))
    if grid.zone is None and not grid.width_months:
        last = _cell_start(ts, grid)
        first = _minus(last, (-(-grid.width // grid.step) - 1) * grid.step)
        if grid.width % grid.step:
            first = fragment("CASE WHEN :first + :width > :ts THEN :first ELSE :first + :step END", first=first,
                             width=grid.width, ts=ts, step=grid.step)
        return Template(fragment("generate_series(:first, :last, :step)", first=first, last=last, step=grid.step))
    slack, local = grid.turn, _local(ts, grid)
    return Template(fragment(
        'list_sort(list_distinct(list_filter(:starts, lambda "#start": "#start" <= :ts AND :end > :ts)))',
        starts=_starts_around(_minus(local, grid.longest + slack), _plus(local, slack), grid), ts=ts,
        end=_end(column("#start"), grid)))


def is_local(window: IntervalWindow, time_zone: str) -> bool:
    """Tells whether windows lie on a grid of local times, so that changes of the clock matter."""
    return window.interval.unit in ("d", "w", "n", "y") and time_zone not in _UTC_NAMES


def starts_in_range(first: Tree, last: Tree, window: IntervalWindow, precision: Precision, time_zone: str) -> Tree:
    """Returns the starts of all windows that hold an instant from the BIGINT `first` to `last`, and of some more."""
    return _starts_within(grid_of(window, precision, time_zone)).filled(first=first, last=last)


@lru_cache(maxsize=256)
def _starts_within(grid: Grid) -> Template:
    slack = grid.longest + grid.turn
    return Template(fragment("list_distinct(:starts)", starts=_starts_around(
        _minus(_local(hole("first"), grid), slack), _plus(_local(hole("last"), grid), slack), grid)))


def starts_from_to(first: int, last: int, window: IntervalWindow, precision: Precision, time_zone: str) -> Tree:
    """Returns a query of the window starts in [first, last] as the BIGINT column s."""
    grid = grid_of(window, precision, time_zone)
    if grid.zone is None and not grid.step_months:
        return series(grid.offset - (grid.offset - first) // grid.step * grid.step, last, grid.step)
    low = _number(_to_local(first, grid) - grid.turn, grid) - 1
    high = _number(_to_local(last, grid) + grid.turn, grid) + 2
    starts = fragment('list_distinct(list_filter(:starts, lambda "#start": "#start" BETWEEN :first AND :last))',
                      starts=_starts(number(low), number(high), grid), first=first, last=last)
    return select([named(call("unnest", starts), "s")])


def series(first: int | Tree, last: int | Tree, step: int) -> Tree:
    """Returns a query of the numbers first, first + step, ... up to last as the BIGINT column s.

    DuckDB would compute a list of constants while it plans: outside its bounds of memory, and not to be interrupted.
    """
    return fragment('SELECT "s" FROM generate_series(:first::BIGINT, :last::BIGINT, :step) AS series("s")',
                    first=first, last=last, step=step)


def count_between(first: int, last: int, window: IntervalWindow | None, precision: Precision, time_zone: str) -> int:
    """Returns about how many windows start in [first, last]; exact but for changes of the clock."""
    grid = grid_of(window, precision, time_zone)
    return max(0, _number(_to_local(last, grid), grid) - _number(_to_local(first, grid), grid) + 1)


def _floor_to(value: Tree, step: int) -> Tree:
    return fragment("(:value - ((:value % :step) + :step) % :step)", value=value, step=step)


def _floor_div(value: Tree, step: int) -> Tree:
    return fragment("(:value // :step)", value=_floor_to(value, step), step=step) if step != 1 else value


def _minus(value: Tree, amount: int) -> Tree:
    return fragment("(:value - :amount)", value=value, amount=amount) if amount else value


def _plus(value: Tree, amount: int) -> Tree:
    return fragment("(:value + :amount)", value=value, amount=amount) if amount else value


def _times(value: Tree, factor: int) -> Tree:
    return fragment("(:value * :factor)", value=value, factor=factor)


def _cell_start(ts: Tree, grid: Grid) -> Tree:
    """The start of the cell of a UTC grid that holds `ts`."""
    if grid.step_months:
        return _cell_local(_cell_number(ts, grid), grid)
    return _plus(_floor_to(_minus(ts, grid.offset), grid.step), grid.offset)


def _cell_number(local: Tree, grid: Grid) -> Tree:
    """The number of the cell that holds the local time."""
    shifted = _minus(local, grid.offset)
    if grid.step_months:
        months = fragment("date_diff('month', TIMESTAMP '1900-01-01', make_timestamp(:micros))",
                          micros=_micros(shifted, grid))
        return _floor_div(_minus(months, grid.offset_months), grid.step_months)
    return _floor_div(shifted, grid.step)


def _cell_local(cell: Tree, grid: Grid) -> Tree:
    """The local time at which the cell of this number starts."""
    if grid.step_months:
        months = _plus(_times(cell, grid.step_months), grid.offset_months)
        return _plus(_month_start(months, grid), grid.offset)
    return _plus(_times(cell, grid.step), grid.offset)


def _starts_around(low: Tree, high: Tree, grid: Grid) -> Tree:
    """The list of the starts of the cells that hold the local times from `low` to `high`, and of those beside them."""
    return _starts(_minus(_cell_number(low, grid), 1), _plus(_cell_number(high, grid), 2), grid)


def _starts(first: Tree, last: Tree, grid: Grid) -> Tree:
    """The list of the starts of the cells `first`, ..., `last` - 1."""
    return fragment('list_transform(range(:first, :last), lambda "#cell": :start)', first=first, last=last,
                    start=_utc(_cell_local(column("#cell"), grid), grid))


def _month_start(months: Tree, grid: Grid) -> Tree:
    """The first instant of a month, given as a count since January 1900."""
    return _from_micros(fragment("epoch_us(TIMESTAMP '1900-01-01' + to_months((:months)::INTEGER))", months=months),
                        grid)


def _end(start: Tree, grid: Grid) -> Tree:
    if grid.zone is None and not grid.width_months:
        return _plus(start, grid.width)
    local = _local(start, grid)
    if grid.tumbling:
        return _utc(_cell_local(_plus(_cell_number(local, grid), 1), grid), grid)
    if grid.whole_days:
        # A start that the clock skipped reads as the first local time after the gap: go back to the grid.
        local = _cell_local(_cell_number(local, grid), grid)
    if not grid.width_months:
        return _utc(_plus(local, grid.width), grid)
    moved = _from_micros(fragment("epoch_us(make_timestamp(:micros) + to_months(:months))", micros=_micros(local, grid),
                                  months=grid.width_months), grid)
    if grid.precision == "ns":
        moved = fragment("(:moved + ((:local % 1000) + 1000) % 1000)", moved=moved, local=local)
    return _utc(moved, grid)


def _micros(value: Tree, grid: Grid) -> Tree:
    if grid.precision == "us":
        return value
    return _times(value, 1000) if grid.precision == "ms" else _floor_div(value, 1000)


def _from_micros(micros: Tree, grid: Grid) -> Tree:
    if grid.precision == "us":
        return micros
    return _floor_div(micros, 1000) if grid.precision == "ms" else _times(micros, 1000)


def _as_units(micros: Tree, grid: Grid) -> Tree:
    """A number of microseconds that is a whole number of units, as units."""
    return fragment("(:micros // 1000)", micros=micros) if grid.precision == "ms" else _from_micros(micros, grid)


def _local(utc: Tree, grid: Grid) -> Tree:
    """The local time of an instant, in units."""
    if grid.zone is None:
        return utc
    shift = fragment("epoch_us(timezone(:zone, make_timestamptz(:micros))) - :micros", zone=grid.zone,
                     micros=_micros(utc, grid))
    return fragment("(:utc + :shift)", utc=utc, shift=_as_units(shift, grid))


def _utc(local: Tree, grid: Grid) -> Tree:
    """The instant of a local time: the first if it occurs twice, shifted past the gap if it never does."""
    if grid.zone is None:
        return local
    fold = _turn_seconds(grid.zone) * 1_000_000
    micros = _micros(column("#local"), grid)
    early = fragment("epoch_us(timezone(:zone, make_timestamp(:micros - :fold))) + :fold", zone=grid.zone,
                     micros=micros, fold=fold)
    shift = fragment(
        "CASE WHEN epoch_us(timezone(:zone, make_timestamptz(:early))) = :micros THEN :early "
        "ELSE epoch_us(timezone(:zone, make_timestamp(:micros))) END - :micros", zone=grid.zone, early=early,
        micros=micros)
    # The list binds the local time to a name, so that it isn't repeated six times.
    return fragment('list_transform([:local], lambda "#local": "#local" + :shift)[1]', local=local,
                    shift=_as_units(shift, grid))


# --- plain Python ---------------------------------------------------------------------------------------------


def window_bounds(
    ts: int, window: IntervalWindow | None, precision: Precision, time_zone: str
) -> list[tuple[int, int]]:
    """Returns [start, end) of every window that holds the instant `ts`, oldest first; without SLIDING exactly one."""
    grid = grid_of(window, precision, time_zone)
    if grid.endless:
        return [(EVER_START, EVER_END)]
    local = _to_local(ts, grid)
    first = _number(local - grid.longest - grid.turn, grid) - 1
    last = _number(local + grid.turn, grid) + 1
    starts = sorted({_to_utc(_start_local(cell, grid), grid) for cell in range(first, last + 1)})
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


def latest_end(start: int, grid: Grid) -> int:
    """Returns the latest end of the windows that start at `start` or before.

    It may be that of an earlier window: where the clock is put forward, or a day left out, ends are shifted past that.
    """
    end = end_of(start, grid)
    if grid.zone is None:
        return end
    return max([end, *(end_of(earlier, grid) for earlier in starts_between(start - 2 * grid.turn, start, grid))])


def starts_between(after: int, before: int, grid: Grid) -> Iterator[int]:
    """Yields the starts of the windows that start after `after` and before `before`, oldest first."""
    if grid.zone is None and not grid.step_months:
        yield from range(after + grid.step - (after - grid.offset) % grid.step, before, grid.step)
        return
    last = after
    for cell in itertools.count(_number(_to_local(after, grid) - grid.turn, grid)):
        start = _to_utc(_start_local(cell, grid), grid)
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


def _start_local(cell: int, grid: Grid) -> int:
    if not grid.step_months:
        return cell * grid.step + grid.offset
    years, month = divmod(cell * grid.step_months + grid.offset_months, 12)
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
