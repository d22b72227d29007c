"""What travels between two workers: frames of many channels one way, answers to them the other way.

A frame holds at most one block and the signals that stand right behind it. Over a connection a channel goes by a
number, which the sender gives it; its first frame says which channel that is. A block travels in Arrow's form, its
schema with the first block that has it. Nothing here waits, or knows of sockets.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.common.arrow_data import from_ipc, to_ipc
from penstock.common.errors import InternalError, PenstockError
from penstock.common.sent_errors import decode_error, encode_error
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.protocol.messages import Barrier, Block, End, Retract, RetractEnd, Signal, TaskId, Watermark
from penstock.tasks.protocol.wire import encode

FRAME_SIGNALS_MAX = 64

#: What a block that travels beside its header is wrapped in, so that Flight needn't copy it once more.
WRAPPED = pa.schema([("block", pa.binary())])

#: From here on it does so; below that, wrapping takes longer than copying. Bytes.
_WRAPPED_FROM = 16 * 1024

#: kind, number of the channel, sequence, and how long these are: the channel's id, signals, schema, block.
_HEADER = struct.Struct("<cQQIIII")
_FRAME, _WHOLE, _CLOSING = b"F", b"W", b"C"  # whole: the block is a stream of Arrow, with schema and dictionaries
_NOTHING = pa.py_buffer(b"")

#: kind, number of the channel, sequence, how long the error is
_ANSWER = struct.Struct("<cQQI")
TAKEN, BLOCKED, REFUSED = b"T", b"B", b"R"


@dataclass(frozen=True, slots=True)
class ChannelId:
    """Names a channel of one attempt of a stream."""

    attempt: int
    upstream: TaskId
    downstream: TaskId

    @property
    def stream_id(self) -> int:
        return self.downstream.stream_id

    def __str__(self) -> str:
        return f"{self.upstream} -> {self.downstream} (attempt {self.attempt})"


@dataclass(frozen=True, slots=True)
class Frame:
    """What travels at once: items `sequence`, `sequence + 1`, ... of the channel."""

    sequence: int
    block: Block | None
    signals: tuple[Signal, ...]

    @property
    def size(self) -> int:
        """How many items it has."""
        return (self.block is not None) + len(self.signals)

    @property
    def nbytes(self) -> int:
        """About how many bytes travel."""
        return 64 * (1 + len(self.signals)) + (0 if self.block is None else self.block.nbytes)


def next_frame(output: ChannelQueue[TaskId], downstream: TaskId, sequence: int) -> Frame | None:
    """Returns the frame made of the oldest items of a channel, without taking them; None if it is empty."""
    block: Block | None = None
    signals: list[Signal] = []
    for place, item in enumerate(output.peek_many(downstream, FRAME_SIGNALS_MAX + 1)):
        if not isinstance(item, Block):
            signals.append(item)
        elif place == 0:
            block = item
        else:
            break
    if block is None and not signals:
        return None
    return Frame(sequence, block, tuple(signals[:FRAME_SIGNALS_MAX]))


# --- frames on the wire ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """A frame, or the end of a channel, as it comes over a connection; what it holds isn't looked at yet.

    `channel`: the id, with the first frame only. `schema`: empty if it is that of the channel's last block.
    """

    number: int
    closes: bool
    whole: bool
    sequence: int
    channel: bytes
    signals: bytes
    schema: pa.Buffer
    block: pa.Buffer

    @classmethod
    def from_wire(cls, header: pa.Buffer, wrapped: pa.RecordBatch | None) -> Message:
        """Returns what was sent as `header` and, if the block stands beside it, `wrapped`.

        Raises InternalError if the lengths in it contradict each other.
        """
        if header is None or header.size < _HEADER.size:
            raise InternalError("a message between workers without a header")
        kind, number, sequence, *lengths = _HEADER.unpack_from(header)
        if wrapped is not None and (wrapped.schema != WRAPPED or wrapped.num_rows != 1):
            raise InternalError("a block between workers isn't wrapped as it should be")
        beside = None if wrapped is None else wrapped.column(0)[0].as_buffer()
        expected = _HEADER.size + sum(lengths if beside is None else lengths[:-1])
        if kind not in (_FRAME, _WHOLE, _CLOSING) or header.size != expected or (
                beside is not None and beside.size != lengths[-1]):
            raise InternalError(f"a damaged message between workers, of {header.size} bytes")
        pieces = list(_pieces(header, _HEADER.size, lengths if beside is None else lengths[:-1]))
        channel, signals, schema = pieces[:3]
        return cls(number, kind == _CLOSING, kind == _WHOLE, sequence, channel.to_pybytes(), signals.to_pybytes(),
                   schema, pieces[3] if beside is None else beside)

    def frame(self, schema: pa.Schema | None) -> tuple[Frame, pa.Schema | None]:
        """Returns the frame, and the schema of the channel's last block by then, which was `schema` before.

        Raises InternalError if it can't be read.
        """
        try:
            signals = tuple(_signal_from_json(parts) for parts in json.loads(self.signals))
            if self.schema.size:
                schema = pa.ipc.read_schema(self.schema)
            rows = self._rows(schema) if self.block.size else None
        except (pa.ArrowException, ValueError, TypeError, KeyError, OSError) as error:
            raise InternalError(f"a damaged frame between workers: {error}") from error
        return Frame(self.sequence, None if rows is None else Block(rows), signals), schema

    def _rows(self, schema: pa.Schema | None) -> pa.RecordBatch:
        if self.whole:
            return from_ipc(self.block)
        if schema is None:
            raise ValueError("rows without a schema")
        return pa.ipc.read_record_batch(self.block, schema)


def _pieces(data: pa.Buffer, at: int, lengths: Iterable[int]) -> Iterator[pa.Buffer]:
    for length in lengths:
        yield data.slice(at, length)
        at += length


def frame_to_wire(
    number: int, frame: Frame, channel: ChannelId | None, schema: pa.Schema | None
) -> tuple[bytes, pa.RecordBatch | None, pa.Schema | None]:
    """Returns a frame as a header and, if it is large, a wrapped block; and the schema that the receiver has by then.

    `channel`: given with the first frame of the channel. `schema`: which one the receiver has before.
    """
    opening = b"" if channel is None else encode(channel)
    signals = json.dumps([_signal_to_json(signal) for signal in frame.signals]).encode()
    kind, described, data = _FRAME, _NOTHING, _NOTHING
    if frame.block is not None:
        rows = frame.block.data
        if schema is not None and schema.equals(rows.schema):
            data = rows.serialize()
        elif _has_dictionary(rows.schema):
            kind, data = _WHOLE, to_ipc(rows)
        else:
            schema = rows.schema
            described, data = schema.serialize(), rows.serialize()
    header = _HEADER.pack(kind, number, frame.sequence, len(opening), len(signals), described.size, data.size)
    if data.size < _WRAPPED_FROM:
        return b"".join((header, opening, signals, described, data)), None, schema
    offsets = pa.py_buffer(struct.pack("<ii", 0, data.size))
    wrapped = pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])], schema=WRAPPED)
    return b"".join((header, opening, signals, described)), wrapped, schema


def closing_to_wire(number: int) -> bytes:
    """Returns what says that nothing more will come on a channel of this connection."""
    return _HEADER.pack(_CLOSING, number, 0, 0, 0, 0, 0)


def _has_dictionary(kind: pa.Schema | pa.DataType) -> bool:
    """Tells whether rows are more than one message of Arrow, since values of a dictionary stand in another."""
    if isinstance(kind, pa.Schema):
        return any(_has_dictionary(each) for each in kind.types)
    return pa.types.is_dictionary(kind) or any(_has_dictionary(kind.field(at).type) for at in range(kind.num_fields))


def _signal_to_json(signal: Signal) -> list[Any]:
    if isinstance(signal, Watermark):
        return ["watermark", signal.ts, signal.idle, signal.quiet_s]
    if isinstance(signal, Barrier):
        return ["barrier", signal.checkpoint_id]
    if isinstance(signal, Retract):
        return ["cleared", signal.first, signal.last]
    return ["settled"] if isinstance(signal, RetractEnd) else ["end"]


def _signal_from_json(parts: list[Any]) -> Signal:
    kind, *fields = parts
    return _SIGNALS[kind](*fields)  # type: ignore[no-any-return]


_SIGNALS: dict[str, Any] = {
    "watermark": Watermark, "barrier": Barrier, "cleared": Retract, "settled": RetractEnd, "end": End,
}


# --- answers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FrameAnswer:
    """What the receiver says of a frame: TAKEN; BLOCKED, and later taken; or REFUSED with an error, for good."""

    kind: bytes
    number: int
    sequence: int
    error: PenstockError | None = None


def answers_to_wire(answers: Iterable[FrameAnswer]) -> bytes:
    """Returns answers as bytes."""
    parts: list[bytes] = []
    for answer in answers:
        error = b"" if answer.error is None else encode_error(answer.error)
        parts += (_ANSWER.pack(answer.kind, answer.number, answer.sequence, len(error)), error)
    return b"".join(parts)


def answers_from_wire(data: bytes) -> Iterator[FrameAnswer]:
    """Yields the answers that `answers_to_wire` was given; raises InternalError if they can't be read."""
    at = 0
    while at < len(data):
        if at + _ANSWER.size > len(data):
            raise InternalError("a damaged answer between workers")
        kind, number, sequence, length = _ANSWER.unpack_from(data, at)
        at += _ANSWER.size
        error = data[at : at + length]
        if kind not in (TAKEN, BLOCKED, REFUSED) or len(error) != length or (length > 0) != (kind == REFUSED):
            raise InternalError("a damaged answer between workers")
        at += length
        yield FrameAnswer(kind, number, sequence, decode_error(error) if error else None)
