"""Tables of external servers that statements read: their columns, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

from penstock.common.connection import OpenedConnection
from penstock.common.errors import ExternalSystemError, NotSupportedError
from penstock.mnode.ddl.connections import Connections
from penstock.sql.schema import Column, Table
from penstock.sql.types import DataType

T = TypeVar("T")


class ExternalTables:
    """Asks the servers, each time anew: what it says is as of now."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def table(self, connection: str, name: str) -> Table:
        """Returns a table with its columns; see `CatalogView.external_table`."""
        opened = self._opened(connection)
        from penstock.tasks.external.connectors.postgres_tables import (
            describe,  # its library is needed by who reads such tables only
        )

        return external_table(connection, name, self._told(opened, lambda: describe(opened, name)))

    def rows(self, table: Table, columns: Sequence[Column]) -> pa.Table:
        """Returns columns of all rows, timestamps as integers in the units of their type. Raises as `table`."""
        opened = self._opened(table.database)
        from penstock.tasks.external.connectors.postgres_tables import read

        wanted: list[tuple[str, DataType]] = [(column.name, column.type) for column in columns]
        return self._told(opened, lambda: read(opened, table.name, wanted))

    def _opened(self, name: str) -> OpenedConnection:
        connection = self._connections.find(name)
        if connection.kind != "postgres":
            raise NotSupportedError(f"connection {name} is of type {connection.kind}: it has no tables to read",
                                    hint="only those of TYPE postgres have")
        return self._connections.open(name)

    def _told(self, opened: OpenedConnection, ask: Callable[[], T]) -> T:
        """Returns the answer, and has SHOW CONNECTIONS say how it went; errors say which connection it is."""
        try:
            answer = ask()
        except ExternalSystemError as error:
            self._connections.note(opened, error)
            raise type(error)(f"connection {opened.name}: {error.message}", hint=error.hint) from None
        self._connections.note(opened, None)
        return answer


def external_table(connection: str, name: str, columns: Sequence[Column]) -> Table:
    """Returns what the planner takes for a table of an external server."""
    return Table(0, connection, name, "external", tuple(columns))
