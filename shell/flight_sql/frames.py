"""Arrow data as messages of Flight, and back. What comes from outside is checked before anybody computes with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import pyarrow as pa

from penstock.common.errors import InvalidValueError
from penstock.shell.flight_sql.protobuf_messages import make, read
from penstock.sql.rows.fitting import check_arrow, row_number

_MARK = b"\xff\xff\xff\xff"
_LENGTH_BYTES, _ALIGNMENT = 4, 8
_KEPT, _KEPT_BYTES_MAX = 256, 4096  # schemas that are read once, however often they come


def schema_bytes(schema: pa.Schema) -> bytes:
    """Returns a schema as FlightInfo and its like carry it."""
    return bytes(schema.serialize().to_pybytes())


def frames(schema: pa.Schema, batches: Iterable[pa.RecordBatch], bytes_max: int, descriptor: Any = None
           ) -> Iterator[bytes]:
    """Yields FlightData messages: the schema, with the descriptor, then the batches, cut to `bytes_max` or one row."""
    first = next(_messages(schema, None))
    yield _frame(first, flight_descriptor=descriptor) if descriptor is not None else _frame(first)
    for batch in batches:
        for piece in _pieces(batch, bytes_max):
            messages = _messages(schema, piece)
            next(messages)  # the schema, which the receiver has
            yield from map(_frame, messages)


def batches_of(frames: Iterable[bytes]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Returns schema and batches of a stream of FlightData messages, of which the first has the schema.

    Raises InvalidValueError for what isn't Arrow data, or claims to be and isn't, when it comes.
    """
    messages = _encapsulated(frames)
    with _named_errors():
        first = next(messages, b"")
        schema, is_plain = (_schema_of if len(first) <= _KEPT_BYTES_MAX else _read_schema)(first)
        if is_plain:
            batches = (pa.ipc.read_record_batch(pa.py_buffer(message), schema) for message in messages)
        else:
            reader = pa.ipc.open_stream(pa.PythonFile(_Stream(chain([first], messages)), mode="r"))
            schema, batches = reader.schema, iter(reader)
    return schema, _checked(batches)


def _read_schema(message: bytes) -> tuple[pa.Schema, bool]:
    """Returns a schema, and whether each message behind it is a batch that can be read without those before it."""
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    _ = schema.names  # which must be UTF-8
    is_native = schema.equals(pa.schema(list(schema)))  # in the order of its bytes; Arrow only turns those of a stream
    return schema, is_native and not any(map(_has_dictionary, schema.types))


_schema_of = lru_cache(maxsize=_KEPT)(_read_schema)


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    return pa.types.is_dictionary(kind) or any(
        _has_dictionary(kind.field(place).type) for place in range(kind.num_fields))


def _checked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = 0
    with _named_errors():
        for batch in batches:
            try:
                batch.validate(full=True)
            except (pa.ArrowException, IndexError):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    check_arrow(name, column, partial(row_number, first=rows))
                raise
            rows += batch.num_rows
            yield batch


@contextmanager
def _named_errors() -> Iterator[None]:
    """Turns what Arrow says of bytes that make no sense into an error of ours."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"this is not Arrow data: {error}") from error


def _messages(schema: pa.Schema, batch: pa.RecordBatch | None) -> Iterator[pa.Message]:
    """Yields the schema, the dictionaries and the rows of a batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        if batch is not None:
            writer.write_batch(batch)
    yield from pa.ipc.MessageReader.open_stream(sink.getvalue())


def _frame(message: pa.Message, **fields: Any) -> bytes:
    data = make("FlightData", data_header=message.metadata.to_pybytes(), **fields)
    if message.body is not None and message.body.size:
        data.data_body = message.body.to_pybytes()
    return bytes(data.SerializeToString())


def _pieces(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= bytes_max or batch.num_rows <= 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half), bytes_max)
    yield from _pieces(batch.slice(half), bytes_max)


def _encapsulated(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the messages of Arrow that FlightData messages carry: mark, length, header, body at a multiple of 8 bytes.
    """
    for frame in frames:
        data = read("FlightData", frame)
        header = data.data_header
        if header:
            padding = bytes(-len(header) % _ALIGNMENT)
            length = len(header) + len(padding)
            yield b"".join((_MARK, length.to_bytes(_LENGTH_BYTES, "little"), header, padding, data.data_body))


class _Stream:
    """Messages of Arrow as the stream of bytes that its reader knows.

    A read never goes beyond a message: what a damaged one claims to have isn't waited or allocated for.
    """

    closed = False

    def __init__(self, messages: Iterator[bytes]) -> None:
        self._messages = messages
        self._pending = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int) -> bytes:
        if not self._pending:
            self._pending = memoryview(next(self._messages, b""))
        piece = bytes(self._pending[:size])
        self._pending = self._pending[len(piece):]
        return piece

    def close(self) -> None:
        """Nothing is open."""
