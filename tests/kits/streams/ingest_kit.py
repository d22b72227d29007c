"""A sandbox with brokers in memory, for tests of ingests."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.common.clock import Clock
from penstock.common.errors import PenstockError
from penstock.common.fs import OsFs
from penstock.mnode.admin.sandbox import Sandbox
from penstock.tasks.external.connectors.incoming_messages import MessageBatch, MessagePosition, Positions
from penstock.tasks.protocol.deployment import IngestDeployment
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalReader
from penstock.wal.record import RowsRecord


@dataclass
class FakeBroker:
    """Partitions of one topic; those who read get them in pieces of `piece` messages."""

    partitions: int = 1
    topic: str = "t"
    replays: bool = True
    answers: bool = True
    piece: int = 3
    problem: PenstockError | None = None
    refusal: PenstockError | None = None
    log: dict[int, list[bytes]] = field(default_factory=dict)
    keys: dict[tuple[int, int], bytes] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    held: list[bool] = field(default_factory=list)
    committed: dict[str, MessagePosition] = field(default_factory=dict)
    opened: list[Positions] = field(default_factory=list)

    def send(self, value: bytes, partition: int = 0, key: bytes | None = None) -> None:
        messages = self.log.setdefault(partition, [])
        if key is not None:
            self.keys[partition, len(messages)] = key
        messages.append(value)

    def consumer(
        self, deployment: IngestDeployment, index: int, positions: Positions, clock: Clock, wake: Callable[[], None]
    ) -> FakeConsumer:
        self.opened.append(positions)
        if self.refusal is not None:
            raise self.refusal
        return FakeConsumer(self, deployment, index, positions, clock)


class FakeConsumer:
    def __init__(
        self, broker: FakeBroker, deployment: IngestDeployment, index: int, positions: Positions, clock: Clock
    ) -> None:
        self.replays = broker.replays
        self._broker = broker
        self._clock = clock
        tasks = deployment.plan.tasks
        own = [number for number in range(broker.partitions) if number % tasks == index]
        start = {number: len(broker.log.get(number, ())) if deployment.plan.from_latest else 0 for number in own}
        self._begun = {self._name(number): MessagePosition("", offset) for number, offset in start.items()}
        self._next = {number: positions.get(self._name(number), MessagePosition("", start[number])).offset
                      for number in own}
        self._receipts: deque[int] = deque()

    def _name(self, number: int) -> str:
        return f"{self._broker.topic}/{number}"

    def poll(self, messages: int) -> Sequence[MessageBatch]:
        broker, batches = self._broker, []
        if broker.problem is not None:
            return ()
        for number, first in self._next.items():
            values = broker.log.get(number, [])[first:first + broker.piece]
            places = [place for place in range(first, first + len(values))
                      if broker.replays or place not in broker.acknowledged]
            self._next[number] = first + len(values)
            if places:
                batches.append(MessageBatch(
                    self._name(number), "", places, [broker.log[number][place] for place in places],
                    [self._clock.now_ms()] * len(places), broker.topic,
                    [broker.keys.get((number, place)) for place in places], () if broker.replays else places))
        return batches

    def begun(self) -> Positions:
        return self._begun

    def hold(self, held: bool) -> None:
        self._broker.held.append(held)

    def done(self, batch: MessageBatch) -> None:
        self._broker.acknowledged.update(batch.receipts)

    def committed(self, positions: Positions) -> None:
        self._broker.committed.update(positions)

    def lag(self) -> int | None:
        return sum(len(self._broker.log.get(number, ())) - place for number, place in self._next.items())

    def reached(self) -> bool:
        return self._broker.answers

    def problem(self) -> PenstockError | None:
        return self._broker.problem

    def close(self) -> None: ...


SUPER_TABLE = "CREATE STABLE p.meters (ts TIMESTAMP, v INT, note VARCHAR(16)) TAGS (site VARCHAR(8))"


def sandbox(broker: FakeBroker, vgroups: int = 2, config: dict[str, Any] | None = None, **more: Any) -> Sandbox:
    """Returns a sandbox with a super table and a connection to the broker."""
    box = Sandbox(config=config, consumers=broker.consumer, **more)
    box.execute(f"CREATE DATABASE p VGROUPS {vgroups}")
    box.execute("USE p")
    box.execute(SUPER_TABLE)
    box.execute("CREATE CONNECTION k TYPE kafka WITH (servers='127.0.0.1:1')")
    return box


def gone_through(box: Sandbox, what: str, directory: Path, broker: FakeBroker | None = None) -> Sandbox:
    """Has an engine go through one thing that may happen to it: run, step, checkpoint, kill (of tasks), flush, crash.

    Returns it, or the one that comes after it in its directory, which reads from `broker`, if that is given.
    """
    match what:
        case "run":
            box.run()
        case "step":
            box.streams.step()
        case "checkpoint":
            box.checkpoint()
        case "kill":
            box.kill()
        case "flush":
            box.engine.flush()
        case "crash":
            box.engine.abandon()
            box.streams.close()
            box = Sandbox(directory=directory) if broker is None else Sandbox(
                directory=directory, consumers=broker.consumer)
            box.execute("USE p")
        case _:
            raise ValueError(what)
    return box


def rows(box: Sandbox, text: str) -> list[tuple[Any, ...]]:
    table = box.execute(text).table
    assert table is not None
    return [tuple(row.values()) for row in table.to_pylist()]


def connections(box: Sandbox) -> list[tuple[Any, ...]]:
    return rows(box, "SELECT state, reason FROM information_schema.ins_connections")


def state(box: Sandbox, columns: str = "state, reason") -> tuple[Any, ...]:
    return rows(box, f"SELECT {columns} FROM information_schema.ins_ingests")[0]


def logged(box: Sandbox) -> Counter[int]:
    """Returns how often each value is in the logs of all vnodes."""
    found: Counter[int] = Counter()
    for database in box.engine.catalog.databases():
        for vgroup_id in database.vgroup_ids:
            first = box.engine.storage.vnode(vgroup_id).reader.oldest_version()
            reader = WalReader(LogFiles(box.engine.paths.wal(vgroup_id), OsFs()), first)
            while records := reader.read():
                for record in records:
                    if isinstance(record, RowsRecord):
                        found.update(record.batch.column("v").to_pylist())
            reader.close()
    return found
