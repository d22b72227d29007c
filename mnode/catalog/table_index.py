"""Databases, tables, child tables and views in memory, by name and by uid."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter, itemgetter, lt
from typing import Literal

from penstock.mnode.catalog import system_schema
from penstock.mnode.catalog.catalog_lock import CatalogLock
from penstock.sql.schema import ChildTable, Database, Table, View

_UID, _NAME = itemgetter(0), itemgetter(1)  # of a child table: attributes take twice as long
_FEW = 100


class ChildList:
    """Found by uid, with a tenth of a dictionary's memory. One changes it at a time; readers don't wait.

    What a reader has found the place of stays there: the list grows at its end, else another takes its place.
    """

    __slots__ = ("_tables",)

    def __init__(self) -> None:
        self._tables: list[ChildTable] = []  # uids ascend

    def __len__(self) -> int:
        return len(self._tables)

    def __iter__(self) -> Iterator[ChildTable]:
        return iter(self._tables)

    def get(self, uid: int) -> ChildTable | None:
        """Returns the child table with this uid, if there is one."""
        tables = self._tables
        place = bisect_left(tables, uid, key=_UID)
        return tables[place] if place < len(tables) and tables[place].uid == uid else None

    def put(self, added: Sequence[ChildTable]) -> None:
        """Takes in new child tables, and changed ones in the place of what they were."""
        if not added:
            return
        tables, uids = self._tables, list(map(_UID, added))
        if (not tables or tables[-1].uid < uids[0]) and all(map(lt, uids, uids[1:])):
            tables.extend(added)
            return
        new = []
        for child in added:
            place = bisect_left(tables, child.uid, key=_UID)
            if place < len(tables) and tables[place].uid == child.uid:
                tables[place] = child
            else:
                new.append(child)
        if new:
            self._tables = sorted([*tables, *new], key=_UID)

    def remove(self, gone: Collection[ChildTable]) -> None:
        """Forgets child tables that are there."""
        tables = self._tables
        if len(gone) > _FEW:
            uids = set(map(_UID, gone))
            self._tables = [child for child in tables if child.uid not in uids]
            return
        left: list[ChildTable] = []
        start = 0
        for uid in sorted(map(_UID, gone)):
            place = bisect_left(tables, uid, start, key=_UID)
            if place == len(tables) or tables[place].uid != uid:
                raise KeyError(uid)
            left += tables[start:place]
            start = place + 1
        self._tables = left + tables[start:]


class _Namespace:
    """Everything of one database by name."""

    __slots__ = ("children", "tables", "views")

    def __init__(self) -> None:
        self.tables: dict[str, int] = {}
        self.children: dict[str, ChildTable] = {}
        self.views: dict[str, View] = {}


class TableIndex:
    """What there is, as the last transaction has left it. Readers don't wait for a disk, and hardly ever for a lock.

    Methods that change it are called by the repositories of the catalog, with the lock held.
    """

    def __init__(self, lock: CatalogLock) -> None:
        self._lock = lock
        self._databases: dict[str, Database] = {}
        self._namespaces: dict[str, _Namespace] = {}
        #: what belongs to tables that no name leads to yet, by their uids
        self._staged: dict[int, _Namespace] = {}
        self._tables: dict[int, Table] = {}
        self._used_names: dict[int, tuple[str, ...]] = {}
        self._children: dict[int, ChildList] = {}
        self._children_lists: dict[int, tuple[ChildTable, ...]] = {}
        self._moves = 0
        self._changes = 0

    # --- databases ---------------------------------------------------------------------------------------------

    def database(self, name: str) -> Database | None:
        return self._databases.get(name) or system_schema.database(name)

    def user_database(self, name: str) -> Database | None:
        """Returns a database that isn't the system's."""
        return self._databases.get(name)

    def databases(self) -> tuple[Database, ...]:
        """Returns the users' databases, in order of creation."""
        with self._lock:
            return tuple(sorted(self._databases.values(), key=attrgetter("vgroup_ids")))

    def databases_now(self) -> list[Database]:
        """Returns the users' databases in any order, without waiting for who changes the catalog."""
        return list(self._databases.values())

    def database_names(self) -> list[str]:
        return [*self._databases, *system_schema.DATABASES]

    # --- tables ------------------------------------------------------------------------------------------------

    def table(self, database: str, name: str) -> Table | None:
        """Returns a super, normal, child or system table."""
        namespace = self._namespaces.get(database)
        if namespace is None:
            return system_schema.table(database, name)
        uid = namespace.tables.get(name)
        if uid is not None:
            return self._tables.get(uid)
        found = namespace.children.get(name)
        if found is None:
            return None
        parent = self._tables.get(found.super_uid)
        return None if parent is None else child_as_table(parent, found)

    def rows_of(self, database: str, name: str) -> tuple[Table, int, int] | None:
        """Returns where the rows of a child or normal table go: the table that holds them, its own uid, its vgroup.

        Cheaper than `table`. None for tables of other kinds, and if there is none.
        """
        namespace = self._namespaces.get(database)
        if namespace is None:
            return None
        found = namespace.children.get(name)
        if found is not None:
            parent = self._tables.get(found.super_uid)
            return None if parent is None else (parent, found.uid, found.vgroup_id)
        table = self._tables.get(namespace.tables.get(name, 0))
        return None if table is None or table.vgroup_id is None else (table, table.uid, table.vgroup_id)

    def table_by_uid(self, uid: int) -> Table | None:
        """Returns the super or normal table with this uid."""
        return self._tables.get(uid)

    def table_names(self, database: str) -> Iterable[str]:
        """Returns the names of super and normal tables, views and some child tables."""
        namespace = self._namespaces.get(database)
        if namespace is None:
            return system_schema.table_names(database)
        with self._lock:
            some = [name for name, _ in zip(namespace.children, range(1000), strict=False)]
            return [*namespace.tables, *namespace.views, *some]

    def names_of_tables(self, database: str) -> AbstractSet[str]:
        """Returns the names of super and normal tables of a user's database, as they are at any time."""
        return self._namespaces[database].tables.keys()

    def tables(self, database: str, kind: Literal["super", "normal"]) -> list[Table]:
        """Returns the super or the normal tables of a database, in order of creation."""
        with self._lock:
            namespace = self._namespaces.get(database)
            uids = sorted(namespace.tables.values()) if namespace is not None else []
            return [self._tables[uid] for uid in uids if self._tables[uid].kind == kind]

    def staged_tables(self, database: str) -> list[Table]:
        """Returns the tables of a database that are going to take the place of others."""
        with self._lock:
            return [self._tables[uid] for uid in sorted(self._staged) if self._tables[uid].database == database]

    def all_tables(self, database: str) -> list[Table]:
        """Returns all tables of a database, also those that no name leads to yet."""
        namespace = self._namespaces.get(database)
        named = () if namespace is None else namespace.tables.values()
        return [*(self._tables[uid] for uid in named), *self.staged_tables(database)]

    def used_physical_names(self, uid: int) -> tuple[str, ...]:
        """Returns every storage name that a column of the table has or ever had."""
        return self._used_names.get(uid, ())

    # --- views -------------------------------------------------------------------------------------------------

    def view(self, database: str, name: str) -> View | None:
        namespace = self._namespaces.get(database)
        return None if namespace is None else namespace.views.get(name)

    def views(self, database: str | None = None) -> list[View]:
        """Returns the views of a database, or of all, in order of creation."""
        with self._lock:
            wanted = [*self._namespaces] if database is None else [database]
            found = (view for name in wanted if name in self._namespaces
                     for view in self._namespaces[name].views.values())
            return sorted(found, key=attrgetter("uid"))

    @property
    def has_views(self) -> bool:
        """Whether there is any view."""
        return any(namespace.views for namespace in [*self._namespaces.values()])

    # --- child tables ------------------------------------------------------------------------------------------

    def children(self, super_uid: int) -> tuple[ChildTable, ...]:
        """Returns the child tables of a super table, or the one entry of a normal table, in order of creation."""
        known = self._children_lists.get(super_uid)
        if known is not None:
            return known
        with self._lock:
            table = self._tables.get(super_uid)
            if table is not None and table.kind == "normal":
                assert table.vgroup_id is not None
                known = (ChildTable(table.uid, table.name, table.vgroup_id, (), table.create_time_ms),)
            else:
                known = tuple(self._children.get(super_uid, ()))
            self._children_lists[super_uid] = known
            return known

    def child(self, database: str, name: str) -> ChildTable | None:
        """Returns the child table of this name, of whatever super table."""
        namespace = self._namespaces.get(database)
        return namespace.children.get(name) if namespace is not None else None

    def children_beside(self, parent: Table) -> Mapping[str, ChildTable]:
        """Returns what `child` finds where this super table has its children: by name, as it is at any time."""
        if parent.replaces is None and parent.database not in self._namespaces:
            return {}
        return self._namespace_of(parent).children

    def child_of(self, parent: Table, name: str) -> ChildTable | None:
        """Returns the child table of this name that a super table has."""
        found = self._namespace_of(parent).children.get(name)
        return found if found is not None and found.super_uid == parent.uid else None

    def child_by_uid(self, super_uid: int, uid: int) -> ChildTable | None:
        known = self._children.get(super_uid)
        return None if known is None else known.get(uid)

    def name_by_uid(self, storage_uids: Iterable[int], uid: int) -> str | None:
        """Returns the name of a normal table, or of a child table of one of these super tables; None if it is gone."""
        for super_uid in storage_uids:
            child = self.child_by_uid(super_uid, uid)
            if child is not None:
                return child.name
        table = self._tables.get(uid)
        return None if table is None else table.name

    def children_of(self, super_uid: int, uids: Iterable[int]) -> list[ChildTable]:
        """Returns those of these child tables of a super table that are there."""
        return [child for uid in uids if (child := self.child_by_uid(super_uid, uid)) is not None]

    def child_count(self, super_uid: int) -> int:
        return len(self._children.get(super_uid, ()))

    @property
    def moves(self) -> int:
        """How often child tables were dropped or moved: while it stays, one that was found is still there."""
        return self._moves

    @property
    def changes(self) -> int:
        """How often anything of what `user_database` and `rows_of` have answered may have changed.

        It counts after each change, before anybody is told that it is done: who has looked something up at a number
        may go on with it while that stays.
        """
        return self._changes

    # --- names -------------------------------------------------------------------------------------------------

    def is_free(self, database: str, name: str) -> bool:
        """Whether no table, child table or view of a database has this name."""
        namespace = self._namespaces[database]
        return all(name not in names for names in (namespace.tables, namespace.children, namespace.views))

    def taken_below(self, parent: Table, names: Collection[str]) -> AbstractSet[str]:
        """Returns those of the names that no new child table of `parent` may have.

        If `parent` is going to replace another table, it may be the name of one of that one's children.
        """
        if parent.replaces is None:
            namespace = self._namespaces[parent.database]
            if len(names) == 1:
                [name] = names
                return frozenset() if self.is_free(parent.database, name) else {name}
            # There may be many of either, and nearly always they have nothing in common.
            return set().union(*(known.keys() & names for known in (
                namespace.tables, namespace.children, namespace.views) if not known.keys().isdisjoint(names)))
        staged = self._staged[parent.uid].children
        return {name for name in names if name in staged or self._is_foreign(parent, name)}

    def foreign_name(self, staged: Table) -> str | None:
        """Returns the name of a child table of `staged` that was given to something else meanwhile, if there is one."""
        return next((name for name in self._staged[staged.uid].children if self._is_foreign(staged, name)), None)

    def _is_foreign(self, staged: Table, name: str) -> bool:
        """Whether a name belongs to something else than the table that is going to be replaced."""
        namespace = self._namespaces[staged.database]
        child = namespace.children.get(name)
        if child is not None:
            return child.super_uid != staged.replaces
        return name in namespace.tables or name in namespace.views

    def _namespace_of(self, table: Table) -> _Namespace:
        return self._namespaces[table.database] if table.replaces is None else self._staged[table.uid]

    # --- changes -----------------------------------------------------------------------------------------------

    def become(self, other: TableIndex) -> None:
        """Has what another index has, which isn't used any more. What was found before may be gone."""
        self._tables, self._used_names, self._children = other._tables, other._used_names, other._children
        self._staged, self._namespaces, self._databases = other._staged, other._namespaces, other._databases
        self._children_lists = {}
        self.note_moves()

    def remember_database(self, database: Database) -> None:
        self._databases[database.name] = database
        self._namespaces.setdefault(database.name, _Namespace())
        self._changes += 1

    def forget_database(self, name: str) -> None:
        """Forgets a database with its tables."""
        uids = [table.uid for table in self.all_tables(name)]
        del self._databases[name]
        del self._namespaces[name]
        for uid in uids:
            self.forget_table(uid)
        self._changes += 1

    def remember_table(self, table: Table, used: Sequence[str]) -> None:
        """`used`: every storage name that a column of it has or ever had."""
        if table.replaces is not None:
            self._staged.setdefault(table.uid, _Namespace())
        self._tables[table.uid] = table
        self._used_names[table.uid] = tuple(used)
        self._namespace_of(table).tables[table.name] = table.uid
        if table.kind == "super":
            self._children.setdefault(table.uid, ChildList())
        self._children_lists.pop(table.uid, None)
        self._changes += 1

    def remember_view(self, view: View) -> None:
        """Keeps a view, in the place of one of the same name."""
        self._namespaces[view.database].views[view.name] = view

    def forget_view(self, view: View) -> None:
        del self._namespaces[view.database].views[view.name]

    def name_table(self, table: Table) -> None:
        """Gives a table that had no name yet the one that it was made for; it has no children."""
        del self._staged[table.uid]
        self.remember_table(table, self._used_names[table.uid])

    def replace_table(self, table: Table, stale: Table) -> None:
        """Puts a table that had no name yet in the place of `stale`, which is still known by its uid."""
        staged, before, after = self._staged[table.uid], self._namespaces[table.database], _Namespace()
        after.tables, after.views = {**before.tables, table.name: table.uid}, before.views
        after.children = {name: found for name, found in before.children.items() if found.super_uid != stale.uid}
        after.children.update(staged.children)
        # Readers take no lock: they find all of the old names or all of the new ones.
        self._tables[table.uid] = table
        self._namespaces[table.database] = after
        del self._staged[table.uid]
        self._changes += 1

    def note_change(self) -> None:
        """What was found before may mean something else: streams have come to write it, or don't any more."""
        self._changes += 1

    def drop_table(self, table: Table) -> None:
        """Forgets a table with its name and its children."""
        namespace = self._namespace_of(table)
        del namespace.tables[table.name]
        for child in self._children.get(table.uid, ()):
            del namespace.children[child.name]
        self.forget_table(table.uid)

    def forget_table(self, uid: int) -> None:
        """Drops what is known of a table that no name leads to any more."""
        for cache in (self._tables, self._used_names, self._children, self._children_lists, self._staged):
            cache.pop(uid, None)
        self._changes += 1

    def remember_children(self, parent: Table, added: Sequence[ChildTable]) -> None:
        members = self._children.get(parent.uid, ChildList())
        known = len(members)
        members.put(added)
        self._namespace_of(parent).children.update(zip(map(_NAME, added), added, strict=True))
        if len(members) < known + len(added):  # new ones were in no answer yet
            self._changes += 1
        self._children_lists.pop(parent.uid, None)

    def forget_children(self, parent: Table, children: Collection[ChildTable]) -> None:
        by_name = self._namespace_of(parent).children
        self._children[parent.uid].remove(children)
        for child in children:
            del by_name[child.name]
        self._children_lists.pop(parent.uid, None)
        self.note_moves()

    def note_moves(self) -> None:
        """Child tables were dropped, or moved to other vgroups."""
        self._moves += 1
        self._changes += 1


def child_as_table(parent: Table, child: ChildTable) -> Table:
    """Returns the child table with its super table's columns and tags."""
    return Table(
        child.uid, parent.database, child.name, "child", parent.columns, parent.tags, parent.uid, parent.name,
        child.tag_values, child.vgroup_id, child.create_time_ms, schema_version=parent.schema_version,
    )
