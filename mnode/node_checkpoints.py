"""What an engine that is a node of a cluster does about checkpoints that travel: what the courier asks of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_copying import CatalogCopying
from penstock.mnode.cluster.cluster_messages import CATALOG_LOG, CheckpointMessage
from penstock.mnode.cluster.cluster_service import ClusterService
from penstock.mnode.cluster.node_transport import NodeTransport
from penstock.mnode.dnode.cluster_directory import ClusterDirectory
from penstock.mnode.dnode.followed_vnodes import FollowedVnodes
from penstock.mnode.streams.stream_pins import pin_of

_SYNCS_MAX = 8


class NodeCheckpoints:
    """What puts something in its place raises UnavailableError while the node is active."""

    def __init__(self, others: Sequence[int], service: ClusterService, catalog: Catalog, copying: CatalogCopying,
                 directory: ClusterDirectory, vnodes: FollowedVnodes) -> None:
        self._others = others
        self._service = service
        self._catalog = catalog
        self._copying = copying
        self._directory = directory
        self._vnodes = vnodes
        #: the epoch in which this node is active; None if it isn't
        self.epoch: int | None = None
        #: there when the node starts
        self.transport: NodeTransport | None = None
        #: by stream, and by vgroup, from which version on the checkpoints of this node need the log
        self.needs: Callable[[], Mapping[int, Mapping[int, int]]] = dict

    # --- what the courier asks -----------------------------------------------------------------------------------

    def tenure(self) -> int | None:
        """Returns the epoch in which this node is active; None if it isn't."""
        return self.epoch

    def followed(self) -> tuple[int, int] | None:
        """Returns the epoch and the number of the active node that this one follows."""
        return self._service.followed

    def readable(self) -> Mapping[int, tuple[int, int]]:
        """Returns, by log, from which version to which it is the active's on this node."""
        return self._service.readable

    def others(self) -> Sequence[int]:
        """Returns the numbers of all other nodes."""
        return self._others

    def streams(self) -> tuple[Sequence[int], bool]:
        """Returns all streams and ingests, and whether the cluster has acknowledged that there are no others."""
        written = self._copying.written_version
        return [*(stream.id for stream in self._catalog.streams.all()), *self._catalog.streams.damaged,
                *(ingest.id for ingest in self._catalog.ingests.all())
                ], self._service.acknowledged(CATALOG_LOG) >= written

    def send(self, node: int, message: CheckpointMessage) -> bool:
        """Sends something about checkpoints to a node; what can't be sent now is dropped."""
        assert self.transport is not None
        return self.transport.send(node, message)

    # --- where checkpoints take their place ----------------------------------------------------------------------

    def put(self, epoch: int | None, versions: Sequence[tuple[int, int]], put: Callable[[], None]) -> None:
        """Has a stream's checkpoint take its place on this node, which follows, for good: with all that it counts."""
        vnodes = self._vnodes.vnodes()
        unsynced = [vnodes[log].copying for log, version in versions
                    if log in vnodes and vnodes[log].copying.synced_version < version]
        if unsynced:
            with ThreadPoolExecutor(_SYNCS_MAX, "penstock-checkpoint-syncs") as pool:
                for _ in pool.map(lambda copying: copying.sync(), unsynced):
                    pass
        self._service.while_following(epoch, versions, put)

    def pin(self, stream_id: int, versions: Mapping[int, int]) -> None:
        """Keeps logs for a stream from these versions on, by vgroup: this node has other checkpoints of it now."""
        self._vnodes.pin(pin_of(stream_id), versions)

    def pin_again(self, log: int) -> None:
        """Does so for all streams with a log that a copy has taken the place of."""
        for stream_id, versions in self.needs().items():
            self.pin(stream_id, {log: versions[log]} if log in versions else {})

    def on_parted(self, part: Callable[[int, int], None]) -> None:
        """Has `part` remove the checkpoints that have more of a log than up to a version."""
        self._directory.on_parted = part
