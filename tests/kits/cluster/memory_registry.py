"""ZooKeeper in memory, as far as a cluster uses it: one record, one lease, candidates, sessions that end."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.mnode.cluster.cluster_registry import (
    NO_RECORD,
    Candidate,
    ChangeRecord,
    ClusterRecord,
    GiveUpLease,
    LeaseHolder,
    OfferCandidacy,
    ReadRegistry,
    RegistryOutcome,
    RegistryRequest,
    RegistrySeen,
    RenewLease,
    TakeLease,
    WithdrawCandidacy,
)


@dataclass
class MemoryRegistry:
    """`held`: sessions and epochs of those that have created a lease. `history`: each record that was written."""

    record: ClusterRecord | None = None
    version: int = NO_RECORD
    lease: tuple[int, LeaseHolder] | None = None
    held: set[tuple[int, int]] = field(default_factory=set)
    candidates: dict[int, tuple[int, Candidate]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    history: list[ClusterRecord] = field(default_factory=list)

    def seen(self, sent_at: float) -> RegistrySeen:
        return RegistrySeen(self.record, self.version, None if self.lease is None else self.lease[1],
                            tuple(one for _, one in self.candidates.values()), sent_at)

    def perform(self, session: int, request: RegistryRequest) -> RegistryOutcome:
        """Performs a request of a session, all of it or nothing."""
        if session in self.ended:
            return RegistryOutcome.REFUSED
        match request:
            case OfferCandidacy(candidate):
                self.candidates[candidate.life.node] = (session, candidate)
            case WithdrawCandidacy():
                self._drop_candidates(session)
            case RenewLease(epoch):
                return RegistryOutcome.DONE if (session, epoch) in self.held else RegistryOutcome.REFUSED
            case TakeLease(version, record, holder, replaces):
                if version != self.version or (self.lease is not None) != replaces:
                    return RegistryOutcome.REFUSED
                self._write(record)
                self.lease = (session, holder)
                self.held.add((session, record.epoch))
                self._drop_candidates(session)
            case ChangeRecord(version, record):
                if version != self.version:
                    return RegistryOutcome.REFUSED
                self._write(record)
            case GiveUpLease(version, record):
                if version != self.version or self.lease is None or self.lease[0] != session:
                    return RegistryOutcome.REFUSED
                self._write(record)
                self.lease = None
            case ReadRegistry():
                pass
        return RegistryOutcome.DONE

    def end(self, session: int) -> None:
        """A session ends, and what is of it."""
        self.ended.add(session)
        self.held = {one for one in self.held if one[0] != session}
        self._drop_candidates(session)
        if self.lease is not None and self.lease[0] == session:
            self.lease = None

    def _write(self, record: ClusterRecord) -> None:
        self.record, self.version = record, self.version + 1
        self.history.append(record)

    def _drop_candidates(self, session: int) -> None:
        self.candidates = {node: one for node, one in self.candidates.items() if one[0] != session}
