"""Queries of streams with a trigger of their own: planned once, and run for the windows that have fired."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from penstock.common.errors import (
    BusyError,
    CancelledError,
    InvalidStatementError,
    NotFoundError,
    NotSupportedError,
    PenstockError,
)
from penstock.mnode.catalog.name_lookup import require_database
from penstock.mnode.query.activity import Activity
from penstock.mnode.query.query_runner import ResultLimits
from penstock.mnode.query.query_statements import Queries
from penstock.mnode.query.table_scans import GivenRows
from penstock.mnode.streams.calculated_results import ComputedWindows, Results, no_results, stored_results
from penstock.mnode.streams.calculation_jobs import Job
from penstock.mnode.streams.fired_windows import FiredWindow, plain_values
from penstock.mnode.streams.kept_plans import KeptPlans
from penstock.mnode.streams.stream_services import StreamServices
from penstock.planner.query.batch_plan import BatchPlan, QueryPlan
from penstock.planner.query.given_plan import given_plan
from penstock.planner.query.select import plan_query
from penstock.planner.query.timeless_plan import timeless_plan
from penstock.planner.streams.calculated_target import value_column
from penstock.sql.dialect.create_statements import group_constant
from penstock.sql.rows.constants import Constants
from penstock.sql.tree.fired_queries import (
    Values,
    constants,
    for_many,
    for_one,
    forced,
    given_bounds,
    given_clock,
    given_values,
    newest_starts,
    rows_of_trigger,
    with_told,
)
from penstock.sql.tree.statements import Name, Query
from penstock.wal.record import TUID_COLUMN

_ONE_BY_ONE = 3
"""So few windows are computed one after the other: a query with their times in it reads less."""


class _Asked(NamedTuple):
    """A query that runs for windows, as the statement has it, and what it is called among those of the stream."""

    name: str
    query: Callable[[], Query]


class _Plan(NamedTuple):
    """What is known of a query's plan: it if it `is_kept`, None: there is none without constants."""

    plan: BatchPlan | None
    is_kept: bool


