"""What an ingest reads from, by the kind of its connection. Libraries are imported only where they are needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.common.clock import Clock

if TYPE_CHECKING:
    from penstock.tasks.external.connectors.incoming_messages import Consumer, Positions
    from penstock.tasks.protocol.deployment import IngestDeployment

ConsumerFactory = Callable[["IngestDeployment", int, "Positions", Clock, Callable[[], None]], "Consumer"]
"""(deployment, number of the task, from where on, clock, what to call when something has come): see `Consumer`."""


def open_consumer(
    deployment: IngestDeployment, index: int, positions: Positions, clock: Clock, wake: Callable[[], None]
) -> Consumer:
    """Returns the consumer of a task. Raises ExternalSystemErrors, NotSupportedError if a library is missing."""
    kind = deployment.plan.kind
    if kind == "kafka":
        from penstock.tasks.external.connectors.kafka_consumer import KafkaConsumer

        return KafkaConsumer(deployment, index, positions, clock)
    if kind == "mqtt":
        from penstock.tasks.external.connectors.mqtt_consumer import MqttConsumer

        return MqttConsumer(deployment, clock, wake)
    from penstock.tasks.external.connectors.files_consumer import FilesConsumer

    return FilesConsumer(deployment, positions, clock)


def avro_reader(schema: str) -> Callable[[bytes], object]:
    """Returns what reads one record of Avro. Raises InvalidStatementError for a schema that is none."""
    from penstock.tasks.external.connectors.avro import reader

    return reader(schema)
