"""What a vnode is told about its tables: which there are, which columns they have, and which of them are gone."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.common.errors import CorruptionError, InvalidStatementError
from penstock.vnode.store.manifest import SCHEMA_FILE
from penstock.vnode.store.memtable import VERSION_COLUMN
from penstock.vnode.store.parts import parquet_bytes
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN
from penstock.vnode.store.table_state import TableState
from penstock.vnode.store.table_store import TableStore
from penstock.vnode.store.tombstone_files import TombstoneFiles
from penstock.vnode.store.tombstones import Tombstone, file_schema
from penstock.wal.record import CHANGE_COLUMN, LAST_COLUMN, TUID_COLUMN

RESERVED_COLUMNS = frozenset({TUID_COLUMN, VERSION_COLUMN, CHANGE_COLUMN, LAST_COLUMN})
"""Names of columns that a stored row has beside those of its table."""


class TableDefinitions:
    """Defines and drops tables. Each change holds both of the store's locks until the MANIFEST has it."""

    def __init__(self, store: TableStore, tombstone_files: TombstoneFiles) -> None:
        self._store = store
        self._tombstone_files = tombstone_files

    def define(self, table_uid: int, schema: pa.Schema, key_columns: int) -> None:
        """Makes a storage table known, or gives it its newest columns; the same call again changes nothing.

        `schema`: the physical columns, the primary timestamp first; `key_columns`: 1, or 2 for a composite key.
        Raises InvalidStatementError when the key or the type of a column would change.
        """
        store = self._store
        schema = pa.schema([(field.name, field.type) for field in schema])
        _check_columns(table_uid, schema, key_columns)
        with store.manifest_lock, store.lock:
            store.require_writable()
            if table_uid in store.files.unknown_tables:
                raise CorruptionError(
                    f"{store.folder} has files of table {table_uid} that its MANIFEST doesn't know",
                    hint="restore the MANIFEST that belongs to them; penstock fsck --repair sets them aside")
            known = store.tables.get(table_uid)
            if known is None:
                with store.saving(lambda: store.tables.pop(table_uid)):
                    store.tables[table_uid] = TableState(table_uid, schema, key_columns)
                    self._write_schema_files(store.tables[table_uid])
                return
            before = known.schema, known.key_columns
            if known.schema.equals(schema) and known.key_columns == key_columns:
                return
            _check_evolution(known, schema, key_columns)
            with store.saving(lambda: known.set_schema(*before)):
                known.set_schema(schema, key_columns)
                self._write_schema_files(known)

    def _write_schema_files(self, table: TableState) -> None:
        """Writes files without rows, so that other readers' globs always match and know all columns."""
        store = self._store
        for folder, schema in ((store.files.parts(table.uid), table.run_schema),
                               (store.files.tombstones(table.uid), file_schema(table.time_type))):
            store.fs.make_dirs(folder)
            store.fs.write_atomic(folder / SCHEMA_FILE, parquet_bytes(schema.empty_table()))

    def drop(self, table_uid: int) -> None:
        """Forgets a table and all its rows; an unknown table is no error."""
        store = self._store
        with store.manifest_lock, store.lock:
            store.require_writable()
            table = store.tables.get(table_uid)
            if table is None:
                return

            def undo() -> None:
                store.tables[table_uid] = table
                store.files.dropped.discard(table_uid)

            with store.saving(undo):
                del store.tables[table_uid]
                store.files.dropped.add(table_uid)
            store.files.replace_all(table)
            self._tombstone_files.forget(table_uid)

    def drop_children(self, table_uid: int, tuids: Sequence[int]) -> None:
        """Removes all rows of child tables for every reader, also for older snapshots; their uids never come back."""
        if not tuids:
            return
        store = self._store
        with store.manifest_lock, store.lock:
            store.require_writable()
            table = store.table(table_uid)
            before = table.tombstones
            with store.saving(lambda: table.set_tombstones(before)):
                table.delete(Tombstone(store.wal.last_version + 1, tuple(sorted(set(tuids))), TS_MIN, TS_MAX, True))
        self._tombstone_files.publish(table)


def _check_columns(table_uid: int, schema: pa.Schema, key_columns: int) -> None:
    if key_columns not in (1, 2) or len(schema) < key_columns or not pa.types.is_timestamp(schema.field(0).type):
        raise InvalidStatementError(f"table {table_uid} needs a timestamp first and 1 or 2 key columns")
    if RESERVED_COLUMNS & set(schema.names) or len(set(schema.names)) != len(schema):
        raise InvalidStatementError(f"table {table_uid} has reserved or repeated column names: {schema.names}")


def _check_evolution(table: TableState, schema: pa.Schema, key_columns: int) -> None:
    keys = [(f.name, f.type) for f in table.schema][:table.key_columns]
    if key_columns != table.key_columns or [(f.name, f.type) for f in schema][:key_columns] != keys:
        raise InvalidStatementError(f"the key of table {table.uid} cannot change")
    for field in schema:
        index = table.schema.get_field_index(field.name)
        if index >= 0 and table.schema.field(index).type != field.type:
            raise InvalidStatementError(f"column {field.name} of table {table.uid} cannot change its type from "
                                        f"{table.schema.field(index).type} to {field.type}")
