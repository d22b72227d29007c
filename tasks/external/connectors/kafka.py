"""Kafka through librdkafka: the configuration of its clients, and what its errors mean."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.common.connection import OpenedConnection
from penstock.common.errors import (
    ConnectionFailedError,
    ContentRefusedError,
    ExternalSystemError,
    LoginRefusedError,
    PenstockError,
    StaleAttemptError,
    TargetMissingError,
)
from penstock.common.logging import logger
from penstock.tasks.external.connectors.libraries import importing

with importing("confluent-kafka"):
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
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

_FENCED = frozenset({
    KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED,
})
_TIMEOUTS = frozenset({KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError._TRANSPORT})


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


def external_error(connection: OpenedConnection, error: KafkaError) -> ExternalSystemError:
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


Message = tuple[bytes | None, bytes | None, Sequence[tuple[str, str]]]
"""Key, value (None: a tombstone) and headers."""


class Sender:
    """A producer whose messages go to one topic, idempotent or, with `transactional_id`, in transactions.

    `group`: the consumer group whose offset in partition 0 of the topic is the mark of the transactions.
    """

    def __init__(
        self, connection: OpenedConnection, topic: str, *, transactional_id: str = "", group: str = ""
    ) -> None:
        """Raises ExternalSystemErrors."""
        self._connection = connection
        self._topic = topic
        self._timeout_s = connection.timeout_s
        self._reported: list[KafkaError] = []
        self._failed: list[tuple[int, KafkaError]] = []
        config = client_config(connection)
        config |= {"error_cb": self._reported.append, "enable.idempotence": True, "linger.ms": 5,
                   "message.timeout.ms": max(1000, round(self._timeout_s * 1000))}
        self._consumer: Consumer | None = None
        if transactional_id:
            timeout_ms = max(1000, round(self._timeout_s * 1000))
            config |= {"transactional.id": transactional_id, "transaction.timeout.ms": max(60_000, 3 * timeout_ms)}
            options = {"error_cb": self._reported.append, "group.id": group, "enable.auto.commit": False,
                       "isolation.level": "read_committed"}
            self._consumer = Consumer({**client_config(connection), **options}, logger=_log)
        self._producer = Producer(config, logger=_log)
        if transactional_id:
            with self._translating():
                # Has the brokers make the topic if they do so; its mark can't be asked for before.
                found = self._producer.list_topics(topic, self._timeout_s).topics[topic]
                self._producer.init_transactions(self._timeout_s)
            if found.error is not None:
                raise self._error(found.error)

    def send(self, messages: Iterable[Message]) -> list[tuple[int, str]]:
        """Sends messages and waits until all are acknowledged. Returns those that are refused: places and reasons.

        Raises ExternalSystemErrors.
        """
        self._failed.clear()
        for place, (key, value, headers) in enumerate(messages):
            while not self._produced(place, key, value, headers):
                if self._producer.poll(self._timeout_s) == 0:
                    raise self._error(KafkaError(KafkaError._MSG_TIMED_OUT))
        # The messages' own timeout ends them before.
        if self._producer.flush(2 * self._timeout_s + 1):
            raise self._error(KafkaError(KafkaError._MSG_TIMED_OUT))
        refused = [(place, error.str()) for place, error in self._failed if error.code() in _CONTENT]
        other = next((error for _, error in self._failed if error.code() not in _CONTENT), None)
        if other is not None:
            raise self._error(other)
        return refused

    def mark(self) -> tuple[int, str]:
        """Returns mark and note of the last committed transaction, 0 and "" if there is none.

        Raises ExternalSystemErrors.
        """
        assert self._consumer is not None
        with self._translating():
            (found,) = self._consumer.committed([TopicPartition(self._topic, 0)], self._timeout_s)
        if found.error is not None:
            raise self._error(found.error)
        return max(0, found.offset), found.metadata or ""

    def send_marked(self, messages: Iterable[Message], mark: int, note: str) -> list[tuple[int, str]]:
        """Sends messages in one transaction that leaves `mark` and `note`; returns as `send`: then nothing was sent.

        Raises ExternalSystemErrors, StaleAttemptError if another producer has taken over.
        """
        assert self._consumer is not None
        with self._translating():
            self._producer.begin_transaction()
            refused = self.send(messages)
            if refused:
                self._producer.abort_transaction(self._timeout_s)
                return refused
            self._producer.send_offsets_to_transaction(
                [TopicPartition(self._topic, 0, mark, note)], self._consumer.consumer_group_metadata(), self._timeout_s)
            self._producer.commit_transaction(self._timeout_s)
        return []

    def close(self) -> None:
        """Lets go of what wasn't sent; a transaction that is open is aborted by the next producer of its name."""
        self._producer.purge()
        if self._consumer is not None:
            self._consumer.close()

    def _produced(
        self, place: int, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, str]]
    ) -> bool:
        """Takes a message over, unless the queue is full."""

        def heard(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                self._failed.append((place, error))

        try:
            self._producer.produce(self._topic, value, key, on_delivery=heard, headers=list(headers))
        except BufferError:
            return False
        except KafkaException as error:
            if error.args[0].code() not in _CONTENT:
                raise self._error(error.args[0]) from None
            self._failed.append((place, error.args[0]))
        return True

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._error(error.args[0]) from None

    def _error(self, error: KafkaError) -> PenstockError:
        if error.code() in _FENCED:
            return StaleAttemptError(f"another attempt writes to {self._topic}: {error.str()}")
        self._producer.poll(0)
        reported = next((one for one in self._reported if one.code() in _LOGIN), None)
        if reported is None and error.code() in _TIMEOUTS and self._reported:
            reported = self._reported[-1]
        return external_error(self._connection, reported or error)


def probe(connection: OpenedConnection, timeout_s: float) -> str:
    """Asks the brokers for their topics. Raises ExternalSystemErrors."""
    reported: list[KafkaError] = []
    config = client_config(connection)
    config["error_cb"] = reported.append
    try:
        client = AdminClient(config, logger=_log)
    except KafkaException as error:
        raise ConnectionFailedError(f"no client can be made: {connection.hidden(error.args[0].str())}") from None
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            metadata = client.list_topics(timeout=_ROUND_S)
        except KafkaException as error:
            client.poll(0)
            refusal = next((each for each in reported if each.code() in _LOGIN), None)
            if refusal is not None:
                raise external_error(connection, refusal) from None
            if time.monotonic() >= deadline:
                raise external_error(connection, reported[-1] if reported else error.args[0]) from None
        else:
            return f"Kafka, {len(metadata.brokers)} brokers, {len(metadata.topics)} topics"
