"""The source task of FORCE_WINDOW_CLOSE: computes each window once, when the clock has ended it.

A window sees what the vnode had acknowledged when it ended: records are told apart by their ingest time, so that a
window that is computed later (after PAUSE, or a restart) gives what it would have given then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.planner.duckdb_sql.interval_windows import end_of
from penstock.planner.task_plans.stream_plan import INSTANT, ForcePlan
from penstock.sql.types import UNITS_PER_SECOND
from penstock.tasks.compute.deleted_rows import covered
from penstock.tasks.compute.lateness import source_rows
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.block_schema import GROUP, result_schema
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.protocol.store_requests import RowsRequest
from penstock.tasks.protocol.task_status import TimeStatus
from penstock.tasks.source.base_source_task import BaseSourceTask
from penstock.tasks.state.stored_values import damaged, pack_batch, unpack_batch
from penstock.tasks.window.window_fill import GapRows, filled_rows, gap_schema
from penstock.wal.record import DeletePointsRecord, DeleteRecord, MetaRecord, Record

WINDOWS_PER_RUN = 500
_GROUPS_KEY, _ROWS_KEY = b"groups", b"rows"


class ForceSourceTask(BaseSourceTask):
    """One vnode's source task of a stream that runs by the clock; its output goes to the sink task.

    It follows the WAL to know the child tables, and where in it each window ended; rows are read from the store.
    """

    def __init__(
        self, deployment: StreamDeployment, index: int, downstream: Sequence[TaskId], environment: TaskEnvironment
    ) -> None:
        super().__init__(deployment, index, downstream, environment)
        plan = deployment.plan
        assert isinstance(plan.computation, ForcePlan)
        self._force = plan.computation
        self._records: deque[Record] = deque()
        self._grid = self._force.windows.grid
        self._schema = result_schema(plan.grouping.keys, plan.result_fields)
        self._keys = len(plan.grouping.keys)
        self._next = self._window_of(self._force.created)
        # Per group that ever had data: its keys and its newest results.
        self._groups: dict[int, tuple[Any, ...]] = {}
        self._kept: pa.Table | None = None
        meta = self._restore_store(deployment.checkpoint_id)
        if meta is not None:
            self._restore(meta)
        self._open_wal()

    # -- what the runtime calls ------------------------------------------------------------------------------

    def _work(self, progressed: bool) -> bool:
        self._read_ahead()
        until_ms = self._records[0].ingest_time_ms if self._records else self._clock.now_ms()
        if self._end_ms(self._next) <= until_ms:
            self._tracker.enter("RUNNING")
            self._compute(until_ms)
            return True
        if self._records:
            self._apply(self._records.popleft())
            return True
        self._tracker.enter("IDLE", "waits for the end of the window")
        return progressed

    def _due(self) -> float | None:
        return self._monotonic_at(self._end_ms(self._next))

    def _time_status(self) -> TimeStatus:
        return TimeStatus(self._next)

    # -- the WAL ---------------------------------------------------------------------------------------------

    def _skip_to_end(self) -> None:
        """Leaves out the windows that have ended meanwhile."""
        while self._records or self._read_ahead():
            self._apply(self._records.popleft())
        now = self._clock.now_ms() * UNITS_PER_SECOND[self._force.windows.precision] // 1000
        self._next = max(self._next, self._window_of(now))

    def _read_ahead(self) -> bool:
        if self._records:
            return False
        self._records.extend(self._wal.read(self._settings.block_rows_max, self._settings.block_bytes_max))
        return bool(self._records)

    def _apply(self, record: Record) -> None:
        match record:
            case MetaRecord(body=body):
                self._children.apply(body)
            case DeleteRecord(table_uid=uid) | DeletePointsRecord(table_uid=uid) if (
                    uid == self._source.storage_uid and self._kept is not None):
                tuids, ts = (self._kept.column(name).to_numpy() for name in ("_tuid", self._source.time_column))
                self._kept = self._kept.filter(pa.array(~covered(record, tuids, ts)))
        self._version = record.version

    # -- windows ---------------------------------------------------------------------------------------------

    def _window_of(self, ts: int) -> int:
        return self._force.windows.bounds(ts)[0][0]

    def _end_ms(self, start: int) -> int:
        """Returns the first millisecond at which the window is over."""
        return -(-end_of(start, self._grid) * 1000 // UNITS_PER_SECOND[self._force.windows.precision])

    def _compute(self, until_ms: int) -> None:
        """Computes the windows that have ended by then, a bounded number of them, from the store as of now."""
        starts = [self._next]
        # A run makes at most about a block of filled rows.
        most = 1 if self._force.alone else min(
            WINDOWS_PER_RUN, max(1, self._settings.block_rows_max // max(1, len(self._groups))))
        while (following := end_of(starts[-1], self._grid)) and len(starts) < most:
            if self._end_ms(following) > until_ms:
                break
            starts.append(following)
        end = end_of(starts[-1], self._grid)
        # An instant belongs to the step that it ends.
        shift = 1 if self._force.instants else 0
        stored = self._rows(starts[0] + shift, end - 1 + shift)
        if self._source.needs_children:
            self._computer.register("children", self._children.table())
        results = pa.RecordBatch.from_pylist([], schema=self._schema)
        windows: list[int] = []
        if stored.num_rows or (self._force.instants and self._kept is not None):
            earlier = [] if self._kept is None else [self._kept]
            rows = pa.concat_tables([*earlier, stored], promote_options="permissive")
            results, windows = self._results(rows, starts, end)
            if stored.num_rows and self._force.keep_sql is not None:
                kept = self._computer.run(self._force.keep_sql, rows.schema, rows=rows)
                self._kept = pa.Table.from_batches([kept])
        if self._force.fill is not None:
            results = self._filled(results, windows, starts)
        self._send(results)
        self._next = end

    def _rows(self, first_ts: int, last_ts: int) -> pa.Table:
        """Returns the relation `rows`: what is stored in the range as of now."""
        source = self._source
        tuids = None if source.keep_tuid is None else pa.array([source.keep_tuid], pa.uint64())
        stored = self._environment.ask(RowsRequest(
            self._vgroup_id, source.storage_uid, tuids, first_ts, last_ts, self._version))
        rows = source_rows(stored, self._plan)
        self._rows_in += rows.num_rows
        return rows

    def _results(self, rows: pa.Table, starts: Sequence[int], end: int) -> tuple[pa.RecordBatch, list[int]]:
        """Returns the results of the windows, and the start of each result's window."""
        schema = self._schema.append(pa.field("_start", pa.int64()))
        instant = {INSTANT: end} if self._force.instants else None
        found = self._computer.run(self._force.sql, schema, instant, rows=rows)
        place = found.schema.get_field_index("_start")
        wanted = pc.is_in(found.column(place), pa.array(starts, pa.int64()))
        found = found.filter(wanted)
        return found.select(self._schema.names), found.column(place).to_pylist()

    # -- FILL ------------------------------------------------------------------------------------------------

    def _filled(self, results: pa.RecordBatch, windows: Sequence[int], starts: Sequence[int]) -> pa.RecordBatch:
        """Returns the results with a row for every known group that a window lacks."""
        found: dict[int, list[int]] = {}
        for row, start in enumerate(windows):
            found.setdefault(start, []).append(row)
        gids = results.column(GROUP.name).to_pylist()
        values = [tuple(row.values())[2:] for row in results.to_pylist()]
        assert self._force.fill is not None
        copied = {self._keys + place for place in self._force.fill.before}
        batches = [results]
        for start in starts:
            present = {gids[row] for row in found.get(start, ())}
            absent = [(gid, known) for gid, known in self._groups.items() if gid not in present]
            if absent:
                batches.append(self._absent(absent, start))
            for row in found.get(start, ()):
                known = self._groups.get(gids[row], values[row])
                values[row] = tuple(known[place] if value is None and place in copied else value
                                    for place, value in enumerate(values[row]))
                self._groups[gids[row]] = values[row]
        if any(column.null_count for column in results.columns[2:]):
            heads = zip(*(column.to_pylist() for column in results.columns[:2]), strict=True)
            batches[0] = self._batch([(*head, *rest) for head, rest in zip(heads, values, strict=True)])
        return pa.concat_batches(batches)

    def _absent(self, groups: Sequence[tuple[int, tuple[Any, ...]]], start: int) -> pa.RecordBatch:
        fill = self._force.fill
        assert fill is not None
        pool = self._pool(groups)
        count = len(groups)
        row, none, at = np.arange(count), np.full(count, -1), np.full(count, start)
        gaps = GapRows(np.zeros(count, np.uint8), at, at, at, row, [row] * len(fill.before), [none] * len(fill.after))
        schema = gap_schema(fill, self._plan.grouping.keys, self._schema)
        return filled_rows(fill, schema, self._schema, self._computer, gaps, pool)

    def _pool(self, groups: Sequence[tuple[int, tuple[Any, ...]]]) -> pa.RecordBatch:
        """Returns groups with their newest results as results."""
        return self._batch([(0, gid, *known) for gid, known in groups])

    def _batch(self, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = [pa.array(values, field.type)
                   for values, field in zip(zip(*rows, strict=True), self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    # -- checkpoints -----------------------------------------------------------------------------------------

    def _state(self) -> Mapping[str, Any]:
        if self._groups:
            self._store.put_many([(_GROUPS_KEY, pack_batch(self._pool(list(self._groups.items()))))])
        if self._kept is not None:
            self._store.put_many([(_ROWS_KEY, _to_ipc(self._kept))])
        return {**super()._state(), "next": self._next}

    def _restore(self, meta: dict[str, Any]) -> None:
        self._version, self._next = meta["version"], meta["next"]
        groups, rows = self._store.get_many([_GROUPS_KEY, _ROWS_KEY])
        if groups is not None:
            batch = unpack_batch(groups, self._schema, "the groups of a task")
            keys = list(zip(*(column.to_pylist() for column in batch.columns[2:]), strict=True))
            self._groups = dict(zip(batch.column(1).to_pylist(), keys or [()] * batch.num_rows, strict=True))
        if rows is not None:
            try:
                with pa.ipc.open_stream(rows) as reader:
                    self._kept = reader.read_all()
                self._kept.validate(full=True)
            except (pa.ArrowException, OSError, EOFError) as error:
                raise damaged("the newest rows of a task", str(error)) from error


def _to_ipc(table: pa.Table) -> bytes:
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    content: bytes = buffer.getvalue().to_pybytes()
    return content
