"""Reads topics of MQTT. Messages of QoS 1 and 2 are acknowledged when their rows are written."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from penstock.common.clock import Clock
from penstock.common.errors import ContentRefusedError
from penstock.tasks.external.connectors.base_consumer import BaseConsumer
from penstock.tasks.external.connectors.incoming_messages import MessageBatch
from penstock.tasks.external.connectors.libraries import importing
from penstock.tasks.external.connectors.mqtt import connect_later, external_error, new_client
from penstock.tasks.external.connectors.mqtt_reading import ReadingClient
from penstock.tasks.protocol.deployment import IngestDeployment

with importing("paho-mqtt"):
    from paho.mqtt.client import Client, MQTTMessage
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode
    from paho.mqtt.subscribeoptions import SubscribeOptions

_RECEIVE_MAXIMUM = 20_000
"""So many messages of QoS 1 and 2 the broker sends before the first of them is acknowledged."""
_SESSION_S = 7 * 86_400
_WAITING_BYTES = 32 << 20
"""More than this isn't kept of QoS 0, whose sender doesn't wait."""


class MqttConsumer(BaseConsumer):
    """One session, which the broker keeps while the ingest is away. The library's thread receives, the task polls."""

    replays = False

    def __init__(self, deployment: IngestDeployment, clock: Clock, wake: Callable[[], None]) -> None:
        super().__init__(deployment, clock)
        self._topics, self._qos = deployment.plan.topics, deployment.plan.qos
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: deque[tuple[str, bytes, int, int]] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._generation = 0  # of the connection: what was received over another can't be acknowledged any more
        self._received: dict[int, tuple[int, int, int]] = {}
        self._count = 0
        self._five = self._connection.options["version"] == "5"
        options: dict[str, Any] = {} if self._five else {"clean_session": False}
        self._client = new_client(
            self._connection, f"penstock-{deployment.name}", ReadingClient, manual_ack=True, **options)
        self._client.on_connect = self._on_connect
        self._client.on_connect_fail = self._on_connect_fail
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        self._client.on_subscribe = self._on_subscribe
        self._client.reconnect_delay_set(1, 30)
        connect_later(self._client, self._connection, keepalive=30, **self._session())
        self._client.loop_start()

    def _session(self) -> dict[str, Any]:
        """Returns what makes the broker keep the session."""
        if not self._five:
            return {}
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = _SESSION_S
        properties.ReceiveMaximum = _RECEIVE_MAXIMUM
        return {"clean_start": False, "properties": properties}

    def poll(self, messages: int) -> Sequence[MessageBatch]:
        with self._lock:
            count = min(messages, len(self._waiting))
            taken = [self._waiting.popleft() for _ in range(count)]
            self._waiting_bytes -= sum(len(message[1]) for message in taken)
        if not taken:
            return ()
        topics, values, times, receipts = zip(*taken, strict=True)
        return [MessageBatch("mqtt", "", receipts, values, times, topics, receipts=receipts)]

    def hold(self, held: bool) -> None:
        """Who isn't polled acknowledges nothing, and the broker sends no more than it may without that."""

    def done(self, batch: MessageBatch) -> None:
        with self._lock:
            known = [self._received.pop(receipt, None) for receipt in batch.receipts]
            generation = self._generation
        for one in known:
            if one is not None and one[0] == generation and one[2] > 0:
                self._client.ack(one[1], one[2])

    def close(self) -> None:
        """Leaves; the broker keeps the session. A thread that is just trying to connect is left to itself."""
        self._client.disconnect()
        threading.Thread(target=self._client.loop_stop, name="leave MQTT", daemon=True).start()

    # --- the library's thread ----------------------------------------------------------------------------------

    def _on_connect(self, client: Client, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        if reason.is_failure:
            self._problem = external_error(self._connection, reason)
            self._wake()
            return
        with self._lock:
            self._generation += 1
        if self._five:
            topics: Any = [(topic, SubscribeOptions(qos=self._qos)) for topic in self._topics]
        else:
            topics = [(topic, self._qos) for topic in self._topics]
        client.subscribe(topics)

    def _on_subscribe(self, _client: Client, _data: Any, _mid: int, reasons: Any, _properties: Any) -> None:
        refused = next((reason for reason in reasons if reason.is_failure), None)
        self._problem = None
        self._reached = True
        if refused is not None:
            self._problem = ContentRefusedError(
                f"the broker refuses {', '.join(self._topics)}: {refused.getName()}")
        self._wake()

    def _on_connect_fail(self, _client: Client, _data: Any) -> None:
        self._problem = external_error(self._connection, OSError("nobody answers"))
        self._wake()

    def _on_disconnect(self, _client: Client, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        # A refusal is told before the connection ends for it.
        if reason.is_failure and self._problem is None:
            self._problem = external_error(self._connection, reason)
            self._wake()

    def _on_message(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        with self._lock:
            if message.qos == 0 and self._waiting_bytes > _WAITING_BYTES:
                self._dropped += 1
                return
            self._count += 1
            self._received[self._count] = self._generation, message.mid, message.qos
            self._waiting.append((message.topic, bytes(message.payload), self._clock.now_ms(), self._count))
            self._waiting_bytes += len(message.payload)
            first = len(self._waiting) == 1
        if first:  # the task, once woken, polls until there is nothing more
            self._wake()
