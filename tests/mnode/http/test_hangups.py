"""Clients that hang up while they are being answered are noticed, whoever closes which side, and when."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.mnode.http.hangups import HangUps

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="nobody is watched without epoll")


@pytest.fixture
def hang_ups() -> Iterator[HangUps]:
    watcher = HangUps()
    yield watcher
    watcher.close()


def test_a_client_that_closes_its_side_is_gone(hang_ups: HangUps) -> None:
    """Whoever is forgotten before isn't told of."""
    gone, forgotten = threading.Event(), threading.Event()
    ours, theirs = socket.socketpair()
    other, others = socket.socketpair()
    with ours, other:
        hang_ups.watch(other, forgotten.set)
        hang_ups.watch(ours, gone.set)
        hang_ups.forget(other)
        others.close()
        theirs.close()
        assert gone.wait(30.0)
        assert not forgotten.is_set()


def test_a_connection_that_was_closed_before_it_was_forgotten_is_no_error(hang_ups: HangUps) -> None:
    """The end of a server closes connections from another thread than the one that answers."""
    ours, theirs = socket.socketpair()
    hang_ups.watch(ours, lambda: None)
    ours.close()
    hang_ups.forget(ours)
    left, right = socket.socketpair()
    hang_ups.watch(left, lambda: None)
    left.close()
    hang_ups.close()
    theirs.close()
    right.close()


def test_the_next_connection_with_the_same_descriptor_is_watched(hang_ups: HangUps) -> None:
    """A descriptor that nobody has forgotten may be given to another connection."""
    first, second = threading.Event(), threading.Event()
    ours, theirs = socket.socketpair()
    descriptor = ours.fileno()
    hang_ups.watch(ours, first.set)
    ours.close()
    one, other = socket.socketpair()
    again, far = (one, other) if one.fileno() == descriptor else (other, one)
    assert again.fileno() == descriptor
    with again:
        hang_ups.watch(again, second.set)
        far.close()
        assert second.wait(30.0)
        assert not first.is_set()
        hang_ups.forget(again)
    theirs.close()
