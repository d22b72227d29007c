"""InfluxDB's line protocol: text to columns, grouped by measurement and field names. Knows no catalog and no clock.

Lines without escapes are cut apart as a whole: NumPy finds the separators, then all lines with the same field names
become one set of columns. Everything else, and every line that something is wrong with, goes through a scanner that
reads one line at a time and says what it objects to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import InvalidValueError
from penstock.sql.rows.constants import shorten
from penstock.sql.rows.line_scanner import BOOLS, STRING_KINDS, TYPES, Series, scan_head, scan_line
from penstock.sql.types import DataType, Kind

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

BLOCK_BYTES = 4 << 20
_MAX_SHAPES = 64  # sets of field names per block that are read as columns; lines of rarer ones go one by one

_END, _SPACE, _COMMA, _EQUALS, _QUOTE, _ODD = 1, 2, 3, 4, 5, 6
_CLASSES = bytearray(256)
for _byte, _class in zip(b'\n ,="\\#\t\r\0', (_END, _SPACE, _COMMA, _EQUALS, _QUOTE, *[_ODD] * 5), strict=True):
    _CLASSES[_byte] = _class
_CLASSES_OF_BYTES = bytes(_CLASSES)

_SUFFIX = re.compile(r"(?:f32|f64|[iu](?:8|16|32|64)?)\Z", re.ASCII)
_NO_DIGITS = bytes(set(range(256)) - set(b"0123456789+-"))
_NO_NUMBER = bytes(set(range(256)) - set(b"0123456789+-.eE"))


@dataclass(frozen=True, slots=True)
class FieldColumn:
    """The values of one field, without NULLs; VARBINARY as bytes."""

    name: str
    kind: Kind
    values: pa.Array


@dataclass(frozen=True, slots=True)
class Points:
    """Lines of one measurement that have the same fields, in the order of the text.

    `index`: for each row its place in `series`. `times`: in the unit of the text; where `timeless` is set (None:
    nowhere) the line has no timestamp, or 0, which both mean now. `lines`: line numbers from 1.
    """

    measurement: str
    series: tuple[Series, ...]
    index: npt.NDArray[np.int32]
    fields: tuple[FieldColumn, ...]
    times: Ints
    timeless: Bools | None
    lines: Ints

    @property
    def num_rows(self) -> int:
        return len(self.lines)


def parse_lines(data: bytes, first_line: int = 1) -> list[Points]:
    """Returns the points of all lines; empty lines and comments (`#`) have none.

    `data` is UTF-8; `first_line` is the number of its first line. Raises InvalidValueError with the number and the
    text of the first line that is wrong, and for a field that changes its type from line to line.
    """
    if b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    points: list[Points] = []
    line = first_line
    for block in _blocks(data):
        points.extend(_Block(block, line).read())
        line += block.count(b"\n")
    _check_types(points, data, first_line)
    return points


# --- blocks --------------------------------------------------------------------------------------------------


def _blocks(data: bytes) -> Iterator[bytes]:
    """Cuts the text at line ends into pieces that fit the processor's caches better than all of it."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start + BLOCK_BYTES) + 1 if len(data) - start > BLOCK_BYTES else len(data)
        end = end or len(data)
        yield data[start:end] if data.endswith(b"\n", start, end) else data[start:end] + b"\n"
        start = end


@dataclass(frozen=True, slots=True)
class _Cut:
    """Lines that have a plain structure: where they begin, and which separators are theirs."""

    starts: Ints  # of each line, in bytes
    head_ends: Ints  # the space behind measurement and tags
    time_starts: Ints  # equal to the line's end where there is no timestamp
    ends: Ints
    first: Ints  # the place in `positions` of each line's first "="
    fields: Ints  # how many
    positions: Ints  # of separators, in bytes
    numbers: Ints  # of the lines, from 0

    def of(self, rows: Ints) -> _Cut:
        return _Cut(self.starts[rows], self.head_ends[rows], self.time_starts[rows], self.ends[rows],
                    self.first[rows], self.fields[rows], self.positions, self.numbers[rows])


