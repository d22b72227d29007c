"""Files that are to be made or removed because a statement said so, until that is done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.mnode.catalog.catalog_records import Unfinished, UnfinishedKind
from penstock.mnode.catalog.catalog_store import CatalogStore, Transaction
from penstock.mnode.catalog.entry_kinds import UNFINISHED, Repository


class UnfinishedWork(Repository[Unfinished]):
    """What a crash may have kept from being finished, and the next start finishes."""

    def __init__(self, store: CatalogStore, known: Iterable[Unfinished]) -> None:
        super().__init__(store, UNFINISHED, known)

    def of_kind(self, kind: UnfinishedKind) -> tuple[Unfinished, ...]:
        return tuple(one for one in self.all() if one.kind == kind)

    def begin_vnodes(self, vgroup_ids: Sequence[int]) -> None:
        """Notes that vnodes are being made which are to be removed again unless `Catalog.regroup` takes them."""
        with self._store.transaction() as write:
            write.reserve_vgroups(vgroup_ids)
            self.note(write, [Unfinished("remove_vnode", vgroup_id) for vgroup_id in vgroup_ids])

    def finish(self, done: Iterable[Unfinished]) -> None:
        """Forgets what has been done."""
        with self._store.lock:
            known = {*self.all()}.intersection(done)
            if known:
                with self._store.transaction() as write:
                    self.forget(write, known)

    def note(self, write: Transaction, work: Iterable[Unfinished]) -> None:
        """Notes something that is to be done, as part of a transaction."""
        for one in {*work}:
            self._put(write, one)

    def forget(self, write: Transaction, work: Iterable[Unfinished]) -> None:
        """Does what `finish` does, as part of a transaction."""
        for one in {*work}:
            self._delete(write, one)

    def forget_vnodes(self, write: Transaction) -> None:
        """Forgets all that is to be done about vnodes, as part of a transaction."""
        self.forget(write, [one for one in self.all() if one.kind.endswith("_vnode")])
