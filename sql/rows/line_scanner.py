"""One line of InfluxDB's line protocol, and one value: the exact form, escapes included, and what is wrong with it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from penstock.common.errors import InvalidValueError
from penstock.sql.rows.constants import INTEGER_RANGES, is_beyond, shorten
from penstock.sql.types import Kind

TYPES: dict[str, Kind] = {
    "": Kind.DOUBLE, "f64": Kind.DOUBLE, "f32": Kind.FLOAT,
    "i": Kind.BIGINT, "i8": Kind.TINYINT, "i16": Kind.SMALLINT, "i32": Kind.INT, "i64": Kind.BIGINT,
    "u": Kind.UBIGINT, "u8": Kind.UTINYINT, "u16": Kind.USMALLINT, "u32": Kind.UINT, "u64": Kind.UBIGINT,
}
BOOLS = {"t": True, "T": True, "true": True, "True": True, "TRUE": True,
         "f": False, "F": False, "false": False, "False": False, "FALSE": False}
STRING_KINDS = {'"': Kind.VARCHAR, 'L"': Kind.NCHAR, 'B"': Kind.VARBINARY, 'G"': Kind.GEOMETRY}
_INTEGER = re.compile(r"([-+]?[0-9]+)([iu](?:8|16|32|64)?)", re.ASCII)
_FLOAT = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)(f32|f64)?", re.ASCII)
_TIME = re.compile(r"[-+]?[0-9]+", re.ASCII)
_ESCAPED = re.compile(r"\\([,= ])")
_ESCAPED_IN_MEASUREMENT = re.compile(r"\\([, ])")
_ESCAPED_IN_STRING = re.compile(r'\\(["\\])')
_MEASUREMENT = re.compile(r"(?:[^\\, ]|\\.|\\\Z)+", re.DOTALL)
_KEY = re.compile(r"(?:[^\\,= ]|\\.)+", re.DOTALL)
_TAG_VALUE = re.compile(r"(?:[^\\,= ]|\\.|\\\Z)+", re.DOTALL)
_QUOTED = re.compile(r'[LBG]?"(?:[^"\\]|\\.)*"', re.DOTALL)
_UNQUOTED = re.compile(r"[^, ]+")
_FIELD = re.compile(f"({_KEY.pattern})=({_QUOTED.pattern}|{_UNQUOTED.pattern})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Series:
    """A measurement and its tags, in the order in which a line gives them."""

    measurement: str
    tags: tuple[tuple[str, str], ...]


def parse_value(text: str) -> tuple[Kind, Any]:
    """Returns the type and the value that a field's text stands for. Raises InvalidValueError without the line."""
    if text[-1:] == '"':
        return _parse_string(text)
    if text in BOOLS:
        return Kind.BOOL, BOOLS[text]
    integer = _INTEGER.fullmatch(text)
    if integer is not None:
        kind = TYPES[integer[2]]
        low, high = INTEGER_RANGES[kind]
        value = int(integer[1]) if len(integer[1]) < 100 else high + 1
        if not low <= value <= high:
            raise InvalidValueError(f"{shorten(text)} is out of the range of {kind}", hint=f"{low} to {high}")
        return kind, value
    number = _FLOAT.fullmatch(text)
    if number is None:
        hint = "text needs double quotes" if not text[:1].isdigit() else "suffixes are i8 to i64, u8 to u64, f32, f64"
        raise InvalidValueError(f"{shorten(text)} is not a value", hint=hint)
    kind = TYPES[number[2] or ""]
    if is_beyond(float(number[1]), kind):
        raise InvalidValueError(f"{shorten(text)} is out of the range of {kind}")
    return kind, float(number[1])


