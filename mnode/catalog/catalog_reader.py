"""Reads the catalog's records from their entries: for the engine when it opens, and for other processes at any time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from penstock.mnode.catalog import catalog_codec as codec
from penstock.mnode.catalog import catalog_store as store
from penstock.mnode.catalog import child_entries
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.catalog.catalog_store import StoredEntries, open_entries
from penstock.mnode.catalog.entry_kinds import DATABASE, STREAM, EntryKind, R
from penstock.mnode.catalog.table_index import child_as_table
from penstock.sql.schema import ChildTable, Database, Table


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
        return None if value is None else DATABASE.json.decode(value)

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

    def all_children(self) -> dict[int, list[ChildTable]]:
        """Returns the child tables by super table, those of one by age."""
        return child_entries.all_children(self._entries)

    def children(self, super_uid: int) -> list[ChildTable]:
        """Returns the child tables of a super table, by age."""
        return child_entries.all_children(self._entries, codec.key(super_uid)).get(super_uid, [])

    def child(self, super_uid: int, uid: int) -> ChildTable | None:
        return child_entries.stored_child(self._entries, super_uid, uid)

    def all(self, kind: EntryKind[R]) -> list[R]:
        """Returns the records of a kind, in order of creation."""
        return self._decoded(kind, self._entries.items(kind.store))

    def sound_streams(self, damaged: dict[int, str]) -> list[StreamRecord]:
        """Returns the streams, but those whose entries can't be read, which are noted by their id."""
        return self._decoded(STREAM, self._entries.sound_items(STREAM.store, damaged))

    def users_lost(self) -> bool:
        """Whether it was built again without its users."""
        return bool(self._entries.get(store.META, b"users_lost"))

    def _decoded(self, kind: EntryKind[R], items: Iterable[tuple[bytes, Any]]) -> list[R]:
        return sorted((kind.json.decode(value) for _, value in items), key=kind.order)