class _Block:
    """One piece of the text while it is read; it ends with a line end."""

    def __init__(self, data: bytes, first_line: int) -> None:
        self._data = data
        self._first_line = first_line
        self._bytes: Bytes = np.frombuffer(data, np.uint8)
        self._buffer = pa.py_buffer(data)

    def read(self) -> list[Points]:
        self._check_text()
        try:
            return self._read_in_bulk()
        except InvalidValueError:
            pass  # something is wrong, not necessarily first there: the scanner finds the first line that is
        return self._read_one_by_one(np.arange(self._data.count(b"\n")))

    def _read_in_bulk(self) -> list[Points]:
        cut, odd = self._cut()
        points: list[Points] = []
        rest: list[Ints] = [odd]
        rows = np.arange(len(cut.numbers))
        for count in np.unique(cut.fields).tolist():
            left = rows[cut.fields == count]
            for _ in range(_MAX_SHAPES):
                if not len(left):
                    break
                same, left, found = self._read_shape(cut, left, count)
                if found is None:
                    rest.append(cut.numbers[same])
                else:
                    points.extend(found)
            rest.append(cut.numbers[left])
        points.extend(self._read_one_by_one(np.sort(np.concatenate(rest))))
        return points

    def _check_text(self) -> None:
        if self._data.isascii():
            return
        try:
            self._data.decode()
        except UnicodeDecodeError as error:
            line = self._data.count(b"\n", 0, error.start)
            raise InvalidValueError(f"line {self._first_line + line} is not valid UTF-8: {error.reason}") from None

    # --- structure

    def _cut(self) -> tuple[_Cut, Ints]:
        """Returns the lines whose structure is plain, and the numbers of the others."""
        classes_of_bytes = np.frombuffer(self._data.translate(_CLASSES_OF_BYTES), np.uint8)
        positions: Ints = np.flatnonzero(classes_of_bytes)
        classes = classes_of_bytes[positions]
        if (classes == _QUOTE).any():
            positions, classes, bad_quotes = _without_quoted(positions, classes)
        else:
            bad_quotes = np.zeros(0, np.int64)
        last = np.flatnonzero(classes == _END)
        ends = positions[last]
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
        first = np.concatenate((np.zeros(1, np.int64), last[:-1] + 1))
        count = len(last)
        plain = np.ones(count, np.bool_)
        plain[bad_quotes] = False
        line = np.repeat(np.arange(count), last - first + 1)
        spaces = np.flatnonzero(classes == _SPACE)
        space_line = line[spaces]
        spaces_per_line = np.bincount(space_line, minlength=count)
        plain &= (spaces_per_line == 1) | (spaces_per_line == 2)
        head = np.zeros(count, np.int64)
        head[space_line[::-1]] = spaces[::-1]  # the first space of each line: what is written last stays
        final = np.zeros(count, np.int64)
        final[space_line] = spaces
        timed = spaces_per_line == 2
        plain &= ~timed | (final == last - 1)
        field_seps = np.where(timed, final, last) - head - 1
        tag_seps = head - first
        plain &= (field_seps % 2 == 1) & (tag_seps % 2 == 0) & (field_seps > 0)
        # Behind the measurement , and = take turns, and so they do, beginning with =, behind the first space.
        place = np.arange(len(positions))
        in_fields = place > head[line]
        turn = (place - np.where(in_fields, head[line] + 2, first[line])) & 1
        expected = np.where(turn == 0, _COMMA, _EQUALS).astype(np.uint8)
        expected[head[plain]] = _SPACE
        expected[last] = _END
        expected[final[plain & timed]] = _SPACE
        wrong = classes != expected
        wrong[1:] |= np.diff(positions) == 1  # an empty cell
        wrong[0] |= bool(len(positions)) and positions[0] == 0
        plain[line[wrong]] = False
        numbers: Ints = np.flatnonzero(plain)
        has_time, end = timed[numbers], ends[numbers]
        cut = _Cut(
            starts[numbers], positions[head[numbers]],
            np.where(has_time, positions[final[numbers]] + 1, end), end,
            head[numbers] + 1, (field_seps[numbers] + 1) // 2, positions, numbers)
        empty = ends == starts
        return cut, np.flatnonzero(~plain & ~empty)

    def _read_shape(self, cut: _Cut, rows: Ints, count: int) -> tuple[Ints, Ints, list[Points] | None]:
        """Reads all lines that have the field names of the first of `rows`.

        Returns these rows, the others, and the points, or None if the names need the careful way.
        """
        first = cut.first[rows]
        key_starts = cut.head_ends[rows] + 1
        matches: Bools = np.ones(len(rows), np.bool_)
        names = []
        for place in range(count):
            key_ends = cut.positions[first + 2 * place]
            name = self._data[int(key_starts[0]):int(key_ends[0])]
            names.append(name)
            matches &= (key_ends - key_starts) == len(name)
            if place < count - 1:
                key_starts = cut.positions[first + 2 * place + 1] + 1
        if not matches.all():
            rows, left = rows[matches], rows[~matches]
        else:
            left = rows[:0]
        same = self._same_names(cut, rows, names)
        if same is not None:
            left = np.sort(np.concatenate((left, rows[~same])))
            rows = rows[same]
        if len(set(names)) < count or any(b'"' in name for name in names):
            return rows, left, None
        return rows, left, self._read_columns(cut.of(rows), [name.decode() for name in names])

    def _same_names(self, cut: _Cut, rows: Ints, names: Sequence[bytes]) -> Bools | None:
        """Returns which rows, whose names have the right lengths, have the right names; None if all have."""
        first = cut.first[rows]
        same: Bools | None = None
        for place, name in enumerate(names):
            ends = cut.positions[first + 2 * place]
            for back, byte in enumerate(reversed(name), 1):
                equal = self._bytes[ends - back] == byte
                if not equal.all():
                    same = equal if same is None else same & equal
        return same

    # --- columns

    def _read_columns(self, cut: _Cut, names: Sequence[str]) -> list[Points] | None:
        """Returns the points of lines with these field names, or None if some cell needs the careful way."""
        heads = self._cells(cut.starts, cut.head_ends).dictionary_encode()
        times = self._times(cut)
        if times is None:
            return None
        series = [scan_head(text)[0] for text in heads.dictionary.to_pylist()]
        index = heads.indices.to_numpy()
        points = []
        for measurement in dict.fromkeys(one.measurement for one in series):
            mine = [place for place, one in enumerate(series) if one.measurement == measurement]
            rows = np.arange(len(index))
            if len(mine) < len(series):
                new_place = np.full(len(series), -1, np.int32)
                new_place[mine] = np.arange(len(mine), dtype=np.int32)
                rows = np.flatnonzero(new_place[index] >= 0)
                of_rows = new_place[index[rows]]
            else:
                of_rows = index
            part = cut if len(rows) == len(index) else cut.of(rows)
            fields = self._fields(part, names)
            if fields is None:
                return None
            points.append(Points(
                measurement, tuple(series[place] for place in mine), of_rows, fields, times[0][rows],
                None if times[1] is None else times[1][rows], part.numbers + self._first_line))
        return points

    def _cells(self, starts: Ints, ends: Ints) -> pa.StringArray:
        """Returns the text between each start and end; these must ascend."""
        offsets = np.empty(2 * len(starts), np.int32)
        offsets[0::2], offsets[1::2] = starts, ends
        # Every second string of this array lies between two cells.
        both = pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), self._buffer)
        return both.take(pa.array(np.arange(0, len(offsets), 2, dtype=np.int32)))

    def _times(self, cut: _Cut) -> tuple[Ints, Bools | None] | None:
        without = cut.time_starts == cut.ends
        if not without.any():
            times = self._convert_times(cut)
        else:
            given = np.flatnonzero(~without)
            times = np.zeros(len(without), np.int64)
            found = self._convert_times(cut.of(given)) if len(given) else np.zeros(0, np.int64)
            if found is None:
                return None
            times[given] = found
        if times is None:
            return None
        timeless = times == 0
        return times, timeless if timeless.any() else None

    def _convert_times(self, cut: _Cut) -> Ints | None:
        cells = self._cells(cut.time_starts, cut.ends)
        if not _holds_only(cells, _NO_DIGITS):
            return None
        try:
            times: Ints = cells.cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid:
            return None
        return times

    def _fields(self, cut: _Cut, names: Sequence[str]) -> tuple[FieldColumn, ...] | None:
        fields = []
        for place, name in enumerate(names):
            starts = cut.positions[cut.first + 2 * place] + 1
            found = self._bulk(starts, cut.positions[cut.first + 2 * place + 1])
            if found is None:
                return None
            fields.append(FieldColumn(name, *found))
        return tuple(fields)

    def _bulk(self, starts: Ints, ends: Ints) -> tuple[Kind, pa.Array] | None:
        """Returns the whole column if all values have the first one's form, else None."""
        text = self._data[int(starts[0]):int(ends[0])].decode()
        if text.endswith('"'):
            return self._bulk_strings(starts, ends, text[:text.find('"') + 1])
        if text in BOOLS:
            return self._bulk_bools(starts, ends)
        match = _SUFFIX.search(text)
        suffix = match[0] if match is not None else ""
        for back, byte in enumerate(reversed(suffix.encode()), 1):
            if not (self._bytes[ends - back] == byte).all():
                return None
        kind = TYPES[suffix]
        floats = kind in (Kind.DOUBLE, Kind.FLOAT)
        ends = ends - len(suffix)
        if not (ends > starts).all():
            return None
        digits = self._cells(starts, ends)
        if not _holds_only(digits, _NO_NUMBER if floats else _NO_DIGITS):
            return None
        try:
            numbers = digits.cast(pa.float64() if floats else DataType(kind).arrow())
        except pa.ArrowInvalid:
            return None
        if kind is Kind.FLOAT:
            numbers = numbers.cast(pa.float32(), safe=False)
        return None if floats and not bool(pc.all(pc.is_finite(numbers)).as_py()) else (kind, numbers)

    def _bulk_strings(self, starts: Ints, ends: Ints, prefix: str) -> tuple[Kind, pa.Array] | None:
        kind = STRING_KINDS.get(prefix)
        if kind not in (Kind.VARCHAR, Kind.NCHAR) or not (ends - starts > len(prefix)).all():
            return None
        for place, byte in enumerate(prefix.encode()):
            if not (self._bytes[starts + place] == byte).all():
                return None
        if not (self._bytes[ends - 1] == ord('"')).all():
            return None
        content = self._cells(starts + len(prefix), ends - 1)
        return None if b'"' in _contents(content) else (kind, content)

    def _bulk_bools(self, starts: Ints, ends: Ints) -> tuple[Kind, pa.Array] | None:
        texts = self._cells(starts, ends).dictionary_encode()
        values = [BOOLS.get(text) for text in texts.dictionary.to_pylist()]
        if None in values:
            return None
        return Kind.BOOL, pa.array(values, pa.bool_()).take(texts.indices)

    # --- one by one

    def _read_one_by_one(self, numbers: Ints) -> list[Points]:
        if not len(numbers):
            return []
        collected: dict[tuple[str, tuple[str, ...], tuple[Kind, ...]], _Collected] = {}
        lines = self._data.decode().split("\n")
        for number in numbers.tolist():
            text = lines[number].strip(" \t\r\0")
            if not text or text.startswith("#"):
                continue
            try:
                series, fields, time = scan_line(text)
            except InvalidValueError as error:
                raise InvalidValueError(f"line {number + self._first_line}: {error.message}, in: {shorten(text)}",
                                        hint=error.hint) from error
            shape = (series.measurement, tuple(field[0] for field in fields), tuple(field[1] for field in fields))
            group = collected.setdefault(shape, _Collected())
            group.add(series, [field[2] for field in fields], time, number + self._first_line)
        return [group.points(*shape) for shape, group in collected.items()]



