"""From a deployment to the writer of one of its sink tasks, for results that leave Penstock."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.common.clock import Clock
from penstock.common.connection import OpenedConnection
from penstock.common.errors import InternalError
from penstock.tasks.external.emit.async_sink_writer import AsyncSinkWriter, ExternalTarget
from penstock.tasks.external.emit.external_writers import DirectWriter, ExternalWriter, StagedWriter
from penstock.tasks.external.emit.result_events import ExternalRows
from penstock.tasks.external.emit.sent_record import SentRecord
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.protocol.result_writers import ResultWriter
from penstock.tasks.sink.dead_results import DeadResultTable
from penstock.tasks.sink.refused_results import dead_letters_of
from penstock.tasks.state.state_store import StateStore

_BACKLOG_QUEUES = 4
"""So many queues' worth of results of valid checkpoints may wait in a task's state until its target takes them."""

OpenTarget = Callable[[OpenedConnection, bool], ExternalTarget]


def external_writer(
    task: TaskId, deployment: StreamDeployment, store: StateStore, clock: Clock, wake: Callable[[], None],
    dead_writer: Callable[[], ResultWriter], open_with: OpenTarget | None = None,
) -> tuple[ExternalWriter, AsyncSinkWriter]:
    """Returns the writer of a sink task, and the asynchronous one behind it, which isn't started.

    `dead_writer` makes one for the DLQ. `open_with` opens something else than the target of the plan.
    """
    plan, settings = deployment.plan, deployment.settings
    external = plan.sink.external
    if external is None or deployment.connection is None:
        raise InternalError(f"{task} has no connection to write by")
    rows = ExternalRows(plan.sink, deployment.name)
    dead = None
    if plan.dlq is not None and plan.dlq.failures:
        letters = dead_letters_of(task, deployment, dead_writer())
        dead = DeadResultTable(letters, rows, plan.sink.text, plan.source.precision, clock)
    tasks = sum(node.kind == "sink" for node in deployment.graph.tasks)
    # What a task has sent of rows with a KEY it keeps anyway.
    recorded = 0 if plan.sink.by_key else settings.sent_record_bytes // tasks
    record = SentRecord(store, rows, recorded, tasks)
    opens = open_with or partial(open_target, task, deployment)
    sink_writer = AsyncSinkWriter(
        opens, deployment.connection, clock, wake, dead=dead, sent=record, give_up_after_s=settings.retry_time_s)
    if plan.emits_at_checkpoints:
        return StagedWriter(rows, sink_writer, record, store, _BACKLOG_QUEUES * settings.queue_bytes), sink_writer
    return DirectWriter(rows, sink_writer, record), sink_writer


def open_target(
    task: TaskId, deployment: StreamDeployment, connection: OpenedConnection, known: bool
) -> ExternalTarget:
    """Opens the target of one sink task; see `AsyncSinkWriter`. Libraries are needed by who uses them only."""
    stream, sink = deployment.name, deployment.plan.sink
    external, rows = sink.external, ExternalRows(sink, stream)
    assert external is not None
    name = f"penstock-{stream}-{deployment.stream_id:x}-{task.index}"
    match external.kind:
        case "postgres":
            from penstock.tasks.external.emit.postgres_target import PostgresTarget
            from penstock.tasks.external.emit.postgres_target_table import PostgresTable

            table = PostgresTable(sink)
            return PostgresTarget(connection, table, task, stream, deployment.attempt, known=known)
        case "files":
            from penstock.tasks.external.connectors.files import Folder
            from penstock.tasks.external.emit.files_target import FilesTarget

            return FilesTarget(Folder(connection, external.place), external, rows, stream, task.index)
        case "kafka":
            from penstock.tasks.external.connectors.kafka import Sender
            from penstock.tasks.external.emit.kafka_target import KafkaTarget, KafkaTransactionTarget

            if not deployment.plan.emits_at_checkpoints:
                return KafkaTarget(Sender(connection, external.place), external, rows)
            sender = Sender(connection, external.place, transactional_id=name, group=name)
            return KafkaTransactionTarget(sender, external, rows)
        case "mqtt":
            from penstock.tasks.external.connectors.mqtt import Publisher
            from penstock.tasks.external.emit.mqtt_target import MqttTarget

            return MqttTarget(Publisher(connection, name), external, rows)
        case "webhook":
            from penstock.tasks.external.connectors.webhook import Poster
            from penstock.tasks.external.emit.webhook_target import WebhookTarget

            return WebhookTarget(Poster(connection, external.place), rows, stream)
