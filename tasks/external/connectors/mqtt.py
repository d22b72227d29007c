"""MQTT through paho: its clients, and what brokers' refusals mean."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from penstock.common.connection import OpenedConnection
from penstock.common.errors import ConnectionFailedError, ContentRefusedError, ExternalSystemError, LoginRefusedError
from penstock.tasks.external.connectors.libraries import importing

with importing("paho-mqtt"):
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
    from paho.mqtt.reasoncodes import ReasonCode

_PORTS = {"mqtt": 1883, "mqtts": 8883}
_LOGIN = frozenset({
    "Bad user name or password", "Not authorized", "Banned", "Bad authentication method", "Client identifier not valid",
})
_CONTENT = frozenset({
    "Packet too large", "Topic name invalid", "Topic filter invalid", "Payload format invalid",
    "Retain not supported", "QoS not supported", "Malformed packet", "Protocol error", "Unsupported protocol version",
})


def new_client(
    connection: OpenedConnection, client_id: str, kind: type[Client] = Client, **options: Any
) -> Client:
    """Returns a client that isn't connected yet. `client_id` is taken where the connection names none.

    `options`: what paho's Client takes further, such as `clean_session`. Raises ConnectionFailedError if the file of
    certificates can't be used.
    """
    given = connection.options
    version = MQTTProtocolVersion.MQTTv5 if given["version"] == "5" else MQTTProtocolVersion.MQTTv311
    client = kind(CallbackAPIVersion.VERSION2, given.get("client_id", client_id), protocol=version, **options)
    if "username" in given:
        client.username_pw_set(given["username"], given.get("password"))
    if urlsplit(given["url"]).scheme == "mqtts":
        try:
            client.tls_set_context(ssl.create_default_context(cafile=given.get("tls_ca")))
        except OSError as error:
            raise ConnectionFailedError(f"tls_ca cannot be used: {error}") from error
    client.connect_timeout = connection.timeout_s
    return client


def connect(client: Client, connection: OpenedConnection, **options: Any) -> None:
    """Opens the connection to the broker; whether it lets us in comes with `on_connect`.

    `options`: what paho's `connect` takes further. Raises ExternalSystemErrors.
    """
    url = urlsplit(connection.options["url"])
    try:
        client.connect(url.hostname or "", url.port or _PORTS[url.scheme], **options)
    except OSError as error:
        raise external_error(connection, error) from error


def connect_later(client: Client, connection: OpenedConnection, **options: Any) -> None:
    """Has the client's own thread, once it is started, open the connection, and open it again whenever it is lost."""
    url = urlsplit(connection.options["url"])
    client.connect_async(url.hostname or "", url.port or _PORTS[url.scheme], **options)


def external_error(connection: OpenedConnection, reason: ReasonCode | OSError) -> ExternalSystemError:
    """Returns the Penstock error for a broker's refusal, or for what the network says."""
    url = connection.options["url"]
    if isinstance(reason, OSError):
        return ConnectionFailedError(connection.hidden(f"unreachable: {url}: {reason}"))
    name = reason.getName()
    if name in _LOGIN:
        return LoginRefusedError(f"login refused by {url}: {name}")
    if name in _CONTENT:
        return ContentRefusedError(f"refused by {url}: {name}")
    return ConnectionFailedError(f"unreachable: {url}: {name}")


class Publisher:
    """A client that publishes, and waits until the broker has taken everything."""

    def __init__(self, connection: OpenedConnection, name: str, timeout_s: float | None = None) -> None:
        """Connects, as the connection's client id and `name`: only one client may have an id.

        `timeout_s`: for an answer, None: the connection's.

        Raises ExternalSystemErrors.
        """
        client_id = "-".join(filter(None, (connection.options.get("client_id"), name)))
        connection = replace(connection, options={**connection.options, "client_id": client_id})
        self._connection = connection
        self._timeout_s = connection.timeout_s if timeout_s is None else timeout_s
        self._answers: list[ReasonCode] = []
        self._answered = threading.Event()
        self._refused: dict[int, ReasonCode] = {}
        self._client = new_client(connection, client_id, reconnect_on_failure=False)
        self._client.on_connect = self._on_connect
        self._client.on_publish = self._on_publish
        connect(self._client, connection)
        self._client.loop_start()
        if not self._answered.wait(self._timeout_s):
            self.close()
            raise self._silent()
        if self._answers[0].is_failure:
            self.close()
            raise external_error(connection, self._answers[0])

    def publish(self, messages: Iterable[tuple[str, bytes]], qos: int) -> list[tuple[int, str]]:
        """Publishes (topic, payload) pairs; returns the places of those that the broker refuses, with its reason.

        Raises ExternalSystemErrors if not all are answered.
        """
        self._refused.clear()
        sent = [self._client.publish(topic, payload, qos) for topic, payload in messages]
        deadline = time.monotonic() + self._timeout_s
        for info in sent:
            try:
                info.wait_for_publish(max(0.0, deadline - time.monotonic()))
            except (ValueError, RuntimeError) as error:
                raise ConnectionFailedError(f"unreachable: {self._connection.options['url']}: {error}") from None
            if not info.is_published():
                raise self._silent()
        return [(place, self._refused[info.mid].getName()) for place, info in enumerate(sent)
                if info.mid in self._refused]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _silent(self) -> ConnectionFailedError:
        return ConnectionFailedError(f"unreachable: {self._connection.options['url']}: no answer within "
                                     f"{self._timeout_s:g}s")

    def _on_connect(self, _client: Client, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        self._answers.append(reason)
        self._answered.set()

    def _on_publish(self, _client: Client, _data: Any, mid: int, reason: ReasonCode, _properties: Any) -> None:
        if reason.is_failure:
            self._refused[mid] = reason


def probe(connection: OpenedConnection, timeout_s: float) -> str:
    """Connects and leaves again. Raises ExternalSystemErrors."""
    Publisher(connection, "", timeout_s).close()
    return f"MQTT {connection.options['version']}"
