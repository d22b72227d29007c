"""How a stream goes by time: the options about event time, checked against its query and trigger."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from penstock.common.errors import InvalidStreamError, InvalidValueError
from penstock.planner.task_plans.stream_plan import OnError, TimeClock, TimePlan
from penstock.sql.dialect.literals import zone
from penstock.sql.schema import Session
from penstock.sql.tree.statements import CreateStream, Duration, IntervalWindow, JoinSource, StreamOptions
from penstock.sql.types import UNITS_PER_SECOND, Precision


@dataclass(frozen=True, slots=True)
class TimeDefaults:
    """What options about time mean that CREATE STREAM leaves out; each is a conf key. Durations in seconds."""

    clock: TimeClock = "event"
    allowed_lateness_s: float = 0.0
    close_when_idle: bool = False
    max_future_s: float = 86_400.0
    max_skew_s: float = 0.0
    writer_timeout_s: float = 60.0
    on_error: OnError = "null"
    late: Literal["drop", "recalc"] = "drop"


_OF_VIEWS = TimeDefaults(max_future_s=0.0)
"""Those of materialized views: the answer of a query leaves no row out, whatever is configured."""


def defaults_for(statement: CreateStream, configured: TimeDefaults) -> TimeDefaults:
    """Returns what options about time mean that a statement leaves out, where such defaults are configured.

    Windows of a trigger go by the times of rows, and nothing in the statement could say otherwise.
    """
    if statement.materialized:
        return _OF_VIEWS
    return configured if statement.calculation is None else replace(configured, clock="event")


# Each option about event time by the field of `StreamOptions` that holds it.
_OPTIONS = {
    "allowed_lateness": "ALLOWED_LATENESS",
    "idle_timeout": "IDLE_TIMEOUT",
    "close_when_idle": "CLOSE_WHEN_IDLE",
    "max_future": "MAX_FUTURE",
    "max_skew": "MAX_SKEW",
    "watermark_from": "WATERMARK FROM WRITERS",
    "writer_timeout": "WRITER_TIMEOUT",
}


def zoned(options: StreamOptions, session: Session) -> Session:
    """Returns the session with the stream's own TIMEZONE, if it has one; raises InvalidStreamError."""
    if options.timezone is None:
        return session
    try:
        zone(options.timezone)
    except InvalidValueError as error:
        raise InvalidStreamError(f"TIMEZONE: {error}", hint="an IANA name such as 'Europe/Berlin'") from error
    return replace(session, time_zone=options.timezone)


def plan_time(
    statement: CreateStream, precision: Precision, trigger: str, session: Session, defaults: TimeDefaults
) -> TimePlan:
    """Returns the checked rules; raises InvalidStreamError for options that say nothing for such a stream.

    Defaults are for streams that go by event time only; the others have none of it.
    """
    options = statement.options
    given = [name for field, name in _OPTIONS.items() if getattr(options, field) is not None]
    joined = isinstance(statement.select.source, JoinSource)
    if trigger == "force_window_close" or (statement.select.window is None and not joined):
        if options.time not in (None, "event"):
            raise InvalidStreamError(f"TIME {options.time.upper()} needs an INTERVAL window and another trigger")
        if given:
            what = "a stream without a window" if statement.select.window is None else "FORCE_WINDOW_CLOSE"
            raise InvalidStreamError(f"{given[0]} is not for {what}", hint="it is about windows by event time")
        return TimePlan()
    clock = options.time or defaults.clock
    if clock != "event" and joined:
        if options.time is not None:
            raise InvalidStreamError(f"TIME {clock.upper()} is not for joins", hint="they compare the rows' own times")
        clock = "event"
    if joined and options.watermark_from is not None:
        raise InvalidStreamError("WATERMARK FROM WRITERS is not for joins", hint="their time is that of their rows")
    if clock != "event":
        _check_arrival(statement, clock, trigger, given)
        return TimePlan(clock)
    return TimePlan(
        lateness=_units(options.allowed_lateness, defaults.allowed_lateness_s, precision, "ALLOWED_LATENESS"),
        idle_timeout_s=None if options.idle_timeout is None else options.idle_timeout.in_units("ns") / 1e9,
        close_when_idle=defaults.close_when_idle if options.close_when_idle is None else options.close_when_idle,
        max_future=_units(options.max_future, defaults.max_future_s, precision, "MAX_FUTURE") or None,
        max_skew=_units(options.max_skew, defaults.max_skew_s, precision, "MAX_SKEW") or None,
        writer_timeout_ms=_writer_timeout_ms(options, defaults),
        created=session.now_ms * UNITS_PER_SECOND[precision] // 1_000,
    )


