"""Compares an answer with DuckDB's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

Row = tuple[Any, ...]
_CLOSE = 1e-6
_NUMBERS = (bool, int, float, Decimal)
_BIGGEST = 2**63


def difference(ours: Sequence[Row], theirs: Sequence[Row], *, ordered: bool) -> str | None:
    """Returns what is different of two answers, or None. `ordered`: rows come in this order, else in any."""
    if ours and theirs and len(ours[0]) != len(theirs[0]):
        return f"{len(ours[0])} columns instead of {len(theirs[0])}"
    if len(ours) != len(theirs):
        return f"{len(ours)} rows instead of {len(theirs)}"
    if ordered and _first_other(ours, theirs) is None:
        return None
    one, other = sorted(ours, key=_rank), sorted(theirs, key=_rank)
    found = _first_other(one, other)
    if found is None:
        return "the same rows in another order" if ordered else None
    return f"{_short(one[found])} instead of {_short(other[found])}"


def decided(ours: Sequence[Row], theirs: Sequence[Row]) -> str | None:
    """Returns by which decision answers differ, if all of their differences are by the same one, else None."""
    if len(ours) != len(theirs) or (ours and len(ours[0]) != len(theirs[0])):
        return None
    pairs = zip((value for row in ours for value in row), (value for row in theirs for value in row), strict=True)
    reasons = {_decision(one, other) for one, other in pairs if not _alike(one, other)}
    return reasons.pop() if len(reasons) == 1 else None


def _decision(one: Any, other: Any) -> str | None:
    if one is None and isinstance(other, int | float | Decimal) and (
            not math.isfinite(other) or abs(other) >= _BIGGEST):
        return "what isn't finite, or beyond 64 bits, is NULL"
    if isinstance(one, int) and isinstance(other, pa.MonthDayNano):
        return "the difference of times is a number"
    return None


def _first_other(ours: Sequence[Row], theirs: Sequence[Row]) -> int | None:
    return next((place for place, (one, other) in enumerate(zip(ours, theirs, strict=True))
                 if not all(map(_alike, one, other))), None)


def _alike(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, _NUMBERS) and isinstance(other, _NUMBERS):
        return _near(one, other)
    if isinstance(one, datetime | date) and isinstance(other, datetime | date):
        return _moment(one) == _moment(other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return len(one) == len(other) and all(map(_alike, one.values(), other.values()))
    return bool(one == other) or str(one) == str(other)


def _near(one: Any, other: Any) -> bool:
    if one == other:
        return True
    one, other = float(one), float(other)
    return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=1e-9) or (math.isnan(one) and math.isnan(other))


def _moment(value: date) -> datetime:
    if not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)
    return value.replace(tzinfo=None) if value.tzinfo is None else (value - value.utcoffset()).replace(tzinfo=None)


def _rank(row: Row) -> list[tuple[int, Any]]:
    return [_value_rank(value) for value in row]


def _value_rank(value: Any) -> tuple[int, Any]:
    """Orders values of any kinds, numbers by value, so that equal rows come to the same place."""
    if value is None:
        return 0, 0
    if isinstance(value, _NUMBERS):
        number = float(value)
        return 1, math.inf if math.isnan(number) else float(f"{number:.5g}")
    if isinstance(value, datetime | date):
        return 2, _moment(value).isoformat()
    return 3, str(value)


def _short(row: Row) -> str:
    text = ", ".join(str(value) if isinstance(value, datetime | date | time | timedelta | Decimal) else repr(value)
                     for value in row)
    return text if len(text) <= 200 else f"{text[:200]}..."
