"""Constants and how they fit a column: one value at a time, with all of the dialect's conversions and limits.

`penstock.sql.rows.values` reads whole columns and comes here only for what its bulk conversions refuse.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, DecimalException, localcontext

import numpy as np
from sqlglot import exp
from sqlglot.tokens import TokenType

from penstock.common.errors import InvalidValueError, NotSupportedError, SqlSyntaxError
from penstock.sql.dialect.literals import MAX_ERROR_TEXT, parse_integer, parse_timestamp, start_of_day
from penstock.sql.dialect.parse_expression import ExpressionParser
from penstock.sql.tree.expression_nodes import DurationLiteral, TimestampLiteral, expression_sql
from penstock.sql.tree.statements import Duration
from penstock.sql.types import FLOATS, INTEGERS, UNITS_PER_SECOND, DataType, Kind, Precision

INTEGER_RANGES: dict[Kind, tuple[int, int]] = {
    Kind.TINYINT: (-(2**7), 2**7 - 1), Kind.SMALLINT: (-(2**15), 2**15 - 1), Kind.INT: (-(2**31), 2**31 - 1),
    Kind.BIGINT: (-(2**63), 2**63 - 1), Kind.UTINYINT: (0, 2**8 - 1), Kind.USMALLINT: (0, 2**16 - 1),
    Kind.UINT: (0, 2**32 - 1), Kind.UBIGINT: (0, 2**64 - 1), Kind.TIMESTAMP: (-(2**63), 2**63 - 1),
}
MAX_JSON_KEY = 256
MAX_JSON_BYTES = 4095
FLOAT_MAX = float(np.finfo(np.float32).max)
PLAIN_TEXT = r"'[^'\\\ud800-\udfff]*+'(?!')"  # halves of surrogate pairs are no text
_NUMBER = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)")
_QUOTED = re.compile(PLAIN_TEXT)
_MAX_NUMBER_TEXT = 400


@dataclass(frozen=True, slots=True)
class Number:
    """A numeric literal as typed, with its sign: `-1.50`, `0x1F`."""

    text: str


@dataclass(frozen=True, slots=True)
class Instant:
    """A time that was computed, in units of the database's precision."""

    units: int


Constant = Number | Instant | str | bool | None
"""A str is the value of a quoted string, not yet converted."""