class WindowQueries:
    """Runs the queries. Safe for many threads."""

    def __init__(
        self, services: StreamServices, queries: Queries, activity: Activity, limits: ResultLimits
    ) -> None:
        """`limits`: how much a query may give."""
        self._services = services
        self._queries = queries
        self._activity = activity
        self._limits = limits
        self._plans: KeptPlans[_Plan] = KeptPlans()

    def with_rows(self, job: Job, windows: Sequence[FiredWindow]) -> list[FiredWindow]:
        """Returns those that PERIOD fires: where it is to have rows, of groups that have got some."""
        if not job.asked.does.ignore_nodata or job.asked.trigger.source is None:
            return list(windows)
        found = []
        for start in sorted({window.start for window in windows}):
            query = rows_of_trigger(job.asked.trigger, job.ticks[start].values())
            rows = self._queries.run_given(self._planned(job, query), job.asked.session, {})
            groups = set(zip(*map(plain_values, rows.columns), strict=True))
            found += [window for window in windows if window.start == start and (
                window.group.values in groups if window.group.values else bool(groups))]
        return found

    def newest_starts(self, job: Job) -> dict[int, int]:
        """Returns the start of each group's newest window that was computed."""
        query = newest_starts(Name(job.executions.name, job.executions.database))
        found = self._queries.run_given(self._planned(job, query), job.asked.session, {})
        return dict(zip(found.column(0).to_pylist(), found.column(1).to_pylist(), strict=True))

    def computed(self, job: Job, windows: Sequence[FiredWindow]) -> ComputedWindows:
        """Returns what the query gives for windows; of those for which it fails, why."""
        found, does = ComputedWindows.nothing(windows), job.asked.does
        if does.query is None:
            return found
        names = [column.name for column in job.calculation.columns]
        handed = [place for place, window in enumerate(windows) if job.is_whole(window)]
        if handed:
            found.add_handed(handed, [value_column(place) for place in range(1, job.calculation.values + 1)])
        query = partial(with_told, does.query, does, names)
        self._compute(job, _Asked("", query), found, sorted(set(range(len(windows))).difference(handed)))
        if does.force_output:
            some, forced_query = found.has_rows(), does.query
            self._compute(job, _Asked("forced ", lambda: with_told(forced(forced_query), does, names)), found,
                          [place for place in range(len(windows)) if place not in some])
        return found

    def _compute(self, job: Job, query: _Asked, found: ComputedWindows, places: Sequence[int]) -> None:
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

    def _of_many(self, job: Job, query: _Asked, windows: Sequence[FiredWindow]) -> pa.Table:
        asked = job.asked
        plan = self._plan(job, f"{query.name}many", lambda: for_many(
            query.query(), asked.trigger, asked.does, Name(job.executions.name, job.executions.database),
            given_bounds(job.precision), given_clock(asked.does), by_table=asked.by_table))
        if plan is None:
            raise NotSupportedError("the query can't run for many windows at once")
        rows = _FiredRows(job.rows_of(windows, no_results(len(windows)), job.now_ns // 1_000_000).batch)
        return self._run(job, given_plan(plan, job.values_of_many(windows), asked.catalog),
                         {job.executions.uid: rows}, f"{len(windows)} windows", columns_before=2)

    def _of_one(self, job: Job, query: _Asked, window: FiredWindow) -> pa.Table:
        asked = job.asked

        def placed(values: Values) -> Query:
            return for_one(query.query(), asked.trigger, values, by_table=asked.by_table)

        plan = self._plan(job, f"{query.name}one", lambda: placed(
            given_values(asked.does, asked.trigger, job.precision, job.group_types)))
        given = self._planned(job, placed(self._constants(job, window))) \
            if plan is None else given_plan(plan, job.values_of(window), asked.catalog)
        return self._run(job, given, {}, f"the window at {window.start}")

    def _constants(self, job: Job, window: FiredWindow) -> Values:
        asked = job.asked
        groups = [group_constant(value, kind) for value, kind in zip(
            window.group.values, job.group_types, strict=True)]
        return constants(asked.does, asked.trigger, window.start, window.start if window.end is None else window.end,
                         window.rows, window.group.id, job.fired_ns(window), groups, job.clock_of(window))

    def _planned(self, job: Job, query: Query) -> BatchPlan:
        return plan_query(query, job.asked.catalog, job.asked.session)

    def _plan(self, job: Job, purpose: str, placed: Callable[[], Query]) -> BatchPlan | None:
        """Returns the plan of a query that is given what the trigger gives when it runs; None if planning needs that.

        It is kept unless it depends on the time of now, or on what changes without a change of the catalog.
        """
        def made() -> _Plan:
            try:
                plan = timeless_plan(lambda session: plan_query(placed(), job.asked.catalog, session),
                                     job.asked.session)
                return _Plan(plan, is_kept=True) if plan is not None and plan.lasts else _Plan(None, is_kept=False)
            except PenstockError:  # planned with constants it says what is wrong, if anything is
                return _Plan(None, is_kept=True)

        known = self._plans.get(job.stream.id, job.catalog_changes, purpose, made)
        return known.plan if known.is_kept else self._planned(job, placed())

    def _run(
        self, job: Job, plan: QueryPlan, instead: Mapping[int, GivenRows], of: str, columns_before: int = 0
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

    def results(self, job: Job, computed: ComputedWindows) -> Results:
        """Returns results as the table stores them; windows with one that it can't hold have none."""
        if job.target is None:
            return no_results(len(computed.windows), computed)
        precision = require_database(job.target.database, self._services.catalog).precision
        zone = Constants(precision, "UTC", self._services.clock.now_ms())
        return stored_results(job.target, computed, zone)

    def forget_all_but(self, stream_ids: Collection[int]) -> None:
        """Forgets the plans of other streams."""
        self._plans.forget_all_but(stream_ids)


@dataclass(frozen=True, slots=True)
class _FiredRows:
    """Executions that a query reads in the place of those that are stored."""

    batch: pa.RecordBatch

    def rows(self, values: object) -> pa.RecordBatch:
        """Returns all of them."""
        return self.batch.drop_columns([TUID_COLUMN])
