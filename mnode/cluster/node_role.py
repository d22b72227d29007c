"""Whether a node follows, would take over, or is active: decided by what ZooKeeper says and when that was asked.

Knows no clock and no socket: what is seen and answered comes in, requests to ZooKeeper go out, `now` is the monotonic
clock in seconds. Of nodes that may take over, the one with the longest logs does; others only after it had time to.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from penstock.mnode.cluster.cluster_messages import Life
from penstock.mnode.cluster.cluster_registry import (
    NO_RECORD,
    Candidate,
    ChangeRecord,
    ClusterRecord,
    GiveUpLease,
    LeaseHolder,
    OfferCandidacy,
    ReadRegistry,
    RecordChange,
    RegistryAnswer,
    RegistryOutcome,
    RegistryRequest,
    RegistrySeen,
    RenewLease,
    TakeLease,
    WithdrawCandidacy,
)
from penstock.mnode.cluster.lease import Lease, LeaseSettings
from penstock.mnode.cluster.log_epochs import NO_EPOCH
from penstock.mnode.cluster.synchronous_set import SynchronousSet, with_members


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """Seconds: between looks at ZooKeeper; for candidates to gather; between the turns of candidates; for who is handed
    over to, before others have a turn; for a hand-over; for a promotion; of rest after a takeover that failed; and of
    silence of the active node after which candidates gather although it has the lease."""

    lease: LeaseSettings = field(default_factory=LeaseSettings)
    read_every_s: float = 0.5
    gather_s: float = 0.6
    turn_s: float = 1.0
    successor_s: float = 3.0
    hand_over_s: float = 5.0
    promote_s: float = 10.0
    rest_s: float = 5.0
    suspect_s: float = 1.6


class Role(Enum):
    """What a node is in its cluster."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    ACTIVE = "active"
    HANDING_OVER = "handing over"


