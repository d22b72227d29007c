"""SPLIT VGROUP and ALTER DATABASE ... VGROUPS: child tables move to new vnodes, and the streams on them go along.

Statements that write wait meanwhile. The streams read all rows and stop, each at a checkpoint; the rows of what moves
are written into new vnodes, the streams' state is divided among the tasks that they are going to have, and one
transaction of the catalog makes all of it count. What a crash leaves behind before that is removed by the next start,
what it leaves undone after it is done by the next start: see `Storage.open_all` and `StreamStarts.begin`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.common.errors import InUseError, InvalidStatementError, NotFoundError, UnavailableError
from penstock.common.fs import Fs
from penstock.common.placement import Cut, cut_one, cut_to
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog_records import Regrouping, StreamRecord
from penstock.mnode.catalog.name_lookup import require_database, require_user_database
from penstock.mnode.checkpoints.commit_records import CommitRecord, commit_record
from penstock.mnode.dnode.shared_lock import SharedLock
from penstock.mnode.streams.ingest_statements import Ingests
from penstock.mnode.streams.stream_pins import pin_of
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.streams.stream_statements import Streams
from penstock.planner.task_plans.stream_plan import PeriodPlan, RefreshPlan
from penstock.sql.cuts import Cut as StreamCut
from penstock.sql.schema import Database
from penstock.sql.tree.statements import AlterDatabase, SplitVgroup
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.store_requests import RowsRequest, StoreRequest
from penstock.tasks.worker.local_environment import LocalEnvironment
from penstock.tasks.worker.state_repartition import Moved, Repartition, refusal
from penstock.wal.record import TUID_COLUMN

MAX_VGROUPS = 1024

_INVALID_OPTION = 0x2617
_READ_TIMEOUT_S = 60.0
_CHECKPOINT_TIMEOUT_S = 30.0
_POLL_S = 0.05


class Splitting:
    """Executes the statements, one at a time."""

    def __init__(
        self,
        services: StreamServices,
        streams: Streams,
        ingests: Ingests,
        fs: Fs,
        writing: SharedLock,
        lock: AbstractContextManager[object],
        tell: Callable[[str], None],
    ) -> None:
        """`writing`: shared by statements that write. `lock`: changes of the catalog take turns by it. `tell`: says how
        far the statement is.
        """
        self._services = services
        self._streams = streams
        self._ingests = ingests
        self._fs = fs
        self._writing = writing
        self._lock = lock
        self._tell = tell
        self._closing = threading.Event()

    # --- statements --------------------------------------------------------------------------------------------

    def split(self, statement: SplitVgroup) -> Result:
        """Gives half of a vgroup's tables to a new vgroup."""

        def wanted() -> tuple[Database, Cut]:
            for database in self._services.catalog.databases():
                if statement.vgroup_id in database.vgroup_ids:
                    return database, cut_one(database.shares, database.vgroup_ids.index(statement.vgroup_id))
            raise NotFoundError(f"there is no vgroup {statement.vgroup_id}", hint="SHOW VGROUPS lists them")

        return self._execute(wanted)

    def alter(self, statement: AlterDatabase) -> Result:
        """Gives a database more vgroups, by splitting the largest ones."""
        vgroups = dict(statement.options)["VGROUPS"]
        if len(statement.options) > 1:
            raise InvalidStatementError("VGROUPS is changed by a statement of its own", code=_INVALID_OPTION)
        assert isinstance(vgroups, int)  # the parser takes nothing else

        def wanted() -> tuple[Database, Cut]:
            database = require_user_database(statement.name, self._services.catalog)
            count = len(database.vgroup_ids)
            if vgroups < count:
                raise InvalidStatementError(
                    f"database {database.name} has {count} vgroups, and can't be given fewer", code=_INVALID_OPTION,
                    hint="create another database and copy the tables")
            if vgroups > MAX_VGROUPS:
                raise InvalidStatementError(f"a database has at most {MAX_VGROUPS} vgroups", code=_INVALID_OPTION)
            return database, cut_to(database.shares, vgroups)

        return self._execute(wanted)

    def close(self) -> None:
        """Lets what waits for streams give up."""
        self._closing.set()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _execute(self, wanted: Callable[[], tuple[Database, Cut]]) -> Result:
        """Does what is `wanted`, which is asked for again once nothing changes any more."""
        database, cut = wanted()
        if len(cut.shares) == len(database.vgroup_ids):
            return Result()
        reading, _ = self._touched(database)
        for stream in reading:
            self._check_divisible(stream)
        # What is there by now is read before anybody has to wait; what comes meanwhile isn't much.
        written = self._services.storage.acknowledged(database.vgroup_ids)
        for stream in reading:
            self._await_read(stream, written)
        with self._writing.exclusive():
            database, cut = wanted()
            if len(cut.shares) > len(database.vgroup_ids):
                self._regroup(database, cut)
        return Result()

    def _regroup(self, database: Database, cut: Cut) -> None:
        reading, writing = self._touched(database)
        for stream in reading:
            self._check_divisible(stream)
        ended: list[StreamRecord] = []
        ingests = self._ingests.writing(database.name)
        try:
            for ingest in ingests:
                self._ingests.end_at_checkpoint(ingest)
            for stream in _upstream_first(reading):
                ended.append(stream)
                self._await_read(stream)
                self._streams.checkpoints.end_at_checkpoint(stream, _CHECKPOINT_TIMEOUT_S, required=True)
            for stream in writing:
                ended.append(stream)
                self._streams.checkpoints.end_at_checkpoint(stream, _CHECKPOINT_TIMEOUT_S, required=False)
            self._move(self._services.catalog.schema.regrouping(database.name, cut), reading)
        finally:
            for stream in ended:
                latest = self._services.catalog.streams.by_id(stream.id)
                if latest is not None and not self._streams.checkpoints.runs(latest):
                    self._streams.starts.begin(latest)
            for ingest in ingests:
                if not self._ingests.runs(ingest):
                    self._ingests.begin(ingest)

    def _touched(self, database: Database) -> tuple[list[StreamRecord], list[StreamRecord]]:
        """Returns the streams that read the database, and others that write into it."""
        reading: list[StreamRecord] = []
        writing: list[StreamRecord] = []
        for stream in self._services.catalog.streams.all():
            targets = (self._services.catalog.table_by_uid(uid) for uid in stream.written_uids)
            sources = (self._services.catalog.table_by_uid(uid) for uid in stream.source_uids)
            if any(source is not None and source.database == database.name for source in sources):
                reading.append(stream)
            elif any(target is not None and target.database == database.name for target in targets) or (
                    stream.uses.dlq is not None and stream.uses.dlq[0] == database.name):
                writing.append(stream)
        return reading, writing

    def _check_divisible(self, stream: StreamRecord) -> None:
        """Raises unless the stream can go on over more vnodes."""
        if stream.wanted != "running" or not self._streams.checkpoints.runs(stream):
            raise UnavailableError(f"stream {stream.name} doesn't run, and has rows to read before they are moved",
                                   hint="SHOW STREAMS says why; start it, or drop it")
        if stream.replaces is not None or any(
                one.replaces == stream.id for one in self._services.catalog.streams.all()):
            raise InUseError(f"a new version of stream {stream.name} is being built",
                             hint="wait until it has taken its place, or drop it")
        if stream.savepoints:
            raise InUseError(f"stream {stream.name} has savepoints, which are of the vnodes that there are now",
                             hint=f"DROP SAVEPOINT them; SHOW SAVEPOINTS lists {len(stream.savepoints)}")
        problem = refusal(self._streams.checkpoints.plan_of(stream))
        if problem is not None:
            raise InUseError(f"stream {stream.name} can't go on over more vnodes: {problem}",
                             hint="drop it, and create it again with FILL_HISTORY 1")

    def _await_read(self, stream: StreamRecord, written: StreamCut | None = None) -> None:
        """Waits until the stream has read what was written, or what is: then only streams behind it write any more."""
        self._tell(f"waits until stream {stream.name} has read all rows")
        deadline = self._services.clock.monotonic() + _READ_TIMEOUT_S
        while True:
            reached = self._streams.checkpoints.progress(stream)
            if reached is not None:
                behind = written or self._services.storage.acknowledged(reached)
                if all(reached[vgroup_id] >= version for vgroup_id, version in behind if vgroup_id in reached):
                    return
            if self._services.clock.monotonic() >= deadline or self._closing.is_set():
                raise UnavailableError(f"stream {stream.name} has not read all rows within {_READ_TIMEOUT_S:g} s",
                                       hint="its verdict in SHOW STREAMS names the cause; try again later")
            self._services.clock.wait(self._closing, _POLL_S)

    def _move(self, wanted: Regrouping, reading: Sequence[StreamRecord]) -> None:
        database, parents = wanted.database, wanted.parents
        known = require_database(database.name, self._services.catalog)
        added = database.vgroup_ids[len(known.vgroup_ids):]
        try:
            self._services.catalog.unfinished.begin_vnodes(added)
            versions = dict(self._services.storage.durable_cut(known.vgroup_ids))
            for place, vgroup_id in enumerate(added, len(known.vgroup_ids)):
                moving = wanted.moving.get(vgroup_id, {})
                self._tell(f"writes the rows of {sum(map(len, moving.values()))} tables into vnode {vgroup_id}, "
                           f"{place - len(known.vgroup_ids) + 1} of {len(added)}")
                versions[vgroup_id] = self._services.storage.found(
                    known, known.vgroup_ids[parents[place]], vgroup_id,
                    {uid: np.array(sorted(tuids), np.uint64) for uid, tuids in moving.items()})
            begins: dict[int, StreamCut] = {}
            for number, stream in enumerate(reading, 1):
                self._tell(f"divides the state of stream {stream.name}, {number} of {len(reading)}")
                if isinstance(self._streams.checkpoints.plan_of(stream).computation, RefreshPlan | PeriodPlan):
                    record = self._carried(stream, wanted, versions)
                    begins[stream.id] = record.versions
                else:
                    record = self._divided(stream, known, wanted, versions)
                self._services.stores.records.write(record)
                self._streams.checkpoints.hold(stream, record)
            with self._lock, self._services.storage.moving():
                self._services.catalog.regroup(wanted, begins)
                self._services.storage.settle(database)
            for stream in reading:
                if stream.id in begins:
                    self._let_go(stream, begins[stream.id])
        finally:
            if require_database(database.name, self._services.catalog).vgroup_ids == known.vgroup_ids:
                self._services.storage.discard(added)

    def _carried(
        self, stream: StreamRecord, wanted: Regrouping, versions: Mapping[int, int]
    ) -> CommitRecord:
        """Does what `_divided` does with a stream of any query, which keeps how far it has read logs, and no rows."""
        started_ms, started = self._services.clock.now_ms(), self._services.clock.monotonic()
        record = self._services.stores.records.newest(stream.id)
        latest = self._services.catalog.streams.by_id(stream.id)
        if record is None or latest is None:
            raise UnavailableError(f"stream {stream.name} has no checkpoint")
        stored = self._streams.known.plans[stream.id]
        graph = self._streams.planning.graph_of(stored.plan, wanted=wanted)
        reached = {**dict(record.versions), **versions}
        before, after = (StreamDeployment(
            stream.id, stream.name, latest.attempt, stored.plan, each, tuple(0 for _ in each.source_vgroup_ids),
            checkpoint_id, (), self._services.settings(stored.options),
        ) for each, checkpoint_id in ((stored.graph, record.checkpoint_id), (graph, record.checkpoint_id + 1)))
        environment = LocalEnvironment(
            self._services.clock, self._fs, self._services.paths, self._services.stores.results.read,
            self._services.stores.results.write_results, lambda _: None)
        done = Repartition(before, after, (), [reached[one] for one in graph.source_vgroup_ids], Moved({}, {}),
                           environment).run()
        took_ms = (self._services.clock.monotonic() - started) * 1000
        return commit_record(stream.id, record.checkpoint_id + 1, latest.attempt, graph.source_vgroup_ids,
                             [(one, took_ms) for one in done], started_ms, took_ms, record.layout)

    def _let_go(self, stream: StreamRecord, begin: StreamCut) -> None:
        """Lets go of the logs that a stream doesn't read any more, since its table has moved."""
        read = {vgroup_id for vgroup_id, _ in begin}
        for vgroup_id, _ in stream.start_cut:
            if vgroup_id not in read:
                self._services.storage.vnode(vgroup_id).release_pin(pin_of(stream.id))

    def _divided(
        self, stream: StreamRecord, known: Database, wanted: Regrouping, versions: dict[int, int]
    ) -> CommitRecord:
        """Divides the state of a stream that was ended; returns the record that makes it valid."""
        started_ms, started = self._services.clock.now_ms(), self._services.clock.monotonic()
        record = self._services.stores.records.newest(stream.id)
        if record is None or not record.is_over(known.vgroup_ids):
            raise UnavailableError(f"stream {stream.name} has no checkpoint")
        if record.unwritten:
            raise UnavailableError(f"stream {stream.name} has results that it could not write yet",
                                   hint="try again when its sinks have caught up")
        latest = self._services.catalog.streams.by_id(stream.id)
        assert latest is not None
        homes = {uid: vgroup_id for vgroup_id, tables in wanted.moving.items()
                 for uid in tables.get(stream.source_uid, ())}
        before = self._streams.checkpoints.deployment(latest, known.vgroup_ids, record.checkpoint_id)
        after = replace(
            self._streams.checkpoints.deployment(latest, wanted.database.vgroup_ids, record.checkpoint_id + 1, homes),
            plan=before.plan)
        places = {vgroup_id: place for place, vgroup_id in enumerate(wanted.database.vgroup_ids)}
        names = {child.uid: child.name for child in self._services.catalog.children(stream.source_uid)}
        moved = Moved({uid: places[vgroup_id] for uid, vgroup_id in homes.items()},
                      {names[uid]: places[vgroup_id] for uid, vgroup_id in homes.items()})
        done = Repartition(before, after, wanted.parents, [versions[one] for one in wanted.database.vgroup_ids], moved,
                           self._environment(known, homes)).run()
        took_ms = (self._services.clock.monotonic() - started) * 1000
        return commit_record(stream.id, record.checkpoint_id + 1, latest.attempt, wanted.database.vgroup_ids,
                             [(one, took_ms) for one in done], started_ms, took_ms, record.layout)

    def _environment(self, known: Database, homes: Mapping[int, int]) -> LocalEnvironment:
        """Returns what tasks see of the world as it will be: vnodes without the rows that move out of them."""
        leaving = np.array(sorted(homes), np.uint64)
        services, results = self._services, self._services.stores.results

        def read(request: StoreRequest) -> pa.Table:
            rows = results.read(request)
            if not isinstance(request, RowsRequest) or request.vgroup_id not in known.vgroup_ids:
                return rows
            return rows.filter(pa.array(~np.isin(rows.column(TUID_COLUMN).to_numpy(), leaving)))

        return LocalEnvironment(
            services.clock, self._fs, services.paths, read, results.write_results, lambda _: None)



def _upstream_first(streams: Sequence[StreamRecord]) -> list[StreamRecord]:
    """Returns the streams so that each comes behind those whose results it reads."""
    waiting, ordered = list(streams), list[StreamRecord]()
    while waiting:
        # Streams never form a circle.
        first = next(one for one in waiting if all(other.target_uid not in one.source_uids for other in waiting))
        waiting.remove(first)
        ordered.append(first)
    return ordered
