"""The catalog as it was at another time, to plan a statement again."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.common.connection import ExternalConnection
from penstock.mnode.catalog.catalog import Catalog
from penstock.sql.schema import CatalogView, ChildTable, Database, Table, UserFunction, View


class WithoutTable:
    """The catalog as it was before one of its tables was created."""

    def __init__(self, catalog: Catalog, hidden: Table) -> None:
        self._catalog = catalog
        self._hidden = hidden

    def database(self, name: str) -> Database | None:
        return self._catalog.database(name)

    def database_names(self) -> Iterable[str]:
        return self._catalog.database_names()

    def table(self, database: str, name: str) -> Table | None:
        found = self._catalog.table(database, name)
        return None if found is not None and found.uid == self._hidden.uid else found

    def view(self, database: str, name: str) -> View | None:
        return self._catalog.view(database, name)

    def table_names(self, database: str) -> Iterable[str]:
        return self._catalog.table_names(database)

    def children(self, super_uid: int) -> Iterable[ChildTable]:
        return self._catalog.children(super_uid)

    def function(self, name: str) -> UserFunction | None:
        return self._catalog.function(name)

    def external_connection(self, name: str) -> ExternalConnection | None:
        return self._catalog.external_connection(name)

    def external_table(self, connection: str, name: str) -> Table:
        return self._catalog.external_table(connection, name)

    def external_connection_names(self) -> Iterable[str]:
        return self._catalog.external_connection_names()


class WithExternalTable:
    """A catalog in which a table of an external server is as it was."""

    def __init__(self, view: CatalogView, table: Table) -> None:
        self._table = table
        self.database = view.database
        self.database_names = view.database_names
        self.table = view.table
        self.view = view.view
        self.table_names = view.table_names
        self.children = view.children
        self.function = view.function
        self.external_connection = view.external_connection
        self.external_connection_names = view.external_connection_names

    def external_table(self, connection: str, name: str) -> Table:
        return self._table
