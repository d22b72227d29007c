"""Tests a connection: is the server there, and does it let us in?"""

from __future__ import annotations

from importlib import import_module

from penstock.common.connection import OpenedConnection


def probe(connection: OpenedConnection, timeout_s: float) -> str:
    """Connects, and returns in one line what was found there. The module of the connection's kind has its library.

    Raises ConnectionFailedError, LoginRefusedError or TargetMissingError, and LibraryMissingError; no text of theirs
    has a secret in it.
    """
    found: str = import_module(f"penstock.tasks.external.connectors.{connection.kind}").probe(connection, timeout_s)
    return found
