"""Topics of Kafka as targets: at least once, or in transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.planner.task_plans.stream_plan import ExternalSinkPlan
from penstock.tasks.external.connectors.kafka import Message, Sender
from penstock.tasks.external.emit.async_sink_writer import Delivery
from penstock.tasks.external.emit.result_events import ExternalRows, json_text
from penstock.tasks.external.emit.result_messages import Encoder, refuse


class KafkaTarget:
    """A topic. At least once: a delivery that fails half-way is sent again as a whole."""

    def __init__(self, sender: Sender, plan: ExternalSinkPlan, rows: ExternalRows) -> None:
        self._encode = Encoder(plan.format, rows)
        self._sender = sender

    def deliver(self, delivery: Delivery) -> None:
        refuse(self._sender.send(kafka_messages(delivery.rows, self._encode)))

    def close(self) -> None:
        self._sender.close()


class KafkaTransactionTarget:
    """A topic in which each delivery is one transaction, which leaves the delivery's number as its mark.

    A delivery whose mark is there was committed, whatever was heard of it. A sender of the same transactional id keeps
    all earlier ones from going on.
    """

    def __init__(self, sender: Sender, plan: ExternalSinkPlan, rows: ExternalRows) -> None:
        self._encode = Encoder(plan.format, rows)
        self._sender = sender
        self._mark = self._sender.mark()

    def deliver(self, delivery: Delivery) -> None:
        mark = delivery.number + 1
        if mark <= self._mark:
            return
        refuse(self._sender.send_marked(kafka_messages(delivery.rows, self._encode), mark))
        self._mark = mark

    def close(self) -> None:
        self._sender.close()


def kafka_messages(batch: pa.RecordBatch, encode: Encoder) -> Iterator[Message]:
    """Yields the messages of rows: the key is the group's, so that a group's results stay in order."""
    for event, value in encode(batch):
        key = json_text(event.key).encode() if event.key else None
        yield key, value, (("penstock-id", event.id), ("penstock-op", event.operation))
