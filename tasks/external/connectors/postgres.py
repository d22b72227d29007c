"""PostgreSQL through psycopg: its connections, and what the server's refusals mean."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.common.connection import OpenedConnection
from penstock.common.errors import (
    ConnectionFailedError,
    ContentRefusedError,
    ExternalSystemError,
    LoginRefusedError,
    TargetMissingError,
)
from penstock.tasks.external.connectors.libraries import importing

with importing("psycopg[binary]"):
    import psycopg

_LOGIN = ("28", "42501")
_MISSING = ("3D", "3F", "42P01", "42703")
_UNREACHABLE = ("08", "53", "57", "58", "40", "55P03", "25006")
"""Beginnings of SQLSTATEs: what goes away by itself, or when the server is well again."""


def connect(connection: OpenedConnection, *, autocommit: bool = False) -> psycopg.Connection:
    """Returns an open connection. Raises ExternalSystemErrors."""
    options = connection.options
    try:
        return psycopg.connect(
            host=options["host"], port=options["port"], dbname=options["database"], user=options["username"],
            password=options.get("password"), sslmode=options["sslmode"], sslrootcert=options.get("tls_ca"),
            connect_timeout=max(2, math.ceil(connection.timeout_s)), application_name="penstock",
            tcp_user_timeout=round(connection.timeout_s * 1000), autocommit=autocommit)
    except psycopg.Error as error:
        raise external_error(connection, error) from None


def external_error(connection: OpenedConnection, error: psycopg.Error) -> ExternalSystemError:
    """Returns the Penstock error for what psycopg raises."""
    options = connection.options
    place = f"{options['host']}:{options['port']}"
    text = connection.hidden(" ".join(str(error).split()))
    kind = _kind_by_state(error.sqlstate) if error.sqlstate else _kind_by_text(text)
    if kind is LoginRefusedError:
        return LoginRefusedError(f"login refused by {place}: {text}")
    if kind is TargetMissingError:
        return TargetMissingError(f"unknown database or table at {place}: {text}")
    if kind is ContentRefusedError:
        return ContentRefusedError(f"refused by {place}: {text}")
    return ConnectionFailedError(f"unreachable: {place}: {text}")


@contextmanager
def translating(connection: OpenedConnection) -> Iterator[None]:
    """Raises ExternalSystemErrors for what psycopg raises inside of the block."""
    try:
        yield
    except psycopg.Error as error:
        raise external_error(connection, error) from None


def probe(connection: OpenedConnection, timeout_s: float) -> str:
    """Logs in and asks for the version. Raises ExternalSystemErrors."""
    with connect(connection, autocommit=True) as opened:
        try:
            opened.execute(f"SET statement_timeout = {round(timeout_s * 1000)}")
            row = opened.execute("SELECT current_setting('server_version')").fetchone()
        except psycopg.Error as error:
            raise external_error(connection, error) from None
    return f"PostgreSQL {row[0] if row else ''}, database {connection.options['database']}"


def _kind_by_state(state: str) -> type[ExternalSystemError]:
    if state.startswith(_LOGIN):
        return LoginRefusedError
    if state.startswith(_MISSING):
        return TargetMissingError
    return ConnectionFailedError if state.startswith(_UNREACHABLE) else ContentRefusedError


def _kind_by_text(text: str) -> type[ExternalSystemError]:
    """Tells by the words: libpq gives no SQLSTATE for what a server says while it is connected to."""
    if "does not exist" in text and 'database "' in text:
        return TargetMissingError
    refused = ("authentication failed", "no password supplied", "no pg_hba.conf entry", "is not permitted to log in",
               'role "', "permission denied", "certificate")
    return LoginRefusedError if any(words in text for words in refused) else ConnectionFailedError
