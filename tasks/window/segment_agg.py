"""The agg task of streams whose windows are defined by rows: segments come in, results of windows go out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.tasks.protocol.block_schema import OPENED, OPERATION, REPLAYED, RETRACTED
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.window.agg_task import AggTask
from penstock.tasks.window.segment_table import SegmentTable
from penstock.tasks.window.window_state import WindowState


class SegmentAggTask(AggTask):
    """One agg task of a stream with SESSION, STATE, EVENT or COUNT windows."""

    _table: SegmentTable

    def _set_up(self, inputs: int, deployment: StreamDeployment) -> None:
        super()._set_up(inputs, deployment)
        self._table = SegmentTable(self._agg, self._plan.trigger, self._plan.grouping.keys, inputs, self._store,
                                   self._functions, announces=self._plan.announces_windows,
                                   lasting=self._plan.calculation is not None)

    def _next_closing(self) -> int | None:
        closing = self._table.next_closing()
        return None if closing is None else closing + self._plan.policies.time.lateness

    def _merge(self, data: pa.RecordBatch, input: int) -> None:
        until = self._closed_until
        replayed = data.column(OPERATION.name)[0].as_py() == REPLAYED
        for state in self._table.apply(data.select(data.schema.names[1:]), input, until, replayed=replayed):
            self._write_results(state)
        self._emit_opened()
        if self._table.has_changed:
            self._delayed.touch(0, None, self._clock.monotonic())
        self._table.spill(self._settings.state_memory_bytes, until)

    def _emit_opened(self) -> None:
        """Sends on which windows have opened, for those who are notified."""
        opened, retracted = self._table.announced()
        for state in opened:
            self._announce(self._final.compute(state), OPENED)
        if retracted is not None:
            self._announce(self._final.compute(retracted), RETRACTED)

    def _emit_delayed(self) -> None:
        self._delayed.take()
        self._write_results(self._table.overdue())

    def _close_windows(self) -> None:
        until = self._closed_until
        assert until is not None
        for state in self._table.close_until(until):
            self._write_results(state)
        self._table.spill(self._settings.state_memory_bytes, until)

    def _write_results(self, state: WindowState | None) -> None:
        if state is not None:
            self._route(self._final.compute(state))

    def _restore(self, meta: dict[str, Any]) -> None:
        self._table.restore(meta["table"], self._closed_until)
        if self._table.has_changed:
            self._delayed.touch(0, None, self._clock.monotonic())
