"""Folders and object stores through fsspec."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from penstock.common.connection import OpenedConnection
from penstock.common.errors import ConnectionFailedError, ExternalSystemError, LoginRefusedError, TargetMissingError
from penstock.common.private import sync
from penstock.tasks.external.connectors.libraries import importing

with importing("fsspec"):
    from fsspec import AbstractFileSystem
    from fsspec.core import url_to_fs


def open_place(connection: OpenedConnection) -> tuple[AbstractFileSystem, str]:
    """Returns the file system of a connection and the path of its folder there. Raises ExternalSystemErrors."""
    try:
        return url_to_fs(connection.options["url"], **_storage_options(connection))  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        raise TargetMissingError(connection.hidden(f"unknown kind of place: {error}"),
                                 hint="fsspec may need a further package for this kind of URL") from None


def external_error(connection: OpenedConnection, error: Exception) -> ExternalSystemError:
    """Returns the Penstock error for what a file system raises; it is an OSError, or what the library below raises."""
    url = connection.options["url"]
    text = connection.hidden(f"{type(error).__name__}: {error}")
    if isinstance(error, PermissionError):
        return LoginRefusedError(f"login refused by {url}: {text}")
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return TargetMissingError(f"unknown folder {url}: {text}")
    return ConnectionFailedError(f"unreachable: {url}: {text}")


class Folder:
    """A folder below the connection's own, into which whole files are put."""

    def __init__(self, connection: OpenedConnection, path: str) -> None:
        """Raises ExternalSystemErrors."""
        self._connection = connection
        self._filesystem, root = open_place(connection)
        self._folder = f"{root.rstrip('/')}/{path.strip('/')}".rstrip("/")
        with self._translating():
            self._filesystem.makedirs(self._folder, exist_ok=True)

    def put(self, name: str, data: bytes) -> None:
        """Puts a file there, all of it or nothing, instead of one that had its name. Raises ExternalSystemErrors."""
        path = f"{self._folder}/{name}"
        with self._translating():
            if "file" not in self._filesystem.protocol:
                self._filesystem.pipe_file(path, data)  # an object is there once it is complete
                return
            pending = f"{self._folder}/.{name}.pending"
            with open(pending, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(pending, path)
            sync(self._folder)

    def get(self, name: str) -> bytes | None:
        """Returns a file of the folder, None if there is none. Raises ExternalSystemErrors."""
        with self._translating():
            try:
                data: bytes = self._filesystem.cat_file(f"{self._folder}/{name}")
            except FileNotFoundError:
                return None
            return data

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - each file system has errors of its own
            raise external_error(self._connection, error) from None


def probe(connection: OpenedConnection, timeout_s: float) -> str:
    """Lists the folder, or looks whether it can be made in one that is there. Raises ExternalSystemErrors.

    The time is bounded by the file system, and by who asks.
    """
    filesystem, root = open_place(connection)
    scheme = urlsplit(connection.options["url"]).scheme
    try:
        if filesystem.exists(root):
            return f"{scheme}, {len(filesystem.ls(root, detail=False))} entries"
        # Folders of object stores are there with their first object; others are made when something is written.
        filesystem.ls(filesystem._parent(root), detail=False)
    except Exception as error:  # noqa: BLE001 - each file system has errors of its own
        raise external_error(connection, error) from None
    return f"{scheme}, the folder is not there yet"


def _storage_options(connection: OpenedConnection) -> dict[str, Any]:
    options = connection.options
    found: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    if urlsplit(options["url"]).scheme in ("s3", "s3a"):
        found["config_kwargs"] = {"connect_timeout": connection.timeout_s, "read_timeout": connection.timeout_s}
        if "region" in options:
            found["client_kwargs"] = {"region_name": options["region"]}
        for name, theirs in (("key", "key"), ("secret", "secret"), ("endpoint", "endpoint_url")):
            if name in options:
                found[theirs] = options[name]
    return found
