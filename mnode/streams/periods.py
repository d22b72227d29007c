"""What PERIOD gives at a time that has come: the times beside it, and which rows its table has got meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.catalog.name_lookup import require_database
from penstock.mnode.query.query_statements import Queries
from penstock.mnode.streams.fired_windows import FiredWindow
from penstock.mnode.streams.known_streams import KnownStreams
from penstock.mnode.streams.stream_services import StreamServices
from penstock.planner.query.select import plan_query
from penstock.planner.streams.calculated_target import CUT
from penstock.planner.task_plans.stream_plan import PeriodPlan, StreamPlan
from penstock.sql.cuts import cut_text
from penstock.sql.schema import Session, Table
from penstock.sql.tree.fired_queries import Values, newest_time, of_clock
from penstock.sql.tree.statements import Name
from penstock.sql.types import UNITS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Tick:
    """A time that has come (ns), the one before that was not missed, and the next one; `since` and `cut`: between which
    cuts rows of the table were written, empty where there is none."""

    at_ns: int
    previous_ns: int
    next_ns: int
    since: str
    cut: str

    def values(self) -> Values:
        """Returns what stands for it in a query."""
        return of_clock(self.previous_ns, self.next_ns, (self.since, self.cut))


class Periods:
    """Knows the newest tick of each stream that the clock fires; the table of executions has all of them."""

    def __init__(self, services: StreamServices, known: KnownStreams, queries: Queries) -> None:
        self._services = services
        self._known = known
        self._queries = queries
        self._newest: dict[int, tuple[int, str]] = {}

    def ticks_of(
        self, stream: StreamRecord, plan: StreamPlan, executions: Table, windows: Sequence[FiredWindow]
    ) -> dict[int, Tick]:
        """Returns the ticks of windows by their start, and says so if times before them have passed unused."""
        assert isinstance(plan.computation, PeriodPlan)
        schedule, units = plan.computation.schedule, UNITS_PER_SECOND[plan.source.precision] // 1000
        found: dict[int, Tick] = {}
        for start, end in sorted({(window.start, window.end or window.start) for window in windows}):
            newest = self._newest.get(stream.id)
            if newest is None or newest[0] >= start:
                newest = self._stored(executions, start)
            at_ms, cut = start // units, self._now(plan)
            previous_ms = schedule.before(at_ms)
            if newest is not None and newest[0] // units > schedule.created_ms:
                missed = schedule.between(newest[0] // units, at_ms)
                if missed:
                    previous_ms = newest[0] // units
                    self._known.tell(stream.id, f"{missed} times of PERIOD passed while it didn't run, and are made up "
                                                "for by one")
            since = "" if newest is None else newest[1]
            found[start] = Tick(at_ms * 1_000_000, previous_ms * 1_000_000, end // units * 1_000_000, since or cut, cut)
            self._newest[stream.id] = start, cut
        return found

    def _now(self, plan: StreamPlan) -> str:
        if not plan.source.table:
            return ""
        database = require_database(plan.source.database, self._services.catalog)
        return cut_text(self._services.storage.whole_writes.cut(database.vgroup_ids).items())

    def _stored(self, executions: Table, before: int) -> tuple[int, str] | None:
        """Returns the newest tick before a time, if there is one."""
        query = newest_time(Name(executions.name, executions.database), before, CUT)
        session = Session(executions.database, "UTC", self._services.clock.now_ms())
        rows = self._queries.run_given(plan_query(query, self._services.catalog, session), session, {})
        return (rows.column(0)[0].as_py(), rows.column(1)[0].as_py() or "") if rows.num_rows else None
