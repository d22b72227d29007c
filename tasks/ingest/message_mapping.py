"""Makes rows of a table from messages, as an ingest's plan says. Others come back with the reason."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import InvalidStatementError, InvalidValueError, NotSupportedError, PenstockError
from penstock.planner.streams.ingest_plan import CHANGES, IngestPlan, MappedColumn
from penstock.planner.task_plans.column_names import CHILD, KEPT, OFFSET, OPERATION
from penstock.sql.rows.constants import Constants, exact, is_number
from penstock.sql.rows.fitting import fitted, times_of_texts
from penstock.sql.schema import Column, can_name_child
from penstock.sql.time_bounds import LATEST, oldest_allowed
from penstock.sql.tree.statements import MessageField, TimeUnit
from penstock.sql.types import UNITS_PER_SECOND, DataType, Kind
from penstock.tasks.external.connectors.incoming_messages import MessageBatch
from penstock.tasks.ingest.change_decoding import ChangeDecoder, RowChanges
from penstock.tasks.ingest.message_decoding import (
    LINE_MEASUREMENT,
    LINE_TIME,
    ROWS_MAX,
    AvroDecoder,
    CsvDecoder,
    Decoder,
    Fields,
    JsonDecoder,
    LineDecoder,
    Path,
    parts_of,
)
from penstock.tasks.protocol.numbered_children import NumberedChildren, ResultChild

_log = logging.getLogger(__name__)
_NAME = Column("tbname", DataType(Kind.VARCHAR, 192), "tbname")
_UNITS: dict[TimeUnit, int] = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

_LAST = 2**63 - 1
_MIXED = "times are of different forms"  # each is read alone then

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that can't become rows. `place`: its number in the batch.

    `element`: where only one element of its array can't, its number from 0; `content`: the message with it alone.
    """

    place: int
    reason: str
    element: int | None = None
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class Converted:
    """What a batch became: `rows` as `ResultWrite` has them, with the offset of each row's message in `_offset`.

    They are in the order of the messages. `unknown`: how many rows have fields that no column takes.
    """

    rows: pa.RecordBatch
    refused: tuple[Refused, ...]
    unknown: int


