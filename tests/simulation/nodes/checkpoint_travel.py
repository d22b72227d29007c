"""Checkpoints in a simulated cluster: streams make them where they run, and they travel as between processes."""

from __future__ import annotations

from functools import partial
from random import Random

from kits.cluster.memory_checkpoints import STREAMS, MemoryCheckpoint, MemoryShelf, checkpoint_of
from kits.cluster.memory_logs import MemoryLog, MemoryNode

from penstock.mnode.cluster.checkpoint_offering import CheckpointOffering, OfferSettings
from penstock.mnode.cluster.checkpoint_taking import CheckpointTaking, TakingSettings
from penstock.mnode.cluster.cluster_messages import (
    MANIFEST,
    CheckpointMessage,
    CheckpointName,
    CheckpointOffers,
    CheckpointsHeld,
    PieceAnswer,
    PieceRequest,
)
from penstock.mnode.cluster.cluster_node import ClusterNode


class SimCourier:
    """What one process does about checkpoints; `kept` are those on the node's disk, which outlive it."""

    def __init__(self, disk: MemoryNode, kept: dict[int, MemoryCheckpoint], process: ClusterNode, chance: Random,
                 others: list[int]) -> None:
        self.kept = kept
        self._disk = disk
        self._process = process
        self._chance = chance
        self._others = others
        self.shelf = MemoryShelf(disk, kept)
        self.taking = CheckpointTaking(self.shelf, TakingSettings(patience_s=float("inf")))
        self._offering: CheckpointOffering | None = None
        self._epoch: int | None = None
        self._first: set[int] = set()
        self._given: dict[CheckpointName, MemoryCheckpoint] = {}
        for number, log in disk.stored.items():
            self.watch(number, log)

    def watch(self, number: int, log: MemoryLog) -> None:
        """Has a log tell what of it never was the cluster's."""
        log.on_parted = partial(self.shelf.part, number)

    def needed(self, log: int) -> int:
        """Returns up to which version streams don't need a log on this node."""
        return min((dict(self.kept[stream].copy.versions)[log] if stream in self.kept else 0
                    for stream, logs in STREAMS.items() if log in logs), default=1 << 62)

    def checkpoint(self) -> None:
        """Has a stream make a checkpoint, on the node that is active."""
        stream = self._chance.choice(list(STREAMS))
        active, before = self._process.active, self.kept.get(stream)
        assert active is not None
        made = checkpoint_of(self._disk, stream, active.epoch, 1 if before is None else before.copy.name.checkpoint + 1)
        if before is None or all(dict(made.copy.versions)[log] >= version for log, version in before.copy.versions):
            self.kept[stream] = made

    def poll(self, now: float) -> list[tuple[int, CheckpointMessage]]:
        """Returns what to send, to which nodes."""
        active = self._process.active
        epoch = None if active is None else active.epoch
        if epoch != self._epoch:
            self._epoch, self._first, self._given = epoch, set(self.kept), {}
            self._offering = None if epoch is None else CheckpointOffering(epoch, OfferSettings())
        following = None if active is not None else self._process.role.following
        self.taking.follow(None if following is None else (following.epoch, following.active.node))
        self.shelf.follows, self.shelf.copied = active is None, self._process.standby.copies_needed()
        if self._offering is None:
            readable = {**self._process.standby.matched(), **dict.fromkeys(self.shelf.copied, (0, 1 << 62))}
            return list(self.taking.poll(now, readable))
        for stream, one in self.kept.items():
            offered = self._offering.offered(stream)
            if (offered is None or offered.name < one.copy.name) and self._chance.random() < 0.3 and (
                    self._offering.may_replace(now, stream)):
                self._offering.made(now, one.copy)
                self._given[one.copy.name] = one
                self._first.discard(stream)
                if offered is not None:
                    del self._given[offered.name]
        offers = self._offering.poll(now, STREAMS, self._chance.random() < 0.9, not self._first)
        return [] if offers is None else [(node, offers) for node in self._others]

    def receive(self, now: float, sender: int, message: CheckpointMessage) -> list[tuple[int, CheckpointMessage]]:
        """Takes what another node says; returns what to answer."""
        match message:
            case CheckpointOffers():
                self.taking.on_offers(sender, message)
            case PieceAnswer():
                self.taking.on_answer(now, sender, message)
            case CheckpointsHeld() if self._offering is not None:
                self._offering.told(now, sender, message)
            case PieceRequest(name, number) if self._offering is not None:
                self._offering.asked(now, name)
                one = self._given.get(name)
                if one is None:
                    return [(sender, PieceAnswer(name, number, "it isn't offered any more"))]
                data = one.manifest if number == MANIFEST else str(one.pieces[number]).encode()
                return [(sender, PieceAnswer(name, number, data=data))]
            case _:
                pass
        return []
