"""Streams of any query whose results leave Penstock: what their answer is now, for the task that sends what differs."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.arrow_data import one_array
from penstock.common.errors import InvalidStatementError, InvalidValueError, NotFoundError, UnavailableError
from penstock.mnode.query.activity import Activity
from penstock.mnode.streams.known_streams import KnownStreams
from penstock.mnode.streams.stream_answers import Run
from penstock.mnode.streams.stream_planning import StreamPlanning
from penstock.mnode.streams.stream_services import StreamServices
from penstock.sql.rows.constants import Constants
from penstock.sql.rows.fitting import fitted, row_number
from penstock.sql.rows.keyed_rows import key_texts
from penstock.tasks.protocol.refreshing import AnswerRequest


class EmittedAnswers:
    """Answers the tasks of such streams. Safe for many threads."""

    def __init__(
        self, services: StreamServices, known: KnownStreams, planning: StreamPlanning, run: Run, activity: Activity
    ) -> None:
        self._services = services
        self._known = known
        self._planning = planning
        self._run = run
        self._activity = activity

    def answer(self, request: AnswerRequest) -> pa.Table:
        """Returns what the request's class says.

        Raises StaleAttemptError, what running the query raises, and InvalidValueError for rows with the same KEY, and
        for values that don't fit their column.
        """
        stream = self._services.catalog.streams.by_id(request.stream_id)
        if stream is None:
            raise NotFoundError("the stream was dropped")
        stored = self._known.plans.get(stream.id)
        if stored is None:
            raise UnavailableError(f"stream {stream.name} doesn't run")
        columns, precision = stored.plan.sink.columns, stored.plan.source.precision
        plan, session = self._planning.answer_of(stream, (), None)
        if len(plan.columns) != len(columns):
            raise InvalidStatementError(
                f"the query of stream {stream.name} gives {len(plan.columns)} columns now, its results have "
                f"{len(columns)}", hint="drop the stream and create it again, with names in place of *")
        with self._activity.statement(0, f"refresh of stream {stream.name}"):
            rows = self._run(plan, session)
        self._services.stores.results.check_attempt(stream.id, request.attempt, f"a refresh of {stream.name}")
        constants = Constants(precision, "UTC", self._services.clock.now_ms())
        arrays = [fitted(column, one_array(values), constants, row_number)
                  for column, values in zip(columns, rows.columns, strict=True)]
        keys = [(column, values) for column, values in zip(columns, arrays, strict=True) if column.primary_key]
        texts = key_texts([values for _, values in keys], [key.type.kind for key, _ in keys])
        if pc.count_distinct(texts).as_py() < len(texts):
            names = ", ".join(key.name for key, _ in keys)
            raise InvalidValueError(f"several rows of the result have the same {names}, the KEY at the target",
                                    hint="name further columns: INTO CONNECTION ... (..., KEY (a, b))")
        return pa.table(arrays, names=[column.name for column in columns])
