"""Changes of databases, tables, child tables and views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import repeat
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from penstock.common.errors import AlreadyExistsError, InternalError, NotFoundError
from penstock.common.placement import Cut, owners, places
from penstock.mnode.catalog import catalog_codec as codec
from penstock.mnode.catalog import child_entries
from penstock.mnode.catalog.catalog_records import Regrouping, Unfinished
from penstock.mnode.catalog.catalog_store import TABLES, CatalogStore, Transaction
from penstock.mnode.catalog.created_children import CreatedChildren
from penstock.mnode.catalog.entry_kinds import DATABASE, VIEW
from penstock.mnode.catalog.table_index import TableIndex
from penstock.mnode.catalog.unfinished_work import UnfinishedWork
from penstock.mnode.catalog.user_repository import UserRepository
from penstock.mnode.catalog.waiting_children import WaitingChildren
from penstock.sql.rights import GrantObject
from penstock.sql.schema import (
    DATABASE_MISSING,
    ChildTable,
    Column,
    Database,
    DatabaseOptions,
    RestoredFrom,
    Table,
    TagValue,
    View,
    child_tables,
)

#: `Table.replaces` of the result table of a stream that isn't created yet
NO_TABLE = 0

_DATABASE_EXISTS = 0x0381
_TABLE_EXISTS = 0x0603
_TABLE_MISSING = 0x2603


class SchemaRepository:
    """Makes each change durable, then puts it into the index. What a drop leaves in the vnodes, the caller removes.

    New child tables may wait to be stored: see `WaitingChildren`.
    """

    def __init__(
        self, store: CatalogStore, index: TableIndex, users: UserRepository, unfinished: UnfinishedWork,
        waiting: WaitingChildren,
    ) -> None:
        self._store = store
        self._waiting = waiting
        self._index = index
        self._users = users
        self._unfinished = unfinished

    # --- databases ---------------------------------------------------------------------------------------------

    def create_database(self, name: str, options: DatabaseOptions, now_ms: int) -> Database:
        """Returns the new database with its vgroups. `AlreadyExistsError` if the name is taken."""
        with self._store.transaction() as write:
            if self._index.database(name) is not None:
                raise AlreadyExistsError(f"database {name} already exists", code=_DATABASE_EXISTS)
            first = write.take_vgroups(options.vgroups)
            database = Database(name, options, tuple(range(first, first + options.vgroups)), now_ms)
            self._unfinished.note(write, [Unfinished("make_vnode", vgroup_id) for vgroup_id in database.vgroup_ids])
            self.put_database(write, database)
        return database

    def alter_database(self, name: str, options: DatabaseOptions) -> Database:
        with self._store.transaction() as write:
            database = replace(self._require_database(name), options=options)
            self.put_database(write, database)
        return database

    def set_origin(self, name: str, before: RestoredFrom, uids: tuple[int, int] | None) -> RestoredFrom:
        """Takes note that a new database is one of `before`, and returns what it is of now.

        `uids`: the first and the last one that child tables had there; they have as many here, reserved for them. None:
        there were none, and child tables that come are called by the uids that they get.
        """
        with self._store.transaction() as write:
            origin = RestoredFrom(before.name, 0)
            if uids is not None:
                shift = write.take_ids(uids[1] - uids[0] + 1) - uids[0]
                origin = RestoredFrom(before.name, before.shift + shift, (uids[0] + shift, uids[1] + shift))
            self.put_database(write, replace(self._require_database(name), origin=origin))
        return origin

    def drop_database(self, name: str) -> Database:
        """Removes a database with all of its tables and views."""
        with self._store.transaction() as write:
            database = self._require_database(name)
            write.delete(DATABASE.store, DATABASE.key(database))
            for table in self._index.all_tables(name):
                self._delete_entries(write, table)
            for view in self._index.views(name):
                write.delete(VIEW.store, VIEW.key(view))
            self._users.take_grants(write, lambda on: on.kind == "table" and on.database == name)
            self._unfinished.forget(write, [Unfinished("make_vnode", one) for one in database.vgroup_ids])
            self._unfinished.note(write, [Unfinished("remove_vnode", one) for one in database.vgroup_ids])
            write.afterwards(lambda: self._index.forget_database(name))
        return database

    def regrouping(self, name: str, cut: Cut) -> Regrouping:
        """Returns what a database is like once its shares are cut; changes nothing."""
        with self._store.lock:
            known, following = self._require_database(name), self._store.counters.next_vgroup
            more = len(cut.shares) - len(known.vgroup_ids)
            ids = (*known.vgroup_ids, *range(following, following + more))
            database = replace(known, options=replace(known.options, vgroups=len(ids)), vgroup_ids=ids,
                               cut_shares=cut.shares)
            moving: dict[int, dict[int, list[int]]] = {}
            for table in self._index.all_tables(name):
                for child in self._index.children(table.uid):
                    vgroup_id = stable_vgroup(database, child.name)
                    if vgroup_id != child.vgroup_id:
                        moving.setdefault(vgroup_id, {}).setdefault(table.uid, []).append(child.uid)
            return Regrouping(database, cut.parents, moving)

    # --- tables ------------------------------------------------------------------------------------------------

    def create_table(
        self,
        database: str,
        name: str,
        columns: Sequence[Column],
        tags: Sequence[Column],
        *,
        super_table: bool,
        now_ms: int,
        comment: str | None = None,
        replaces: int | None = None,
    ) -> Table:
        """Returns the new super or normal table; the `physical` names given are ignored and assigned here.

        With `replaces`, the uid of the table of this name, the new one has no name until `StreamRepository.replace`;
        with NO_TABLE until `StreamRepository.create`.
        """
        with self._store.transaction() as write:
            owning = self._require_database(database)
            if not replaces:
                self._require_free(database, name)
            used: list[str] = []
            table = Table(
                write.take_ids(), database, name, "super" if super_table else "normal",
                tuple(_with_physical(columns, used)), tuple(_with_physical(tags, used)),
                vgroup_id=None if super_table else stable_vgroup(owning, name),
                create_time_ms=now_ms, comment=comment, replaces=replaces,
            )
            self._put_table(write, table, used)
        return table

    def replace_table(self, table: Table, children_tags: Mapping[int, tuple[TagValue, ...]] | None = None) -> Table:
        """Stores a changed schema of a super or normal table under the next schema version.

        `children_tags` gives the new tag values of all children, for added and dropped tags.
        """
        with self._store.transaction() as write:
            self._require_table(table.uid, f"table {table.name} does not exist")
            changed = replace(table, schema_version=table.schema_version + 1)
            used = list(self._index.used_physical_names(table.uid))
            used += [c.physical for c in (*table.columns, *table.tags) if c.physical not in used]
            self._put_table(write, changed, used)
            if children_tags:
                self._change_children(write, changed, [child._replace(tag_values=children_tags[child.uid])
                                                       for child in self._index.children(table.uid)
                                                       if child.uid in children_tags])
        return changed

    def drop_table(self, uid: int) -> Table:
        """Removes a super table with its children, or a normal table."""
        with self._store.transaction() as write:
            table = self._require_table(uid, "the table does not exist")
            self.delete_table(write, table)
        return table

    # --- child tables ------------------------------------------------------------------------------------------

    def create_children(
        self, super_uid: int, children: Sequence[tuple[str, tuple[TagValue, ...]]], now_ms: int
    ) -> list[ChildTable]:
        """Does what `add_children` does with names and tag values in pairs."""
        names, tags = zip(*children, strict=True) if children else ((), ())
        return self.add_children(super_uid, names, columns_of(tags), now_ms).tables

    def add_children(
        self, super_uid: int, names: Sequence[str], tags: Sequence[Sequence[TagValue]], now_ms: int,
        distinct: AbstractSet[str] | None = None, uids: Sequence[int] | None = None,
    ) -> CreatedChildren:
        """Returns the new child tables, placed on vgroups by their names. All or none are created.

        `tags`: for each tag of the super table, the values of all of them. `distinct`: the names as a set. `uids`: what
        was reserved for them, ascending; None: new ones. Those that wait to be stored survive a crash once the logs of
        their vnodes tell of them.
        `AlreadyExistsError` if a name is taken, or comes twice; NotFoundError if the super table was dropped.
        """
        if not names:
            return CreatedChildren(super_uid, np.zeros(0, np.uint64), (), (), (), now_ms, [])
        with self._store.lock:
            parent = self._index.table_by_uid(super_uid)
            if parent is None or parent.kind != "super":
                raise NotFoundError("the super table no longer exists", code=_TABLE_MISSING)
            self._require_new(parent, names, frozenset(names) if distinct is None else distinct)
            if len(tags) != len(parent.tags):
                raise InternalError(f"{len(tags)} tag values for {len(parent.tags)} tags of {parent.name}")
            if uids is None and self._waiting.may_wait(len(names)):
                new = _counted(self._store.take_ids(len(names)), len(names))
                created = self._created(parent, new, names, tags, now_ms)
                self._index.remember_children(parent, created.tables)
                self._waiting.add(created)
            else:
                with self._store.transaction() as write:
                    if uids is None:
                        new = _counted(write.take_ids(len(names)), len(names))
                        created = self._created(parent, new, names, tags, now_ms)
                        child_entries.add_children(write, created)
                    else:
                        created = self._created(parent, np.array(uids, np.uint64), names, tags, now_ms)
                        child_entries.insert_children(write, super_uid, created.tables)
                    write.afterwards(lambda: self._index.remember_children(parent, created.tables))
        return created

    def _created(self, parent: Table, uids: npt.NDArray[np.uint64], names: Sequence[str],
                 tags: Sequence[Sequence[TagValue]], now_ms: int) -> CreatedChildren:
        vgroup_ids = stable_vgroups(self._require_database(parent.database), names)
        rows = zip(*tags, strict=True) if tags else repeat(())
        tables = child_tables(uids.tolist(), names, vgroup_ids, rows, repeat(now_ms), parent.uid)
        return CreatedChildren(parent.uid, uids, names, vgroup_ids, tags, now_ms, tables)

    def take_in(self, super_uid: int, children: Sequence[ChildTable]) -> None:
        """Stores child tables that have their uids already; those of them whose names are taken are left out.

        Of several with one name, it is the newest's: others were taken back when a log couldn't be written.
        """
        with self._store.transaction() as write:
            parent = self._require_table(super_uid, "the super table no longer exists")
            taken = self._index.taken_below(parent, [child.name for child in children])
            newest = {child.name: child for child in sorted(children, key=attrgetter("uid"))}
            added = [child for name, child in newest.items() if name not in taken]
            child_entries.insert_children(write, super_uid, sorted(added, key=attrgetter("uid")))
            write.afterwards(lambda: self._index.remember_children(parent, added))

    def set_tags(self, super_uid: int, uid: int, tag_values: tuple[TagValue, ...]) -> ChildTable:
        with self._store.transaction() as write:
            parent, child = self._index.table_by_uid(super_uid), self._index.child_by_uid(super_uid, uid)
            if parent is None or child is None:
                raise NotFoundError("the child table no longer exists", code=_TABLE_MISSING)
            changed = child._replace(tag_values=tag_values)
            self._change_children(write, parent, [changed])
        return changed

    def drop_children(self, super_uid: int, uids: Sequence[int]) -> list[ChildTable]:
        with self._store.transaction() as write:
            parent = self._require_table(super_uid, "the super table no longer exists")
            dropped = self._index.children_of(super_uid, uids)
            child_entries.remove_children(write, super_uid, [child.uid for child in dropped])
            write.afterwards(lambda: self._index.forget_children(parent, dropped))
        return dropped

    # --- views -------------------------------------------------------------------------------------------------

    def put_view(self, view: View) -> View:
        """Stores a view, in the place of one of its name if there is one; its `uid` is assigned here.

        AlreadyExistsError if a table has its name.
        """
        with self._store.transaction() as write:
            self._require_database(view.database)
            stale = self._index.view(view.database, view.name)
            if stale is None:
                self._require_free(view.database, view.name)
            else:
                write.delete(VIEW.store, VIEW.key(stale))
            stored = replace(view, uid=write.take_ids())
            write.put(VIEW.store, VIEW.key(stored), VIEW.json.encode(stored))
            write.afterwards(lambda: self._index.remember_view(stored))
        return stored

    def drop_view(self, view: View) -> None:
        """Removes a view and the grants on it."""
        with self._store.transaction() as write:
            write.delete(VIEW.store, VIEW.key(view))
            self._users.take_grants(write, GrantObject("table", view.name, view.database).__eq__)
            write.afterwards(lambda: self._index.forget_view(view))

    # --- parts of transactions ---------------------------------------------------------------------------------

    def put_database(self, write: Transaction, database: Database) -> None:
        """Stores a new or changed database."""
        _store_database(write, database)
        write.afterwards(lambda: self._index.remember_database(database))

    def move_tables(self, write: Transaction, moving: Mapping[int, Mapping[int, Sequence[int]]]) -> None:
        """Places tables on other vgroups; `moving` is that of `Regrouping`."""
        moved: dict[int, list[ChildTable]] = {}
        for vgroup_id, tables in moving.items():
            for table_uid, uids in tables.items():
                table = self._require_table(table_uid, "the table no longer exists")
                if table.kind == "normal":
                    self._put_table(write, replace(table, vgroup_id=vgroup_id),
                                    self._index.used_physical_names(table_uid))
                else:
                    moved.setdefault(table_uid, []).extend(
                        child._replace(vgroup_id=vgroup_id) for child in self._index.children_of(table_uid, uids))
        for table_uid, members in moved.items():
            parent = self._require_table(table_uid, "the super table no longer exists")
            self._change_children(write, parent, members)
        write.afterwards(self._index.note_moves)

    def name_table(self, write: Transaction, uid: int) -> None:
        """Gives a table that was made for a new stream its name; does nothing for others."""
        table = self._index.table_by_uid(uid)
        if table is not None and table.replaces == NO_TABLE:
            self._require_free(table.database, table.name)
            named = replace(table, replaces=None)
            used = self._index.used_physical_names(uid)
            write.put(TABLES, codec.key(uid), codec.table_to_json(named, used))
            write.afterwards(lambda: self._index.name_table(named))

    def swap_tables(self, write: Transaction, fresh: Table, stale: Table) -> None:
        """Puts a table in the place of `stale`, which it was made to replace; that can still be read by its uid.

        `AlreadyExistsError` if a name of a new child table was given to something else meanwhile.
        """
        taken = self._index.foreign_name(fresh)
        if taken is not None:
            raise self._taken(fresh.database, taken)
        table = replace(fresh, replaces=None)
        write.put(TABLES, codec.key(table.uid),
                  codec.table_to_json(table, self._index.used_physical_names(table.uid)))
        self._delete_entries(write, stale)
        self._unfinished.note(write, [Unfinished("remove_table", stale.uid)])
        write.afterwards(lambda: self._index.replace_table(table, stale))

    def delete_table(self, write: Transaction, table: Table) -> None:
        """Removes a table with its children and the grants on it."""
        self._delete_entries(write, table)
        self._unfinished.note(write, [Unfinished("remove_table", table.uid)])
        if table.replaces is None:  # one that no name leads to yet has no grants
            self._users.take_grants(write, GrantObject("table", table.name, table.database).__eq__)
        write.afterwards(lambda: self._index.drop_table(table))

    def adopt(self, write: Transaction, databases: Iterable[Database], tables: Iterable[tuple[Table, Sequence[str]]],
              children: Mapping[int, Sequence[ChildTable]]) -> None:
        """Stores what `Rebuilt` says in the place of what is known; memory doesn't follow."""
        for database in databases:
            _store_database(write, database)
            for table in self._index.all_tables(database.name):
                self._delete_entries(write, table)
        for table, used in tables:
            write.put(TABLES, codec.key(table.uid), codec.table_to_json(table, used))
        for table_uid, members in children.items():
            child_entries.remove_all_children(write, table_uid)
            child_entries.put_children(write, table_uid, sorted(members, key=attrgetter("uid")))

    # --- inside ------------------------------------------------------------------------------------------------

    def _put_table(self, write: Transaction, table: Table, used: Sequence[str]) -> None:
        write.put(TABLES, codec.key(table.uid), codec.table_to_json(table, used))
        write.afterwards(lambda: self._index.remember_table(table, used))

    def _change_children(self, write: Transaction, parent: Table, children: Sequence[ChildTable]) -> None:
        child_entries.change_children(write, parent.uid, children)
        write.afterwards(lambda: self._index.remember_children(parent, children))

    def _delete_entries(self, write: Transaction, table: Table) -> None:
        write.delete(TABLES, codec.key(table.uid))
        child_entries.remove_all_children(write, table.uid)

    def _require_database(self, name: str) -> Database:
        database = self._index.user_database(name)
        if database is None:
            raise NotFoundError(f"database {name} does not exist", code=DATABASE_MISSING)
        return database

    def _require_table(self, uid: int, otherwise: str) -> Table:
        table = self._index.table_by_uid(uid)
        if table is None:
            raise NotFoundError(otherwise, code=_TABLE_MISSING)
        return table

    def _require_new(self, parent: Table, names: Sequence[str], distinct: AbstractSet[str]) -> None:
        taken = self._index.taken_below(parent, names)
        if taken:
            raise self._taken(parent.database, next(name for name in names if name in taken))
        if len(distinct) < len(names):
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise AlreadyExistsError(f"table {twice} is given twice", code=_TABLE_EXISTS)

    def _require_free(self, database: str, name: str) -> None:
        if not self._index.is_free(database, name):
            raise self._taken(database, name)

    def _taken(self, database: str, name: str) -> AlreadyExistsError:
        kind = "table" if self._index.view(database, name) is None else "view"
        return AlreadyExistsError(f"{kind} {database}.{name} already exists", code=_TABLE_EXISTS)


