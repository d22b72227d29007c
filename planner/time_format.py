"""TO_CHAR and TO_TIMESTAMP: formats such as `YYYY-MM-DD HH24:MI:SS`, and the DuckDB SQL that they become."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from penstock.planner.scalar_sql import let, quote_text
from penstock.planner.timezones import from_local_timestamp, local_timestamp
from penstock.sql.types import UNITS_PER_SECOND, Precision

PartKind = Literal["field", "separator", "literal"]
_Number = Callable[[str], str]

_FIELDS = (
    "a.m.", "p.m.", "am", "pm", "yyyy", "yyy", "yy", "y", "month", "mon", "mm", "mi", "ms", "day", "ddd", "dd", "dy",
    "d", "hh24", "hh12", "hh", "ss", "us", "ns", "tzh",
)
_FIELD = re.compile("|".join(re.escape(name) for name in _FIELDS), re.IGNORECASE)
_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_DAYS = "monday|tuesday|wednesday|thursday|friday|saturday|sunday"
_WIDTHS = {"yyyy": 4, "yyy": 3, "yy": 2, "y": 1, "mm": 2, "dd": 2, "ddd": 3, "d": 1, "hh24": 2, "hh12": 2, "hh": 2,
           "mi": 2, "ss": 2, "ms": 3, "us": 6, "ns": 9}
LONGEST_NAME = 9


@dataclass(frozen=True, slots=True)
class FormatPart:
    """One piece of a format: a field (`text` as typed), a separating character, or text to be copied."""

    kind: PartKind
    text: str

    @property
    def field(self) -> str:
        return self.text.lower()


def parse_format(text: str) -> list[FormatPart]:
    """Splits a format. Text in double quotes is copied; a backslash makes the next character ordinary."""
    parts: list[FormatPart] = []
    at = 0
    while at < len(text):
        if text[at] == '"':
            end = text.find('"', at + 1)
            end = len(text) if end < 0 else end
            parts.append(FormatPart("literal", text[at + 1:end]))
            at = end + 1
            continue
        if text[at] == "\\" and at + 1 < len(text):
            parts.append(FormatPart("literal", text[at + 1]))
            at += 2
            continue
        match = _FIELD.match(text, at)
        if match is not None:
            parts.append(FormatPart("field", match.group()))
            at = match.end()
            continue
        character = text[at]
        ordinary = character.isalnum() or ord(character) > 127
        parts.append(FormatPart("literal" if ordinary else "separator", character))
        at += 1
    return parts


# --- to_char ----------------------------------------------------------------------------


def _name(local: str, code: str, typed: str, *, width: int) -> str:
    sql = f"strftime({local}, '{code}')"
    if typed.isupper():
        sql = f"upper({sql})"
    elif typed[0].islower():
        sql = f"lower({sql})"
    return f"rpad({sql}, {width}, ' ')" if width else sql


def _field_text(part: FormatPart, local: str, fraction: str, offset: str) -> str:
    field = part.field
    codes = {"yyyy": "%Y", "yy": "%y", "mm": "%m", "dd": "%d", "ddd": "%j", "hh24": "%H", "hh12": "%I", "hh": "%I",
             "mi": "%M", "ss": "%S"}
    if field in codes:
        return f"strftime({local}, '{codes[field]}')"
    if field == "yyy":
        return f"right(strftime({local}, '%Y'), 3)"
    if field == "y":
        return f"right(strftime({local}, '%Y'), 1)"
    if field in ("month", "day"):
        return _name(local, "%B" if field == "month" else "%A", part.text, width=LONGEST_NAME)
    if field in ("mon", "dy"):
        return _name(local, "%b" if field == "mon" else "%a", part.text, width=0)
    if field == "d":
        return f"CAST(dayofweek({local}) + 1 AS VARCHAR)"
    if field in ("ms", "us", "ns"):
        divisor = {"ms": 1_000_000, "us": 1_000, "ns": 1}[field]
        return f"lpad(CAST({fraction} // {divisor} AS VARCHAR), {_WIDTHS[field]}, '0')"
    if field == "tzh":
        return f"printf('%+03d', {offset})"
    morning, evening = ("a.m.", "p.m.") if "." in field else ("am", "pm")
    if part.text[0].isupper():
        morning, evening = morning.upper(), evening.upper()
    return f"CASE WHEN hour({local}) < 12 THEN '{morning}' ELSE '{evening}' END"


def to_char(ts: str, template: str, precision: Precision, time_zone: str) -> str:
    """Returns SQL of the text of a timestamp (SQL, units of `precision`) in a format."""
    parts = parse_format(template)

    def whole(x: str) -> str:
        local = local_timestamp(x, precision, time_zone)
        per_second = UNITS_PER_SECOND[precision]
        fraction = f"((({x}) % {per_second} + {per_second}) % {per_second} * {1_000_000_000 // per_second})"
        utc = local_timestamp(x, precision, "UTC")
        offset = f"CAST((epoch_us({local}) - epoch_us({utc})) // 3600000000 AS INTEGER)"
        texts = [_field_text(part, local, fraction, offset) if part.kind == "field" else quote_text(part.text)
                 for part in parts]
        return "(" + " || ".join(texts) + ")" if texts else f"left(CAST({x} AS VARCHAR), 0)"

    return let(ts, whole)


# --- to_timestamp -----------------------------------------------------------------------


def _field_pattern(part: FormatPart, following: FormatPart | None) -> str:
    field = part.field
    if field in _WIDTHS:
        # As in PostgreSQL, a number that a separator or the end follows may have any length.
        bounded = following is not None and following.kind != "separator"
        return rf"([0-9]{{1,{_WIDTHS[field]}}})" if bounded else r"([0-9]+)"
    if field == "month":
        return f"((?i:{_MONTHS}))"
    if field == "mon":
        return "((?i:" + "|".join(name[:3] for name in _MONTHS.split("|")) + "))"
    if field == "day":
        return f"((?i:{_DAYS}))"
    if field == "dy":
        return "((?i:" + "|".join(name[:3] for name in _DAYS.split("|")) + "))"
    if field == "tzh":
        return r"([+-]?[0-9]{1,2})"
    return r"((?i:[ap]\.m\.))" if "." in field else "((?i:[ap]m))"


def _pattern(parts: list[FormatPart]) -> tuple[str, list[str]]:
    pattern, names = "^", []
    for index, part in enumerate(parts):
        if part.kind == "separator":
            pattern += r"\s*" if part.text.isspace() else r"\s*[!-/:-@\[-`{-~]?"
        elif part.kind == "literal":
            pattern += r"\s*(?:" + re.escape(part.text.strip()) + ")?"
        else:
            following = next((p for p in parts[index + 1:] if not p.text.isspace()), None)
            pattern += r"\s*" + _field_pattern(part, following)
            names.append(part.field)
    return pattern, names


def to_timestamp(text: str, template: str, precision: Precision, time_zone: str) -> str:
    """Returns SQL of a timestamp in units of `precision` from a text in a format.

    A text that does not fit the format, or names no existing date or time, gives NULL.
    """
    pattern, names = _pattern(parse_format(template))
    groups = [f"f{index}" for index in range(len(names))]
    # A field that occurs twice counts where it occurs last.
    where = {name: f"f{index}" for index, name in enumerate(names)}

    def body(x: str) -> str:
        if not groups:
            value = "0"
        else:
            listed = ", ".join(quote_text(group) for group in groups)
            value = let(f"regexp_extract({x}, {quote_text(pattern)}, [{listed}])",
                        lambda p: _assemble(p, where, precision, time_zone))
        return f"CASE WHEN regexp_matches({x}, {quote_text(pattern)}) THEN {value} END"

    return let(text, body)


def _assemble(p: str, where: dict[str, str], precision: Precision, time_zone: str) -> str:
    def number(field: str, otherwise: str = "0") -> str:
        return f"TRY_CAST({p}.{where[field]} AS BIGINT)" if field in where else otherwise

    half = next((where[name] for name in ("am", "pm", "a.m.", "p.m.") if name in where), None)
    clock = _hour(p, number, where, half)
    date = (f"TRY_CAST(printf('%04d-%02d-%02d', {_year(number, where)}, {_month(p, number, where)}, "
            f"{number('dd', '1')}) AS DATE)")
    if "ddd" in where and not {"mm", "mon", "month", "dd"} & set(where):
        date = f"TRY_CAST(printf('%04d-01-01', {_year(number, where)}) AS DATE) + CAST({number('ddd')} - 1 AS INTEGER)"
    minute, second = number("mi"), number("ss")
    valid = f"{minute} BETWEEN 0 AND 59 AND {second} BETWEEN 0 AND 59"
    local = (f"(CAST({date} AS TIMESTAMP) + to_microseconds((({clock}) * 3600 + {minute} * 60 + {second}) * 1000000))")
    if "tzh" in where:
        units = from_local_timestamp(local, precision, "UTC")
        units = f"{units} - {number('tzh')} * 3600 * {UNITS_PER_SECOND[precision]}"
    else:
        units = from_local_timestamp(local, precision, time_zone)
    per_second = UNITS_PER_SECOND[precision]
    fractions = [f"TRY_CAST(rpad({p}.{where[field]}, {_WIDTHS[field]}, '0') AS BIGINT) * {scale}"
                 for field, scale in (("ms", 1_000_000), ("us", 1_000), ("ns", 1)) if field in where]
    if fractions:
        units = f"{units} + ({' + '.join(fractions)}) // {1_000_000_000 // per_second}"
    return f"CASE WHEN {valid} THEN {units} END"


def _year(number: _Number, where: dict[str, str]) -> str:
    chosen = next((name for name in reversed(list(where)) if name in ("yyyy", "yyy", "yy", "y")), None)
    if chosen is None:
        return "1970"
    value = number(chosen)
    if chosen == "yyyy":
        return value
    if chosen == "yy":
        return f"({value} + CASE WHEN {value} < 70 THEN 2000 WHEN {value} < 100 THEN 1900 ELSE 0 END)"
    return f"({value} + {2020 if chosen == 'y' else 2000})"


def _month(p: str, number: _Number, where: dict[str, str]) -> str:
    chosen = next((name for name in reversed(list(where)) if name in ("mm", "mon", "month")), None)
    if chosen is None:
        return "1"
    if chosen == "mm":
        return number("mm")
    names = ", ".join(quote_text(name[:3]) for name in _MONTHS.split("|"))
    return f"list_position([{names}], lower(left({p}.{where[chosen]}, 3)))"


def _hour(p: str, number: _Number, where: dict[str, str], half: str | None) -> str:
    twelve = next((name for name in ("hh12", "hh") if name in where), None)
    if twelve is None and half is None:
        hour = number("hh24")
        return f"CASE WHEN {hour} BETWEEN 0 AND 23 THEN {hour} END"
    if twelve is None and "hh24" in where:
        hour = number("hh24")
        return f"CASE WHEN {hour} BETWEEN 0 AND 23 THEN {hour} END"
    hour = number(twelve) if twelve is not None else "12"
    afternoon = f" + CASE WHEN lower({p}.{half}[1]) = 'p' THEN 12 ELSE 0 END" if half is not None else ""
    return f"CASE WHEN {hour} BETWEEN 1 AND 12 THEN {hour} % 12{afternoon} END"
