"""From a deployment to the tasks that one worker hosts: which there are, and how they are connected."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.planner.ingest import IngestPlan
from penstock.planner.stream import JoinPlan, StreamPlan
from penstock.tasks.arrival_source import ArrivalSourceTask
from penstock.tasks.force_source import ForceSourceTask
from penstock.tasks.ingest_task import IngestTask
from penstock.tasks.join_source import JoinSourceTask
from penstock.tasks.join_task import JoinTask
from penstock.tasks.messages import TaskId
from penstock.tasks.nodes import Nodes
from penstock.tasks.segment_agg import SegmentAggTask
from penstock.tasks.sink import SinkTask
from penstock.tasks.source import SourceTask
from penstock.tasks.task import Deployment, IngestDeployment, StreamTask, TaskEnvironment
from penstock.tasks.window_agg import WindowAggTask


@dataclass(frozen=True, slots=True)
class TaskEdges:
    """A task of the DAG with the tasks it receives from and sends to."""

    task: TaskId
    upstream: tuple[TaskId, ...]
    downstream: tuple[TaskId, ...]


def task_edges(plan: StreamPlan | IngestPlan, stream_id: int, vnodes: int) -> tuple[TaskEdges, ...]:
    """Returns the task DAG of a stream over `vnodes` vnodes (design: shapes of the task DAG), or that of an ingest.

    A task of an ingest writes what it reads, and has nobody beside it.
    """
    if isinstance(plan, IngestPlan):
        return tuple(TaskEdges(TaskId(stream_id, "source", n), (), ()) for n in range(plan.tasks))
    if plan.join is not None:
        return _join_edges(plan, plan.join, stream_id, vnodes)
    sources = [TaskId(stream_id, "source", n) for n in range(vnodes)]
    sinks = [TaskId(stream_id, "sink", n) for n in range(vnodes)]
    edges: list[TaskEdges] = []
    if plan.agg is None:
        for source, sink in zip(sources, sinks, strict=True):
            edges += [TaskEdges(source, (), (sink,)), TaskEdges(sink, (source,), ())]
        return tuple(edges)
    if plan.colocated or vnodes == 1:
        for source, sink in zip(sources, sinks, strict=True):
            agg = TaskId(stream_id, "agg", source.index)
            edges += [TaskEdges(source, (), (agg,)), TaskEdges(agg, (source,), (sink,)), TaskEdges(sink, (agg,), ())]
        return tuple(edges)
    grouped = any(plan.keys)
    aggs = [TaskId(stream_id, "agg", n) for n in range(vnodes if grouped else 1)]
    if not grouped:
        sinks = sinks[:1]
    edges += [TaskEdges(source, (), tuple(aggs)) for source in sources]
    edges += [TaskEdges(agg, tuple(sources), tuple(sinks)) for agg in aggs]
    edges += [TaskEdges(sink, tuple(aggs), ()) for sink in sinks]
    return tuple(edges)


def _join_edges(plan: StreamPlan, join: JoinPlan, stream_id: int, vnodes: int) -> tuple[TaskEdges, ...]:
    """Source tasks of the left side's vnodes come before those of the right side's."""
    sources = [TaskId(stream_id, "source", n) for n in range(vnodes + len(join.right_vgroup_ids))]
    tasks = [TaskId(stream_id, "agg", n) for n in range(1 if join.single else vnodes)]
    sinks = [TaskId(stream_id, "sink", n) for n in range(1 if join.single and not plan.keys else vnodes)]
    if join.meeting == "vnode":
        edges = []
        for left, right, task, sink in zip(sources[:vnodes], sources[vnodes:], tasks, sinks, strict=True):
            edges += [TaskEdges(left, (), (task,)), TaskEdges(right, (), (task,)),
                      TaskEdges(task, (left, right), (sink,)), TaskEdges(sink, (task,), ())]
        return tuple(edges)
    return (*(TaskEdges(source, (), tuple(tasks)) for source in sources),
            *(TaskEdges(task, tuple(sources), tuple(sinks)) for task in tasks),
            *(TaskEdges(sink, tuple(tasks), ()) for sink in sinks))


def nodes_of(plan: StreamPlan, vgroup_ids: tuple[int, ...], snode_ids: tuple[int, ...]) -> Nodes:
    """Returns what a stream runs on, of these vnodes and snodes.

    Snodes are for agg tasks that several source tasks send to, each for one of them at least; others stay beside their
    source task.
    """
    edges = task_edges(plan, 0, len(vgroup_ids))
    apart = plan.join is None or plan.join.meeting != "vnode"
    movable = sum(edge.task.level == "agg" and len(edge.upstream) > 1 for edge in edges) if apart else 0
    return Nodes(vgroup_ids, snode_ids[:movable])


def queue_counts(edges: Iterable[TaskEdges], nodes: Nodes) -> tuple[int, ...]:
    """Returns how many queues the tasks of a DAG have on each worker: those that send to nobody one, the others two."""
    counts = [0] * nodes.workers
    for edge in edges:
        counts[nodes.worker_of(edge.task)] += 2 if edge.downstream else 1
    return tuple(counts)


def build_tasks(deployment: Deployment, index: int, environment: TaskEnvironment) -> list[StreamTask]:
    """Returns the tasks of worker `index`, upstream first, restored to the deployment's checkpoint.

    If one cannot be built, those that were are closed.
    """
    tasks: list[StreamTask] = []
    nodes = deployment.nodes
    try:
        for edges in task_edges(deployment.plan, deployment.stream_id, len(deployment.vgroup_ids)):
            if nodes.worker_of(edges.task) == index:
                tasks.append(_build(edges, deployment, environment))
    except BaseException as error:
        for task in tasks:
            task.close()
        # The task that failed to be built holds its state open, which the next attempt needs, until it is collected.
        cause: BaseException | None = error
        while cause is not None:
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__cause__ or cause.__context__
        gc.collect()
        raise
    return sorted(tasks, key=lambda task: ("source", "agg", "sink").index(task.id.level))


def _build(edges: TaskEdges, deployment: Deployment, environment: TaskEnvironment) -> StreamTask:
    index = edges.task.index
    if isinstance(deployment, IngestDeployment):
        return IngestTask(deployment, index, environment)
    match edges.task.level:
        case "source" if deployment.plan.join is not None:
            return JoinSourceTask(deployment, index, edges.downstream, environment)
        case "agg" if deployment.plan.join is not None:
            return JoinTask(deployment, index, edges.upstream, edges.downstream, environment)
        case "source" if deployment.plan.force is not None:
            return ForceSourceTask(deployment, index, edges.downstream, environment)
        case "source" if deployment.plan.time.clock != "event":
            return ArrivalSourceTask(deployment, index, edges.downstream, environment)
        case "source":
            return SourceTask(deployment, index, edges.downstream, environment)
        case "agg":
            kind = WindowAggTask if deployment.plan.source.row_window is None else SegmentAggTask
            return kind(deployment, index, edges.upstream, edges.downstream, environment)
        case "sink":
            return SinkTask(deployment, index, edges.upstream, environment)
