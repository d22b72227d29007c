"""The vnodes of a node of a cluster: they follow their logs, as the catalog says which there are, or are written to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.common.errors import NotFoundError, PenstockError
from penstock.common.logging import logger
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_copying import CatalogCopying
from penstock.mnode.catalog.catalog_store import ALL_STORES, DATABASES, STREAMS, TABLES
from penstock.mnode.cluster.cluster_messages import CATALOG_LOG
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.vnode.dnode import Dnode
from penstock.vnode.vnode import Vnode

_log = logger(__name__)
_PIN = "standbys"


class FollowedVnodes:
    """All vnodes, and the catalog's log, kept in step with the role of the node. Called by one thread.

    Methods raise StorageError and CorruptionError; what is wrong with one vnode keeps only that one from following.
    """

    def __init__(self, storage: Storage, dnode: Dnode, catalog: Catalog, copying: CatalogCopying,
                 pins: Callable[[], Mapping[tuple[int, str], int]], pin_prefix: str) -> None:
        """`pins`: by vgroup and owner, from which version on the catalog's streams need rows, if they have no
        checkpoint; owners begin with `pin_prefix`.
        """
        self._pins = pins
        self._pin_prefix = pin_prefix
        self._storage = storage
        self._dnode = dnode
        self._catalog = catalog
        self._copying = copying
        #: the version up to which memory has the catalog's log, and how often that had been cut by then
        self._seen = (-1, -1)
        self._removes_at: int | None = None

    @property
    def is_behind(self) -> bool:
        """Whether the catalog in memory isn't what its log says, or vnodes are to be removed by now."""
        if self._removes_at is not None and self._copying.floor >= self._removes_at:
            return True
        return self._seen != (self._copying.synced_version, self._copying.cuts)

    def refresh(self) -> None:
        """Has catalog and vnodes be what the catalog's log says by now: databases and tables come, change and go."""
        version, cuts = self._copying.synced_version, self._copying.cuts
        before, cuts_before = self._seen
        if cuts_before == cuts and self._copying.copied.begin - 1 <= before <= version:
            changed = self._catalog.apply_copied(self._copying.applied_behind(before))
        else:
            self._catalog.refresh()
            changed = ALL_STORES
        if self._removes_at is not None or changed & {DATABASES, TABLES}:
            self._follow_databases(version)
        if changed & {DATABASES, STREAMS}:
            self._pin()
        self._seen = version, cuts

    def _follow_databases(self, version: int) -> None:
        databases = self._catalog.databases()
        for database in databases:
            self._storage.join(database)
            self._storage.alter_database(database)
        gone = self._dnode.vnodes().keys() - {vgroup_id for one in databases for vgroup_id in one.vgroup_ids}
        # What isn't acknowledged may be taken back, also that a database is gone.
        may_remove = self._copying.floor >= version
        for vgroup_id in gone if may_remove else ():
            _log.info("vnode %d is of a database that was dropped, and is removed", vgroup_id)
            self._dnode.drop_vnode(vgroup_id)
        self._removes_at = version if gone and not may_remove else None

    def _pin(self) -> None:
        """Keeps what streams would read if they began here; what they have kept here before stays as it is."""
        wanted = self._pins()
        for vgroup_id, vnode in self._dnode.vnodes().items():
            there = vnode.reader.stats().pins
            for owner in there:
                if owner.startswith(self._pin_prefix) and (vgroup_id, owner) not in wanted:
                    vnode.release_pin(owner)
            for (place, owner), version in wanted.items():
                if place == vgroup_id and owner not in there:
                    vnode.set_pin(owner, version)

    def pin(self, owner: str, versions: Mapping[int, int]) -> None:
        """Keeps logs, by vgroup, from these versions on for a stream that has other checkpoints here now."""
        vnodes = self._dnode.vnodes()
        for vgroup_id in vnodes.keys() & versions.keys():
            vnodes[vgroup_id].set_pin(owner, versions[vgroup_id])

    def follow(self, reason: PenstockError) -> None:
        """From now on all logs take only copies: other writes raise `reason`."""
        self._copying.follow(reason)
        for vnode in self._dnode.vnodes().values():
            vnode.copying.follow(reason)

    def lead(self) -> None:
        """From now on all logs are written here; who had them before may have written what was never acknowledged."""
        self._copying.lead()
        self.refresh()
        vnodes = self._dnode.vnodes()
        for vnode in vnodes.values():
            vnode.copying.lead()
        self._storage.forget_dropped()
        self._catalog.skip_ids(max((vnode.reader.newest_uid() for vnode in vnodes.values()), default=0))

    def lead_again(self) -> None:
        """Takes back `follow`; nothing was copied since."""
        self._copying.lead_again()
        for vnode in self._dnode.vnodes().values():
            vnode.copying.lead()

    def replace(self, vgroup_id: int, received: Path) -> None:
        """Puts files that the active node has given in the place of a vnode. Raises NotFoundError if it is gone."""
        database = next((one for one in self._catalog.databases() if vgroup_id in one.vgroup_ids), None)
        if database is None:
            raise NotFoundError(f"no database has vnode {vgroup_id} any more")
        self._storage.replace(database, vgroup_id, received)

    def keep(self, versions: Mapping[int, int]) -> None:
        """Keeps logs from these versions on, since other nodes need them, and others no longer; bounds the catalog's.
        """
        self._copying.trim(versions.get(CATALOG_LOG))
        for vgroup_id, vnode in self._dnode.vnodes().items():
            if vgroup_id in versions:
                vnode.set_pin(_PIN, versions[vgroup_id])
            else:
                vnode.release_pin(_PIN)

    def vnodes(self) -> dict[int, Vnode]:
        return self._dnode.vnodes()
