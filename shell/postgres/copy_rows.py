"""COPY: what the statement says, and rows between PostgreSQL's text and CSV and lists of cells. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from penstock.common.errors import InvalidValueError, NotSupportedError, SqlSyntaxError
from penstock.sql.tree.expression_nodes import plain_name, quote_identifier

Row = list[str | None]

_NAME = r'(?:"(?:[^"]|"")+"|`(?:[^`]|``)+`|\w+)'
_NAMES = rf"\s*{_NAME}\s*(?:,\s*{_NAME}\s*)*"
_COPY = re.compile(
    rf"""COPY\s*(?: \((?P<query>.*)\) | (?P<table>{_NAME}(?:\s*\.\s*{_NAME})?)\s*(?:\((?P<columns>{_NAMES})\))? )
    \s*(?P<way>FROM\s+STDIN|TO\s+STDOUT)\b(?P<options>.*)""", re.IGNORECASE | re.DOTALL | re.VERBOSE)
_WORDS = re.compile(r"[eE]?'(?P<text>(?:[^']|'')*)'|(?P<word>\w+)|[(),\s]+|(?P<other>.)", re.DOTALL)
_FLAGS = ("HEADER", "FREEZE", "CSV", "BINARY")
_TRUE = ("TRUE", "ON", "1")


@dataclass(frozen=True, slots=True)
class CopyFormat:
    """How rows are written."""

    name: Literal["text", "csv"] = "text"
    delimiter: str = "\t"
    null: str = "\\N"
    quote: str = '"'
    has_header: bool = False


@dataclass(frozen=True, slots=True)
class CopyStatement:
    """COPY between a table, or a query, and the client."""

    is_from: bool
    form: CopyFormat
    table: str = ""
    columns: tuple[str, ...] | None = None
    query: str | None = None


def read_copy(text: str) -> CopyStatement:
    """Returns what a COPY statement says. Raises SqlSyntaxError, NotSupportedError."""
    found = _COPY.fullmatch(text)
    if found is None:
        raise SqlSyntaxError("syntax error: COPY table [(columns)] FROM STDIN, or COPY table or (query) TO STDOUT is "
                             "expected")
    is_from = found["way"].upper().startswith("FROM")
    if is_from and found["query"] is not None:
        raise SqlSyntaxError("syntax error: COPY FROM needs a table")
    columns = None if found["columns"] is None else tuple(_names(found["columns"]))
    table = ".".join(map(quote_identifier, _names(found["table"] or "")))
    return CopyStatement(is_from, _format(found["options"]), table, columns, found["query"])


def _names(written: str) -> list[str]:
    return [plain_name(name) for name in re.findall(_NAME, written)]


def _format(options: str) -> CopyFormat:
    given: dict[str, str] = {}
    name = ""
    for match in _WORDS.finditer(options):
        if match["other"]:
            raise SqlSyntaxError(f"syntax error: an option of COPY is expected, not {match['other']!r}")
        value = match["text"].replace("''", "'") if match["text"] is not None else match["word"]
        if value is None or value.upper() in ("WITH", "AS"):
            continue
        if name and (match["text"] is not None or not _is_option(value)):
            given[name], name = value, ""
        elif match["text"] is None:
            name = value.upper()
            given[name] = "TRUE"
    return _checked(given)


def _is_option(word: str) -> bool:
    return word.upper() in (*_FLAGS, "FORMAT", "DELIMITER", "NULL", "QUOTE", "ESCAPE", "ENCODING") \
        and word.upper() not in ("CSV", "BINARY")


def _checked(given: dict[str, str]) -> CopyFormat:
    kind = given.pop("FORMAT", "csv" if given.pop("CSV", None) else "binary" if given.pop("BINARY", None) else "text")
    if kind.lower() not in ("text", "csv"):
        raise NotSupportedError(f"COPY in format {kind} is not supported", hint="there are text and csv")
    form = CopyFormat("csv", ",", "") if kind.lower() == "csv" else CopyFormat()
    form = replace(form, has_header=given.pop("HEADER", "FALSE").upper() in _TRUE,
                   delimiter=_unescaped(given.pop("DELIMITER", form.delimiter)), null=given.pop("NULL", form.null),
                   quote=given.pop("QUOTE", form.quote))
    given.pop("FREEZE", None)
    if given.pop("ENCODING", "UTF8").upper().replace("-", "") != "UTF8":
        raise NotSupportedError("COPY takes UTF8 only")
    if given.pop("ESCAPE", form.quote) != form.quote:
        raise NotSupportedError("COPY takes no other ESCAPE than its QUOTE")
    if given:
        raise NotSupportedError(f"COPY has no option {', '.join(given)} here")
    if len(form.delimiter) != 1 or len(form.quote) != 1:
        raise InvalidValueError("DELIMITER and QUOTE of COPY have one character each")
    return form


# --- rows that come ------------------------------------------------------------------------------------------------


class CopyReader:
    """Takes pieces of any size, and gives whole rows."""

    def __init__(self, form: CopyFormat) -> None:
        self._form = form
        self._rest = b""
        self._skips = form.has_header
        self._over = False
        #: the line, from 1, that the next row begins at
        self.line = 1 + form.has_header

    @property
    def held_bytes(self) -> int:
        """Bytes of a row that isn't all there."""
        return len(self._rest)

    def rows(self, data: bytes, *, is_last: bool = False) -> list[Row]:
        """Returns the rows that are whole with this piece. Raises InvalidValueError."""
        records, self._rest = self._records(self._rest + data)
        if is_last and self._rest.strip(b"\r\n"):
            records.append(self._rest)
            self._rest = b""
        if records and self._skips:
            self._skips, records = False, records[1:]
        found = []
        for number, record in enumerate(records):
            if record.rstrip(b"\r") == b"\\.":
                self._over = True
            if not self._over:
                found.append(self._row(_decoded(record.removesuffix(b"\r"), self.line + number)))
        return found

    def _records(self, data: bytes) -> tuple[list[bytes], bytes]:
        lines = data.split(b"\n")
        if self._form.name == "text":
            return lines[:-1], lines[-1]
        quote = self._form.quote.encode()
        records: list[bytes] = []
        open_lines: list[bytes] = []
        is_open = False
        for line in lines[:-1]:
            open_lines.append(line)
            is_open ^= line.count(quote) % 2 == 1
            if not is_open:
                records.append(b"\n".join(open_lines))
                open_lines = []
        return records, b"\n".join([*open_lines, lines[-1]])

    def _row(self, record: str) -> Row:
        form = self._form
        if form.name == "text":
            return [None if cell == form.null else _unescaped(cell) for cell in _text_cells(record, form.delimiter)]
        cells, at = [], 0
        pattern = _csv_cell(form)
        while (match := pattern.match(record, at)) is not None:
            quoted = match["quoted"]
            cells.append(quoted.replace(2 * form.quote, form.quote) if quoted is not None
                         else None if match["bare"] == form.null else match["bare"])
            at = match.end() + 1
            if at > len(record):
                return cells
        raise InvalidValueError(f"COPY: a quote is not where one may be, in {record[:100]!r}")


