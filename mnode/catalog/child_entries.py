"""Where child tables lie in the catalog: those that come at once share entries of some hundreds.

Each child table is in one entry. One that changes stays in its entry, which is written anew; so does who shares it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from penstock.mnode.catalog import catalog_codec as codec
from penstock.mnode.catalog.catalog_store import CHILDREN, StoredEntries, Transaction
from penstock.mnode.catalog.created_children import CreatedChildren
from penstock.sql.schema import ChildTable

_UID = itemgetter(0)  # of a child table: attributes take twice as long


def add_children(write: Transaction, created: CreatedChildren) -> None:
    """Stores new child tables, which are younger than all others of the super table."""
    write.put_sealed(CHILDREN, codec.sealed_batches(created))


def insert_children(write: Transaction, super_uid: int, children: Sequence[ChildTable]) -> None:
    """Stores new child tables, by age: others of the super table may be younger than some of them.

    Entries are found by the uids between which they lie, so these must not be mixed.
    """
    if not children:
        return
    members, until = list(children), codec.key(super_uid, children[-1].uid)
    while (found := write.at_or_before(CHILDREN, until)) is not None:
        there = codec.children_of_batch(*found)
        if there[-1].super_uid != super_uid or there[-1].uid < children[0].uid:
            break
        members += there
        until = found[0]
        write.delete(CHILDREN, until)
    put_children(write, super_uid, sorted(members, key=_UID))


def put_children(write: Transaction, super_uid: int, children: Sequence[ChildTable]) -> None:
    """Stores all child tables that a super table has, by age."""
    for start in range(0, len(children), codec.BATCH):
        some = children[start:start + codec.BATCH]
        key = codec.key(super_uid, some[0].uid)
        write.put_sealed(CHILDREN, [(key, codec.sealed_batch(key, some))])


def change_children(write: Transaction, super_uid: int, changed: Iterable[ChildTable]) -> None:
    """Stores child tables that are there already as they are now."""
    _change(write, super_uid, {child.uid: child for child in changed})


def remove_children(write: Transaction, super_uid: int, uids: Iterable[int]) -> None:
    """Removes child tables; those that aren't there aren't missed."""
    _change(write, super_uid, dict.fromkeys(uids))


def remove_all_children(write: Transaction, super_uid: int) -> None:
    """Removes all child tables of a super table."""
    write.delete_all(CHILDREN, codec.key(super_uid))


def all_children(entries: StoredEntries, prefix: bytes = b"") -> dict[int, list[ChildTable]]:
    """Returns child tables by super table, those of one by age. `prefix`: the key of a super table, or none of any.

    Raises CorruptionError.
    """
    found: defaultdict[int, list[ChildTable]] = defaultdict(list)
    for key, value in entries.items(CHILDREN, prefix):
        members = codec.children_of_batch(key, value)
        found[members[0].super_uid] += members
    for children in found.values():
        children.sort(key=_UID)
    return found


def stored_child(entries: StoredEntries, super_uid: int, uid: int) -> ChildTable | None:
    """Returns a child table, or None. Raises CorruptionError."""
    batch = entries.at_or_before(CHILDREN, codec.key(super_uid, uid))
    members = [] if batch is None else codec.children_of_batch(*batch)
    return next((child for child in members if (child.super_uid, child.uid) == (super_uid, uid)), None)


def _change(write: Transaction, super_uid: int, wanted: Mapping[int, ChildTable | None]) -> None:
    """Gives entries the child tables wanted of these uids; None: it goes. Each entry is written once."""
    batch: dict[int, ChildTable] = {}
    key = b""
    for uid in sorted(wanted):
        if uid not in batch:
            _rewrite(write, key, batch, wanted)
            batch = {}
            found = write.at_or_before(CHILDREN, codec.key(super_uid, uid))
            if found is not None:
                key, members = found[0], codec.children_of_batch(*found)
                batch = {child.uid: child for child in members if child.super_uid == super_uid}
    _rewrite(write, key, batch, wanted)


def _rewrite(write: Transaction, key: bytes, batch: Mapping[int, ChildTable], wanted: Mapping[int, ChildTable | None]
             ) -> None:
    left = [child for uid, old in batch.items() if (child := wanted.get(uid, old)) is not None]
    if left:
        write.put_sealed(CHILDREN, [(key, codec.sealed_batch(key, left))])
    elif batch:
        write.delete(CHILDREN, key)