class NodeRole:
    """The role of one process of a node. `nodes`: the numbers of all nodes that the configuration names.

    A cluster that ZooKeeper knows nothing of begins when all of them are there, by the one with the longest logs.
    `epoch` is that of the node's tenure, `record` what the cluster's record says, `reason` why the last tenure ended.
    `suspects`: the active node says nothing; candidates gather before its lease ends, so that nobody waits then.
    `handed_over_by`: who was active before, and has given the lease to this node.
    """

    def __init__(self, life: Life, process: int, nodes: frozenset[int], settings: RoleSettings) -> None:
        self.role = Role.FOLLOWER
        self.epoch = NO_EPOCH
        self.record: ClusterRecord | None = None
        self.holder: LeaseHolder | None = None
        self.reason = ""
        self.suspects = False
        self.handed_over_by: Life | None = None
        self._me = LeaseHolder(life, process)
        self._nodes = nodes
        self._settings = settings
        self._lease = Lease(settings.lease)
        self._version = NO_RECORD
        self._candidates: tuple[Candidate, ...] = ()
        self._candidates_since = float("-inf")
        self._seen_at = float("-inf")
        self._change: RecordChange | None = None
        self._unknown_since: float | None = None
        self._wanted: SynchronousSet | None = None
        self._target: Life | None = None
        self._hand_over_until = 0.0
        self._free_since: float | None = None
        self._offered_at: float | None = None
        self._rest_until = float("-inf")
        self._forced_until = float("-inf")
        self._read_at = self._renew_at = float("-inf")

    @property
    def is_active(self) -> bool:
        return self.role in (Role.ACTIVE, Role.HANDING_OVER)

    @property
    def following(self) -> ClusterRecord | None:
        """The record, if its active node is another one that has the lease."""
        if self.is_active or self.record is None or self.holder is None or self.holder == self._me:
            return None
        return self.record if self.holder.life == self.record.active else None

    def may_acknowledge(self, now: float) -> bool:
        """Tells whether no other node can be active."""
        return self.is_active and not isinstance(self._change, GiveUpLease) and self._lease.valid(now)

    def is_cut_off(self, now: float) -> bool:
        """Whether this node was told last that it is active, but so long ago that another one may be by now."""
        return self.is_active and self._lease.may_be_another_ones(now)

    # --- what happens --------------------------------------------------------------------------------------------

    def seen(self, now: float, seen: RegistrySeen) -> None:
        """ZooKeeper was read; what was asked for before something newer was known changes nothing."""
        if seen.sent_at < self._seen_at or seen.version < self._version:
            return
        self._seen_at = seen.sent_at
        self.record, self._version, self.holder = seen.record, seen.version, seen.lease
        if seen.candidates != self._candidates:
            self._candidates, self._candidates_since = seen.candidates, now
        self._free_since = None if not self._lease_is_free() else now if self._free_since is None else self._free_since
        if self.is_active:
            self._see_own_tenure(seen)
        elif (seen.lease == self._me and seen.record is not None and seen.record.epoch > self.epoch
                and seen.record.active == self._me.life):
            self._begin(seen.record)

    def answered(self, now: float, answer: RegistryAnswer) -> None:
        """A request was answered."""
        if isinstance(answer.request, RenewLease):
            self._renewal_answered(answer)
        elif answer.request is not self._change:
            return
        elif answer.outcome is RegistryOutcome.DONE:
            self._changed(answer)
        else:
            # One that was refused may be so because it was performed before; what is read from now on tells.
            self._unknown_since = self._read_at = now

    def session_lost(self, reason: str) -> None:
        """The session has ended, and with it the lease and the candidacy; a new one may follow."""
        self._change, self._unknown_since, self._offered_at = None, None, None
        self.holder, self._free_since, self._candidates = None, None, ()
        self._seen_at = float("-inf")
        if self.is_active:
            self._end(reason)
        self.role = Role.FOLLOWER

    def doubt(self, now: float) -> None:
        """Somebody knows of a newer epoch."""
        if self.is_active:
            self._lease.doubt(now)
            self._read_at = self._renew_at = now

    def want_set(self, wanted: SynchronousSet) -> None:
        """The active node wants another synchronous set; `record` has it when it is written."""
        self._wanted = wanted

    def hand_over(self, now: float, target: Life) -> None:
        """Begins a switchover; the node takes no more writes, and goes on if that doesn't end in time."""
        if self.role is Role.ACTIVE:
            self.role, self._target = Role.HANDING_OVER, target
            self._hand_over_until = now + self._settings.hand_over_s

    def hand_over_now(self) -> None:
        """The target of the switchover has everything: the lease is its own to take."""
        if self.role is Role.HANDING_OVER and self._change is None and self.record is not None:
            self._change = GiveUpLease(self._version, replace(self.record, successor=self._target))
            self._unknown_since = float("-inf")

    def give_up(self, now: float, reason: str) -> None:
        """The node cannot be active now: another one shall be, and this one rests."""
        self._rest_until = now + self._settings.rest_s
        if self.is_active and self.record is not None:
            self.reason = reason
            self.role, self._target = Role.HANDING_OVER, None
            self._hand_over_until = float("inf")
            self._change = GiveUpLease(self._version, self.record)
            self._unknown_since = float("-inf")

    def promote(self, now: float) -> None:
        """Somebody wants this node to be active, whatever it lacks. It tries for a while, if nobody has the lease."""
        self._forced_until = now + self._settings.promote_s

    # --- what is to be done --------------------------------------------------------------------------------------

    def poll(self, now: float, length: int) -> list[RegistryRequest]:
        """Returns what to ask of ZooKeeper now. `length`: how many records the logs of this node have."""
        requests: list[RegistryRequest] = []
        if now >= self._read_at:
            self._read_at = now + self._settings.read_every_s
            requests.append(ReadRegistry())
        if self.is_active:
            requests += self._poll_tenure(now)
        else:
            requests += self._poll_candidacy(now, length)
        return requests

    def _poll_tenure(self, now: float) -> list[RegistryRequest]:
        requests: list[RegistryRequest] = []
        if now >= self._renew_at:
            self._renew_at = now + self._settings.lease.renew_every_s
            requests.append(RenewLease(self.epoch))
        if self.role is Role.HANDING_OVER and now >= self._hand_over_until and self._change is None:
            self.role, self._target = Role.ACTIVE, None
        if self._change is None and self._wanted is not None and self.record is not None:
            self._change = ChangeRecord(self._version, replace(self.record, synchronous=self._wanted))
            self._wanted = None
            requests.append(self._change)
        elif self._change is not None and self._unknown_since is not None and self._seen_at >= self._unknown_since:
            # What was read since says that it isn't written, and it may still be: ask for the same.
            self._change = replace(self._change, version=self._version)
            self._unknown_since = None
            requests.append(self._change)
        return requests

    def _poll_candidacy(self, now: float, length: int) -> list[RegistryRequest]:
        if self._unknown_since is not None and self._seen_at >= self._unknown_since:
            self._change = self._unknown_since = None
        if not self._may_offer(now):
            withdraws = self.role is Role.CANDIDATE
            self.role, self._offered_at = Role.FOLLOWER, None
            return [WithdrawCandidacy()] if withdraws else []
        self.role = Role.CANDIDATE
        requests: list[RegistryRequest] = []
        offered = self._me.life in [one.life for one in self._candidates]
        if self._offered_at is None:
            self._offered_at = now
            self._read_at = now + self._settings.gather_s / 2
            requests.append(OfferCandidacy(Candidate(self._me.life, length)))
        elif not offered and self._seen_at > self._offered_at + self._settings.gather_s:
            self._offered_at = None  # the note got lost, or went with a session
            return requests
        if self._change is None and self._free_since is not None and now >= self._turn_at(now):
            self._change = self._takeover()
            requests.append(self._change)
        return requests

    # --- taking over ---------------------------------------------------------------------------------------------

    def _lease_is_free(self) -> bool:
        """Tells whether nobody has the lease, or an earlier process of this node, which is dead."""
        holder = self.holder
        return holder is None or (holder.life.node == self._me.life.node and holder.process != self._me.process)

    def _may_offer(self, now: float) -> bool:
        if (self._free_since is None and not self.suspects) or now < self._rest_until:
            return False
        return now < self._forced_until or self.record is None or self.record.synchronous.may_take_over(self._me.life)

    def _turn_at(self, now: float) -> float:
        """Returns when this candidate may try: at once if it is handed over to, else the longer its logs the sooner."""
        assert self._free_since is not None
        assert self._offered_at is not None
        record = self.record
        if now < self._forced_until or (record is not None and record.successor == self._me.life):
            return self._free_since
        candidates = [one for one in self._candidates
                      if record is None or record.synchronous.may_take_over(one.life)]
        candidates.sort(key=lambda one: (-one.length, one.life.node))
        if self._me.life not in [one.life for one in candidates]:
            return float("inf")
        if record is None and not {one.life.node for one in candidates} >= self._nodes:
            return float("inf")
        turn = [one.life for one in candidates].index(self._me.life)
        handed_over = self._settings.successor_s if record is not None and record.successor is not None else 0.0
        gathered = max(self._offered_at, self._candidates_since) + self._settings.gather_s
        return max(self._free_since, gathered) + turn * self._settings.turn_s + handed_over

    def _takeover(self) -> TakeLease:
        life, record = self._me.life, self.record
        self.handed_over_by = record.active if record is not None and record.successor == life else None
        if record is None:
            epoch, synchronous = NO_EPOCH + 1, SynchronousSet((life,), 1)
        elif record.synchronous.may_take_over(life):
            epoch, synchronous = record.epoch + 1, with_members(record.synchronous, life)
        else:
            epoch, synchronous = record.epoch + 1, SynchronousSet((life,), 1)
        return TakeLease(self._version, ClusterRecord(epoch, life, synchronous), self._me, self.holder is not None)

    # --- a tenure ------------------------------------------------------------------------------------------------

    def _begin(self, record: ClusterRecord) -> None:
        self.role, self.epoch, self.record, self.holder = Role.ACTIVE, record.epoch, record, self._me
        self._lease = Lease(self._settings.lease)
        self._change, self._unknown_since, self._wanted, self._target = None, None, None, None
        self._offered_at, self.reason = None, ""
        self._forced_until = self._renew_at = float("-inf")

    def _end(self, reason: str) -> None:
        self.role, self.reason = Role.FOLLOWER, self.reason or reason
        self._change, self._unknown_since, self._wanted, self._target = None, None, None, None

    def _see_own_tenure(self, seen: RegistrySeen) -> None:
        if seen.record is None or seen.record.epoch != self.epoch:
            self._end("another node is active")
        elif seen.lease != self._me:
            self._end("the lease is gone")
        elif isinstance(self._change, ChangeRecord) and self._change.record == seen.record:
            self._change = self._unknown_since = None

    def _renewal_answered(self, answer: RegistryAnswer) -> None:
        if not self.is_active or not isinstance(answer.request, RenewLease) or answer.request.epoch != self.epoch:
            return
        if answer.outcome is RegistryOutcome.DONE:
            self._lease.renewed(answer.sent_at)
        elif answer.outcome is RegistryOutcome.REFUSED:
            self._end("the lease is gone")

    def _changed(self, answer: RegistryAnswer) -> None:
        request = answer.request
        assert not isinstance(request, RenewLease)
        self._change = self._unknown_since = None
        self._version, self._seen_at = answer.version, max(self._seen_at, answer.sent_at)
        self.record = request.record
        if isinstance(request, TakeLease):
            self._begin(request.record)
            self._lease.renewed(answer.sent_at)
        elif isinstance(request, GiveUpLease):
            self.holder = None
            self._end("handed over")
