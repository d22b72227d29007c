"""What each vnode knows of the catalog: its database and tables, in a file beside its log.

With it, a catalog that is lost is built again, and one that is older than the vnode is told from the right one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.common.errors import CorruptionError
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths
from penstock.common.sealed import seal, unseal
from penstock.mnode.catalog import catalog_codec as codec
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.entry_kinds import DATABASE
from penstock.sql.schema import Database, Table


@dataclass(frozen=True, slots=True)
class Description:
    """A database with its tables, as of a generation of the catalog.

    `tables`: super tables, and the normal tables of this vnode; each with the storage names its columns ever had.
    """

    generation: int
    database: Database
    tables: tuple[tuple[Table, tuple[str, ...]], ...]

    def says_the_same(self, other: Description | None) -> bool:
        """Whether another one tells nothing else, but for the generation."""
        return other is not None and (self.database, self.tables) == (other.database, other.tables)


def describe(catalog: Catalog, database: Database, vgroup_id: int) -> Description:
    """Returns what a vnode is to know."""
    generation = catalog.generation  # what changes meanwhile belongs to a later one, which is written again
    tables: Sequence[Table] = (
        *catalog.tables(database.name, "super"), *catalog.staged_tables(database.name),
        *(table for table in catalog.tables(database.name, "normal") if table.vgroup_id == vgroup_id))
    return Description(generation, database,
                       tuple((table, catalog.used_physical_names(table.uid)) for table in tables))


def write_description(fs: Fs, paths: DataPaths, vgroup_id: int, description: Description) -> None:
    """Replaces what a vnode knows. Raises StorageError."""
    body = json.dumps({
        "generation": description.generation,
        "database": DATABASE.json.encode(description.database),
        "tables": [codec.table_to_json(table, used) for table, used in description.tables],
    }, separators=(",", ":"), ensure_ascii=True).encode()
    fs.write_atomic(paths.description(vgroup_id), seal(body))


def read_description(fs: Fs, paths: DataPaths, vgroup_id: int) -> Description | None:
    """Returns what a vnode knows, or None if nothing was noted yet. Raises CorruptionError."""
    path = paths.description(vgroup_id)
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return None
    body = unseal(data, str(path), "penstock fsck --repair has it written again")
    try:
        fields = json.loads(body)
        tables = tuple((table, tuple(used)) for table, used in map(codec.table_from_json, fields["tables"]))
        return Description(fields["generation"], DATABASE.json.decode(fields["database"]), tables)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{path} is damaged: {error}") from error
