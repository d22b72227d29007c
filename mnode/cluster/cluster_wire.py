"""Messages between nodes as bytes and back: a closed set of classes, sizes known before anything is read.

A frame is its length and the length of its header (four bytes each, big-endian), the header as JSON, and the records of
an Append, or the bytes of a CopyAnswer or a PieceAnswer, as they are. A frame of no bytes has no message: it says that
the connection is in use.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace

from penstock.common.errors import InvalidValueError
from penstock.common.typed_json import TypedJson
from penstock.mnode.cluster.cluster_messages import (
    Ack,
    Append,
    CheckpointOffers,
    CheckpointsHeld,
    CopyAnswer,
    CopyRequest,
    LogMatch,
    LogState,
    NewerEpoch,
    NodeAlive,
    NodeHeartbeat,
    PieceAnswer,
    PieceRequest,
    WireMessage,
)

#: Bytes of lengths before each frame, of a whole frame, and of its header, at most.
LENGTHS_SIZE = 8
FRAME_SIZE_MAX = 256 << 20
HEADER_SIZE_MAX = 4 << 20
_LENGTHS = struct.Struct(">II")
NOTHING = _LENGTHS.pack(0, 0)


@dataclass(frozen=True, slots=True)
class ClusterEnvelope:
    """One message, so that its class is told by a name of a closed set."""

    message: (LogState | LogMatch | Append | Ack | NodeHeartbeat | NodeAlive | NewerEpoch | CopyRequest | CopyAnswer
              | CheckpointOffers | CheckpointsHeld | PieceRequest | PieceAnswer)


_JSON = TypedJson(ClusterEnvelope)


def encode_message(message: WireMessage) -> bytes:
    """Returns a frame."""
    data = b""
    if isinstance(message, Append):
        data = message.chunk.data
        message = replace(message, chunk=replace(message.chunk, data=b""))
    elif isinstance(message, CopyAnswer | PieceAnswer):
        data, message = message.data, replace(message, data=b"")
    header = json.dumps(_JSON.encode(ClusterEnvelope(message)), separators=(",", ":")).encode()
    return b"".join((_LENGTHS.pack(len(header) + len(data), len(header)), header, data))


def frame_lengths(lengths: bytes) -> tuple[int, int]:
    """Returns the size of what follows, and of the header in that. Raises InvalidValueError if it is too much."""
    size, header = _LENGTHS.unpack(lengths)
    if size > FRAME_SIZE_MAX or header > min(size, HEADER_SIZE_MAX):
        raise InvalidValueError(f"a message of {size} bytes with a header of {header} is none of a cluster's node")
    return size, header


def decode_message(body: bytes, header_size: int) -> WireMessage:
    """Returns the message of a frame, whose lengths were checked. Raises InvalidValueError for what isn't one."""
    try:
        message = _JSON.decode(json.loads(body[:header_size])).message
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"this is no message of a cluster's node: {error}") from error
    if isinstance(message, Append):
        return replace(message, chunk=replace(message.chunk, data=body[header_size:]))
    if isinstance(message, CopyAnswer | PieceAnswer):
        return replace(message, data=body[header_size:])
    if len(body) > header_size:
        raise InvalidValueError("a message without records has bytes behind it")
    return message
