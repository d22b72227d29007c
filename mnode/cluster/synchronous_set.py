"""Which nodes have everything that is acknowledged, what is acknowledged, and when a node leaves that set or joins it.

The set is one list for the whole cluster, the active node first. A database with REPLICA n is acknowledged by the first
n of it, so that of nodes that have much those come first that others count on. The first `complete` have everything
that was ever acknowledged of databases with two replicas or more: one of these may take over. The list is kept by the
coordinator and changed there by compare-and-set; while a change is under way, both lists count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from penstock.mnode.cluster.cluster_messages import Life
from penstock.mnode.cluster.log_shipping import CopyProgress


@dataclass(frozen=True, slots=True)
class SynchronousSet:
    """The list as the coordinator keeps it; the first member is the active node."""

    members: tuple[Life, ...]
    complete: int

    def may_take_over(self, life: Life) -> bool:
        """Tells whether a node has everything that was acknowledged."""
        return life in self.members[:self.complete]


@dataclass(frozen=True, slots=True)
class LogReplicas:
    """What a log's database asks for: REPLICA, WAL_LEVEL, and whether to go on with fewer nodes or to wait for more."""

    replicas: int
    wal_level: int
    with_fewer: bool = False


@dataclass(frozen=True, slots=True)
class SetSettings:
    """`silent_after_s`: a member that says nothing for so long leaves; `behind_after_s`: one that hasn't had, for so
    long, what the active had leaves as well; `first_word_s`: one that has said nothing yet in a tenure leaves after so
    long: mostly it is the node that was active before, and is dead."""

    silent_after_s: float = 3.0
    behind_after_s: float = 10.0
    first_word_s: float = 3.0


class MemberWatch:
    """How one standby keeps up, as the active sees it. `life` and `session` are those of its process."""

    def __init__(self, life: Life, session: int, now: float) -> None:
        self.life = life
        self.session = session
        self.heard_at = now
        self.level_at: float | None = None
        self.progress: dict[int, CopyProgress] = {}
        self._mark: dict[int, int] | None = None
        self._marked_at = now
        self._since = now

    def heard(self, now: float) -> None:
        self.heard_at = max(self.heard_at, now)

    def compare(self, now: float, ends: Mapping[int, int]) -> None:
        """Notes since when the standby has had all that the active has. `ends`: the active's last version by log."""
        if self._mark is not None and self.has(self._mark):
            self.level_at, self._mark = self._marked_at, None
        if self._mark is None:
            self._mark, self._marked_at = dict(ends), now
            if self.has(ends):
                self.level_at = now

    def has(self, versions: Mapping[int, int]) -> bool:
        return all(log in self.progress and self.progress[log].written >= version
                   for log, version in versions.items())

    def behind_s(self, now: float) -> float:
        """Returns for how long the standby hasn't had what the active had."""
        return now - (self._since if self.level_at is None else self.level_at)


class SynchronousSetKeeper:
    """The active node's view of the set: what it acknowledges, and how the list should change.

    At most one change is under way. If nobody knows what became of it, the same is asked for again. `began_at`: the
    start of the active's tenure, from when on members that have not spoken yet are given time. `silent`: those that had
    said nothing for long by then, or start anew: they leave as soon as there are others that have all.
    """

    def __init__(self, active: Life, current: SynchronousSet, settings: SetSettings, began_at: float,
                 silent: Collection[Life] = ()) -> None:
        self.current = current
        self.under_way: SynchronousSet | None = None
        self._active = active
        self._settings = settings
        self._began_at = began_at
        self._silent = silent

    def needed(self, wanted: LogReplicas) -> frozenset[Life] | None:
        """Returns the nodes that must have a record before it is acknowledged; None if there are too few of them."""
        if wanted.replicas == 1:
            return frozenset({self._active})
        lives: set[Life] = {self._active}
        for one in (self.current, self.under_way or self.current):
            first = one.members[:max(wanted.replicas, one.complete)]
            if len(first) < wanted.replicas and not wanted.with_fewer:
                return None
            lives.update(first)
        return frozenset(lives)

    def acknowledged(self, wanted: LogReplicas, progress: Mapping[Life, CopyProgress]) -> int | None:
        """Returns the last version of a log that all who need to have; None if too few nodes are there.

        `progress`: of that log, of the active too; nodes that aren't named have nothing.
        """
        needed = self.needed(wanted)
        if needed is None:
            return None
        return min(progress.get(life, CopyProgress()).at_level(wanted.wal_level) for life in needed)

    def change(self, now: float, watches: Iterable[MemberWatch], logs: Mapping[int, LogReplicas],
               ends: Mapping[int, int]) -> SynchronousSet | None:
        """Returns the list as it should be from now on, which then is under way; None if there is nothing to ask for.

        `ends`: by log, the version up to which something may have been acknowledged, by this active or one before.
        """
        if self.under_way is not None:
            return None
        wanted = self._wanted(now, list(watches), logs, ends)
        if wanted == self.current:
            return None
        self.under_way = wanted
        return wanted

    def written(self, change: SynchronousSet) -> None:
        """The coordinator has this list."""
        self.current, self.under_way = change, None

    def _wanted(self, now: float, watches: list[MemberWatch], logs: Mapping[int, LogReplicas],
                ends: Mapping[int, int]) -> SynchronousSet:
        by_life = {watch.life: watch for watch in watches}
        gone = {life for life in self._silent if life in self.current.members and life not in by_life}
        wanted = self._without(gone, now, by_life, logs, ends)
        if gone and len(wanted.members) < wanted.complete:
            return self._without(frozenset(), now, by_life, logs, ends)
        return wanted

    def _without(self, gone: Collection[Life], now: float, by_life: Mapping[Life, MemberWatch],
                 logs: Mapping[int, LogReplicas], ends: Mapping[int, int]) -> SynchronousSet:
        replicated = {log: one for log, one in logs.items() if one.replicas > 1}
        size = max((one.replicas for one in replicated.values()), default=1)
        complete = min((one.replicas for one in replicated.values()), default=1)
        proven = self.current.members[:self.current.complete]
        others = sorted(by_life.keys() - {*self.current.members}, key=lambda life: life.node)
        members = [self._active]
        for life in (*self.current.members, *others):
            if life == self._active or life in gone or len(members) == size or (
                    not self._keeps_up(now, life, by_life.get(life))):
                continue
            if len(members) >= complete or life in proven or _has_all(by_life.get(life), replicated, ends):
                members.append(life)
        return SynchronousSet(tuple(members), complete)

    def _keeps_up(self, now: float, life: Life, watch: MemberWatch | None) -> bool:
        member = life in self.current.members
        if watch is None:
            return member and now - self._began_at <= self._settings.first_word_s
        if now - max(watch.heard_at, self._began_at) > self._settings.silent_after_s:
            return False
        return watch.behind_s(now) <= self._settings.behind_after_s / (1 if member else 4)


def _has_all(watch: MemberWatch | None, logs: Mapping[int, LogReplicas], ends: Mapping[int, int]) -> bool:
    """Tells whether a node has all that may have been acknowledged."""
    if watch is None:
        return False
    return all(watch.progress.get(log, CopyProgress()).at_level(wanted.wal_level) >= ends.get(log, 0)
               for log, wanted in logs.items())


def with_members(current: SynchronousSet, active: Life) -> SynchronousSet:
    """Returns the list after a takeover by one of the complete nodes: it comes first, the order stays otherwise."""
    others = tuple(life for life in current.members if life != active and life.node != active.node)
    return replace(current, members=(active, *others))
