"""When a stream emits: the TRIGGER of CREATE STREAM, what each mode needs, and what IGNORE means under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from penstock.common.errors import InvalidStreamError
from penstock.planner.bind.scopes import require_vector
from penstock.planner.functions.table import lookup
from penstock.planner.streams.dead_letters import late_choice
from penstock.planner.task_plans.stream_plan import Trigger
from penstock.sql.tree.statements import CreateStream, IntervalWindow, JoinSource, Select

MIN_DELAY_MS = 5_000
MIN_TRIGGER_DELAY_MS = 3_000
MIN_RECALCULATE_MS = 10 * 60_000
DEFAULT_RECALCULATE_MS = 60 * 60_000
FUNCTION_NOT_ALLOWED = 0x265A


@dataclass(frozen=True, slots=True)
class TriggerPlan:
    """A checked trigger. `period_ms`: MAX_DELAY's delay or RECALCULATE's period, 0 for the other modes.

    `ignore_expired`, `ignore_update`: what the stream does with late and rewritten rows.
    """

    mode: Trigger
    period_ms: int
    ignore_expired: bool
    ignore_update: bool


def is_joined(query: Select) -> bool:
    """Whether a stream joins two tables."""
    return isinstance(query.source, JoinSource)


def plan_trigger(
    statement: CreateStream, calls: Sequence[exp.Anonymous], mode: Trigger, ignore_expired: bool, ignore_update: bool
) -> TriggerPlan:
    """Checks the trigger against the query and the other options; raises InvalidStreamError.

    `calls`: those of functions over several rows in the SELECT list. `mode`, `ignore_expired` and `ignore_update` say
    what options mean that are left out. A stream without a window always runs at once, so there TRIGGER may be left
    out, but no other mode may be asked for. A join has a time, too.
    """
    options, query = statement.options, statement.select
    if options.trigger is not None:
        mode = options.trigger
    elif query.window is None and not is_joined(query):
        mode = "at_once"
    chosen = late_choice(options)
    if chosen is not None:
        ignore_expired = chosen
    if options.ignore_update is not None:
        ignore_update = options.ignore_update
    if is_joined(query):
        _check_joined(mode)
    if mode != "force_window_close":
        _check_event_time(query, calls, mode)
    match mode:
        case "max_delay":
            delay = options.max_delay
            least = MIN_DELAY_MS if statement.calculation is None else MIN_TRIGGER_DELAY_MS
            if delay is None or delay.is_calendar or delay.in_units("ms") < least:
                raise InvalidStreamError(f"MAX_DELAY {delay} is too short", hint="at least 5s")
            return TriggerPlan(mode, delay.in_units("ms"), ignore_expired, ignore_update)
        case "continuous_window_close":
            return _continuous(statement)
        case "force_window_close":
            _check_force(statement, calls)
            return TriggerPlan(mode, 0, True, True)
        case _:
            return TriggerPlan(mode, 0, ignore_expired, ignore_update)


def _check_event_time(query: Select, calls: Sequence[exp.Anonymous], mode: Trigger) -> None:
    interp = query.range is not None or query.every is not None
    if interp or any(require_vector(call).instants for call in calls):
        raise InvalidStreamError("INTERP in a stream needs TRIGGER FORCE_WINDOW_CLOSE", code=FUNCTION_NOT_ALLOWED)
    if query.window is None and not is_joined(query) and mode != "at_once":
        raise InvalidStreamError(
            "a stream without a window must be TRIGGER AT_ONCE",
            hint="write TRIGGER AT_ONCE, or add a window such as INTERVAL(10s)")


def _check_joined(mode: Trigger) -> None:
    if mode not in ("at_once", "window_close"):
        raise InvalidStreamError("a join in a stream is TRIGGER WINDOW_CLOSE or AT_ONCE",
                                 hint="WINDOW_CLOSE, the default, emits rows when no partner can come any more")


def _continuous(statement: CreateStream) -> TriggerPlan:
    options = statement.options
    if not isinstance(statement.select.window, IntervalWindow):
        raise InvalidStreamError("CONTINUOUS_WINDOW_CLOSE needs an INTERVAL window")
    if late_choice(options) or options.ignore_update:
        raise InvalidStreamError("CONTINUOUS_WINDOW_CLOSE always takes late rows and updates into account",
                                 hint="leave IGNORE EXPIRED and IGNORE UPDATE out, or set them to 0")
    period = DEFAULT_RECALCULATE_MS
    if options.recalculate is not None:
        if options.recalculate.is_calendar or options.recalculate.in_units("ms") < MIN_RECALCULATE_MS:
            raise InvalidStreamError(f"RECALCULATE {options.recalculate} is too short", hint="at least 10m")
        period = options.recalculate.in_units("ms")
    return TriggerPlan("continuous_window_close", period, False, False)


def _check_force(statement: CreateStream, calls: Sequence[exp.Anonymous]) -> None:
    options, query = statement.options, statement.select
    if query.window is not None and not isinstance(query.window, IntervalWindow):
        raise InvalidStreamError("FORCE_WINDOW_CLOSE needs an INTERVAL window")
    if options.fill_history:
        raise InvalidStreamError("FORCE_WINDOW_CLOSE cannot FILL_HISTORY", hint="it computes windows as they end")
    if late_choice(options) is False or options.ignore_update is False:
        raise InvalidStreamError("FORCE_WINDOW_CLOSE needs IGNORE EXPIRED 1 and IGNORE UPDATE 1",
                                 hint="a window is computed once; leave both options out")
    if options.source_rate is not None or options.history_rate is not None:
        raise InvalidStreamError("FORCE_WINDOW_CLOSE has no SOURCE_RATE and HISTORY_RATE",
                                 hint="the rows of a window are read when it ends")
    for call in calls:
        spec = lookup(str(call.this))
        if spec is not None and not spec.in_stream:
            raise InvalidStreamError(f"{spec.name} is not allowed in a stream", code=FUNCTION_NOT_ALLOWED)
