"""Timestamps against the calendar of a time zone, as DuckDB SQL and in Python; windows are cut elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.planner.scalar_sql import let, quote_text
from penstock.sql.literals import zone
from penstock.sql.types import UNITS_PER_SECOND, Precision


def floor_divide(sql: str, divisor: int) -> str:
    """Returns SQL for integer division that rounds towards minus infinity; DuckDB's `//` cuts towards zero."""
    return let(sql, lambda x: f"(({x} - ((({x}) % {divisor} + {divisor}) % {divisor})) // {divisor})")


def microseconds(sql: str, precision: Precision) -> str:
    """Returns SQL for the timestamp in microseconds, cut towards minus infinity."""
    if precision == "ms":
        return f"(({sql}) * 1000)"
    if precision == "us":
        return f"({sql})"
    return floor_divide(sql, 1000)


def from_microseconds(sql: str, precision: Precision) -> str:
    """Returns SQL for a timestamp in units of `precision`; under `ms` the microseconds must be whole milliseconds."""
    if precision == "ms":
        return f"(({sql}) // 1000)"
    if precision == "us":
        return f"({sql})"
    return f"(({sql}) * 1000)"


def local_timestamp(sql: str, precision: Precision, time_zone: str) -> str:
    """Returns SQL of a DuckDB TIMESTAMP: the wall clock in the time zone, cut to microseconds.

    Times beyond DuckDB's calendar (some 290,000 years) are NULL instead of an error.
    """
    # `let` keeps error() and random() out of TRY, in which DuckDB does not allow them.
    if time_zone == "UTC":
        return let(sql, lambda x: f"TRY(make_timestamp({microseconds(x, precision)}))")
    zone_name = quote_text(time_zone)
    return let(sql, lambda x: f"timezone({zone_name}, TRY(make_timestamptz({microseconds(x, precision)})))")


def from_local_timestamp(sql: str, precision: Precision, time_zone: str) -> str:
    """Returns SQL for units of `precision` since the epoch from a DuckDB TIMESTAMP on the zone's wall clock."""
    if time_zone != "UTC":
        sql = f"timezone({quote_text(time_zone)}, {sql})"
    return from_microseconds(f"epoch_us({sql})", precision)


def add_months(sql: str, months: int, precision: Precision, time_zone: str) -> str:
    """Returns SQL of a timestamp moved by calendar months on the zone's wall clock, the last day staying in the month.

    What is finer than a microsecond is kept.
    """
    def moved(x: str) -> str:
        local = f"({local_timestamp(x, precision, time_zone)} + to_months({months}))"
        whole = from_local_timestamp(local, precision, time_zone)
        return f"({whole} + (({x}) % 1000 + 1000) % 1000)" if precision == "ns" else whole

    return let(sql, moved)


def describe_zone(at_ms: int, time_zone: str) -> str:
    """Returns what TIMEZONE() prints, such as `Asia/Shanghai (CST, +0800)`."""
    local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)).astimezone(zone(time_zone))
    return f"{time_zone} ({local.tzname()}, {local:%z})"


def milliseconds_to_units(at_ms: int, precision: Precision) -> int:
    """Returns milliseconds since the epoch in units of `precision`."""
    return at_ms * (UNITS_PER_SECOND[precision] // 1000)
