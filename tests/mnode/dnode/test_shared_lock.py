"""The lock that statements share and that one of them may hold alone."""

from __future__ import annotations

import threading

import pytest
from kits.basics.waiting import wait_until

from penstock.mnode.dnode.shared_lock import SharedLock


def test_who_holds_it_alone_waits_for_the_others_and_they_for_him() -> None:
    """Who wants it alone waits for those who hold it; who comes then waits until it is free again."""
    lock, leave, reopen = SharedLock(), threading.Event(), threading.Event()
    told: list[str] = []

    def pass_first() -> None:
        with lock.shared():
            told.append("inside")
            leave.wait(30)
        told.append("left")

    def close() -> None:
        with lock.exclusive():
            told.append("closed")
            reopen.wait(30)
            told.append("open")

    def pass_later() -> None:
        with lock.shared():
            told.append("inside later")

    threads = [threading.Thread(target=each) for each in (pass_first, close, pass_later)]
    threads[0].start()
    wait_until(lambda: told == ["inside"])
    threads[1].start()
    wait_until(lambda: lock._alone)
    threads[2].start()
    assert told == ["inside"]
    leave.set()
    wait_until(lambda: "closed" in told)
    assert "inside later" not in told
    reopen.set()
    for thread in threads:
        thread.join(30)
    assert sorted(told[1:3]) == ["closed", "left"]
    assert told[3:] == ["open", "inside later"]


def test_a_lock_is_free_again_when_what_held_it_fails() -> None:
    """An error inside leaves nobody waiting."""
    lock = SharedLock()
    for way in (lock.exclusive, lock.shared):
        with pytest.raises(ValueError, match="within"), way():
            raise ValueError("within")
    with lock.exclusive():
        assert lock._holders == 0
    with lock.shared():
        assert lock._holders == 1


def test_who_holds_it_alone_may_share_it() -> None:
    """What it has done in its own thread doesn't wait for it; others do so again behind it."""
    lock = SharedLock()
    with lock.exclusive(), lock.shared():
        assert lock._holders == 1
    with lock.exclusive():
        assert lock._holders == 0
