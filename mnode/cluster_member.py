"""An engine as a node of a cluster: it follows the active node, or is it, as ZooKeeper says."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from penstock.common.aside import set_aside
from penstock.common.clock import Clock
from penstock.common.config import Config
from penstock.common.errors import (
    ConfigError,
    NotActiveError,
    ReplicasMissingError,
    UnavailableError,
)
from penstock.common.fs import Fs
from penstock.common.logging import logger
from penstock.common.node_addresses import node_addresses
from penstock.common.paths import DataPaths
from penstock.common.retries import Retries
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_copy_source import CatalogCopySource
from penstock.mnode.catalog.catalog_copying import CatalogCopying
from penstock.mnode.catalog.received_catalog import leave_received
from penstock.mnode.checkpoint_courier import CheckpointCourier
from penstock.mnode.cluster.active_node import ActiveSettings
from penstock.mnode.cluster.cluster_messages import (
    CATALOG_LOG,
    CheckpointOffers,
    CheckpointsHeld,
    CopyAnswer,
    CopyRequest,
    PieceAnswer,
    PieceRequest,
    WireMessage,
)
from penstock.mnode.cluster.cluster_node import ClusterNode, ClusterSettings
from penstock.mnode.cluster.cluster_service import ClusterService
from penstock.mnode.cluster.cluster_status import CUT_OFF, UNKNOWN, NodeStatus
from penstock.mnode.cluster.lease import LeaseSettings
from penstock.mnode.cluster.log_epochs import EpochStart
from penstock.mnode.cluster.node_role import RoleSettings
from penstock.mnode.cluster.node_transport import NodeTransport, TransportSettings
from penstock.mnode.cluster.stored_logs import StoredLog
from penstock.mnode.cluster.synchronous_set import LogReplicas, SetSettings
from penstock.mnode.cluster.zookeeper_registry import ZookeeperRegistry, ZookeeperSettings
from penstock.mnode.ddl.database_options import log_replicas
from penstock.mnode.dnode.cluster_directory import ClusterDirectory
from penstock.mnode.dnode.followed_vnodes import FollowedVnodes
from penstock.mnode.dnode.vnode_copies import COPY_PIN_PREFIX, CopySources
from penstock.mnode.node_checkpoints import NodeCheckpoints
from penstock.mnode.vnode_copier import VnodeCopier
from penstock.vnode.vnode import Vnode
from penstock.vnode.write.vnode_copy import copied_horizon

_log = logger(__name__)
_AGAIN_S, _AGAIN_MOST_S = 1.0, 10.0


class ClusterMember:
    """One node, from the engine's start to its end. Implements `TenureHooks`.

    `on_active` is called by a thread of its own when rows may be written here, and again after it has raised something;
    `on_demoted` with the reason, when the node has ceased to be active, or has got another node's
    catalog: nothing of what the engine has in memory is of use any more, and the process must start anew.
    """

    def __init__(self, config: Config, clock: Clock, fs: Fs, paths: DataPaths, catalog: Catalog,
                 copying: CatalogCopying, directory: ClusterDirectory, vnodes: FollowedVnodes) -> None:
        """Raises ConfigError."""
        self._fs = fs
        self._paths = paths
        self._scratch = paths.scratch
        self.on_active: Callable[[], None] = lambda: None
        self.on_demoted: Callable[[str], None] = lambda reason: None
        self._config = config
        self._clock = clock
        self._catalog = catalog
        self._copying = copying
        self._directory = directory
        self._vnodes = vnodes
        self._addresses = node_addresses(config)
        self._number = config.cluster_node
        self._process = secrets.randbelow(1 << 62)
        self._epoch: int | None = None
        self._held: str | None = "the node has just started"
        self._inherited = threading.Event()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._registry: ZookeeperRegistry | None = None
        self._transport: NodeTransport | None = None
        self._copier: VnodeCopier | None = None
        #: brings checkpoints to other nodes; there when the node starts
        self.courier: CheckpointCourier | None = None
        node = ClusterNode(self._number, self._process, directory, self._wanted, _settings(config, self._addresses))
        self._node = node
        self.service = ClusterService(node, self, clock, config.replica_timeout)
        #: what the courier asks of this node
        self.checkpoints = NodeCheckpoints(
            sorted(self._addresses.keys() - {self._number}), self.service, catalog, copying, directory, vnodes)
        self._joining = Retries("this node can't join its cluster yet", clock, _log, _AGAIN_S, _AGAIN_MOST_S)
        self._inheriting = Retries("what was acknowledged before isn't confirmed yet", clock, _log, _AGAIN_S,
                                   _AGAIN_MOST_S)
        self._beginning = Retries("what this node runs as the active one can't begin yet", clock, _log, _AGAIN_S,
                                  _AGAIN_MOST_S)
        self._refresh_at = float("-inf")

    @property
    def number(self) -> int:
        """This node's."""
        return self._number

    @property
    def statuses(self) -> Sequence[NodeStatus]:
        """How all nodes are, as far as this one knows; of itself, what fails just now."""
        found = self.service.statuses.newest or (NodeStatus(self._number, UNKNOWN, None, False),)
        return [replace(one, verdict="; ".join(text for text in (one.verdict, *self._problems(one.node)) if text))
                for one in found]

    def _problems(self, node: int) -> list[str]:
        """Returns what fails just now on this node, or between this one and another one."""
        transport = self._transport
        if node != self._number:
            return [] if transport is None else [transport.problem_with(node)]
        return [*(one.problem for one in (self._joining, self._inheriting, self._beginning)), self.service.problem,
                "" if transport is None else transport.problem,
                "" if self._registry is None else self._registry.problem,
                *([] if self._copier is None else self._copier.problems),
                *([] if self.courier is None else self.courier.problems)]

    @property
    def lag_s(self) -> float | None:
        """How many seconds ago this node had all that the active one had; None if nobody knows."""
        return next((one.lag_s for one in self.statuses if one.node == self._number), None)

    def address(self, node: int) -> str:
        """Returns where a node listens for the others."""
        host, port = self._addresses[node]
        return f"{host}:{port}"

    @property
    def nodes(self) -> int:
        """How many nodes the configuration names."""
        return len(self._addresses)

    # --- who may write -------------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether rows may be written here."""
        return self._held is None and not self._node.role.is_cut_off(self._clock.monotonic())

    def require_active(self) -> None:
        """Raises NotActiveError, which names the node that is active, unless this one takes rows."""
        if self._held is None:
            if self._node.role.is_cut_off(self._clock.monotonic()):
                raise NotActiveError(CUT_OFF, hint="try again in a few seconds, or ask another node")
            return
        record = self._node.role.following
        if record is None or record.active.node == self._number:
            raise NotActiveError(f"this node of the cluster isn't the active one: {self._held}",
                                 hint="try again in a few seconds; another node may be active by then")
        active = record.active.node
        host, port = self._addresses.get(active, ("an unknown host", 0))
        raise NotActiveError(f"this node of the cluster follows: node {active} ({host}:{port}) is the active one",
                             hint=f"connect to the engine on {host}")

    def switch_over(self, node: int) -> None:
        """Begins to hand over to another node: rows are refused until that one is active, or 5 s are over.

        Raises NotActiveError if this node isn't active, InvalidStatementError if the other one may lack something.
        """
        self.require_active()
        self.service.switchover(node)

    def promote(self) -> None:
        """Has this node try, for 10 s, to become active whatever it lacks; nothing happens while another one is.

        Raises UnavailableError if ZooKeeper hasn't been reached yet.
        """
        if self._registry is None:
            raise UnavailableError("ZooKeeper hasn't been reached yet, which says who is active",
                                   hint="the log says why; try again")
        self.service.promote()

    @property
    def inherits(self) -> bool:
        """Whether this node has just taken over, and what was acknowledged before can't all be read here yet."""
        return self._epoch is not None and not self._inherited.is_set()

    def await_inherited(self) -> None:
        """Waits, on a node that has just taken over, until all that was acknowledged before can be read here.

        Raises ReplicasMissingError if that isn't so within `replicaTimeout`.
        """
        if not self.inherits:
            return
        self._clock.wait(self._inherited, self._config.replica_timeout)
        if self.inherits:
            raise ReplicasMissingError(
                "this node has just taken over, and too few nodes have confirmed what was acknowledged before",
                hint="try again; ALTER DATABASE ... REPLICA_MISSING 'continue' lets a database go on with fewer nodes")

    def opened(self, vgroup_id: int, vnode: Vnode) -> None:
        """A vnode was opened; called before anything is written to it. Raises StorageError."""
        vnode.copying.set_cluster_wait(partial(self._await_rows, vgroup_id))
        for owner in vnode.reader.stats().pins:
            if owner.startswith(COPY_PIN_PREFIX):
                vnode.release_pin(owner)  # of a copy that was under way when the process ended
        if self._epoch is None:
            vnode.copying.follow(NotActiveError("this node of the cluster follows"))
            return
        log = self._directory.logs()[vgroup_id]
        epochs = log.epochs()
        if not epochs or epochs[-1].epoch < self._epoch:
            log.note_epoch(EpochStart(self._epoch, log.bounds().written + 1))

    def _await_rows(self, vgroup_id: int, version: int) -> None:
        """Waits until the cluster has rows, and before that the tables that they are of. Raises ReplicasMissingError.
        """
        catalog = self._copying.written_version
        if self.service.acknowledged(CATALOG_LOG) < catalog:
            self.service.await_acknowledged(CATALOG_LOG, catalog)
        self.service.await_acknowledged(vgroup_id, version)

    def _await_catalog(self, version: int) -> None:
        self.service.await_acknowledged(CATALOG_LOG, version)

    def _wanted(self) -> Mapping[int, LogReplicas]:
        """Returns what databases ask for, by log. Waits for nobody who has the catalog locked: he may wait for us."""
        databases = self._catalog.databases_now()
        asked = [log_replicas(database.options) for database in databases]
        patient = any(one.replicas > 1 and not one.with_fewer for one in asked)
        wanted = {CATALOG_LOG: LogReplicas(max((one.replicas for one in asked), default=1), 2, not patient)}
        for database, one in zip(databases, asked, strict=True):
            wanted.update(dict.fromkeys(database.vgroup_ids, one))
        return wanted

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins as a standby. Raises ConfigError if the certificates or the node's address can't be used."""
        config = self._config
        self._transport = NodeTransport(TransportSettings(
            self._number, self._addresses, config.cluster_certificate, config.cluster_key, config.cluster_authority),
            self._clock, self._receive)
        self._copier = VnodeCopier(
            CopySources(self._vnodes.vnodes, self._copy_catalog, self._clock), self._scratch, self._fs, self._clock,
            self._transport.send, self._needed, self._put_copy)
        self.checkpoints.transport = self._transport
        assert self.courier is not None
        self._transport.start()
        self._copier.start()
        self.courier.start()
        self._run(self._join, "join")

    def _receive(self, node: int, message: WireMessage) -> None:
        if isinstance(message, CopyRequest | CopyAnswer):
            assert self._copier is not None
            self._copier.receive(node, message)
        elif isinstance(message, CheckpointOffers | CheckpointsHeld | PieceRequest | PieceAnswer):
            assert self.courier is not None
            self.courier.receive(node, message)
        else:
            self.service.receive(node, message)

    def _copy_catalog(self, node: int) -> CatalogCopySource:
        return CatalogCopySource(self._copying, self._scratch / f"catalog-for-{node}", self._fs)

    def _put_copy(self, log: int, received: Path) -> bool:
        """Has a copy become the vnode's; not while streams need more of its log than the copy has, if that may change.
        """
        assert self.courier is not None
        if log != CATALOG_LOG and not self.courier.may_put(log, copied_horizon(received, log, self._fs) + 1):
            return False

        def replace() -> StoredLog | None:
            if log == CATALOG_LOG:
                if self._paths.streams.exists():
                    set_aside(self._fs, self._paths, self._paths.streams)  # the ids may be those of other streams there
                leave_received(self._fs, self._paths, received)
                self.on_demoted("it has a copy of the active node's catalog")
                return None
            self._vnodes.replace(log, received)
            self.checkpoints.pin_again(log)
            return self._directory.logs()[log]

        self.service.replace_log(log, replace)
        return True

    def _needed(self) -> tuple[int | None, Mapping[int, str]]:
        """Returns which copies this node needs; and keeps, on the way, what others need of its logs."""
        self._vnodes.keep(self.service.kept_from)
        return self.service.copies

    def _join(self) -> None:
        """Connects with ZooKeeper, sooner or later, and then begins to follow."""
        while not self._closed.is_set():
            try:
                registry = ZookeeperRegistry(_zookeeper(self._config), self._process, self._clock, self.service.tell)
                registry.start()
            except Exception as error:  # noqa: BLE001  # it is told, and tried again
                self._clock.wait(self._closed, self._joining.failed(error))
                continue
            self._joining.succeeded()
            assert self._transport is not None
            self._registry = registry
            self.service.start(registry, self._transport)
            return

    def close(self) -> None:
        """Ends the node: another one may take over at once. A second call does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        for thread in self._threads:
            thread.join()
        if self._transport is not None:
            assert self.courier is not None
            self.courier.close()
            assert self._copier is not None
            self._copier.close()
        if self._registry is not None:
            self.service.close()
            self._registry.close()
        if self._transport is not None:
            self._transport.close()

    def _run(self, action: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=action, name=f"penstock-cluster-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    # --- what the service tells ----------------------------------------------------------------------------------

    def keep_up(self) -> None:
        """The node follows: catalog and vnodes become what the log of the catalog says."""
        now = self._clock.monotonic()
        if self._vnodes.is_behind and now >= self._refresh_at:
            self._vnodes.refresh()
            took_s = self._clock.monotonic() - now
            self._refresh_at = now + 10 * took_s  # a large catalog takes long to read, and something changes always

    def begin_tenure(self, epoch: int) -> None:
        """Rows may be written here from now on; streams follow a little later."""
        if self._epoch == epoch:
            self._vnodes.lead_again()
            self._held = None
            return
        self._epoch = self.checkpoints.epoch = epoch
        self._catalog.set_cluster_wait(None)  # it is this thread that all others wait for
        self._vnodes.lead()
        self._catalog.set_cluster_wait(self._await_catalog)
        self._held = None
        _log.info("this node is active in epoch %d", epoch)
        self._run(partial(self._inherit, epoch, self._ends()), "inherit")
        self._run(self._begin_work, "work")

    def _ends(self) -> dict[int, int]:
        wanted = self._wanted()
        return {log: one.bounds().written for log, one in self._directory.logs().items() if log in wanted}

    def _inherit(self, epoch: int, ends: Mapping[int, int]) -> None:
        """Waits until the cluster has acknowledged here, too, all that it may have before the tenure."""
        for log, version in ends.items():
            while self._epoch == epoch and not self._closed.is_set():
                try:
                    self.service.await_acknowledged(log, version)
                    break
                except Exception as error:  # noqa: BLE001  # it is told, and waited for again
                    self._clock.wait(self._closed, self._inheriting.failed(error))
        self._inheriting.succeeded()
        if self._epoch == epoch:
            self._inherited.set()

    def _begin_work(self) -> None:
        """Has streams and the like begin; what the cluster doesn't acknowledge in time is tried again."""
        while not self._closed.is_set() and self._epoch is not None:
            try:
                self._await_catalog(self._copying.written_version)
                self.on_active()
            except Exception as error:  # noqa: BLE001  # it is told, and tried again
                self._clock.wait(self._closed, self._beginning.failed(error))
            else:
                self._beginning.succeeded()
                return

    def hold_writes(self, reason: str) -> None:
        self._held = reason
        self._vnodes.follow(NotActiveError(f"this node of the cluster takes no rows: {reason}",
                                           hint="try again in a few seconds; another node may be active by then"))

    def end_tenure(self, reason: str) -> None:
        was_active, self._epoch = self._epoch is not None, None
        self.checkpoints.epoch = None
        self.hold_writes(reason)
        if was_active and not self._closed.is_set():
            _log.warning("this node is active no more: %s", reason)
            self.on_demoted(reason)

    def break_down(self, reason: str) -> None:
        self.on_demoted(reason)


def _settings(config: Config, addresses: Mapping[int, tuple[str, int]]) -> ClusterSettings:
    timeout_s = config.session_timeout
    role = RoleSettings(LeaseSettings(timeout_s, timeout_s / 4, timeout_s / 8), read_every_s=timeout_s / 8,
                        gather_s=0.15 * timeout_s, turn_s=timeout_s / 4, suspect_s=max(1.0, 0.4 * timeout_s))
    members = SetSettings(0.75 * timeout_s, 2.5 * timeout_s, 0.25 * timeout_s)
    return ClusterSettings(frozenset(addresses), role, ActiveSettings(members=members))


def _zookeeper(config: Config) -> ZookeeperSettings:
    """Raises ConfigError if the login can't be read."""
    login = None
    if config.zookeeper_login_file:
        try:
            login = Path(config.zookeeper_login_file).expanduser().read_text("utf-8").partition("\n")[0]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"zookeeperLoginFile {config.zookeeper_login_file} can't be read: {error}") from error
    return ZookeeperSettings(
        config.zookeeper, config.zookeeper_path, config.session_timeout, ca_file=config.zookeeper_authority or None,
        certificate_file=config.zookeeper_certificate or None, key_file=config.zookeeper_key or None, login=login)
