"""Streams of any query that are connected by what they read and write: which ones, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.planner.task_plans.stream_plan import RefreshPlan
from penstock.sql.schema import Table

Logs = Mapping[tuple[int, int], int]
"""Versions, by vgroup and table."""


@dataclass(frozen=True, slots=True)
class Member:
    """A stream of any query, with its result table; `attempt`: the one that asks for its results, if it does."""

    stream: StreamRecord
    target: Table
    plan: RefreshPlan
    attempt: int | None = None

    @property
    def sources(self) -> frozenset[int]:
        """The tables that it reads."""
        return frozenset(source.storage_uid for source in self.plan.sources)

    @property
    def tables(self) -> frozenset[int]:
        return self.sources | {self.target.uid}

    def reads(self, other: Member) -> bool:
        return other.target.uid in self.sources


@dataclass(frozen=True, slots=True)
class Reached:
    """As of what a result table is the answer: versions of the sources' logs, and how often the catalog had changed.

    `target`: the newest version of the table's own log with rows of it.
    """

    catalog_changes: int
    sources: Logs
    target: int


def connected(to: Member, members: Iterable[Member]) -> list[Member]:
    """Returns all members whose results are to be seen together with those of one: that have a table in common with it,
    or with another such member. Each comes behind those that it reads."""
    found, tables, others = [to], to.tables, list(members)
    while further := [other for other in others if not tables.isdisjoint(other.tables)]:
        found += further
        others = [other for other in others if tables.isdisjoint(other.tables)]
        tables = tables.union(*(other.tables for other in further))
    return _ordered(found)


def _ordered(members: Sequence[Member]) -> list[Member]:
    ordered: list[Member] = []
    waiting = sorted(members, key=lambda member: member.stream.id)
    while waiting:
        unmade = {one.target.uid for one in waiting}
        ready = [one for one in waiting if unmade.isdisjoint(one.sources)]
        if not ready:  # streams in a circle are refused
            return ordered + waiting
        ordered += ready
        waiting = [one for one in waiting if not unmade.isdisjoint(one.sources)]
    return ordered
