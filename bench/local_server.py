"""What servers of benchmarks on this machine have in common: whom clients log in as, and where servers listen."""

from __future__ import annotations

import base64
import socket

USER, PASSWORD = "ada", "correct horse"
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
"""The same, as HTTP's header has it behind `Basic`."""


def free_port() -> int:
    """Returns a port of 127.0.0.1 on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
