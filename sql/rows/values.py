"""Reads the rows of INSERT ... VALUES into Arrow columns, and single tag values. No parse tree is built per literal.

Plain rows are cut apart with string methods or one regular expression, and columns are converted in bulk; whatever
those refuse (functions, escapes, wrong values) goes through `penstock.sql.rows.constants`, cell by cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from penstock.common.errors import InvalidValueError, Position
from penstock.sql.dialect.literals import parse_timestamp, position, unescape
from penstock.sql.dialect.tokenizer import scan
from penstock.sql.rows.constants import Constants, Stored, shorten
from penstock.sql.rows.fitting import narrowed, stored_array, times_of_texts
from penstock.sql.schema import Column, TagValue
from penstock.sql.tree.expression_nodes import expression_sql
from penstock.sql.types import FLOATS, INTEGERS, STRINGS, DataType, Kind, Precision

__all__ = ["parse_timestamp", "read_value", "read_values"]

_PLAIN = re.compile(r"[-+.,0-9A-Za-z_()\s]*+", re.ASCII)
_STRING = re.compile(r"""'(?:[^'\\]++|\\.|'')*+'|"(?:[^"\\]++|\\.|"")*+\"""", re.DOTALL)
_SPACE = re.compile(r"\s")
_BETWEEN_ROWS = re.compile(r"\)\s*+,?+\s*+\(")
_BARE = r"""[^\s,()'"`/*-]"""
_CELL = rf"""\s*+('[^'\\]*+'(?!')|"[^"\\]*+"(?!")|-?+{_BARE}++(?:-(?!-){_BARE}*+)*+)\s*+"""
_NULLS = frozenset({"NULL", "null", "Null"})
_BOOLS = {"true": True, "false": False, "TRUE": True, "FALSE": False, "True": True, "False": False,
          "1": True, "0": False, "NULL": None, "null": None}


