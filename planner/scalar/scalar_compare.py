"""Comparison, BETWEEN, IN, LIKE and MATCH between values of any two types, as boolean trees of DuckDB SQL."""

from __future__ import annotations

import re
import sys
from decimal import Decimal

from sqlglot import exp

from penstock.common.errors import InvalidStatementError, InvalidValueError
from penstock.planner.duckdb_sql.duckdb_tree import (
    Tree,
    any_of,
    cast,
    closed,
    fragment,
    integer,
    made,
    null,
    text,
    try_cast,
)
from penstock.planner.duckdb_sql.folding import evaluate
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.scalar.duckdb_values import duckdb_value, operand_tree
from penstock.planner.scalar.scalar_cast import cast as cast_expression
from penstock.planner.scalar.scalar_cast import (
    text_to_double,
    text_to_timestamp,
    timestamp_constant,
    to_bool,
    to_double,
)
from penstock.planner.scalar.scalar_json import JsonKind, JsonValue
from penstock.sql.dialect.literals import parse_timestamp
from penstock.sql.types import FLOATS, INTEGERS, STRINGS, DataType, Kind, Precision

WRONG_OPERAND = 0x2603
FLOAT_MAX = 3.4028234663852886e38
_NUMBER_TEXT = re.compile(r"\s*[-+]?[0-9]{1,18}\s*", re.ASCII)
_SEPARATORS = (",", ";", "|", *map(chr, range(1, 32)))
MANY_VALUES = 200
_NUMERIC = (*INTEGERS, *FLOATS, Kind.DECIMAL)


def _fits_float(constant: object) -> bool:
    return isinstance(constant, int | float) and abs(constant) <= FLOAT_MAX


def _number_of_text(expression: SqlExpr, *, as_float: bool) -> Tree:
    """A text compared with a number: literals that spell an integer keep all digits, and FLOAT meets FLOAT."""
    if as_float:
        return try_cast(text_to_double(expression.node), "FLOAT")
    if isinstance(expression.constant, str) and _NUMBER_TEXT.fullmatch(expression.constant):
        return integer(int(expression.constant))
    return text_to_double(expression.node)


def _as_decimal(constant: object, type_: DataType) -> Tree | None:
    """Returns a constant as a DECIMAL of a type, None if a comparison as DOUBLE might say something else."""
    digits, scale = type_.digits or 38, type_.scale or 0
    if not isinstance(constant, int | float) or not abs(constant) < 10 ** (digits - scale):
        return None
    number = Decimal(repr(constant))
    if digits > sys.float_info.dig or number != round(number, scale):
        return None
    return cast(text(f"{number:.{scale}f}"), type_.sql())


def _numbers(left: SqlExpr, right: SqlExpr) -> tuple[Tree, Tree]:
    """Two numbers. A FLOAT meets a constant as FLOAT, so that it equals the literal it was written as.

    A DECIMAL meets a constant as it is, for which DuckDB looks into what Parquet says of its columns.
    """
    a, b = left.type.kind, right.type.kind
    if a is Kind.FLOAT and _fits_float(right.constant):
        return left.node, cast(right.node, "FLOAT")
    if b is Kind.FLOAT and _fits_float(left.constant):
        return cast(left.node, "FLOAT"), right.node
    if a is b or (a in INTEGERS and b in INTEGERS):
        return left.node, right.node
    if a is Kind.DECIMAL and (number := _as_decimal(right.constant, left.type)) is not None:
        return left.node, number
    if b is Kind.DECIMAL and (number := _as_decimal(left.constant, right.type)) is not None:
        return number, right.node
    return to_double(left), to_double(right)


def _json_pair(left: SqlExpr, right: SqlExpr) -> tuple[Tree, Tree]:
    def kind_of(other: SqlExpr) -> JsonKind:
        if other.type.kind is Kind.BOOL:
            return "bool"
        return "text" if other.type.is_string else "number"

    if isinstance(left, JsonValue) and isinstance(right, JsonValue):
        return left.node, right.node
    if isinstance(left, JsonValue):
        other = right.node if right.type.is_string or right.type.kind is Kind.BOOL else to_double(right)
        return left.typed(kind_of(right)), other
    assert isinstance(right, JsonValue)
    other = left.node if left.type.is_string or left.type.kind is Kind.BOOL else to_double(left)
    return other, right.typed(kind_of(left))


def _not_comparable(left: SqlExpr, right: SqlExpr) -> InvalidStatementError:
    return InvalidStatementError(f"{left.type.sql()} cannot be compared with {right.type.sql()}", code=WRONG_OPERAND)


