"""What the cluster keeps in ZooKeeper, and how a node asks for it. Who performs that answers each request once.

One record that is changed by compare-and-set, a lease that ends with the session of who has it, and a note of each
candidate that ends in the same way. A request that was asked may be performed, refused, or nobody knows; one whose
session has ended is performed no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.mnode.cluster.cluster_messages import Life
from penstock.mnode.cluster.synchronous_set import SynchronousSet

#: The version of a record that isn't there.
NO_RECORD = -1


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """Who is, or was last, active, in which epoch, and the synchronous set. `successor` is who is handed over to."""

    epoch: int
    active: Life
    synchronous: SynchronousSet
    successor: Life | None = None


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """Who has the lease; `process` is drawn by each start of a node's process."""

    life: Life
    process: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that would take over; `length` is how many records all of its logs have."""

    life: Life
    length: int


@dataclass(frozen=True, slots=True)
class RegistrySeen:
    """What is in ZooKeeper; `sent_at`: when that was asked for, by the node's monotonic clock.

    Record and lease need not be of one instant; what is written says by version what it was decided upon.
    """

    record: ClusterRecord | None
    version: int
    lease: LeaseHolder | None
    candidates: tuple[Candidate, ...]
    sent_at: float


@dataclass(frozen=True, slots=True)
class ReadRegistry:
    """Read all of it, and answer with RegistrySeen; if that fails, not at all."""


@dataclass(frozen=True, slots=True)
class OfferCandidacy:
    """Note that this node would take over, instead of what it has noted before."""

    candidate: Candidate


@dataclass(frozen=True, slots=True)
class WithdrawCandidacy:
    """Remove that note."""


@dataclass(frozen=True, slots=True)
class TakeLease:
    """At once or not at all: the record still has `version`, there is no lease; write the record, create the lease.

    `replaces`: there is a lease, of an earlier process of this node, that is deleted in the same step.
    """

    version: int
    record: ClusterRecord
    holder: LeaseHolder
    replaces: bool


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """Write the record if it still has `version`."""

    version: int
    record: ClusterRecord


@dataclass(frozen=True, slots=True)
class GiveUpLease:
    """At once or not at all: the record still has `version`; write the record, delete this session's lease."""

    version: int
    record: ClusterRecord


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Write something to what this session has created with its lease for `epoch`; refused if that isn't there.

    A write, since one that is performed proves that the session was alive when it was sent; a read may come from a
    server that is behind.
    """

    epoch: int


RecordChange = TakeLease | ChangeRecord | GiveUpLease
RegistryRequest = ReadRegistry | OfferCandidacy | WithdrawCandidacy | RecordChange | RenewLease


class RegistryOutcome(Enum):
    """What became of a request."""

    DONE = "performed"
    REFUSED = "refused: things were not as the request said"
    UNKNOWN = "nobody knows: the connection was lost, or no answer came in time"


@dataclass(frozen=True, slots=True)
class RegistryAnswer:
    """The answer to what changes the record or renews the lease. `version`: of the record, if it was written."""

    request: RecordChange | RenewLease
    outcome: RegistryOutcome
    version: int
    sent_at: float
