"""What the catalog holds besides databases and tables: records of streams, ingests, users and the like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.common.connection import ExternalConnection
from penstock.common.passwords import PasswordHash, ScramVerifier
from penstock.planner.streams.stream_time import TimeDefaults
from penstock.sql.rights import Right, Role
from penstock.sql.schema import ChildTable, Database, Table

WantedState = Literal["running", "paused", "stopped"]

UnfinishedKind = Literal["make_vnode", "remove_vnode", "remove_table", "remove_stream"]


@dataclass(frozen=True, slots=True, order=True)
class Unfinished:
    """Files that are to be made or removed because a statement said so: noted before, forgotten once it is done.

    Nothing else may remove files that hold rows or state. `id`: of a vgroup, a storage table, a stream or an ingest.
    """

    kind: UnfinishedKind
    id: int


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A checkpoint of a stream that has a name and is kept."""

    name: str
    checkpoint_id: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class TableRead:
    """A table that a stream reads: a super or a normal table, of which `child_uid` may be the only child that counts.

    `columns`: the physical names of those that it uses.
    """

    uid: int
    child_uid: int | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PauseCause:
    """Why a stream is paused, if not by its owner. `connection`: the one that can't be reached, if that is why."""

    text: str
    connection: str | None = None


_AS_DEFINED = TimeDefaults()


@dataclass(frozen=True, slots=True)
class AskedStream:
    """What the owner of a stream asked for: the statement, and what it was meant in, for when it is planned again.

    `database` and `time_zone` are those of the session, `created_ms` is its time. `defaults`: what the options about
    time meant that the statement left out.
    """

    text: str
    database: str | None
    time_zone: str
    created_ms: int
    defaults: TimeDefaults = _AS_DEFINED


@dataclass(frozen=True, slots=True)
class StreamUses:
    """What a stream couldn't do without, as its plan says; known also where that can't be read.

    `reading`: the table that it reads, and a second one that it joins, or looks up in. `functions` are the names of the
    users' functions that it calls, `connections` those of the connections that it uses. `external_table` is the table
    that it looks up in as it was, if it is of an external server. `views`: those that it reads, by database and name,
    and those that these read. `queried`: the tables that the query of a trigger reads.
    """

    reading: tuple[TableRead, ...] = ()
    functions: tuple[str, ...] = ()
    connections: tuple[str, ...] = ()
    dlq: tuple[str, str] | None = None
    external_table: Table | None = None
    views: tuple[tuple[str, str], ...] = ()
    queried: tuple[TableRead, ...] = ()


