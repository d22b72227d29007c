"""Comparison, BETWEEN, IN, LIKE and MATCH between values of any two types, as boolean DuckDB SQL."""

from __future__ import annotations

import re

from penstock.common.errors import InvalidStatementError, InvalidValueError, Position
from penstock.planner.folding import evaluate
from penstock.planner.plan import SqlExpr
from penstock.planner.scalar_cast import (
    text_to_double,
    text_to_timestamp,
    timestamp_constant,
    to_bool,
    to_double,
)
from penstock.planner.scalar_json import JsonKind, JsonValue
from penstock.planner.scalar_sql import quote_text
from penstock.sql.literals import parse_timestamp
from penstock.sql.types import FLOATS, INTEGERS, STRINGS, DataType, Kind, Precision

WRONG_OPERAND = 0x2603
FLOAT_MAX = 3.4028234663852886e38
_NUMBER_TEXT = re.compile(r"\s*[-+]?[0-9]{1,18}\s*", re.ASCII)
_CAST_INTEGER = re.compile(r"CAST\((-?[0-9]+) AS ([A-Z]+)\)")
_TEXT = re.compile(r"'((?:[^']|'')*)'")
_SEPARATORS = (",", ";", "|", *map(chr, range(1, 32)))
MANY_VALUES = 200
_NUMERIC = (*INTEGERS, *FLOATS, Kind.DECIMAL)


def _fits_float(constant: object) -> bool:
    return isinstance(constant, int | float) and abs(constant) <= FLOAT_MAX


def _number_of_text(expression: SqlExpr, *, as_float: bool) -> str:
    """A text compared with a number: literals that spell an integer keep all digits, and FLOAT meets FLOAT."""
    if as_float:
        return f"TRY_CAST({text_to_double(expression.sql)} AS FLOAT)"
    if isinstance(expression.constant, str) and _NUMBER_TEXT.fullmatch(expression.constant):
        return f"CAST({int(expression.constant)} AS BIGINT)"
    return text_to_double(expression.sql)


def _numbers(left: SqlExpr, right: SqlExpr) -> tuple[str, str]:
    """Two numbers. A FLOAT meets a constant as FLOAT, so that it equals the literal it was written as."""
    a, b = left.type.kind, right.type.kind
    if a is Kind.FLOAT and _fits_float(right.constant):
        return left.sql, f"CAST({right.sql} AS FLOAT)"
    if b is Kind.FLOAT and _fits_float(left.constant):
        return f"CAST({left.sql} AS FLOAT)", right.sql
    if a is b or (a in INTEGERS and b in INTEGERS):
        return left.sql, right.sql
    return to_double(left), to_double(right)


def _json_pair(left: SqlExpr, right: SqlExpr) -> tuple[str, str]:
    def kind_of(other: SqlExpr) -> JsonKind:
        if other.type.kind is Kind.BOOL:
            return "bool"
        return "text" if other.type.is_string else "number"

    if isinstance(left, JsonValue) and isinstance(right, JsonValue):
        return left.sql, right.sql
    if isinstance(left, JsonValue):
        other = right.sql if right.type.is_string or right.type.kind is Kind.BOOL else to_double(right)
        return left.typed(kind_of(right)), other
    assert isinstance(right, JsonValue)
    other = left.sql if left.type.is_string or left.type.kind is Kind.BOOL else to_double(left)
    return other, right.typed(kind_of(left))


class Comparer:
    """Makes pairs of values comparable; holds what reading a text as a time depends on."""

    def __init__(self, precision: Precision, time_zone: str) -> None:
        self._precision = precision
        self._time_zone = time_zone

    def pair(self, left: SqlExpr, right: SqlExpr, position: Position | None = None) -> tuple[str, str]:
        """Returns SQL of both values in types that compare as the dialect wants.

        Raises InvalidStatementError if a literal is compared with a timestamp and is no time.
        """
        a, b = left.type.kind, right.type.kind
        if isinstance(left, JsonValue) or isinstance(right, JsonValue):
            return _json_pair(left, right)
        if Kind.JSON in (a, b) and Kind.NULL not in (a, b):
            raise InvalidStatementError("a JSON tag cannot be compared as a whole", code=WRONG_OPERAND,
                                        hint="compare a key's value: tag->'key' = ...", position=position)
        if Kind.NULL in (a, b):
            return left.sql, right.sql
        if Kind.VARBINARY in (a, b) or Kind.GEOMETRY in (a, b):
            if not {a, b} <= {Kind.VARBINARY, Kind.GEOMETRY, *STRINGS}:
                raise InvalidStatementError(f"{left.type.sql()} cannot be compared with {right.type.sql()}",
                                            code=WRONG_OPERAND, position=position)
            return _bytes(left), _bytes(right)
        if Kind.TIMESTAMP in (a, b):
            return self._time(left, position).sql, self._time(right, position).sql
        if left.type.is_string and right.type.is_string:
            return left.sql, right.sql
        if Kind.BOOL in (a, b):
            return _with_bool(left, right)
        if left.type.is_string or right.type.is_string:
            as_float = Kind.FLOAT in (a, b)
            sides = [_number_of_text(side, as_float=as_float) if side.type.is_string else side.sql
                     for side in (left, right)]
            return sides[0], sides[1]
        return _numbers(left, right)

    def _time(self, expression: SqlExpr, position: Position | None) -> SqlExpr:
        if not expression.type.is_string:
            if expression.type.kind is Kind.DOUBLE and type(expression.constant) is int:
                return timestamp_constant(expression.constant, self._precision)
            return expression
        if isinstance(expression.constant, str):
            try:
                value = parse_timestamp(expression.constant, self._precision, self._time_zone)
            except InvalidValueError as error:
                raise InvalidStatementError(error.message, code=WRONG_OPERAND, hint=error.hint,
                                            position=position) from error
            return timestamp_constant(value, self._precision)
        sql = text_to_timestamp(expression.sql, self._precision, self._time_zone)
        return SqlExpr(sql, DataType(Kind.TIMESTAMP, precision=self._precision))

    def compare(self, operator: str, left: SqlExpr, right: SqlExpr, position: Position | None = None) -> str:
        """Compiles one of = <> < <= > >=."""
        a, b = self.pair(left, right, position)
        return f"({a} {operator} {b})"

    def between(self, value: SqlExpr, low: SqlExpr, high: SqlExpr, position: Position | None = None) -> str:
        """Compiles BETWEEN, both ends inclusive."""
        a, first = self.pair(value, low, position)
        b, last = self.pair(value, high, position)
        alike = a == b and low.type.kind is high.type.kind and value.type.kind is not Kind.NULL
        return f"({a} BETWEEN {first} AND {last})" if alike else f"({a} >= {first} AND {b} <= {last})"

    def in_list(
        self, value: SqlExpr, items: list[SqlExpr], position: Position | None = None, *, queries: bool = True
    ) -> str:
        """Compiles IN (...). A NULL in the list hides what is not found, so that NOT IN with it finds nothing.

        `queries`: the SQL may have queries in it.
        """
        by_left: dict[str, list[str]] = {}
        nulls = False
        for item in items:
            if item.type.kind is Kind.NULL:
                nulls = True
                continue
            if value.type.kind is Kind.BOOL and item.type.kind not in (Kind.VARBINARY, Kind.GEOMETRY):
                a, b = value.sql, to_bool(item)
            else:
                a, b = self.pair(value, item, position)
            by_left.setdefault(a, []).append(b)
        tests = [f"{a} IN ({in_values(bs) if queries else ', '.join(bs)})" for a, bs in by_left.items()]
        if nulls:
            tests.append("CAST(NULL AS BOOLEAN)")
        return f"({' OR '.join(tests)})"


