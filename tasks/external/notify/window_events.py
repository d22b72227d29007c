"""What events a batch of results means, and the messages that carry them, as TDengine has them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.planner.duckdb_sql.interval_windows import Grid, end_of
from penstock.planner.task_plans.stream_plan import NotifyPlan, StreamPlan
from penstock.sql.schema import Column
from penstock.sql.types import Kind
from penstock.tasks.compute.id_table import Numbers
from penstock.tasks.external.emit.result_events import json_text, plain_values
from penstock.tasks.protocol.block_schema import DELETE, GROUP, OPENED, OPERATION, RETRACTED, UPSERT
from penstock.tasks.protocol.numbered_children import NumberedChildren

MESSAGE_BYTES = 1024 * 1024
"""A message is ended by the event with which it gets larger than this."""
_DIGEST_BYTES = 12
_WITHOUT_WINDOWS = ("Period", "Sliding")
_TYPES = {UPSERT: "WINDOW_CLOSE", DELETE: "WINDOW_INVALIDATION", OPENED: "WINDOW_OPEN",
          RETRACTED: "WINDOW_INVALIDATION"}


class WindowEvents:
    """Makes events of the result blocks of one stream. Ids depend on nothing but the stream's name and the result."""

    def __init__(self, plan: StreamPlan, stream: str) -> None:
        assert plan.notify is not None
        self._notify: NotifyPlan = plan.notify
        self._stream = stream
        self._columns: tuple[Column, ...] = plan.sink.columns
        self._names = ("windowId", "windowType") if plan.calculation is None else ("triggerId", "triggerType")
        self._grid: Grid | None = None
        if self._notify.end_column is None:
            assert plan.time_windows is not None
            self._grid = plan.time_windows.grid

    def of(
        self, block: pa.RecordBatch, places: Numbers, children: NumberedChildren, now_ms: int
    ) -> list[str]:
        """Returns the events of a block as JSON texts, in its order. `places`: each row's child table in `children`.

        A closed window whose result changes is told of once more: its `windowId` is the same, its `eventId` isn't. A
        window is void if it loses its result, or is merged into another one.
        """
        return [json_text(event) for event in self._events(block, places, children, now_ms)]

    def _events(
        self, block: pa.RecordBatch, places: Numbers, children: NumberedChildren, now_ms: int
    ) -> Iterator[dict[str, Any]]:
        operations = block.column(OPERATION.name).to_pylist()
        groups = block.column(GROUP.name).to_pylist()
        first = block.schema.get_field_index("r0")
        arrays = block.columns[first:]
        starts = arrays[0].to_pylist()
        values = [_values(array, column) for array, column in zip(arrays, self._columns, strict=True)]
        for row, (operation, start) in enumerate(zip(operations, starts, strict=True)):
            kind = _TYPES[operation]
            if start is None:
                continue
            result = {column.name: array[row] for column, array in zip(self._columns, values, strict=True)}
            end = self._end(start, result)
            if not self._is_wanted(kind, start, end):
                continue
            yield self._event(kind, children.names[int(places[row])], str(groups[row]), start, end, result, now_ms)

    def of_fired(self, fired: pa.Table, children: NumberedChildren, now_ms: int) -> list[str]:
        """Returns the events of windows that a trigger has fired for; `fired`: see `FireRequest`."""
        found = []
        for row in fired.to_pylist():
            kind, child = _TYPES[row["kind"]], children.names[row["child"]]
            if self._is_wanted(kind, row["start"], row["end"]):
                result = None if row["result"] is None else json.loads(row["result"])
                found.append(json_text(self._event(
                    kind, child, _digest([child]), row["start"], row["end"], result, now_ms)))
        return found

    def _event(
        self, kind: str, child: str, group: str, start: int, end: int | None, result: Any, now_ms: int
    ) -> dict[str, Any]:
        window = _digest([self._stream, child, start])
        event = {
            "tableName": child, "eventType": kind, "eventTime": now_ms, self._names[0]: window, "eventId": "",
            self._names[1]: self._notify.window_type, "groupId": group,
        }
        if self._notify.window_type in _WITHOUT_WINDOWS:
            event["eventType"] = "ON_TIME"
            event["triggerTime"] = start if self._notify.window_type == "Period" else end
        else:
            event["windowStart"] = start
            if kind != "WINDOW_OPEN" and end is not None:
                event["windowEnd"] = end
        if kind == "WINDOW_CLOSE" and result is not None:
            event["result"] = result
        event["eventId"] = _digest([window, kind, event.get("result")])
        return event

    def _is_wanted(self, kind: str, start: int, end: int | None) -> bool:
        before = self._notify.skips_before
        if before is not None and (start < before if kind == "WINDOW_OPEN" else end is not None and end <= before):
            return False
        # Who knows of windows hears as well of those that are none any more.
        return kind == "WINDOW_INVALIDATION" or kind.lower() in self._notify.events

    def _end(self, start: int, result: dict[str, Any]) -> int | None:
        """Returns where a window ends; None: that can't be known any more of a window that rows defined."""
        if self._grid is not None:
            return end_of(start, self._grid)
        assert self._notify.end_column is not None
        end: int | None = result[self._columns[self._notify.end_column].name]
        return end


def messages(stream: str, events: Sequence[str], now_ms: int) -> Iterator[tuple[str, str]]:
    """Yields (id, text) of the messages that carry events; the same events give the same ids."""
    batch: list[str] = []
    size = 0
    for place, event in enumerate(events, 1):
        batch.append(event)
        size += len(event)
        if size > MESSAGE_BYTES or place == len(events):
            identity = _digest([json.loads(text)["eventId"] for text in batch])
            head = f'{{"messageId":{json_text(identity)},"timestamp":{now_ms},"streams":[{{"streamName":'
            yield identity, f'{head}{json_text(stream)},"events":[{",".join(batch)}]}}]}}'
            batch, size = [], 0


def _values(array: pa.Array, column: Column) -> list[Any]:
    """Returns values as JSON has them; times are numbers in the precision of the result table."""
    if column.type.kind is Kind.TIMESTAMP:
        return list(array.to_pylist())
    return plain_values(array, column)


def _digest(value: object) -> str:
    return hashlib.blake2b(json_text(value).encode(), digest_size=_DIGEST_BYTES).hexdigest()
