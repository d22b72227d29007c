"""A log that is shipped over a network which loses, doubles and reorders: it comes, in order, once, bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.cluster.memory_logs import MemoryLog

from penstock.mnode.cluster.cluster_messages import Ack, Append, Life, LogMatch, LogState
from penstock.mnode.cluster.log_epochs import EpochStart, cut_to
from penstock.mnode.cluster.log_following import FollowingPhase, FollowingSettings, LogFollowing
from penstock.mnode.cluster.log_shipping import LogShipping, ShippingPhase, ShippingSettings

EPOCH, SESSION, LOG = 20, 4, 1
SETTINGS = ShippingSettings(chunk_size_max=96, in_flight_max=300, resend_after_s=1.0)


class Pair:
    """An active's log and a standby's, with what is under way between them."""

    def __init__(self, active: MemoryLog, standby: MemoryLog) -> None:
        self.now = 0.0
        self.active, self.standby = active, standby
        if not active.noted or active.noted[-1].epoch < EPOCH:
            active.note_epoch(EpochStart(EPOCH, active.written + 1))
        self.shipping = LogShipping(EPOCH, SESSION, LOG, active, SETTINGS)
        self.following = LogFollowing(LOG, standby, Life(2, 1), SESSION, FollowingSettings())
        self.following.follow(0.0, EPOCH)
        self.to_standby: list[LogMatch | Append] = []
        self.to_active: list[LogState | Ack] = []

    def send(self, sync: bool = True) -> None:
        self.to_standby += self.shipping.poll(self.now, self.active.acknowledged)
        self.to_active += self.following.poll(self.now, sync)

    def deliver(self, message: object) -> None:
        match message:
            case LogState():
                self.shipping.on_state(self.now, message)
            case Ack():
                self.shipping.on_ack(self.now, message)
            case LogMatch():
                self.following.on_match(self.now, message)
            case Append():
                self.following.on_append(self.now, message)

    def settle(self) -> None:
        """Lets all come, and time pass, until the standby has what the active has."""
        for _ in range(200):
            self.send()
            for message in (*self.to_standby, *self.to_active):
                self.deliver(message)
            self.to_standby, self.to_active = [], []
            if self.following.phase is FollowingPhase.MATCHED and self.shipping.progress.synced == self.active.written:
                return
            self.now += 0.5
        raise AssertionError(f"the standby is {self.following.phase}, the active has it as {self.shipping.phase}")

    def check(self) -> None:
        """What the active believes is true."""
        progress = self.shipping.progress
        assert progress.synced <= progress.written <= self.standby.written
        assert progress.synced <= self.standby.synced
        if self.following.phase is FollowingPhase.MATCHED:
            written = self.standby.written
            assert self.standby.payloads() == [one for one in self.active.payloads() if one[0] <= written]


def log_of(*epochs: tuple[int, int], payload: int = 0) -> MemoryLog:
    """Returns a log with so many records of each epoch, all synced."""
    log = MemoryLog()
    for epoch, count in epochs:
        log.note_epoch(EpochStart(epoch, log.written + 1))
        for _ in range(count):
            log.write(payload + 100 * epoch)
    log.synced = log.written
    return log


histories = st.lists(st.integers(0, 6), min_size=8, max_size=8)


def log_with(counts: list[int], shared: int, own: int) -> MemoryLog:
    """Returns a log with the first `shared` epochs that both have, behind them records of an epoch of its own."""
    parts = [(4 * index + 1, count) for index, count in enumerate(counts[:shared])]
    return log_of(*parts, (4 * shared + own, counts[-1]))


@given(counts=histories, active_shared=st.integers(0, 4), standby_shared=st.integers(0, 4), data=st.data())
def test_a_standby_comes_to_have_the_log_whatever_the_network_does(
        counts: list[int], active_shared: int, standby_shared: int, data: st.DataObject) -> None:
    """What differs is cut; no acknowledgement is for what isn't there; in the end both logs are the same."""
    active, standby = log_with(counts, active_shared, 2), log_with(counts, standby_shared, 3)
    active.note_epoch(EpochStart(4 * 5, active.written + 1))
    pair = Pair(active, standby)
    for step in data.draw(st.lists(st.sampled_from("wwsSttdddrlxf"), max_size=60)):
        _play(pair, step, lambda size: data.draw(st.integers(0, size - 1)))
        pair.check()
    standby.refusals = 0
    pair.settle()
    assert standby.payloads() == active.payloads()
    assert cut_to(standby.noted, standby.written) == cut_to(active.noted, active.written)


