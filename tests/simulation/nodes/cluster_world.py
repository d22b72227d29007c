"""Time, network, disks and processes of a simulated cluster: a heap of events, taken one after the other.

Each node has a monotonic clock of its own, that runs a little fast or slow.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from kits.cluster.memory_checkpoints import MemoryCheckpoint
from kits.cluster.memory_logs import MemoryLog, MemoryNode

from penstock.mnode.cluster.acknowledgement_waits import AcknowledgementWaits
from penstock.mnode.cluster.active_node import ActiveSettings
from penstock.mnode.cluster.cluster_messages import (
    CheckpointMessage,
    CheckpointOffers,
    CheckpointsHeld,
    ClusterMessage,
    Life,
    PieceAnswer,
    PieceRequest,
)
from penstock.mnode.cluster.cluster_node import ClusterNode, ClusterSettings
from penstock.mnode.cluster.cluster_registry import (
    OfferCandidacy,
    ReadRegistry,
    RecordChange,
    RegistryAnswer,
    RegistryOutcome,
    RegistryRequest,
    WithdrawCandidacy,
)
from penstock.mnode.cluster.log_shipping import ShippingSettings
from penstock.mnode.cluster.node_role import RoleSettings
from penstock.mnode.cluster.synchronous_set import LogReplicas, SetSettings
from simulation.nodes.checkpoint_travel import SimCourier
from simulation.nodes.zookeeper import SimZookeeper

ZOOKEEPER = 0
_POLL_S = 0.1
_REQUEST_TIMEOUT_S = 1.5
_START_MS = 1_700_000_000_000
SETTINGS = RoleSettings()


class ClusterFailure(AssertionError):
    """What a run must never come to; the text says what and where."""


@dataclass
class SimNode:
    """A machine: its disk, its clock, and the process that runs there, or none."""

    number: int
    disk: MemoryNode
    clock_offset: float
    clock_rate: float
    process: ClusterNode | None = None
    waits: AcknowledgementWaits = field(default_factory=lambda: AcknowledgementWaits(3.0))
    session: int = 0
    paused_until: float = 0.0
    poll_due: bool = False
    copying: set[int] = field(default_factory=set)
    courier: SimCourier | None = None
    checkpoints: dict[int, MemoryCheckpoint] = field(default_factory=dict)

    @property
    def life(self) -> Life:
        return Life(self.number, self.disk.number)

    def clock(self, now: float) -> float:
        return self.clock_offset + self.clock_rate * now


class ClusterWorld:
    """The cluster, and all that happens to it. `after_poll` looks at a node each time it was polled."""

    def __init__(self, seed: int, numbers: range, replicas: Mapping[int, LogReplicas]) -> None:
        self.chance = Random(seed)
        self.now = 0.0
        self.replicas = dict(replicas)
        self.zookeeper = SimZookeeper(self.chance, SETTINGS.lease.session_timeout_s, lambda: self.tell(self._record()))
        self.nodes = {number: self._new_node(number) for number in numbers}
        self.cut: set[tuple[int, int]] = set()
        self.bad_network = True
        self.trace: deque[str] = deque(maxlen=600)
        self.counts: Counter[str] = Counter()
        self.events = 0
        self.after_poll: Callable[[SimNode], None] = lambda node: None
        self.settings = ClusterSettings(
            frozenset(numbers), SETTINGS,
            ActiveSettings(ShippingSettings(chunk_size_max=128, in_flight_max=512), SetSettings(2.0, 4.0)))
        self._heap: list[tuple[float, int, SimNode | None, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._arrivals: dict[int, float] = {}
        self.later(0.1, None, self._expire_sessions)

    # --- what happens when ---------------------------------------------------------------------------------------

    def later(self, delay_s: float, node: SimNode | None, action: Callable[[], None]) -> None:
        """Has something happen after `delay_s`; on a node that is paused then, when it goes on."""
        heapq.heappush(self._heap, (self.now + delay_s, next(self._numbers), node, action))

    def run_until(self, end: float) -> None:
        while self._heap and self._heap[0][0] <= end:
            at, number, node, action = heapq.heappop(self._heap)
            self.now = max(self.now, at)
            if node is not None and node.paused_until > self.now:
                heapq.heappush(self._heap, (node.paused_until, number, node, action))
                continue
            self.events += 1
            action()
        self.now = end

    def tell(self, text: str) -> None:
        self.trace.append(f"{self.now:8.3f} {text}")

    def count(self, what: str, text: str = "") -> None:
        self.counts[what] += 1
        self.tell(f"{what} {text}")

    # --- processes -----------------------------------------------------------------------------------------------

    def start(self, node: SimNode) -> None:
        """Starts a process on a node that has none."""
        if node.process is not None:
            return
        for log in node.disk.stored.values():
            log.restart()
        node.session = next(self._numbers)
        node.process = ClusterNode(node.number, node.session, node.disk, lambda: self.replicas, self.settings)
        node.courier = SimCourier(node.disk, node.checkpoints, node.process, self.chance,
                                  [number for number in self.nodes if number != node.number])
        node.poll_due = False
        self.tell(f"node {node.number} starts, process {node.session}, life {node.disk.number}")
        self._tick(node, node.process)

    def kill(self, node: SimNode) -> None:
        """Ends a node's process."""
        node.process = node.courier = None
        node.waits = AcknowledgementWaits(3.0)
        node.paused_until = self.now
        node.copying.clear()

    def lose_disk(self, node: SimNode) -> None:
        self.kill(node)
        node.disk = self._new_disk(node.number)
        node.checkpoints = {}

    def lose_power(self, node: SimNode) -> None:
        """What wasn't synced may be gone; then what the node has said counts no more, unless all it says is synced."""
        self.kill(node)
        for log in node.disk.stored.values():
            log.lose_power(self.chance)
        if any(one.wal_level == 1 for one in self.replicas.values()):
            node.disk.number = next(self._numbers)

    def _tick(self, node: SimNode, process: ClusterNode) -> None:
        if node.process is process:
            self._poll(node, process)
            self.later(_POLL_S * (0.5 + self.chance.random()), node, lambda: self._tick(node, process))

    def poll_soon(self, node: SimNode) -> None:
        """Has a node look at what has come, a moment later."""
        process = node.process
        if process is None or node.poll_due:
            return
        node.poll_due = True

        def poll() -> None:
            node.poll_due = False
            if node.process is process:
                self._poll(node, process)

        self.later(0.002, node, poll)

    def _poll(self, node: SimNode, process: ClusterNode) -> None:
        output = process.poll(node.clock(self.now), _START_MS + round(self.now * 1000))
        for to, message in output.messages:
            self._send(node, to, message)
        assert node.courier is not None
        for to, checkpoint in node.courier.poll(node.clock(self.now)):
            self._send(node, to, checkpoint)
        for request in output.requests:
            self._ask(node, process, request)
        self._start_copies(node, process)
        self.after_poll(node)

    # --- network -------------------------------------------------------------------------------------------------

    def _send(self, node: SimNode, to: int, message: ClusterMessage | CheckpointMessage) -> None:
        copies = 1
        if self.bad_network:
            copies = self.chance.choices((1, 0, 2), (94, 4, 2))[0]
        for _ in range(copies):
            if (node.number, to) not in self.cut:
                self.later(self._delay(), self.nodes[to], lambda: self._deliver(node.number, to, message))

    def _delay(self) -> float:
        if self.bad_network and self.chance.random() < 0.03:
            return self.chance.random() * 3.0
        return 0.001 + self.chance.random() * 0.004

    def _deliver(self, sender: int, to: int, message: ClusterMessage | CheckpointMessage) -> None:
        node = self.nodes[to]
        if isinstance(message, CheckpointOffers | CheckpointsHeld | PieceRequest | PieceAnswer):
            if node.courier is not None:
                for back, answer in node.courier.receive(node.clock(self.now), sender, message):
                    self._send(node, back, answer)
        elif node.process is not None:
            node.process.receive(node.clock(self.now), sender, message)
            self.poll_soon(node)

    # --- ZooKeeper -----------------------------------------------------------------------------------------------

    def _ask(self, node: SimNode, process: ClusterNode, request: RegistryRequest) -> None:
        sent_at, session = node.clock(self.now), node.session
        answered = False

        def answer(outcome: RegistryOutcome, version: int) -> None:
            nonlocal answered
            if not answered and node.process is process and not isinstance(
                    request, ReadRegistry | OfferCandidacy | WithdrawCandidacy):
                process.answered(node.clock(self.now), RegistryAnswer(request, outcome, version, sent_at))
                self.poll_soon(node)
            answered = True

        def arrive() -> None:
            if self.zookeeper.away:
                return
            outcome = self.zookeeper.perform(self.now, session, request)
            version = self.zookeeper.registry.version
            if (ZOOKEEPER, node.number) in self.cut or node.process is not process:
                return
            if outcome is None:
                self.later(self._delay(), node, lambda: self._lose_session(node, process, session))
            elif isinstance(request, ReadRegistry):
                seen = self.zookeeper.read(self.now, session, sent_at)
                self.later(self._delay(), node, lambda: node.process is process and process.seen(
                    node.clock(self.now), seen))
            else:
                self.later(self._delay(), node, lambda: answer(outcome, version))

        if self.bad_network and isinstance(request, RecordChange) and self.chance.random() < 0.15:
            self._cut_off_from_zookeeper(node)
        self.later(_REQUEST_TIMEOUT_S, node, lambda: answer(RegistryOutcome.UNKNOWN, 0))
        if (node.number, ZOOKEEPER) not in self.cut and not (self.bad_network and self.chance.random() < 0.01):
            delay = self._delay()
            if self.chance.random() < 0.95:
                delay = max(delay, self._arrivals.get(session, 0.0) - self.now)
                self._arrivals[session] = self.now + delay
            self.later(delay, None, arrive)

    def _cut_off_from_zookeeper(self, node: SimNode) -> None:
        """Takes the connection away just when something is asked for: before that arrives, or before it is answered."""
        links = {(ZOOKEEPER, node.number)} if self.chance.random() < 0.4 else {
            (ZOOKEEPER, node.number), (node.number, ZOOKEEPER)}
        seconds = self.chance.choice((1.0, 3.0, 7.0))
        self.count("cut off in a change", f"{sorted(links)} for {seconds} s")
        self.cut |= links
        self.later(seconds, None, lambda: self.cut.difference_update(links))

    def _lose_session(self, node: SimNode, process: ClusterNode, session: int) -> None:
        if node.process is process and node.session == session:
            self.tell(f"node {node.number} hears that its session {session} has ended")
            node.session = next(self._numbers)
            process.session_lost(node.clock(self.now), "the session with ZooKeeper has ended")

    def _expire_sessions(self) -> None:
        self.zookeeper.expire(self.now)
        self.later(0.1, None, self._expire_sessions)

    def _record(self) -> str:
        registry = self.zookeeper.registry
        lease = "nobody" if registry.lease is None else f"process {registry.lease[1].process}"
        return f"zookeeper: {registry.version} {registry.record}, {lease} has the lease, {list(registry.candidates)}"

    # --- copies --------------------------------------------------------------------------------------------------

    def _start_copies(self, node: SimNode, process: ClusterNode) -> None:
        source = process.standby.active
        if process.active is not None or source is None:
            return
        for log in process.standby.copies_needed().keys() - node.copying:
            node.copying.add(log)
            self.later(0.1 + self.chance.random(), node, lambda log=log: self._copy(node, process, source, log))

    def _copy(self, node: SimNode, process: ClusterNode, source: int, log: int) -> None:
        if node.process is not process:
            return
        other = self.nodes[source]
        reached = not {(source, node.number), (node.number, source)} & self.cut and other.paused_until <= self.now
        if (reached and other.process is not None and other.process.active is not None
                and process.standby.active == source and log in process.standby.copies_needed()):
            self._put(node, process, source, log, other.disk.stored[log].copy())
        else:
            node.copying.discard(log)

    def _put(self, node: SimNode, process: ClusterNode, source: int, log: int, copied: MemoryLog) -> None:
        """Has a copy take a log's place, as soon as streams miss nothing by that."""
        if node.process is not process:
            return
        wanted = process.active is None and process.standby.active == source and log in process.standby.copies_needed()
        assert node.courier is not None
        if wanted and not node.courier.taking.may_put(node.clock(self.now), log, copied.begin):
            self.later(0.2, node, lambda: self._put(node, process, source, log, copied))
            return
        node.copying.discard(log)
        if wanted:
            self.count("copy", f"of log {log} from {source} to {node.number}")
            node.disk.stored[log] = copied
            node.courier.watch(log, copied)
            process.standby.copied(node.clock(self.now), log, copied)

    def _new_node(self, number: int) -> SimNode:
        return SimNode(number, self._new_disk(number), self.chance.random() * 1000, 0.98 + self.chance.random() * 0.04)

    def _new_disk(self, number: int) -> MemoryNode:
        return MemoryNode(self.chance.randrange(1 << 30) * 10 + number, {log: MemoryLog() for log in self.replicas})
