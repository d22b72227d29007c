"""Tables of servers outside that statements read: their columns, and their rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.common.connection import OpenedConnection
from penstock.common.errors import NotSupportedError, OutsideError
from penstock.mnode.connections import Connections
from penstock.sql.schema import Column, Table
from penstock.sql.types import DataType


class OutsideTables:
    """Asks the servers, each time anew: what it says is as of now."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def table(self, connection: str, name: str) -> Table:
        """Returns a table with its columns; see `CatalogView.outside_table`."""
        opened = self._opened(connection)
        from penstock.tasks.connectors.postgres_tables import describe  # its library is needed by who reads outside

        with _Noted(self._connections, opened):
            columns = describe(opened, name)
        return outside_table(connection, name, columns)

    def rows(self, table: Table, columns: Sequence[Column]) -> pa.Table:
        """Returns columns of all rows, timestamps as integers in the units of their type. Raises as `table`."""
        opened = self._opened(table.database)
        from penstock.tasks.connectors.postgres_tables import read

        wanted: list[tuple[str, DataType]] = [(column.name, column.type) for column in columns]
        with _Noted(self._connections, opened):
            return read(opened, table.name, wanted)

    def _opened(self, name: str) -> OpenedConnection:
        connection = self._connections.find(name)
        if connection.kind != "postgres":
            raise NotSupportedError(f"connection {name} is of type {connection.kind}: it has no tables to read",
                                    hint="only those of TYPE postgres have")
        return self._connections.open(name)


class _Noted:
    """Has SHOW CONNECTIONS say how the block went."""

    def __init__(self, connections: Connections, opened: OpenedConnection) -> None:
        self._connections = connections
        self._opened = opened

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, OutsideError):
            self._connections.note(self._opened, error)


def outside_table(connection: str, name: str, columns: Sequence[Column]) -> Table:
    """Returns what the planner takes for a table of a server outside."""
    return Table(0, connection, name, "outside", tuple(columns))
