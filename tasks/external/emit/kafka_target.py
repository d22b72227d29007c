"""Topics of Kafka as targets: at least once, or in transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.common.errors import ContentRefusedError
from penstock.planner.task_plans.stream_plan import ExternalSinkPlan
from penstock.tasks.external.connectors.kafka import Message, Sender
from penstock.tasks.external.emit.async_sink_writer import Delivery
from penstock.tasks.external.emit.external_writers import checkpoint_of, part_of
from penstock.tasks.external.emit.result_events import DELETE, ExternalRows, json_text
from penstock.tasks.external.emit.result_messages import Encoder, refuse

#: So many deliveries can be told from others: with their digests they fit into what brokers keep beside an offset.
_DIGESTS = 64


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

    A delivery whose mark is there was committed, whatever was heard of it: it isn't sent again. Other rows under its
    number are refused, as far as the digests of the last deliveries tell, which are beside the mark. A sender of the
    same transactional id keeps all earlier ones from going on.
    """

    def __init__(self, sender: Sender, plan: ExternalSinkPlan, rows: ExternalRows) -> None:
        self._encode = Encoder(plan.format, rows)
        self._sender = sender
        self._place = f"topic {plan.place}"
        self._mark, note = self._sender.mark()
        self._digests = _digests_in(note)

    def deliver(self, delivery: Delivery) -> None:
        mark = delivery.number + 1
        if mark <= self._mark:
            if self._digests.get(mark, delivery.digest) != delivery.digest:
                raise ContentRefusedError(
                    f"refused: {self._place} has other results of checkpoint {checkpoint_of(delivery.number)}, part "
                    f"{part_of(delivery.number)}", hint="the data directory was set back to an older copy: make the "
                    "stream anew, into another topic")
            return
        digests = dict([*self._digests.items(), (mark, delivery.digest)][-_DIGESTS:])
        note = " ".join(f"{one}:{digest}" for one, digest in digests.items())
        refuse(self._sender.send_marked(kafka_messages(delivery.rows, self._encode), mark, note))
        self._mark, self._digests = mark, digests

    def close(self) -> None:
        self._sender.close()


def _digests_in(note: str) -> dict[int, str]:
    """Returns digests by marks; what isn't of this form has none."""
    pairs = [pair.partition(":") for pair in note.split()]
    return {int(mark): digest for mark, _, digest in pairs if mark.isdecimal()}


def kafka_messages(batch: pa.RecordBatch, encode: Encoder) -> Iterator[Message]:
    """Yields the messages of rows: the key is the group's, so that a group's results stay in order.

    With a KEY that is the message's, as an object, and a row that is no more is a tombstone.
    """
    for event, value in encode(batch):
        key = json_text(event.key).encode() if event.key else None
        tombstone = event.operation == DELETE and isinstance(event.key, dict)
        yield key, None if tombstone else value, (("penstock-id", event.id), ("penstock-op", event.operation))
