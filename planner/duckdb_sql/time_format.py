"""TO_CHAR and TO_TIMESTAMP: formats such as `YYYY-MM-DD HH24:MI:SS`, and the trees of DuckDB SQL that they become."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, fragment, joined, let, made, number, text
from penstock.planner.duckdb_sql.timezones import from_local_timestamp, local_timestamp
from penstock.sql.types import UNITS_PER_SECOND, Precision

PartKind = Literal["field", "separator", "literal"]

_FIELDS = (
    "a.m.", "p.m.", "am", "pm", "yyyy", "yyy", "yy", "y", "month", "mon", "mm", "mi", "ms", "day", "ddd", "dd", "dy",
    "d", "hh24", "hh12", "hh", "ss", "us", "ns", "tzh",
)
_FIELD = re.compile("|".join(re.escape(name) for name in _FIELDS), re.IGNORECASE)
_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_DAYS = "monday|tuesday|wednesday|thursday|friday|saturday|sunday"
_WIDTHS = {"yyyy": 4, "yyy": 3, "yy": 2, "y": 1, "mm": 2, "dd": 2, "ddd": 3, "d": 1, "hh24": 2, "hh12": 2, "hh": 2,
           "mi": 2, "ss": 2, "ms": 3, "us": 6, "ns": 9}
_CODES = {"yyyy": "%Y", "yy": "%y", "mm": "%m", "dd": "%d", "ddd": "%j", "hh24": "%H", "hh12": "%I", "hh": "%I",
          "mi": "%M", "ss": "%S"}
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


def _name(local: Tree, code: str, typed: str, *, width: int) -> Tree:
    name = fragment("strftime(:local, :code)", local=local, code=code)
    if typed.isupper():
        name = call("upper", name)
    elif typed[0].islower():
        name = call("lower", name)
    return fragment("rpad(:name, :width, ' ')", name=name, width=width) if width else name


def _texts(parts: Sequence[FormatPart], local: Tree, fraction: Tree, offset: Tree) -> Iterator[Tree]:
    """Yields the texts that parts become, those that DuckDB has codes for together with what is between them."""
    for plain, run in groupby(parts, lambda part: part.kind != "field" or part.field in _CODES):
        of_run = list(run)
        if not plain:
            yield from (_field_text(part, local, fraction, offset) for part in of_run)
        elif all(part.kind != "field" for part in of_run):
            yield text("".join(part.text for part in of_run))
        else:
            code = "".join(_CODES[part.field] if part.kind == "field" else part.text.replace("%", "%%")
                           for part in of_run)
            yield fragment("strftime(:local, :code)", local=local, code=code)


def _field_text(part: FormatPart, local: Tree, fraction: Tree, offset: Tree) -> Tree:
    field = part.field
    if field in ("yyy", "y"):
        return fragment("right(strftime(:local, '%Y'), :width)", local=local, width=_WIDTHS[field])
    if field in ("month", "day"):
        return _name(local, "%B" if field == "month" else "%A", part.text, width=LONGEST_NAME)
    if field in ("mon", "dy"):
        return _name(local, "%b" if field == "mon" else "%a", part.text, width=0)
    if field == "d":
        return fragment("CAST(dayofweek(:local) + 1 AS VARCHAR)", local=local)
    if field in ("ms", "us", "ns"):
        divisor = {"ms": 1_000_000, "us": 1_000, "ns": 1}[field]
        return fragment("lpad(CAST(:fraction // :divisor AS VARCHAR), :width, '0')",
                        fraction=fraction, divisor=divisor, width=_WIDTHS[field])
    if field == "tzh":
        return fragment("printf('%+03d', :offset)", offset=offset)
    morning, evening = ("a.m.", "p.m.") if "." in field else ("am", "pm")
    if part.text[0].isupper():
        morning, evening = morning.upper(), evening.upper()
    return fragment("CASE WHEN hour(:local) < 12 THEN :morning ELSE :evening END",
                    local=local, morning=morning, evening=evening)


def to_char(ts: Tree, template: str, precision: Precision, time_zone: str) -> Tree:
    """Returns the text of a timestamp (units of `precision`) in a format."""
    parts = parse_format(template)

    def whole(x: Tree) -> Tree:
        if not parts:
            return fragment("left(CAST(:x AS VARCHAR), 0)", x=x)
        local = local_timestamp(x, precision, time_zone)
        per_second = UNITS_PER_SECOND[precision]
        fraction = fragment("(:x % :per_second + :per_second) % :per_second * :scale",
                            x=x, per_second=per_second, scale=1_000_000_000 // per_second)
        offset = fragment("CAST((epoch_us(:local) - epoch_us(:utc)) // 3600000000 AS INTEGER)",
                          local=local, utc=local_timestamp(x, precision, "UTC"))
        return joined(*_texts(parts, local, fraction, offset))

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
    """Returns the regular expression of a format, and the fields that its groups find.

    As in TDengine, a text may end where any part of the format begins.
    """
    pattern = "^"
    names: list[str] = []
    for index, part in enumerate(parts):
        # A first field that isn't there is a mismatch: '' is no time.
        pattern += "(?:$|" if names else "(?:"
        if part.kind == "separator":
            pattern += r"\s*" if part.text.isspace() else r"\s*[!-/:-@\[-`{-~]?"
        elif part.kind == "literal":
            pattern += r"\s*(?:" + re.escape(part.text.strip()) + ")?"
        else:
            following = next((p for p in parts[index + 1:] if not p.text.isspace()), None)
            pattern += r"\s*" + _field_pattern(part, following)
            names.append(part.field)
    return pattern + ")" * len(parts), names


def to_timestamp(given: Tree, template: str, precision: Precision, time_zone: str) -> Tree:
    """Returns a timestamp in units of `precision` from a text in a format.

    A text that does not fit the format, or names no existing date or time, gives NULL.
    """
    pattern, names = _pattern(parse_format(template))
    groups = [text(f"f{index}") for index in range(len(names))]
    # A field that occurs twice counts where it occurs last.
    where = {name: f"f{index}" for index, name in enumerate(names)}

    def body(x: Tree) -> Tree:
        value: Tree = number(0)
        if groups:
            value = let(call("regexp_extract", x, text(pattern), made(exp.Array, expressions=groups)),
                        lambda fields: _Reading(fields, where).units(precision, time_zone))
        return fragment("CASE WHEN regexp_matches(:x, :pattern) THEN :value END", x=x, pattern=pattern, value=value)

    return let(given, body)


@dataclass(frozen=True, slots=True)
class _Reading:
    """The fields that a pattern has found, a struct; `where` has the member for the name of each."""

    fields: Tree
    where: dict[str, str]

    def units(self, precision: Precision, time_zone: str) -> Tree:
        """The instant, NULL if there is no such."""
        per_second = UNITS_PER_SECOND[precision]
        minute, second = self._number("mi"), self._number("ss")
        local = fragment("CAST(:date AS TIMESTAMP) "
                         "+ to_microseconds((:hour * 3600 + :minute * 60 + :second) * 1000000)",
                         date=self._date(), hour=self._hour(), minute=minute, second=second)
        units = from_local_timestamp(local, precision, time_zone)
        if "tzh" in self.where:
            units = fragment("CASE WHEN :written = '' THEN :here ELSE :utc - :offset * 3600 * :per_second END",
                             written=self._text("tzh"), here=units, offset=self._number("tzh"), per_second=per_second,
                             utc=from_local_timestamp(local, precision, "UTC"))
        nanoseconds: Tree = number(0)
        for field, scale in (("ms", 1_000_000), ("us", 1_000), ("ns", 1)):
            if field in self.where:
                nanoseconds = fragment(":sum + TRY_CAST(rpad(:digits, :width, '0') AS BIGINT) * :scale",
                                       sum=nanoseconds, digits=self._text(field), width=_WIDTHS[field], scale=scale)
        units = fragment(":units + (:nanoseconds) // :per_unit", units=units, nanoseconds=nanoseconds,
                         per_unit=1_000_000_000 // per_second)
        return fragment("CASE WHEN :minute BETWEEN 0 AND 59 AND :second BETWEEN 0 AND 59 THEN :units END",
                        minute=minute, second=second, units=units)

    def _text(self, field: str) -> Tree:
        return made(exp.Dot, this=self.fields, expression=exp.to_identifier(self.where[field]))

    def _number(self, field: str, otherwise: int = 0) -> Tree:
        """The number in a field; `otherwise` where the format hasn't it, or the text ends before; NULL if too large."""
        if field not in self.where:
            return number(otherwise)
        return fragment("CASE WHEN :digits = '' THEN :otherwise ELSE TRY_CAST(:digits AS BIGINT) END",
                        digits=self._text(field), otherwise=otherwise)

    def _last(self, *fields: str) -> str | None:
        return next((name for name in reversed(list(self.where)) if name in fields), None)

    def _date(self) -> Tree:
        if "ddd" in self.where and not {"mm", "mon", "month", "dd"} & set(self.where):
            return fragment("TRY_CAST(printf('%04d-01-01', :year) AS DATE) + CAST(:day - 1 AS INTEGER)",
                            year=self._year(), day=self._number("ddd", 1))
        return fragment("TRY_CAST(printf('%04d-%02d-%02d', :year, :month, :day) AS DATE)",
                        year=self._year(), month=self._month(), day=self._number("dd", 1))

    def _year(self) -> Tree:
        chosen = self._last("yyyy", "yyy", "yy", "y")
        if chosen is None:
            return number(1970)
        value = self._number(chosen, 1970)
        if chosen == "yyyy":
            return value
        # As TDengine does: two digits are of 1970 to 2069, three of 1520 to 2519.
        return fragment("CASE WHEN :year < 70 THEN :year + 2000 WHEN :year < 100 THEN :year + 1900 "
                        "WHEN :year < 520 THEN :year + 2000 WHEN :year < 1000 THEN :year + 1000 ELSE :year END",
                        year=value)

    def _month(self) -> Tree:
        chosen = self._last("mm", "mon", "month")
        if chosen is None or chosen == "mm":
            return self._number("mm", 1)
        names = made(exp.Array, expressions=[text(name[:3]) for name in _MONTHS.split("|")])
        return fragment("CASE WHEN :name = '' THEN 1 ELSE list_position(:names, lower(left(:name, 3))) END",
                        names=names, name=self._text(chosen))

    def _hour(self) -> Tree:
        half = next((name for name in ("am", "pm", "a.m.", "p.m.") if name in self.where), None)
        twelve = next((name for name in ("hh12", "hh") if name in self.where), None)
        if twelve is None and (half is None or "hh24" in self.where):
            return fragment("CASE WHEN :hour BETWEEN 0 AND 23 THEN :hour END", hour=self._number("hh24"))
        hour = self._number(twelve, 12) if twelve is not None else number(12)
        within = fragment(":hour % 12", hour=hour) if half is None else fragment(
            ":hour % 12 + CASE WHEN lower(:half[1]) = 'p' THEN 12 ELSE 0 END", hour=hour, half=self._text(half))
        return fragment("CASE WHEN :hour BETWEEN 1 AND 12 THEN :within END", hour=hour, within=within)
