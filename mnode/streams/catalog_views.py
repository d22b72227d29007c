"""The catalog as it was at another time, to plan a statement again."""

from __future__ import annotations

from penstock.sql.schema import CatalogView, Table


class _OtherTime:
    """A catalog that differs in one thing, which a class below says."""

    def __init__(self, view: CatalogView) -> None:
        self._now = view
        self.database = view.database
        self.database_names = view.database_names
        self.view = view.view
        self.table_names = view.table_names
        self.children = view.children
        self.function = view.function
        self.external_connection = view.external_connection
        self.external_connection_names = view.external_connection_names

    def table(self, database: str, name: str) -> Table | None:
        return self._now.table(database, name)

    def external_table(self, connection: str, name: str) -> Table:
        return self._now.external_table(connection, name)


class WithoutTable(_OtherTime):
    """The catalog as it was before one of its tables was created."""

    def __init__(self, view: CatalogView, hidden: Table) -> None:
        super().__init__(view)
        self._hidden = hidden

    def table(self, database: str, name: str) -> Table | None:
        found = self._now.table(database, name)
        return None if found is not None and found.uid == self._hidden.uid else found


class WithExternalTable(_OtherTime):
    """A catalog in which a table of an external server is as it was."""

    def __init__(self, view: CatalogView, table: Table) -> None:
        super().__init__(view)
        self._table = table

    def external_table(self, connection: str, name: str) -> Table:
        return self._table
