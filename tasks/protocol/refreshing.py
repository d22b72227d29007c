"""What tasks of streams of any query ask the engine, and are answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from penstock.tasks.protocol.messages import TaskId


@dataclass(frozen=True, slots=True)
class RefreshRequest:
    """An order of an attempt of a stream of any query: to make its result table the answer as it is now.

    `tuids`: only groups of these child tables may have another answer; None: any may. `again`: even if nothing that it
    reads is known to have changed. The answer is one row: see `Refreshed`.
    """

    stream_id: int
    attempt: int
    tuids: tuple[int, ...] | None
    again: bool = False


class Refreshed(NamedTuple):
    """How many rows were `written` or deleted, and how long the task is to rest until it asks again.

    `again`: nothing was done, since the table was refreshed with others so recently.
    """

    written: int
    rest_s: float
    again: bool = False

    @classmethod
    def of(cls, answer: pa.Table) -> Refreshed:
        """Returns what `table` was made of."""
        row = answer.to_pylist()[0]
        return cls(row["written"], row["rest_s"], row["again"])

    def table(self) -> pa.Table:
        """Returns it as requests of workers are answered: one row."""
        return pa.table({"written": [self.written], "rest_s": [float(self.rest_s)], "again": [self.again]})


@dataclass(frozen=True, slots=True)
class FireRequest:
    """An order of a sink task of a stream with a trigger of its own: to compute what the windows are for that it has
    handed over, as rows, since its last order.

    The answer is a row for each that somebody may be told of: `child`, its place among the task's child tables, `kind`,
    an operation of result blocks, `start` and `end`, and `result`, as JSON, of windows that closed.
    """

    task: TaskId
    attempt: int


FIRED = pa.schema([("child", pa.int32()), ("kind", pa.uint8()), ("start", pa.int64()), ("end", pa.int64()),
                   ("result", pa.string())])


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """A question of an attempt of a stream of any query whose results leave Penstock: what the answer is now.

    The answer is the rows, under the names of the sink's columns, and no two of them have the same KEY.
    """

    stream_id: int
    attempt: int
