"""Tells systemd how a service is, where it was started by it; elsewhere it does nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Sends a state to the socket that NOTIFY_SOCKET names; a leading @ means Linux's abstract names.

    A socket that nobody listens to any more is no error: the service itself is what matters.
    """
    address = environment.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
        try:
            notifier.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError:
            return