def _play(pair: Pair, step: str, index: Callable[[int], int]) -> None:
    messages: list[object] = [*pair.to_standby, *pair.to_active]
    match step:
        case "w":
            pair.active.write(1000 + pair.active.written)
        case "s" | "S":
            pair.send(step == "S")
        case "t":
            pair.now += 0.7
        case "f":
            pair.standby.refusals = 1
        case _ if messages:
            message = messages[index(len(messages))]
            if step in "dx":
                pair.deliver(message)
            if step in "dl":
                pair.to_standby = [one for one in pair.to_standby if one is not message]
                pair.to_active = [one for one in pair.to_active if one is not message]


def test_what_is_under_way_is_bounded() -> None:
    """No more than the bound is sent before a standby answers, and then as much as it has taken."""
    pair = Pair(log_of((1, 60)), MemoryLog())
    pair.send()
    pair.deliver(pair.to_active.pop())
    for _ in range(3):
        pair.send()
    sent = [one for one in pair.to_standby if isinstance(one, Append)]
    assert sum(len(one.chunk.data) for one in sent) <= SETTINGS.in_flight_max
    assert len(sent) > 1
    pair.settle()


def test_a_gap_is_told_and_sent_again_once() -> None:
    """Of all that was under way behind what was lost, one answer is enough to send it again."""
    pair = Pair(log_of((1, 20)), MemoryLog())
    pair.send()
    pair.deliver(pair.to_active.pop())
    pair.send()
    match, _lost, *rest = pair.to_standby
    pair.to_standby = []
    for message in (match, *rest):
        pair.deliver(message)
        pair.to_active += pair.following.poll(pair.now, True)
    gaps = [one for one in pair.to_active if isinstance(one, Ack) and one.gap]
    assert len(gaps) == len(rest)
    for message in pair.to_active:
        pair.deliver(message)
    again = pair.shipping.poll(pair.now, 0)
    assert next(one.chunk.after for one in again if isinstance(one, Append)) == 0
    assert pair.shipping.poll(pair.now, 0) == []


def test_what_nobody_answers_is_sent_again() -> None:
    """After a second without an answer everything behind what is acknowledged goes once more."""
    pair = Pair(log_of((1, 3)), MemoryLog())
    pair.send()
    pair.deliver(pair.to_active.pop())
    first = pair.shipping.poll(0.0, 0)
    assert pair.shipping.poll(0.9, 0) == []
    assert pair.shipping.poll(1.0, 0) == first[1:]


def test_a_log_that_begins_too_late_asks_for_a_copy() -> None:
    """The standby is told why, again and again, until it has the copy; then it follows."""
    active = log_of((1, 20))
    active.acknowledged = 12
    active.flush(12)
    active.drop_until(12)
    pair = Pair(active, log_of((1, 5)))
    pair.send()
    pair.deliver(pair.to_active.pop())
    assert pair.shipping.phase is ShippingPhase.COPYING
    (told,) = pair.shipping.poll(0.0, 0)
    assert isinstance(told, LogMatch)
    assert "begins at version 13" in (told.copy_reason or "")
    assert pair.shipping.poll(0.5, 0) == []
    assert pair.shipping.poll(1.5, 0) == [told]
    parted: list[int] = []
    pair.standby.on_parted = parted.append
    pair.deliver(told)
    pair.deliver(told)
    assert pair.following.phase is FollowingPhase.COPYING
    assert parted == [5], "checkpoints that come ahead of the copy are removed once more"
    pair.standby = active.copy()
    pair.following.copied(2.0, pair.standby)
    pair.now = 2.0
    pair.settle()
    assert pair.standby.payloads() == active.payloads()