def in_values(values: list[str]) -> str:
    """Returns what stands in the parentheses of IN for SQL of constants: these, or a query that gives them.

    DuckDB reads one text with many values a hundred times as fast as many values.
    """
    if len(values) < MANY_VALUES:
        return ", ".join(values)
    kind = None
    texts: list[str] = []
    for value in values:
        number, text = _CAST_INTEGER.fullmatch(value), _TEXT.fullmatch(value)
        if number is not None and kind in (None, number[2]):
            kind = number[2]
            texts.append(number[1])
        elif text is not None and kind in (None, "VARCHAR"):
            kind = "VARCHAR"
            texts.append(text[1])
        else:
            return ", ".join(values)
    known = set("".join(texts))
    between = next((mark for mark in _SEPARATORS if mark not in known), None)
    if between is None:
        return ", ".join(values)
    return f"SELECT CAST(unnest(string_split('{between.join(texts)}', '{between}')) AS {kind})"


def _bytes(expression: SqlExpr) -> str:
    if not expression.type.is_string:
        return expression.sql
    constant = expression.constant
    if isinstance(constant, str) and constant[:2].lower() == "\\x":
        return f"from_hex({quote_text(constant[2:])})"
    return f"encode({expression.sql})"


def _with_bool(left: SqlExpr, right: SqlExpr) -> tuple[str, str]:
    other = right if left.type.kind is Kind.BOOL else left
    if other.type.kind in _NUMERIC:
        return to_double(left), to_double(right)
    return to_bool(left), to_bool(right)


def _text_operand(operator: str, value: SqlExpr, position: Position | None) -> str:
    if isinstance(value, JsonValue):
        return value.typed("text")
    if value.type.kind is Kind.NULL:
        return "CAST(NULL AS VARCHAR)"
    if not value.type.is_string:
        raise InvalidStatementError(f"{operator} needs a string on its left, not {value.type.sql()}",
                                    code=WRONG_OPERAND, position=position)
    return value.sql


def like(value: SqlExpr, pattern: SqlExpr, position: Position | None = None) -> str:
    """Compiles LIKE: `%` and `_` are wildcards, a backslash makes the next character ordinary; case counts."""
    text = _text_operand("LIKE", value, position)
    if isinstance(pattern.constant, str):
        return f"({text} LIKE {quote_text(_closed_escapes(pattern.constant))} ESCAPE '\\')"
    return f"({text} LIKE {_text_operand('LIKE', pattern, position)} ESCAPE '\\')"


def _closed_escapes(pattern: str) -> str:
    """Doubles a backslash that escapes nothing special, which DuckDB would refuse or drop."""
    return re.sub(r"\\([%_\\])|\\", lambda match: match.group() if match.group(1) else "\\\\", pattern)


def match(value: SqlExpr, pattern: SqlExpr, position: Position | None = None) -> str:
    """Compiles MATCH: an extended regular expression found anywhere in the text."""
    text = _text_operand("MATCH", value, position)
    if isinstance(pattern.constant, str):
        check_pattern(pattern.constant, position)
    return f"regexp_matches({text}, {_text_operand('MATCH', pattern, position)})"


def check_pattern(pattern: str, position: Position | None) -> None:
    """Raises InvalidStatementError if DuckDB does not take the regular expression."""
    try:
        evaluate(f"regexp_matches('', {quote_text(pattern)})")
    except InvalidStatementError as error:
        raise InvalidStatementError(f"the regular expression {pattern!r} is wrong: {error.message}",
                                    code=WRONG_OPERAND, position=position) from error
