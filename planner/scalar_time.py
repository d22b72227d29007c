"""The time functions and TO_ISO8601, TO_CHAR and their kin as DuckDB SQL over BIGINT timestamps."""

from __future__ import annotations

import re

from penstock.planner import time_format
from penstock.planner.folding import evaluate
from penstock.planner.functions.spec import WRONG_ARGUMENT_VALUE
from penstock.planner.plan import SqlExpr
from penstock.planner.scalar_call import Builder, Call
from penstock.planner.scalar_cast import timestamp_constant, to_timestamp
from penstock.planner.scalar_sql import let, quote_text
from penstock.planner.timezones import (
    describe_zone,
    floor_divide,
    from_local_timestamp,
    local_timestamp,
    milliseconds_to_units,
)
from penstock.sql.literals import start_of_day
from penstock.sql.types import INTEGERS, UNITS_PER_SECOND, DataType, Kind

TIME_UNIT_INVALID = 0x2806
TIME_UNIT_TOO_SMALL = 0x2807
_OFFSET = re.compile(r"[zZ]|([+-])(\d{2}):?(\d{2})?")
_UNITS_OF_FUNCTIONS = "buasmhdw"


def _timestamp(call: Call, index: int) -> SqlExpr:
    return to_timestamp(call.arguments[index], call.precision, call.session.time_zone)


def _local(call: Call, index: int) -> str:
    return local_timestamp(_timestamp(call, index).sql, call.precision, call.session.time_zone)


def now(call: Call) -> SqlExpr:
    """NOW: the same instant everywhere in a statement."""
    return timestamp_constant(milliseconds_to_units(call.session.now_ms, call.precision), call.precision)


def _today(call: Call) -> SqlExpr:
    midnight = start_of_day(call.session.now_ms, call.session.time_zone)
    return timestamp_constant(milliseconds_to_units(midnight, call.precision), call.precision)


def unit_length(call: Call, index: int) -> int:
    """Returns the length of a unit argument such as `1s` in units of the database's precision. Raises."""
    duration = call.duration(index)
    assert duration is not None
    if duration.value != 1 or not duration.unit or duration.unit not in _UNITS_OF_FUNCTIONS:
        raise call.refuse(f"{duration} is not a time unit", TIME_UNIT_INVALID,
                          "use one of 1b, 1u, 1a, 1s, 1m, 1h, 1d, 1w")
    length = duration.in_units(call.precision)
    if length == 0:
        raise call.refuse(f"the unit {duration} is finer than the precision {call.precision} of the database",
                          TIME_UNIT_TOO_SMALL)
    return length


def _instant(call: Call, index: int) -> str:
    """An argument of TIMEDIFF. Bare integers are seconds, milliseconds, ... by their number of digits."""
    argument = call.arguments[index]
    if argument.type.kind not in INTEGERS:
        return _timestamp(call, index).sql
    per_second = UNITS_PER_SECOND[call.precision]

    def scaled(x: str, per: int) -> str:
        return f"{x} * {per_second // per}" if per_second >= per else f"{x} // {per // per_second}"

    return let(call.integer(index), lambda x: (
        f"(CASE WHEN abs({x}) < 10000000000 THEN {scaled(x, 1)} WHEN abs({x}) < 10000000000000 THEN {scaled(x, 1_000)} "
        f"WHEN abs({x}) < 10000000000000000 THEN {scaled(x, 1_000_000)} ELSE {scaled(x, 1_000_000_000)} END)"))


def _timediff(call: Call) -> str:
    difference = f"({_instant(call, 0)} - {_instant(call, 1)})"
    if len(call) < 3 or call.duration(2) is None:
        return difference
    length = unit_length(call, 2)
    return difference if length == 1 else f"({difference} // {length})"


def _timetruncate(call: Call) -> str:
    length = unit_length(call, 1)
    ts = _timestamp(call, 0).sql
    days = {"d": 1, "w": 7}.get(call.duration(1).unit)  # type: ignore[union-attr]
    zone = call.session.time_zone
    if days is None or call.constant(2) == 0 or zone == "UTC":
        return ts if length == 1 else f"({floor_divide(ts, length)} * {length})"
    day = f"date_diff('day', DATE '1970-01-01', CAST({local_timestamp(ts, call.precision, zone)} AS DATE))"
    start = f"DATE '1970-01-01' + CAST({floor_divide(day, days)} * {days} AS INTEGER)"
    return from_local_timestamp(f"CAST({start} AS TIMESTAMP)", call.precision, zone)