def _parse_string(text: str) -> tuple[Kind, str | bytes]:
    if _QUOTED.fullmatch(text) is None:
        raise InvalidValueError(f"{shorten(text)} is not a value", hint='a " inside of text needs a backslash')
    prefix, _, rest = text.partition('"')
    content = _ESCAPED_IN_STRING.sub(r"\1", rest[:-1])
    kind = STRING_KINDS[f'{prefix}"']
    if kind is Kind.GEOMETRY:
        raise InvalidValueError("values of type GEOMETRY are not supported")
    if kind is not Kind.VARBINARY:
        return kind, content
    if content[:2] != "\\x":
        return kind, content.encode()
    try:
        return kind, bytes.fromhex(content[2:])
    except ValueError:
        raise InvalidValueError(f"{shorten(text)} is not a string of hexadecimal digit pairs") from None


@lru_cache(maxsize=65_536)
def scan_head(text: str) -> tuple[Series, int]:
    """Returns measurement and tags at the beginning of a line, and where they end."""
    match = _MEASUREMENT.match(text)
    if match is None:
        raise InvalidValueError("the measurement is missing")
    measurement, at = _ESCAPED_IN_MEASUREMENT.sub(r"\1", match[0]), match.end()
    tags: list[tuple[str, str]] = []
    while text[at:at + 1] == ",":
        key = _KEY.match(text, at + 1)
        if key is None or text[key.end():key.end() + 1] != "=":
            raise InvalidValueError(f"tag {len(tags) + 1} is not of the form key=value")
        value = _TAG_VALUE.match(text, key.end() + 1)
        if value is None:
            raise InvalidValueError(f"tag {shorten(key[0])} has no value")
        tags.append((_unescaped(key[0]), _unescaped(value[0])))
        at = value.end()
    if text[at:at + 1] not in ("", " "):
        raise InvalidValueError(f"{text[at]!r} is not expected behind {shorten(text[:at])!r}",
                                hint="in tags, comma, equal sign and space need a backslash")
    if len(dict(tags)) < len(tags):
        raise InvalidValueError("a tag is given twice")
    return Series(measurement, tuple(tags)), at


def scan_line(text: str) -> tuple[Series, list[tuple[str, Kind, Any]], int]:
    """Returns series, fields and time (0: not given) of one line."""
    head_end = _head_end(text)
    series, _ = scan_head(text[:head_end])
    at = _skip_spaces(text, head_end)
    fields: list[tuple[str, Kind, Any]] = []
    while True:
        field = _FIELD.match(text, at)
        if field is None:
            raise _no_field(text, at, len(fields) + 1)
        key, value = field.groups()
        name, at = _unescaped(key), field.end()
        try:
            fields.append((name, *parse_value(value)))
        except InvalidValueError as error:
            raise InvalidValueError(f"field {shorten(name)}: {error.message}", hint=error.hint) from error
        if text[at:at + 1] != ",":
            break
        at += 1
    if text[at:at + 1] not in ("", " "):
        raise InvalidValueError(f"{text[at]!r} is not expected behind field {shorten(fields[-1][0])}")
    if len({one[0] for one in fields}) < len(fields):
        raise InvalidValueError("a field is given twice")
    rest = text[at:].strip()
    return series, fields, _parse_time(rest) if rest else 0


def _no_field(text: str, at: int, number: int) -> InvalidValueError:
    key = _KEY.match(text, at)
    if key is not None and text[key.end():key.end() + 1] == "=":
        return InvalidValueError(f"field {shorten(key[0])} has no value")
    return InvalidValueError("there are no fields" if number == 1 and at >= len(text) else
                             f"field {number} is not of the form key=value")


def _head_end(text: str) -> int:
    """Returns where the first space without backslash is, or the end of the text."""
    end = text.find(" ")
    if end >= 0 and text.find("\\", 0, end) < 0:
        return end
    at = 0
    while at < len(text) and text[at] != " ":
        at += 2 if text[at] == "\\" else 1
    return min(at, len(text))


def _skip_spaces(text: str, at: int) -> int:
    while text[at:at + 1] == " ":
        at += 1
    return at


def _parse_time(text: str) -> int:
    if _TIME.fullmatch(text) is None or len(text) > 20:
        raise InvalidValueError(f"{shorten(text)} is not a timestamp", hint="an integer is expected")
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise InvalidValueError(f"the timestamp {text} has more than 64 bits")
    return value


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(r"\1", text) if "\\" in text else text