class MessageMapper:
    """Makes rows of messages. `children` are the child tables of all rows so far, numbered by their place."""

    def __init__(self, plan: IngestPlan, now_ms: Callable[[], int],
                 read_avro: Callable[[bytes], object] | None = None,
                 foreign_names: Callable[[Sequence[str]], Sequence[str]] | None = None) -> None:
        """`now_ms`: the clock, for what KEEP allows. `read_avro` reads one record; only for FORMAT avro.

        `foreign_names` returns those names that belong to other tables.
        """
        self._foreign_names = foreign_names
        self._is_foreign: dict[str, bool] = {}
        self._plan = plan
        self._now_ms = now_ms
        self.children = NumberedChildren()
        self._places: dict[str, int] = {}
        timed = not plan.on_arrival and not plan.keyed
        self._time = plan.columns[0].field if timed else None
        self._columns = plan.columns[1:] if timed else plan.columns
        self._decode = self._decoder(read_avro)
        head = [(CHILD, pa.int32()), (OPERATION, pa.uint8()), (OFFSET, pa.int64()),
                (KEPT, pa.string()) if plan.keyed else (plan.time_column.name, pa.int64())]
        self._schema = pa.schema([*head, *((one.column.name, one.column.type.arrow()) for one in self._columns)])

    def convert(self, batch: MessageBatch) -> Converted:
        """Makes rows of what can be used. Halves a batch with a message that can't, until it is alone."""
        rows: list[pa.RecordBatch] = []
        refused: list[Refused] = []
        unknown = 0
        waiting = [(0, len(batch))]
        self._is_foreign.clear()
        while waiting:
            first, stop = waiting.pop()
            if first == stop:
                continue
            part = batch if stop - first == len(batch) else batch.part(first, stop)
            try:
                made, strange = self._rows(part)
            except Exception as error:  # noqa: BLE001  whatever a message makes fail, it harms no other
                _raise_unless_refused(error)
                if stop - first == 1:
                    made, strange, bad = self._elements(batch, first, error)
                    refused += bad
                    rows += made
                    unknown += strange
                else:
                    middle = (first + stop) // 2
                    waiting += [(middle, stop), (first, middle)]
                continue
            rows.append(made)
            unknown += strange
        return Converted(pa.concat_batches(rows) if rows else _empty(self._schema), tuple(refused), unknown)

    def _elements(self, batch: MessageBatch, place: int, error: Exception
                  ) -> tuple[list[pa.RecordBatch], int, list[Refused]]:
        """Makes rows of those elements of a message's array that can be used, of which others may have none."""
        whole = Refused(place, _reason(error))
        message = batch.values[place]
        try:
            parts = parts_of(message, self._plan.array) if self._plan.array and len(message) <= self._plan.max_message \
                else []
        except InvalidValueError:
            parts = []
        if not 1 < len(parts) <= ROWS_MAX:
            return [], 0, [whole]
        one = batch.part(place, place + 1)
        rows: list[pa.RecordBatch] = []
        refused: list[Refused] = []
        unknown = 0
        for number, part in enumerate(parts):
            try:
                made, strange = self._rows(replace(one, values=[part]))
            except Exception as problem:  # noqa: BLE001  as for a message
                _raise_unless_refused(problem)
                refused.append(Refused(place, f"element {number + 1}: {_reason(problem)}", number, part))
            else:
                rows.append(made)
                unknown += strange
        return rows, unknown, refused

    # --- inside ------------------------------------------------------------------------------------------------

    def _decoder(self, read_avro: Callable[[bytes], object] | None) -> Decoder | ChangeDecoder:
        plan = self._plan
        columns = plan.columns if plan.keyed else [*plan.columns, *plan.tags, MappedColumn(_NAME, plan.tbname)]
        paths = [path for one in columns if (path := _path(one.field)) is not None]
        if plan.format == "csv":
            return CsvDecoder(paths, [name.strip() for name in plan.schema.split(",")])
        if plan.format == "avro":
            assert read_avro is not None
            return AvroDecoder(paths, read_avro)
        if plan.format == "line":
            return LineDecoder(paths, plan.measurement)
        texts = [path for one in columns if _is_text(one.column) and (path := _path(one.field)) is not None]
        return ChangeDecoder(plan, paths, texts) if plan.format in CHANGES else JsonDecoder(paths, texts, plan.array)

    def _rows(self, batch: MessageBatch) -> tuple[pa.RecordBatch, int]:
        """Makes rows of all messages; returns them, and how many have unknown fields. Raises InvalidValueError."""
        plan = self._plan
        limit = plan.max_message
        if max(map(len, batch.values)) > limit:
            size = max(map(len, batch.values))
            raise InvalidValueError(f"the message has {size} bytes, MAX_MESSAGE is {limit}")
        fields = (self._decode(batch.values, batch.keys or [None] * len(batch))
                  if isinstance(self._decode, ChangeDecoder) else self._decode(batch.values))
        unknown = fields.unknown()
        if unknown is not None and plan.refuses_unknown:
            raise InvalidValueError("the message has fields that no column takes")
        source = _Source(batch, fields)
        constants = Constants(plan.precision, plan.time_zone, self._now_ms())
        fourth = self._kept(fields) if plan.keyed else pa.array(self._times(source, constants))
        arrays = [fitted(one.column, source.values(one.field), constants, _no_row) for one in self._columns]
        if plan.keyed:
            self._check_keys(arrays)
            children = np.zeros(fields.rows, np.int32)
        else:
            children = self._children(source, constants)
        head = [pa.array(children), _operations(fields), source.offsets(), fourth]
        rows = pa.RecordBatch.from_arrays([*head, *arrays], schema=self._schema)
        return rows, 0 if unknown is None else int(unknown.sum())

    def _check_keys(self, arrays: Sequence[pa.Array]) -> None:
        """Raises InvalidValueError for a row that lacks a part of its KEY: all of these would be one row."""
        for one, values in zip(self._columns, arrays, strict=True):
            if one.column.primary_key and values.null_count:
                raise InvalidValueError(f"there is no value in {one.field} for {one.column.name}, a part of the KEY")

    def _kept(self, fields: Fields) -> pa.Array:
        """Returns which columns keep their values, by row: their places in what `_rows` makes."""
        if not isinstance(fields, RowChanges) or not any(fields.kept):
            return pa.nulls(fields.rows, pa.string())
        first = len(self._schema) - len(self._columns)
        places = {name: ",".join(str(place) for place, one in enumerate(self._columns, first)
                                 if one.field.path[:1] and one.field.path[0] in name) for name in set(fields.kept)}
        return pa.array([places[names] or None for names in fields.kept], pa.string())

    def _times(self, source: _Source, constants: Constants) -> Ints:
        """Returns the primary timestamps in the database's precision."""
        plan = self._plan
        arrival = source.arrivals() * (UNITS_PER_SECOND[plan.precision] // 1_000)
        if self._time is None:
            return arrival
        values = source.values(self._time)
        if self._time.part == "time":
            nanoseconds = values.fill_null(0).to_numpy()
            given = nanoseconds // (_UNITS["ns"] // UNITS_PER_SECOND[plan.precision])
            times: Ints = np.where(values.is_valid().to_numpy(zero_copy_only=False), given, arrival)
        else:
            if values.null_count:
                raise InvalidValueError(f"the message has no time in {self._time}")
            times = _instants(values, plan, constants) if len(values) else arrival
        if len(times):
            oldest, latest = oldest_allowed(plan.database, self._now_ms()), LATEST[plan.precision]
            wrong = np.flatnonzero((times < oldest) | (times > latest))
            if len(wrong):
                raise InvalidValueError(f"the timestamp {times[wrong[0]]} is out of range: KEEP allows {oldest} to "
                                        f"{latest} {plan.precision}")
        return times

    def _children(self, source: _Source, constants: Constants) -> npt.NDArray[np.int32]:
        """Returns the place of each row's child table; rows of a table that wasn't there before bring its tags."""
        names = fitted(_NAME, source.values(self._plan.tbname), constants, _no_row)
        if names.null_count:
            raise InvalidValueError(f"the message has no name of a child table in {self._plan.tbname}")
        encoded = names.dictionary_encode()
        known = [self._places.get(name) for name in encoded.dictionary.to_pylist()]
        if None in known:
            self._note_children(encoded, source, constants)
            known = [self._places[name] for name in encoded.dictionary.to_pylist()]
        places = np.array(known, np.int32)
        found: npt.NDArray[np.int32] = places[encoded.indices.to_numpy()]
        return found

    def _note_children(self, encoded: pa.DictionaryArray, source: _Source, constants: Constants) -> None:
        names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        first = np.empty(len(names), np.int64)
        first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
        fresh = [code for code, name in enumerate(names) if name not in self._places]
        for code in fresh:
            _check_child_name(names[code])
        self._check_foreign([names[code] for code in fresh])
        rows = pa.array(first[fresh])
        tags = [fitted(tag.column, source.values(tag.field).take(rows), constants, _no_row) for tag in self._plan.tags]
        # Only once all of it is known to be good: a batch that fails is tried again in parts.
        for number, code in enumerate(fresh):
            self._places[names[code]] = len(self.children)
            self.children.append(ResultChild(names[code], tuple(_tag(tag[number]) for tag in tags)))


    def _check_foreign(self, names: Sequence[str]) -> None:
        """Raises InvalidValueError if a name belongs to another table, as far as is known now."""
        asked = [name for name in names if name not in self._is_foreign]
        if asked and self._foreign_names is not None:
            foreign = set(self._foreign_names(asked))
            self._is_foreign |= {name: name in foreign for name in asked}
        taken = next((name for name in names if self._is_foreign.get(name)), None)
        if taken is not None:
            raise InvalidValueError(f"{taken} is not a child table of {self._plan.table}, but another table")


@dataclass(frozen=True, slots=True)
class _Source:
    """A batch and its content: what a field of the plan can be."""

    batch: MessageBatch
    fields: Fields

    def values(self, field: MessageField) -> pa.Array:
        """Returns the values of a field by row."""
        path = _path(field)
        if path is not None:
            return self.fields.values(path)
        if field.part == "key":
            keys = self.batch.keys or [None] * len(self.batch)
            try:
                found = pa.array([None if key is None else key.decode() for key in keys], pa.string())
            except UnicodeDecodeError as error:
                raise InvalidValueError(f"the key is not valid UTF-8: {error}") from error
        elif isinstance(self.batch.topics, str):
            return pa.repeat(pa.scalar(_level(self.batch.topics, field.level), pa.string()), self.fields.rows)
        else:
            found = pa.array([_level(topic, field.level) for topic in self.batch.topics], pa.string())
        return found if self.fields.messages is None else found.take(pa.array(self.fields.messages))

    def offsets(self) -> pa.Array:
        return pa.array(self._by_row(self.batch.offsets))

    def arrivals(self) -> Ints:
        return self._by_row(self.batch.times_ms)

    def _by_row(self, values: Sequence[int]) -> Ints:
        array = np.array(values, np.int64)
        return array if self.fields.messages is None else array[self.fields.messages]


def _operations(fields: Fields) -> pa.Array:
    deletes = fields.deletes if isinstance(fields, RowChanges) else np.zeros(fields.rows)
    return pa.array(np.array(deletes, np.uint8))


def _path(field: MessageField) -> Path | None:
    """Returns where a field is in the content, None if it isn't there."""
    if field.part is None:
        return field.path
    return {"time": (LINE_TIME,), "measurement": (LINE_MEASUREMENT,)}.get(field.part)


def _level(topic: str, level: int | None) -> str | None:
    if level is None:
        return topic
    levels = topic.split("/")
    return levels[level - 1] if level <= len(levels) else None


def _is_text(column: Column) -> bool:
    """Whether the values of a column may come as text that must stay as it is."""
    return column.type.kind in (Kind.VARCHAR, Kind.NCHAR, Kind.TIMESTAMP)


def _instants(values: pa.Array, plan: IngestPlan, constants: Constants) -> Ints:
    """Returns times in the database's precision; `values` has no NULLs. Numbers are in TIME_UNIT, also as text."""
    per_second, unit = UNITS_PER_SECOND[plan.precision], _UNITS[plan.time_unit]
    if pa.types.is_string(values.type):
        if is_number(values[0].as_py().strip()):
            values = _numbers(values)
        else:
            times = times_of_texts(plan.time_column.type, values, plan.time_zone)
            if times is not None:
                return np.asarray(times.cast(pa.int64()).to_numpy(), np.int64)
            if any(is_number(text.strip()) for text in values.to_pylist()):
                raise InvalidValueError(_MIXED)
    if values.type == pa.int64() and unit == per_second:
        return np.asarray(values.to_numpy(), np.int64)
    if unit == per_second or not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        times = fitted(plan.time_column, values, constants, _no_row)
        return np.asarray(times.cast(pa.int64()).to_numpy(), np.int64)
    if pa.types.is_floating(values.type):
        scaled = np.rint(values.to_numpy() * (per_second / unit))
        if not (np.abs(scaled) < 2.0**63).all():
            raise InvalidValueError("the timestamp is out of range")
        rounded: Ints = scaled.astype(np.int64)
        return rounded
    try:
        numbers: Ints = values.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise InvalidValueError(f"the timestamp is out of range: {error}") from error
    if per_second < unit:
        return numbers // (unit // per_second)
    factor = per_second // unit
    beyond = np.flatnonzero((numbers > _LAST // factor) | (numbers < -(_LAST // factor)))
    if len(beyond):
        raise InvalidValueError(f"the timestamp {numbers[beyond[0]]} is out of range")
    return numbers * factor


def _numbers(texts: pa.StringArray) -> pa.Array:
    """Returns texts of which the first is a number as numbers. Raises InvalidValueError if others aren't."""
    trimmed = pc.utf8_trim_whitespace(texts)
    for kind in (pa.int64(), pa.float64()):
        try:
            return trimmed.cast(kind)
        except pa.ArrowInvalid:
            pass
    if len(trimmed) > 1:
        raise InvalidValueError(_MIXED)
    return pa.array([float(exact(trimmed[0].as_py()) or math.nan)])


def _raise_unless_refused(error: Exception) -> None:
    """Raises what isn't the fault of a message, such as a dnode that doesn't answer."""
    refusals = (InvalidValueError, InvalidStatementError, NotSupportedError)
    if isinstance(error, MemoryError) or (isinstance(error, PenstockError) and not isinstance(error, refusals)):
        raise error


def _reason(error: Exception) -> str:
    """Returns what is wrong with a message; what nobody has thought of is logged besides."""
    if isinstance(error, PenstockError):
        return error.message
    _log.error("a message of an ingest can't be read", exc_info=error)
    return f"{type(error).__name__}: {error}"


def _no_row(row: int) -> str:
    return "the message"


def _check_child_name(name: str) -> None:
    if not can_name_child(name):
        raise InvalidValueError(f"{name!r} cannot be the name of a child table: 1 to 192 bytes without a dot")


def _tag(value: pa.Scalar) -> object:
    return value.value if pa.types.is_timestamp(value.type) else value.as_py()


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
