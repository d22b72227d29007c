"""A standby's side of checkpoints that travel: which copy it asks for, piece by piece, and what its logs begin behind.

Knows no clock and no socket: messages come in, messages go out, `now` is the monotonic clock in seconds. A stream goes
on, where this node becomes active, from the newest checkpoint that the node has whole, with the log behind it. So a log
is cut no further than that, and a copy of a vnode, whose log begins later than the node's own, waits for checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.common.errors import PenstockError, UnavailableError
from penstock.common.logging import logger
from penstock.mnode.cluster.cluster_messages import (
    MANIFEST,
    CheckpointCopy,
    CheckpointName,
    CheckpointOffers,
    CheckpointsHeld,
    PieceAnswer,
    PieceRequest,
)

_log = logger(__name__)


class HeldCheckpoints(Protocol):
    """The checkpoints on a node's disk, one copy under way among them. Methods raise PenstockErrors."""

    def held(self) -> Mapping[int, CheckpointCopy]:
        """Returns, by stream, what is there whole."""
        ...

    def begin(self, copy: CheckpointCopy, manifest: bytes) -> Sequence[int]:
        """Begins a copy; returns the numbers of the pieces that aren't here in what the stream has already."""
        ...

    def write(self, number: int, data: bytes) -> None:
        """Takes a piece. Raises InvalidValueError if it isn't what the manifest says."""
        ...

    def finish(self, epoch: int) -> None:
        """Has the copy take the place of what the stream had; all or nothing, durable on return.

        Raises UnavailableError if the node doesn't follow in that epoch any more, or a log here lacks what the copy
        has, or what comes behind that.
        """
        ...

    def give_up(self) -> None:
        """Forgets the copy under way."""
        ...

    def keep_only(self, streams: Collection[int]) -> None:
        """Removes what is there of streams that were dropped."""
        ...


@dataclass(frozen=True, slots=True)
class TakingSettings:
    """Seconds: after which a piece is asked for again; of rest after a copy that failed, the first time and at most;
    and for which a copy of a vnode waits for checkpoints, during which some tries must have their turn."""

    ask_again_s: float = 1.0
    rest_s: float = 5.0
    rest_most_s: float = 10.0
    patience_s: float = 30.0


@dataclass(slots=True)
class _Taking:
    copy: CheckpointCopy
    wanted: list[int]
    asked_at: float = float("-inf")


@dataclass(slots=True)
class _Failures:
    """Of the copies of a stream, since one was had."""

    reason: str
    rest_s: float
    until: float