def _without_quoted(positions: Ints, classes: Bytes) -> tuple[Ints, Bytes, Ints]:
    """Leaves out quotes and what is between them; returns the rest, and the lines in which that isn't sure."""
    ends = classes == _END
    line = np.cumsum(ends) - ends
    quotes = classes == _QUOTE
    before = np.cumsum(quotes) - quotes  # quotes in front of each separator
    line_starts = np.concatenate((np.zeros(1, np.int64), np.flatnonzero(ends)[:-1] + 1))
    inside = ((before - before[line_starts][line]) & 1) == 1
    # A quote in a measurement or tag is a character like any other; quotes left open hide what follows.
    doubtful = ends & inside
    spaces_before = np.cumsum(classes == _SPACE)
    doubtful |= quotes & (spaces_before == (spaces_before - (classes == _SPACE))[line_starts][line])
    kept = ends | ~(quotes | inside)
    bad = np.unique(line[doubtful | (classes == _ODD)])
    return positions[kept], classes[kept], bad


class _Collected:
    """Lines that were read one by one and have the same measurement, fields and types."""

    def __init__(self) -> None:
        self._series: dict[Series, int] = {}
        self._index: list[int] = []
        self._rows: list[list[Any]] = []
        self._times: list[int] = []
        self._lines: list[int] = []

    def add(self, series: Series, values: list[Any], time: int, line: int) -> None:
        self._index.append(self._series.setdefault(series, len(self._series)))
        self._rows.append(values)
        self._times.append(time)
        self._lines.append(line)

    def points(self, measurement: str, names: tuple[str, ...], kinds: tuple[Kind, ...]) -> Points:
        fields = tuple(FieldColumn(name, kind, _array(kind, [row[place] for row in self._rows]))
                       for place, (name, kind) in enumerate(zip(names, kinds, strict=True)))
        times = np.array(self._times, np.int64)
        timeless = times == 0
        return Points(measurement, tuple(self._series), np.array(self._index, np.int32), fields, times,
                      timeless if timeless.any() else None, np.array(self._lines, np.int64))


