"""A client of MQTT that reads what has come at once.

The library asks the socket three times for each packet, and before that whether there is one. Each of these calls gives
up the interpreter's lock, and where other tasks compute in the same process a thread waits long to have it again.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

from penstock.tasks.external.connectors.libraries import importing

with importing("paho-mqtt"):
    from paho.mqtt.client import Client
    from paho.mqtt.enums import MQTTErrorCode

if TYPE_CHECKING:
    from paho.mqtt.client import SocketLike

_AHEAD_BYTES = 64 << 10
_PACKETS_AT_ONCE = 500
"""After so many packets it is the turn of what is to be sent."""


class ReadAhead:
    """A socket that reads as much as has come, and hands it on as it is asked for."""

    def __init__(self, inner: SocketLike) -> None:
        self._inner = inner
        self._ahead = b""
        self._place = 0

    def recv(self, size: int) -> bytes:
        """Raises what the socket raises if nothing has come; returns nothing at its end."""
        if self._place == len(self._ahead):
            self._ahead, self._place = self._inner.recv(_AHEAD_BYTES), 0
        found = self._ahead[self._place:self._place + size]
        self._place += len(found)
        return found

    def pending(self) -> int:
        """Returns how many bytes are here already: nobody is told of them by `select`. The library asks for it."""
        inside = self._inner.pending() if isinstance(self._inner, ssl.SSLSocket) else 0
        return len(self._ahead) - self._place + inside

    def send(self, buffer: bytes | bytearray) -> int:
        return self._inner.send(buffer)

    def fileno(self) -> int:
        return self._inner.fileno()

    def setblocking(self, flag: bool) -> None:
        assert isinstance(self._inner, socket.socket)
        self._inner.setblocking(flag)

    def close(self) -> None:
        self._inner.close()


class ReadingClient(Client):
    """Reads packet after packet while there are some. A library that calls no `_create_socket` makes it slower only."""

    def _create_socket(self) -> SocketLike:
        return ReadAhead(super()._create_socket())

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        for _ in range(_PACKETS_AT_ONCE):
            code = super().loop_read(max_packets)
            current: object = self.socket()
            if code != MQTTErrorCode.MQTT_ERR_SUCCESS or not isinstance(current, ReadAhead) or not current.pending():
                break
        return code
