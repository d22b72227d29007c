"""Runs a node: one thread that hands events to `ClusterNode`, sends what it says, asks ZooKeeper, and wakes writers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol

from penstock.common.clock import Clock
from penstock.common.errors import PenstockError, ReplicasMissingError, UnavailableError
from penstock.common.logging import logger
from penstock.common.retries import Retries
from penstock.mnode.cluster.acknowledgement_waits import AcknowledgementWaits, WaitEnded
from penstock.mnode.cluster.checkpoint_taking import goes_on_from
from penstock.mnode.cluster.cluster_messages import ClusterMessage
from penstock.mnode.cluster.cluster_node import ClusterNode
from penstock.mnode.cluster.cluster_registry import RegistryAnswer, RegistrySeen
from penstock.mnode.cluster.cluster_status import ClusterStatuses
from penstock.mnode.cluster.node_role import Role
from penstock.mnode.cluster.node_transport import NodeTransport
from penstock.mnode.cluster.stored_logs import StoredLog
from penstock.mnode.cluster.zookeeper_registry import RegistryEvent, SessionLost, ZookeeperRegistry

_log = logger(__name__)
#: First and last version of a log that a copy is to take the place of.
COPIED = (0, 1 << 62)
_POLL_S = 0.1
_STATUS_S = 0.5
_LOOK_S = 1.0
_REMEMBERED_S = 20.0
#: Messages that wait for the thread; who receives more waits, and so does the network.
_MESSAGES_MAX = 64


class TenureHooks(Protocol):
    """What the rest of the engine does when this node becomes active, or is so no more. Called by the service's thread.

    If the first two raise PenstockError, the lease is given up.
    """

    def keep_up(self) -> None:
        """The node isn't active, and copies of logs may have come since the last call."""
        ...

    def begin_tenure(self, epoch: int) -> None:
        """Rows may be written here from now on; called again when a switchover is called off."""
        ...

    def hold_writes(self, reason: str) -> None:
        """Rows are refused until the tenure begins again, or ends."""
        ...

    def end_tenure(self, reason: str) -> None:
        """No row is written here from now on; logs take copies. Called at the start, too."""
        ...

    def break_down(self, reason: str) -> None:
        """The thread ends by what nobody foresaw, behind the tenure: the process must start anew."""
        ...