def _counted(first: int, count: int) -> npt.NDArray[np.uint64]:
    return np.arange(first, first + count, dtype=np.uint64)


def _store_database(write: Transaction, database: Database) -> None:
    write.put(DATABASE.store, DATABASE.key(database), DATABASE.json.encode(database))


def stable_vgroup(database: Database, table: str) -> int:
    """Returns the vgroup that a table of this name is placed on: the same on every machine, until vgroups are split."""
    return stable_vgroups(database, (table,))[0]


def stable_vgroups(database: Database, tables: Sequence[str]) -> list[int]:
    """Returns what `stable_vgroup` does for each of these tables."""
    shares, vgroup_ids = database.cut_shares, database.vgroup_ids
    if len(vgroup_ids) == 1:
        return [vgroup_ids[0]] * len(tables)
    found = owners(database.name, tables, shares) if shares else places(database.name, tables, len(vgroup_ids)).tolist()
    return [vgroup_ids[place] for place in found]


def columns_of(tags: Sequence[tuple[TagValue, ...]]) -> list[tuple[TagValue, ...]]:
    """Returns the values of each tag, where `tags` has those of each child table; InternalError if some have more."""
    if len(set(map(len, tags))) > 1:
        raise InternalError("child tables of one super table come with different numbers of tag values")
    return list(zip(*tags, strict=True))


def physical_name(name: str, taken: Iterable[str]) -> str:
    """Returns a storage name for a new column that was never given in its table before.

    DuckDB compares names without case, and some names are those of our own columns (`_tuid`, `_ver`, ...): both
    clashes are avoided here once instead of everywhere.
    """
    used = {other.lower() for other in taken} | {"_tuid", "_ver", "_change", "tbname"}
    if name.lower() not in used:
        return name
    number = 2
    while f"{name.lower()}_{number}" in used:
        number += 1
    return f"{name}_{number}"


def _with_physical(columns: Sequence[Column], used: list[str]) -> Iterator[Column]:
    for column in columns:
        physical = physical_name(column.name, used)
        used.append(physical)
        yield replace(column, physical=physical)
