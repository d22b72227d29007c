"""Rows of CSV: read from files in pieces that fit into memory, and what their values are in columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv as csv

from penstock.common.arrow_data import one_array
from penstock.common.duckdb_types import plain
from penstock.common.errors import InvalidStatementError, InvalidValueError, NotFoundError, StorageError
from penstock.mnode.write.csv_dialect import (
    NULLS,
    CsvDialect,
    CsvError,
    CutText,
    Row,
    cut,
    guessed,
    is_plain,
    line_ends,
    names_at,
)
from penstock.sql.rows.constants import Constants
from penstock.sql.rows.fitting import converted
from penstock.sql.schema import Column

BLOCK_BYTES = 8 << 20
ROW_BYTES_MAX = 64 << 20
_SAMPLE_BYTES = 1 << 18
_COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_UTF8_MARK = b"\xef\xbb\xbf"
_OTHER_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


@dataclass(frozen=True, slots=True)
class CsvCells:
    """Values of rows as text, column by column: `names` are what they are values of.

    `where` says where the n-th row (from 0) is, for errors, and `read_as` how it was read.
    """

    names: tuple[str, ...]
    columns: tuple[pa.StringArray, ...]
    where: Callable[[int], str]
    read_as: str | None = None

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return len(self.columns[0]) if self.columns else 0


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """What a file's columns may be.

    `names`: those that the statement names; without them `default` are those of a file without header, if there are
    any. `known`: what a header may name. `has_header`: the first line is one; None: if it names columns only.
    """

    names: tuple[str, ...] | None
    default: tuple[str, ...] | None
    known: tuple[str, ...]
    has_header: bool | None = None
    quote: str | None = None

    @property
    def positions(self) -> tuple[str, ...] | None:
        """What the values of a row without header are for."""
        return self.default if self.names is None else self.names

    def header(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """Returns what the first row names if it is a header, else None."""
        if self.has_header is None:
            return self.named(names)
        return tuple(names) if self.has_header else None

    def named(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """Returns the columns that a row names; None if it has anything else."""
        found = [name if name in self.known else name.lower() for name in names]
        return tuple(found) if len(set(found)) == len(found) and set(found) <= set(self.known) else None


def cells_by_row(
    names: Sequence[str], rows: Sequence[Row], where: Callable[[int], str], read_as: str | None = None
) -> CsvCells:
    """Returns rows by their columns. Raises InvalidValueError if one has too few values or too many."""
    width = len(names)
    for number, row in enumerate(rows):
        if len(row) != width:
            raise InvalidValueError(f"{where(number)}: there are {len(row)} values for {width} columns "
                                    f"({', '.join(names)})", hint=_hints(None, read_as))
    columns = zip(*rows, strict=True) if rows else [()] * width
    return CsvCells(tuple(names), tuple(pa.array(column, pa.string()) for column in columns), where, read_as)


class CsvReader:
    """Reads a file in pieces of whole rows. Raises InvalidValueError that names file, line and how it was read."""

    def __init__(self, stream: Any, name: str, layout: CsvLayout) -> None:
        """`stream`: gives bytes by `read(n)`."""
        self._stream = stream
        self._name = name
        self._layout = layout
        self._rest, self._line, self._is_last = b"", 1, False
        self._fill()
        for mark, encoding in _OTHER_MARKS.items():
            if self._rest.startswith(mark):
                raise InvalidValueError(f"{name} is {encoding}", hint=f"iconv -f {encoding} -t UTF-8 makes it UTF-8")
        self._rest = self._rest.removeprefix(_UTF8_MARK)
        sample = self._rest[:_SAMPLE_BYTES].decode(errors="surrogateescape")
        self._dialect, found = self._best(sample, is_last=self._is_last and len(self._rest) <= _SAMPLE_BYTES)
        header = layout.header(names_at(sample, found.starts[0], self._dialect)) if found.rows else None
        self.names = self._names(header, found)
        if header is not None:
            first = sample[:found.starts[1] if len(found.starts) > 1 else found.end]
            self._rest = self._rest[len(first.encode(errors="surrogateescape")):]
            self._line += line_ends(first)

    def __iter__(self) -> Iterator[CsvCells]:
        while self._rest:
            piece = self._piece()
            if piece is not None and piece.num_rows:
                yield piece
            if self._is_last:
                return
            self._fill()

    # --- what it is ---

    def _best(self, sample: str, *, is_last: bool) -> tuple[CsvDialect, CutText]:
        guesses = guessed(sample, is_last=is_last, quote=self._layout.quote)
        width = None if self._layout.positions is None else len(self._layout.positions)
        for dialect, found in guesses:
            if found.rows and (len(found.rows[0]) == width
                               or self._layout.named(names_at(sample, found.starts[0], dialect)) is not None):
                return dialect, found
        return guesses[0]

    def _names(self, header: tuple[str, ...] | None, found: CutText) -> tuple[str, ...]:
        given = self._layout.names
        if header is not None and given is None:
            return header
        if header is not None and given is not None and not self._layout.has_header:
            if set(header) != set(given):
                raise InvalidStatementError(f"{self._name}: its header names {', '.join(header)}, the statement "
                                            f"{', '.join(given)}", hint="leave out one of the two")
            return header
        if self._layout.positions is None:
            first = ", ".join(str(cell) for cell in found.rows[0][:5]) if found.rows else ""
            raise InvalidStatementError(
                f"{self._name}: its first line ({first}) is no header that names columns of the super table",
                hint="name the columns of the file, tbname among them", code=0x263F)
        return self._layout.positions

    # --- pieces ---

    def _fill(self) -> None:
        if len(self._rest) > ROW_BYTES_MAX:
            raise self._error(f"a row has more than {ROW_BYTES_MAX >> 20} MiB, or a quote in it is never closed",
                              self._line)
        block = self._stream.read(BLOCK_BYTES)
        while block and len(block) < BLOCK_BYTES and (more := self._stream.read(BLOCK_BYTES - len(block))):
            block += more
        self._rest += block
        self._is_last = len(block) < BLOCK_BYTES

    def _piece(self) -> CsvCells | None:
        """Returns the whole rows of what was read."""
        data = self._rest if self._is_last else self._rest[:self._rest.rfind(b"\n") + 1]
        if data and is_plain(data, self._dialect):
            table = self._by_arrow(data)
            if table is not None:
                self._rest = self._rest[len(data):]
                where = partial(_place, self._name, data, self._dialect, self._line)
                self._line += data.count(b"\n")
                return CsvCells(self.names, table, where, str(self._dialect))
        return self._by_text()

    def _by_arrow(self, data: bytes) -> tuple[pa.StringArray, ...] | None:
        """Returns what Arrow reads; None if something is wrong, which is to be found out otherwise."""
        names = [str(place) for place in range(len(self.names))]
        has_quotes = self._dialect.quote.encode() in data
        try:
            table = csv.read_csv(
                pa.BufferReader(data),
                read_options=csv.ReadOptions(column_names=names),
                parse_options=csv.ParseOptions(
                    delimiter=self._dialect.delimiter, quote_char=self._dialect.quote, double_quote=True,
                    newlines_in_values=has_quotes, ignore_empty_lines=True),
                convert_options=csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), null_values=list(NULLS), strings_can_be_null=True,
                    quoted_strings_can_be_null=False))
        except pa.ArrowInvalid:
            return None
        return tuple(one_array(column) for column in table.columns)

    def _by_text(self) -> CsvCells | None:
        text = self._text()
        try:
            found = cut(text, self._dialect, is_last=self._is_last)
        except CsvError as error:
            raise self._error(error.message, self._line + line_ends(text, error.at), error.column) from error
        first = self._line
        self._line += line_ends(text, found.end)
        self._rest = self._rest[len(text[:found.end].encode()):]
        return cells_by_row(
            self.names, found.rows, lambda row: _at(self._name, first + line_ends(text, found.starts[row])),
            str(self._dialect))

    def _text(self) -> str:
        data = self._rest
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            if not self._is_last and error.reason == "unexpected end of data":
                return data[:error.start].decode()
            raise self._error(
                f"byte {data[error.start]:#04x} is no UTF-8", self._line + data.count(b"\n", 0, error.start),
                hint="iconv -f ISO-8859-1 -t UTF-8 makes UTF-8 of Latin-1") from error

    def _error(self, problem: str, line: int, column: int | None = None, hint: str = "") -> InvalidValueError:
        what = "" if column is None else f", column {self._column(column)}"
        return InvalidValueError(f"{_at(self._name, line)}{what}: {problem}",
                                 hint=_hints(hint, str(self._dialect)))

    def _column(self, number: int) -> str:
        return self.names[number - 1] if number <= len(self.names) else str(number)


def _at(name: str, line: int) -> str:
    return f"{name}, line {line}"


def _place(name: str, data: bytes, dialect: CsvDialect, first_line: int, row: int) -> str:
    text = data.decode()
    return _at(name, first_line + line_ends(text, cut(text, dialect).starts[row]))


@contextmanager
def csv_file(path: Path, layout: CsvLayout) -> Iterator[CsvReader]:
    """Opens a file, which may be compressed if its name says so. Raises NotFoundError, StorageError."""
    try:
        with path.open("rb") as file, unpacked(path, file) as stream:
            yield CsvReader(stream, str(path), layout)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}") from error


@contextmanager
def unpacked(path: Path, file: BinaryIO) -> Iterator[Any]:
    """Gives what a file's bytes are when they are unpacked, by the ending of its name."""
    codec = _COMPRESSED.get(path.suffix.lower())
    yield file if codec is None else pa.CompressedInputStream(file, codec)


