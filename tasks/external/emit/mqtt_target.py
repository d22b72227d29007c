"""Topics of an MQTT broker as targets."""

from __future__ import annotations

from penstock.planner.streams.external_sink import filled_in
from penstock.planner.task_plans.stream_plan import ExternalSinkPlan
from penstock.tasks.external.connectors.mqtt import Publisher
from penstock.tasks.external.emit.async_sink_writer import Delivery
from penstock.tasks.external.emit.result_events import ExternalRows
from penstock.tasks.external.emit.result_messages import Encoder, refuse


class MqttTarget:
    """Topics of a broker, each result a message. At least once."""

    def __init__(self, publisher: Publisher, plan: ExternalSinkPlan, rows: ExternalRows) -> None:
        self._plan = plan
        self._encode = Encoder(plan.format, rows)
        self._publisher = publisher

    def deliver(self, delivery: Delivery) -> None:
        messages = ((filled_in(self._plan.place, event.values), payload)
                    for event, payload in self._encode(delivery.rows))
        refuse(self._publisher.publish(messages, self._plan.qos))

    def close(self) -> None:
        self._publisher.close()
