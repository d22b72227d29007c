"""Tests a connection: is the server there, and does it let us in?"""

from __future__ import annotations

from penstock.common.connection import OpenedConnection


def probe(connection: OpenedConnection, timeout_s: float) -> str:
    """Connects, and returns in one line what was found there.

    Raises ConnectionFailedError, LoginRefusedError or TargetMissingError, and LibraryMissingError; no text of theirs
    has a secret in it.
    """
    match connection.kind:
        case "kafka":
            from penstock.tasks.external.connectors import kafka

            return kafka.probe(connection, timeout_s)
        case "mqtt":
            from penstock.tasks.external.connectors import mqtt

            return mqtt.probe(connection, timeout_s)
        case "postgres":
            from penstock.tasks.external.connectors import postgres

            return postgres.probe(connection, timeout_s)
        case "files":
            from penstock.tasks.external.connectors import files

            return files.probe(connection, timeout_s)
        case "webhook":
            from penstock.tasks.external.connectors import webhook

            return webhook.probe(connection, timeout_s)
