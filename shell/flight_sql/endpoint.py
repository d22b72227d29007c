"""Where Flight is to be found: the name of its gRPC service, and addresses as gRPC writes them."""

from __future__ import annotations

SERVICE = "arrow.flight.protocol.FlightService"
UNIX = "unix:"
"""How the address of a socket file begins."""


def method(name: str) -> str:
    """Returns the path of a method of the service."""
    return f"/{SERVICE}/{name}"


def address(host: str, port: int) -> str:
    """Returns host and port in one; an IPv6 address needs brackets there. `unix:PATH` is a socket file."""
    if host.startswith(UNIX):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