def week_number(local: str, mode: int) -> str:
    """Returns SQL of MySQL's WEEK(date, mode) of a DuckDB TIMESTAMP."""
    monday_first = mode in (1, 3, 5, 7)
    from_one = mode in (2, 3, 6, 7)
    four_days = mode in (1, 3, 4, 6)

    def number(date: str) -> str:
        return f"((dayofyear({date}) - 1) // 7 + 1)"

    def whole(day: str) -> str:
        since_start = f"(isodow({day}) - 1)" if monday_first else f"dayofweek({day})"
        # A week belongs to the year of its fourth day, or of its first, depending on the mode.
        anchor = f"({day} - CAST({since_start} AS INTEGER) + {3 if four_days else 0})"
        if from_one:
            return number(anchor)
        return (f"CASE WHEN year({anchor}) < year({day}) THEN 0 "
                f"WHEN year({anchor}) > year({day}) THEN 53 ELSE {number(anchor)} END")

    return f"CAST({let(f'CAST({local} AS DATE)', whole)} AS BIGINT)"


def _week(call: Call) -> str:
    mode = call.constant(1)
    return week_number(_local(call, 0), mode if isinstance(mode, int) else 0)


def _offset_seconds(call: Call, text: str) -> int:
    match = _OFFSET.fullmatch(text)
    if match is not None:
        hours, minutes = int(match.group(2) or 0), int(match.group(3) or 0)
        # The offsets that TDengine takes: up to twelve hours, and parts of an hour only east of Greenwich.
        if hours <= 12 and (minutes == 0 or (match.group(1) == "+" and minutes in (30, 45))):
            return (hours * 3600 + minutes * 60) * (-1 if match.group(1) == "-" else 1)
    raise call.refuse(f"{text!r} is not an offset", WRONG_ARGUMENT_VALUE, "write Z, +hh, +hhmm or +hh:mm")


def _to_iso8601(call: Call) -> str:
    given = call.constant(1)
    zone = call.session.time_zone
    shift, suffix = 0, ""
    if isinstance(given, str):
        shift, zone, suffix = _offset_seconds(call, given), "UTC", given
    precision = call.precision
    per_second = UNITS_PER_SECOND[precision]
    digits = len(str(per_second)) - 1

    def whole(x: str) -> str:
        local = local_timestamp(f"({x} + {shift * per_second})" if shift else x, precision, zone)
        fraction = f"lpad(CAST(({x} % {per_second} + {per_second}) % {per_second} AS VARCHAR), {digits}, '0')"
        end = quote_text(suffix)
        if not suffix:
            utc = local_timestamp(x, precision, "UTC")
            minutes = f"((epoch_us({local}) - epoch_us({utc})) // 60000000)"
            end = "'+0000'" if zone == "UTC" else (
                f"printf('%s%02d%02d', CASE WHEN {minutes} < 0 THEN '-' ELSE '+' END, "
                f"abs({minutes}) // 60, abs({minutes}) % 60)")
        return f"(strftime({local}, '%Y-%m-%dT%H:%M:%S.') || {fraction} || {end})"

    return let(_timestamp(call, 0).sql, whole)


def _to_unixtimestamp(call: Call) -> SqlExpr:
    result = DataType(Kind.TIMESTAMP, precision=call.precision) if call.constant(1) == 1 else call.result
    value = _timestamp(call, 0)
    return SqlExpr(value.sql, result, value.constant)


def _format_argument(call: Call) -> str:
    template = call.constant(1)
    assert isinstance(template, str)
    return template


def _to_char(call: Call) -> str:
    return time_format.to_char(_timestamp(call, 0).sql, _format_argument(call), call.precision, call.session.time_zone)


def _to_timestamp(call: Call) -> str:
    template, given = _format_argument(call), call.constant(0)
    sql = time_format.to_timestamp(call.text(0), template, call.precision, call.session.time_zone)
    if isinstance(given, str) and evaluate(sql, call.position) is None:
        raise call.refuse(f"{given!r} does not fit the format {template}", WRONG_ARGUMENT_VALUE)
    return sql


def _or_null(build: Builder) -> Builder:
    """Returns a builder whose SQL is NULL for times that are too far away to compute with."""
    def guarded(call: Call) -> str | SqlExpr:
        built = build(call)
        return f"TRY({built})" if isinstance(built, str) else built
    return guarded


BUILDERS: dict[str, Builder] = {
    "now": now,
    "today": _today,
    "timezone": lambda call: quote_text(describe_zone(call.session.now_ms, call.session.time_zone)),
    "timediff": _or_null(_timediff),
    "timetruncate": _or_null(_timetruncate),
    "week": _or_null(_week),
    "weekofyear": _or_null(lambda call: week_number(_local(call, 0), 3)),
    "weekday": _or_null(lambda call: f"CAST(isodow({_local(call, 0)}) - 1 AS BIGINT)"),
    "dayofweek": _or_null(lambda call: f"CAST(dayofweek({_local(call, 0)}) + 1 AS BIGINT)"),
    "to_iso8601": _or_null(_to_iso8601),
    "to_unixtimestamp": _to_unixtimestamp,
    "to_char": _or_null(_to_char),
    "to_timestamp": _or_null(_to_timestamp),
}
