"""Reads literals: strings, durations, timestamps, and positions in a text. Calendar arithmetic is not here."""

from __future__ import annotations

import re
from bisect import bisect_left
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import cast
from zoneinfo import ZoneInfo

from penstock.common.errors import InvalidValueError, Position
from penstock.sql.tree.statements import Duration, Unit
from penstock.sql.types import UNITS_PER_SECOND, Precision

_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\", "'": "'", '"': '"', "`": "`"}
_DURATION = re.compile(r"\s*([-+]?[0-9]{1,19})([buasmhdwny]?)\s*", re.IGNORECASE | re.ASCII)
_INTEGER = re.compile(r"\s*([-+]?)(0[xX][0-9a-fA-F]{1,16}|0[bB][01]{1,64}|[0-9]{1,40})\s*", re.ASCII)
_TIMESTAMP = re.compile(
    r"\s*(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?:[ Tt]+(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:[.,](?P<fraction>\d*))?)?)?"
    r"\s*(?P<zone>[Zz]|[-+]\d{2}(?::?\d{2})?)?\s*",
    re.ASCII,
)
_LINE_END = re.compile("\n")
_EPOCH_DAY = date(1970, 1, 1).toordinal()

MAX_ERROR_TEXT = 60
MAX_KEPT_TEXT = 4 << 20
MAX_INTEGER_TEXT = 130


def position(text: str, offset: int, length: int) -> Position:
    """Returns the line and column of a piece of the text, and the piece itself, shortened if it is long.

    Planners ask for the place of every part, to have it if that part is wrong: the lines are counted once per text.
    """
    offset = max(0, min(offset, len(text)))
    ends = _line_ends(text) if len(text) <= MAX_KEPT_TEXT else _line_ends.__wrapped__(text)
    line = bisect_left(ends, offset)
    piece = text[offset:offset + max(0, min(length, MAX_ERROR_TEXT + 1))]
    if len(piece) > MAX_ERROR_TEXT:
        piece = piece[:MAX_ERROR_TEXT] + "..."
    return Position(line + 1, offset - (ends[line - 1] + 1 if line else 0) + 1, piece)


@lru_cache(maxsize=4)
def _line_ends(text: str) -> list[int]:
    return [match.start() for match in _LINE_END.finditer(text)]


def unescape(raw: str) -> str:
    """Returns the value of a quoted string literal: backslash escapes and doubled quotes are resolved.

    An unknown escape keeps its backslash: `\\%` and `\\_` are LIKE's, `\\d` a regular expression's, `\\x` VARBINARY's.
    """
    quote, inner = raw[0], raw[1:-1]
    if "\\" not in inner:
        return inner.replace(quote * 2, quote) if quote in inner else inner
    result: list[str] = []
    at = 0
    for match in _ESCAPE.finditer(inner):
        result.append(inner[at:match.start()].replace(quote * 2, quote))
        result.append(_ESCAPED.get(match.group(1), match.group()))
        at = match.end()
    result.append(inner[at:].replace(quote * 2, quote))
    return "".join(result)


def parse_integer(text: str) -> int:
    """Returns the value of an unsigned integer token: decimal, `0x1F` or `0b101`. Raises ValueError."""
    if len(text) > MAX_INTEGER_TEXT:
        raise ValueError(text)
    prefix = text[:2].lower()
    if prefix == "0x":
        return int(text, 16)
    if prefix == "0b":
        return int(text, 2)
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def parse_duration(text: str) -> Duration | None:
    """Returns the duration that a text such as `10s`, `-1d` or `500` spells, or None."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    return Duration(int(match.group(1)), cast(Unit, match.group(2).lower()))


@lru_cache(maxsize=64)
def zone(name: str) -> tzinfo:
    """Returns the time zone of an IANA name. Raises InvalidValueError if there is none."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise InvalidValueError(f"{name!r} is not a time zone") from error


def parse_timestamp(text: str, precision: Precision, time_zone: str) -> int:
    """Returns units of `precision` since the epoch.

    Takes `YYYY-MM-DD[( |T)HH:MM[:SS[.fraction]]][zone]` (month, day and times may lack leading zeros) and integers,
    also hexadecimal and binary ones, which are units already. Without a zone (`Z`, `+08:00`, `+0800`, `+08`) the text
    is local time of `time_zone`. Digits finer than `precision` are cut off. Raises InvalidValueError.
    """
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        integer = _INTEGER.fullmatch(text)
        if integer is not None:
            return _checked(int(f"{integer.group(1)}{parse_integer(integer.group(2))}"), text)
        raise InvalidValueError(
            f"{text!r} is not a timestamp", hint="write 'YYYY-MM-DD HH:MM:SS.fff', with Z or +HH:MM for another zone"
        )
    try:
        seconds = _seconds_since_epoch(match, time_zone)
    except (ValueError, OverflowError) as error:
        raise InvalidValueError(f"{text!r} is not a timestamp: {error}") from error
    per_second = UNITS_PER_SECOND[precision]
    digits = len(str(per_second)) - 1
    fraction = (match.group("fraction") or "")[:digits].ljust(digits, "0")
    return _checked(seconds * per_second + int(fraction), text)


def _checked(units: int, text: str) -> int:
    if not -(2**63) <= units < 2**63:
        raise InvalidValueError(f"{text!r} is too far away for a timestamp of this precision")
    return units


def _seconds_since_epoch(match: re.Match[str], time_zone: str) -> int:
    numbers = (int(match.group(name) or 0) for name in ("year", "month", "day", "hour", "minute", "second"))
    year, month, day, hour, minute, second = numbers
    spelled = match.group("zone")
    if spelled is None and time_zone != "UTC":
        return int(datetime(year, month, day, hour, minute, second, tzinfo=zone(time_zone)).timestamp())
    datetime(year, month, day, hour, minute, second)
    seconds = (date(year, month, day).toordinal() - _EPOCH_DAY) * 86_400 + hour * 3600 + minute * 60 + second
    return seconds - _zone_seconds(spelled)


def _zone_seconds(spelled: str | None) -> int:
    if spelled is None or spelled in "Zz":
        return 0
    digits = spelled[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 14 or minutes > 59:
        raise ValueError(f"no such zone: {spelled}")
    return (-1 if spelled[0] == "-" else 1) * (hours * 3600 + minutes * 60)


def units_of_local(units: int, per_second: int, time_zone: str) -> int:
    """Returns the instant of a local time: both are units since 1970, `per_second` to the second.

    A time that a change of the clock doubles is the first of the two; one that it leaves out is as late as if the clock
    had not been changed yet. Raises InvalidValueError for times that no calendar has.
    """
    if time_zone == "UTC":
        return units
    seconds, part = divmod(units, per_second)
    try:
        local = datetime(1970, 1, 1) + timedelta(seconds=seconds)
        return int(local.replace(tzinfo=zone(time_zone)).timestamp()) * per_second + part
    except (ValueError, OverflowError) as error:
        raise InvalidValueError(f"the time {units} is too far away for time zone {time_zone}") from error


def start_of_day(now_ms: int, time_zone: str) -> int:
    """Returns the milliseconds since the epoch of the local midnight before `now_ms`: what TODAY means."""
    local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=now_ms)).astimezone(zone(time_zone))
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    return int(midnight.timestamp()) * 1000
