"""Webhooks through httpx: clients, and what answers mean."""

from __future__ import annotations

import ssl

from penstock.common.connection import OpenedConnection
from penstock.common.errors import (
    ConnectionFailedError,
    ContentRefusedError,
    ExternalSystemError,
    LoginRefusedError,
    TargetMissingError,
)
from penstock.tasks.external.connectors.libraries import importing

with importing("httpx"):
    import httpx


def new_client(connection: OpenedConnection) -> httpx.Client:
    """Returns a client that sends the connection's token with every request. Raises ConnectionFailedError if the file
    of certificates can't be used.
    """
    options = connection.options
    headers = {"Authorization": f"Bearer {options['token']}"} if "token" in options else {}
    try:
        context = ssl.create_default_context(cafile=options.get("tls_ca"))
    except OSError as error:
        raise ConnectionFailedError(f"tls_ca cannot be used: {error}") from error
    return httpx.Client(headers=headers, timeout=connection.timeout_s, verify=context, trust_env=False)


def answer_error(connection: OpenedConnection, response: httpx.Response) -> ExternalSystemError | None:
    """Returns the Penstock error for an answer, None if it is fine."""
    if response.status_code < 400:
        return None
    text = f"{connection.address} answers {response.status_code} {response.reason_phrase}"
    if response.status_code in (401, 403, 407):
        return LoginRefusedError(f"login refused: {text}")
    if response.status_code in (404, 410):
        return TargetMissingError(f"unknown address: {text}")
    if response.status_code in (408, 425, 429) or response.status_code >= 500:
        return ConnectionFailedError(f"unreachable: {text}")
    return ContentRefusedError(f"refused: {text}")


def external_error(connection: OpenedConnection, error: httpx.HTTPError) -> ExternalSystemError:
    """Returns the Penstock error for a request that got no answer."""
    text = connection.hidden(f"{type(error).__name__}: {error}")
    return ConnectionFailedError(f"unreachable: {connection.address}: {text}")


class Poster:
    """Posts to the connection's address, or to a path below it."""

    def __init__(self, connection: OpenedConnection, path: str) -> None:
        """Raises ExternalSystemErrors."""
        self._connection = connection
        url = connection.options["url"]
        self._url = f"{url.rstrip('/')}/{path.lstrip('/')}" if path else url
        self._client = new_client(connection)

    def send(self, identity: str, text: str) -> None:
        """Posts a text. Returns once the other side has said that it has it. Raises ExternalSystemErrors."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": identity}
        try:
            response = self._client.post(self._url, content=text.encode(), headers=headers)
        except httpx.HTTPError as error:
            raise external_error(self._connection, error) from None
        problem = answer_error(self._connection, response)
        if problem is not None:
            raise problem

    def close(self) -> None:
        self._client.close()


def probe(connection: OpenedConnection, timeout_s: float) -> str:
    """Asks for the headers of the address, which sets nothing off. Raises ExternalSystemErrors."""
    with new_client(connection) as client:
        try:
            response = client.head(connection.options["url"], timeout=timeout_s)
        except httpx.HTTPError as error:
            raise external_error(connection, error) from None
    problem = answer_error(connection, response)
    # Who takes POST only says so to HEAD: it is there.
    if problem is not None and not isinstance(problem, ContentRefusedError) and response.status_code != 501:
        raise problem
    return f"HTTP, answers {response.status_code}"
