"""CREATE STREAM to a `StreamPlan`: checks what a stream may be, binds it to operators, has these lowered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.common.errors import InvalidStatementError, InvalidStreamError, NotSupportedError
from penstock.common.headroom import with_headroom
from penstock.planner.bind.row_windows import bind_row_window, least_length
from penstock.planner.bind.user_functions import bind_user_functions
from penstock.planner.logical.operators import Operator
from penstock.planner.logical.stream import LogicalStream
from penstock.planner.logical.window_kinds import END, START, ByClock, ByInterval, Shape
from penstock.planner.lower.batch_results import BatchResults, batch_results
from penstock.planner.lower.joined_results import joined_results
from penstock.planner.lower.stages import assembled, stream_plan
from penstock.planner.lower.targets import converted_results, key_fields
from penstock.planner.lower.tolerant_plan import tolerant_lookup
from penstock.planner.streams.dead_letters import plan_dlq, plan_errors
from penstock.planner.streams.state_ttl import check_no_ttl, why_no_groups
from penstock.planner.streams.stream_calculation import check_trigger, plan_calculation, triggered
from penstock.planner.streams.stream_checks import check_shape, check_window
from penstock.planner.streams.stream_context import StreamContext
from penstock.planner.streams.stream_context import StreamDefaults as StreamDefaults
from penstock.planner.streams.stream_force import plan_force
from penstock.planner.streams.stream_join_plan import has_own_time, plan_join
from penstock.planner.streams.stream_join_query import JoinQuery, plan_join_query, projections_of
from penstock.planner.streams.stream_joins import JoinedTables
from penstock.planner.streams.stream_notify import NOTIFY_TRIGGERS, plan_notify
from penstock.planner.streams.stream_period import plan_period
from penstock.planner.streams.stream_projections import Projections
from penstock.planner.streams.stream_refresh import lasting_answer, plan_refreshed, refreshed_for
from penstock.planner.streams.stream_results import (
    Filled,
    filled_projections,
    results,
    row_projections,
    window_projections,
    windowed,
    without_labels,
)
from penstock.planner.streams.stream_row_windows import StreamFacts, check_row_window
from penstock.planner.streams.stream_target import BoundTarget, bind_target
from penstock.planner.streams.stream_time import check_skew, defaults_for, described, plan_time, zoned
from penstock.planner.streams.stream_triggers import TriggerPlan, plan_trigger
from penstock.planner.streams.window_values import value_items, with_values
from penstock.planner.task_plans.stream_plan import Grouping, History, JoinPlan, OnError, Policies, StreamPlan, TimePlan
from penstock.sql.schema import CatalogView, Session
from penstock.sql.tree.statements import CreateStream, IntervalWindow, SelectItem
from penstock.sql.types import Kind


@with_headroom
def plan_stream(
    statement: CreateStream, catalog: CatalogView, session: Session, defaults: StreamDefaults | None = None
) -> StreamPlan:
    """Returns the plan of a stream.

    Raises NotFoundError for unknown tables, columns and functions, InvalidStreamError for what TDengine refuses
    (tdengine.md 1.4), AlreadyExistsError and InvalidStatementError for a target that doesn't fit, NotSupportedError
    for what Penstock cannot do yet.
    """
    check_trigger(statement)
    values = value_items(statement)
    statement, session = triggered(statement, session)
    if statement.calculation is not None and statement.calculation.period is not None:
        return plan_period(statement, catalog, zoned(statement.options, session))
    bind_user_functions(statement, catalog, session)
    reason = refreshed_for(statement, catalog, session)
    if reason is not None and statement.calculation is not None:
        raise InvalidStreamError(f"a trigger can't have {reason}", hint="PARTITION BY tbname")
    if reason is not None:
        return plan_refreshed(statement, catalog, session, reason, () if defaults is None else defaults.refreshed)
    if statement.materialized:
        lasting_answer(statement, catalog, session)
    stream = _context(statement, catalog, session, defaults)
    plan, session = _plan(stream), stream.session
    if statement.calculation is not None:
        plan = replace(plan, calculation=plan_calculation(
            stream.statement, catalog, session, stream.precision, [key.type for key in stream.partition],
            by_table=stream.by_table))
        plan = _with_values(plan, stream, values)
    options = statement.options
    check_no_ttl(statement, why_no_groups(plan.computation))
    if plan.sink.external is None and (options.on_failure is not None or options.retry_time is not None):
        raise InvalidStreamError("ON_FAILURE and RETRY_TIME are for streams INTO CONNECTION",
                                 hint="a result table is a part of Penstock and has no failures of its own")
    if plan.source.lookup is None and options.lookup_freshness is not None:
        raise InvalidStreamError("LOOKUP_FRESHNESS is for streams whose rows look up in another table",
                                 hint="join a normal table, or one of a connection, by equal values")
    if plan.dlq is None and options.on_failure == "dlq":
        plan = replace(plan, dlq=plan_dlq(options, stream.table, stream.precision, catalog, session))
    if statement.notify is not None and plan.notify is None:
        raise NotSupportedError(f"NOTIFY doesn't go with TRIGGER {plan.trigger.upper()}", hint=NOTIFY_TRIGGERS)
    return plan


def _with_values(plan: StreamPlan, stream: StreamContext, items: tuple[SelectItem, ...]) -> StreamPlan:
    """Returns the plan with the results of a trigger's query as columns of its windows, if they are of the same types
    as those of the query."""
    assert plan.calculation is not None
    if not items:
        return plan
    statement = stream.statement.with_changes(query=with_values(stream.statement.select, items))
    try:
        wider = _plan(_context(statement, stream.catalog, stream.session, stream.defaults))
    except (InvalidStatementError, InvalidStreamError, NotSupportedError):
        return plan  # queries know more than streams do
    columns = wider.sink.columns[len(plan.sink.columns):]
    if [column.type for column in columns] != [column.type for column in plan.calculation.columns] or any(
            column.type.kind is Kind.DECIMAL for column in columns):  # whose sums may have too many digits
        return plan
    return replace(wider, calculation=replace(plan.calculation, values=len(columns)))


@with_headroom
def plan_results(
    statement: CreateStream, catalog: CatalogView, session: Session, defaults: StreamDefaults | None = None
) -> BatchResults:
    """Returns what the result table of a stream of rows or windows is to hold, as one query over its source.

    Raises what `plan_stream` raises, and NotSupportedError where rows alone don't tell the results.
    """
    if statement.calculation is not None:
        raise NotSupportedError("results of a stream with a trigger of its own can't be verified: its queries saw what "
                                "was there when windows fired")
    stream = _context(statement, catalog, session, defaults)
    check_shape(stream)
    trigger = _trigger(stream)
    if stream.join is not None:
        logical, asked, join = _joined(stream, stream.join, trigger)
        return joined_results(logical, join, asked.batch.scans, (*stream.functions, *asked.batch.functions),
                              own_time=has_own_time(stream, stream.join))
    check_window(stream)
    if trigger.mode == "force_window_close":
        raise NotSupportedError("results of TRIGGER FORCE_WINDOW_CLOSE can't be verified: they depend on what was "
                                "there when the clock passed")
    stream.read_rows()
    time, on_error = _time(stream, trigger)
    if time.clock != "event":
        raise NotSupportedError(
            f"results by TIME {time.clock.upper()} can't be verified: rows don't tell when they came")
    return batch_results(_bound(stream, trigger, time, on_error), tuple(stream.functions))


def _context(
    statement: CreateStream, catalog: CatalogView, session: Session, defaults: StreamDefaults | None
) -> StreamContext:
    session = zoned(statement.options, session)
    functions = bind_user_functions(statement, catalog, session)
    defaults = defaults or StreamDefaults()
    return StreamContext(statement, catalog, session,
                         replace(defaults, time=defaults_for(statement, defaults.time)), functions)


def _trigger(stream: StreamContext) -> TriggerPlan:
    defaults = stream.defaults
    return plan_trigger(stream.statement, stream.calls, defaults.trigger,
                        defaults.ignore_expired and defaults.time.late == "drop", defaults.ignore_update)


def _plan(stream: StreamContext) -> StreamPlan:
    check_shape(stream)
    trigger = _trigger(stream)
    if stream.join is not None:
        return _planned_join(stream, *_joined(stream, stream.join, trigger))
    check_window(stream)
    if stream.lookup is not None and trigger.mode == "force_window_close":
        raise NotSupportedError("a stream by the clock can't look up rows in another table yet",
                                hint="use TRIGGER WINDOW_CLOSE")
    stream.read_rows()
    time, on_error = _time(stream, trigger)
    if trigger.mode == "force_window_close":
        return plan_force(stream)
    bound = _bound(stream, trigger, time, on_error)
    return stream_plan(bound, stream.functions, described(time, stream.precision))


def _bound(stream: StreamContext, trigger: TriggerPlan, time: TimePlan, on_error: OnError) -> LogicalStream:
    """Returns a stream by event time over one table."""
    bind = _of_rows if stream.query.window is None else _of_windows
    return bind(stream, trigger, time, on_error)


def _time(stream: StreamContext, trigger: TriggerPlan) -> tuple[TimePlan, OnError]:
    defaults = stream.defaults.time
    time = plan_time(stream.statement, stream.precision, trigger.mode, stream.session, defaults)
    return time, plan_errors(stream.statement, trigger.mode, time.clock, defaults.on_error)


# --- one table, and maybe one that it looks up in ---------------------------------------------------------------


def _of_rows(stream: StreamContext, trigger: TriggerPlan, time: TimePlan, on_error: OnError) -> LogicalStream:
    """Returns a stream without a window: a row per row."""
    bound = bind_target(stream, row_projections(stream), prepended=False)
    if stream.query.fill is not None and stream.query.fill.mode != "none":
        raise InvalidStreamError("FILL needs an INTERVAL window")
    check_skew(stream.statement, colocated=stream.by_table)
    return _logical(stream, stream.scanned_rows(), bound, (), trigger, time, on_error)


def _of_windows(stream: StreamContext, trigger: TriggerPlan, time: TimePlan, on_error: OnError) -> LogicalStream:
    """Returns a stream over windows: a row per group and window."""
    projections, prepended, aggregation = window_projections(stream)
    bound = bind_target(stream, projections, prepended=prepended)
    filled = _filled(stream, projections)
    check_skew(stream.statement, colocated=stream.by_table)
    shape, least = _shape(stream, trigger, time, bound)
    rows = windowed(stream, aggregation, shape, least, filled)
    return replace(_logical(stream, rows, bound, filled, trigger, time, on_error), period_ms=trigger.period_ms)


def _filled(stream: StreamContext, projections: Projections) -> list[Filled]:
    fill = stream.query.fill
    if fill is None or fill.mode == "none":
        return []
    if not isinstance(stream.query.window, IntervalWindow):
        raise InvalidStreamError("FILL needs an INTERVAL window")
    return filled_projections(stream, fill, projections)


def _shape(
    stream: StreamContext, trigger: TriggerPlan, time: TimePlan, bound: BoundTarget
) -> tuple[Shape, int | None]:
    """Returns what puts rows into windows, and how short these may be in units of the precision."""
    window = stream.query.window
    assert window is not None
    if isinstance(window, IntervalWindow):
        interval = ByInterval(window, stream.precision, stream.session.time_zone)
        return interval if time.clock == "event" else ByClock(interval), None
    check_row_window(window, StreamFacts(stream.table, stream.by_table, stream.watermark(), trigger.ignore_expired,
                                         stream.statement.calculation is not None))
    least_count = 2 if stream.statement.calculation is None else 1
    shape = bind_row_window(window, stream.rows, least_count)
    least = least_length(window, stream.precision)
    if bound.times_of(START)[:1] != [0]:
        raise NotSupportedError("the target's primary timestamp must be _wstart for such a window",
                                hint="only the start of a window tells which result is to be replaced")
    return shape, least


def _logical(
    stream: StreamContext, rows: Operator, bound: BoundTarget, filled: Sequence[Filled], trigger: TriggerPlan,
    time: TimePlan, on_error: OnError,
) -> LogicalStream:
    notify = plan_notify(stream.statement, trigger.mode, time, bound.times_of(START), bound.times_of(END))
    by_event = time.clock == "event"
    policies = Policies(stream.watermark(), trigger.ignore_expired and by_event, trigger.ignore_update or not by_event,
                        stream.delete_mark(), time, on_error, stream.guarantee)
    dlq = plan_dlq(stream.statement.options, stream.table, stream.precision, stream.catalog, stream.session)
    if policies.leaves_out_errors:
        rows = tolerant_lookup(rows)
    return replace(stream.logical(results(rows, bound, filled), bound.target, trigger.mode, policies),
                   history=stream.history(), dlq=dlq, notify=notify)


# --- joins ------------------------------------------------------------------------------------------------------


def _joined(
    stream: StreamContext, join: JoinedTables, trigger: TriggerPlan
) -> tuple[LogicalStream, JoinQuery, JoinPlan]:
    """Returns a stream over a join, the query that it asks for, and what its tasks compute."""
    if trigger.ignore_update:
        raise InvalidStreamError("a join counts the newest version of each row", hint="leave IGNORE UPDATE out")
    check_window(stream)
    stream.read_keys()
    time, on_error = _time(stream, trigger)
    policies = Policies(stream.watermark(), trigger.ignore_expired, False, stream.delete_mark(), time, on_error,
                        stream.guarantee)
    asked = plan_join_query(stream, join, leaves_out_errors=policies.leaves_out_errors)
    projections, prepended = projections_of(stream, join, asked)
    bound = bind_target(stream, projections, prepended=prepended)
    casts = converted_results(bound.values, bound.target.result_columns)
    plan = plan_join(stream, join, asked, casts, policies)
    shown = results(without_labels(asked.batch.plan), bound, ())
    return replace(stream.logical(shown, bound.target, trigger.mode, policies),
                   history=History(None, None) if stream.statement.options.fill_history else None,
                   dlq=plan.left.dlq), asked, plan


def _planned_join(stream: StreamContext, logical: LogicalStream, asked: JoinQuery, join: JoinPlan) -> StreamPlan:
    fields = key_fields(logical.keys)
    return assembled(logical, join.left.source, Grouping(fields, colocated=join.distribution == "vnode"), join,
                     (*stream.functions, *asked.batch.functions), described(logical.policies.time, stream.precision))
