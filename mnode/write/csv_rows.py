"""Rows of a CSV file, or of a piece of one: commas, and quotes around what holds commas or quotes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from penstock.common.errors import InvalidValueError, NotFoundError, StorageError
from penstock.sql.rows.constants import Constants
from penstock.sql.schema import Column
from penstock.sql.tree.expression_nodes import quote_string
from penstock.sql.types import FLOATS, INTEGERS, STRINGS, Kind

_NULLS = ["", "NULL", "null", "Null"]


@dataclass(frozen=True, slots=True)
class CsvBlock:
    """A file without header, or whole lines of one: `name` and `first_line` (from 1) are for errors."""

    source: Path | bytes
    name: str
    first_line: int = 1
    quote: str = "'"

    @classmethod
    def of_file(cls, path: Path) -> CsvBlock:
        """Returns a whole file in the form of INSERT ... FILE: strings and timestamps in single quotes."""
        return cls(path, str(path))


def read_csv(block: CsvBlock, columns: Sequence[Column], constants: Constants) -> pa.RecordBatch:
    """Returns all rows of the block: one column per given Column, named by `Column.physical`.

    An empty cell or an unquoted NULL is NULL. `NotFoundError` if there is no such file, `InvalidValueError` with
    file, line, column and text for what doesn't fit.
    """
    try:
        try:
            table = _read_cells(block, len(columns))
        except pa.ArrowInvalid:
            table = _read_cells(block, len(columns), use_threads=False)  # only so does Arrow know the line
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {block.name}") from error
    except OSError as error:
        raise StorageError(f"{block.name} cannot be read: {error}") from error
    except pa.ArrowInvalid as error:
        raise InvalidValueError(f"{block.name}: {_csv_problem(str(error), block.first_line)}") from error
    cells = [table.column(place).combine_chunks() for place in range(len(columns))]
    arrays = [_convert(column, cell, constants, block) for column, cell in zip(columns, cells, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[column.physical for column in columns])


def _read_cells(block: CsvBlock, width: int, *, use_threads: bool = True) -> pa.Table:
    names = [str(place) for place in range(width)]
    return csv.read_csv(
        block.source if isinstance(block.source, Path) else pa.BufferReader(block.source),
        read_options=csv.ReadOptions(column_names=names, use_threads=use_threads),
        parse_options=csv.ParseOptions(quote_char=block.quote, double_quote=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), null_values=_NULLS, strings_can_be_null=True,
            quoted_strings_can_be_null=False),
    )


def _csv_problem(message: str, first_line: int) -> str:
    return re.sub(r"Row #(\d+)", lambda row: f"line {int(row[1]) + first_line - 1}",
                  message.removeprefix("CSV parse error: "))


def _convert(column: Column, cells: pa.Array, constants: Constants, block: CsvBlock) -> pa.Array:
    bulk = _bulk(column, cells, constants)
    if bulk is not None:
        return bulk
    values = []
    for line, cell in enumerate(cells.to_pylist(), block.first_line):
        try:
            values.append(None if cell is None else constants.read(_raw(column, cell), column.type))
        except InvalidValueError as error:
            raise InvalidValueError(
                f"{block.name}, line {line}, column {column.name}: {error.message}", hint=error.hint) from error
    if column.type.kind is Kind.TIMESTAMP:
        return pa.array(values, pa.int64()).cast(column.type.arrow())
    return pa.array(values, column.type.arrow())


def _raw(column: Column, cell: str) -> str:
    """Returns the cell as the SQL literal that it stands for."""
    numeric = column.type.kind in (*INTEGERS, *FLOATS, Kind.BOOL, Kind.DECIMAL)
    if numeric or (column.type.kind is Kind.TIMESTAMP and cell.lstrip("-").isdigit()):
        return cell
    return quote_string(cell)


def _bulk(column: Column, cells: pa.Array, constants: Constants) -> pa.Array | None:
    """Returns the whole column if Arrow can convert it at once, else None."""
    kind = column.type
    if kind.kind in STRINGS:
        lengths = pc.utf8_length(cells) if kind.kind is Kind.NCHAR else pc.binary_length(cells)
        longest = pc.max(lengths).as_py()
        return cells if kind.length is None or (longest or 0) <= kind.length else None
    try:
        if kind.kind in INTEGERS or kind.kind in FLOATS:
            numbers = cells.cast(kind.arrow())
            finite = kind.kind in INTEGERS or bool(pc.all(pc.is_finite(numbers)).as_py() is not False)
            return numbers if finite else None
        if kind.kind is Kind.TIMESTAMP:
            return _timestamps(column, cells, constants)
    except pa.ArrowInvalid:
        return None
    return None


def _timestamps(column: Column, cells: pa.Array, constants: Constants) -> pa.Array:
    try:
        return cells.cast(pa.int64()).cast(column.type.arrow())
    except pa.ArrowInvalid:
        local = cells.cast(column.type.arrow())
    if constants.time_zone == "UTC":
        return local
    zoned = pc.assume_timezone(local, constants.time_zone, ambiguous="earliest", nonexistent="raise")
    return zoned.cast(pa.int64()).cast(column.type.arrow())
