"""Between which instants the timestamps of rows may lie."""

from __future__ import annotations

from penstock.sql.schema import Database
from penstock.sql.types import UNITS_PER_SECOND, Precision

# The latest timestamps that TDengine takes: the year 2970, and 2262 for nanoseconds.
LATEST: dict[Precision, int] = {
    "ms": 31_556_995_200_000, "us": 31_556_995_200_000_000, "ns": 9_214_646_400_000_000_000}


def oldest_allowed(database: Database, now_ms: int) -> int:
    """Returns the oldest timestamp that KEEP allows, in units of the database's precision."""
    return (now_ms - database.options.keep_minutes * 60_000) * UNITS_PER_SECOND[database.precision] // 1000
