"""Kafka through librdkafka: the configuration of its clients, and what its errors mean."""

from __future__ import annotations

import time
from typing import Any

from penstock.common.connection import OpenedConnection
from penstock.common.errors import (
    ConnectionFailedError,
    ContentRefusedError,
    LoginRefusedError,
    OutsideError,
    TargetMissingError,
)
from penstock.common.logging import logger
from penstock.tasks.connectors.libraries import importing

with importing("confluent-kafka"):
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

_log = logger(__name__)
_ROUND_S = 0.25
"""So long a probe waits before it looks whether the client has said what is wrong."""

_LOGIN = frozenset({
    KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError._SSL,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.UNSUPPORTED_SASL_MECHANISM,
})
_MISSING = frozenset({
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
})
_CONTENT = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG,
})


def client_config(connection: OpenedConnection) -> dict[str, Any]:
    """Returns what every client of this connection is configured with; its caller adds what it is for."""
    options = connection.options
    timeout_ms = max(1000, round(connection.timeout_s * 1000))
    config: dict[str, Any] = {
        "bootstrap.servers": options["servers"],
        "security.protocol": options["security"],
        "client.id": "penstock",
        "socket.connection.setup.timeout.ms": timeout_ms,
        "socket.timeout.ms": max(10_000, timeout_ms),
    }
    if options["security"].startswith("sasl"):
        config["sasl.mechanism"] = options["mechanism"]
        config["sasl.username"] = options.get("username", "")
        config["sasl.password"] = options.get("password", "")
    if "tls_ca" in options:
        config["ssl.ca.location"] = options["tls_ca"]
    return config


def outside_error(connection: OpenedConnection, error: KafkaError) -> OutsideError:
    """Returns the Penstock error for what librdkafka reports."""
    text = connection.hidden(f"{error.name()}: {error.str()}")
    code = error.code()
    if code in _LOGIN:
        return LoginRefusedError(f"login refused by {connection.options['servers']}: {text}")
    if code in _MISSING:
        return TargetMissingError(f"unknown topic at {connection.options['servers']}: {text}")
    if code in _CONTENT:
        return ContentRefusedError(f"refused by {connection.options['servers']}: {text}")
    return ConnectionFailedError(f"unreachable: {connection.options['servers']}: {text}")


def probe(connection: OpenedConnection, timeout_s: float) -> str:
    """Asks the brokers for their topics. Raises OutsideErrors."""
    told: list[KafkaError] = []
    config = client_config(connection)
    config["error_cb"] = told.append
    client = AdminClient(config, logger=_log)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            metadata = client.list_topics(timeout=_ROUND_S)
        except KafkaException as error:
            client.poll(0)
            refusal = next((each for each in told if each.code() in _LOGIN), None)
            if refusal is not None:
                raise outside_error(connection, refusal) from None
            if time.monotonic() >= deadline:
                raise outside_error(connection, told[-1] if told else error.args[0]) from None
        else:
            return f"Kafka, {len(metadata.brokers)} brokers, {len(metadata.topics)} topics"
