"""The addresses of NOTIFY as targets of asynchronous sink writers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.common.connection import OpenedConnection
from penstock.tasks.external.emit.async_sink_writer import Delivery
from penstock.tasks.external.notify.window_events import messages


class Mouth(Protocol):
    """What takes messages to an address."""

    def say(self, identity: str, text: str) -> None:
        """Returns once the message has arrived. Raises ExternalSystemErrors."""
        ...

    def close(self) -> None: ...


class NotifyTarget:
    """Sends the events of a delivery as messages, at least once."""

    def __init__(self, mouth: Mouth, stream: str, now_ms: Callable[[], int]) -> None:
        self._mouth = mouth
        self._stream = stream
        self._now_ms = now_ms

    def deliver(self, delivery: Delivery) -> None:
        for identity, text in messages(self._stream, delivery.rows.column(0).to_pylist(), self._now_ms()):
            self._mouth.say(identity, text)

    def close(self) -> None:
        self._mouth.close()


class HttpMouth:
    """Posts each message."""

    def __init__(self, connection: OpenedConnection) -> None:
        from penstock.tasks.external.connectors.webhook import Poster

        self._poster = Poster(connection, "")

    def say(self, identity: str, text: str) -> None:
        self._poster.post(text.encode(), identity)

    def close(self) -> None:
        self._poster.close()


class WebSocketMouth:
    """Sends messages over one WebSocket connection."""

    def __init__(self, connection: OpenedConnection) -> None:
        from penstock.tasks.external.connectors.websocket import Talker

        self._talker = Talker(connection)

    def say(self, identity: str, text: str) -> None:
        self._talker.say(text)

    def close(self) -> None:
        self._talker.close()


def open_mouth(connection: OpenedConnection) -> Mouth:
    """Returns what speaks the protocol of the connection's URL. Raises ExternalSystemErrors, LibraryMissingError."""
    web = connection.options["url"].startswith("http")
    return HttpMouth(connection) if web else WebSocketMouth(connection)
