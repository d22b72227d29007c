"""What a data directory keeps of the cluster that it belongs to: whose disk it is, the newest epoch, and its logs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from penstock.common.errors import CorruptionError
from penstock.common.fs import Fs
from penstock.common.sealed import seal, unseal
from penstock.mnode.catalog.catalog_copying import CatalogCopying
from penstock.mnode.cluster.cluster_messages import CATALOG_LOG
from penstock.mnode.cluster.log_epochs import NO_EPOCH
from penstock.mnode.cluster.stored_logs import StoredLog
from penstock.mnode.dnode.copied_stored_log import CopiedStoredLog
from penstock.vnode.vnode import Vnode

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class _Membership:
    """`boot`: in which run of the machine the directory was open last; `closed`: all was on disk for good then."""

    life: int
    boot: str
    closed: bool = False
    epoch: int = NO_EPOCH


def running_boot() -> str:
    """Returns what is another text each time that the machine has started; empty where the system doesn't tell."""
    return _BOOT_ID.read_text("ascii").strip() if _BOOT_ID.exists() else ""


class ClusterDirectory:
    """An open data directory as the cluster knows it: a `StoredNode`. Thread-safe."""

    def __init__(self, path: Path, fs: Fs, draw: Callable[[], int], boot: str, catalog: CatalogCopying,
                 vnodes: Callable[[], Mapping[int, Vnode]]) -> None:
        """`path`: of its file. `draw` returns a number that it has never returned before. `vnodes`: all that are open.

        The life is another one if the file is new, or the machine has started since and the directory wasn't closed.
        Raises StorageError, CorruptionError.
        """
        #: is told, by log, behind which version what is here never was the cluster's
        self.on_parted: Callable[[int, int], None] = lambda log, version: None
        self._path = path
        self._fs = fs
        self._vnodes = vnodes
        self._lock = threading.Lock()
        self._catalog_log = CopiedStoredLog(catalog, catalog.log.directory, fs)
        self._logs: dict[int, tuple[Vnode, CopiedStoredLog]] = {}
        known = self._load()
        if known is None:
            known = _Membership(draw(), boot)
        elif not known.closed and (known.boot != boot or not boot):
            known = replace(known, life=draw())
        self._keep(replace(known, boot=boot, closed=False))

    def _load(self) -> _Membership | None:
        if self._path.name not in self._fs.list(self._path.parent):
            return None
        text = unseal(self._fs.read(self._path), str(self._path),
                      hint="remove the file: the node then follows as a new one")
        try:
            return _Membership(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise CorruptionError(f"{self._path} makes no sense: {error}") from error

    def _keep(self, membership: _Membership) -> None:
        self._fs.write_atomic(self._path, seal(json.dumps(asdict(membership)).encode()))
        self._membership = membership

    def life(self) -> int:
        return self._membership.life

    def epoch(self) -> int:
        return self._membership.epoch

    def keep_epoch(self, epoch: int) -> None:
        """Keeps an epoch that was seen, if it is the largest. Raises StorageError."""
        with self._lock:
            if epoch > self._membership.epoch:
                self._keep(replace(self._membership, epoch=epoch))

    def logs(self) -> Mapping[int, StoredLog]:
        """Returns the logs by number. Raises CorruptionError."""
        with self._lock:
            vnodes = self._vnodes()
            kept: dict[int, tuple[Vnode, CopiedStoredLog]] = {}
            for vgroup_id, vnode in vnodes.items():
                before = self._logs.get(vgroup_id)
                same = before is not None and before[0] is vnode
                kept[vgroup_id] = before if before is not None and same else (
                    vnode, CopiedStoredLog(vnode.copying, vnode.directory / "wal", self._fs,
                                           partial(self._parted, vgroup_id)))
            self._logs = kept
            return {CATALOG_LOG: self._catalog_log, **{number: log for number, (_, log) in kept.items()}}

    def _parted(self, log: int, version: int) -> None:
        self.on_parted(log, version)

    def close(self) -> None:
        """Notes that all is on disk for good: the vnodes are closed. Raises StorageError."""
        with self._lock:
            self._keep(replace(self._membership, closed=True))