class Comparer:
    """Makes pairs of values comparable; holds what reading a text as a time depends on."""

    def __init__(self, precision: Precision, time_zone: str) -> None:
        self._precision = precision
        self._time_zone = time_zone

    def pair(
        self, left: SqlExpr, right: SqlExpr, operator: type[exp.Expression] = exp.EQ
    ) -> tuple[Tree, Tree]:
        """Returns both values in types that compare as the dialect wants, or as DuckDB does by the `operator`.

        Raises InvalidStatementError if a literal is compared with a timestamp and is no time.
        """
        a, b = left.type.kind, right.type.kind
        if isinstance(left, JsonValue) or isinstance(right, JsonValue):
            return _json_pair(left, right)
        if Kind.JSON in (a, b) and Kind.NULL not in (a, b):
            raise InvalidStatementError("a JSON tag cannot be compared as a whole", code=WRONG_OPERAND,
                                        hint="compare a key's value: tag->'key' = ...")
        if Kind.NULL in (a, b):
            return left.node, right.node
        if Kind.OTHER in (a, b):
            return self._pair_of_duckdb(left, right, operator)
        if Kind.VARBINARY in (a, b) or Kind.GEOMETRY in (a, b):
            if not {a, b} <= {Kind.VARBINARY, Kind.GEOMETRY, *STRINGS}:
                raise _not_comparable(left, right)
            return _bytes(left), _bytes(right)
        if Kind.TIMESTAMP in (a, b):
            return self._time(left).node, self._time(right).node
        if left.type.is_string and right.type.is_string:
            return left.node, right.node
        if Kind.BOOL in (a, b):
            return _with_bool(left, right)
        if left.type.is_string or right.type.is_string:
            as_float = Kind.FLOAT in (a, b)
            sides = [_number_of_text(side, as_float=as_float) if side.type.is_string else side.node
                     for side in (left, right)]
            return sides[0], sides[1]
        return _numbers(left, right)

    def _pair_of_duckdb(
        self, left: SqlExpr, right: SqlExpr, operator: type[exp.Expression]
    ) -> tuple[Tree, Tree]:
        """Two values of which DuckDB says how they compare. What it compares with an instant is one."""
        def compared(a: Tree, b: Tree) -> Tree:
            return made(operator, this=closed(a), expression=closed(b))

        sides = _alike(left), _alike(right)
        if duckdb_value(compared, sides, self._precision, self._time_zone, converts=True) is None:
            raise _not_comparable(left, right)
        if Kind.TIMESTAMP in (left.type.kind, right.type.kind):
            time = DataType(Kind.TIMESTAMP)
            left, right = (cast_expression(side, time, self._precision, self._time_zone) for side in (left, right))
            return left.node, right.node
        return operand_tree(left, self._time_zone), operand_tree(right, self._time_zone)

    def _time(self, expression: SqlExpr) -> SqlExpr:
        if not expression.type.is_string:
            if expression.type.kind is Kind.DOUBLE and type(expression.constant) is int:
                return timestamp_constant(expression.constant, self._precision)
            return expression
        if isinstance(expression.constant, str):
            try:
                value = parse_timestamp(expression.constant, self._precision, self._time_zone)
            except InvalidValueError as error:
                raise InvalidStatementError(error.message, code=WRONG_OPERAND, hint=error.hint) from error
            return timestamp_constant(value, self._precision)
        read = text_to_timestamp(expression.node, self._precision, self._time_zone)
        return SqlExpr(read, DataType(Kind.TIMESTAMP, precision=self._precision))

    def compare(self, operator: type[exp.Binary], left: SqlExpr, right: SqlExpr) -> Tree:
        """Compiles one of = <> < <= > >=: `operator` is its class."""
        a, b = self.pair(left, right, operator)
        return made(operator, this=closed(a), expression=closed(b))

    def between(self, value: SqlExpr, low: SqlExpr, high: SqlExpr) -> Tree:
        """Compiles BETWEEN, both ends inclusive."""
        a, first = self.pair(value, low, exp.GTE)
        b, last = self.pair(value, high, exp.LTE)
        # Of its own types, DuckDB's BETWEEN brings all three to one.
        others = Kind.OTHER in (value.type.kind, low.type.kind, high.type.kind)
        alike = a == b and low.type.kind is high.type.kind and value.type.kind is not Kind.NULL and not others
        template = ":a BETWEEN :first AND :last" if alike else ":a >= :first AND :b <= :last"
        return fragment(template, a=a, b=b, first=first, last=last)

    def in_list(
        self, value: SqlExpr, items: list[SqlExpr], *, queries: bool = True
    ) -> Tree:
        """Compiles IN (...). A NULL in the list hides what is not found, so that NOT IN with it finds nothing.

        `queries`: the SQL may have queries in it.
        """
        if queries and len(items) >= MANY_VALUES:
            split = self._in_text(value, items)
            if split is not None:
                return split
        by_left: dict[Tree, list[Tree]] = {}
        nulls = False
        for item in items:
            if item.type.kind is Kind.NULL:
                nulls = True
                continue
            if value.type.kind is Kind.BOOL and item.type.kind not in (Kind.VARBINARY, Kind.GEOMETRY):
                a, b = value.node, to_bool(item)
            else:
                a, b = self.pair(value, item)
            by_left.setdefault(a, []).append(b)
        tests: list[Tree] = [made(exp.In, this=closed(a), expressions=bs) for a, bs in by_left.items()]
        if nulls:
            tests.append(null("BOOLEAN"))
        return any_of(tests)

    def _in_text(self, value: SqlExpr, items: list[SqlExpr]) -> Tree | None:
        """IN with one text of all values, which DuckDB reads a hundred times as fast as so many values.

        None unless the values are integers that meet an integer, times that meet a time, or texts that meet a text.
        """
        kind = value.type.kind
        if kind is Kind.TIMESTAMP:
            items = [self._time(item) for item in items]
        wanted = str if value.type.is_string else int
        integers = (Kind.BIGINT, Kind.TIMESTAMP)
        if not value.type.is_string and kind not in INTEGERS:
            return None
        if not all(type(item.constant) is wanted and (wanted is str or item.type.kind in integers) for item in items):
            return None
        texts = [str(item.constant) for item in items]
        known = set("".join(texts))
        mark = next((mark for mark in _SEPARATORS if mark not in known), None)
        if mark is None:
            return None
        type_name = "VARCHAR" if wanted is str else "BIGINT"
        return fragment(f":value IN (SELECT CAST(unnest(string_split(:texts, :mark)) AS {type_name}))",
                        value=value.node, texts=mark.join(texts), mark=mark)


