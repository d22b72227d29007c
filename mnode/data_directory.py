"""What an engine stands on: a data directory, locked and checked, with its catalog and its vnodes open."""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from penstock.common.access import check_access
from penstock.common.clock import Clock
from penstock.common.config import Config
from penstock.common.descriptors import raise_limit, shortage
from penstock.common.errors import ConfigError
from penstock.common.fs import Fs
from penstock.common.logging import configure_file_logging, logger, stop_logging
from penstock.common.paths import DataPaths
from penstock.common.private import exposed
from penstock.mnode.access.audit_log import Audit
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_check import require_catalog, require_current
from penstock.mnode.catalog.catalog_log import CatalogLog
from penstock.mnode.catalog.directory_format import check_format, ensure_format
from penstock.mnode.catalog.received_catalog import take_received
from penstock.mnode.cluster_member import ClusterMember
from penstock.mnode.controller.runtime_environment import RuntimeEnvironment
from penstock.mnode.dnode.cluster_directory import ClusterDirectory, running_boot
from penstock.mnode.dnode.followed_vnodes import FollowedVnodes
from penstock.mnode.dnode.shared_lock import SharedLock
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.query.activity import Activity
from penstock.mnode.streams.stream_pins import PIN_PREFIX, beginnings
from penstock.vnode.dnode import Dnode, lock_data_directory

_log = logger(__name__)


class DataDirectory:
    """One data directory, open. A vnode that is damaged makes only the statements fail that need it."""

    def __init__(
        self, path: Path, config: Config, clock: Clock, fs: Fs, environment: RuntimeEnvironment, undo: ExitStack
    ) -> None:
        """Puts into `undo` what closes it. Raises `DataDirectoryInUseError`, `StorageError` or `CorruptionError`.

        With a `clusterNode` it is that of a node, which follows at first. Raises ConfigError, too, if it must not be
        one, or must be.
        """
        member = config.cluster_node != 0
        self.paths = DataPaths(path)
        self.config = config
        self.clock = clock
        self.fs = fs
        self.environment = environment
        self.activity = Activity(clock, config.query_timeout)
        #: one statement at a time changes schemas, streams, users and the like
        self.ddl_lock = threading.RLock()
        #: shared by what writes, or copies rows; held alone while tables change their vnodes
        self.writing = SharedLock()
        self._close_cluster: Callable[[], None] = lambda: None
        self._lock = lock_data_directory(self.paths)
        undo.callback(self._lock.release)
        check_access(self.paths.needed)
        if self.paths.cluster.exists() and not member:
            raise ConfigError(
                f"the data directory {path} belongs to a node of a cluster: only that may change it",
                hint="start penstock serve with the keys of section [cluster]; to leave the cluster for good, stop "
                     f"all nodes and remove {self.paths.cluster}")
        check_format(fs, self.paths)
        take_received(fs, self.paths)
        require_catalog(self.paths)
        self._log_handler = configure_file_logging(config, path)
        undo.callback(stop_logging, self._log_handler)
        problem = exposed(path)
        if problem is not None:
            _log.warning("%s", problem)
        self.audit = Audit(path / config.log_dir, config, clock)
        undo.callback(self.audit.close)
        _reserve_descriptors(config)
        log = CatalogLog(self.paths.catalog_log, fs, clock) if member else None
        self.catalog = Catalog(self.paths.catalog, log=log)
        undo.callback(self.catalog.close)
        if not member:  # what a cluster has taken back may have been told to files beside the catalog
            require_current(self.paths, fs, self.catalog)
        check_format(fs, self.paths, self.catalog)
        ensure_format(fs, self.paths)
        # What DuckDB has left there when the process was killed. Nothing else is kept in it.
        shutil.rmtree(self.paths.spill, ignore_errors=True)
        self.dnode = Dnode(self.paths, fs=fs, clock=clock)
        self.storage = Storage(self.dnode, self.catalog, config, replicated=member)
        undo.callback(self._close_vnodes)
        self.member = self._join() if member else None
        if self.member is None:
            self.storage.open_all()

    def _join(self) -> ClusterMember:
        """Returns what makes a node of the directory; its vnodes are open and follow."""
        copying = self.catalog.copying()
        directory = ClusterDirectory(
            self.paths.cluster, self.fs, lambda: secrets.randbelow(1 << 62), running_boot(), copying, self.dnode.vnodes)
        self._close_cluster = directory.close
        vnodes = FollowedVnodes(
            self.storage, self.dnode, self.catalog, copying, lambda: beginnings(self.catalog.streams.all()), PIN_PREFIX)
        member = ClusterMember(
            self.config, self.clock, self.fs, self.paths, self.catalog, copying, directory, vnodes)
        self.storage.on_open = member.opened
        member.hold_writes("it has just started")
        vnodes.refresh()
        return member

    def _close_vnodes(self) -> None:
        self.dnode.close()
        self._close_cluster()

    def abandon(self) -> None:
        """Lets go of it as the death of the process would: nothing is flushed."""
        self.activity.close()
        self.catalog.abandon()
        stop_logging(self._log_handler)
        self._lock.release()


def _reserve_descriptors(config: Config) -> None:
    """Sees to it that clients can't take all descriptors of this process."""
    ports = {config.http_port, config.taos_adapter_port, config.metrics_port, config.ui_port} - {0}
    # Flight may have twice as many for a moment.
    problem = shortage(raise_limit(), config.connections_max * (len(ports) + 2))
    if problem is not None:
        _log.warning("%s", problem)