def test_a_log_that_is_freed_while_it_is_shipped_asks_for_a_copy() -> None:
    """A standby that fell behind what the active may keep is told so in the midst of following."""
    active = log_of((1, 3))
    pair = Pair(active, MemoryLog())
    pair.settle()
    for _ in range(9):
        active.write(1)
    active.acknowledged = 12
    active.flush(12)
    active.drop_until(10)
    pair.send()
    for message in pair.to_standby:
        pair.deliver(message)
    assert pair.following.phase is FollowingPhase.ASKING, "first the active is told"
    pair.to_standby = []
    for _ in range(2):
        pair.send()
        for message in (*pair.to_standby, *pair.to_active):
            pair.deliver(message)
        pair.to_standby, pair.to_active = [], []
    assert pair.following.phase is FollowingPhase.COPYING


def test_what_was_acknowledged_before_a_copy_counts_no_more() -> None:
    """An acknowledgement that was under way while the log was replaced by a shorter one is for what is gone."""
    pair = Pair(log_of((1, 9)), MemoryLog())
    pair.settle()
    (old,) = [Ack(EPOCH, SESSION, LOG, 1, 9, 9)]
    pair.following.follow(pair.now, EPOCH)
    pair.send()
    pair.deliver(pair.to_active.pop())
    pair.deliver(old)
    assert pair.shipping.progress.written == 0


def test_what_nobody_answers_is_sent_again_from_where_the_logs_part() -> None:
    """Not from the beginning, which the active may not have any more."""
    active = log_of((1, 20))
    active.acknowledged = 12
    active.flush(12)
    active.drop_until(12)
    pair = Pair(active, log_of((1, 15)))
    pair.send()
    pair.deliver(pair.to_active.pop())
    pair.shipping.poll(0.0, 0)
    again = [one for one in pair.shipping.poll(1.0, 0) if isinstance(one, Append)]
    assert again[0].chunk.after == 15
    assert pair.shipping.phase is ShippingPhase.MATCHED


def test_tables_that_hold_what_the_active_has_not_want_a_copy() -> None:
    """A log is never cut below what tables hold."""
    standby = log_of((1, 5), (2, 5))
    standby.acknowledged = 8
    standby.flush(8)
    pair = Pair(log_of((1, 5), (3, 2)), standby)
    pair.send()
    pair.deliver(pair.to_active.pop())
    pair.send()
    pair.deliver(pair.to_standby[0])
    assert pair.following.phase is FollowingPhase.COPYING
    assert pair.following.problem == (
        "what the log says up to version 8 can't be taken back, and the active has it up to 5 only")


def test_a_disk_that_refuses_is_told_until_it_works_again() -> None:
    """The log is followed again then, with all that came meanwhile."""
    pair = Pair(log_of((1, 5)), log_of((1, 3)))
    pair.send()
    pair.deliver(pair.to_active.pop())
    pair.send()
    match, append = pair.to_standby
    pair.deliver(match)
    pair.standby.refusals = 1
    pair.deliver(append)
    assert pair.following.problem == "the disk refuses"
    pair.settle()
    pair.send()
    assert pair.following.problem is None
    assert pair.standby.payloads() == pair.active.payloads()


@pytest.mark.parametrize("change", ["epoch", "session", "request"])
def test_old_answers_change_nothing(change: str) -> None:
    """What was meant for an earlier epoch, session or question neither cuts nor writes."""
    standby = log_of((1, 8))
    pair = Pair(log_of((1, 5)), standby)
    pair.send()
    old = {"epoch": EPOCH, "session": SESSION, "request": 1}
    old[change] -= 1
    pair.following.on_match(0.0, LogMatch(old["epoch"], old["session"], LOG, old["request"], 5))
    assert standby.written == 8
    assert pair.following.phase is FollowingPhase.ASKING
