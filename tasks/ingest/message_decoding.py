"""Decodes messages into columns: JSON, CSV and Avro. One bad message fails its whole batch.

Who calls tries parts of a batch that failed, down to single messages, and so finds those that can't be read.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from penstock.common.errors import InvalidValueError
from penstock.sql.rows.constants import shorten
from penstock.sql.rows.line_protocol import Points, parse_lines

Path = tuple[str, ...]
Index = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_BLOCK_BYTES = 64 << 20  # larger than any batch: columns come in one piece
_OPEN, _CLOSE = ord("{"), ord("}")
_EXACT = float(1 << 53)
"""Up to here floating-point numbers hold whole numbers as they are."""
_DECIMALS_END = 10**76
ROWS_MAX = 10_000
"""So many elements of an array may one message have."""
_DEPTH_MAX = 32
"""So deep may values be within values."""
_FEW = 16
"""So few messages are read one by one: Arrow needs longer to get started."""


class Fields(Protocol):
    """The content of a batch: rows, and which message each is of (None: each message is one row)."""

    @property
    def rows(self) -> int: ...

    @property
    def messages(self) -> Index | None: ...

    def values(self, path: Path) -> pa.Array:
        """Returns the values of a field, NULL where a row has none; of NULL type if no row has one."""
        ...

    def unknown(self) -> Bools | None:
        """Returns which rows have fields that nobody asks for; None: none has."""
        ...


Decoder = Callable[[Sequence[bytes]], Fields]
"""Reads a batch. Raises InvalidValueError."""


@dataclass
class Wanted:
    """The fields that are asked for, as a tree; a leaf is a field."""

    inner: dict[str, Wanted] = field(default_factory=dict)

    @classmethod
    def of(cls, paths: Iterable[Path]) -> Wanted:
        root = cls()
        for path in paths:
            node = root
            for key in path:
                node = node.inner.setdefault(key, cls())
        return root

    def knows(self, value: Mapping[str, Any]) -> bool:
        """Whether all fields of an object are asked for, or within one that is."""
        for key, inner in value.items():
            node = self.inner.get(key)
            if node is None:
                if inner is not None:
                    return False
            elif node.inner and isinstance(inner, dict) and not node.knows(inner):
                return False
        return True


@dataclass(frozen=True)
class RowFields:
    """Rows as Python objects. `texts`: fields that are text for those who ask."""

    content: Sequence[Mapping[str, Any]]
    wanted: Wanted
    messages: Index | None = None
    texts: frozenset[Path] = frozenset()

    @property
    def rows(self) -> int:
        return len(self.content)

    def values(self, path: Path) -> pa.Array:
        found = [_at(row, path) for row in self.content]
        types = set(map(type, found)) - {type(None)}
        if not types.isdisjoint((dict, list)) and any(map(_is_deep, found)):
            raise InvalidValueError(f"field {'.'.join(path)} has values within values, more than {_DEPTH_MAX} deep")
        try:
            if len(types) > 1 and types != {int, float}:
                if path not in self.texts:
                    raise InvalidValueError(f"field {'.'.join(path)} is of one type here and of another one there")
                found = [None if value is None else _text_of(value) for value in found]
            elif len(types) > 1 and path in self.texts:
                found = [None if value is None else _text_of(value) for value in found]
            elif types == {int} and not all(value is None or -(2**63) <= value < 2**63 for value in found):
                found = [None if value is None else _wide(value) for value in found]
            return pa.array(found)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise InvalidValueError(f"field {'.'.join(path)}: {error}") from error

    def unknown(self) -> Bools | None:
        unknown = np.array([not self.wanted.knows(row) for row in self.content], np.bool_)
        return unknown if unknown.any() else None


@dataclass(frozen=True)
class TableFields:
    """Rows as columns, objects within them as structs."""

    table: pa.Table
    wanted: Wanted
    messages: Index | None = None

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def values(self, path: Path) -> pa.Array:
        place = self.table.schema.get_field_index(path[0])
        if place < 0:
            return pa.nulls(self.rows)
        array = self.table.column(place).combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.nulls(0, array.type)
        for key in path[1:]:
            if not pa.types.is_struct(array.type) or array.type.get_field_index(key) < 0:
                return pa.nulls(self.rows)
            array = pc.struct_field(array, key)
        return array

    def unknown(self) -> Bools | None:
        unknown = np.zeros(self.rows, np.bool_)
        for name, column in zip(self.table.column_names, self.table.columns, strict=True):
            _note_unknown(unknown, self.wanted, name, column)
        return unknown if unknown.any() else None


def _note_unknown(unknown: Bools, wanted: Wanted, name: str, column: pa.ChunkedArray | pa.Array) -> None:
    node = wanted.inner.get(name)
    if node is None:
        if column.null_count < len(column):
            unknown |= column.is_valid().to_numpy(zero_copy_only=False)
    elif node.inner and pa.types.is_struct(column.type):
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        for inner in array.type:
            _note_unknown(unknown, node, inner.name, pc.struct_field(array, inner.name))


def _text_of(value: Any) -> str:
    """Returns a value as it is in a text column. Raises InvalidValueError for what can't be told from a text then."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    raise InvalidValueError(f"{shorten(repr(value))} is neither a text nor a number")


