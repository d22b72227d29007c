"""The threads that bring checkpoints from the active node to the others: one that talks, and one that makes copies."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from penstock.common.clock import Clock
from penstock.common.errors import PenstockError, UnavailableError
from penstock.common.logging import logger
from penstock.common.retries import Retries
from penstock.mnode.checkpoints.checkpoint_copies import CheckpointsToGive
from penstock.mnode.cluster.checkpoint_offering import CheckpointOffering, OfferSettings
from penstock.mnode.cluster.checkpoint_taking import CheckpointTaking, HeldCheckpoints, TakingSettings
from penstock.mnode.cluster.cluster_messages import (
    MANIFEST,
    CheckpointCopy,
    CheckpointMessage,
    CheckpointOffers,
    CheckpointsHeld,
    PieceAnswer,
    PieceRequest,
)
from penstock.mnode.node_checkpoints import NodeCheckpoints

_log = logger(__name__)
_MESSAGES_MAX = 256
_TURN_S = 0.2
_PAUSE_MOST_S = 5.0
_MAKE_AGAIN_S, _MAKE_AGAIN_MOST_S = 5.0, 60.0
_BATCH_MAX = 32
#: The first copies of a tenure are made when its streams have begun: what is acknowledged soon matters more.
_FIRST_COPIES_AFTER_S = 5.0


class CheckpointCourier:
    """Both sides. `interval_s`: from one copy of a stream to the next, at least.

    Whatever fails is logged, told by `problems`, and tried again.
    """

    def __init__(self, place: NodeCheckpoints, giving: CheckpointsToGive, shelf: HeldCheckpoints, clock: Clock,
                 interval_s: float) -> None:
        self._place = place
        self._giving = giving
        self._clock = clock
        self._interval_s = interval_s
        self._taking = CheckpointTaking(shelf, TakingSettings())
        self._taking_lock = threading.Lock()
        self._offering: CheckpointOffering | None = None
        self._epoch: int | None = None
        self._began_at = 0.0
        self._first: set[int] = set()
        self._copied_at: dict[int, float] = {}
        self._events: queue.Queue[tuple[int, CheckpointMessage] | Callable[[], None]] = queue.Queue(_MESSAGES_MAX)
        self._orders: queue.SimpleQueue[list[int] | None] = queue.SimpleQueue()
        self._makes = False
        self._turns = Retries("checkpoints can't be brought to other nodes, or had from one", clock, _log, _TURN_S,
                              _PAUSE_MOST_S)
        self._making = Retries("checkpoints can't be copied for other nodes", clock, _log, _MAKE_AGAIN_S,
                               _MAKE_AGAIN_MOST_S)
        self._make_at = float("-inf")
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._run, name="penstock-cluster-checkpoints", daemon=True),
                         threading.Thread(target=self._make, name="penstock-checkpoint-copies", daemon=True)]

    @property
    def problems(self) -> list[str]:
        """What fails just now, for people."""
        return [text for text in (self._turns.problem, self._making.problem, self._taking.problem) if text]

    def start(self) -> None:
        self._giving.clear()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends both threads; a copy that is being made is left to itself."""
        self._closed.set()
        self._orders.put(None)
        if self._threads[0].is_alive():
            self._threads[0].join()

    def receive(self, node: int, message: CheckpointMessage) -> None:
        """Another node says something. What comes too fast is dropped: it is said again."""
        try:
            self._events.put_nowait((node, message))
        except queue.Full:
            _log.info("a message about checkpoints of node %d is dropped: there are too many", node)

    def may_put(self, log: int, begin: int) -> bool:
        """Tells whether a copied log, which begins at a version, may take the place of this node's own."""
        with self._taking_lock:
            return self._taking.may_put(self._clock.monotonic(), log, begin)

    # --- inside ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                event = self._events.get(timeout=_TURN_S)
            except queue.Empty:
                event = None
            try:
                with self._taking_lock:
                    self._turn(event)
            except Exception as error:  # noqa: BLE001  # it is told, and the thread goes on
                self._clock.wait(self._closed, self._turns.failed(error))

    def _turn(self, event: tuple[int, CheckpointMessage] | Callable[[], None] | None) -> None:
        self._follow_role()
        now = self._clock.monotonic()
        if callable(event):
            event()
        elif event is not None:
            self._handle(now, *event)
        if self._offering is not None:
            self._offer(now, self._offering)
            return
        for node, message in self._taking.poll(now, self._place.readable()):
            self._place.send(node, message)

    def _follow_role(self) -> None:
        epoch = self._place.tenure()
        if epoch != self._epoch:
            self._epoch, self._began_at = epoch, self._clock.monotonic()
            self._offering = None if epoch is None else CheckpointOffering(epoch, OfferSettings())
            self._first = set() if epoch is None else set(self._giving.with_checkpoints())
            self._copied_at.clear()
        self._taking.follow(None if epoch is not None else self._place.followed())

    def _handle(self, now: float, node: int, message: CheckpointMessage) -> None:
        match message:
            case CheckpointOffers():
                self._taking.on_offers(node, message)
            case PieceAnswer():
                self._taking.on_answer(now, node, message)
            case CheckpointsHeld() if self._offering is not None:
                self._offering.told(now, node, message)
            case PieceRequest() if self._offering is not None:
                self._offering.asked(now, message.name)
                self._place.send(node, self._answer(message))
            case _:
                pass

    def _answer(self, request: PieceRequest) -> PieceAnswer:
        try:
            data = (self._giving.manifest(request.name) if request.number == MANIFEST
                    else self._giving.piece(request.name, request.number))
        except PenstockError as error:
            return PieceAnswer(request.name, request.number, error.message)
        return PieceAnswer(request.name, request.number, data=data)

    def _offer(self, now: float, offering: CheckpointOffering) -> None:
        streams, settled = self._place.streams()
        self._first.intersection_update(streams)
        if settled:
            self._giving.keep_only(frozenset(streams))
        if not self._makes and now >= max(self._make_at, self._began_at + _FIRST_COPIES_AFTER_S):
            due = [stream for stream in sorted(self._first | self._giving.news())
                   if now >= self._copied_at.get(stream, float("-inf")) + self._interval_s
                   and offering.may_replace(now, stream)]
            if due:
                self._makes = True
                self._orders.put(due[:_BATCH_MAX])
        offers = offering.poll(now, streams, settled, not self._first)
        for node in self._place.others() if offers is not None else ():
            assert offers is not None
            self._place.send(node, offers)

    def _make(self) -> None:
        while (streams := self._orders.get()) is not None and not self._closed.is_set():
            copies: list[CheckpointCopy] = []
            failed: Mapping[int, str] = {}
            try:
                copies, failed = self._giving.make(streams)
                if failed:
                    raise UnavailableError("; ".join(f"stream {stream:x}: {why}" for stream, why in failed.items()))
            except Exception as error:  # noqa: BLE001  # it is told, and tried again
                self._make_at = self._clock.monotonic() + self._making.failed(error)
                failed = failed or dict.fromkeys(streams, str(error))
            else:
                self._making.succeeded()
            done = [stream for stream in streams if stream not in failed]
            self._events.put(partial(self._made, done, copies))

    def _made(self, streams: Sequence[int], copies: Sequence[CheckpointCopy]) -> None:
        """Copies of streams were made, of those that have checkpoints; others will be tried again."""
        now, self._makes = self._clock.monotonic(), False
        self._first.difference_update(streams)
        for stream in streams:
            self._copied_at[stream] = now
        for copy in copies:
            if self._offering is not None:
                self._offering.made(now, copy)
