"""New child tables that are known, and that the catalog's files don't have yet: to commit each by itself takes long.

Whoever adds them tells of them in the logs of their vnodes. A start finds there what the files lack.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import attrgetter

from penstock.mnode.catalog import catalog_codec as codec
from penstock.mnode.catalog import child_entries
from penstock.mnode.catalog.catalog_store import CatalogStore, Transaction
from penstock.mnode.catalog.created_children import CreatedChildren

WAITING_MAX = 10_000
"""So many wait at most: more are stored by who adds them."""


class WaitingChildren:
    """Each transaction stores those that wait first. All is guarded by the store's lock."""

    def __init__(self, store: CatalogStore) -> None:
        self._store = store
        self._created: list[CreatedChildren] = []
        self._count = 0
        self._failed = False
        #: has `settle` called soon; None: nobody would, so none may wait
        self.settle_soon: Callable[[], None] | None = None
        store.on_begin = self._store_all

    def may_wait(self, count: int) -> bool:
        """Tells whether so many more may wait; those that fill an entry by themselves are stored at once.

        None may while those that wait can't be stored: whoever adds more is told. Nor in a cluster, whose nodes must
        have acknowledged them.
        """
        store = self._store
        if self.settle_soon is None or self._failed or store.log is not None or store.await_cluster is not None:
            return False
        return count < codec.BATCH and self._count + count <= WAITING_MAX

    def add(self, created: CreatedChildren) -> None:
        """Has child tables wait, whose uids were taken from the store just now."""
        assert self.settle_soon is not None
        self._created.append(created)
        self._count += len(created.names)
        self.settle_soon()

    def settle(self) -> None:
        """Stores all that wait. Raises StorageError; then they still wait."""
        with self._store.lock:
            if self._created:
                self._failed = True
                with self._store.transaction():
                    pass

    def _store_all(self, write: Transaction) -> None:
        if not self._created:
            return
        waiting = sorted(self._created, key=attrgetter("super_uid"))  # of one super table they stay by age
        for super_uid, some in groupby(waiting, attrgetter("super_uid")):
            child_entries.put_children(write, super_uid, [child for created in some for child in created.tables])
        write.afterwards(partial(self._forget, len(self._created)))

    def _forget(self, stored: int) -> None:
        self._failed = False
        del self._created[:stored]
        self._count = sum(len(created.names) for created in self._created)