def kept_defaults(statement: CreateStream, defaults: TimeDefaults) -> StreamOptions:
    """Returns the options that a stream has although its statement leaves them out, for they decide its results.

    Only those that differ from what is shipped, since these mean the same in every engine. A materialized view has
    none.
    """
    options, window, shipped = statement.options, statement.select.window, TimeDefaults()
    if statement.materialized or options.trigger == "force_window_close":
        return StreamOptions()
    clock = options.time or defaults.clock if window is not None else shipped.clock
    kept: dict[str, Any] = {}
    if clock == "event" and defaults.on_error != shipped.on_error:
        kept["on_error"] = defaults.on_error
    if clock != shipped.clock:
        kept["time"] = clock
    elif window is not None:
        if defaults.allowed_lateness_s != shipped.allowed_lateness_s:
            kept["allowed_lateness"] = _seconds(defaults.allowed_lateness_s)
        if defaults.close_when_idle != shipped.close_when_idle:
            kept["close_when_idle"] = defaults.close_when_idle
        if defaults.max_future_s != shipped.max_future_s:
            kept["max_future"] = _seconds(defaults.max_future_s)
        if options.watermark_from is not None and defaults.writer_timeout_s != shipped.writer_timeout_s:
            kept["writer_timeout"] = _seconds(defaults.writer_timeout_s)
        if defaults.late != shipped.late and options.ignore_expired is None:
            kept["late"] = defaults.late
    return StreamOptions(**{name: value for name, value in kept.items() if getattr(options, name) is None})


def _seconds(seconds: float) -> Duration:
    return Duration(round(seconds), "s") if seconds == round(seconds) else Duration(round(seconds * 1000), "a")


def _check_arrival(statement: CreateStream, clock: TimeClock, trigger: str, given: list[str]) -> None:
    """Checks a stream whose windows go by when rows arrive."""
    options = statement.options
    what = f"TIME {clock.upper()}"
    if not isinstance(statement.select.window, IntervalWindow):
        raise InvalidStreamError(f"{what} needs an INTERVAL window")
    if trigger == "continuous_window_close":
        raise InvalidStreamError(f"{what} is not for CONTINUOUS_WINDOW_CLOSE", hint="it recalculates by event time")
    if options.watermark is not None:
        given = ["WATERMARK", *given]
    if options.fill_history:
        given = [*given, "FILL_HISTORY 1"]
    if options.ignore_expired is False:
        given = [*given, "IGNORE EXPIRED 0"]
    if options.ignore_update is False:
        given = [*given, "IGNORE UPDATE 0"]
    if given:
        raise InvalidStreamError(f"{given[0]} is not for {what}", hint="rows count when they arrive: none is late")


def _writer_timeout_ms(options: StreamOptions, defaults: TimeDefaults) -> int | None:
    if options.watermark_from is None:
        if options.writer_timeout is not None:
            raise InvalidStreamError("WRITER_TIMEOUT needs WATERMARK FROM WRITERS")
        return None
    timeout = _units(options.writer_timeout, defaults.writer_timeout_s, "ms", "WRITER_TIMEOUT")
    if timeout <= 0:
        raise InvalidStreamError("WRITER_TIMEOUT must be positive")
    return timeout


def check_skew(statement: CreateStream, *, colocated: bool) -> None:
    """Raises InvalidStreamError if MAX_SKEW is asked for where vnodes don't wait for each other anyway."""
    if colocated and statement.options.max_skew is not None:
        raise InvalidStreamError("MAX_SKEW is not for a stream that is partitioned by tbname",
                                 hint="each vnode goes by its own time there")


def described(time: TimePlan, precision: Precision) -> list[tuple[str, str]]:
    """Returns the rules as EXPLAIN shows them: only those that differ from what TDengine does."""
    lines: list[tuple[str, str]] = [("time", time.clock)] if time.clock != "event" else []
    if time.lateness:
        lines.append(("allowed lateness", f"{time.lateness}{precision}"))
    if time.idle_timeout_s is not None:
        lines.append(("idle after", f"{time.idle_timeout_s:g}s"))
    if time.close_when_idle:
        lines.append(("closed when idle", "1"))
    if time.max_future not in (None, round(TimeDefaults().max_future_s * UNITS_PER_SECOND[precision])):
        lines.append(("future at most", f"{time.max_future}{precision}"))
    if time.writer_timeout_ms is not None:
        lines.append(("watermark from", f"writers heard of in {time.writer_timeout_ms}ms"))
    if time.max_skew is not None:
        lines.append(("skew at most", f"{time.max_skew}{precision}"))
    return lines


def _units(given: Duration | None, default_s: float, precision: Precision, option: str) -> int:
    """Returns a duration in units of the precision."""
    if given is None:
        return round(default_s * UNITS_PER_SECOND[precision])
    units = given.in_units(precision)
    if units < 0:
        raise InvalidStreamError(f"{option} must not be negative")
    return units
