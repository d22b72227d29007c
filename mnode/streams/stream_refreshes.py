"""Streams of any query: their result tables are made the answers as of one cut, all that are connected at once."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa

from penstock.common.errors import (
    NotFoundError,
    PenstockError,
    UnavailableError,
)
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.catalog.name_lookup import require_database
from penstock.mnode.dnode.shared_lock import SharedLock
from penstock.mnode.dnode.vnode_storage import vgroups_of
from penstock.mnode.query.activity import Activity
from penstock.mnode.query.query_statements import Queries
from penstock.mnode.query.table_scans import ScansOf
from penstock.mnode.streams.kept_plans import KeptPlans
from penstock.mnode.streams.known_streams import KnownStreams
from penstock.mnode.streams.refresh_groups import Member, Reached, connected
from penstock.mnode.streams.result_difference import Contents, Correction, as_stored, correction, correction_of_part
from penstock.mnode.streams.stream_answers import constants_of, planned_answer, result_table
from penstock.mnode.streams.stream_planning import StreamPlanning
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.streams.touched_values import touched_values, with_values_of
from penstock.planner.query.batch_plan import BatchPlan
from penstock.planner.streams.touched_keys import TouchedValues, read_with, touched_columns
from penstock.planner.task_plans.stream_plan import RefreshPlan
from penstock.sql.rows.keyed_rows import keyed
from penstock.sql.schema import Session, Table, TagValue
from penstock.tasks.protocol.refreshing import Refreshed, RefreshRequest
from penstock.tasks.refresh.refresh_task import rest_after
from penstock.vnode.read.row_places import Values, values_array
from penstock.vnode.read.snapshot import SnapshotTooOldError
from penstock.vnode.write.vnode_writer import Change

_TRIES = 8
_TABLES_MAX = 1_000
"""With more child tables that have changed an answer is computed as a whole."""

Groups = Sequence[tuple[TagValue, ...]] | None
"""Keys of the groups that are computed; None: all are."""

_NOTHING: Final = ()


@dataclass(frozen=True, slots=True)
class _Due:
    """A member whose answer is about to be computed, and what it reads.

    `must`: it is due for what others write already, else for what its sources among the members may bring. `values`:
    those of its touched columns whose rows are due alone.
    """

    member: Member
    plan: BatchPlan
    session: Session
    read: ScansOf
    keys: pa.RecordBatch | None
    must: bool
    values: TouchedValues | None = None


@dataclass(slots=True)
class _Round:
    """Results that are computed as of one cut, `versions` by vgroup, and then seen at once.

    `instead`: what result tables hold behind it, for those that read them. `failed`: why streams have no part in it;
    those that are `held` would have if others had. `whole`: some answer was computed as a whole.
    """

    catalog_changes: int
    versions: Mapping[int, int]
    instead: dict[int, Contents] = field(default_factory=dict)
    planned: list[_Due] = field(default_factory=list)
    corrections: dict[int, Correction] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    failed: dict[int, PenstockError] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    whole: bool = False


class StreamRefreshes:
    """Answers the tasks of such streams. Safe for many threads; of one stream, one attempt asks at a time.

    Whoever asks gets all that is connected with its stream (`refresh_groups`) and has anything new: computed as of one
    cut, each stream behind those that it reads, of which it sees the new results; and written so that readers see all
    or nothing. Streams that are paused or stopped have no part: their tables are read as they are. One
    whose answer can't be computed, and those that read it, stay as they were; others go on.
    """

    def __init__(
        self, services: StreamServices, known: KnownStreams, planning: StreamPlanning, queries: Queries,
        activity: Activity, writing: SharedLock,
    ) -> None:
        """`writing` is shared while rows are written, so that tables don't change their vnodes meanwhile."""
        self._services = services
        self._writing = writing
        self._storage = services.storage
        self._known = known
        self._planning = planning
        self._queries = queries
        self._activity = activity
        self._lock = threading.Lock()
        self._locks: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        self._reached: dict[int, Reached] = {}
        self._answers: KeptPlans[tuple[BatchPlan, Session]] = KeptPlans()
        self._rest_until: dict[int, float] = {}
        #: why streams stay as they are until they ask again
        self._failing: dict[int, PenstockError] = {}

    def answer(self, request: RefreshRequest) -> pa.Table:
        """Returns what was done, as `Refreshed.table` has it.

        Raises StaleAttemptError, what running the query raises, and InvalidValueError for rows of the answer that the
        table can't hold: of equal keys, or with values that don't fit.
        """
        asker = self._asker(request)
        with self._alone_with(asker) as members:
            rest = self._rest_until.get(asker.stream.id, 0.0) - self._services.clock.monotonic()
            if rest > 0 and not request.again and self._are_behind(members, asker, request.tuids):
                return Refreshed(0, rest, again=True).table()
            done = self._refresh(members, asker, request)
            # Of what was read already a task may be told later: then there is nothing to rest for.
            return (done if self._are_behind(members, asker, _NOTHING) else done._replace(rest_s=0.0)).table()

    def _asker(self, request: RefreshRequest) -> Member:
        stream = self._services.catalog.streams.by_id(request.stream_id)
        if stream is None:
            raise NotFoundError("the stream was dropped")
        target = result_table(self._services.catalog, stream)
        stored = self._known.plans.get(stream.id)
        if stored is None:
            raise UnavailableError(f"stream {stream.name} doesn't run")
        assert isinstance(stored.plan.computation, RefreshPlan)
        self._check_attempt(stream, request.attempt)
        return Member(stream, target, stored.plan.computation, request.attempt)

    def _check_attempt(self, stream: StreamRecord, attempt: int) -> None:
        self._services.stores.results.check_attempt(stream.id, attempt, f"a refresh of {stream.name}")

    # --- who is refreshed together ----------------------------------------------------------------------------

    @contextmanager
    def _alone_with(self, asker: Member) -> Iterator[list[Member]]:
        """Gives the streams that are connected with one, itself among them, whose results nobody else computes now."""
        while True:
            members = connected(asker, self._others(asker))
            with ExitStack() as stack:
                with self._lock:
                    locks = [self._locks[one] for one in sorted(member.stream.id for member in members)]
                for lock in locks:
                    stack.enter_context(lock)
                if {one.stream.id for one in connected(asker, self._others(asker))} <= {
                        member.stream.id for member in members}:
                    yield members
                    return

    def _others(self, asker: Member) -> list[Member]:
        """Returns the other streams of any query that are to run, with results in the same database.

        Whether their tasks are there makes no difference: those of one may start before those of another.
        """
        streams = self._services.catalog.streams.all()
        self._forget_all_but({stream.id for stream in streams})
        found = []
        for stream in streams:
            stored = self._known.plans.get(stream.id)
            target = self._services.catalog.table_by_uid(stream.target_uid)
            if (stored is not None and isinstance(stored.plan.computation, RefreshPlan) and target is not None
                    and stream.wanted == "running" and stream.id != asker.stream.id
                    and target.database == asker.target.database):
                found.append(Member(stream, target, stored.plan.computation))
        return found

    def _forget_all_but(self, stream_ids: Collection[int]) -> None:
        with self._lock:
            for known in (self._locks, self._reached, self._rest_until, self._failing):
                for stream_id in known.keys() - stream_ids:
                    known.pop(stream_id, None)
        self._answers.forget_all_but(stream_ids)

    # --- what is due ------------------------------------------------------------------------------------------

    def _refresh(self, members: Sequence[Member], asker: Member, request: RefreshRequest) -> Refreshed:
        """Makes the result tables of members the answers as of now; returns what became of the asker's."""
        begun_at = self._services.clock.monotonic()
        for last in range(_TRIES - 1, -1, -1):
            try:
                round_ = self._planned(members, asker, request)
                break
            except SnapshotTooOldError:  # older versions of rows were collapsed since the cut was taken
                if not last:
                    raise
        for planned in round_.planned:
            self._compute(planned, members, round_)
        with self._writing.shared():
            self._check_attempt(asker.stream, request.attempt)
            self._publish(members, round_)
        ended_at = self._services.clock.monotonic()
        took = ended_at - begun_at
        rest = rest_after(took) if round_.whole else took  # parts take the longer, the more has changed meanwhile
        for stream_id in round_.rows:
            self._rest_until[stream_id] = ended_at + rest
        self._failing.pop(asker.stream.id, None)
        self._failing.update((one, error) for one, error in round_.failed.items() if one not in round_.held)
        error = round_.failed.get(asker.stream.id)
        if error is not None:
            raise error
        return Refreshed(round_.rows.get(asker.stream.id, 0), rest)

    def _planned(self, members: Sequence[Member], asker: Member, request: RefreshRequest) -> _Round:
        """Takes a cut, and plans what is due. Raises SnapshotTooOldError."""
        changes = self._services.catalog.changes
        cut = self._storage.whole_writes.cut({vgroup for member in members for vgroup, _ in self._places(member)})
        round_ = _Round(changes, cut)
        for member in members:
            failing = None if member is asker else self._failing.get(member.stream.id)
            if failing is not None:
                round_.failed[member.stream.id] = failing
                continue
            told = request.tuids if member is asker else _NOTHING
            again = member is asker and request.again
            try:
                groups = self._due(member, told, changes, again=again)
                perhaps = any(one.member.stream.id != member.stream.id and member.reads(one.member)
                              for one in round_.planned)
                if groups != _NOTHING or perhaps:
                    must = groups != _NOTHING
                    part = None if again else self._part(member, round_, must=must)
                    round_.planned.append(part or self._plan(member, groups or None, round_, must=must))
            except SnapshotTooOldError:
                raise
            except PenstockError as error:
                round_.failed[member.stream.id] = error
        return round_

    def _are_behind(self, members: Sequence[Member], asker: Member, told: Sequence[int] | None) -> bool:
        """Returns whether an answer may have changed since it was computed; `told`: as the asker was told."""
        changes = self._services.catalog.changes
        return any(self._due(member, told if member is asker else _NOTHING, changes, again=False) != _NOTHING
                   for member in members)

    def _places(self, member: Member) -> list[tuple[int, int]]:
        """Returns the logs that a member reads, by vgroup and table."""
        catalog = self._services.catalog
        tables = [table for uid in sorted(member.sources) if (table := catalog.table_by_uid(uid)) is not None]
        return [(vgroup, table.uid) for table in tables
                for vgroup in vgroups_of(require_database(table.database, catalog), table)]

    def _due(self, member: Member, told: Sequence[int] | None, changes: int, *, again: bool) -> Groups:
        """Returns which groups of a member may have another answer than its table has; none: it is not due.

        `told`: child tables that the member's own source tasks tell of; None: any table. `again`: whatever is known.
        """
        reached = self._reached.get(member.stream.id)
        places = self._places(member)
        if again or reached is None or reached.sources.keys() != {*places}:
            return None
        moved = [place for place in places if self._newest(*place) > reached.sources[place]]
        target = (member.target.vgroup_id or 0, member.target.uid)
        if not moved and reached.catalog_changes == changes and self._newest(*target) == reached.target:
            return _NOTHING
        if not member.plan.groups or told is None:
            return None
        if reached.catalog_changes != changes and not told:
            return None  # child tables, or their tags, may be others
        children = {*told}
        for vgroup, uid in moved:
            found = self._storage.snapshot(vgroup, uid).children_since(reached.sources[vgroup, uid])
            if found is None:
                return None
            children |= found
        return self._groups(member.plan, sorted(children)) if len(children) <= _TABLES_MAX else None

    def _newest(self, vgroup_id: int, table_uid: int) -> int:
        """Returns the newest version of a vnode's log with rows or deletes of a table."""
        logged = self._storage.logged(vgroup_id, table_uid)
        return 0 if logged is None else logged.version

    def _groups(self, plan: RefreshPlan, tuids: Sequence[int]) -> Groups:
        """Returns the keys of the groups that child tables belong to; None if one of them is gone: then any may be."""
        catalog, super_uid = self._services.catalog, plan.sources[0].storage_uid
        table = catalog.table_by_uid(super_uid)
        children = [catalog.child_by_uid(super_uid, uid) for uid in tuids]
        if table is None:
            return None
        places = {tag.name: place for place, tag in enumerate(table.tags)}
        found = {tuple(child.name if name == "tbname" else child.tag_values[places[name]] for name in plan.groups)
                 for child in children if child is not None}
        return None if None in children else tuple(found)

    def _plan(self, member: Member, groups: Groups, round_: _Round, *, must: bool) -> _Due:
        plan, session = self._answer(member, groups, round_)
        keys = None if groups is None else _keys_of_groups(member.target, member.plan, groups)
        read = self._queries.as_of(plan, session, round_.versions, round_.instead)
        return _Due(member, plan, session, read, keys, must)

    def _answer(self, member: Member, groups: Groups, round_: _Round) -> tuple[BatchPlan, Session]:
        """Returns the plan of what the table is to hold, of some groups or of all; that of all is kept."""
        make = partial(planned_answer, self._planning, member.stream, member.target, member.plan.groups, groups)
        if groups is not None:
            return make()
        return self._answers.get(member.stream.id, round_.catalog_changes, "", make, lambda answer: answer[0].lasts)

    def _part(self, member: Member, round_: _Round, *, must: bool) -> _Due | None:
        """Returns what is due of a member of which it is known what changed rows touch; None if all is due."""
        reached = self._reached.get(member.stream.id)
        if not member.plan.touched or reached is None or reached.catalog_changes != round_.catalog_changes or (
                reached.sources.keys() != {*self._places(member)}):
            return None
        values = touched_values(member.plan, reached.sources, round_.versions, self._storage)
        if values is None:
            return None
        plan, session = self._answer(member, None, round_)
        read = self._queries.as_of(plan, session, round_.versions, round_.instead)
        return _Due(member, plan, session, read, None, must, values)

    def _with_touched(self, part: _Due, sources: Sequence[Member], round_: _Round) -> tuple[_Due, Values] | None:
        """Returns what is due of a part, with what members touch whose results it reads, and which values the rows of
        its table have that it is of; None if all is due."""
        member, values = part.member, part.values
        for source in sources:
            found = round_.corrections.get(source.stream.id)
            if found is not None and values is not None:
                values = with_values_of(values, member.plan, source.target.uid,
                                        [found.differing.before, found.differing.after])
        touched = touched_columns(part.plan.plan)
        if values is None or tuple(each.place for each in touched) != member.plan.touched:
            return None  # too many, or it is planned in another way by now
        columns = [member.target.columns[place] for place in member.plan.touched]
        return replace(part, read=part.read.having(part.plan.scans, read_with(touched, values))), {
            column.physical: values_array(some, column.type.arrow())
            for column, some in zip(columns, values, strict=True)}

    # --- what is computed -------------------------------------------------------------------------------------

    def _compute(self, planned: _Due, members: Sequence[Member], round_: _Round) -> None:
        member = planned.member
        stream, target = member.stream, member.target
        sources = [other for other in members if member.reads(other)]
        failing = next((one.stream for one in sources if one.stream.id in round_.failed), None)
        if failing is not None:
            round_.held.add(stream.id)
            round_.failed[stream.id] = UnavailableError(
                f"stream {failing.name}, whose results it reads, could not be refreshed: "
                f"{round_.failed[failing.id].message}", hint=f"it goes on when {failing.name} does")
            return
        if not planned.must and not any(round_.rows.get(one.stream.id) for one in sources):
            return
        try:
            part = None if planned.values is None else self._with_touched(planned, sources, round_)
            if part is None and planned.values is not None:
                planned = self._plan(member, None, round_, must=True)
            with self._activity.statement(0, f"refresh of stream {stream.name}"):
                wanted = self._wanted(planned if part is None else part[0])
                found = None if part is None else correction_of_part(
                    target, wanted, part[1], self._storage, claimed=member.plan.claimed)
            if found is None and part is not None:
                self._compute(self._plan(member, None, round_, must=True), members, round_)
                return
            found = found or correction(target, wanted, planned.keys, self._storage)
        except PenstockError as error:
            round_.failed[stream.id] = error
            return
        if found.rows and any(other.reads(member) for other in members):
            round_.instead[target.uid] = Contents(
                target, wanted, planned.keys, None if part is None else part[1], self._storage)
        round_.whole |= part is None
        round_.corrections[stream.id] = found
        round_.rows[stream.id] = found.rows

    def _wanted(self, planned: _Due) -> pa.RecordBatch:
        """Returns what the table is to hold, as it is stored, of some groups or of all."""
        target = planned.member.target
        rows = self._queries.run_as_of(planned.plan, planned.session, planned.read)
        return as_stored(target, rows, constants_of(target, self._services), repeats=planned.member.plan.repeats)

    # --- what is seen -----------------------------------------------------------------------------------------

    def _publish(self, members: Sequence[Member], round_: _Round) -> None:
        """Writes what was computed, all at once, and notes how far its streams are."""
        written = [member for member in members if member.stream.id in round_.corrections]
        for member in written:
            self._refuse_late(member, written, round_)
        written = [member for member in written if member.stream.id not in round_.failed]
        changes: dict[int, list[Change]] = {}
        for member in written:
            if round_.corrections[member.stream.id].changes:
                assert member.target.vgroup_id is not None
                changes.setdefault(member.target.vgroup_id, []).extend(round_.corrections[member.stream.id].changes)
        if changes:
            self._storage.whole_writes.write([(vgroup, partial(self._storage.begin_changes, vgroup, of_vnode))
                                              for vgroup, of_vnode in changes.items()])
        ends = {member.target.uid: self._newest(member.target.vgroup_id or 0, member.target.uid)
                for member in written}
        for member in written:
            sources = {(vgroup, uid): max(round_.versions.get(vgroup, 0), ends.get(uid, 0))
                       for vgroup, uid in self._places(member)}
            self._reached[member.stream.id] = Reached(round_.catalog_changes, sources, ends[member.target.uid])

    def _refuse_late(self, member: Member, written: Sequence[Member], round_: _Round) -> None:
        """Leaves out a stream that was paused, stopped or dropped since, or whose table was dropped or has moved, and
        those that have read its results."""
        stream = self._services.catalog.streams.by_id(member.stream.id)
        table = self._services.catalog.table_by_uid(member.target.uid)
        stays = table is not None and table.vgroup_id == member.target.vgroup_id
        if stays and stream is not None and stream.wanted == "running" and not any(
                other.stream.id in round_.failed and member.reads(other) for other in written):
            return
        round_.held.add(member.stream.id)
        round_.failed[member.stream.id] = UnavailableError(
            f"stream {member.stream.name} was paused, or another one that it reads, or its table has moved: its "
            "results were computed in vain")
        round_.rows.pop(member.stream.id, None)


def _keys_of_groups(target: Table, plan: RefreshPlan, groups: Sequence[tuple[TagValue, ...]]) -> pa.RecordBatch:
    """Returns the keys of groups as they are stored."""
    columns = [target.columns[place] for place in plan.keys]
    values = zip(*groups, strict=True) if groups else [()] * len(columns)
    return keyed(target, pa.RecordBatch.from_arrays(
        [pa.array(found, column.type.arrow()) for column, found in zip(columns, values, strict=True)],
        names=[column.physical for column in columns]))