class ClusterService:
    """The thread of one node, and those who wait for it.

    A turn that raises a PenstockError is followed by the next one. What else it raises ends the thread, as nobody knows
    then what the node's state is.
    """

    def __init__(self, node: ClusterNode, hooks: TenureHooks, clock: Clock, replica_timeout_s: float) -> None:
        self.statuses = ClusterStatuses(node.settings.nodes)
        self._status_at = float("-inf")
        #: the active node, if it is another one, and by log why this node needs a copy of the vnode
        self.copies: tuple[int | None, Mapping[int, str]] = (None, {})
        #: epoch and number of the active node that this one follows
        self.followed: tuple[int, int] | None = None
        #: by log, from which version to which it is the active's on this node, which follows; see `COPIED`
        self.readable: Mapping[int, tuple[int, int]] = {}
        #: by log, from which version on standbys still need the active node's
        self.kept_from: Mapping[int, int] = {}
        self._node = node
        self._hooks = hooks
        self._clock = clock
        self._registry: ZookeeperRegistry | None = None
        self._transport: NodeTransport | None = None
        self._messages: queue.Queue[tuple[int, ClusterMessage]] = queue.Queue(_MESSAGES_MAX)
        self._events: queue.SimpleQueue[RegistryEvent | Callable[[], None]] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._closed = False
        self._lock = threading.Lock()
        self._waits = AcknowledgementWaits(replica_timeout_s)
        self._waiting: dict[int, tuple[threading.Event, list[WaitEnded]]] = {}
        self._tenure: int | None = None
        self._holds = False
        self._turns = Retries("the cluster's node can't go on for now", clock, _log, _POLL_S, _POLL_S)
        self._broken = ""
        self._thread = threading.Thread(target=self._run, name="penstock-cluster", daemon=True)

    # --- from other threads --------------------------------------------------------------------------------------

    @property
    def problem(self) -> str:
        """Why the node can't go on, or couldn't just now; "" if it can."""
        return self._broken or self._turns.problem

    def start(self, registry: ZookeeperRegistry, transport: NodeTransport) -> None:
        """Begins as a standby. Both are started, and tell what comes to `tell` and `receive`."""
        self._registry, self._transport = registry, transport
        self._hooks.end_tenure("the node has just started")
        self._thread.start()

    def tell(self, event: RegistryEvent) -> None:
        """ZooKeeper tells something."""
        self._events.put(event)
        self._wake.set()

    def receive(self, node: int, message: ClusterMessage) -> None:
        """Another node says something; waits while much is to be done."""
        while not self._closed:
            try:
                self._messages.put((node, message), timeout=1.0)
            except queue.Full:
                continue
            break
        self._wake.set()

    def switchover(self, node: int) -> None:
        """Has this node begin to hand over to another one. Raises InvalidStatementError if it can't."""
        self._call(lambda: self._node.switchover(self._clock.monotonic(), node))

    def promote(self) -> None:
        """Has this node try to become active, whatever it lacks, if no node is."""
        self._call(lambda: self._node.role.promote(self._clock.monotonic()))

    def _call(self, action: Callable[[], None]) -> None:
        """Has something done by the thread, and raises what that raises. Raises UnavailableError if the thread ends."""
        done = Future[None]()

        def act() -> None:
            try:
                action()
            except BaseException as error:  # noqa: BLE001  # it is the caller's
                done.set_exception(error)
            else:
                done.set_result(None)

        self._events.put(act)
        self._wake.set()
        while not done.done():
            with suppress(TimeoutError):
                done.result(_LOOK_S)
            if not done.done() and not self._thread.is_alive():
                raise UnavailableError("this node is shutting down", hint="try again after its restart")
        done.result()

    def acknowledged(self, log: int) -> int:
        """Returns up to which version all who count have a log; 0 if this node isn't active."""
        active = self._node.active
        return 0 if active is None else active.acknowledged.get(log, 0)

    def await_acknowledged(self, log: int, version: int) -> None:
        """Waits until all who count have a record. Raises ReplicasMissingError."""
        if self._tenure is not None and self.acknowledged(log) >= version:
            return
        done, told = threading.Event(), list[WaitEnded]()
        with self._lock:
            if self._tenure is None:
                raise ReplicasMissingError("the rows are written here, but this node is no longer active",
                                           hint="ask the active node, or write the same rows again there")
            wait = self._waits.add(self._clock.monotonic(), log, version)
            self._waiting[wait.number] = (done, told)
        self._wake.set()
        done.wait()
        if told[0].error is not None:
            raise told[0].error

    def close(self) -> None:
        """Ends the thread; who waits is told that this node is active no more."""
        self._closed = True
        self._wake.set()
        self._thread.join()

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            try:
                self._turn()
            except PenstockError as error:
                self._turns.failed(error)
            except Exception as error:  # noqa: BLE001  # it is told, and ends the node
                _log.exception("the cluster's node breaks off")
                self._broken = f"the cluster's node has broken off: {type(error).__name__}: {error}"
                break
            self._clock.wait(self._wake, _POLL_S)
        try:
            self._end_tenure(self._broken or "it is stopped")
        finally:
            if self._broken:
                self._hooks.break_down(self._broken)

    def _turn(self) -> None:
        self._wake.clear()
        while not self._events.empty():
            self._handle(self._events.get())
            self._follow_role()
        for _ in range(_MESSAGES_MAX):
            if self._messages.empty():
                break
            self._node.receive(self._clock.monotonic(), *self._messages.get())
            self._follow_role()
        assert self._registry is not None
        assert self._transport is not None
        self._registry.poll()
        output = self._node.poll(self._clock.monotonic(), self._clock.now_ms())
        self._follow_role()
        if self._tenure is None:
            self._hooks.keep_up()
        now = self._clock.monotonic()
        if now >= self._status_at:
            self._status_at = now + _STATUS_S
            self.statuses.note(self._node, now, self._clock.now_ms())
            self._note_needs(now)
        for to, message in output.messages:
            self._transport.send(to, message)
        for request in output.requests:
            self._registry.ask(request)
        self._tell_writers()

    def _note_needs(self, now: float) -> None:
        """Notes what copies this node needs, and what of its logs others need."""
        active, following = self._node.active, self._node.role.following
        self.readable = {} if active is not None else self._readable_here()
        self.followed = None if following is None or active is not None else (following.epoch, following.active.node)
        self.copies = (None if following is None else following.active.node,
                       {} if active is not None else self._node.standby.copies_needed())
        if active is None:
            self.kept_from = {}
        else:
            needed = {log: active.kept_from(log, now - _REMEMBERED_S) for log in active.written()}
            self.kept_from = {log: version for log, version in needed.items() if version is not None}

    def replace_log(self, log: int, replace: Callable[[], StoredLog | None]) -> None:
        """Has the thread replace a log, with what it belongs to, by a copy, if it still needs one.

        `replace` returns None if the copy takes its place later. Raises what that raises.
        """
        def act() -> None:
            if log in self._node.standby.copies_needed():
                stored = replace()
                if stored is not None:
                    self._node.standby.copied(self._clock.monotonic(), log, stored)
                    self._note_needs(self._clock.monotonic())  # or the same would be copied once more

        self._call(act)

    def while_following(self, epoch: int | None, versions: Iterable[tuple[int, int]],
                        action: Callable[[], None]) -> None:
        """Has the thread do something that must not happen while this node is active. Raises what it raises.

        Raises UnavailableError if the node is active or follows in another epoch (None: in whichever), or can't read a
        log up to these versions and behind them, unless a copy is to take the place of that log.
        """
        def act() -> None:
            if self._node.active is not None or (epoch is not None and self._node.epoch != epoch):
                raise UnavailableError("another node has become the active one")
            readable = self._readable_here()
            if not all(log in readable and goes_on_from(readable[log], version) for log, version in versions):
                raise UnavailableError("the log here has less than the checkpoint, or begins later")
            action()

        self._call(act)

    def _readable_here(self) -> dict[int, tuple[int, int]]:
        standby = self._node.standby
        copies = dict.fromkeys(standby.copies_needed(), COPIED)
        return {**standby.matched(), **copies}

    def _handle(self, event: RegistryEvent | Callable[[], None]) -> None:
        now = self._clock.monotonic()
        match event:
            case RegistrySeen():
                self._node.seen(now, event)
            case RegistryAnswer():
                self._node.answered(now, event)
            case SessionLost(reason):
                self._node.session_lost(now, reason)
            case _:
                event()

    def _follow_role(self) -> None:
        """Lets the engine write, or keeps it from that, as the role says now."""
        active = self._node.active
        epoch = None if active is None else active.epoch
        holds = epoch is not None and self._node.role.role is Role.HANDING_OVER
        if (epoch, holds) == (self._tenure, self._holds):
            return
        if epoch != self._tenure:
            self._end_tenure(self._node.role.reason)
        # Who may write from now on may wait for that at once.
        with self._lock:
            self._tenure, self._holds = epoch, holds
        try:
            if holds:
                self._hooks.hold_writes("another node is about to become the active one")
            elif epoch is not None:
                self._hooks.begin_tenure(epoch)
        except PenstockError as error:
            self._node.role.give_up(self._clock.monotonic(), error.message)
            raise

    def _tell_writers(self) -> None:
        active = self._node.active
        if active is None:
            return
        with self._lock:
            self._end(self._waits.poll(self._clock.monotonic(), active.acknowledged, active.missing))

    def _end_tenure(self, reason: str) -> None:
        if self._tenure is not None:
            with self._lock:
                self._tenure, self._holds = None, False
                self._end(self._waits.end(reason))
            self._hooks.end_tenure(reason)

    def _end(self, ended: list[WaitEnded]) -> None:
        for one in ended:
            done, told = self._waiting.pop(one.wait.number)
            told.append(one)
            done.set()