class CheckpointTaking:
    """The checkpoints of one node while it follows. One copy is under way at a time."""

    def __init__(self, store: HeldCheckpoints, settings: TakingSettings) -> None:
        self._store = store
        self._settings = settings
        self._active: tuple[int, int] | None = None
        self._offers: CheckpointOffers | None = None
        self._taking: _Taking | None = None
        self._failures: dict[int, _Failures] = {}
        self._tell = False
        self._waits_since: dict[int, float] = {}

    def follow(self, active: tuple[int, int] | None) -> None:
        """The node follows another, given as (epoch, node); or none, as the active one does."""
        if active != self._active:
            self._active, self._offers = active, None
            self._waits_since.clear()
            self._failures.clear()
            self._give_up()

    @property
    def problem(self) -> str:
        """Why newer checkpoints aren't had from the active node, for people; "" if they are."""
        return "; ".join(f"checkpoints of stream {stream:x} can't be had: {one.reason}"
                         for stream, one in sorted(self._failures.copy().items()))

    def on_offers(self, node: int, message: CheckpointOffers) -> None:
        """The active tells what it has; older news change nothing."""
        if (message.epoch, node) != self._active or (
                self._offers is not None and message.number <= self._offers.number):
            return
        self._offers, self._tell = message, True
        for gone in self._failures.keys() - set(message.streams):
            del self._failures[gone]
        if self._taking is not None and self._taking.copy.name.stream not in message.streams:
            self._give_up()
        try:
            if message.settled:
                self._store.keep_only(message.streams)
        except PenstockError as error:
            _log.warning("what is left of dropped streams stays: %s", error)

    def on_answer(self, now: float, node: int, message: PieceAnswer) -> None:
        """The active gives a piece; what wasn't asked for last changes nothing."""
        taking = self._taking
        if taking is None or self._active is None or node != self._active[1] or (
                message.name != taking.copy.name or not taking.wanted or message.number != taking.wanted[0]):
            return
        if message.problem:
            self._failed(now, f"the active node says: {message.problem}")
            return
        try:
            if message.number == MANIFEST:
                taking.wanted = list(self._store.begin(taking.copy, message.data))
            else:
                self._store.write(message.number, message.data)
                taking.wanted.pop(0)
            if not taking.wanted:
                self._store.finish(self._active[0])
                self._taking, self._tell = None, True
                self._failures.pop(taking.copy.name.stream, None)
        except (PenstockError, OSError) as error:
            if not isinstance(error, UnavailableError):  # such as that another node is active by now
                _log.warning("a copy of checkpoints can't be kept here: %s", error)
            self._failed(now, str(error))
            return
        taking.asked_at = float("-inf")

    def poll(self, now: float, readable: Mapping[int, tuple[int, int]]
             ) -> list[tuple[int, CheckpointsHeld | PieceRequest]]:
        """Returns what to tell the active now. `readable`: by log, from which version to which it is the active's here;
        a log that a copy is to take the place of counts as having all.
        """
        messages: list[tuple[int, CheckpointsHeld | PieceRequest]] = []
        if self._active is None:
            return messages
        epoch, node = self._active
        if self._taking is None:
            following = self._next(now, readable)
            if following is not None:
                self._taking = _Taking(following, [MANIFEST])
        if self._taking is not None and now - self._taking.asked_at >= self._settings.ask_again_s:
            self._taking.asked_at = now
            messages.append((node, PieceRequest(self._taking.copy.name, self._taking.wanted[0])))
        if self._tell:
            self._tell = False
            held = tuple(copy.name for copy in self._store.held().values())
            messages.append((node, CheckpointsHeld(epoch, held)))
        return messages

    def may_put(self, now: float, log: int, begin: int) -> bool:
        """Tells whether a log that begins at a version may take the place of this node's own.

        Not while streams would miss what lies between their checkpoint here and that; but not for ever either.
        """
        if self._covers(log, begin):
            self._waits_since.pop(log, None)
            return True
        waited_s = now - self._waits_since.setdefault(log, now)
        if waited_s < self._settings.patience_s:
            return False
        _log.warning("log %d begins at version %d here, behind what checkpoints of its streams have: should this node "
                     "become active before it has newer ones, these streams fail", log, begin)
        return True

    def _covers(self, log: int, begin: int) -> bool:
        if self._offers is None or not self._offers.complete:
            return False
        held = self._store.held()
        there = [one for one in held.values() if one.name.stream in self._offers.streams]
        if any(copy.name.stream not in held for copy in self._offers.copies if log in dict(copy.versions)):
            return False
        return all(version + 1 >= begin for copy in there for number, version in copy.versions if number == log)

    def _next(self, now: float, readable: Mapping[int, tuple[int, int]]) -> CheckpointCopy | None:
        """Returns what to ask for: the first copy that is newer than what is here, and from which logs here go on.

        An active node that never had this node's checkpoint has the stream go on from an older one. What it makes at
        first is newer, and may yet be of before what logs here begin with.
        """
        if self._offers is None:
            return None
        held = self._store.held()
        for copy in self._offers.copies:
            stream = copy.name.stream
            mine = held.get(stream)
            if (mine is None or mine.name < copy.name) and all(
                    log in readable and goes_on_from(readable[log], version) for log, version in copy.versions):
                failures = self._failures.get(stream)
                if failures is None or now >= failures.until:
                    return copy
        return None

    def _failed(self, now: float, reason: str) -> None:
        assert self._taking is not None
        name: CheckpointName = self._taking.copy.name
        _log.info("the copy of checkpoint %d of stream %x isn't had: %s", name.checkpoint, name.stream, reason)
        before = self._failures.get(name.stream)
        rest_s = self._settings.rest_s if before is None else min(self._settings.rest_most_s, 2 * before.rest_s)
        self._failures[name.stream] = _Failures(reason, rest_s, now + rest_s)
        self._give_up()

    def _give_up(self) -> None:
        if self._taking is not None:
            self._taking = None
            try:
                self._store.give_up()
            except (PenstockError, OSError) as error:
                _log.warning("a copy that was given up leaves something: %s", error)


def goes_on_from(readable: tuple[int, int], version: int) -> bool:
    """Tells whether a log with these first and last versions has what a stream has read up to a version, and must read
    behind it."""
    first, last = readable
    return first - 1 <= version <= last
