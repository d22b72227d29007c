"""Streams with a trigger of their own: computes what windows are for that have fired, and writes what that gives."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.common.errors import NotFoundError, StorageError, UnavailableError
from penstock.common.quantities import MIB
from penstock.mnode.catalog.name_lookup import TABLE_MISSING
from penstock.mnode.ddl.child_creation import ChildCreator
from penstock.mnode.dnode.shared_lock import SharedLock
from penstock.mnode.query.activity import Activity
from penstock.mnode.query.query_runner import ResultLimits
from penstock.mnode.query.query_statements import Queries
from penstock.mnode.streams.calculated_results import told_results
from penstock.mnode.streams.calculation_jobs import ComputedOrder, Execution, Job, Order
from penstock.mnode.streams.execution_writes import ExecutionWrites
from penstock.mnode.streams.fired_windows import FiredWindow, Times, newest_of, times_of, windows_of
from penstock.mnode.streams.gathered_orders import GatheredOrders
from penstock.mnode.streams.kept_plans import KeptPlans
from penstock.mnode.streams.known_streams import KnownStreams
from penstock.mnode.streams.periods import Periods
from penstock.mnode.streams.stream_planning import AskedCalculation, StreamPlanning
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.streams.window_queries import WindowQueries
from penstock.planner.streams.calculated_target import TIMES
from penstock.planner.task_plans.stream_plan import PeriodPlan
from penstock.sql.tree.fired_queries import FIRED, ID, START
from penstock.tasks.protocol.messages import ResultWrite, TaskId
from penstock.tasks.protocol.refreshing import FIRED as FIRED_ROWS
from penstock.tasks.protocol.refreshing import FireRequest
from penstock.vnode.read.row_places import RowPlaces

_CLOSING_S = 30.0
_TOGETHER_BYTES = 4 * MIB
"""When so much is to be written, no more is computed before."""


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
        self._queries = WindowQueries(services, queries, activity, limits)
        self._writes = ExecutionWrites(services, writing, children)
        self._periods = Periods(services, known, queries)
        self._gathered = GatheredOrders(
            services.clock, self._compute_order, self._write, lambda prepared: prepared.nbytes, _TOGETHER_BYTES)
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._under_way = 0
        self._looked_at = -1
        self._closed = False
        self._pending: dict[tuple[TaskId, int], list[ResultWrite]] = {}
        #: the newest window of each group, by stream; see `_newest_of`
        self._newest: dict[int, dict[int, int]] = {}
        self._asked: KeptPlans[AskedCalculation] = KeptPlans()

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
            self._check_attempt(request)
            if not writes:
                return FIRED_ROWS.empty_table()
            done = self._gathered.perform(Order(request, writes))
        finally:
            with self._lock:
                self._under_way -= 1
                self._ended.notify_all()
        self._forget_dropped()
        if done.job.plan.notify is None:
            return FIRED_ROWS.empty_table()
        return told_results(done.fired, done.computed, done.job.calculation.columns)

    def close(self) -> None:
        """Waits for what is being computed; nothing more is."""
        with self._lock:
            self._closed = True
            self._ended.wait_for(lambda: not self._under_way, _CLOSING_S)

    def _check_attempt(self, request: FireRequest) -> None:
        self._services.stores.results.check_attempt(request.task.stream_id, request.attempt, request.task)

    def _compute_order(self, order: Order) -> ComputedOrder:
        """Computes what an order is about."""
        job = self._job(order.request.task.stream_id)
        fired = self._fired(job, (window for write in order.writes for window in windows_of(
            write.rows, len(job.asked.trigger.partition_by), job.asked.gap)))
        by_clock = isinstance(job.plan.computation, PeriodPlan)
        due = newest_of(window for window in fired if window.gone or (
            window.event in job.calculation.events and not (by_clock and window.opened)))
        gone = [window for window in due if window.gone]
        windows = [window for window in due if not window.gone]
        if by_clock:
            job.ticks = self._periods.ticks_of(job.stream, job.plan, job.executions, fired)
            windows = self._queries.with_rows(job, windows)
        job.known = self._executions_of(job, due)
        computed = self._queries.computed(job, windows)
        return ComputedOrder(order, job, fired, gone, computed, self._queries.results(job, computed))

    # --- what is to be computed -------------------------------------------------------------------------------

    def _job(self, stream_id: int) -> Job:
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
        changes = catalog.changes
        asked = self._asked.get(stream_id, changes, "", lambda: self._planning.calculation_of(stream))
        asked = replace(asked, session=replace(asked.session, now_ms=clock.now_ms()))
        return Job(stream, plan, plan.calculation, asked, executions, target, clock.now_ms() * 1_000_000, changes)

    def _fired(self, job: Job, handed: Iterable[FiredWindow]) -> list[FiredWindow]:
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

    def _executions_of(self, job: Job, windows: Sequence[FiredWindow]) -> dict[tuple[int, int], Execution]:
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
        return {(group, start): Execution(fired or job.now_ns, self._times_of(job, start, packed))
                for start, group, fired, packed in found}

    def _times_of(self, job: Job, start: int, packed: bytes | None) -> Times:
        """Returns at which times an execution's results are; none, and says so, if what tells that is damaged."""
        try:
            return times_of(packed)
        except StorageError as error:
            self._known.tell(job.stream.id, f"{error}: what the window at {start} gave before stays where it isn't "
                                            f"replaced; somebody has written into {job.executions.name}")
            return times_of(None)

    def _newest_of(self, job: Job) -> dict[int, int]:
        """Returns the start of each group's newest window that was computed: by this engine, or by one before it."""
        newest = self._newest.get(job.stream.id)
        if newest is None:
            newest = self._newest.setdefault(job.stream.id, self._queries.newest_starts(job))
        return newest

    def _write(self, some: Sequence[ComputedOrder]) -> Sequence[Exception | None]:
        """Writes what orders give; returns what each failed with."""
        errors = self._writes.write(some)
        for one, error in zip(some, errors, strict=True):
            if error is None:
                newest = self._newest_of(one.job)
                for window in one.windows:
                    newest[window.group.id] = max(window.start, newest.get(window.group.id, window.start))
        return errors

    def _forget_dropped(self) -> None:
        """Forgets what was kept of streams that are gone."""
        changes = self._services.catalog.changes
        if changes == self._looked_at:
            return
        self._looked_at = changes
        streams = {stream.id for stream in self._services.catalog.streams.all()}
        self._asked.forget_all_but(streams)
        self._queries.forget_all_but(streams)
        self._writes.forget_all_but(streams)
        for stream_id in self._newest.keys() - streams:
            self._newest.pop(stream_id, None)
        with self._lock:
            for key in [key for key in self._pending if key[0].stream_id not in streams]:
                del self._pending[key]
