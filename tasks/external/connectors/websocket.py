"""WebSocket: one connection that sends texts, and knows that they have arrived."""

from __future__ import annotations

import ssl
from contextlib import ExitStack

from penstock.common.connection import OpenedConnection
from penstock.common.errors import ConnectionFailedError, ExternalSystemError, LoginRefusedError, TargetMissingError
from penstock.tasks.external.connectors.libraries import importing

with importing("websockets"):
    from websockets.exceptions import InvalidStatus, WebSocketException
    from websockets.sync.client import ClientConnection
    from websockets.sync.client import connect as open_websocket


class WebSocketClient:
    """An open WebSocket connection to the address of a connection."""

    def __init__(self, connection: OpenedConnection) -> None:
        """Raises ExternalSystemErrors."""
        self._connection = connection
        self._open = ExitStack()
        url = connection.options["url"]
        try:
            self._socket: ClientConnection = self._open.enter_context(open_websocket(
                url, open_timeout=connection.timeout_s, close_timeout=1, proxy=None, compression=None,
                ssl=ssl.create_default_context() if url.startswith("wss:") else None))
        except (OSError, WebSocketException) as error:
            raise external_error(connection, error) from None

    def send(self, identity: str, text: str) -> None:
        """Returns once the other side has taken the text: it has answered a ping that came behind it.

        Nobody is told its `identity`. Raises ExternalSystemErrors.
        """
        try:
            self._socket.send(text)
            answered = self._socket.ping().wait(self._connection.timeout_s)
        except (OSError, WebSocketException) as error:
            raise external_error(self._connection, error) from None
        if not answered:
            raise ConnectionFailedError(f"unreachable: {self._connection.address}: no answer to a ping within "
                                        f"{self._connection.timeout_s:g}s")

    def close(self) -> None:
        try:
            self._open.close()
        except (OSError, WebSocketException) as error:
            raise external_error(self._connection, error) from None


def external_error(connection: OpenedConnection, error: OSError | WebSocketException) -> ExternalSystemError:
    """Returns the Penstock error for what the network or the other side says."""
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        text = f"{connection.address} answers {status}"
        if status in (401, 403):
            return LoginRefusedError(f"login refused: {text}")
        if status in (404, 410):
            return TargetMissingError(f"unknown address: {text}")
        return ConnectionFailedError(f"unreachable: {text}")
    return ConnectionFailedError(
        f"unreachable: {connection.address}: {connection.hidden(f'{type(error).__name__}: {error}')}")
