"""Reads the catalog's records from their entries: for the engine when it opens, and for other processes at any time."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

from penstock.mnode.catalog import catalog_codec as codec
from penstock.mnode.catalog import catalog_store as store
from penstock.mnode.catalog import child_entries
from penstock.mnode.catalog.catalog_records import (
    ConnectionRecord,
    IngestRecord,
    Snode,
    StreamRecord,
    Unfinished,
    UserRecord,
)
from penstock.mnode.catalog.catalog_store import StoredEntries, open_entries
from penstock.mnode.catalog.table_index import child_as_table
from penstock.sql.schema import ChildTable, Database, Table, UserFunction, View


class CatalogReader:
    """What is asked for, as it is then. Raises CorruptionError for entries that are damaged."""

    def __init__(self, entries: StoredEntries) -> None:
        self._entries = entries

    @classmethod
    def of_other_process(cls, path: Path) -> CatalogReader:
        """Returns a reader beside a running engine, to be closed; raises what `open_entries` does."""
        return cls(open_entries(path))

    def close(self) -> None:
        self._entries.close()

    def database(self, name: str) -> Database | None:
        value = self._entries.get(store.DATABASES, name.encode())
        return None if value is None else codec.database_from_json(value)

    def databases(self) -> list[Database]:
        """Returns the users' databases, in order of creation."""
        found = (codec.database_from_json(value) for _, value in self._entries.items(store.DATABASES))
        return sorted(found, key=attrgetter("vgroup_ids"))

    def all_tables(self) -> Iterator[tuple[Table, list[str]]]:
        """Yields the super and the normal tables by age, each with the storage names that its columns ever had."""
        return (codec.table_from_json(value) for _, value in self._entries.items(store.TABLES))

    def tables(self, database: str) -> list[Table]:
        """Returns the super and the normal tables of a database that have names, in order of creation."""
        return [table for table, _ in self.all_tables() if table.database == database and table.replaces is None]

    def table(self, database: str, name: str) -> Table | None:
        """Returns a super, normal or child table."""
        supers = {}
        for table in self.tables(database):
            if table.name == name:
                return table
            supers[table.uid] = table
        for uid, parent in supers.items():
            child = next((child for child in self.children(uid) if child.name == name), None)
            if child is not None:
                return child_as_table(parent, child)
        return None

    def views(self) -> list[View]:
        """Returns the views, in order of creation."""
        return [codec.view_from_json(value) for _, value in self._entries.items(store.VIEWS)]

    def all_children(self) -> dict[int, list[ChildTable]]:
        """Returns the child tables by super table, those of one by age."""
        return child_entries.all_children(self._entries)

    def children(self, super_uid: int) -> list[ChildTable]:
        """Returns the child tables of a super table, by age."""
        return child_entries.all_children(self._entries, codec.key(super_uid)).get(super_uid, [])

    def child(self, super_uid: int, uid: int) -> ChildTable | None:
        return child_entries.stored_child(self._entries, super_uid, uid)

    def streams(self) -> list[StreamRecord]:
        """Returns the streams, in order of creation."""
        return [codec.stream_from_json(value) for _, value in self._entries.items(store.STREAMS)]

    def sound_streams(self, damaged: dict[int, str]) -> list[StreamRecord]:
        """As `streams`; those whose entries can't be read are left out and noted by their id."""
        return [codec.stream_from_json(value) for _, value in self._entries.sound_items(store.STREAMS, damaged)]

    def ingests(self) -> list[IngestRecord]:
        """Returns the ingests, in order of creation."""
        return [codec.ingest_from_json(value) for _, value in self._entries.items(store.INGESTS)]

    def snodes(self) -> list[Snode]:
        return [Snode(**value) for _, value in self._entries.items(store.SNODES)]

    def functions(self) -> list[UserFunction]:
        """Returns the users' functions, in order of creation."""
        found = (codec.function_from_json(value) for _, value in self._entries.items(store.FUNCTIONS))
        return sorted(found, key=attrgetter("uid"))

    def users(self) -> list[UserRecord]:
        """Returns the users, in order of creation."""
        found = (codec.user_from_json(value) for _, value in self._entries.items(store.USERS))
        return sorted(found, key=attrgetter("created"))

    def users_lost(self) -> bool:
        """Whether it was built again without its users."""
        return bool(self._entries.get(store.META, b"users_lost"))

    def connections(self) -> list[ConnectionRecord]:
        """Returns the connections to external servers, in order of creation."""
        found = (codec.connection_from_json(value) for _, value in self._entries.items(store.CONNECTIONS))
        return sorted(found, key=attrgetter("created"))

    def unfinished(self) -> list[Unfinished]:
        return [Unfinished(**value) for _, value in self._entries.items(store.UNFINISHED)]
