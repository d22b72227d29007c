"""Streams of any query: what their result tables are to hold, planned and computed for those who ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from penstock.common.errors import InvalidStatementError, NotFoundError
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.catalog.materialized_views import drop_of
from penstock.mnode.catalog.name_lookup import TABLE_MISSING, require_database
from penstock.mnode.streams.known_streams import KnownStreams
from penstock.mnode.streams.result_difference import Differing, as_stored, difference
from penstock.mnode.streams.stream_planning import StreamPlanning
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.write.keyed_results import keyed_changes, stored_rows
from penstock.planner.query.batch_plan import BatchPlan, QueryPlan
from penstock.planner.query.compared_results import lost_digits
from penstock.planner.task_plans.stream_plan import RefreshPlan
from penstock.sql.rows.constants import Constants
from penstock.sql.schema import Session, Table, TagValue

Run = Callable[[QueryPlan, Session], pa.Table]
"""Returns the rows of a planned query."""


def result_table(catalog: Catalog, stream: StreamRecord) -> Table:
    """Returns the table of a stream's results. Raises NotFoundError."""
    target = catalog.table_by_uid(stream.target_uid)
    if target is None:
        raise NotFoundError(f"the result table of stream {stream.name} was dropped", code=TABLE_MISSING)
    return target


def planned_answer(
    planning: StreamPlanning, stream: StreamRecord, target: Table, names: Sequence[str] = (),
    groups: Sequence[tuple[TagValue, ...]] | None = None,
) -> tuple[BatchPlan, Session]:
    """Returns what the result table is to hold, see `StreamPlanning.answer_of`; raises if it has other columns."""
    plan, session = planning.answer_of(stream, names, groups)
    if len(plan.columns) != len(target.columns):
        raise InvalidStatementError(
            f"the query of stream {stream.name} gives {len(plan.columns)} columns now, its table has "
            f"{len(target.columns)}", hint=f"{drop_of(stream)}, and create it with names in place of *")
    return plan, session


def constants_of(target: Table, services: StreamServices) -> Constants:
    """Returns what values of an answer are read by."""
    precision = require_database(target.database, services.catalog).precision
    return Constants(precision, "UTC", services.clock.now_ms())


class StreamAnswers:
    """Compares result tables with answers, for who verifies them. Safe for many threads."""

    def __init__(self, services: StreamServices, known: KnownStreams, planning: StreamPlanning, run: Run) -> None:
        self._services = services
        self._known = known
        self._planning = planning
        self._run = run

    def differing(self, stream: StreamRecord) -> Differing:
        """Returns how the result table differs from the answer as it is now, of all rows.

        Sums of floating point numbers are taken to be equal if they may be the same in another order of their rows.
        Raises what running the query raises, and InvalidValueError for rows that the table can't hold.
        """
        target = result_table(self._services.catalog, stream)
        found = stored_rows(target, None, self._services.storage)
        plan, session = planned_answer(self._planning, stream, target)
        lost = 0.0  # where only tags are read
        if plan.scans:
            lost = self._run(lost_digits(plan.scans, plan.functions), session).column(0)[0].as_py()
        stored = self._known.plans.get(stream.id) or self._planning.plan_again(stream)
        repeats = isinstance(stored.plan.computation, RefreshPlan) and stored.plan.computation.repeats
        wanted = as_stored(
            target, self._run(plan, session), constants_of(target, self._services), repeats=repeats)
        return difference(target, wanted, found, lost)

    def delete_extra(self, stream: StreamRecord) -> None:
        """Deletes rows of a result table with a KEY that the answer doesn't have; raises as `differing`."""
        differing = self.differing(stream)
        target, storage = differing.table, self._services.storage
        if len(differing.gone):
            assert target.vgroup_id is not None
            write = storage.begin_changes(target.vgroup_id, keyed_changes(
                storage, target, differing.wanted.slice(0, 0), differing.found.take(pa.array(differing.gone))))
            if write is not None:
                write.wait()