def _array(kind: Kind, values: list[Any]) -> pa.Array:
    if kind is Kind.FLOAT:
        return pa.array(values, pa.float64()).cast(pa.float32(), safe=False)
    return pa.array(values, DataType(kind).arrow())


def _contents(cells: pa.StringArray) -> bytes:
    """Returns the text of all cells, without anything between them."""
    _, offsets, content = cells.buffers()
    if content is None:
        return b""
    bounds = np.frombuffer(offsets, np.int32)[[cells.offset, cells.offset + len(cells)]]
    text: bytes = content.slice(int(bounds[0]), int(bounds[1] - bounds[0])).to_pybytes()
    return text


def _holds_only(cells: pa.StringArray, other_bytes: bytes) -> bool:
    text = _contents(cells)
    return len(text.translate(None, other_bytes)) == len(text)


# --- types ---------------------------------------------------------------------------------------------------


def _changed_type(kind: Kind, before: Kind, line: int) -> InvalidValueError:
    return InvalidValueError(f"the value is {kind} here, but {before} in line {line}",
                             hint="a suffix tells the type: 1 is DOUBLE, 1i BIGINT, 1u BIGINT UNSIGNED")


def _check_types(points: Sequence[Points], data: bytes, first_line: int) -> None:
    """Raises InvalidValueError if a field of a measurement has several types."""
    known: dict[tuple[str, str], tuple[Kind, int]] = {}
    for group in sorted(points, key=lambda group: int(group.lines[0])):
        line = int(group.lines[0])
        for field in group.fields:
            kind, at = known.setdefault((group.measurement, field.name), (field.kind, line))
            if kind is not field.kind:
                text = data.split(b"\n", line - first_line + 1)[line - first_line].decode()
                error = _changed_type(field.kind, kind, at)
                raise InvalidValueError(
                    f"line {line}, field {shorten(field.name)}: {error.message}, in: {shorten(text)}",
                    hint=error.hint)
