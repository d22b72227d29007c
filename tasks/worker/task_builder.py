"""From a deployment to the tasks that one worker hosts."""

from __future__ import annotations

import gc
import traceback

from penstock.common.errors import InternalError
from penstock.tasks.ingest.ingest_task import IngestTask
from penstock.tasks.join.join_source import JoinSourceTask
from penstock.tasks.join.join_task import JoinTask
from penstock.tasks.operators.stream_task import StreamTask, TaskEnvironment
from penstock.tasks.protocol.deployment import Deployment, IngestDeployment
from penstock.tasks.protocol.task_graph import TaskEdges, Work
from penstock.tasks.refresh.changes_source import ChangesSourceTask
from penstock.tasks.refresh.emit_task import EmitTask
from penstock.tasks.refresh.refresh_task import RefreshTask
from penstock.tasks.sink.sink_task import SinkTask
from penstock.tasks.source.arrival_source import ArrivalSourceTask
from penstock.tasks.source.force_source import ForceSourceTask
from penstock.tasks.source.period_source import PeriodSourceTask
from penstock.tasks.source.source_task import SourceTask
from penstock.tasks.window.expiring_groups import ExpiringGroupsTask
from penstock.tasks.window.segment_agg import SegmentAggTask
from penstock.tasks.window.window_agg import WindowAggTask

_CLASSES: dict[Work, type[SourceTask | ForceSourceTask | ChangesSourceTask | PeriodSourceTask]] = {
    "rows": SourceTask, "arrivals": ArrivalSourceTask, "clock": ForceSourceTask,
    "periods": PeriodSourceTask, "left side": JoinSourceTask, "right side": JoinSourceTask,
    "changes": ChangesSourceTask}


def build_tasks(deployment: Deployment, index: int, environment: TaskEnvironment) -> list[StreamTask]:
    """Returns the tasks of worker `index`, upstream first, restored to the deployment's checkpoint.

    If one cannot be built, those that were are closed.
    """
    tasks: list[StreamTask] = []
    try:
        for edges in deployment.graph.edges(deployment.stream_id):
            if deployment.graph.worker_of(edges.task) == index:
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
    return sorted(tasks, key=lambda task: ("source", "agg", "sink").index(task.id.operator))


def _build(edges: TaskEdges, deployment: Deployment, environment: TaskEnvironment) -> StreamTask:
    index, work = edges.task.index, edges.node.work
    if isinstance(deployment, IngestDeployment):
        return IngestTask(deployment, index, environment)
    match edges.node.kind:
        case "source":
            return _CLASSES[work](deployment, index, edges.downstream, environment)
        case "join":
            return JoinTask(deployment, index, edges.upstream, edges.downstream, environment)
        case "agg":
            kind: type[WindowAggTask | SegmentAggTask] = WindowAggTask if work == "windows" else SegmentAggTask
            if deployment.plan.policies.state_ttl is not None:
                kind = ExpiringGroupsTask
            return kind(deployment, index, edges.upstream, edges.downstream, environment)
        case "sink" if work == "refresh" and deployment.plan.sink.external is not None:
            return EmitTask(deployment, index, edges.upstream, environment)
        case "sink" if work == "refresh":
            return RefreshTask(deployment, index, edges.upstream, environment)
        case "sink":
            return SinkTask(deployment, index, edges.upstream, environment)
        case "ingest":
            raise InternalError(f"stream {deployment.name} has a task of an ingest")
