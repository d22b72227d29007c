"""Where Flight is to be found: the name of its gRPC service, and addresses as gRPC writes them."""

from __future__ import annotations

SERVICE = "arrow.flight.protocol.FlightService"
UNIX = "unix:"
"""How the address of a socket file begins."""
LAG = "penstock-lag-seconds"
"""What a node of a cluster that isn't active says behind rows, among gRPC's trailing metadata: how old they may be."""


def method(name: str) -> str:
    """Returns the path of a method of the service."""
    return f"/{SERVICE}/{name}"


def address(host: str, port: int) -> str:
    """Returns host and port in one; an IPv6 address needs brackets there. `unix:PATH` is a socket file."""
    if host.startswith(UNIX):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
