"""The socket that reads ahead gives what came, and says what it still has."""

from __future__ import annotations

import select
import socket

import pytest

from penstock.tasks.connectors.mqtt_reading import ReadAhead


def test_what_has_come_is_read_at_once_and_handed_on_in_pieces() -> None:
    """`select` says nothing of bytes that are here already: `pending` does."""
    near, far = socket.socketpair()
    with far:
        ahead = ReadAhead(near)
        ahead.setblocking(False)
        assert ahead.pending() == 0
        with pytest.raises(BlockingIOError):
            ahead.recv(1)
        far.sendall(b"one and two")
        assert select.select([ahead], [], [], 5)[0]
        assert (ahead.recv(3), ahead.pending()) == (b"one", 8)
        assert not select.select([ahead], [], [], 0)[0]
        assert (ahead.recv(100), ahead.pending()) == (b" and two", 0)
        with pytest.raises(BlockingIOError):
            ahead.recv(1)
        assert ahead.send(b"three") == 5
        assert far.recv(100) == b"three"
        far.sendall(b"!")
        far.shutdown(socket.SHUT_WR)
        assert (ahead.recv(5), ahead.recv(5), ahead.recv(5)) == (b"!", b"", b"")
        ahead.close()
