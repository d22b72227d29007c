"""PEP 249's type objects, which type codes compare equal to, and constructors of values."""

from __future__ import annotations

from datetime import date, datetime, time

from penstock.sql.types import FLOATS, INTEGERS, DataType, Kind

Binary = bytes
Date = date
Time = time
Timestamp = datetime


def DateFromTicks(ticks: float) -> date:
    """Returns the local date of seconds since the epoch."""
    return date.fromtimestamp(ticks)


def TimeFromTicks(ticks: float) -> time:
    """Returns the local time of day of seconds since the epoch."""
    return datetime.fromtimestamp(ticks).time()


def TimestampFromTicks(ticks: float) -> datetime:
    """Returns the local time of seconds since the epoch."""
    return datetime.fromtimestamp(ticks)


class _TypeObject:
    """Compares equal to the type codes (names of SQL types) it stands for."""

    def __init__(self, *kinds: str) -> None:
        self._kinds = frozenset(map(str, kinds))

    def __eq__(self, other: object) -> bool:
        return other in self._kinds if isinstance(other, str) else self is other

    def __hash__(self) -> int:
        return hash(self._kinds)


STRING = _TypeObject(Kind.VARCHAR, Kind.NCHAR, Kind.JSON, "UUID")
BINARY = _TypeObject(Kind.VARBINARY, Kind.GEOMETRY)
NUMBER = _TypeObject(*INTEGERS, *FLOATS, Kind.DECIMAL, Kind.BOOL, "HUGEINT", "UHUGEINT")
DATETIME = _TypeObject(Kind.TIMESTAMP, "DATE", "TIME", "INTERVAL")
ROWID = _TypeObject()

Description = tuple[str, str, None, int | None, int | None, int | None, bool]


def describe(name: str, kind: DataType) -> Description:
    return name, kind.name_of_kind(), None, kind.width(), kind.digits, kind.scale, True
