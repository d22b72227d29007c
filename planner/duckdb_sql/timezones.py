"""Timestamps against the calendar of a time zone, as trees of DuckDB SQL and in Python; windows are cut elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, fragment, let
from penstock.sql.dialect.literals import zone
from penstock.sql.types import UNITS_PER_SECOND, Precision


def floor_divide(value: Tree, divisor: int) -> Tree:
    """Returns an integer divided and rounded towards minus infinity; DuckDB's `//` cuts towards zero."""
    return let(value, lambda x: fragment("(:x - ((:x % :by + :by) % :by)) // :by", x=x, by=divisor))


def microseconds(units: Tree, precision: Precision) -> Tree:
    """Returns a timestamp in microseconds, cut towards minus infinity."""
    if precision == "ms":
        return fragment(":units * 1000", units=units)
    return units if precision == "us" else floor_divide(units, 1000)


def from_microseconds(value: Tree, precision: Precision) -> Tree:
    """Returns a timestamp in units of `precision`; under `ms` the microseconds must be whole milliseconds."""
    if precision == "ms":
        return fragment(":value // 1000", value=value)
    return value if precision == "us" else fragment(":value * 1000", value=value)


def local_timestamp(units: Tree, precision: Precision, time_zone: str) -> Tree:
    """Returns a DuckDB TIMESTAMP: the wall clock in the time zone, cut to microseconds.

    Times beyond DuckDB's calendar (some 290,000 years) are NULL instead of an error.
    """
    # `let` keeps error() and random() out of TRY, in which DuckDB does not allow them.
    if time_zone == "UTC":
        return let(units, lambda x: fragment("TRY(make_timestamp(:us))", us=microseconds(x, precision)))
    return let(units, lambda x: fragment("timezone(:zone, TRY(make_timestamptz(:us)))",
                                         zone=time_zone, us=microseconds(x, precision)))


def from_local_timestamp(local: Tree, precision: Precision, time_zone: str) -> Tree:
    """Returns units of `precision` since the epoch from a DuckDB TIMESTAMP on the zone's wall clock."""
    if time_zone != "UTC":
        local = fragment("timezone(:zone, :local)", zone=time_zone, local=local)
    return from_microseconds(call("epoch_us", local), precision)


def add_months(units: Tree, months: int, precision: Precision, time_zone: str) -> Tree:
    """Returns a timestamp moved by calendar months on the zone's wall clock, the last day staying in the month.

    What is finer than a microsecond is kept.
    """
    def moved(x: Tree) -> Tree:
        local = fragment(":local + to_months(:months)", local=local_timestamp(x, precision, time_zone), months=months)
        whole = from_local_timestamp(local, precision, time_zone)
        return fragment(":whole + (:x % 1000 + 1000) % 1000", whole=whole, x=x) if precision == "ns" else whole

    return let(units, moved)


def describe_zone(at_ms: int, time_zone: str) -> str:
    """Returns what TIMEZONE() prints, such as `Asia/Shanghai (CST, +0800)`."""
    local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)).astimezone(zone(time_zone))
    return f"{time_zone} ({local.tzname()}, {local:%z})"


def milliseconds_to_units(at_ms: int, precision: Precision) -> int:
    """Returns milliseconds since the epoch in units of `precision`."""
    return at_ms * (UNITS_PER_SECOND[precision] // 1000)
