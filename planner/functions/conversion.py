"""TO_ISO8601, TO_CHAR and their kin."""

from __future__ import annotations

import re

from penstock.planner.duckdb_sql import time_format
from penstock.planner.duckdb_sql.duckdb_tree import Tree, fragment, let, text, try_cast
from penstock.planner.duckdb_sql.folding import evaluate
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.duckdb_sql.timezones import local_timestamp
from penstock.planner.functions.spec import (
    INTEGER_KINDS,
    NUMBERS,
    TEXTS,
    TIMES,
    WRONG_ARGUMENT_TYPE,
    WRONG_ARGUMENT_VALUE,
    ZERO_ONE,
    Argument,
    FunctionSpec,
    always,
)
from penstock.planner.functions.time import near
from penstock.planner.scalar.scalar_call import ScalarCall
from penstock.sql.types import BIGINT, UNITS_PER_SECOND, DataType, Kind, other_type, timestamp

_OFFSET = re.compile(r"[zZ]|([+-])(\d{2}):?(\d{2})?")
_FORMAT = Argument("format", TEXTS, literal=True)


def _offset_seconds(given: ScalarCall, offset: str) -> int:
    match = _OFFSET.fullmatch(offset)
    if match is not None:
        hours, minutes = int(match.group(2) or 0), int(match.group(3) or 0)
        # The offsets that TDengine takes: up to twelve hours, and parts of an hour only east of Greenwich.
        if hours <= 12 and (minutes == 0 or (match.group(1) == "+" and minutes in (30, 45))):
            return (hours * 3600 + minutes * 60) * (-1 if match.group(1) == "-" else 1)
    raise given.refuse(f"{offset!r} is not an offset", WRONG_ARGUMENT_VALUE, "write Z, +hh, +hhmm or +hh:mm")


def _to_iso8601(given: ScalarCall) -> Tree:
    offset = given.constant(1)
    zone = given.session.time_zone
    shift, suffix = 0, ""
    if isinstance(offset, str):
        shift, zone, suffix = _offset_seconds(given, offset), "UTC", offset
    precision = given.precision
    per_second = UNITS_PER_SECOND[precision]

    def end_of(x: Tree, local: Tree) -> Tree:
        if suffix or zone == "UTC":
            return text(suffix or "+0000")
        minutes = fragment("(epoch_us(:local) - epoch_us(:utc)) // 60000000",
                           local=local, utc=local_timestamp(x, precision, "UTC"))
        return fragment("printf('%s%02d%02d', CASE WHEN :minutes < 0 THEN '-' ELSE '+' END, "
                        "abs(:minutes) // 60, abs(:minutes) % 60)", minutes=minutes)

    def whole(x: Tree) -> Tree:
        shifted = fragment(":x + :shift", x=x, shift=shift * per_second) if shift else x
        local = local_timestamp(shifted, precision, zone)
        return fragment(
            "strftime(:local, '%Y-%m-%dT%H:%M:%S.') "
            "|| lpad(CAST((:x % :per_second + :per_second) % :per_second AS VARCHAR), :digits, '0') || :end_of",
            local=local, x=x, per_second=per_second, digits=len(str(per_second)) - 1, end_of=end_of(x, local))

    return let(given.time(0).node, whole)


def _to_unixtimestamp(given: ScalarCall) -> SqlExpr:
    result = DataType(Kind.TIMESTAMP, precision=given.precision) if given.constant(1) == 1 else given.result
    value = given.time(0)
    return SqlExpr(value.node, result, value.constant)


def _format_of(given: ScalarCall) -> str:
    template = given.constant(1)
    assert isinstance(template, str)
    return template


def _to_char(given: ScalarCall) -> Tree:
    return time_format.to_char(given.time(0).node, _format_of(given), given.precision, given.session.time_zone)


def _to_timestamp(given: ScalarCall) -> Tree:
    if len(given) == 1:
        return _of_seconds(given)
    template, whole = _format_of(given), given.constant(0)
    read = time_format.to_timestamp(given.text(0), template, given.precision, given.session.time_zone)
    if isinstance(whole, str) and evaluate(read) is None:
        raise given.refuse(f"{whole!r} does not fit the format {template}", WRONG_ARGUMENT_VALUE)
    return read


def _of_seconds(given: ScalarCall) -> Tree:
    if given.arguments[0].type.is_string:
        raise given.refuse("a text is read by a format", WRONG_ARGUMENT_TYPE, "write to_timestamp(text, format)")
    per_second = UNITS_PER_SECOND[given.precision]
    if given.arguments[0].type.is_integer:
        return fragment(":seconds * :per_second", seconds=given.integer(0), per_second=per_second)
    return try_cast(fragment("round(:seconds * :per_second)", seconds=given.double(0), per_second=per_second), "BIGINT")


def _to_date(given: ScalarCall) -> Tree:
    return fragment("CAST(:local AS DATE)", local=local_timestamp(
        _to_timestamp(given), given.precision, given.session.time_zone))


FUNCTIONS = (
    FunctionSpec(
        "to_iso8601", "scalar",
        (Argument("time", frozenset((Kind.TIMESTAMP, *INTEGER_KINDS))),
         Argument("zone", TEXTS, literal=True, optional=True)),
        always(DataType(Kind.VARCHAR, 64)),
        "A time as ISO 8601 text with the offset of the session's time zone, or of `zone` such as '+02:00' or 'Z'.",
        example="to_iso8601(0, '+02:00')", scalar=near(_to_iso8601)),
    FunctionSpec(
        "to_unixtimestamp", "scalar",
        (Argument("text", TEXTS),
         Argument("as_timestamp", INTEGER_KINDS, literal=True, choices=ZERO_ONE, optional=True)),
        always(BIGINT),
        "ISO 8601 text as a number in the database's precision, or as a TIMESTAMP if the second argument is 1. NULL "
        "if the text isn't a time.",
        example="to_unixtimestamp('2024-01-01T00:00:00Z')", scalar=_to_unixtimestamp),
    FunctionSpec(
        "to_char", "scalar", (Argument("time", TIMES), _FORMAT), always(DataType(Kind.VARCHAR, 4096)),
        "A time as text. The format consists of YYYY, MM, DD, HH24, HH12, MI, SS, MS, US, NS, MON, DAY, AM, TZH and "
        "others.",
        example="to_char(ts, 'DD.MM.YYYY HH24:MI') FROM m WHERE v = 3", scalar=near(_to_char)),
    FunctionSpec(
        "to_timestamp", "scalar",
        (Argument("value", TEXTS | NUMBERS), Argument("format", TEXTS, literal=True, optional=True)),
        always(timestamp()),
        "A time from text in a format of to_char. Text that doesn't fit is NULL, or an error if it is a constant. "
        "Without a format: a time from seconds since 1970.",
        example="to_timestamp('06/05/2024', 'DD/MM/YYYY')", scalar=near(_to_timestamp)),
    FunctionSpec(
        "to_date", "scalar", (Argument("text", TEXTS), _FORMAT), always(other_type("DATE")),
        "Text in a format, as to_timestamp reads it, to a DATE.",
        example="CAST(to_date('06/05/2024', 'DD/MM/YYYY') AS VARCHAR)", scalar=near(_to_date)),
    FunctionSpec(
        "to_json", "scalar", (Argument("text", TEXTS, literal=True),), always(DataType(Kind.JSON)),
        "A string literal as JSON.", example="to_json('{\"a\": 1}')",
        scalar=lambda given: SqlExpr(given.text(0), given.result)),
)
