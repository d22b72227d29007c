"""SELECT, UNION and EXPLAIN: plans a query against the catalog and runs it on DuckDB over the vnodes' rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.common.closed_duckdb import DuckdbBounds, RenewableDuckdb, closed_duckdb
from penstock.common.errors import AlreadyExistsError, StorageError
from penstock.common.paths import DataPaths
from penstock.common.quantities import MIB
from penstock.common.responsiveness import LONG_TEXT, one_at_a_time
from penstock.mnode.access.roles import looks_inside
from penstock.mnode.access.session import Result, text_result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.query.activity import Activity, Running
from penstock.mnode.query.process_backend import ProcessBackend
from penstock.mnode.query.query_process import ProcessSettings
from penstock.mnode.query.query_runner import UNLIMITED, EngineBackend, OpenQuery, QueryBackend, ResultLimits
from penstock.mnode.query.query_slots import PlaceBounds, QueryPlaces
from penstock.mnode.query.table_scans import GivenRows, Scans, ScansOf
from penstock.mnode.write.csv_rows import write_csv
from penstock.planner.query.batch_plan import BatchPlan, QueryPlan
from penstock.planner.query.select import plan_query
from penstock.planner.task_plans.plan_tree import render_tree
from penstock.sql.schema import Session
from penstock.sql.tree.statements import Query

ALONE = DuckdbBounds(256 * MIB, threads=1)
"""What queries may take that compute on one thread."""


@dataclass(frozen=True, slots=True)
class QueryBounds:
    """What DuckDB may take, here and in the process for clients, whose nice value it is; None: there is none."""

    duckdb: DuckdbBounds
    process_nice: int | None = None


class Queries:
    """Executes queries; safe for many threads."""

    def __init__(
        self, catalog: Catalog, scans: Scans, activity: Activity, functions_directory: Path, paths: DataPaths,
        bounds: QueryBounds, places: PlaceBounds,
    ) -> None:
        """`functions_directory` is where users' functions are, `paths` the data directory."""
        self._catalog = catalog
        self._scans = scans
        self._activity = activity
        self._places = QueryPlaces(places)
        # So that what goes on can be looked at while all places are taken.
        self._system_places = QueryPlaces(places)
        open_duckdb = partial(closed_duckdb, bounds.duckdb, (paths.vnodes,))
        self._engine = EngineBackend(RenewableDuckdb(open_duckdb), functions_directory, open_duckdb)
        open_alone = partial(closed_duckdb, ALONE, (paths.vnodes,))
        self._alone = EngineBackend(RenewableDuckdb(open_alone), functions_directory, open_alone)
        self.process: ProcessBackend | None = None
        if bounds.process_nice is not None:
            self.process = ProcessBackend(ProcessSettings(bounds.duckdb, (paths.vnodes,), bounds.process_nice))

    def close(self) -> None:
        """Gives DuckDB's memory back."""
        if self.process is not None:
            self.process.close()
        for backend in (self._engine, self._alone):
            backend.shared.close()

    def plan(self, query: Query, session: Session) -> BatchPlan:
        """Returns the plan of a query. Raises what `plan_query` raises."""
        with one_at_a_time(unless=len(query.source_text) < LONG_TEXT):
            return plan_query(query, self._catalog, session)

    def run(
        self, query: Query, session: Session, limits: ResultLimits = UNLIMITED, *, waits: bool = True
    ) -> Result:
        """Returns the rows of a query; with `>> file` they go into a new CSV file instead. See `open`."""
        if query.into_file is not None:
            limits = UNLIMITED
        with self.open(query, session, limits, waits=waits) as opened:
            table = opened.table()
        if query.into_file is not None:
            _write_csv(table, Path(query.into_file).expanduser())
            return Result(affected=table.num_rows)
        return Result(opened.columns, table, table.num_rows)

    @contextmanager
    def open(
        self, query: Query, session: Session, limits: ResultLimits = UNLIMITED, *, waits: bool = True
    ) -> Iterator[OpenQuery]:
        """Gives a query that is about to run, to take its rows batch by batch.

        It is ended with the statement that the calling thread executes. `waits`: until one of those ends that run, if
        there are too many in all or, but for admins, of the session's user. Raises BusyError.
        """
        running = self._activity.current()
        running.check()
        running.looks_inside = looks_inside(query, session.database, self._catalog)
        # Before it is planned, which holds the interpreter: at most as many do so as may run.
        with (self._place(running, session) if waits else nullcontext(),
              self._opened(self.plan(query, session), session, running, limits) as opened):
            yield opened

    def run_planned(self, plan: QueryPlan, session: Session) -> pa.Table:
        """Returns the rows of a query that another part of the engine has planned."""
        running = self._activity.current()
        with self._place(running, session), self._opened(plan, session, running, UNLIMITED) as rows:
            return rows.table()

    def run_alone(self, plan: QueryPlan, session: Session) -> pa.Table:
        """Does the same on the calling thread alone, in memory of its own, and doesn't wait for its turn."""
        with OpenQuery(plan, self._scans.seen_by(session, plan.scans), self._alone, self._activity.current()) as rows:
            return rows.table()

    def as_of(
        self, plan: QueryPlan, session: Session, versions: Mapping[int, int], instead: Mapping[int, GivenRows]
    ) -> ScansOf:
        """Returns what a query reads as of a cut, for `run_as_of`; see `Scans.as_of`."""
        return self._scans.as_of(session, plan.scans, versions, instead)

    def run_given(
        self, plan: QueryPlan, session: Session, instead: Mapping[int, GivenRows], limits: ResultLimits = UNLIMITED
    ) -> pa.Table:
        """Does what `run_planned` does, as if some tables held other rows; see `Scans.as_of`."""
        return self.run_as_of(plan, session, self._scans.seen_by(session, plan.scans, instead), limits)

    def run_as_of(
        self, plan: QueryPlan, session: Session, read: ScansOf, limits: ResultLimits = UNLIMITED
    ) -> pa.Table:
        """Does what `run_planned` does, as of the cut of what it reads."""
        running = self._activity.current()
        with (self._place(running, session),
              OpenQuery(plan, read, self._backend(plan, running), running, limits) as rows):
            return rows.table()

    def _opened(self, plan: QueryPlan, session: Session, running: Running, limits: ResultLimits) -> OpenQuery:
        """Returns a query that is about to run; nobody has its plan any more, which may be large."""
        return OpenQuery(plan, self._scans.seen_by(session, plan.scans), self._backend(plan, running), running, limits)

    def _backend(self, plan: QueryPlan, running: Running) -> QueryBackend:
        """Returns where a query runs. Code of users is found and kept up to date here only."""
        if self.process is None or not running.served or plan.functions:
            return self._engine
        return self.process

    def _place(self, running: Running, session: Session) -> AbstractContextManager[None]:
        places = self._system_places if running.looks_inside else self._places
        return places.place(running, None if session.rights.role == "admin" else session.user)

    def explain(self, query: Query, session: Session, clock: Clock, *, analyze: bool) -> Result:
        """Returns the plan as a text tree; `analyze` also runs the query and adds rows and time."""
        running = self._activity.current()
        with self._place(running, session):
            lines = render_tree(self.plan(query, session).tree)
        if analyze:
            start = clock.monotonic()
            with self.open(query, session) as opened:
                rows = opened.table().num_rows
            lines.append(f"Result: rows={rows}, time={(clock.monotonic() - start) * 1000:.3f}ms")
        return text_result("Query Plan", lines)

    def explain_sql(self, query: Query, session: Session) -> Result:
        """Returns the DuckDB SQL of a query: its steps, and what is computed of them, a line each."""
        with self._place(self._activity.current(), session):
            plan = self.plan(query, session)
        return text_result("SQL", [*(f"{name}: {sql}" for name, sql in plan.steps), plan.body])


def _write_csv(table: pa.Table, path: Path) -> None:
    try:
        with path.open("xb") as file:
            write_csv(table, file)
    except FileExistsError as error:
        raise AlreadyExistsError(f"the file {path} exists") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
