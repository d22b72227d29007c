"""Checkpoints that travel between nodes: what is asked for, what counts, and what a copy of a vnode waits for."""

from __future__ import annotations

from dataclasses import replace

from kits.cluster.memory_checkpoints import PIECES, MemoryCheckpoint, MemoryShelf
from kits.cluster.memory_logs import MemoryLog, MemoryNode, record_after

from penstock.mnode.cluster.checkpoint_offering import CheckpointOffering, OfferSettings
from penstock.mnode.cluster.checkpoint_taking import CheckpointTaking, TakingSettings
from penstock.mnode.cluster.cluster_messages import (
    MANIFEST,
    CheckpointCopy,
    CheckpointName,
    CheckpointOffers,
    CheckpointsHeld,
    PieceAnswer,
    PieceRequest,
)

EPOCH, ACTIVE = 3, 1
READABLE = {1: (1, 10), 2: (1, 10), 3: (1, 10)}
STREAMS = (11, 12)


def checkpoint(attempt: int, number: int, *versions: int, stream: int = 12) -> MemoryCheckpoint:
    logs = (2, 3) if stream == 12 else (1,)
    copy = CheckpointCopy(CheckpointName(stream, attempt, number), tuple(zip(logs, versions, strict=True)))
    return MemoryCheckpoint(copy, (7, 7, sum(versions), number, attempt))


class Standby:
    """A node that follows, with logs up to version 10."""

    def __init__(self) -> None:
        records = [record_after(None, version, EPOCH, version) for version in range(1, 11)]
        self.node = MemoryNode(2, {log: MemoryLog(list(records)) for log in READABLE}, EPOCH)
        self.shelf = MemoryShelf(self.node, {})
        self.taking = CheckpointTaking(self.shelf, TakingSettings(ask_again_s=1.0, rest_s=5.0, patience_s=30.0))
        self.taking.follow((EPOCH, ACTIVE))
        self.now = 0.0
        self.logs = READABLE
        self._number = 0

    def offer(self, *made: MemoryCheckpoint, complete: bool = True, epoch: int = EPOCH) -> None:
        self._number += 1
        self.taking.on_offers(ACTIVE, CheckpointOffers(
            epoch, self._number, STREAMS, True, tuple(one.copy for one in made), complete))

    def said(self) -> list[CheckpointsHeld | PieceRequest]:
        return [message for _, message in self.taking.poll(self.now, self.logs)]

    def answer(self, made: MemoryCheckpoint, number: int) -> None:
        data = made.manifest if number == MANIFEST else str(made.pieces[number]).encode()
        self.taking.on_answer(self.now, ACTIVE, PieceAnswer(made.copy.name, number, data=data))

    def take(self, made: MemoryCheckpoint) -> list[int]:
        """Returns the pieces that were asked for until all was there."""
        asked = []
        while requests := [one for one in self.said() if isinstance(one, PieceRequest)]:
            asked.append(requests[0].number)
            self.answer(made, requests[0].number)
        return asked


def test_only_what_changed_travels() -> None:
    """The first copy has all pieces, the next one those that differ; each is told of when it is whole."""
    standby, first, second = Standby(), checkpoint(1, 1, 2, 2), checkpoint(1, 2, 3, 3)
    standby.offer(first)
    assert standby.take(first) == [MANIFEST, *range(PIECES)]
    standby.offer(second)
    assert standby.take(second) == [MANIFEST, 2, 3]
    standby.offer(second)
    assert standby.said() == [CheckpointsHeld(EPOCH, (second.copy.name,))]
    assert standby.shelf.checkpoints == {12: second}


def test_half_a_copy_is_never_used() -> None:
    """Not when the active goes on with another copy, is another one, or gives bytes that are wrong."""
    standby, made = Standby(), checkpoint(1, 1, 2, 2)
    for end in (
            lambda: standby.taking.on_answer(0.0, ACTIVE, PieceAnswer(made.copy.name, 1, "it isn't offered any more")),
            lambda: standby.taking.on_answer(0.0, ACTIVE, PieceAnswer(made.copy.name, 1, data=b"666")),
            lambda: standby.taking.follow((EPOCH + 1, 3))):
        standby.now += 10.0
        standby.offer(made)
        standby.said()
        standby.answer(made, MANIFEST)
        standby.answer(made, 0)
        end()
        standby.answer(made, 1)
        assert not standby.shelf.checkpoints
        assert standby.shelf.coming is None


def test_what_is_lost_is_asked_for_again_and_what_is_late_changes_nothing() -> None:
    """A second later the same piece; answers to earlier questions, offers of earlier epochs and older checkpoints."""
    standby, made = Standby(), checkpoint(2, 5, 4, 4)
    standby.offer(made, epoch=EPOCH - 1)
    assert not standby.said()
    standby.offer(made)
    question = standby.said()[0]
    assert standby.said() == []
    standby.now += 1.0
    assert standby.said() == [question]
    standby.answer(made, MANIFEST)
    standby.answer(made, MANIFEST)
    standby.answer(made, 0)
    standby.answer(made, 0)
    assert standby.take(made) == [1, 2, 3, 4]
    standby.offer(checkpoint(1, 9, 5, 5))
    assert standby.said() == [CheckpointsHeld(EPOCH, (made.copy.name,))]


