"""From a plan and the vnodes to the task graph: which tasks there are, and who sends what to whom. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from penstock.planner.streams.ingest_plan import IngestPlan
from penstock.planner.task_plans.stream_plan import (
    ForcePlan,
    JoinPlan,
    PeriodPlan,
    RefreshPlan,
    RowsPlan,
    RowWindow,
    StreamPlan,
    WindowsPlan,
)
from penstock.tasks.protocol.task_graph import Exchange, TaskGraph, TaskKind, TaskNode, Work
from penstock.tasks.protocol.worker_nodes import Nodes


def task_graph(
    plan: StreamPlan | IngestPlan, vgroup_ids: tuple[int, ...], snode_ids: tuple[int, ...] = (),
    read: Sequence[Sequence[int]] = (),
) -> TaskGraph:
    """Returns the task graph of a stream over its source's vnodes, or that of an ingest.

    A task of an ingest writes what it reads, and has nobody beside it. `snode_ids`: where agg tasks may be. `read`: of
    a stream of any query, the vnodes of each of its sources.
    """
    nodes = Nodes(vgroup_ids)
    if isinstance(plan, IngestPlan):
        return TaskGraph(nodes, tuple(TaskNode("ingest", n, None, "messages") for n in range(plan.tasks)))
    match plan.computation:
        case RowsPlan():
            tasks, exchanges = _chains([_level("source", vgroup_ids, "rows"), _level("sink", vgroup_ids, "results")])
        case ForcePlan():
            tasks, exchanges = _chains([_level("source", vgroup_ids, "clock"), _level("sink", vgroup_ids, "results")])
        case PeriodPlan():
            home = vgroup_ids[:1]
            tasks, exchanges = _chains([_level("source", home, "periods"), _level("sink", home, "results")])
        case WindowsPlan(windows=windows):
            work: Work = "row windows" if isinstance(windows, RowWindow) else "windows"
            tasks, exchanges = _windows(plan, work, vgroup_ids)
        case JoinPlan() as join:
            tasks, exchanges = _join(plan, join, vgroup_ids)
        case RefreshPlan():
            followed = [(place, vgroup_id) for place, ids in enumerate(read) for vgroup_id in ids]
            sources = [TaskNode("source", n, vgroup_id, "changes", place)
                       for n, (place, vgroup_id) in enumerate(followed)]
            tasks, exchanges = _exchanged(sources, _level("sink", vgroup_ids[:1], "refresh"))
    return TaskGraph(nodes, tasks, exchanges).placed(snode_ids)


def _windows(
    plan: StreamPlan, work: Work, vgroup_ids: tuple[int, ...]
) -> tuple[tuple[TaskNode, ...], tuple[Exchange, ...]]:
    """Windows are where their groups are: on each vnode, on the vnode that a group's hash tells, or on the first."""
    sources = _level("source", vgroup_ids, "rows" if plan.policies.time.clock == "event" else "arrivals")
    if plan.grouping.colocated or len(vgroup_ids) == 1:
        return _chains([sources, _level("agg", vgroup_ids, work), _level("sink", vgroup_ids, "results")])
    homes = vgroup_ids if plan.grouping.keys else vgroup_ids[:1]
    if plan.sink.keyed:
        # Its rows lie on one vnode, wherever they are written from.
        tasks, exchanges = _exchanged(sources, _level("agg", homes, work))
        first = len(tasks)
        places = range(len(homes))
        return (*tasks, *_level("sink", homes, "results")), (*exchanges, Exchange(
            "forward", tuple(len(sources) + n for n in places), tuple(first + n for n in places)))
    return _exchanged(sources, _level("agg", homes, work), _level("sink", homes, "results"))


def _join(
    plan: StreamPlan, join: JoinPlan, vgroup_ids: tuple[int, ...]
) -> tuple[tuple[TaskNode, ...], tuple[Exchange, ...]]:
    """Source tasks of the left side's vnodes come before those of the right side's."""
    vnodes = len(vgroup_ids)
    sources = [*_level("source", vgroup_ids, "left side"),
               *_level("source", join.right_vgroup_ids, "right side", vnodes)]
    joins = _level("join", vgroup_ids[:1] if join.single else vgroup_ids, "join")
    sinks = _level("sink", vgroup_ids[:1] if join.single and not plan.grouping.keys else vgroup_ids, "results")
    if join.distribution == "vnode":
        return _chains([sources[:vnodes], sources[vnodes:], joins, sinks])
    return _exchanged(sources, joins, sinks)


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
