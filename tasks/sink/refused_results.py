"""Results that don't fit the table they are for: counted, kept to be shown, and handed to the DLQ."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import pyarrow as pa

from penstock.common.errors import InvalidValueError
from penstock.common.logging import logger
from penstock.planner.task_plans.stream_plan import StreamPlan
from penstock.sql.types import UNITS_PER_SECOND
from penstock.tasks.compute.id_table import Numbers
from penstock.tasks.dropped.dead_letter_writer import DeadLetters, content_of, id_of_result
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import DeadRow, DroppedRow, TaskId
from penstock.tasks.protocol.numbered_children import NumberedChildren
from penstock.tasks.protocol.result_writers import ResultWriter

_SHOWN = 1_000
_log = logger(__name__)


class RefusedResults:
    """Of one sink task. `dead_letters` is there if the stream has ON_ERROR DLQ."""

    def __init__(
        self, plan: StreamPlan, stream: str, children: NumberedChildren, open_letters: Callable[[], DeadLetters],
    ) -> None:
        """`open_letters` makes what writes to the DLQ, when something is to go there."""
        self._plan = plan
        self._stream = stream
        self._children = children
        self._open_letters = open_letters
        self.dead_letters: DeadLetters | None = None
        self.count = 0
        self._sample: deque[DroppedRow] = deque(maxlen=_SHOWN)
        self.sample: tuple[DroppedRow, ...] = ()

    def take(self, rows: pa.RecordBatch, places: Numbers, problems: Sequence[str]) -> None:
        """Takes rows with the places of their child tables. Raises InvalidValueError under ON_ERROR FAIL."""
        columns, policies = self._plan.sink.columns, self._plan.policies
        if policies.on_error == "fail":
            raise InvalidValueError(f"a result can't be written: {problems[0]}")
        if not self.count:
            _log.warning("stream %s: a result doesn't fit %s, and isn't written: %s", self._stream,
                         self._plan.sink.text, problems[0])
        # Told apart and found again by what the result is, not by when it was refused.
        per_ms = UNITS_PER_SECOND[columns[0].type.precision] // 1_000
        dropped = [DroppedRow(0, ts, 0, "refused", 0, ts // per_ms, name, problem)
                   for (ts, name), problem in zip(self._identities(rows, places), problems, strict=True)]
        self.count += len(dropped)
        self._sample.extend(dropped)
        self.sample = tuple(self._sample)
        if self._plan.dlq is None or not self._plan.dlq.errors:
            return
        self.dead_letters = self.dead_letters or self._open_letters()
        values = [rows.column(f"r{n}").to_pylist() for n in range(len(columns))]
        names = [column.name for column in columns]
        self.dead_letters.add(
            DeadRow(row, id_of_result(str(row.key), row.ts), str(row.key), problem,
                    content_of(dict(zip(names, result, strict=True))))
            for row, problem, result in zip(dropped, problems, zip(*values, strict=True), strict=True))

    def _identities(self, rows: pa.RecordBatch, places: Numbers) -> list[tuple[int, str]]:
        """Returns the time of each result, and its child table; of a table with a KEY no time, and the values of that.
        """
        sink = self._plan.sink
        if not sink.keyed:
            times = rows.column("r0").cast(pa.int64()).to_pylist()
            return [(ts, self._children.names[place]) for ts, place in zip(times, places.tolist(), strict=True)]
        keys = [(column.name, rows.column(f"r{n}").to_pylist()) for n, column in enumerate(sink.columns)
                if column.primary_key]
        return [(0, ", ".join(f"{name}={values[row]}" for name, values in keys)) for row in range(rows.num_rows)]

    def step(self) -> bool:
        """Writes to the DLQ what waits for it; returns whether it did."""
        return self.dead_letters is not None and self.dead_letters.step()

    @property
    def settled(self) -> bool:
        """Whether all that is for the DLQ is there."""
        return self.dead_letters is None or self.dead_letters.settled

    @property
    def full(self) -> bool:
        """Whether no more should be taken until some is written."""
        return self.dead_letters is not None and self.dead_letters.full

    def save(self) -> dict[str, Any]:
        return {"count": self.count, "sample": [astuple(row) for row in self.sample]}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.count = saved["count"]
        self._sample.extend(DroppedRow(*row) for row in saved["sample"])
        self.sample = tuple(self._sample)


def dead_letters_of(task: TaskId, deployment: StreamDeployment, writer: ResultWriter) -> DeadLetters:
    """Returns what a sink task writes to the DLQ of its stream by."""
    plan = deployment.plan
    assert plan.dlq is not None
    return DeadLetters(plan.dlq, deployment.stream_id, deployment.name, deployment.attempt, task,
                       deployment.graph.vgroup_ids[task.index], plan.source.precision, writer)