def read_values(
    text: str, offset: int, columns: Sequence[Column], statement: str, *, precision: Precision, time_zone: str,
    now_ms: int,
) -> pa.RecordBatch:
    """Returns the rows of `(..)[,](..)...` as a batch: one column per given Column, named by `Column.physical`.

    `text` and `offset` are `InsertTarget.rows` and `rows_offset`; the offset, and the whole `statement`, only serve
    error messages. Arrow types are those of `DataType.arrow()`. `now_ms` is what NOW means. Raises InvalidValueError
    with the number of the row (from 1), the column and the text.
    """
    constants = Constants(precision, time_zone, now_ms)

    def place(start: int) -> Position:
        return position(statement, offset + start, 1)

    cells = _split_plain(text, len(columns)) or _split_rows(text, len(columns), place)
    arrays = [_convert(column, raws, constants) for column, raws in zip(columns, cells, strict=True)]
    fields = [pa.field(column.physical, array.type) for column, array in zip(columns, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def read_value(
    expression: exp.Expression, column: Column, *, precision: Precision, time_zone: str, now_ms: int
) -> TagValue:
    """Returns the value of a constant expression as a tag stores it. Raises InvalidValueError."""
    constants = Constants(precision, time_zone, now_ms)
    raw = expression_sql(expression)
    try:
        return cast(TagValue, constants.store(constants.evaluate(expression), column.type, raw))
    except InvalidValueError as error:
        raise InvalidValueError(f"tag {column.name}: {error.message}", hint=error.hint) from error


# --- cutting the text into cells ---


def _split_plain(text: str, width: int) -> list[list[str]] | None:
    """Returns the cells of each column if the rows hold no quotes, calls, comments or operators; else None."""
    if _PLAIN.fullmatch(text) is None or "--" in text:
        return None
    body = text.strip()
    if not (body.startswith("(") and body.endswith(")")):
        return None
    rows = _BETWEEN_ROWS.split(body[1:-1])
    flat = ",".join(rows).split(",")
    if len(flat) != width * len(rows) or body.count("(") != len(rows) or body.count(")") != len(rows):
        return None
    if any(row.count(",") != width - 1 for row in rows):
        return None
    if _SPACE.search(body) is not None:
        flat = [cell.strip() for cell in flat]
    return [flat[index::width] for index in range(width)]


@lru_cache(maxsize=64)
def _row_pattern(width: int) -> re.Pattern[str]:
    return re.compile(r"\s*+,?+\s*+\(" + ",".join([_CELL] * width) + r"\)", re.ASCII)


def _split_rows(text: str, width: int, place: Callable[[int], Position]) -> list[list[str]]:
    """Returns the cells of each column of any rows. Raises InvalidValueError if a row has too few or too many.

    `place` returns where a character of the text is in the statement.
    """
    match = _row_pattern(width).match
    rows: list[tuple[str, ...]] = []
    at = 0
    while True:
        found = match(text, at)
        while found is not None:
            rows.append(found.groups())
            at = found.end()
            found = match(text, at)
        tokens = scan(text, at)
        token = next(tokens)
        if token.token_type is TokenType.COMMA:
            token = next(tokens)
        if not token:
            return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
        cells, at = _scan_row(text, token, tokens, len(rows) + 1, place)
        if len(cells) != width:
            raise InvalidValueError(
                f"row {len(rows) + 1} has {len(cells)} values, but there are {width} columns",
                position=place(token.start))
        rows.append(cells)


def _scan_row(
    text: str, first: Token, rest: Iterator[Token], number: int, place: Callable[[int], Position]
) -> tuple[tuple[str, ...], int]:
    """Cuts one row apart token by token; returns its cells and where it ends."""
    at = place(first.start)
    if first.token_type is not TokenType.L_PAREN:
        raw = text[first.start:first.end + 1]
        raise InvalidValueError(f"row {number}: '(' is expected, not {shorten(raw)!r}", position=at)
    cells: list[str] = []
    start: int | None = None
    last, depth = first.end, 1
    for token in rest:
        kind = token.token_type
        if not token or kind is TokenType.UNKNOWN:
            raise InvalidValueError(f"row {number} is not closed, or holds {shorten(token.text)!r}", position=at)
        if kind is TokenType.L_PAREN:
            depth += 1
        elif kind is TokenType.R_PAREN:
            depth -= 1
        if depth == 0 or (depth == 1 and kind is TokenType.COMMA):
            if start is None:
                raise InvalidValueError(f"row {number}: value {len(cells) + 1} is missing", position=at)
            cells.append(text[start:last + 1])
            if depth == 0:
                break
            start = None
        elif start is None:
            start = token.start
        last = token.end
    return tuple(cells), token.end + 1


# --- converting columns ---


def _convert(column: Column, raws: list[str], constants: Constants) -> pa.Array:
    array = _in_bulk(column.type, raws, constants)
    return _one_by_one(column, raws, constants) if array is None else array


def _in_bulk(data_type: DataType, raws: list[str], constants: Constants) -> pa.Array | None:
    """Returns the converted cells, or None where a cell needs the careful way, be it to name what is wrong."""
    kind = data_type.kind
    if kind is Kind.TIMESTAMP:
        return _bulk_timestamps(data_type, raws, constants)
    if kind in INTEGERS or kind in FLOATS:
        return _bulk_numbers(data_type, raws)
    if kind in STRINGS:
        return _bulk_strings(data_type, raws)
    return _bulk_bools(raws) if kind is Kind.BOOL else None


def _one_by_one(column: Column, raws: list[str], constants: Constants) -> pa.Array:
    values: list[Stored] = []
    for number, raw in enumerate(raws, start=1):
        try:
            values.append(constants.read(raw, column.type))
        except InvalidValueError as error:
            raise InvalidValueError(
                f"row {number}, column {column.name}: {error.message}", hint=error.hint
            ) from error
    return stored_array(column.type, values)


def _cast(values: Sequence[str | None], target: pa.DataType) -> pa.Array | None:
    try:
        return pa.array(values, pa.string()).cast(target)
    except pa.ArrowInvalid:
        return None


def _without_nulls(raws: list[str]) -> Sequence[str | None]:
    return [None if raw in _NULLS else raw for raw in raws]


def _bulk_numbers(data_type: DataType, raws: list[str]) -> pa.Array | None:
    is_float = data_type.kind in FLOATS
    target = pa.float64() if is_float else data_type.arrow()
    if "x" in (digits := "".join(raws)) or "X" in digits:
        return None  # Arrow reads 0xFFFFFFFF as the INT -1
    array = _cast(raws, target)
    if array is None:
        array = _cast(_without_nulls(raws), target)
    return narrowed(data_type, array) if is_float and array is not None else array


def _bulk_strings(data_type: DataType, raws: list[str]) -> pa.Array | None:
    if not all(_is_string(raw) or raw in _NULLS for raw in raws):
        return None
    array = pa.array([None if raw in _NULLS else unescape(raw) for raw in raws], pa.string())
    lengths = pc.utf8_length(array) if data_type.kind is Kind.NCHAR else pc.binary_length(array)
    longest = pc.max(lengths).as_py()
    if data_type.length is not None and longest is not None and longest > data_type.length:
        return None
    return array


def _is_string(raw: str) -> bool:
    """Whether the cell is one string literal, and not, for example, two in a row."""
    quote = raw[:1]
    if quote not in ("'", '"') or raw[-1] != quote or len(raw) == 1:
        return False
    inner = raw[1:-1]
    return (quote not in inner and "\\" not in inner) or _STRING.fullmatch(raw) is not None


def _bulk_bools(raws: list[str]) -> pa.Array | None:
    try:
        return pa.array([_BOOLS[raw] for raw in raws], pa.bool_())
    except KeyError:
        return None


def _bulk_timestamps(data_type: DataType, raws: list[str], constants: Constants) -> pa.Array | None:
    numbers = _cast(raws, pa.int64())
    if numbers is not None:
        return numbers.cast(data_type.arrow())
    if any(raw[:1] not in ("'", '"') or len(raw) < 3 for raw in raws):
        return None
    return times_of_texts(data_type, pa.array([raw[1:-1] for raw in raws], pa.string()), constants.time_zone)