Stored = int | float | bool | str | bytes | Decimal | None
"""What a column stores: TIMESTAMP is an int in units of the database's precision."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Reads constants in the context of one statement.

    `now_ms` is milliseconds since the epoch: every NOW of a statement is the same instant. All methods raise
    InvalidValueError (without the row and the column, which the caller knows).
    """

    precision: Precision
    time_zone: str
    now_ms: int

    def read(self, raw: str, data_type: DataType) -> Stored:
        """Returns the value that the text of one cell has in a column of this type."""
        return self.store(self.parse(raw), data_type, raw)

    def parse(self, raw: str) -> Constant:
        """Returns the constant that the text of one cell spells."""
        if _NUMBER.fullmatch(raw):
            return Number(raw)
        if not raw:
            raise InvalidValueError("a value is missing")
        if _QUOTED.fullmatch(raw):
            return raw[1:-1]
        upper = raw.upper()
        if upper == "NULL":
            return None
        if upper in ("TRUE", "FALSE"):
            return upper == "TRUE"
        named = self._named(raw.lower().removesuffix("()"))
        if named is not None:
            return Instant(named)
        try:
            parser = ExpressionParser()
            parser.begin(raw)
            if parser.at_type(TokenType.STRING) and parser.token.end + 1 == len(raw):
                return str(parser.token.text)
            expression = parser.parse_operand()
        except SqlSyntaxError as error:
            raise InvalidValueError(f"{shorten(raw)} is not a value: {error.message}", hint=error.hint) from error
        if parser.token:
            left = raw[parser.token.start:parser.token.end + 1]
            raise InvalidValueError(f"{shorten(raw)} is not a value: {left!r} was not expected")
        return self.evaluate(expression)

    def evaluate(self, expression: exp.Expression) -> Constant:
        """Returns the value of a constant expression: a literal, or a time plus or minus durations."""
        if isinstance(expression, exp.Literal):
            return str(expression.this) if expression.is_string else Number(str(expression.this))
        if isinstance(expression, exp.Null):
            return None
        if isinstance(expression, exp.Boolean):
            return bool(expression.this)
        if isinstance(expression, exp.Paren):
            return self.evaluate(expression.this)
        if isinstance(expression, exp.Neg):
            inner = self.evaluate(expression.this)
            if isinstance(inner, Number):
                return Number(inner.text[1:] if inner.text.startswith("-") else "-" + inner.text.removeprefix("+"))
        if isinstance(expression, TimestampLiteral):
            return Instant(parse_timestamp(expression.this, self.precision, self.time_zone))
        if isinstance(expression, exp.Anonymous) and not expression.expressions:
            instant = self._named(str(expression.this))
            if instant is not None:
                return Instant(instant)
        if isinstance(expression, exp.Add | exp.Sub) and isinstance(expression.expression, DurationLiteral):
            return self._shift(expression)
        text = shorten(expression_sql(expression))
        raise InvalidValueError(f"{text} is not a constant", hint="literals, NOW, TODAY and times ± durations are")

    def _named(self, name: str) -> int | None:
        """The instant of NOW or TODAY."""
        if name == "now":
            return self._units(self.now_ms)
        return self._units(start_of_day(self.now_ms, self.time_zone)) if name == "today" else None

    def _units(self, milliseconds: int) -> int:
        return milliseconds * (UNITS_PER_SECOND[self.precision] // 1000)

    def _shift(self, expression: exp.Expression) -> Instant:
        units = 0
        base = expression
        while isinstance(base, exp.Add | exp.Sub) and isinstance(base.expression, DurationLiteral):
            duration: Duration = base.expression.duration
            if duration.is_calendar:
                text = shorten(expression_sql(base))
                raise InvalidValueError(f"{text}: {duration} has no fixed length", hint="use units up to w")
            units += (-1 if isinstance(base, exp.Sub) else 1) * duration.in_units(self.precision)
            base = base.this
        start = self.evaluate(base)
        if start is None or isinstance(start, bool):
            raise InvalidValueError("only a time can be shifted by a duration")
        return Instant((start.units if isinstance(start, Instant) else self._timestamp(start)) + units)

    # --- storing ---

    def store(self, value: Constant, data_type: DataType, raw: str) -> Stored:
        """Returns the constant as a column of this type stores it; `raw` is for error messages."""
        kind = data_type.kind
        if value is None:
            return None
        if kind in (Kind.VARCHAR, Kind.NCHAR):
            return self._text(value, data_type, raw)
        if kind is Kind.JSON:
            return _json(value, raw)
        if kind is Kind.VARBINARY:
            return _binary(value, raw, data_type)
        if isinstance(value, str) and value.strip().upper() == "NULL":
            return None
        if kind is Kind.TIMESTAMP:
            units = value.units if isinstance(value, Instant) else self._timestamp(value)
            return _in_range(units, kind, raw)
        if kind in INTEGERS:
            return _in_range(_integer(value, raw, data_type), kind, raw)
        if kind in FLOATS:
            return _float(value, raw, data_type)
        if kind is Kind.BOOL:
            return _bool(value, raw)
        if kind is Kind.DECIMAL:
            return _decimal(value, raw, data_type)
        raise NotSupportedError(f"values of type {data_type.sql()} cannot be written")

    def _timestamp(self, value: Number | str | bool) -> int:
        if isinstance(value, str) and is_number(value.strip()):
            value = Number(value.strip())
        if isinstance(value, str):
            named = self._named(value.lower().removesuffix("()"))
            return parse_timestamp(value, self.precision, self.time_zone) if named is None else named
        if isinstance(value, Number):
            number = exact(value.text)
            if number is not None and number == number.to_integral_value():
                return int(number)
        text = value.text if isinstance(value, Number) else str(value).lower()
        raise InvalidValueError(f"{shorten(text)} is not a timestamp", hint="give an integer or text in quotes")

    def _text(self, value: Number | Instant | str | bool, data_type: DataType, raw: str) -> str:
        if isinstance(value, Instant):
            raise InvalidValueError(f"{shorten(raw)} is a time, not text")
        if isinstance(value, Number):
            text = value.text
            if not is_number(text):
                raise _not_a(value, raw, data_type)
        else:
            text = value if isinstance(value, str) else str(value).lower()
        check_length(text, data_type)
        return text


def is_number(text: str) -> bool:
    """Whether a text is a numeric literal, which may have a sign."""
    return _NUMBER.fullmatch(text) is not None


def is_beyond(number: float, kind: Kind) -> bool:
    """Whether a number is infinite as a column of FLOAT or DOUBLE would have it."""
    if kind is not Kind.FLOAT:
        return not math.isfinite(number)
    with np.errstate(over="ignore"):
        return not math.isfinite(np.float32(number))


def shorten(text: str) -> str:
    """Returns the text for use in a message: shortened if it is long."""
    return text if len(text) <= MAX_ERROR_TEXT else text[:MAX_ERROR_TEXT] + "..."


def check_length(text: str, data_type: DataType) -> None:
    """Raises InvalidValueError if the text is too long for the VARCHAR or NCHAR type."""
    limit = data_type.length
    if limit is None or len(text) * 4 <= limit:
        return
    characters = data_type.kind is Kind.NCHAR
    length = len(text) if characters else len(text.encode())
    if length > limit:
        unit = "characters" if characters else "bytes"
        raise InvalidValueError(f"{shorten(text)!r} has {length} {unit}; {data_type.sql()} takes {limit}")


def exact(text: str) -> Decimal | None:
    """Returns the exact value of a number's text, quoted or not; None if it is none, or absurdly long."""
    text = text.strip()
    if len(text) > _MAX_NUMBER_TEXT or not _NUMBER.fullmatch(text):
        return None
    sign, digits = (text[0], text[1:]) if text[0] in "+-" else ("", text)
    if digits[:2].lower() in ("0x", "0b"):
        try:
            return Decimal(parse_integer(digits)) * (-1 if sign == "-" else 1)
        except ValueError:
            return None
    try:
        number = Decimal(text)
    except DecimalException:
        return None
    return number if abs(number.adjusted()) <= _MAX_NUMBER_TEXT else None


def _not_a(value: object, raw: str, data_type: DataType) -> InvalidValueError:
    hint = "text needs a VARCHAR or NCHAR column" if isinstance(value, str) else None
    return InvalidValueError(f"{shorten(raw)} is not a value of type {data_type.sql()}", hint=hint)


def _number_text(value: Constant) -> str | None:
    if isinstance(value, Number):
        return value.text
    return value if isinstance(value, str) else None


def _exact_number(value: Constant, raw: str, data_type: DataType) -> Decimal:
    text = _number_text(value)
    number = None if text is None else exact(text)
    if number is None:
        raise _not_a(value, raw, data_type)
    return number


def _integer(value: Constant, raw: str, data_type: DataType) -> int:
    return int(_exact_number(value, raw, data_type).to_integral_value(ROUND_HALF_UP))


def _in_range(value: int, kind: Kind, raw: str) -> int:
    low, high = INTEGER_RANGES[kind]
    if not low <= value <= high:
        raise InvalidValueError(f"{shorten(raw)} is out of the range of {kind}", hint=f"{low} to {high}")
    return value


def _float(value: Constant, raw: str, data_type: DataType) -> float:
    text = _number_text(value)
    if text is None or not _NUMBER.fullmatch(text.strip()):
        raise _not_a(value, raw, data_type)
    integral = exact(text) if text.strip().lstrip("+-")[:2].lower() in ("0x", "0b") else None
    number = float(text) if integral is None else float(integral)
    if is_beyond(number, data_type.kind):
        raise InvalidValueError(f"{shorten(raw)} is out of the range of {data_type.sql()}")
    return number


def _bool(value: Constant, raw: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    return _exact_number(value, raw, DataType(Kind.BOOL)) != 0


def _decimal(value: Constant, raw: str, data_type: DataType) -> Decimal:
    number = _exact_number(value, raw, data_type)
    digits, scale = data_type.digits or 38, data_type.scale or 0
    with localcontext() as context:
        context.prec = 2 * _MAX_NUMBER_TEXT
        rounded = number.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP)
        too_big = abs(rounded) >= Decimal(10) ** (digits - scale)
    if too_big:
        raise InvalidValueError(f"{shorten(raw)} is out of the range of {data_type.sql()}")
    return rounded


def _binary(value: Constant, raw: str, data_type: DataType) -> bytes:
    if not isinstance(value, str):
        raise _not_a(value, raw, data_type)
    if value[:2].lower() == "\\x":
        try:
            content = bytes.fromhex(value[2:])
        except ValueError:
            raise InvalidValueError(f"{shorten(raw)} is not a string of hexadecimal digit pairs") from None
    else:
        content = value.encode()
    if data_type.length is not None and len(content) > data_type.length:
        raise InvalidValueError(
            f"{shorten(raw)} has {len(content)} bytes; {data_type.sql()} takes {data_type.length}"
        )
    return content


def _json(value: Number | Instant | str | bool, raw: str) -> str | None:
    """Returns the compact text of a JSON object. The first of equal keys counts; blank text is NULL."""
    if not isinstance(value, str):
        raise InvalidValueError(f"{shorten(raw)} is not JSON", hint="give an object in quotes")
    if not value.strip() or value.strip().lower() == "null":
        return None
    try:
        members = json.loads(value, object_pairs_hook=_first_members, parse_constant=_no_constant,
                             parse_float=_json_number, parse_int=_json_integer)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"{shorten(raw)} is not JSON: {error}") from error
    if not isinstance(members, dict):
        raise InvalidValueError(f"{shorten(raw)} is JSON, but not an object")
    for key, member in members.items():
        if len(key) > MAX_JSON_KEY or not (key.isascii() and key.isprintable()):
            raise InvalidValueError(f"JSON key {shorten(key)!r} must be printable ASCII of at most {MAX_JSON_KEY}")
        if isinstance(member, dict | list):
            raise InvalidValueError(f"JSON key {shorten(key)!r} holds an object or array; only plain values can be")
    text = json.dumps(members, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode()) > MAX_JSON_BYTES:
        raise InvalidValueError(f"JSON has at most {MAX_JSON_BYTES} bytes")
    return text if members else None


def _first_members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for key, member in pairs:
        if key:
            members.setdefault(key, member)
    return members


def _json_number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{shorten(text)} is beyond the range of DOUBLE")
    return number


def _json_integer(text: str) -> int:
    _json_number(text)
    return int(text)


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is not a JSON value")