def _wide(value: int) -> Decimal | float:
    """Returns a number that has more than 64 bits, or stands beside one, as Arrow can have it."""
    return Decimal(value) if abs(value) < _DECIMALS_END else float(value)


def _is_deep(value: Any) -> bool:
    """Whether it would take Arrow seconds: that grows with the square of the depth."""
    level = [value]
    for _ in range(_DEPTH_MAX + 1):
        level = [inner for outer in level if isinstance(outer, dict | list)
                 for inner in (outer.values() if isinstance(outer, dict) else outer)]
        if not level:
            return False
    return True


def _at(value: Any, path: Path) -> Any:
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


# --- JSON --------------------------------------------------------------------------------------------------------


class JsonDecoder:
    """Each message is an object, which is a row, or an array of objects. With `array` each element of that is a row."""

    def __init__(self, paths: Sequence[Path], texts: Sequence[Path], array: Path | None = None) -> None:
        """`paths`: the fields that are asked for; `texts`: those of them that are text for those who ask."""
        self._array = array
        self._wanted = Wanted.of(paths)
        self._paths = tuple(dict.fromkeys(paths))
        self._texts = texts
        # Most senders write a field always as text or always as a number: what worked last is tried first.
        self._ways = [_text_schema(texts), None]

    def __call__(self, messages: Sequence[bytes]) -> Fields:
        if self._array is None and len(messages) > _FEW and all(
                message and message[0] == _OPEN and message[-1] == _CLOSE for message in messages):
            for way in list(self._ways):
                fields = self._at_once(messages, way)
                if fields is not None:
                    if way is not self._ways[0]:
                        self._ways.reverse()
                    return fields
        return self._one_by_one(messages)

    def _at_once(self, messages: Sequence[bytes], schema: pa.Schema | None) -> Fields | None:
        """Returns what Arrow makes of the messages, None if it doesn't do.

        Each message begins and ends with a brace, so it makes one row at least; if there are as many rows as
        messages, each is one.
        """
        options = pa_json.ParseOptions(explicit_schema=schema, newlines_in_values=False)
        try:
            table = pa_json.read_json(
                pa.BufferReader(b"\n".join(messages)),
                read_options=pa_json.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES), parse_options=options)
        except pa.ArrowInvalid:
            return None
        if table.num_rows != len(messages):
            return None
        fields = TableFields(table, self._wanted)
        return None if any(self._is_altered(path, fields.values(path)) for path in self._paths) else fields

    def _is_altered(self, path: Path, values: pa.Array) -> bool:
        """Whether values are others than their messages have, for the sake of their neighbours or of their looks.

        Arrow takes text that looks like a time for one, and whole numbers beside others for floating-point numbers.
        """
        if pa.types.is_timestamp(values.type):
            return True
        if not pa.types.is_floating(values.type):
            return False
        largest = pc.max(pc.abs(values)).as_py()
        return path in self._texts or (largest is not None and not largest <= _EXACT)

    def _one_by_one(self, messages: Sequence[bytes]) -> Fields:
        content: list[Mapping[str, Any]] = []
        index: list[int] = []
        for number, message in enumerate(messages):
            rows = _read_json(message)
            if self._array is not None:
                rows = [one for row in rows for one in _elements(row, self._array)]
                if len(rows) > ROWS_MAX:
                    raise InvalidValueError(f"the message has {len(rows)} elements, {ROWS_MAX} are allowed")
            content += rows
            index += [number] * len(rows)
        return RowFields(content, self._wanted, np.array(index, np.int64), frozenset(self._texts))


