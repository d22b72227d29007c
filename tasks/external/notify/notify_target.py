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


def open_sender(connection: OpenedConnection) -> NotifySender:
    """Returns what speaks the protocol of the connection's URL. Raises ExternalSystemErrors, LibraryMissingError."""
    if connection.options["url"].startswith("http"):
        from penstock.tasks.external.connectors.webhook import Poster

        return Poster(connection, "")
    from penstock.tasks.external.connectors.websocket import WebSocketClient

    return WebSocketClient(connection)