def _text_cells(record: str, delimiter: str) -> list[str]:
    if "\\" not in record:
        return record.split(delimiter)
    cells = [""]
    for piece in re.findall(rf"\\.|{re.escape(delimiter)}|[^\\{re.escape(delimiter)}]+|\\", record, re.DOTALL):
        if piece == delimiter:
            cells.append("")
        else:
            cells[-1] += piece
    return cells


def _csv_cell(form: CopyFormat) -> re.Pattern[str]:
    quote, delimiter = re.escape(form.quote), re.escape(form.delimiter)
    return re.compile(rf"(?:{quote}(?P<quoted>(?:[^{quote}]|{quote}{quote})*){quote}|(?P<bare>[^{delimiter}{quote}]*))"
                      rf"(?={delimiter}|\Z)", re.DOTALL)


_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _unescaped(cell: str) -> str:
    if "\\" not in cell:
        return cell
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), cell, flags=re.DOTALL)


def _decoded(record: bytes, line: int) -> str:
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"COPY, line {line}: {record[error.start:error.end]!r} is not valid UTF-8") from error


# --- rows that go --------------------------------------------------------------------------------------------------


def written_rows(form: CopyFormat, columns: Sequence[Sequence[bytes | None]]) -> Iterator[bytes]:
    """Yields rows, given by their columns as text, as COPY writes them: a line each."""
    for row in zip(*columns, strict=True):
        yield written_row(form, [None if cell is None else cell.decode() for cell in row])


def written_row(form: CopyFormat, row: Sequence[str | None]) -> bytes:
    """Returns one row as a line."""
    write = _escaped if form.name == "text" else _csv_text
    return (form.delimiter.join(form.null if cell is None else write(cell, form) for cell in row) + "\n").encode()


def _escaped(cell: str, form: CopyFormat) -> str:
    text = cell.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return text if form.delimiter == "\t" else text.replace(form.delimiter, f"\\{form.delimiter}")


def _csv_text(cell: str, form: CopyFormat) -> str:
    if cell == form.null or any(each in cell for each in (form.delimiter, form.quote, "\n", "\r")):
        return f"{form.quote}{cell.replace(form.quote, 2 * form.quote)}{form.quote}"
    return cell