@dataclass(frozen=True, slots=True)
class Unlike:
    """Results that may differ from what the query says, since the owner of their stream has asked for it: of which
    range of time (units of the source's precision, both ends included), and why.
    """

    why: str
    first_ts: int
    last_ts: int

    def joined(self, before: Unlike | None) -> Unlike:
        """Returns one for these results and for those of before."""
        if before is None:
            return self
        why = before.why if self.why in before.why else f"{before.why}; {self.why}"
        return Unlike(why, min(self.first_ts, before.first_ts), max(self.last_ts, before.last_ts))


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream as it was created, and what its owner wants of it.

    `start_cut` holds (vgroup id, WAL version) pairs: what came later belongs to the stream. `created_target` tells that
    the result table was made by this stream. `attempt` is the newest one started. `pause`: why it is paused, if not by
    its owner. `replaces`: the id of the stream whose place this one takes once it has caught up. `executions_uid`: the
    table of what a trigger of its own has had computed, 0 without one. Checkpoint ids up to
    `last_checkpoint_id` were used for what isn't kept any more. `plan`: what it computes, as `mnode.stored_plan` has
    it. `unlike`: which results may differ for good from what the query says. `newest_at_start`: no row that a stream
    without history has left out is newer; None: it leaves out none.
    """

    id: int
    name: str
    asked: AskedStream
    target_uid: int
    created_target: bool
    start_cut: tuple[tuple[int, int], ...]
    uses: StreamUses = StreamUses()
    attempt: int = 0
    wanted: WantedState = "running"
    pause: PauseCause | None = None
    savepoints: tuple[Savepoint, ...] = ()
    last_checkpoint_id: int = 0
    replaces: int | None = None
    plan: str = ""
    unlike: Unlike | None = None
    newest_at_start: int | None = None
    executions_uid: int = 0

    @property
    def written_uids(self) -> tuple[int, ...]:
        """The tables that it writes, but for its DLQ table: that of results, and that of executions."""
        return tuple(uid for uid in (self.target_uid, self.executions_uid) if uid)

    @property
    def made_uids(self) -> tuple[int, ...]:
        """Those of the written tables that it has made, and that nobody else writes while it is there."""
        return tuple(uid for uid in self.written_uids if self.created_target or uid != self.target_uid)

    @property
    def source_uids(self) -> tuple[int, ...]:
        """The tables that the stream reads: one, or two that it joins."""
        return tuple(read.uid for read in self.uses.reading)

    @property
    def source_uid(self) -> int:
        """The table that the stream reads, or that of a join's left side; 0 if it reads none."""
        return self.uses.reading[0].uid if self.uses.reading else 0

    def reads(self, table: Table) -> bool:
        """Whether it reads rows of this table, and couldn't go on without it."""
        return any(read.uid == table.storage_uid and (table.kind != "child" or read.child_uid == table.uid)
                   for read in (*self.uses.reading, *self.uses.queried))

    def writes(self, table: Table) -> bool:
        """Whether it writes into this table, or into child tables of it."""
        return table.uid in self.written_uids or self.uses.dlq == (table.database, table.name)

    def reads_column(self, table: Table, physical: str) -> bool:
        """Whether it reads this column of a table."""
        return any(read.uid == table.uid and physical in read.columns
                   for read in (*self.uses.reading, *self.uses.queried))


@dataclass(frozen=True, slots=True)
class IngestRecord:
    """An ingest as it was created, and what its owner wants of it; fields as in `StreamRecord`.

    Its id is of the same series as those of streams. `tasks`: how many it was given; what they have read stays theirs.
    """

    id: int
    name: str
    text: str
    database: str | None
    time_zone: str
    target_uid: int
    connection: str
    created_ms: int
    tasks: int
    dlq: tuple[str, str] | None = None
    attempt: int = 0
    wanted: WantedState = "running"
    wanted_reason: str = ""


@dataclass(frozen=True, slots=True)
class Snode:
    """A place for agg tasks and checkpoint backups that is not a vnode."""

    id: int
    dnode_id: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A user; of the password only hashes are kept."""

    name: str
    role: Role
    password: PasswordHash
    scram: ScramVerifier
    created_ms: int
    granted: tuple[Right, ...] = ()


@dataclass(frozen=True, slots=True)
class ConnectionRecord:
    """A connection to an external server; its secrets are references."""

    connection: ExternalConnection
    created_ms: int


@dataclass(frozen=True, slots=True)
class Regrouping:
    """A database with more vgroups than it has, and what moves into them.

    `parents`: whose tables each vgroup has had, by its place in `database.vgroup_ids`. `moving`: by the new vgroup and
    the storage table, the uids of child tables, or that of a normal table itself.
    """

    database: Database
    parents: tuple[int, ...]
    moving: Mapping[int, Mapping[int, Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What the vnodes tell beyond a copy of the catalog. `children`: by super table, all that it has.

    `tables`: all of these databases, each with the storage names that its columns ever had.
    """

    databases: Sequence[Database]
    tables: Sequence[tuple[Table, Sequence[str]]]
    children: Mapping[int, Sequence[ChildTable]]
    next_id: int
    next_vgroup: int
    generation: int
    users_lost: bool
