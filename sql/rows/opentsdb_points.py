"""Points as OpenTSDB's clients send them become line protocol: a metric is a measurement with the field `_value`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from penstock.common.errors import InvalidValueError
from penstock.sql.rows.constants import shorten
from penstock.sql.rows.line_scanner import parse_value

PRECISION = "ns"
"""The unit of the lines' timestamps."""

_FIELD = "_value"
_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_TIME = re.compile(r"0|[0-9]{10}|[0-9]{13}", re.ASCII)
_NO_NAME = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_NO_TEXT = re.compile(r"[\x00\n\r\ud800-\udfff]")
_SUFFIXES = {
    "tinyint": "i8", "smallint": "i16", "int": "i32", "bigint": "i64",
    "utinyint": "u8", "usmallint": "u16", "uint": "u32", "ubigint": "u64", "float": "f32", "double": "f64"}
_TEXTS = {"binary": "", "varchar": "", "nchar": "L"}


@dataclass(frozen=True, slots=True)
class PointLines:
    """One line for each of `count` points, in their order; an empty one for each that was `refused`."""

    lines: bytes
    count: int
    refused: list[InvalidValueError]


def from_telnet(data: bytes) -> PointLines:
    """Converts lines of the form `[put] metric timestamp value tag=value ...`. Raises InvalidValueError."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidValueError(f"line {line} is not valid UTF-8: {error.reason}") from error
    return _converted(text.split("\n"), _telnet_line, "line")


def from_json(data: bytes) -> PointLines:
    """Converts a JSON document with one point or an array of them. Raises InvalidValueError."""
    try:
        document = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"the points are not JSON: {error}") from error
    return _converted(document if isinstance(document, list) else [document], _json_line, "point")


def _converted(points: Iterable[Any], line_of: Callable[[Any], str], what: str) -> PointLines:
    lines: list[str] = []
    refused: list[InvalidValueError] = []
    empty = 0
    for number, point in enumerate(points, 1):
        if isinstance(point, str) and not point.strip():
            lines.append("")
            empty += 1
            continue
        try:
            lines.append(line_of(point))
        except InvalidValueError as error:
            refused.append(InvalidValueError(f"{what} {number}: {error.message}", hint=error.hint))
            lines.append("")
    if refused and len(refused) == len(lines) - empty:
        raise refused[0]
    return PointLines("\n".join(lines).encode(), len(lines) - empty, refused)


def _telnet_line(line: str) -> str:
    words = line.split()
    if words[0] == "put":
        del words[0]
    if len(words) < 3:
        raise InvalidValueError("metric, timestamp and value are needed", hint="metric 1700000000 1.5 host=a")
    metric, time, value, *tags = words
    parse_value(value)
    return _line(metric, [_pair(tag) for tag in tags], value, _nanoseconds(time))


def _pair(tag: str) -> tuple[str, str]:
    key, equals, value = tag.partition("=")
    if not equals:
        raise InvalidValueError(f"{shorten(tag)} is not of the form tag=value")
    return key, value


def _json_line(point: Any) -> str:
    if not isinstance(point, dict):
        raise InvalidValueError("a point is an object")
    metric, tags = point.get("metric"), point.get("tags") or {}
    if not isinstance(metric, str) or not isinstance(tags, dict) or "timestamp" not in point or "value" not in point:
        raise InvalidValueError("a point has a metric, a timestamp and a value, and tags in an object")
    return _line(metric, [(key, _tag_text(key, value)) for key, value in tags.items()], _value(point["value"]),
                 _time(point["timestamp"]))


def _tag_text(key: str, value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise InvalidValueError(f"tag {shorten(key)} is neither text nor a number")


def _time(given: Any) -> int:
    if isinstance(given, dict):
        unit, number = _NANOSECONDS.get(str(given.get("type", "")).lower()), given.get("value")
        if unit is None or isinstance(number, bool) or not isinstance(number, int):
            raise InvalidValueError("a timestamp has a value and a type: s, ms, us or ns")
        return number * unit
    return _nanoseconds(str(given))


def _nanoseconds(text: str) -> int:
    if _TIME.fullmatch(text) is None:
        raise InvalidValueError(f"{shorten(text)} is not a timestamp", hint="10 digits are seconds, 13 milliseconds")
    return int(text) * _NANOSECONDS["s" if len(text) == 10 else "ms"]


def _value(given: Any) -> str:
    """Returns a value as line protocol writes it: numbers are DOUBLE, texts NCHAR, if it doesn't say its type."""
    kind = "double"
    if isinstance(given, dict):
        kind, given = str(given.get("type", "")).lower(), given.get("value")
    elif isinstance(given, bool | str):
        kind = "bool" if isinstance(given, bool) else "nchar"
    if kind == "bool" and isinstance(given, bool):
        return "true" if given else "false"
    if kind in _TEXTS and isinstance(given, str):
        if _NO_TEXT.search(given) is not None:
            raise InvalidValueError("a text has a line break, a zero byte or half a character")
        escaped = given.replace("\\", r"\\").replace('"', r'\"')
        return f'{_TEXTS[kind]}"{escaped}"'
    if kind in _SUFFIXES and isinstance(given, int | float) and not isinstance(given, bool):
        text = f"{json.dumps(given)}{_SUFFIXES[kind]}"
        parse_value(text)
        return text
    raise InvalidValueError(f"{shorten(str(given))} is not a value of type {shorten(kind)}")


def _line(metric: str, tags: list[tuple[str, str]], value: str, time: int) -> str:
    if metric.startswith("#"):
        raise InvalidValueError("a metric begins with #, as comments do")
    series = "".join(f",{_name(key, 'a tag')}={_name(text, f'tag {shorten(key)}')}" for key, text in tags)
    return f"{_name(metric, 'the metric', ', ')}{series} {_FIELD}={value} {time}"


def _name(text: str, what: str, escaped: str = ",= ") -> str:
    """Returns a name or a tag's value as line protocol writes it, where `escaped` need a backslash."""
    if not text:
        raise InvalidValueError(f"{what} is empty")
    if _NO_NAME.search(text) is not None:
        raise InvalidValueError(f"{what} has a backslash, a control character or half a character")
    return re.sub(f"([{escaped}])", r"\\\1", text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
