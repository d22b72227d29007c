"""The two kinds of CSV, TDengine's and RFC 4180: which one a file is, and how its text is cut into cells. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf

import numpy as np

from penstock.common.errors import InvalidValueError
from penstock.sql.dialect.literals import unescape
from penstock.sql.rows.constants import shorten

NULLS = ("", "NULL", "null", "Null")
_DELIMITERS = (",", ";", "\t", "|")
_SAMPLE_ROWS = 200
_LINE_END = re.compile(r"\r\n|\r|\n")
_TDENGINE = "'"

Row = list[str | None]


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """How rows are written as text.

    Quotes are `'` for TDengine's CSV: texts are in single or double quotes, with backslashes as in SQL, and spaces
    around values don't count. Others, `"` above all, are RFC 4180: a quote within is doubled, and all else is text.
    """

    quote: str = '"'
    delimiter: str = ","
    #: spaces around values without quotes are no part of them
    trims: bool = False
    #: nobody said so: text in single quotes, which RFC 4180 takes as it is, is refused
    is_guess: bool = False

    @property
    def is_tdengine(self) -> bool:
        """Whether it is TDengine's."""
        return self.quote == _TDENGINE

    def __str__(self) -> str:
        kind = "TDengine's CSV (texts in quotes, backslashes escape)" if self.is_tdengine \
            else f"RFC 4180 (texts in {self.quote}, which is doubled within)"
        return f"{kind}, values separated by {self.delimiter!r}"


def dialect_of(quote: str, delimiter: str = ",", *, trims: bool = False, is_guess: bool = False) -> CsvDialect:
    """Returns the dialect that has these quotes."""
    return CsvDialect(quote, delimiter, trims or quote == _TDENGINE, is_guess)


class CsvError(InvalidValueError):
    """Text that is no row: `at` is where, counted in characters of the text, `column` from 1."""

    def __init__(self, message: str, at: int, column: int) -> None:
        super().__init__(message)
        self.at = at
        self.column = column


@dataclass(slots=True)
class CutText:
    """Rows of a text, where each begins, and where the text ends that is used up."""

    rows: list[Row] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    end: int = 0
    #: there is a space behind each delimiter
    is_padded: bool = False
    #: where what is no row begins
    problem_at: int | None = None

    @property
    def quality(self) -> tuple[float, bool]:
        """The greater the better a dialect fits: how far there are rows, and whether all are of one width."""
        return (inf if self.problem_at is None else self.problem_at), len(set(map(len, self.rows))) <= 1


def line_ends(text: str, end: int | None = None) -> int:
    """Returns how many lines end in a text, or before a character of it."""
    return sum(1 for _ in (_LINE_END.finditer(text) if end is None else _LINE_END.finditer(text, 0, end)))


def cut(text: str, dialect: CsvDialect, *, is_last: bool = True) -> CutText:
    """Returns the rows of a text that begins with one; lines that are empty are left out.

    A row that isn't closed is not used up unless the text `is_last`. Raises CsvError.
    """
    found = CutText()
    _cut_into(found, text, dialect, is_last, len(text))
    return found


def names_at(text: str, start: int, dialect: CsvDialect) -> list[str]:
    """Returns the values of the row that begins there as names: one may be called null."""
    names: list[str] = []
    for cell in _cell(dialect).finditer(text, start):
        value = _value(cell, dialect, len(names) + 1)
        names.append((cell["bare"] if value is None else value).strip())
        if cell["end"] != dialect.delimiter:
            break
    return names


def _cut_into(found: CutText, text: str, dialect: CsvDialect, is_last: bool, rows_max: int) -> None:
    match, row, start, at, spaces, values = _cell(dialect).match, Row(), 0, 0, 0, 0
    while (at < len(text) or row) and len(found.rows) < rows_max:
        cell = match(text, at)
        if cell is None:
            if not is_last and _is_open(text, at, dialect):
                return
            raise _problem(text, at, dialect, len(row) + 1)
        if row:
            values, spaces = values + 1, spaces + text.startswith(" ", at)
        ends_with, at = cell["end"], cell.end()
        if at == len(text) and ends_with in ("", "\r") and not is_last:
            return  # the rest of the row, or of its line end, is still to come
        row.append(_value(cell, dialect, len(row) + 1))
        if ends_with == dialect.delimiter:
            continue
        if len(row) > 1 or cell["quoted"] is not None or cell["bare"].strip():
            found.rows.append(row)
            found.starts.append(start)
            found.is_padded = 0 < values == spaces
        row, start, found.end = Row(), at, at
        if not ends_with:
            return


@lru_cache(maxsize=64)
def _cell(dialect: CsvDialect) -> re.Pattern[str]:
    delimiter, quotes = re.escape(dialect.delimiter), "'\"" if dialect.is_tdengine else re.escape(dialect.quote)
    return re.compile(
        rf"(?:[ ]*+(?P<quoted>{_quoted(dialect)})[ ]*+|(?P<bare>(?![ ]*+[{quotes}])[^{delimiter}\r\n]*+))"
        rf"(?P<end>{delimiter}|\r\n|\r|\n|\Z)", re.DOTALL)


def _quoted(dialect: CsvDialect, closing: str = "{0}") -> str:
    if dialect.is_tdengine:
        return "(?:" + "|".join(rf"{q}(?:[^{q}\\]++|\\.|{q}{q})*+{closing.format(q)}" for q in "'\"") + ")"
    q = re.escape(dialect.quote)
    return f"{q}(?:[^{q}]++|{q}{q})*+{closing.format(q)}"


