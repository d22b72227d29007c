"""What nodes say comes back as it was, and nothing else comes out of what is damaged or too large."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.errors import InvalidValueError
from penstock.mnode.cluster.cluster_messages import (
    Ack,
    Append,
    CheckpointCopy,
    CheckpointName,
    CheckpointOffers,
    CheckpointsHeld,
    CopyAnswer,
    CopyRequest,
    Life,
    LogChunk,
    LogMatch,
    LogState,
    NewerEpoch,
    NodeAlive,
    NodeHeartbeat,
    PieceAnswer,
    PieceRequest,
    WireMessage,
)
from penstock.mnode.cluster.log_epochs import EpochStart
from penstock.mnode.cluster.node_transport import (
    FRAME_SIZE_MAX,
    HEADER_SIZE_MAX,
    LENGTHS_SIZE,
    decode_message,
    encode_message,
    frame_lengths,
)

numbers = st.integers(0, 2**63 - 1)
lives = st.builds(Life, numbers, numbers)
starts = st.builds(EpochStart, numbers, numbers)
chunks = st.builds(LogChunk, numbers, numbers, starts, st.booleans(), st.binary(max_size=300))
names = st.builds(CheckpointName, numbers, numbers, numbers)
copies = st.builds(CheckpointCopy, names, st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple))
messages = st.one_of(
    st.builds(CheckpointOffers, numbers, numbers, st.lists(numbers, max_size=3).map(tuple), st.booleans(),
              st.lists(copies, max_size=3).map(tuple), st.booleans()),
    st.builds(CheckpointsHeld, numbers, st.lists(names, max_size=3).map(tuple)),
    st.builds(PieceRequest, names, st.integers(-1, 9)),
    st.builds(PieceAnswer, names, st.integers(-1, 9), st.text(), st.binary(max_size=300)),
    st.builds(LogState, numbers, numbers, lives, numbers, numbers, st.lists(starts, max_size=4).map(tuple), numbers,
              numbers),
    st.builds(LogMatch, numbers, numbers, numbers, numbers, numbers, st.none() | st.text()),
    st.builds(Append, numbers, numbers, numbers, chunks, numbers),
    st.builds(Ack, numbers, numbers, numbers, numbers, numbers, numbers, st.booleans()),
    st.builds(NodeHeartbeat, numbers, numbers, numbers, st.lists(st.tuples(numbers, numbers), max_size=4).map(tuple)),
    st.builds(NodeAlive, numbers, numbers, lives, numbers),
    st.builds(NewerEpoch, numbers), st.builds(CopyRequest, numbers, numbers, st.integers(-2, 9), numbers),
    st.builds(CopyAnswer, numbers, numbers, st.integers(-2, 9), numbers, numbers,
              st.lists(st.tuples(st.text(), numbers), max_size=4).map(tuple), st.text(), st.binary(max_size=300)))


def decoded(frame: bytes) -> WireMessage:
    size, header = frame_lengths(frame[:LENGTHS_SIZE])
    assert size == len(frame) - LENGTHS_SIZE
    return decode_message(frame[LENGTHS_SIZE:], header)


@given(message=messages)
def test_messages_come_back_as_they_were(message: WireMessage) -> None:
    """Records byte for byte."""
    assert decoded(encode_message(message)) == message


@given(message=messages, place=st.integers(0, 10_000), value=st.integers(0, 255))
def test_damage_is_refused_or_is_another_message(message: WireMessage, place: int, value: int) -> None:
    """Nothing but InvalidValueError is raised for any byte that is another."""
    frame = bytearray(encode_message(message))
    body = LENGTHS_SIZE + place % (len(frame) - LENGTHS_SIZE)
    frame[body] = value
    try:
        assert isinstance(decoded(bytes(frame)), WireMessage)
    except InvalidValueError:
        assert value is not None


@pytest.mark.parametrize(("size", "header"), [
    (FRAME_SIZE_MAX + 1, 10), (10, 11), (FRAME_SIZE_MAX, HEADER_SIZE_MAX + 1), (2**32 - 1, 2**32 - 1)])
def test_what_is_too_large_is_refused_before_it_is_read(size: int, header: int) -> None:
    """By its lengths alone."""
    with pytest.raises(InvalidValueError, match="is none of a cluster's node"):
        frame_lengths(struct.pack(">II", size, header))
