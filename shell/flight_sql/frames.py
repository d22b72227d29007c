"""Arrow data as messages of Flight, and back. What comes from outside is checked before anybody computes with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.common.errors import InvalidValueError
from penstock.shell.flight_sql.protobuf_messages import make, read
from penstock.sql.rows.fitting import check_arrow, row_number

_MARK = b"\xff\xff\xff\xff"
_LENGTH_BYTES = 4


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
    with _named_errors():
        reader = pa.ipc.open_stream(pa.PythonFile(_Stream(iter(frames)), mode="r"))
        _ = reader.schema.names  # which must be UTF-8
    return reader.schema, _checked(reader)


def _checked(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    rows = 0
    while True:
        with _named_errors():
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                check_arrow(name, column, partial(row_number, first=rows))
            batch.validate(full=True)
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


class _Stream:
    """FlightData messages as the stream of bytes that Arrow's reader knows: mark, length, header, body.

    A read never goes beyond a message: what a damaged one claims to have isn't waited or allocated for.
    """

    closed = False

    def __init__(self, frames: Iterator[bytes]) -> None:
        self._frames = frames
        self._pending = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int) -> bytes:
        while not self._pending:
            frame = next(self._frames, None)
            if frame is None:
                return b""
            data = read("FlightData", frame)
            if data.data_header:
                self._pending = memoryview(b"".join((
                    _MARK, len(data.data_header).to_bytes(_LENGTH_BYTES, "little"), data.data_header, data.data_body)))
        piece = bytes(self._pending[:size])
        self._pending = self._pending[len(piece):]
        return piece

    def close(self) -> None:
        """Nothing is open."""