def _alike(value: SqlExpr) -> SqlExpr:
    """Returns a constant that stands for all of its type, so that DuckDB isn't asked of each in a long list."""
    if isinstance(value.constant, str):
        return SqlExpr(text(""), value.type, "")
    return SqlExpr(value.node, value.type, 0) if type(value.constant) is int and value.type.is_integer else value


def _bytes(expression: SqlExpr) -> Tree:
    if not expression.type.is_string:
        return expression.node
    constant = expression.constant
    if isinstance(constant, str) and constant[:2].lower() == "\\x":
        return fragment("from_hex(:digits)", digits=constant[2:])
    return fragment("encode(:text)", text=expression.node)


def _with_bool(left: SqlExpr, right: SqlExpr) -> tuple[Tree, Tree]:
    other = right if left.type.kind is Kind.BOOL else left
    if other.type.kind in _NUMERIC:
        return to_double(left), to_double(right)
    return to_bool(left), to_bool(right)


def _text_operand(operator: str, value: SqlExpr) -> Tree:
    if isinstance(value, JsonValue):
        return value.typed("text")
    if value.type.kind is Kind.NULL:
        return null("VARCHAR")
    if not value.type.is_string:
        raise InvalidStatementError(f"{operator} is for texts, not for {value.type.sql()}", code=WRONG_OPERAND)
    return value.node


def like(value: SqlExpr, pattern: SqlExpr, *, escape: str | None = None, any_case: bool = False) -> Tree:
    """Compiles LIKE: `%` and `_` are wildcards, `escape`, a backslash by default, makes the next character ordinary;
    case counts, unless it is ILIKE, in `any_case`."""
    known = isinstance(pattern.constant, str) and escape is None
    wanted = _closed_escapes(str(pattern.constant)) if known else _text_operand("LIKE", pattern)
    word = "ILIKE" if any_case else "LIKE"
    return fragment(f":text {word} :wanted ESCAPE :mark", text=_text_operand("LIKE", value), wanted=wanted,
                    mark=escape or "\\")


def _closed_escapes(pattern: str) -> str:
    """Doubles a backslash that escapes nothing special, which DuckDB would refuse or drop."""
    return re.sub(r"\\([%_\\])|\\", lambda match: match.group() if match.group(1) else "\\\\", pattern)


def match(value: SqlExpr, pattern: SqlExpr) -> Tree:
    """Compiles MATCH: an extended regular expression found anywhere in the text."""
    text = _text_operand("MATCH", value)
    if isinstance(pattern.constant, str):
        check_pattern(pattern.constant)
    return fragment("regexp_matches(:text, :pattern)", text=text, pattern=_text_operand("MATCH", pattern))


def check_pattern(pattern: str) -> None:
    """Raises InvalidStatementError if DuckDB does not take the regular expression."""
    try:
        evaluate(fragment("regexp_matches('', :pattern)", pattern=pattern))
    except InvalidStatementError as error:
        raise InvalidStatementError(f"the regular expression {pattern!r} is invalid: {error.message}",
                                    code=WRONG_OPERAND) from error
