"""Streams into external targets for tests: connections, targets that fail when told to, and a Kafka topic in memory."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st
from kits.streams.stream_kit import StreamKit

from penstock.common.connection import ConnectionKind, OpenedConnection
from penstock.common.errors import ConnectionFailedError, StaleAttemptError
from penstock.tasks.external.connectors.kafka import Message
from penstock.tasks.external.emit.async_sink_writer import Delivery, ExternalTarget

LONG_ENOUGH_S = 120.0
MINUTE = 60_000


def opened(kind: ConnectionKind, **options: str) -> OpenedConnection:
    """Returns a connection of its kind's name."""
    return OpenedConnection(kind, kind, {"timeout": "5s", **options}, 1)


class Faults:
    """What goes wrong with the next deliveries: before, after or never; nothing once it is used up."""

    def __init__(self) -> None:
        self.coming: deque[str] = deque()

    def next(self) -> str:
        return self.coming.popleft() if self.coming else ""


class Faulty:
    """A target whose answers get lost: `before` it has done anything, or `after`."""

    def __init__(self, target: ExternalTarget, faults: Faults) -> None:
        self._target = target
        self._faults = faults

    def deliver(self, delivery: Delivery) -> None:
        fault = self._faults.next()
        if fault == "before":
            raise ConnectionFailedError("unreachable: it is away")
        self._target.deliver(delivery)
        if fault == "after":
            raise ConnectionFailedError("unreachable: its answer was lost")

    def close(self) -> None:
        self._target.close()


class Topic:
    """What readers of committed messages see of a Kafka topic, and the state of its transactions."""

    def __init__(self) -> None:
        self.committed: list[Message] = []
        self.marks: dict[str, tuple[int, str]] = {}
        self.epochs: dict[str, int] = {}

    def values(self) -> list[dict[str, Any]]:
        return [json.loads(value) for _, value, _ in self.committed]


class MemorySender:
    """A Kafka connector's `Sender` over a `Topic`: the latest one of a name fences all before it."""

    def __init__(self, topic: Topic, name: str) -> None:
        self._topic = topic
        self._name = name
        self._epoch = topic.epochs[name] = topic.epochs.get(name, 0) + 1

    def mark(self) -> tuple[int, str]:
        return self._topic.marks.get(self._name, (0, ""))

    def send(self, messages: Iterable[Message]) -> list[tuple[int, str]]:
        self._topic.committed += messages
        return []

    def send_marked(self, messages: Iterable[Message], mark: int, note: str) -> list[tuple[int, str]]:
        if self._topic.epochs[self._name] != self._epoch:
            raise StaleAttemptError("fenced")
        sent = list(messages)
        self._topic.committed += sent
        self._topic.marks[self._name] = mark, note
        return []

    def close(self) -> None:
        """Nothing is open."""


def steps(*, changes: bool) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """Draws what happens to a stream into an external target; with `changes` rows also come late, twice, and go."""
    minutes = st.integers(0, 8)
    row = st.tuples(st.integers(0, 3), minutes, st.integers(0, 9))
    kinds = [
        st.tuples(st.just("rows"), st.lists(row, min_size=1, max_size=6)),
        st.tuples(st.just("run"), st.none()),
        st.tuples(st.just("checkpoint"), st.booleans()),
        st.tuples(st.just("kill"), st.none()),
        st.tuples(st.just("faults"), st.lists(st.sampled_from(["before", "after"]), min_size=1, max_size=3)),
        st.tuples(st.just("wait"), st.sampled_from([0.6, 2.0, 40.0])),
    ]
    if changes:
        kinds.append(st.tuples(st.just("delete"), st.tuples(st.integers(0, 3), minutes, minutes)))
    return st.lists(st.one_of(kinds), min_size=1, max_size=14)


def play(kit: StreamKit, faults: Faults, drawn: list[tuple[str, Any]], *, in_order: bool) -> None:
    """Does what was drawn, then lets everything come to its end. `in_order`: times only grow."""
    number = 0
    for kind, what in drawn:
        match kind:
            case "rows":
                for table, minute, value in what:
                    number += 1
                    time = number * 7_000 if in_order else minute * MINUTE + value * 1_000
                    kit.insert([(table, time, value + number, 1.0, "n")])
            case "delete":
                table, first, last = what
                kit.delete([table], first * MINUTE, last * MINUTE)
            case "run":
                kit.run_steps(3)
            case "checkpoint" if not kit_is_stuck(kit):
                kit.checkpoint(commit=what)
            case "kill":
                kit.kill()
            case "faults":
                faults.coming.extend(what)
            case "wait":
                kit.pass_time(what)
    faults.coming.clear()
    kit.pass_time(LONG_ENOUGH_S)
    if in_order:
        for table in range(4):
            kit.insert([(table, 1_000 * MINUTE, 0, 1.0, "end")])  # closes all windows before
    kit.pass_time(LONG_ENOUGH_S)
    kit.checkpoint()
    kit.pass_time(LONG_ENOUGH_S)


def kit_is_stuck(kit: StreamKit) -> bool:
    """Whether a sink can't acknowledge a checkpoint now, because its target is away."""
    kit.run()
    return any(task.status().connection.outage_since_ms is not None for task in kit.tasks)
