"""From a plan and the vnodes to the task graph: which tasks there are, and who sends what to whom. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from penstock.planner.ingest import IngestPlan
from penstock.planner.stream import JoinPlan, StreamPlan
from penstock.tasks.graph import Exchange, TaskGraph, TaskKind, TaskNode, Work
from penstock.tasks.nodes import Nodes


def task_graph(
    plan: StreamPlan | IngestPlan, vgroup_ids: tuple[int, ...], snode_ids: tuple[int, ...] = ()
) -> TaskGraph:
    """Returns the task graph of a stream over its source's vnodes, or that of an ingest.

    A task of an ingest writes what it reads, and has nobody beside it. `snode_ids`: where agg tasks may be.
    """
    nodes = Nodes(vgroup_ids)
    if isinstance(plan, IngestPlan):
        return TaskGraph(nodes, tuple(TaskNode("ingest", n, None, "messages") for n in range(plan.tasks)))
    if plan.join is not None:
        tasks, exchanges = _join(plan, plan.join, vgroup_ids)
    elif plan.agg is None:
        tasks, exchanges = _chains(
            [_level("source", vgroup_ids, _reading(plan)), _level("sink", vgroup_ids, "results")])
    else:
        windows: Work = "windows" if plan.source.row_window is None else "row windows"
        sources = _level("source", vgroup_ids, _reading(plan))
        if plan.colocated or len(vgroup_ids) == 1:
            tasks, exchanges = _chains(
                [sources, _level("agg", vgroup_ids, windows), _level("sink", vgroup_ids, "results")])
        else:
            homes = vgroup_ids if plan.keys else vgroup_ids[:1]
            tasks, exchanges = _exchanged(sources, _level("agg", homes, windows), _level("sink", homes, "results"))
    return TaskGraph(nodes, tasks, exchanges).placed(snode_ids)


def _join(
    plan: StreamPlan, join: JoinPlan, vgroup_ids: tuple[int, ...]
) -> tuple[tuple[TaskNode, ...], tuple[Exchange, ...]]:
    """Source tasks of the left side's vnodes come before those of the right side's."""
    vnodes = len(vgroup_ids)
    sources = [*_level("source", vgroup_ids, "left side"),
               *_level("source", join.right_vgroup_ids, "right side", vnodes)]
    joins = _level("join", vgroup_ids[:1] if join.single else vgroup_ids, "join")
    sinks = _level("sink", vgroup_ids[:1] if join.single and not plan.keys else vgroup_ids, "results")
    if join.meeting == "vnode":
        return _chains([sources[:vnodes], sources[vnodes:], joins, sinks])
    return _exchanged(sources, joins, sinks)


def _reading(plan: StreamPlan) -> Work:
    if plan.force is not None:
        return "clock"
    return "rows" if plan.time.clock == "event" else "arrivals"


def _level(kind: TaskKind, vgroup_ids: Sequence[int], work: Work, first: int = 0) -> list[TaskNode]:
    return [TaskNode(kind, first + n, vgroup_id, work) for n, vgroup_id in enumerate(vgroup_ids)]


def _chains(levels: Sequence[Sequence[TaskNode]]) -> tuple[tuple[TaskNode, ...], tuple[Exchange, ...]]:
    """Returns a chain of tasks on each vnode; source tasks send to the first task behind them."""
    tasks = tuple(task for chain in zip(*levels, strict=True) for task in chain)
    width, places = len(levels), range(len(levels[0]))
    sources = sum(level[0].kind == "source" for level in levels)
    steps = [(sender, max(sender + 1, sources)) for sender in range(width - 1)]
    return tasks, tuple(
        Exchange("forward", tuple(n * width + sender for n in places), tuple(n * width + receiver for n in places))
        for sender, receiver in steps)


def _exchanged(*levels: Sequence[TaskNode]) -> tuple[tuple[TaskNode, ...], tuple[Exchange, ...]]:
    """Returns the tasks of the levels, each of which may send to all of the next."""
    tasks = tuple(task for level in levels for task in level)
    places = [tuple(tasks.index(task) for task in level) for level in levels]
    return tasks, tuple(Exchange("one" if len(receivers) == 1 else "hash", senders, receivers)
                        for senders, receivers in pairwise(places))
