"""Windows that a stream's trigger hands over: what sink tasks send as rows, gathered by group and start."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.errors import StorageError
from penstock.planner.streams.calculated_target import TIMES_MAX
from penstock.planner.task_plans.column_names import CHILD, OPERATION
from penstock.sql.tree.fired_queries import END, ROWS, START, group_column
from penstock.tasks.protocol.block_schema import DELETE, OPENED, RETRACTED

Times = npt.NDArray[np.int64]
_TIMES_LENGTH_MAX = 1 << 24
_ID_BITS = 63


class FiredGroup(NamedTuple):
    """A group of the trigger: its child table among those of its sink task, its id, and what PARTITION BY gives; times
    are in units of the precision."""

    child: int
    id: int
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class FiredWindow:
    """A window that has fired; times are in units of the database's precision. `gone`: it is none any more. `handed`:
    the row that says so, of a batch."""

    group: FiredGroup
    start: int
    end: int | None
    rows: int
    opened: bool
    gone: bool
    handed: tuple[pa.RecordBatch, int] = field(compare=False, repr=False)

    @property
    def event(self) -> str:
        """What has happened to it, if it isn't gone."""
        return "window_open" if self.opened else "window_close"

    @property
    def place(self) -> tuple[int, int]:
        """What it is known by: the id of its group, and its start."""
        return self.group.id, self.start


def windows_of(rows: pa.RecordBatch, groups: int, gap: int) -> list[FiredWindow]:
    """Returns the windows of a write, in its order. `gap`: so long behind their last rows results say that they end."""
    children = rows.column(CHILD).to_pylist()
    operations = rows.column(OPERATION).to_pylist()
    starts, ends = (rows.column(name).cast(pa.int64()).to_pylist() for name in (START, END))
    counts = rows.column(ROWS).to_pylist()
    values = [plain_values(rows.column(group_column(place))) for place in range(1, groups + 1)]
    found, known = [], dict[int, FiredGroup]()
    for row, (child, operation) in enumerate(zip(children, operations, strict=True)):
        group = known.get(child)
        if group is None or any(column[row] is not None and column[row] != value
                                for column, value in zip(values, group.values, strict=True)):
            group = known[child] = _group(child, tuple(column[row] for column in values))
        end = None if ends[row] is None else ends[row] - gap
        found.append(FiredWindow(group, starts[row], end, counts[row] or 0, operation == OPENED,
                                 operation in (DELETE, RETRACTED), (rows, row)))
    return found


def plain_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Returns what PARTITION BY gives as plain values."""
    found: list[Any] = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
    return found


def newest_of(windows: Iterable[FiredWindow]) -> list[FiredWindow]:
    """Returns of each window what was handed over last, in the order of their first."""
    newest: dict[tuple[int, int], FiredWindow] = {}
    for window in windows:
        newest[window.place] = window
    return list(newest.values())


def _group(child: int, values: tuple[Any, ...]) -> FiredGroup:
    digest = hashlib.blake2b(repr(values).encode(), digest_size=8).digest()
    return FiredGroup(child, int.from_bytes(digest) >> (64 - _ID_BITS) if values else 0, values)


def packed_times(times: Times) -> bytes | None:
    """Returns times as a value of the table of executions; None if they are too many for it."""
    if len(times) < 2:
        return times.astype("<i8").tobytes()
    packed = zlib.compress(np.diff(times, prepend=0).astype("<i8").tobytes())
    return packed if len(packed) <= TIMES_MAX and len(times) * 8 <= _TIMES_LENGTH_MAX else None


def times_of(packed: bytes | None) -> Times:
    """Returns what `packed_times` was given. Raises StorageError for bytes that it hasn't made."""
    if not packed:
        return np.zeros(0, np.int64)
    if len(packed) == 8:
        return np.frombuffer(packed, "<i8").astype(np.int64)
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(packed, _TIMES_LENGTH_MAX)
    except zlib.error as error:
        raise StorageError(f"the times of an execution's results are damaged: {error}") from error
    if not reader.eof or len(found) % 8:
        raise StorageError("the times of an execution's results are damaged")
    return np.cumsum(np.frombuffer(found, "<i8")).astype(np.int64)


def bounds_of(windows: Sequence[FiredWindow]) -> tuple[int, int, int, int]:
    """Returns the first and last start, and the first and last end, of windows that have an end."""
    starts = [window.start for window in windows]
    ends = [window.start if window.end is None else window.end for window in windows]
    return min(starts), max(starts), min(ends), max(ends)
