"""One history of a cluster by its seed: writers, faults, what holds all along, and that all is well in the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kits.cluster.memory_checkpoints import STREAMS, sums_of
from kits.cluster.memory_logs import MemoryLog

from penstock.common.errors import InvalidStatementError, StorageError
from penstock.mnode.cluster.active_node import ActiveNode
from penstock.mnode.cluster.cluster_messages import CATALOG_LOG
from penstock.mnode.cluster.cluster_node import ClusterNode
from penstock.mnode.cluster.node_role import Role
from penstock.mnode.cluster.synchronous_set import LogReplicas
from simulation.nodes.cluster_world import ZOOKEEPER, ClusterFailure, ClusterWorld, SimNode

_FAULTS_S = 25.0
_HEAL_S = 60.0


@dataclass(frozen=True, slots=True)
class ClusterOutcome:
    """What became of a seed; `problem` is None if all was well."""

    seed: int
    problem: str | None
    events: int
    acknowledged: int
    counts: dict[str, int]
    trace: tuple[str, ...]


def run_clusters(seeds: Iterable[int]) -> list[ClusterOutcome]:
    """Plays histories one after the other."""
    return [run_cluster(seed) for seed in seeds]


def run_cluster(seed: int) -> ClusterOutcome:
    """Plays one history."""
    run = ClusterRun(seed)
    problem = None
    try:
        run.play()
    except Exception as error:  # noqa: BLE001 - any error at all is a finding
        problem = f"{type(error).__name__}: {error}"
    world = run.world
    return ClusterOutcome(seed, problem, world.events, sum(map(len, run.truth.values())), dict(world.counts),
                          tuple(world.trace))


class ClusterRun:
    """A history. `truth`: by log, what each acknowledged version says, of logs with two replicas or more."""

    def __init__(self, seed: int) -> None:
        world = self.world = ClusterWorld(seed, range(1, 4), {})
        chance = self.chance = world.chance
        everywhere = chance.random() < 0.5
        level = chance.choice((1, 2, None))
        for log in range(1, 4):
            world.replicas[log] = LogReplicas(
                chance.choice((2, 3) if everywhere else (1, 2, 3)), level or chance.choice((1, 2)),
                chance.random() < 0.3)
        most = max(one.replicas for one in world.replicas.values())
        world.replicas[CATALOG_LOG] = LogReplicas(most, level or 2)
        for node in world.nodes.values():
            node.disk.stored = {log: MemoryLog() for log in world.replicas}
        self.truth: dict[int, dict[int, int]] = {log: {} for log in world.replicas}
        self._payload = 0
        self._epochs: dict[int, ClusterNode] = {}
        self._bounds: dict[tuple[int, int], int] = {}
        self._last_epoch = 0
        self._begun: set[int] = set()
        self._forced = False
        world.after_poll = self._look_at

    def play(self) -> None:
        """Faults for a while, then none, and a cluster that is whole again."""
        world = self.world
        for node in world.nodes.values():
            world.later(self.chance.random() * 2, None, lambda node=node: world.start(node))
        world.later(1.0, None, self._write)
        world.later(3.0 + self.chance.random() * 3, None, self._fault)
        world.run_until(_FAULTS_S)
        self._heal()
        end = world.now + _HEAL_S
        while world.now < end and not self._is_whole():
            world.run_until(world.now + 1.0)
            self._check_copies()
            self._promote_if_nobody_may()
        if not self._is_whole():
            raise ClusterFailure(f"not whole again after {_HEAL_S} s: {self._state()}")
        self._check_copies()

    # --- load ----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        world = self.world
        world.later(0.01 + self.chance.random() * 0.1, None, self._write)
        for node in world.nodes.values():
            process = node.process
            if process is None or node.paused_until > world.now or not process.may_write(node.clock(world.now)):
                continue
            number = self.chance.choice(list(world.replicas))
            log = node.disk.stored[number]
            try:
                for _ in range(self.chance.randint(1, 4)):
                    self._payload += 1
                    version = log.write(self._payload)
            except StorageError:
                continue
            node.waits.add(node.clock(world.now), number, version)
            world.poll_soon(node)

    def _look_at(self, node: SimNode) -> None:
        process, now = node.process, node.clock(self.world.now)
        if process is None or process.active is None:
            if len(node.waits):
                node.waits.end("it follows")
            if process is not None:
                self._keep_less(node)
            return
        active = process.active
        # Who stood still between hearing of its tenure and this is active no more, and others may have been since.
        if active.epoch not in self._begun and process.role.may_acknowledge(now):
            self._begin(node, active.epoch)
        for number, log in node.disk.stored.items():
            if self.chance.random() < 0.7 and log.synced < log.written:
                try:
                    log.sync()
                except StorageError:
                    self.world.count("refused sync")
            self._note_acknowledged(node, process, number, active.acknowledged.get(number, 0))
            if self.chance.random() < 0.01 and log.acknowledged > log.floor:
                self._flush(node, active.kept_from(number), number)
        if self.chance.random() < 0.02 and node.courier is not None:
            node.courier.checkpoint()
        self._check_beliefs(active)
        for told in node.waits.poll(now, active.acknowledged, active.missing):
            self.world.counts["acknowledged" if told.error is None else "timed out"] += 1

    def _flush(self, node: SimNode, kept_from: int | None, number: int) -> None:
        log = node.disk.stored[number]
        assert node.courier is not None
        log.flush(self.chance.randint(log.floor, log.acknowledged))
        pinned = log.floor if kept_from is None or self.chance.random() < 0.1 else min(log.floor, kept_from - 1)
        log.drop_until(min(pinned, node.courier.needed(number)))

    def _keep_less(self, node: SimNode) -> None:
        """Has a standby flush, and cut its logs, now and then."""
        for number, log in node.disk.stored.items():
            if self.chance.random() < 0.005 and log.acknowledged > log.floor:
                self._flush(node, None, number)

    # --- what must hold ------------------------------------------------------------------------------------------

    def _begin(self, node: SimNode, epoch: int) -> None:
        """A tenure begins: the node has all that was acknowledged, unless somebody has forced it."""
        self._begun.add(epoch)
        self.world.count("tenure", f"of node {node.number}, epoch {epoch}")
        for number, truth in self.truth.items():
            log = node.disk.stored[number]
            if self._forced:
                for version in [one for one, payload in truth.items()
                                if one > log.written or log.payload(one) != payload]:
                    del truth[version]
            lost = [version for version, payload in truth.items()
                    if version > log.written or log.payload(version) != payload]
            if lost:
                raise ClusterFailure(f"node {node.number} is active in epoch {epoch} without acknowledged records "
                                     f"{lost[:5]} of log {number}, which it has up to {log.written}")
        self._check_checkpoints(node, epoch)
        self._forced = False

    def _check_checkpoints(self, node: SimNode, epoch: int) -> None:
        """Streams go on where the node became active: from what its own logs say, with all that comes behind."""
        logs = node.disk.stored
        for stream, read in STREAMS.items():
            made = node.checkpoints.get(stream)
            versions = dict.fromkeys(read, 0) if made is None else dict(made.copy.versions)
            if any(version > logs[log].written for log, version in versions.items()):
                raise ClusterFailure(f"node {node.number} is active in epoch {epoch} with {made}, which has more than "
                                     f"its logs")
            if made is not None and sums_of(logs, versions) != made.pieces:
                raise ClusterFailure(f"node {node.number} is active in epoch {epoch} with {made}, which isn't what its "
                                     f"logs say: {sums_of(logs, versions)}")
            replicated = all(self.world.replicas[log].replicas > 1 for log in read)
            if replicated and not self._forced and any(
                    version + 1 < logs[log].begin for log, version in versions.items()):
                raise ClusterFailure(f"node {node.number} is active in epoch {epoch} with {made}, and logs that begin "
                                     f"at {[logs[log].begin for log in read]}")

    def _note_acknowledged(self, node: SimNode, process: ClusterNode, number: int, acknowledged: int) -> None:
        """What a node acknowledges was never said otherwise; no two do so in one epoch, none after a later one."""
        assert process.active is not None
        epoch, log = process.active.epoch, node.disk.stored[number]
        before = self._bounds.get((epoch, number), 0)
        if acknowledged <= before:
            return
        self._bounds[epoch, number] = acknowledged
        if self._epochs.setdefault(epoch, process) is not process:
            raise ClusterFailure(f"two processes acknowledge in epoch {epoch}")
        if epoch < self._last_epoch:
            raise ClusterFailure(f"node {node.number} acknowledges in epoch {epoch} after {self._last_epoch}")
        self._last_epoch = epoch
        if self.world.replicas[number].replicas > 1:
            truth = self.truth[number]
            for version in range(before + 1, acknowledged + 1):
                if truth.setdefault(version, log.payload(version)) != log.payload(version):
                    raise ClusterFailure(f"version {version} of log {number} is acknowledged twice, as two things")

    def _check_beliefs(self, active: ActiveNode) -> None:
        """What the active counts as copied is on the standby's disk, while that lives the same life in the same epoch.

        Where only synced records count, a life outlasts a power cut, which what is written may not.
        """
        some_count_unsynced = any(one.wal_level == 1 for one in self.world.replicas.values())
        for life, progress in active.copied().items():
            node = self.world.nodes[life.node]
            if node.life == life and node.disk.largest_epoch <= active.epoch:
                for number, one in progress.items():
                    log = node.disk.stored[number]
                    if (one.written > log.written and some_count_unsynced) or one.synced > log.synced:
                        raise ClusterFailure(f"node {active.life.node} believes that {life} has log {number} up to "
                                             f"{one}, it has it up to {log.written}, {log.synced}")

    def _check_copies(self) -> None:
        """What may be read anywhere is what was acknowledged."""
        for node in self.world.nodes.values():
            for number, log in node.disk.stored.items():
                truth = self.truth[number]
                if self.world.replicas[number].replicas > 1:
                    for version in range(1, log.acknowledged + 1):
                        if truth.get(version, log.payload(version)) != log.payload(version):
                            raise ClusterFailure(f"readers of log {number} on node {node.number} see something else "
                                                 f"in version {version} than was acknowledged")

    def _is_whole(self) -> bool:
        """Tells whether all nodes are up and level, one is active, and what is written is acknowledged."""
        world = self.world
        active = [node for node in world.nodes.values() if node.process is not None and node.process.active is not None]
        if len(active) != 1 or any(node.process is None for node in world.nodes.values()):
            return False
        process = active[0].process
        assert process is not None
        assert process.active is not None
        size = max(one.replicas for one in world.replicas.values())
        if len(process.active.members.current.members) != size or process.role.role is not Role.ACTIVE:
            return False
        return all(node.disk.stored[log].written >= active[0].disk.stored[log].written - 8
                   and node.disk.stored[log].acknowledged >= active[0].disk.stored[log].acknowledged - 8
                   and process.active.acknowledged.get(log, 0) >= active[0].disk.stored[log].written - 8
                   for node in world.nodes.values() for log in world.replicas)

    def _state(self) -> str:
        return "; ".join(f"{node.number}: {self._state_of(node)}" for node in self.world.nodes.values())

    @staticmethod
    def _state_of(node: SimNode) -> str:
        if node.process is None:
            return "down"
        phases = {log: one.phase.name for log, one in node.process.standby.logs.items()}
        return f"{node.process.role.role.value}, " + ", ".join(
            f"{log} {one.written}/{one.acknowledged} {phases.get(log)}" for log, one in node.disk.stored.items())

    # --- faults --------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        world, chance = self.world, self.chance
        if world.now > _FAULTS_S - 2:
            return
        world.later(0.2 + chance.expovariate(0.5), None, self._fault)
        node = world.nodes[chance.choice(list(world.nodes))]
        seconds = chance.choice((0.3, 1.0, 3.0, 8.0))
        match chance.choice(("kill", "kill", "power", "disk", "pause", "pause", "cut", "cut", "one way", "zookeeper",
                             "refuse", "switchover", "switchover", "alter")):
            case "kill":
                world.count("kill", f"of node {node.number}")
                world.kill(node)
                world.later(seconds, None, lambda: world.start(node))
            case "power" if self._may_lose(node) or all(one.wal_level == 2 for one in world.replicas.values()):
                world.count("power cut", f"of node {node.number}")
                world.lose_power(node)
                world.later(seconds, None, lambda: world.start(node))
            case "disk" if self._may_lose(node):
                world.count("lost disk", f"of node {node.number}")
                world.lose_disk(node)
                world.later(seconds, None, lambda: world.start(node))
            case "pause":
                world.count("pause", f"of node {node.number} for {seconds} s")
                node.paused_until = world.now + seconds
            case "cut" | "one way" as kind:
                self._cut(kind, node, seconds)
            case "zookeeper" if not world.zookeeper.away:
                world.count("zookeeper away", f"for {seconds} s")
                world.zookeeper.away = True
                world.later(seconds, None, lambda: world.zookeeper.come_back(world.now))
            case "refuse":
                world.count("refused writes", f"on node {node.number}")
                chance.choice(list(node.disk.stored.values())).refusals = chance.randint(1, 3)
            case "switchover":
                self._switchover(node)
            case "alter":
                self._alter()

    def _cut(self, kind: str, node: SimNode, seconds: float) -> None:
        others = [number for number in (*self.world.nodes, ZOOKEEPER) if number != node.number]
        if self.chance.random() < 0.6:
            others = [self.chance.choice(others)]
        links = {(node.number, other) for other in others}
        links = links | {(b, a) for a, b in links} if kind == "cut" else self.chance.choice(
            (links, {(b, a) for a, b in links}))
        self.world.count("partition" if kind == "cut" else "one-way partition", f"{sorted(links)} for {seconds} s")
        self.world.cut |= links
        self.world.later(seconds, None, lambda: self.world.cut.difference_update(links))

    def _switchover(self, to: SimNode) -> None:
        for node in self.world.nodes.values():
            if node.process is not None and node.process.active is not None and node is not to:
                self.world.count("switchover", f"from {node.number} to {to.number}")
                try:
                    node.process.switchover(node.clock(self.world.now), to.number)
                except InvalidStatementError as error:
                    self.world.count("refused switchover", error.message)

    def _alter(self) -> None:
        replicas = self.world.replicas
        log = self.chance.choice([log for log, one in replicas.items() if one.replicas > 1] or [CATALOG_LOG])
        if replicas[log].replicas > 1:
            replicas[log] = replace(replicas[log], replicas=self.chance.choice((2, 3)),
                                    with_fewer=self.chance.random() < 0.3)
            self.world.count("alter", f"log {log} to {replicas[log]}")

    def _may_lose(self, node: SimNode) -> bool:
        """Tells whether another node would be left that may take over: the last one is never lost here."""
        record = self.world.zookeeper.registry.record
        return record is not None and any(other is not node and record.synchronous.may_take_over(other.life)
                                          for other in self.world.nodes.values())

    def _heal(self) -> None:
        world = self.world
        world.tell("all faults end")
        world.cut.clear()
        world.bad_network = False
        if world.zookeeper.away:
            world.zookeeper.come_back(world.now)
        for node in world.nodes.values():
            node.paused_until = world.now
            for log in node.disk.stored.values():
                log.refusals = 0
            world.start(node)

    def _promote_if_nobody_may(self) -> None:
        """Does what a person would: if ZooKeeper was told, before its sender died, that nobody else has all."""
        world, registry = self.world, self.world.zookeeper.registry
        record = registry.record
        if record is None or registry.lease is not None or any(
                record.synchronous.may_take_over(node.life) for node in world.nodes.values()):
            return
        longest = max(world.nodes.values(), key=lambda node: sum(log.written for log in node.disk.stored.values()))
        if longest.process is not None and not self._forced:
            world.count("promotion", f"of node {longest.number}")
            self._forced = True
            longest.process.role.promote(longest.clock(world.now))