def _read_json(message: bytes) -> list[Mapping[str, Any]]:
    try:
        value = json.loads(message)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"no JSON: {error}") from error
    rows = value if isinstance(value, list) else [value]
    if not all(isinstance(row, dict) for row in rows):
        raise InvalidValueError(f"{shorten(repr(value))} is no JSON object, nor an array of them")
    return rows


def parts_of(message: bytes, array: Path) -> list[bytes]:
    """Returns messages that have one element each of the array of a message that can be read."""
    made = []
    for row in _read_json(message):
        for one in _elements(row, array):
            made.append(json.dumps(_with(one, array, [_at(one, array)])).encode())
    return made


def _elements(row: Mapping[str, Any], array: Path) -> list[Mapping[str, Any]]:
    """Returns a row for each element of an array, which has the element in its place."""
    elements = _at(row, array)
    if not isinstance(elements, list):
        raise InvalidValueError(f"there is no array in $.{'.'.join(array)}")
    return [_with(row, array, element) for element in elements]


def _with(row: Mapping[str, Any], path: Path, value: Any) -> Mapping[str, Any]:
    """Returns an object with another value at a path."""
    first, *rest = path
    return {**row, first: _with(row[first], tuple(rest), value) if rest else value}


def _text_schema(texts: Sequence[Path]) -> pa.Schema | None:
    """Returns the schema that has these fields as text, and leaves the rest open."""
    if not texts:
        return None
    return pa.schema(_text_fields(Wanted.of(texts)))


def _text_fields(wanted: Wanted) -> list[pa.Field]:
    return [pa.field(key, pa.struct(_text_fields(node)) if node.inner else pa.string())
            for key, node in wanted.inner.items()]


# --- CSV ---------------------------------------------------------------------------------------------------------


class CsvDecoder:
    """Each message is one line, or several; all values are text. An empty value that isn't quoted is NULL."""

    def __init__(self, paths: Sequence[Path], names: Sequence[str]) -> None:
        self._wanted = Wanted.of(paths)
        self._names = names
        self._convert = pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""],
            quoted_strings_can_be_null=False)

    def __call__(self, messages: Sequence[bytes]) -> Fields:
        ends = [message.rstrip(b"\r\n") for message in messages]
        if len(messages) > _FEW and all(ends) and not any(b"\n" in end or b"\r" in end for end in ends):
            try:
                table = self._table(b"\n".join(ends))
            except pa.ArrowInvalid:
                table = None
            if table is not None and table.num_rows == len(messages):
                return TableFields(table, self._wanted)
        return self._one_by_one(messages)

    def _one_by_one(self, messages: Sequence[bytes]) -> Fields:
        content: list[Mapping[str, Any]] = []
        index: list[int] = []
        for number, message in enumerate(messages):
            for line in self._lines(message):
                if len(line) != len(self._names):
                    raise InvalidValueError(f"{len(line)} values where {len(self._names)} belong")
                content.append(dict(zip(self._names, line, strict=True)))
                index.append(number)
        return RowFields(content, self._wanted, np.array(index, np.int64))

    def _lines(self, message: bytes) -> Sequence[Sequence[str | None]]:
        try:
            if b'""' in message:  # perhaps an empty text in quotes, which is no NULL: Python's reader can't tell
                return list(zip(*(column.to_pylist() for column in self._table(message)), strict=True))
            lines = [line for line in csv.reader(io.StringIO(message.decode()), strict=True) if line]
        except (UnicodeDecodeError, csv.Error, pa.ArrowInvalid) as error:
            raise InvalidValueError(f"no CSV: {error}") from error
        return [[value or None for value in line] for line in lines]

    def _table(self, data: bytes) -> pa.Table:
        return pa_csv.read_csv(
            pa.BufferReader(data), convert_options=self._convert,
            parse_options=pa_csv.ParseOptions(newlines_in_values=b"\n" in data or b"\r" in data),
            read_options=pa_csv.ReadOptions(
                use_threads=False, block_size=_BLOCK_BYTES, column_names=list(self._names)))


