"""The source task of TIME INGESTION and TIME PROCESSING: rows belong to the windows in which they arrive.

No row is late, and none is taken back: what is overwritten counts once more, and deletes change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.planner.task_plans.stream_plan import ARRIVAL_COLUMN
from penstock.sql.types import UNITS_PER_SECOND
from penstock.tasks.compute.lateness import own_rows, source_rows
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.block_schema import ADD
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.source.source_task import SourceTask
from penstock.wal.record import MetaRecord, Record, RowsRecord


class ArrivalSourceTask(SourceTask):
    """One vnode's source task. Time is that of the log's records, or the machine's, and it never goes back.

    Once the task has caught up, windows close by the clock. A row whose record became visible only then still counts:
    it changes the result of the closed window.
    """

    def __init__(
        self, deployment: StreamDeployment, index: int, downstream: Sequence[TaskId], environment: TaskEnvironment
    ) -> None:
        #: the newest time of arrival, in units of the source's precision: a function of the WAL for INGESTION
        self._arrival: int | None = None
        super().__init__(deployment, index, downstream, environment)
        self._next_end = self._end_after(self._now())

    def _due_by_clock(self) -> float | None:
        return self._monotonic_at(-(-self._next_end * 1000 // UNITS_PER_SECOND[self._source.precision]))

    def _become_idle(self) -> bool:
        """Lets time go on to the clock's; called when there is nothing more to read."""
        now = self._now()
        if now < self._next_end:
            return False
        self._next_end = self._end_after(now)
        self._time.advance(now)
        return self._outbox.flush()

    def _process(self, records: Sequence[Record]) -> None:
        tables = []
        logged = 0
        for record in records:
            match record:
                case MetaRecord(body=body):
                    self._children.apply(body)
                case RowsRecord(table_uid=uid) if uid == self._source.storage_uid:
                    tables.append(self._arrived(record))
                    logged += record.batch.num_rows
        rows = pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
        self._dropped.counts.filtered += logged - rows.num_rows
        if not rows.num_rows:
            return
        self._rows_in += rows.num_rows
        partials = self._first_stage.compute(rows)
        self._dropped.counts.computed(rows.num_rows, self._first_stage.rows_in([partials], rows.num_rows))
        self._emitter.send(ADD, partials)
        assert self._arrival is not None
        self._time.advance(self._arrival)

    def _arrived(self, record: RowsRecord) -> pa.Table:
        """Returns the rows of a record with the time of their arrival."""
        batch = own_rows(record.batch, self._plan)
        per_ms = UNITS_PER_SECOND[self._source.precision] // 1_000
        time = record.ingest_time_ms * per_ms if self._plan.policies.time.clock == "ingestion" else self._now()
        self._arrival = time if self._arrival is None else max(time, self._arrival)
        column = pa.repeat(pa.scalar(self._arrival, pa.int64()), batch.num_rows)
        return source_rows(pa.Table.from_batches([batch]), self._plan).append_column(ARRIVAL_COLUMN, column)

    def _restore(self, meta: Mapping[str, Any]) -> None:
        super()._restore(meta)
        self._arrival = meta["arrival"]

    def _state(self) -> Mapping[str, Any]:
        return {**super()._state(), "arrival": self._arrival}

    def _now(self) -> int:
        return self._clock.now_ms() * (UNITS_PER_SECOND[self._source.precision] // 1_000)

    def _end_after(self, ts: int) -> int:
        """Returns when the first of the windows ends that an instant is in."""
        assert self._plan.time_windows is not None
        return min(end for _, end in self._plan.time_windows.bounds(ts))
