"""Child tables that come into being with their first row: found or created, announced in the WAL before any row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import repeat

import numpy as np

from penstock.common.clock import Clock
from penstock.common.errors import (
    AlreadyExistsError,
    InvalidStatementError,
    NotFoundError,
    PenstockError,
    ReplicasMissingError,
)
from penstock.common.responsiveness import uncollected
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.created_children import CreatedChildren
from penstock.mnode.catalog.name_lookup import TABLE_MISSING
from penstock.mnode.catalog.schema_repository import columns_of
from penstock.mnode.ddl import meta_records as meta
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.sql.schema import ChildTable, Table, TagValue, can_name_child
from penstock.vnode.store.sorted_keys import I64, U64
from penstock.vnode.write.vnode_writer import BegunWrite

_MANY = 1_000


class BegunChildren:
    """Child tables whose records are on their way into the logs: rows that are begun behind them come behind them.

    Whoever has begun them must wait, also if writing rows fails; others wait for that before they use them.
    """

    __slots__ = ("_of", "_unsure", "_writes", "created")

    def __init__(self, of: ChildCreator, created: CreatedChildren, writes: list[BegunWrite],
                 unsure: ReplicasMissingError | None) -> None:
        self._of = of
        self._writes = writes
        self._unsure = unsure
        self.created = created

    @property
    def is_unsure(self) -> bool:
        """Whether they are there, but not on as many nodes as there should be: `wait` says so."""
        return self._unsure is not None

    def wait(self) -> CreatedChildren:
        """Returns them once the logs tell of them. Raises StorageError; then they are gone again."""
        self._of.settle(self.created, self._writes)
        if self._unsure is not None:
            raise self._unsure
        return self.created


class ChildCreator:
    """Creates child tables; safe for many threads, and fast for those that exist."""

    def __init__(
        self, catalog: Catalog, storage: Storage, clock: Clock, changed: Callable[[int], None]
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._clock = clock
        self._changed = changed
        self._announced = threading.Condition(threading.Lock())
        self._waiting = 0  # threads that want what others have begun
        # Children whose META records may not be in the WAL yet, although the catalog has them.
        self._unannounced: set[str] = set()

    def ensure(self, parent: Table, wanted: Mapping[str, tuple[TagValue, ...]]) -> dict[str, ChildTable]:
        """Returns the child tables of these names, creating those that don't exist with the tag values given.

        Tag values () stand for a child that was there a moment ago: it is not created.
        `AlreadyExistsError` if a name belongs to a table that is no child of `parent`; then none is created.
        """
        names = list(wanted)
        return dict(zip(names, self.ensure_in_order(parent, names, list(wanted.values())), strict=True))

    def ensure_in_order(self, parent: Table, names: Sequence[str], tags: Sequence[tuple[TagValue, ...]]
                        ) -> list[ChildTable]:
        """Does what `ensure` does, in the order of the names, none of which comes twice; `tags` are those of each."""
        found, begun = self.begin_in_order(parent, names, tags)
        if begun is not None:
            begun.wait()
        return found

    def begin_in_order(self, parent: Table, names: Sequence[str], tags: Sequence[tuple[TagValue, ...]]
                       ) -> tuple[list[ChildTable], BegunChildren | None]:
        """Begins what `ensure_in_order` does, and returns what is to be waited for, too, if there is something."""
        found = self.known_in_order(parent, names)
        if found is not None:
            return found, None
        with self._announced:
            self._await(names)
            found, begun = self._begin_missing(parent, names, tags)
        if begun.is_unsure:
            begun.wait()  # raises before there are rows
        return found, begun

    def _begin_missing(self, parent: Table, names: Sequence[str], tags: Sequence[tuple[TagValue, ...]]
                       ) -> tuple[list[ChildTable], BegunChildren]:
        """Begins to create those that don't exist, and returns all; the caller holds `_announced`."""
        if set(map(len, tags)) == {len(parent.tags)}:
            begun = self._begin_all(parent, names, columns_of(tags))
            if begun is not None:
                return begun.created.tables, begun
        missing = self._missing(parent, names)
        gone = next((place for place in missing if len(tags[place]) != len(parent.tags)), None)
        if gone is not None:
            raise NotFoundError(f"child table {names[gone]} was dropped meanwhile", code=TABLE_MISSING)
        columns = columns_of([tags[place] for place in missing])
        there = {place: self._require(parent, names[place]) for place in {*range(len(names))}.difference(missing)}
        begun = self._begin(parent.uid, [names[place] for place in missing], columns)
        found = there | dict(zip(missing, begun.created.tables, strict=True))
        return [found[place] for place in range(len(names))], begun

    def ensure_placed(self, parent: Table, names: Sequence[str], tags: Sequence[Sequence[TagValue]]) -> tuple[U64, I64]:
        """Does what `ensure` does for names that may come twice, with the values of each tag; returns uids and vgroups.
        """
        found = self.known_in_order(parent, names)
        if found is None and len(tags) == len(parent.tags):
            with self._announced:
                self._await(names)
                begun = self._begin_all(parent, names, tags)
            if begun is not None:
                created = begun.wait()
                return created.uids, created.vgroups
        if found is None:
            rows = zip(*tags, strict=True) if tags else repeat(())
            made = self.ensure(parent, dict(zip(names, rows, strict=bool(tags))))
            found = [made[name] for name in names]
        return np.array([child[0] for child in found], np.uint64), np.array([child[2] for child in found], np.int64)

    def known(self, parent: Table, names: Iterable[str]) -> dict[str, ChildTable] | None:
        """Returns the child tables of these names if all of them exist and are announced, else None."""
        asked = list(names)
        found = self.known_in_order(parent, asked)
        return None if found is None else dict(zip(asked, found, strict=True))

    def known_in_order(self, parent: Table, names: Sequence[str]) -> list[ChildTable] | None:
        """Returns what `known` does, in the order of the names."""
        children, uid = self._catalog.children_beside(parent), parent.uid
        if names and names[0] not in children:  # mostly, none of them is there then
            self._find(parent, names[0])
            return None
        found = list(map(children.get, names))
        known = [child for child in found if child is not None and child.super_uid == uid]
        if len(known) < len(names):
            for name, child in zip(names, found, strict=True):
                if child is None or child.super_uid != uid:
                    self._find(parent, name)  # raises if the name is another table's
                    return None
        return known if self._unannounced.isdisjoint(names) else None  # asked last: what is found is announced then

    def is_announced(self, name: str) -> bool:
        """Whether the record of a child table that is there is in its log, or rows come behind it."""
        return name not in self._unannounced

    def await_announced(self, names: Sequence[str]) -> None:
        """Waits until the records of these child tables are in their logs, or they are gone again."""
        if not self._unannounced.isdisjoint(names):
            with self._announced:
                self._await(names)

    def _await(self, names: Sequence[str]) -> None:
        """Waits for what others have begun of these names; the caller holds `_announced`."""
        while not self._unannounced.isdisjoint(names):
            self._waiting += 1
            self._announced.wait()
            self._waiting -= 1

    def _begin_all(self, parent: Table, names: Sequence[str], tags: Sequence[Sequence[TagValue]]
                   ) -> BegunChildren | None:
        """Creates all of them, without looking each up before; None, with nothing done, if there is one already."""
        children = self._catalog.children_beside(parent)
        if names[0] in children or names[-1] in children:
            return None
        try:
            return self._begin(parent.uid, names, tags)
        except AlreadyExistsError:
            return None  # which of them, and whose it is, is found out one by one

    def _missing(self, parent: Table, names: Sequence[str]) -> list[int]:
        """Returns the places of the names that no table has; raises as `_find`."""
        missing = []
        tables = set() if parent.replaces is not None else self._catalog.names_of_tables(parent.database)
        for place, (name, child) in enumerate(
                zip(names, map(self._catalog.children_beside(parent).get, names), strict=True)):
            if child is None and name not in tables:
                missing.append(place)
            elif child is None or child.super_uid != parent.uid:
                self._find(parent, name)  # raises
        return missing

    def create(self, super_uid: int, children: Sequence[tuple[str, tuple[TagValue, ...]]],
               uids: Sequence[int] | None = None) -> list[ChildTable]:
        """Returns new child tables. `AlreadyExistsError` if any of the names is taken; then none is created.

        `uids`: see `SchemaRepository.add_children`.
        """
        if not children:
            return []
        names, tags = zip(*children, strict=True)
        with self._announced:
            self._await(names)
            begun = self._begin(super_uid, names, columns_of(tags), uids)
        return begun.wait().tables

    def _begin(self, super_uid: int, names: Sequence[str], tags: Sequence[Sequence[TagValue]],
               uids: Sequence[int] | None = None) -> BegunChildren:
        """Creates child tables; the caller holds `_announced`, and waits behind it."""
        if len(names) < _MANY:
            return self._begin_uncollected(super_uid, names, tags, uids)
        with uncollected():
            return self._begin_uncollected(super_uid, names, tags, uids)

    def _begin_uncollected(self, super_uid: int, names: Sequence[str], tags: Sequence[Sequence[TagValue]],
                           uids: Sequence[int] | None) -> BegunChildren:
        distinct = frozenset(names)
        self._unannounced |= distinct
        try:
            created, unsure = self._add(super_uid, names, tags, distinct, uids)
        except BaseException:
            self._unannounced -= distinct
            raise
        return BegunChildren(self, created, self._announce(created), unsure)

    def settle(self, created: CreatedChildren, writes: Sequence[BegunWrite]) -> None:
        """Waits for the records of child tables that were begun; see `BegunChildren.wait`."""
        if not created.names:
            return
        try:
            for write in writes:
                write.wait()
        except PenstockError:
            # Streams would never learn of a child without its record: the next try makes another one.
            self._take_back(created)
            raise
        finally:
            with self._announced:
                self._unannounced.difference_update(created.names)
                if self._waiting:
                    self._announced.notify_all()
        self._changed(created.super_uid)

    def _add(self, super_uid: int, names: Sequence[str], tags: Sequence[Sequence[TagValue]], distinct: frozenset[str],
             uids: Sequence[int] | None) -> tuple[CreatedChildren, ReplicasMissingError | None]:
        """Creates them in the catalog. The error: they are there, but not on as many nodes as there should be.

        Who sends its rows again finds them then, and streams must have learned of them.
        """
        now_ms = self._clock.now_ms()
        try:
            return self._catalog.schema.add_children(super_uid, names, tags, now_ms, distinct, uids), None
        except ReplicasMissingError as error:
            parent = self._catalog.table_by_uid(super_uid)
            if parent is None:
                raise
            tables = [child for name in names if (child := self._catalog.child_of(parent, name)) is not None]
            if len(tables) < len(names):
                raise
            vgroup_ids = [child.vgroup_id for child in tables]
            found = np.array([child.uid for child in tables], np.uint64)
            return CreatedChildren(super_uid, found, names, vgroup_ids, tags, now_ms, tables), error

    def _announce(self, created: CreatedChildren) -> list[BegunWrite]:
        """Begins to tell the logs of child tables; if one takes no writes, they are gone again."""
        if not created.names:
            return []
        writes: list[BegunWrite] = []
        try:
            for vgroup_id, uids, names, tags in created.by_vgroup():
                body = meta.create_children(created.super_uid, uids, names, tags)
                writes.append(self._storage.begin_meta(vgroup_id, body))
        except BaseException:
            self._unannounced.difference_update(created.names)
            self._take_back(created)
            raise
        return writes

    def _take_back(self, created: CreatedChildren) -> None:
        """Has child tables be gone again, also for who finds some of them in a log."""
        by_vgroup: dict[int, list[ChildTable]] = {}
        for child in created.tables:
            by_vgroup.setdefault(child.vgroup_id, []).append(child)
        for vgroup_id, children in by_vgroup.items():
            with suppress(PenstockError):  # it is told already that a log takes nothing
                self._storage.begin_meta(vgroup_id, meta.drop_children(created.super_uid, children)).wait()
        self._catalog.schema.drop_children(created.super_uid, created.uids.tolist())

    def _find(self, parent: Table, name: str) -> ChildTable | None:
        if parent.replaces is not None:
            return self._catalog.child_of(parent, name)  # names are checked when it is created
        found = self._catalog.child(parent.database, name)
        if found is None:
            if self._catalog.table(parent.database, name) is not None:
                raise AlreadyExistsError(f"{name} is not a child table of {parent.name}, but a table of its own")
            return None
        if found.super_uid != parent.uid:
            other = self._catalog.table_by_uid(found.super_uid)
            raise AlreadyExistsError(
                f"{name} is not a child table of {parent.name}, but of {other.name if other else 'another one'}")
        return found

    def _require(self, parent: Table, name: str) -> ChildTable:
        child = self._find(parent, name)
        if child is None:
            raise NotFoundError(f"child table {name} was dropped meanwhile", code=TABLE_MISSING)
        return child


def check_child_name(name: str | None) -> str:
    """Returns a name that a statement's values give to a child table, if it can be one."""
    if name is None or not can_name_child(name):
        raise InvalidStatementError(f"{name!r} cannot be the name of a child table",
                                    hint="1 to 192 bytes without a dot")
    return name
