"""The addresses of NOTIFY as targets of asynchronous sink writers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.common.connection import OpenedConnection
from penstock.tasks.external.emit.async_sink_writer import Delivery
from penstock.tasks.external.notify.window_events import messages


class NotifySender(Protocol):
    """What takes messages to an address."""

    def send(self, identity: str, text: str) -> None:
        """Returns once the message has arrived. Raises ExternalSystemErrors."""
        ...

    def close(self) -> None: ...


class NotifyTarget:
    """Sends the events of a delivery as messages, at least once."""

    def __init__(self, sender: NotifySender, stream: str, now_ms: Callable[[], int]) -> None:
        self._sender = sender
        self._stream = stream
        self._now_ms = now_ms

    def deliver(self, delivery: Delivery) -> None:
        for identity, text in messages(self._stream, delivery.rows.column(0).to_pylist(), self._now_ms()):
            self._sender.send(identity, text)

    def close(self) -> None:
        self._sender.close()


class WebhookSender:
    """Posts each message."""

    def __init__(self, connection: OpenedConnection) -> None:
        from penstock.tasks.external.connectors.webhook import Poster

        self._poster = Poster(connection, "")

    def send(self, identity: str, text: str) -> None:
        self._poster.post(text.encode(), identity)

    def close(self) -> None:
        self._poster.close()


class WebSocketSender:
    """Sends messages over one WebSocket connection."""

    def __init__(self, connection: OpenedConnection) -> None:
        from penstock.tasks.external.connectors.websocket import WebSocketClient

        self._client = WebSocketClient(connection)

    def send(self, identity: str, text: str) -> None:
        self._client.send(text)

    def close(self) -> None:
        self._client.close()


def open_sender(connection: OpenedConnection) -> NotifySender:
    """Returns what speaks the protocol of the connection's URL. Raises ExternalSystemErrors, LibraryMissingError."""
    web = connection.options["url"].startswith("http")
    return WebhookSender(connection) if web else WebSocketSender(connection)
