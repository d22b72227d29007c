"""Child tables that come into being with their first row: found or created, announced in the WAL before any row."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext

from penstock.common.clock import Clock
from penstock.common.errors import AlreadyExistsError, InvalidStatementError, NotFoundError, PenstockError
from penstock.common.responsiveness import uncollected
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.name_lookup import TABLE_MISSING
from penstock.mnode.ddl import meta_records as meta
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.sql.schema import ChildTable, Table, TagValue, can_name_child

_MANY = 1_000


class ChildCreator:
    """Creates child tables; safe for many threads, and fast for those that exist."""

    def __init__(
        self, catalog: Catalog, storage: Storage, clock: Clock, changed: Callable[[int], None]
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._clock = clock
        self._changed = changed
        self._lock = threading.Lock()
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
        found = self.known_in_order(parent, names)
        if found is not None:
            return found
        with self._lock:
            missing = self._missing(parent, names)
            given = [(names[place], tags[place]) for place in missing]
            gone = next((name for name, values in given if len(values) != len(parent.tags)), None)
            if gone is not None:
                raise NotFoundError(f"child table {gone} was dropped meanwhile", code=TABLE_MISSING)
            created = self._create(parent.uid, given)
        if len(created) == len(names):
            return created
        made = dict(zip(missing, created, strict=True))
        return [made.get(place) or self._require(parent, name) for place, name in enumerate(names)]

    def known(self, parent: Table, names: Iterable[str]) -> dict[str, ChildTable] | None:
        """Returns the child tables of these names if all of them exist and are announced, else None."""
        asked = list(names)
        found = self.known_in_order(parent, asked)
        return None if found is None else dict(zip(asked, found, strict=True))

    def known_in_order(self, parent: Table, names: Sequence[str]) -> list[ChildTable] | None:
        """Returns what `known` does, in the order of the names."""
        children, unannounced, uid = self._catalog.children_beside(parent), self._unannounced, parent.uid
        found = list(map(children.get, names))
        known = [entry[1] for entry in found if entry is not None and entry[0] == uid]
        if len(known) < len(names):
            for name, entry in zip(names, found, strict=True):
                if entry is None or entry[0] != uid:
                    self._find(parent, name)  # raises if the name is another table's
                    return None
        return known if unannounced.isdisjoint(names) else None

    def _missing(self, parent: Table, names: Sequence[str]) -> list[int]:
        """Returns the places of the names that no table has; raises as `_find`."""
        missing = []
        tables = set() if parent.replaces is not None else self._catalog.names_of_tables(parent.database)
        for place, (name, entry) in enumerate(
                zip(names, map(self._catalog.children_beside(parent).get, names), strict=True)):
            if entry is None and name not in tables:
                missing.append(place)
            elif entry is None or entry[0] != parent.uid:
                self._find(parent, name)  # raises
        return missing

    def create(self, super_uid: int, children: Sequence[tuple[str, tuple[TagValue, ...]]]) -> list[ChildTable]:
        """Returns new child tables. `AlreadyExistsError` if any of the names is taken; then none is created."""
        with self._lock:
            return self._create(super_uid, children)

    def _create(self, super_uid: int, children: Sequence[tuple[str, tuple[TagValue, ...]]]) -> list[ChildTable]:
        with uncollected() if len(children) >= _MANY else nullcontext():
            return self._create_uncollected(super_uid, children)

    def _create_uncollected(
        self, super_uid: int, children: Sequence[tuple[str, tuple[TagValue, ...]]]
    ) -> list[ChildTable]:
        names = {name for name, _ in children}
        self._unannounced |= names
        try:
            created = self._catalog.schema.create_children(super_uid, children, self._clock.now_ms())
            try:
                self._announce(super_uid, created)
            except PenstockError:
                # Streams would never learn of a child without its record: the next try makes another one.
                self._catalog.schema.drop_children(super_uid, [child.uid for child in created])
                raise
        finally:
            self._unannounced -= names
        if created:
            self._changed(super_uid)
        return created

    def _announce(self, super_uid: int, created: Sequence[ChildTable]) -> None:
        by_vgroup: defaultdict[int, list[ChildTable]] = defaultdict(list)
        for child in created:
            by_vgroup[child.vgroup_id].append(child)
        for vgroup_id, members in by_vgroup.items():
            self._storage.write_meta(vgroup_id, meta.create_children(super_uid, members))

    def _find(self, parent: Table, name: str) -> ChildTable | None:
        if parent.replaces is not None:
            return self._catalog.child_of(parent, name)  # names are checked when it is created
        found = self._catalog.child(parent.database, name)
        if found is None:
            if self._catalog.table(parent.database, name) is not None:
                raise AlreadyExistsError(f"{name} is not a child table of {parent.name}, but a table of its own")
            return None
        super_uid, child = found
        if super_uid != parent.uid:
            other = self._catalog.table_by_uid(super_uid)
            raise AlreadyExistsError(
                f"{name} is not a child table of {parent.name}, but of {other.name if other else 'another one'}")
        return child

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
