"""Rows of made-up devices: the same for the same seed, in whatever order, pieces or threads they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa

from penstock.shell.commands.generate_plan import TablePlan, ValuePlan
from penstock.sql.types import FLOATS, INTEGERS, Kind

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]

_DELAYS = 1 << 16
_STRIDE = 7919
"""How far apart the values of neighbouring child tables are; a prime, so that they don't repeat with the rows."""

_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789", np.uint8)


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """Which rows one call writes: for each the child table and the row's number in it. A round ends with the last."""

    children: Numbers
    rows: Numbers
    ends_round: bool


def requests(first: int, last: int, rows: int, interlace: int, size: int) -> Iterator[WriteRequest]:
    """Yields the rows of the child tables first <= n < last, `size` at a time at most, in the order of writing.

    `interlace` rows of each child table make a round; 0: there is one round of all.
    """
    depth = interlace or rows
    for start in range(0, rows, max(depth, 1)):
        deep = min(depth, rows - start)
        total = (last - first) * deep
        for begin in range(0, total, size):
            place = np.arange(begin, min(begin + size, total), dtype=np.int64)
            yield WriteRequest(first + place // deep, start + place % deep, begin + size >= total)


def values(plan: ValuePlan, count: int, seed: int, place: int) -> pa.Array:
    """Returns `count` values for the column that is at `place`."""
    random = np.random.default_rng([seed, place])
    kind = plan.type.kind
    if plan.values:
        return pa.array(plan.values).take(pa.array(random.integers(0, len(plan.values), count))).cast(plan.type.arrow())
    if kind is Kind.BOOL:
        return pa.array(random.integers(0, 2, count).astype(np.bool_))
    if kind in INTEGERS or kind is Kind.TIMESTAMP:
        low, high = plan.low or 0, 100 if plan.high is None else plan.high
        return pa.array(random.integers(int(low), max(int(high), int(low) + 1), count)).cast(plan.type.arrow())
    if kind in FLOATS or kind is Kind.DECIMAL:
        low, high = plan.low or 0, 1 if plan.high is None else plan.high
        numbers = low + random.random(count) * (high - low)
        if kind is Kind.DECIMAL:
            return pa.array([round(Decimal(number), plan.type.scale or 0) for number in numbers.tolist()],
                            plan.type.arrow())
        return pa.array(numbers, pa.float64()).cast(plan.type.arrow())
    if kind is Kind.JSON:
        return pa.array([f'{{"k0": "{number}"}}' for number in random.integers(0, 1000, count).tolist()])
    length = plan.type.length or 1
    letters = _LETTERS[random.integers(0, len(_LETTERS), (count, length))]
    return pa.array([bytes(row).decode() for row in letters], plan.type.arrow())


class GeneratedRows:
    """The rows of one super table."""

    def __init__(self, plan: TablePlan, start: int, unit: pa.DataType, seed: int, unique: int) -> None:
        """`start` is the first timestamp, in units of the type `unit`."""
        self._plan = plan
        self._start = start
        self._unit = unit
        self._columns = [values(column, unique, seed, place) for place, column in enumerate(plan.columns)]
        self._unique = unique
        random = np.random.default_rng([seed, len(plan.columns), 1])
        late = random.random(_DELAYS) < plan.disorder / 100
        self._delays = np.where(late, random.integers(1, max(plan.disorder_range, 1) + 1, _DELAYS), 0)

    def table(self, request: WriteRequest) -> pa.Table:
        """Returns rows as a super table takes them: `tbname`, `ts`, and the columns."""
        children, rows = request.children, request.rows
        low = int(children.min())
        names = [f"{self._plan.prefix}{number}" for number in range(low, int(children.max()) + 1)]
        codes = pa.array((children - low).astype(np.int32))
        delays = self._delays[(children * _STRIDE + rows) % _DELAYS] if self._plan.disorder else 0
        found: dict[str, pa.Array] = {
            "tbname": pa.DictionaryArray.from_arrays(codes, pa.array(names)),
            "ts": pa.array(self._start + rows * self._plan.step - delays).cast(self._unit)}
        for place, (column, pool) in enumerate(zip(self._plan.columns, self._columns, strict=True)):
            picks = (children * _STRIDE + rows + place) % self._unique
            found[column.name] = pool.take(pa.array(picks))
        return pa.table(found)


def tag_rows(plan: TablePlan, seed: int) -> list[tuple[object, ...]]:
    """Returns the tag values of each child table."""
    columns = [values(tag, plan.tables, seed, place + len(plan.columns) + 2).to_pylist()
               for place, tag in enumerate(plan.tags)]
    return list(zip(*columns, strict=True))
