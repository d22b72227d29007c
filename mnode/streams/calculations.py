"""Streams with a trigger of their own: computes what windows are for that have fired, and writes what that gives."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from penstock.common.errors import (
    BusyError,
    CancelledError,
    InvalidStatementError,
    NotFoundError,
    PenstockError,
    StorageError,
    UnavailableError,
)
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.catalog.name_lookup import TABLE_MISSING, require_database
from penstock.mnode.ddl.child_creation import ChildCreator
from penstock.mnode.dnode.shared_lock import SharedLock
from penstock.mnode.query.activity import Activity
from penstock.mnode.query.query_runner import ResultLimits
from penstock.mnode.query.query_statements import Queries
from penstock.mnode.query.table_scans import GivenRows
from penstock.mnode.streams.calculated_results import (
    ComputedWindows,
    Results,
    last_of_each,
    no_results,
    stored_results,
    told_results,
)
from penstock.mnode.streams.fired_windows import (
    FiredWindow,
    Times,
    bounds_of,
    newest_of,
    packed_times,
    plain_values,
    times_of,
    windows_of,
)
from penstock.mnode.streams.known_streams import KnownStreams
from penstock.mnode.streams.periods import Periods, Tick
from penstock.mnode.streams.stream_planning import AskedCalculation, StreamPlanning
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.write.result_children import ResultChildren
from penstock.planner.query.batch_plan import BatchPlan
from penstock.planner.query.select import plan_query
from penstock.planner.streams.calculated_target import PROBLEM_MAX, TIMES, value_column
from penstock.planner.task_plans.stream_plan import CalculationPlan, PeriodPlan, StreamPlan
from penstock.sql.dialect.create_statements import group_constant
from penstock.sql.dialect.generator import identifier
from penstock.sql.dialect.parser import parse_query
from penstock.sql.rows.constants import Constants
from penstock.sql.schema import Table
from penstock.sql.tree.fired_queries import (
    FIRED,
    ID,
    START,
    Values,
    constants,
    for_many,
    for_one,
    forced,
    group_column,
    rows_of_trigger,
    with_told,
)
from penstock.sql.tree.statements import Name, Query
from penstock.tasks.protocol.messages import ResultWrite, TaskId
from penstock.tasks.protocol.refreshing import FIRED as FIRED_ROWS
from penstock.tasks.protocol.refreshing import FireRequest
from penstock.vnode.read.row_places import RowPlaces
from penstock.vnode.store.sorted_keys import U64
from penstock.vnode.write.vnode_writer import Change, DeletedRows, WrittenRows
from penstock.wal.record import TUID_COLUMN

_CLOSING_S = 30.0
_ONE_BY_ONE = 3
"""So few windows are computed one after the other: a query with their times in it reads less."""
_TOO_MANY_TIMES = "its results have too many times to be found again: they stay if the window gives others"


@dataclass(frozen=True, slots=True)
class _Execution:
    """What is known of an execution: when it was first fired (ns), and at which times its results are."""

    fired_ns: int
    times: Times


@dataclass(slots=True)
class _Job:
    """One order: the stream, what it asks for, its tables, and windows."""

    stream: StreamRecord
    plan: StreamPlan
    calculation: CalculationPlan
    asked: AskedCalculation
    executions: Table
    target: Table | None
    now_ns: int
    known: dict[tuple[int, int], _Execution] = field(default_factory=dict)
    ticks: Mapping[int, Tick] = field(default_factory=dict)

    def is_whole(self, window: FiredWindow) -> bool:
        """Whether the stream has read all rows of a window, and was to compute its results of them."""
        first = self.stream.newest_at_start
        return (self.calculation.values > 0 and window.rows > 0 and not window.opened and self.stream.unlike is None
                and (first is None or window.start > first))

    def fired_ns(self, window: FiredWindow) -> int:
        """Returns when a window fired first; of PERIOD when it was to."""
        if window.start in self.ticks:
            return self.ticks[window.start].at_ns
        found = self.known.get(window.place)
        return self.now_ns if found is None else found.fired_ns

    def clock_of(self, window: FiredWindow) -> Values:
        """Returns what PERIOD gives besides."""
        tick = self.ticks.get(window.start)
        return {} if tick is None else tick.values()


class Calculations:
    """Takes windows of sink tasks, and answers their orders. Safe for many threads; of one task, one asks at a time.

    What the trigger gives stands in the row of an execution from the first time on, so that a window that is computed
    again, after a crash or since a row came late, gives its results the same times, and those that it gives no more are
    deleted: the row says where they are.
    """

    def __init__(
        self, services: StreamServices, known: KnownStreams, planning: StreamPlanning, queries: Queries,
        activity: Activity, writing: SharedLock, children: ChildCreator, limits: ResultLimits,
    ) -> None:
        """`writing` is shared while rows are written, so that tables don't change their vnodes meanwhile. `limits`: how
        much a query may give."""
        self._services = services
        self._storage = services.storage
        self._known = known
        self._planning = planning
        self._queries = queries
        self._activity = activity
        self._writing = writing
        self._children = children
        self._limits = limits
        self._periods = Periods(services, known, queries)
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._under_way = 0
        self._looked_at = -1
        self._closed = False
        self._pending: dict[tuple[TaskId, int], list[ResultWrite]] = {}
        self._children_of: dict[TaskId, ResultChildren] = {}
        #: the newest window of each group, by stream; see `_newest_of`
        self._newest: dict[int, dict[int, int]] = {}
        self._asked: dict[int, tuple[int, AskedCalculation]] = {}

    def take(self, write: ResultWrite) -> bool:
        """Takes windows of a stream with a trigger of its own; returns whether it is one."""
        stored = self._known.plans.get(write.stream_id)
        if stored is None or stored.plan.calculation is None or write.target_uid != stored.plan.sink.target_uid:
            return False
        with self._lock:
            key = write.task, write.attempt
            if key not in self._pending:
                for other in [other for other in self._pending if other[0] == write.task and other[1] < write.attempt]:
                    del self._pending[other]
            self._pending.setdefault(key, []).append(write)
        return True

    def fire(self, request: FireRequest) -> pa.Table:
        """Does what the request's class says. Raises StaleAttemptError, and what writing raises; what a query raises
        stands in the row of its execution."""
        with self._lock:
            if self._closed:
                raise UnavailableError("the engine is closing: what has fired is computed when it has started anew")
            self._under_way += 1
            writes = self._pending.pop((request.task, request.attempt), [])
        try:
            return self._fire(request, writes)
        finally:
            with self._lock:
                self._under_way -= 1
                self._ended.notify_all()

    def close(self) -> None:
        """Waits for what is being computed; nothing more is."""
        with self._lock:
            self._closed = True
            self._ended.wait_for(lambda: not self._under_way, _CLOSING_S)

    def _fire(self, request: FireRequest, writes: Sequence[ResultWrite]) -> pa.Table:
        stream_id = request.task.stream_id
        self._services.stores.results.check_attempt(stream_id, request.attempt, request.task)
        if not writes:
            return FIRED_ROWS.empty_table()
        job = self._job(stream_id)
        fired = self._fired(job, (window for write in writes for window in windows_of(
            write.rows, len(job.asked.trigger.partition_by), job.asked.gap)))
        by_clock = isinstance(job.plan.computation, PeriodPlan)
        due = newest_of(window for window in fired if window.gone or (
            window.event in job.calculation.events and not (by_clock and window.opened)))
        gone = [window for window in due if window.gone]
        windows = [window for window in due if not window.gone]
        if by_clock:
            job.ticks = self._periods.ticks_of(job.stream, job.plan, job.executions, fired)
            windows = self._with_rows(job, windows)
        job.known = self._executions_of(job, due)
        computed = self._computed(job, windows)
        results = self._results(job, computed)
        with self._writing.shared():
            self._services.stores.results.check_attempt(stream_id, request.attempt, request.task)
            self._write(job, results, windows, gone, writes[-1])
            self._begin_periods(job, fired)
        self._forget_dropped()
        if job.plan.notify is None:
            return FIRED_ROWS.empty_table()
        return told_results(fired, computed, job.calculation.columns)

    # --- what is to be computed -------------------------------------------------------------------------------

    def _job(self, stream_id: int) -> _Job:
        catalog, clock = self._services.catalog, self._services.clock
        stream = catalog.streams.by_id(stream_id)
        if stream is None:
            raise NotFoundError("the stream was dropped")
        stored = self._known.plans.get(stream.id)
        if stored is None or stored.plan.calculation is None:
            raise UnavailableError(f"stream {stream.name} doesn't run")
        plan = stored.plan
        assert plan.calculation is not None
        executions = catalog.table_by_uid(plan.calculation.uid)
        target = catalog.table_by_uid(plan.sink.target_uid) if plan.sink.target_uid else None
        if executions is None or (target is None and plan.sink.target_uid):
            raise NotFoundError(f"the result table of stream {stream.name}, or that of its executions, was dropped",
                                code=TABLE_MISSING)
        changes, asked = self._asked.get(stream_id, (-1, None))
        if asked is None or changes != catalog.changes:
            changes, asked = catalog.changes, self._planning.calculation_of(stream)
            self._asked[stream_id] = changes, asked
        asked = replace(asked, session=replace(asked.session, now_ms=clock.now_ms()))
        return _Job(stream, plan, plan.calculation, asked, executions, target, clock.now_ms() * 1_000_000)

    def _fired(self, job: _Job, handed: Iterable[FiredWindow]) -> list[FiredWindow]:
        """Returns the windows that count: those that are full, and not expired."""
        expired, newest = job.asked.expired, self._newest_of(job)
        fired = []
        for window in handed:
            last = newest.get(window.group.id)
            old = expired is not None and last is not None and (window.end or window.start) < last - expired
            full = window.rows >= job.asked.count or window.gone or window.opened
            if full and not old:
                fired.append(window)
        return fired

    def _executions_of(self, job: _Job, windows: Sequence[FiredWindow]) -> dict[tuple[int, int], _Execution]:
        """Returns what is known of windows that may have been computed before."""
        newest = self._newest_of(job)
        starts = {window.start for window in windows
                  if window.group.id not in newest or window.start <= newest[window.group.id]}
        if not starts:
            return {}
        times = pa.array(sorted(starts), pa.int64())
        uids = pa.repeat(pa.scalar(job.executions.uid, pa.uint64()), len(times))
        assert job.executions.vgroup_id is not None
        rows = self._storage.snapshot(job.executions.vgroup_id, job.executions.uid).rows_at(
            [START, ID, FIRED, TIMES], RowPlaces.at(uids, times))
        found = zip(rows.column(START).cast(pa.int64()).to_pylist(),
                    *(rows.column(name).to_pylist() for name in (ID, FIRED, TIMES)), strict=True)
        return {(group, start): _Execution(fired or job.now_ns, self._times_of(job, start, packed))
                for start, group, fired, packed in found}

    def _times_of(self, job: _Job, start: int, packed: bytes | None) -> Times:
        """Returns at which times an execution's results are; none, and says so, if what tells that is damaged."""
        try:
            return times_of(packed)
        except StorageError as error:
            self._known.tell(job.stream.id, f"{error}: what the window at {start} gave before stays where it isn't "
                                            f"replaced; somebody has written into {job.executions.name}")
            return times_of(None)

    def _with_rows(self, job: _Job, windows: Sequence[FiredWindow]) -> list[FiredWindow]:
        """Returns those that PERIOD fires: where it is to have rows, of groups that have got some."""
        if not job.asked.does.ignore_nodata or job.asked.trigger.source is None:
            return list(windows)
        found = []
        for start in sorted({window.start for window in windows}):
            query = rows_of_trigger(job.asked.trigger, job.ticks[start].values())
            plan = plan_query(query, job.asked.catalog, job.asked.session)
            rows = self._queries.run_given(plan, job.asked.session, {})
            groups = set(zip(*map(plain_values, rows.columns), strict=True))
            found += [window for window in windows if window.start == start and (
                window.group.values in groups if window.group.values else bool(groups))]
        return found

    def _begin_periods(self, job: _Job, fired: Sequence[FiredWindow]) -> None:
        """Notes since when rows of the table of PERIOD count, in a row of its own."""
        begun = [window for window in fired if window.opened and window.start in job.ticks]
        if begun:
            assert job.executions.vgroup_id is not None
            self._begin({job.executions.vgroup_id: [self._rows_of(job, begun, no_results(len(begun)))]})

    def _newest_of(self, job: _Job) -> dict[int, int]:
        """Returns the start of each group's newest window that was computed: by this engine, or by one before it."""
        newest = self._newest.get(job.stream.id)
        if newest is None:
            name = f"{identifier(job.executions.database)}.{identifier(job.executions.name)}"
            query = parse_query(f"SELECT {ID}, CAST(max({START}) AS BIGINT) FROM {name} GROUP BY {ID}")
            plan = plan_query(query, job.asked.catalog, job.asked.session)
            found = self._queries.run_given(plan, job.asked.session, {})
            newest = self._newest.setdefault(job.stream.id, dict(zip(
                found.column(0).to_pylist(), found.column(1).to_pylist(), strict=True)))
        return newest

    # --- computing --------------------------------------------------------------------------------------------

    def _computed(self, job: _Job, windows: Sequence[FiredWindow]) -> ComputedWindows:
        """Returns what the query gives for windows; of those for which it fails, why."""
        found, does = ComputedWindows.nothing(windows), job.asked.does
        if does.query is None:
            return found
        names = [column.name for column in job.calculation.columns]
        handed = [place for place, window in enumerate(windows) if job.is_whole(window)]
        if handed:
            found.add_handed(handed, [value_column(place) for place in range(1, job.calculation.values + 1)])
        self._compute(job, with_told(does.query, does, names), found,
                      sorted(set(range(len(windows))).difference(handed)))
        if does.force_output:
            some = found.has_rows()
            self._compute(job, with_told(forced(does.query), does, names), found,
                          [place for place in range(len(windows)) if place not in some])
        return found

    def _compute(self, job: _Job, query: Query, found: ComputedWindows, places: Sequence[int]) -> None:
        """Adds the results of some windows: of many by one query, of few, and where that fails, by one for each."""
        clock = self._services.clock
        if len({found.windows[place].start for place in places}) > 1 and job.ticks:
            for start in sorted({found.windows[place].start for place in places}):
                self._compute(job, query, found, [place for place in places if found.windows[place].start == start])
            return
        if len(places) > _ONE_BY_ONE:
            begun = clock.monotonic()
            try:
                rows = self._of_many(job, query, [found.windows[place] for place in places])
            except BusyError:
                raise  # it is tried again when the stream has started anew
            except CancelledError as error:
                for place in places:
                    found.fail(place, str(error), (clock.monotonic() - begun) / len(places))
                return
            except PenstockError:
                pass
            else:
                found.add_many(places, rows, (clock.monotonic() - begun) / len(places))
                return
        for place in places:
            if self._services.catalog.streams.by_id(job.stream.id) is None:
                raise NotFoundError("the stream was dropped")
            begun = clock.monotonic()
            try:
                found.add(place, self._of_one(job, query, found.windows[place]), clock.monotonic() - begun)
            except BusyError:
                raise
            except PenstockError as error:
                found.fail(place, str(error), clock.monotonic() - begun)

    def _of_many(self, job: _Job, query: Query, windows: Sequence[FiredWindow]) -> pa.Table:
        asked = job.asked
        plan = plan_query(for_many(
            query, asked.trigger, asked.does, Name(job.executions.name, job.executions.database), bounds_of(windows),
            job.clock_of(windows[0]), by_table=asked.by_table), asked.catalog, asked.session)
        rows = _FiredRows(self._rows_of(job, windows, no_results(len(windows))).batch)
        return self._run(job, plan, {job.executions.uid: rows}, f"{len(windows)} windows", columns_before=2)

    def _of_one(self, job: _Job, query: Query, window: FiredWindow) -> pa.Table:
        asked = job.asked
        kinds = {column.name: column.type for column in job.executions.columns}
        groups = [group_constant(value, kinds[group_column(place)])
                  for place, value in enumerate(window.group.values, 1)]
        values = constants(asked.does, asked.trigger, window.start, window.start if window.end is None else window.end,
                           window.rows, window.group.id, job.fired_ns(window), groups, job.clock_of(window))
        plan = plan_query(for_one(query, asked.trigger, values, by_table=asked.by_table), asked.catalog, asked.session)
        return self._run(job, plan, {}, f"the window at {window.start}")

    def _run(
        self, job: _Job, plan: BatchPlan, instead: Mapping[int, GivenRows], of: str, columns_before: int = 0
    ) -> pa.Table:
        """Runs a query of windows as a statement of its own, which has its time, and can be ended alone.

        `columns_before` the results, so many. Raises InvalidStatementError if `*` means other columns by now.
        """
        columns = len(plan.columns) - columns_before - (job.asked.does.where is not None)
        if columns != len(job.calculation.columns):
            raise InvalidStatementError(
                f"the query of stream {job.stream.name} gives {columns} columns now, its table has "
                f"{len(job.calculation.columns)}", hint="DROP STREAM, and create it with names in place of *")
        with self._activity.statement(0, f"stream {job.stream.name}: query of {of}"):
            return self._queries.run_given(plan, job.asked.session, instead, self._limits)

    def _results(self, job: _Job, computed: ComputedWindows) -> Results:
        """Returns results as the table stores them; windows with one that it can't hold have none."""
        if job.target is None:
            return no_results(len(computed.windows), computed)
        precision = require_database(job.target.database, self._services.catalog).precision
        zone = Constants(precision, "UTC", self._services.clock.now_ms())
        return stored_results(job.target, computed, zone)

    # --- writing ----------------------------------------------------------------------------------------------

    def _write(
        self, job: _Job, results: Results, windows: Sequence[FiredWindow], gone: Sequence[FiredWindow],
        write: ResultWrite,
    ) -> None:
        """Writes the rows of executions first, which say where results are that go and that come: so they are found
        behind a crash. Then come the results, and last, where some have gone, where those are that stay."""
        assert job.executions.vgroup_id is not None
        both = [*windows, *gone]
        outcome = results.followed_by(no_results(len(gone)))
        before = {place: known.times for place, known in job.known.items()}
        doubtful = outcome.and_before(both, before)
        home = job.executions.vgroup_id
        self._begin({home: [self._rows_of(job, both, doubtful)]})
        if job.target is not None:
            self._begin(self._result_changes(job, job.target, results, windows, gone, write))
        settled = [place for place, (one, other) in enumerate(zip(outcome.times, doubtful.times, strict=True))
                   if len(one) < len(other)]
        if settled:
            self._begin({home: [self._rows_of(job, [both[place] for place in settled], outcome.of(settled))]})
        newest = self._newest_of(job)
        for window in windows:
            newest[window.group.id] = max(window.start, newest.get(window.group.id, window.start))

    def _begin(self, changes: Mapping[int, Sequence[Change]]) -> None:
        self._storage.whole_writes.write([
            (vgroup_id, partial(self._storage.begin_changes, vgroup_id, of_vnode))
            for vgroup_id, of_vnode in changes.items() if of_vnode])

    def _result_changes(
        self, job: _Job, target: Table, results: Results, windows: Sequence[FiredWindow],
        retracted: Sequence[FiredWindow], write: ResultWrite,
    ) -> dict[int, list[Change]]:
        """Returns how to delete results that windows don't give any more, and to write those that they give."""
        places = np.array(sorted({window.group.child for window in (*windows, *retracted)}), np.int64)
        if target.kind == "super":
            children = self._children_of.get(write.task)
            if children is None or children.wanted is not write.children or children.target_uid != target.uid:
                children = ResultChildren(target, write.children, self._services.catalog, self._children)
                self._children_of[write.task] = children
            children.learn(target, places)
            uids, vgroups = children.uids, children.vgroups
        else:
            size = int(places.max(initial=0)) + 1
            uids, vgroups = np.full(size, target.uid, np.uint64), np.full(size, target.vgroup_id, np.int64)
        changes: dict[int, list[Change]] = defaultdict(list)
        # Of groups that share a child table nobody knows whose row one is: as in TDengine, what one gave stays.
        shared = _repeated(uids) if job.asked.names_children else frozenset()
        before = {window.place: job.known[window.place].times for window in (*windows, *retracted)
                  if window.place in job.known and int(uids[window.group.child]) not in shared}
        gone = results.gone(windows, retracted, before, every=target.key_column is not None)
        if len(gone[0]):
            child, times = gone
            for vgroup_id in np.unique(vgroups[child]).tolist():
                own = vgroups[child] == vgroup_id
                changes[vgroup_id].append(DeletedRows(target.storage_uid, uids[child][own], times[own]))
        if results.rows is not None and results.rows.num_rows:
            for vgroup_id in np.unique(vgroups[results.children]).tolist():
                own = np.flatnonzero(vgroups[results.children] == vgroup_id)
                own = own[np.argsort(uids[results.children][own], kind="stable")]
                batch, tuids = results.rows.take(pa.array(own)), uids[results.children][own]
                if shared:
                    last = last_of_each(target, batch, tuids)
                    batch, tuids = batch.take(pa.array(last)), tuids[last]
                changes[vgroup_id].append(WrittenRows(
                    target.storage_uid, batch.add_column(0, TUID_COLUMN, pa.array(tuids))))
        return changes

    def _rows_of(self, job: _Job, windows: Sequence[FiredWindow], results: Results) -> WrittenRows:
        """Returns the rows of executions as they are stored."""
        now = self._services.clock.now_ms() * job.asked.units_per_ms
        packed = [packed_times(times) for times in results.times]
        problems = [_TOO_MANY_TIMES if times is None and problem is None else problem
                    for times, problem in zip(packed, results.problems, strict=True)]
        values: list[Sequence[object]] = [
            [window.start for window in windows], [window.group.id for window in windows],
            [window.end for window in windows], [0 if window.gone else window.rows for window in windows],
            *([window.group.values[place] for window in windows]
              for place in range(len(job.asked.trigger.partition_by))),
            [job.fired_ns(window) for window in windows],
            [now] * len(windows), results.took_us, results.counts,
            [None if problem is None else problem.encode()[:PROBLEM_MAX].decode(errors="ignore")
             for problem in problems], packed,
            [None if (tick := job.ticks.get(window.start)) is None else tick.cut for window in windows]]
        arrays = [pa.array(column, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(column, kind)
                  for column, kind in zip(values, (each.type.arrow() for each in job.executions.columns), strict=True)]
        tuids = pa.repeat(pa.scalar(job.executions.uid, pa.uint64()), len(windows))
        return WrittenRows(job.executions.uid, pa.RecordBatch.from_arrays(
            [tuids, *arrays], names=[TUID_COLUMN, *(column.physical for column in job.executions.columns)]))

    def _forget_dropped(self) -> None:
        """Forgets what was kept of streams that are gone."""
        changes = self._services.catalog.changes
        if changes == self._looked_at:
            return
        self._looked_at = changes
        streams = {stream.id for stream in self._services.catalog.streams.all()}
        for known in (self._newest, self._asked):
            for stream_id in known.keys() - streams:
                known.pop(stream_id, None)
        for task in [task for task in self._children_of if task.stream_id not in streams]:
            self._children_of.pop(task, None)
        with self._lock:
            for key in [key for key in self._pending if key[0].stream_id not in streams]:
                del self._pending[key]


def _repeated(uids: U64) -> frozenset[int]:
    """Returns the uids that are there several times; 0 is none."""
    found, counts = np.unique(uids[uids > 0], return_counts=True)
    return frozenset(found[counts > 1].tolist())


@dataclass(frozen=True, slots=True)
class _FiredRows:
    """Executions that a query reads in the place of those that are stored."""

    batch: pa.RecordBatch

    def rows(self, values: object) -> pa.RecordBatch:
        """Returns all of them."""
        return self.batch.drop_columns([TUID_COLUMN])
