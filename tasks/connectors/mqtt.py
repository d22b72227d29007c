"""MQTT through paho: its clients, and what brokers' refusals mean."""

from __future__ import annotations

import ssl
import threading
from typing import Any
from urllib.parse import urlsplit

from penstock.common.connection import OpenedConnection
from penstock.common.errors import ConnectionFailedError, ContentRefusedError, LoginRefusedError, OutsideError
from penstock.tasks.connectors.libraries import importing

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


def new_client(connection: OpenedConnection, client_id: str, **options: Any) -> Client:
    """Returns a client that isn't connected yet. `client_id` is taken where the connection names none.

    `options`: what paho's Client takes further, such as `clean_session`. Raises ConnectionFailedError if the file of
    certificates can't be used.
    """
    given = connection.options
    version = MQTTProtocolVersion.MQTTv5 if given["version"] == "5" else MQTTProtocolVersion.MQTTv311
    client = Client(CallbackAPIVersion.VERSION2, given.get("client_id", client_id), protocol=version, **options)
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

    `options`: what paho's `connect` takes further. Raises OutsideErrors.
    """
    url = urlsplit(connection.options["url"])
    try:
        client.connect(url.hostname or "", url.port or _PORTS[url.scheme], **options)
    except OSError as error:
        raise outside_error(connection, error) from error


def outside_error(connection: OpenedConnection, reason: ReasonCode | OSError) -> OutsideError:
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


def probe(connection: OpenedConnection, timeout_s: float) -> str:
    """Connects and leaves again. Raises OutsideErrors."""
    answers: list[ReasonCode] = []
    answered = threading.Event()

    def on_connect(_client: Client, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        answers.append(reason)
        answered.set()

    client = new_client(connection, "")
    client.on_connect = on_connect
    connect(client, connection)
    client.loop_start()
    try:
        if not answered.wait(timeout_s):
            raise ConnectionFailedError(f"unreachable: {connection.options['url']}: no answer within {timeout_s:g}s")
    finally:
        client.disconnect()
        client.loop_stop()
    if answers[0].is_failure:
        raise outside_error(connection, answers[0])
    return f"MQTT {connection.options['version']}"