def test_a_checkpoint_of_before_the_log_isn_t_taken() -> None:
    """A stream couldn't go on from it; one that has less than what is here, but with the log behind it, is taken."""
    standby, further, before, at = Standby(), checkpoint(1, 2, 6, 6), checkpoint(2, 1, 3, 8), checkpoint(2, 2, 4, 5)
    standby.offer(further)
    standby.take(further)
    standby.logs = {**READABLE, 2: (5, 10)}
    standby.offer(before)
    assert standby.said() == [CheckpointsHeld(EPOCH, (further.copy.name,))]
    standby.offer(at)
    standby.take(at)
    assert standby.shelf.checkpoints == {12: at}


def test_a_checkpoint_waits_for_the_log() -> None:
    """One that has more than the logs here would miss rows; where a copy of a log is to come, it comes before that."""
    standby, made = Standby(), checkpoint(1, 1, 2, 11)
    standby.offer(made)
    assert standby.said() == [CheckpointsHeld(EPOCH, ())]
    standby.shelf.copied = {3}
    assert standby.taking.poll(0.0, {**READABLE, 3: (0, 1 << 62)}) == [(ACTIVE, PieceRequest(made.copy.name, MANIFEST))]


def test_a_vnode_does_not_wait_in_vain_for_a_disk_that_works_again() -> None:
    """However often it has refused a checkpoint, that is tried several times while a copy of a vnode waits for it."""
    standby, made = Standby(), checkpoint(1, 1, 6, 6)
    standby.taking = CheckpointTaking(standby.shelf, TakingSettings())
    standby.taking.follow((EPOCH, ACTIVE))
    standby.offer(made)
    standby.shelf.refusals = 20
    while standby.shelf.refusals:
        standby.now += 1.0
        standby.take(made)
    began = standby.now
    while not standby.shelf.checkpoints:
        assert not standby.taking.may_put(standby.now, 3, 5)
        standby.now += 1.0
        standby.take(made)
    assert standby.now - began <= TakingSettings().patience_s / 2


def test_a_copy_of_a_vnode_waits_for_checkpoints() -> None:
    """Its log begins where no stream misses anything; who can't have that in half a minute goes on without."""
    standby, old, new = Standby(), checkpoint(1, 1, 2, 2), checkpoint(1, 2, 6, 6)
    assert not standby.taking.may_put(0.0, 3, 1)  # nothing is known of the active's streams
    standby.offer(old, complete=False)
    standby.take(old)
    assert not standby.taking.may_put(1.0, 3, 3)
    standby.offer(old)
    assert standby.taking.may_put(2.0, 3, 3)
    assert not standby.taking.may_put(3.0, 3, 4)
    standby.offer(new)
    assert not standby.taking.may_put(4.0, 3, 4)
    standby.take(new)
    assert standby.taking.may_put(5.0, 3, 7)
    assert not standby.taking.may_put(6.0, 3, 8)
    assert standby.taking.may_put(36.0, 3, 8)


def test_a_copy_stays_while_a_standby_gets_it() -> None:
    """A newer one takes its place when all that are heard have it, or nobody has asked for a while."""
    made = checkpoint(1, 1, 2, 2)
    offering = CheckpointOffering(EPOCH, OfferSettings(repeat_s=2, grace_s=5, silent_s=10))
    assert offering.may_replace(0.0, 12)
    offering.made(0.0, made.copy)
    assert not offering.may_replace(4.0, 12)
    offering.asked(4.0, made.copy.name)
    offering.asked(8.0, replace(made.copy.name, checkpoint=7))
    assert not offering.may_replace(8.0, 12)
    assert offering.may_replace(9.0, 12)
    offering.asked(9.0, made.copy.name)
    offering.told(9.0, 2, CheckpointsHeld(EPOCH, (made.copy.name,)))
    assert offering.may_replace(9.0, 12)
    offering.told(9.0, 3, CheckpointsHeld(EPOCH, ()))
    assert not offering.may_replace(9.0, 12)
    offering.told(9.0, 3, CheckpointsHeld(EPOCH, (replace(made.copy.name, checkpoint=2),)))
    assert offering.may_replace(9.0, 12), "who has a newer one doesn't want it"
    offering.told(9.0, 3, CheckpointsHeld(EPOCH, (replace(made.copy.name, stream=13),)))
    assert not offering.may_replace(9.0, 12)


def test_offers_are_made_when_something_is_new() -> None:
    """And every two seconds; copies of dropped streams are offered no more."""
    offering, made = CheckpointOffering(EPOCH, OfferSettings(repeat_s=2)), checkpoint(1, 1, 2, 2)
    assert offering.poll(0.0, STREAMS, True, False) == CheckpointOffers(EPOCH, 1, STREAMS, True, (), False)
    assert offering.poll(1.0, STREAMS, True, False) is None
    offering.made(1.0, made.copy)
    assert offering.poll(1.0, STREAMS, True, True) == CheckpointOffers(EPOCH, 2, STREAMS, True, (made.copy,), True)
    assert offering.poll(3.0, STREAMS, True, True) is not None
    assert offering.poll(3.1, (11,), True, True) == CheckpointOffers(EPOCH, 4, (11,), True, (), True)
