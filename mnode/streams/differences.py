"""What is found when the results of a stream are compared with its query: which aren't equal, and how many are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.mnode.streams.result_difference import Differing, equal_rows
from penstock.planner.query.compared_results import COUNTED, SHOWN, Span
from penstock.sql.schema import Column, Table
from penstock.sql.types import Kind

_TEXT_MAX = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """A result that isn't what the query says.

    `state`: missing, extra or differs; `child` and `moment`: which result: of which child table, or of a stream of any
    query the values of its KEY, and at which time, if it has one; `ends`: when its window is over, None if that isn't
    known; `found` and `wanted`: values of the stream and of the query, as text.
    """

    state: str
    child: str | None
    moment: int | None
    ends: int | None
    found: str | None
    wanted: str | None


@dataclass(frozen=True, slots=True)
class Compared:
    """What was found of some spans: `differences`, at most SHOWN, and how many results are `equal`, aren't (`others`),
    and are `unjudged`.
    """

    differences: tuple[Difference, ...]
    equal: int
    others: int
    unjudged: int


def compared(table: pa.Table) -> Compared:
    """Returns what `compared_results` has found."""
    counted = pc.equal(table.column("state"), COUNTED)
    counts = table.filter(counted)
    lines = zip(*(column.to_pylist() for column in table.filter(pc.invert(counted)).columns), strict=True)
    equal, others, unjudged = (counts.column(name)[0].as_py() for name in ("moment", "ends", "found"))
    return Compared(tuple(Difference(*line) for line in lines), equal, others, int(unjudged))


def compared_answer(differing: Differing, span: Span) -> Compared:
    """Returns what was found of the rows of a table that are of a time in `span`; all, if the table has no time."""
    target, found, wanted = differing.table, differing.found, differing.wanted
    gone = differing.gone[_within(target, found, span)[differing.gone]]
    looked_at = _within(target, wanted, span)
    changed = np.flatnonzero(looked_at & differing.changed)
    lines = [Difference("extra", *_place(target, found, at), None, _values(target.columns, target, found, at), None)
             for at in gone[:SHOWN].tolist()]
    for at in changed[:SHOWN].tolist():
        place, where = differing.places[at].as_py(), _place(target, wanted, at)
        if place is None:
            lines.append(Difference("missing", *where, None, None, _values(target.columns, target, wanted, at)))
            continue
        have, want = found.slice(place, 1), wanted.slice(at, 1)
        others = [column for column in target.columns if not equal_rows([column], want, have, differing.lost)[0]]
        lines.append(Difference("differs", *where, None, _values(others, target, have, 0),
                                _values(others, target, want, 0)))
    lines.sort(key=lambda line: (line.child or "", line.moment or 0))
    return Compared(tuple(lines[:SHOWN]), int(looked_at.sum()) - len(changed), len(gone) + len(changed), 0)


def _within(target: Table, rows: pa.RecordBatch, span: Span) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    if target.keyed:
        return np.ones(rows.num_rows, bool)
    times = np.asarray(rows.column(target.time_column.physical).cast(pa.int64()), np.int64)
    return (span[0] <= times) & (times <= span[1])


def _place(target: Table, rows: pa.RecordBatch, at: int) -> tuple[str | None, int | None]:
    """Returns `child` and `moment` of a row."""
    time = None if target.keyed else rows.column(target.time_column.physical)[at].cast(pa.int64()).as_py()
    keys = [column for column in target.key_columns if target.keyed or column != target.time_column]
    return _listed(keys, rows, at) or None, time


def _values(columns: Sequence[Column], target: Table, rows: pa.RecordBatch, at: int) -> str:
    return _listed([column for column in columns if column not in target.key_columns] or columns, rows, at)


def _listed(columns: Sequence[Column], rows: pa.RecordBatch, at: int) -> str:
    return ", ".join(f"{column.name} = {_text(column, rows.column(column.physical)[at])}" for column in columns)


def _text(column: Column, value: pa.Scalar[Any]) -> str:
    if not value.is_valid:
        return "NULL"
    if column.type.kind is Kind.TIMESTAMP:
        return str(value.cast(column.type.arrow()).cast(pa.string()).as_py())
    plain = value.as_py()
    return (plain.hex() if isinstance(plain, bytes) else str(plain))[:_TEXT_MAX]
