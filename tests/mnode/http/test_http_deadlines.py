"""Clients that take their time: an answer that isn't taken, and requests that don't come, end; others arrive whole."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.clock import SystemClock
from penstock.mnode.http.http_deadlines import TimedReader, send


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@given(st.lists(st.integers(0, 1_000_000), min_size=1, max_size=4))
def test_all_is_sent(sizes: list[int]) -> None:
    """Also what doesn't fit between both at once."""
    ours, theirs = socket.socketpair()
    received = bytearray()

    def receive() -> None:
        while piece := theirs.recv(1 << 16):
            received.extend(piece)

    with ours, theirs:
        receiver = threading.Thread(target=receive)
        receiver.start()
        for place, size in enumerate(sizes):
            send(ours, bytes([place]) * size, 60)
        ours.shutdown(socket.SHUT_WR)
        receiver.join()
    assert received == b"".join(bytes([place]) * size for place, size in enumerate(sizes))


def test_who_takes_nothing_is_given_up(pair: tuple[socket.socket, socket.socket]) -> None:
    """The time is that of all that is sent."""
    with pytest.raises(TimeoutError):
        send(pair[0], bytes(10_000_000), 0.01)


def test_who_sends_nothing_is_given_up(pair: tuple[socket.socket, socket.socket]) -> None:
    """Before a request, within its head, within its body; what has come in time is read."""
    ours, theirs = pair
    reader, buffer = TimedReader(ours, SystemClock.monotonic), memoryview(bytearray(10))
    for wait in (lambda: reader.await_request(60, 0.01), lambda: reader.await_body(0.01, 1e9)):
        theirs.send(b"x")
        wait()
        assert reader.readinto(buffer) == 1
        with pytest.raises(TimeoutError):
            reader.readinto(buffer)
    reader.await_request(0.01, 60)
    with pytest.raises(TimeoutError):
        reader.readinto(buffer)
