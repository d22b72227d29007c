"""What a stream has given, as a relation to compare with its query: a result table, or a record of what was sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.planner.duckdb_sql.quoting import quote_name
from penstock.planner.logical.operators import Scan
from penstock.planner.lower.targets import group_text
from penstock.planner.task_plans.column_names import CHILD
from penstock.planner.task_plans.external_rows import DELETED, REFUSED, UPSERTED, external_columns
from penstock.planner.task_plans.stream_plan import SinkPlan
from penstock.sql.schema import Column, Table

STORED = "stored"
_LATER, _DELETES = "later", "later_deletes"
_SENT, _SENT_RESULTS, _LAST_SENT = "sent", "sent_results", "last_sent"


@dataclass(frozen=True, slots=True)
class FoundResults:
    """All results that there are: `sql`, over `scans`, `tables` and `steps`, has CHILD, `r0`, `r1`, ... of each.

    `columns` are those of the target. `unjudged` is the condition that nobody can say whether a result is right, over
    its `child` and `moment`, and the `state` that it has otherwise.
    """

    columns: Sequence[Column]
    sql: str
    scans: tuple[Scan, ...] = ()
    tables: tuple[tuple[str, pa.Table], ...] = ()
    steps: tuple[tuple[str, str], ...] = ()
    unjudged: str = "false"


@dataclass(frozen=True, slots=True)
class LaterWrites:
    """What became of a result table behind a cut: which results were written, and which ranges of time deleted.

    `rows`: CHILD and `moment` (BIGINT); `deletes`: CHILD (NULL: of all children), `first` and `last`, inclusive.
    """

    rows: pa.Table
    deletes: pa.Table


def results_of_table(target: Table, later: LaterWrites | None = None) -> FoundResults:
    """Returns what a result table has. `later`: what may be of rows behind the cut, and isn't judged."""
    columns = target.columns
    scan = Scan(STORED, target, ("tbname", *(column.name for column in columns)), precision=columns[0].type.precision)
    names = ", ".join(f"{quote_name(column.name)} AS r{n}" for n, column in enumerate(columns))
    sql = f"SELECT tbname AS {CHILD}, {names} FROM {STORED}"
    if later is None:
        return FoundResults(columns, sql, (scan,))
    unjudged = (f"((child, moment) IN (SELECT ({CHILD}, moment) FROM {_LATER}) OR EXISTS (SELECT 1 FROM {_DELETES} "
                f"AS d WHERE coalesce(d.{CHILD}, child) = child AND moment BETWEEN d.first AND d.last))")
    return FoundResults(columns, sql, (scan,), ((_LATER, later.rows), (_DELETES, later.deletes)), unjudged=unjudged)


def results_of_record(sink: SinkPlan, rows: pa.Table, behind: int | None) -> FoundResults:
    """Returns what was sent last of each result. `rows` and `behind` are what `SentResults` has.

    A result that went to the DLQ isn't judged, nor is one that isn't among the rows but may have been sent before them.
    """
    places = {column.name: n for n, column in enumerate(external_columns(sink))}
    group = group_text([f"c{n}" for n in range(len(sink.tags))])
    results = ", ".join(f"c{places[column.name]} AS r{n}" for n, column in enumerate(sink.columns))
    key = ", ".join([CHILD, "r0", *(["r1"] if sink.key_column is not None else [])])
    steps = (
        (_SENT_RESULTS, f"SELECT place, op, {group} AS {CHILD}, {results} FROM {_SENT}"),
        (_LAST_SENT, f"SELECT *, max(place) FILTER (WHERE op = {DELETED}) OVER (PARTITION BY {CHILD}, r0) AS deleted "
                     f"FROM {_SENT_RESULTS} QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY place DESC) = 1"),
    )
    sql = (f"SELECT {CHILD}, {', '.join(f'r{n}' for n in range(len(sink.columns)))} FROM {_LAST_SENT} "
           f"WHERE op = {UPSERTED} AND place > coalesce(deleted, -1)")
    unjudged = f"(child, moment) IN (SELECT ({CHILD}, r0) FROM {_LAST_SENT} WHERE op = {REFUSED})"
    if behind is not None:
        unjudged += (f" OR (state = 'missing' AND moment <= {behind} AND (child, moment) NOT IN "
                     f"(SELECT ({CHILD}, r0) FROM {_LAST_SENT}))")
    return FoundResults(sink.columns, sql, tables=((_SENT, _numbered(rows)),), steps=steps, unjudged=f"({unjudged})")


def _numbered(rows: pa.Table) -> pa.Table:
    """Returns the rows with their `place` among all, `op`, and columns `c0`, `c1`, ..., times as numbers."""
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
               for column in rows.columns[1:]]
    return pa.table([pa.array(np.arange(rows.num_rows)), rows.column(0), *columns],
                    ["place", "op", *(f"c{n}" for n in range(len(columns)))])