# --- Avro --------------------------------------------------------------------------------------------------------


class AvroDecoder:
    """Each message is one record without its schema, as `penstock.tasks.external.connectors.avro` reads it."""

    def __init__(self, paths: Sequence[Path], read: Callable[[bytes], Any]) -> None:
        """`read` returns the record, or raises InvalidValueError."""
        self._wanted = Wanted.of(paths)
        self._read = read

    def __call__(self, messages: Sequence[bytes]) -> Fields:
        content = []
        for message in messages:
            record = self._read(message)
            if not isinstance(record, dict):
                raise InvalidValueError(f"{shorten(repr(record))} is no Avro record")
            content.append(record)
        return RowFields(content, self._wanted)


# --- line protocol -----------------------------------------------------------------------------------------------

LINE_TIME, LINE_MEASUREMENT = "_time", "_measurement"
"""What the instant (ns, NULL where a line has none) and the measurement of a line are called among its fields."""


class LineDecoder:
    """Each message is one line of InfluxDB's line protocol, or several; only those of one measurement are rows."""

    def __init__(self, paths: Sequence[Path], measurement: str) -> None:
        self._wanted = Wanted.of([*paths, (LINE_TIME,), (LINE_MEASUREMENT,)])
        self._measurement = measurement

    def __call__(self, messages: Sequence[bytes]) -> Fields:
        data = b"\n".join(messages)
        try:
            found = parse_lines(data)
        except UnicodeDecodeError as error:
            raise InvalidValueError(f"no line protocol: {error}") from error
        groups = [points for points in found if points.measurement == self._measurement]
        table = pa.concat_tables([self._table(points) for points in groups], promote_options="permissive") \
            if groups else pa.table({})
        lines = np.concatenate([points.lines for points in groups]) if groups else np.zeros(0, np.int64)
        # The message of a line is the last that begins at it or before.
        begins = np.cumsum([1, *(message.count(b"\n") + 1 for message in messages[:-1])])
        index: Index = np.searchsorted(begins, lines, side="right") - 1
        order = np.argsort(lines, kind="stable")
        return TableFields(table.take(pa.array(order)), self._wanted, index[order])

    def _table(self, points: Points) -> pa.Table:
        timeless = points.timeless if points.timeless is not None else np.zeros(points.num_rows, np.bool_)
        columns: dict[str, pa.Array] = {}
        for name in dict.fromkeys(key for series in points.series for key, _ in series.tags):
            values = pa.array([dict(series.tags).get(name) for series in points.series], pa.string())
            columns[name] = values.take(pa.array(points.index))
        columns |= {one.name: one.values for one in points.fields}
        columns[LINE_TIME] = pa.array(points.times, mask=timeless)
        columns[LINE_MEASUREMENT] = pa.repeat(pa.scalar(points.measurement), points.num_rows)
        return pa.table(columns)