def is_packed(path: Path) -> bool:
    """Whether the ending of a name says that the file is compressed."""
    return path.suffix.lower() in _COMPRESSED


# --- values --------------------------------------------------------------------------------------------------------


def columns_of(cells: CsvCells, columns: Sequence[Column], constants: Constants) -> pa.RecordBatch:
    """Returns the rows as these columns store them, by `Column.physical`. Raises InvalidValueError with the place."""
    arrays = [_convert(column, values, constants, cells)
              for column, values in zip(columns, cells.columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[column.physical for column in columns])


def _convert(column: Column, texts: pa.StringArray, constants: Constants, cells: CsvCells) -> pa.Array:
    note = None if cells.read_as is None else _hints(None, cells.read_as)
    return converted(column, texts, constants, cells.where, note)


def _hints(hint: str | None, read_as: str | None) -> str | None:
    return "; ".join(filter(None, [hint, None if read_as is None else f"the file was read as {read_as}"])) or None


# --- files that are written ----------------------------------------------------------------------------------------


def write_csv(table: pa.Table, file: BinaryIO) -> None:
    """Writes rows as RFC 4180 with a header, such that INSERT ... FILE reads them back: times in UTC and marked so,
    bytes as VARBINARY is written in SQL, texts in quotes, lists and the like as such texts, NULL as nothing.
    """
    csv.write_csv(pa.table([_written(column) for column in table.columns], names=table.column_names), file)


def _written(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp(column.type.unit, "UTC"))
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return pa.chunked_array([pa.array([None if each is None else "\\x" + each.hex() for each in chunk.to_pylist()],
                                          pa.string()) for chunk in column.chunks], pa.string())
    return plain(column)