@lru_cache(maxsize=64)
def _open(dialect: CsvDialect) -> re.Pattern[str]:
    return re.compile(r"[ ]*+" + _quoted(dialect, closing=r"\\?\Z"), re.DOTALL)


def _is_open(text: str, at: int, dialect: CsvDialect) -> bool:
    return _open(dialect).match(text, at) is not None


def _value(cell: re.Match[str], dialect: CsvDialect, column: int) -> str | None:
    quoted = cell["quoted"]
    if quoted is not None:
        return unescape(quoted) if dialect.is_tdengine else \
            quoted[1:-1].replace(2 * dialect.quote, dialect.quote)
    bare = cell["bare"]
    stripped = bare.strip(" ")
    if stripped in NULLS and (stripped or dialect.trims or not bare):
        return None
    if dialect.is_guess and not dialect.is_tdengine and _is_single_quoted(stripped):
        raise CsvError(f"{shorten(stripped)} is in single quotes, but what is before it isn't TDengine's CSV",
                       cell.start(), column)
    return stripped if dialect.trims else bare


def _is_single_quoted(bare: str) -> bool:
    return len(bare) > 1 and bare[0] == bare[-1] == _TDENGINE


def _problem(text: str, at: int, dialect: CsvDialect, column: int) -> CsvError:
    if _is_open(text, at, dialect):
        return CsvError("a quote is opened and never closed", at, column)
    return CsvError(f"a quote is not where one may be, in {shorten(_LINE_END.split(text[at:at + 1000], 1)[0])!r}",
                    at, column)


# --- which one it is -----------------------------------------------------------------------------------------------


def guessed(sample: str, *, is_last: bool, quote: str | None) -> list[tuple[CsvDialect, CutText]]:
    """Returns the dialects that a file may have which begins with `sample`, one per delimiter, and its first rows.

    `quote`: it is known.
    """
    return [_by_quotes(sample, delimiter, is_last, quote) for delimiter in _DELIMITERS]


def _by_quotes(sample: str, delimiter: str, is_last: bool, quote: str | None) -> tuple[CsvDialect, CutText]:
    if quote is not None:
        dialect = dialect_of(quote, delimiter)
        return dialect, _sampled(sample, dialect, is_last)
    strict, tdengine = (dialect_of(each, delimiter, is_guess=True) for each in ('"', _TDENGINE))
    rows = _sampled(sample, strict, is_last)
    if rows.quality < CutText().quality:
        others = _sampled(sample, tdengine, is_last)
        if others.quality > rows.quality:
            return tdengine, others
    return replace(strict, trims=rows.is_padded), rows


def _sampled(sample: str, dialect: CsvDialect, is_last: bool) -> CutText:
    found = CutText()
    try:
        _cut_into(found, sample, dialect, is_last, _SAMPLE_ROWS)
    except CsvError as error:
        found.problem_at = error.at
    return found


# --- what a library reads as well ----------------------------------------------------------------------------------


def is_plain(data: bytes, dialect: CsvDialect) -> bool:
    """Whether these rows are such that Arrow cuts them as `cut` does: each quote is where it belongs, and is needed."""
    quote = dialect.quote.encode()
    if len(quote) != 1 or (dialect.is_tdengine and b"\\" in data):
        return False
    has_spaces = b" " in data
    if has_spaces and any(b" " + null in data or null + b" " in data for null in (b"NULL", b"null", b"Null")):
        return False
    if not has_spaces and not any(mark in data for mark in (b"'", b'"', quote)):
        return True
    codes = np.frombuffer(data, np.uint8)
    edges = np.zeros(256, np.bool_)
    edges[[ord(dialect.delimiter), ord("\n"), ord("\r")]] = True
    quotes = np.flatnonzero(codes == quote[0]) if quote in data else np.empty(0, np.int64)
    if len(quotes):
        if codes[-1] == ord(dialect.delimiter):
            return False  # Arrow takes a last value without anything for quoted if the one before is
        allowed = edges.copy()
        allowed[quote[0]] = True
        before, behind = quotes[0::2] - 1, quotes[1::2] + 1
        if len(quotes) % 2 or not allowed[codes[before[before >= 0]]].all() \
                or not allowed[codes[behind[behind < len(codes)]]].all():
            return False
    return not (dialect.trims and has_spaces and _beside_edges(codes, " ", edges, quotes)) and \
        not _opens_otherwise(data, codes, dialect, edges, quotes)


_Codes = np.ndarray[tuple[int], np.dtype[np.uint8]]
_Places = np.ndarray[tuple[int], np.dtype[np.int64]]
_Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


def _beside_edges(codes: _Codes, character: str, edges: _Flags, quotes: _Places) -> bool:
    """Whether the character is at the edge of a value without quotes."""
    places = np.flatnonzero(codes == ord(character))
    at_edge = (places == 0) | edges[codes[places - 1]] | (places == len(codes) - 1)
    at_edge |= edges[codes[np.minimum(places + 1, len(codes) - 1)]]
    return _any_unquoted(places[at_edge], quotes)


def _opens_otherwise(data: bytes, codes: _Codes, dialect: CsvDialect, edges: _Flags, quotes: _Places) -> bool:
    """Whether a value begins with quotes of the other kind, which mean something else to us than to Arrow."""
    other = b'"' if dialect.is_tdengine else b"'"
    if other not in data or not (dialect.is_tdengine or dialect.is_guess):
        return False
    places = np.flatnonzero(codes == other[0])
    before = codes[places - 1]
    return _any_unquoted(places[(places == 0) | edges[before] | (before == ord(" "))], quotes)


def _any_unquoted(places: _Places, quotes: _Places) -> bool:
    return bool((np.searchsorted(quotes, places) % 2 == 0).any())
