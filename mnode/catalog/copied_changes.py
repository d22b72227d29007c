"""Changes of a copied log, as databases, tables, child tables and views in memory follow them."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.mnode.catalog import catalog_codec as codec
from penstock.mnode.catalog.catalog_log import EntryChange
from penstock.mnode.catalog.catalog_store import CHILDREN, TABLES
from penstock.mnode.catalog.entry_kinds import DATABASE, VIEW
from penstock.mnode.catalog.table_index import TableIndex
from penstock.sql.schema import ChildTable, Database, Table


class NetChanges:
    """What many changes, one after the other, come to: of each entry, whether it is there afterwards, and as what."""

    def __init__(self, changes: Iterable[EntryChange]) -> None:
        #: by store and key what is stored now, None if nothing is
        self.after: dict[tuple[bytes, bytes], bytes | None] = {}
        #: what was stored before all of them
        self.before: dict[tuple[bytes, bytes], bytes | None] = {}
        for change in changes:
            self.before.setdefault((change.store, change.key), change.before)
            self.after[change.store, change.key] = change.after
        self.stores = frozenset(store for store, _ in self.after)

    def of(self, store: bytes) -> Iterable[tuple[bytes, bytes | None]]:
        """Yields the keys that have changed in a store, with what is stored now."""
        return ((key, data) for (of, key), data in self.after.items() if of == store)


def follow_tables(index: TableIndex, changes: NetChanges) -> bool:
    """Has an index follow; called with its lock held. False if it must be made anew, since tables replace others.

    What goes goes first: its names may belong to something else by now. Raises CorruptionError.
    """
    tables = {int.from_bytes(key, "big"): None if data is None else codec.table_from_json(codec.unseal(data))
              for key, data in changes.of(TABLES)}
    if any(_replaces(index.table_by_uid(uid), None if found is None else found[0]) for uid, found in tables.items()):
        return False
    databases = {key.decode(): None if data is None else DATABASE.json.decode(codec.unseal(data))
                 for key, data in changes.of(DATABASE.store)}
    children = _children(changes)
    views = {int.from_bytes(key, "big"): None if data is None else VIEW.json.decode(codec.unseal(data))
             for key, data in changes.of(VIEW.store)}
    _forget(index, databases, [uid for uid, found in tables.items() if found is None], children)
    for known in index.views():
        if known.uid in views:
            index.forget_view(known)
    for database in databases.values():
        if database is not None:
            index.remember_database(database)
    for view in views.values():
        if view is not None:
            index.remember_view(view)
    for found in tables.values():
        if found is not None:
            index.remember_table(*found)
    for super_uid, those in children.items():
        parent = index.table_by_uid(super_uid)
        if parent is not None:
            index.remember_children(parent, [child for child in those.values() if child is not None])
    return True


def _replaces(before: Table | None, after: Table | None) -> bool:
    """Whether a table takes another one's place, or will, or is called otherwise now."""
    if any(table is not None and table.replaces is not None for table in (before, after)):
        return True
    return before is not None and after is not None and (before.database, before.name) != (after.database, after.name)


def _children(changes: NetChanges) -> dict[int, dict[int, ChildTable | None]]:
    """Returns by super table and uid what its child tables are now."""
    found: dict[int, dict[int, ChildTable | None]] = {}
    for key, data in changes.of(CHILDREN):
        those = found.setdefault(int.from_bytes(key[:8], "big"), {})
        those.update(dict.fromkeys(_members(key, changes.before[CHILDREN, key])))
        those.update(_members(key, data))
    return found


def _members(key: bytes, data: bytes | None) -> dict[int, ChildTable]:
    """Returns the child tables in an entry of many."""
    return {} if data is None else {child.uid: child for child in codec.children_of_batch(key, codec.unseal(data))}


def _forget(index: TableIndex, databases: dict[str, Database | None], gone: list[int],
            children: dict[int, dict[int, ChildTable | None]]) -> None:
    for name, database in databases.items():
        before = index.user_database(name)
        if before is not None and (database is None or database.create_time_ms != before.create_time_ms
                                   or not {*before.vgroup_ids} <= {*database.vgroup_ids}):
            index.forget_database(name)
    for uid in gone:
        table = index.table_by_uid(uid)
        if table is not None:
            index.drop_table(table)
    for super_uid, those in children.items():
        parent = index.table_by_uid(super_uid)
        stale = [known for uid, child in those.items()
                 if (known := index.child_by_uid(super_uid, uid)) is not None and _moves(known, child)]
        if parent is not None and stale:
            index.forget_children(parent, stale)


def _moves(before: ChildTable, after: ChildTable | None) -> bool:
    """Whether who has found a child table must look it up anew."""
    return after is None or (before.name, before.vgroup_id) != (after.name, after.vgroup_id)
