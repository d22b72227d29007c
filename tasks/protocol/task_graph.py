"""The task graph of a stream or an ingest: its tasks, where they run, and what they send each other. Plain data.

Made by `mnode.task_graph`; deployment, EXPLAIN, SHOW, checkpoints and SPLIT VGROUP read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from penstock.tasks.protocol.messages import OperatorKind, TaskId
from penstock.tasks.protocol.worker_nodes import Nodes, WorkerNode

TaskKind = Literal["source", "agg", "join", "sink", "ingest"]
Work = Literal["rows", "arrivals", "clock", "periods", "left side", "right side", "changes", "windows", "row windows",
               "join", "results", "refresh", "messages"]
_OPERATORS: dict[TaskKind, OperatorKind] = {
    "source": "source", "ingest": "source", "agg": "agg", "join": "agg", "sink": "sink"}


@dataclass(frozen=True, slots=True)
class TaskNode:
    """A task. `index`: its place among the tasks with its operator.

    `vgroup_id`: the vnode whose log a source task reads, or that the task is beside; None for tasks of an ingest.
    `work`, of source tasks: rows as they come, by their arrival, by the clock, no rows but times, rows of a side of a
    join, or only that there are changes; of agg tasks: windows by time, or such as rows define; of sink tasks: results
    that come, or an answer to be compared. `reads`: which of a query's sources a source task follows.
    """

    kind: TaskKind
    index: int
    vgroup_id: int | None
    work: Work
    reads: int = 0

    @property
    def operator(self) -> OperatorKind:
        return _OPERATORS[self.kind]

    @property
    def name(self) -> str:
        return f"{self.operator}-{self.index}"

    def id(self, stream_id: int) -> TaskId:
        return TaskId(stream_id, self.operator, self.index)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Who sends to whom, by places in `TaskGraph.tasks`.

    forward: each sender to the receiver at its own place; hash: each to all, a group's rows to the one that its hash
    tells; one: all to the only receiver.
    """

    kind: Literal["forward", "hash", "one"]
    senders: tuple[int, ...]
    receivers: tuple[int, ...]

    def pairs(self) -> Iterable[tuple[int, int]]:
        """Returns (sender, receiver) for each channel, by sender."""
        if self.kind == "forward":
            return zip(self.senders, self.receivers, strict=True)
        return ((sender, receiver) for sender in self.senders for receiver in self.receivers)


@dataclass(frozen=True, slots=True)
class TaskEdges:
    """A task of a stream with the tasks it receives from and sends to."""

    node: TaskNode
    task: TaskId
    upstream: tuple[TaskId, ...]
    downstream: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """The tasks in the order in which they are told, the channels between them, and what they run on."""

    nodes: Nodes
    tasks: tuple[TaskNode, ...]
    exchanges: tuple[Exchange, ...] = ()

    @property
    def vgroup_ids(self) -> tuple[int, ...]:
        """The vnodes that tasks are on: those of the source, or of a join's left side."""
        return self.nodes.vgroup_ids

    @property
    def right_vgroup_ids(self) -> tuple[int, ...]:
        """The vnodes of a join's right side."""
        return self._vnodes_of(task for task in self.tasks if task.work == "right side")

    @property
    def source_vgroup_ids(self) -> tuple[int, ...]:
        """The vnode that each source task reads, by its index; empty for an ingest."""
        return self._vnodes_of(task for task in self.tasks if task.kind == "source")

    def read_by(self, index: int) -> int:
        """Returns which of the plan's sources a source task reads."""
        (node,) = (task for task in self.tasks if task.operator == "source" and task.index == index)
        return int(node.work == "right side") or node.reads

    @property
    def read_vgroup_ids(self) -> tuple[int, ...]:
        """The vnodes that are read, each once."""
        return tuple(dict.fromkeys(self.source_vgroup_ids))

    @staticmethod
    def _vnodes_of(tasks: Iterable[TaskNode]) -> tuple[int, ...]:
        """Returns the vnodes of tasks of one operator by their indexes: chains are told vnode by vnode."""
        return tuple(task.vgroup_id for task in sorted(tasks, key=lambda task: task.index)
                     if task.vgroup_id is not None)

    def edges(self, stream_id: int) -> tuple[TaskEdges, ...]:
        """Returns the tasks with their channels."""
        upstream: list[list[TaskId]] = [[] for _ in self.tasks]
        downstream: list[list[TaskId]] = [[] for _ in self.tasks]
        ids = [task.id(stream_id) for task in self.tasks]
        for exchange in self.exchanges:
            for sender, receiver in exchange.pairs():
                upstream[receiver].append(ids[sender])
                downstream[sender].append(ids[receiver])
        return tuple(TaskEdges(task, ids[place], tuple(upstream[place]), tuple(downstream[place]))
                     for place, task in enumerate(self.tasks))

    def inputs_of(self, task: TaskNode) -> int:
        """Returns how many tasks send to a task."""
        place = self.tasks.index(task)
        return sum(receiver == place for exchange in self.exchanges for _, receiver in exchange.pairs())

    def worker_of(self, task: TaskId) -> int:
        """Returns the place of the worker that hosts a task."""
        return self.nodes.worker_of(task)

    def node_of(self, task: TaskNode) -> WorkerNode:
        """Returns the vnode or the snode that a task is on."""
        return self.nodes.node_of(self.nodes.worker_of(task.id(0)))

    def queue_counts(self) -> tuple[int, ...]:
        """Returns how many queues there are on each worker: a task that sends to nobody has one, others have two."""
        counts = [0] * self.nodes.workers
        for edge in self.edges(0):
            counts[self.worker_of(edge.task)] += 2 if edge.downstream else 1
        return tuple(counts)

    def placed(self, snode_ids: tuple[int, ...]) -> TaskGraph:
        """Returns the same graph with these snodes.

        They are for agg tasks that several source tasks send to, each for one of them at least; others stay beside
        their source task.
        """
        movable = {receiver for exchange in self.exchanges if exchange.kind != "forward" and len(exchange.senders) > 1
                   for receiver in exchange.receivers if self.tasks[receiver].operator == "agg"}
        return replace(self, nodes=Nodes(self.nodes.vgroup_ids, snode_ids[:len(movable)]))
