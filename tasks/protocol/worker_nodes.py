"""Which worker of its group hosts a task: those of the vnodes come first, then those of the snodes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.tasks.protocol.messages import TaskId


@dataclass(frozen=True, slots=True)
class WorkerNode:
    """What a worker stands for: a vnode, by its vgroup's id, or an snode."""

    type: Literal["vnode", "snode"]
    id: int

    def __str__(self) -> str:
        return f"{self.type} {self.id}"


@dataclass(frozen=True, slots=True)
class Nodes:
    """The vnodes that a stream reads, and the snodes that its agg tasks are on: one worker for each, in this order.

    Without snodes each task is on the worker of the vnode whose place in the database is its index. Source tasks of a
    join's right side begin anew with the first worker: those of one database are on the workers of its vnodes.
    """

    vgroup_ids: tuple[int, ...]
    snode_ids: tuple[int, ...] = ()

    @property
    def workers(self) -> int:
        return len(self.vgroup_ids) + len(self.snode_ids)

    def worker_of(self, task: TaskId) -> int:
        """Returns the place of the worker that hosts a task."""
        if task.operator == "agg" and self.snode_ids:
            return len(self.vgroup_ids) + task.index % len(self.snode_ids)
        return task.index % len(self.vgroup_ids)

    def node_of(self, worker: int) -> WorkerNode:
        """Returns what the worker at a place stands for."""
        vnodes = len(self.vgroup_ids)
        if worker < vnodes:
            return WorkerNode("vnode", self.vgroup_ids[worker])
        return WorkerNode("snode", self.snode_ids[worker - vnodes])
