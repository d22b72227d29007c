"""What workers and the dnode's service say to each other about result writes. Pure: opens no connection.

A large write goes over a connection of its sink task's own (`WritesOf`), as Flight carries rows. The small writes of
all sink tasks of a worker go over one connection (`WorkerWrites`), several in one message, each with the number that
its sink task has on this connection.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.common.errors import InternalError, PenstockError
from penstock.common.sent_errors import decode_error
from penstock.tasks.protocol.messages import Delivered, ResultWrite, TaskId
from penstock.tasks.protocol.numbered_children import NumberedChildren
from penstock.tasks.protocol.wire import SENT_AHEAD, decode, encode

ACKNOWLEDGED = b"ok"

#: A small write takes no more bytes than this in a message.
SMALL_WRITE_MAX = 32 * 1024
#: A message takes no more.
MESSAGE_MAX = SENT_AHEAD

Fresh = tuple[NumberedChildren | Delivered, ...]
"""The children that no write before had over the same connection, and where rows were `Delivered` from."""

_HEAD = struct.Struct("<III")  # the sink task's number; the bytes of what is new; those of the rows, none at its end


@dataclass(frozen=True, slots=True)
class WritesOf:
    """Whose writes these are: all of a ResultWrite that stays the same.

    As a connection's command: what follows on it are the rows of one write after the other; the metadata of a write's
    rows holds its `Fresh`, or nothing. The dnode answers each write, in order.
    """

    stream_id: int
    attempt: int
    task: TaskId
    target_uid: int

    @classmethod
    def of(cls, write: ResultWrite) -> WritesOf:
        return cls(write.stream_id, write.attempt, write.task, write.target_uid)

    def write(
        self, children: NumberedChildren, rows: pa.RecordBatch, delivered: Delivered | None = None
    ) -> ResultWrite:
        return ResultWrite(self.stream_id, self.attempt, self.task, self.target_uid, children, rows, delivered)


@dataclass(frozen=True, slots=True)
class WorkerWrites:
    """A connection's command: small writes of all sink tasks of one worker. What follows are messages without rows
    of Flight's; the dnode answers each with what became of its writes."""


@dataclass(frozen=True, slots=True)
class SmallWrite:
    """A write of the sink task with this number. The first one says whose they are, and the schema of their rows.

    `rows` are serialized without their schema.
    """

    number: int
    kind: tuple[WritesOf, pa.Schema] | None
    fresh: Fresh
    rows: bytes

    def pack(self) -> bytes:
        new = b""
        if self.kind is not None:
            writes_of, schema = self.kind
            new = encode((writes_of, schema.serialize().to_pybytes(), self.fresh))
        elif self.fresh:
            new = encode((None, b"", self.fresh))
        return b"".join((_HEAD.pack(self.number, len(new), len(self.rows)), new, self.rows))


@dataclass(frozen=True, slots=True)
class SinkEnd:
    """The sink task with this number writes no more."""

    number: int

    def pack(self) -> bytes:
        return _HEAD.pack(self.number, 0, 0)


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """What became of a write of the sink task with this number: what it failed with, or None."""

    number: int
    error: PenstockError | None


def is_small(rows: pa.RecordBatch) -> bool:
    """Tells whether rows may go in a message with others, by what is cheap to find out."""
    # What the rows refer to exactly takes Arrow longer to find out than all else here.
    few = rows.get_total_buffer_size() <= SMALL_WRITE_MAX or rows.nbytes <= SMALL_WRITE_MAX
    return few and not any(pa.types.is_dictionary(kind) for kind in rows.schema.types)


def parts(message: bytes) -> list[SmallWrite | SinkEnd]:
    """Returns what a message consists of; raises InternalError if it isn't one."""
    if len(message) > MESSAGE_MAX:
        raise InternalError(f"a message of {len(message)} bytes with small writes")
    found: list[SmallWrite | SinkEnd] = []
    at = 0
    while at < len(message):
        if at + _HEAD.size > len(message):
            raise InternalError("a message with small writes breaks off")
        number, new_bytes, rows_bytes = _HEAD.unpack_from(message, at)
        new_at = at + _HEAD.size
        rows_at = new_at + new_bytes
        at = rows_at + rows_bytes
        if at > len(message):
            raise InternalError("a message with small writes breaks off")
        if rows_bytes:
            kind, fresh = _new(message[new_at:rows_at]) if new_bytes else (None, ())
            found.append(SmallWrite(number, kind, fresh, message[rows_at:at]))
        elif new_bytes:
            raise InternalError("a small write without rows")
        else:
            found.append(SinkEnd(number))
    return found


def fresh_in(write: ResultWrite, children_sent: int, known: int) -> Fresh:
    """Returns what a write brings, of its first `known` children, over a connection on which so many were sent before.
    """
    children = (write.children.between(children_sent, known),) if known > children_sent else ()
    return children if write.delivered is None else (*children, write.delivered)


def fresh_of(encoded: bytes) -> Fresh:
    """Returns what `encode` was given."""
    return _checked(decode(encoded, (tuple,)))


def rows_of(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the rows of a small write; raises InternalError if they aren't any of this schema."""
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        rows.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InternalError(f"rows of a small write cannot be read: {error}") from error
    return rows


def pack_outcomes(outcomes: Sequence[tuple[int, bytes | None]]) -> bytes:
    """Returns the answer to a message: the number of each write's sink task, and the encoded error if it failed."""
    return encode(tuple(outcomes))


def outcomes(answer: bytes) -> list[WriteOutcome]:
    """Returns what `pack_outcomes` was given; raises InternalError if it is something else."""
    try:
        return [WriteOutcome(number, None if error is None else decode_error(error))
                for number, error in decode(answer, (tuple,))]
    except (TypeError, ValueError) as error:
        raise InternalError(f"an answer to small writes that isn't one: {error}") from error


def _new(encoded: bytes) -> tuple[tuple[WritesOf, pa.Schema] | None, Fresh]:
    match decode(encoded, (tuple,)):
        case (None, b"", tuple() as fresh):
            return None, _checked(fresh)
        case (WritesOf() as writes_of, bytes() as schema, tuple() as fresh):
            try:
                return (writes_of, pa.ipc.read_schema(pa.py_buffer(schema))), _checked(fresh)
            except (pa.ArrowException, OSError, ValueError) as error:
                raise InternalError(f"the schema of small writes cannot be read: {error}") from error
    raise InternalError("a small write says something else than whose it is and its children")


def _checked(fresh: tuple[object, ...]) -> Fresh:
    known = tuple(one for one in fresh if isinstance(one, NumberedChildren | Delivered))
    if len(known) < len(fresh):
        raise InternalError("a write brings something else than children")
    return known
