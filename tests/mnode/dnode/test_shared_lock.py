"""The gate that statements pass and that one of them may close."""

from __future__ import annotations

import threading

import pytest
from kits.basics.waiting import wait_until

from penstock.mnode.dnode.shared_lock import Gate


def test_a_closed_gate_has_nobody_inside_and_lets_nobody_in() -> None:
    """Who closes it waits for those inside; who comes then waits until it is open again."""
    gate, leave, reopen = Gate(), threading.Event(), threading.Event()
    told: list[str] = []

    def pass_first() -> None:
        with gate.passing():
            told.append("inside")
            leave.wait(30)
        told.append("left")

    def close() -> None:
        with gate.closed():
            told.append("closed")
            reopen.wait(30)
            told.append("open")

    def pass_later() -> None:
        with gate.passing():
            told.append("inside later")

    threads = [threading.Thread(target=each) for each in (pass_first, close, pass_later)]
    threads[0].start()
    wait_until(lambda: told == ["inside"])
    threads[1].start()
    wait_until(lambda: gate._closed)
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


def test_a_gate_opens_again_when_what_closed_it_fails() -> None:
    """An error inside leaves nobody waiting."""
    gate = Gate()
    for way in (gate.closed, gate.passing):
        with pytest.raises(ValueError, match="within"), way():
            raise ValueError("within")
    with gate.closed():
        assert gate._inside == 0
    with gate.passing():
        assert gate._inside == 1
