"""Says whether a stream's results are right: DuckDB computes the batch answer over the same rows."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.queries import WATERMARK_MS, Query, Trigger
from bench.rows import Shape, all_rows

_TOLERANCE = 1e-6


class WrongAnswerError(Exception):
    """The results aren't those of the batch query; says how they differ."""


def source_relation(connection: duckdb.DuckDBPyConnection, shape: Shape) -> None:
    """Registers the rows of a shape as `source`: of rows that were written twice the later one counts."""
    connection.register("arrived", all_rows(shape))
    newest = ("QUALIFY row_number() OVER (PARTITION BY tbname, ts ORDER BY seq DESC) = 1" if shape.updated else "")
    connection.execute(f"CREATE OR REPLACE TEMP TABLE source AS SELECT * REPLACE (epoch_ms(ts) AS ts, "
                       f"tbname::VARCHAR AS tbname) FROM arrived {newest}")
    connection.unregister("arrived")


def batch_answer(
    connection: duckdb.DuckDBPyConnection, query: Query, shape: Shape, trigger: Trigger, hold_ms: int = 0
) -> pa.Table:
    """Returns what the result table must hold once all rows are in: for WINDOW_CLOSE the closed windows.

    `hold_ms`: windows are closed so much later than ours are.
    """
    closed = "true"
    if query.windowed and trigger == "WINDOW_CLOSE":
        closed = f"ended <= {shape.last_ms - WATERMARK_MS - hold_ms}"
    columns = ", ".join((*query.keys, *query.values))
    return connection.sql(f"SELECT {columns} FROM ({query.batch}) WHERE {closed}").to_arrow_table()


def expected(query: Query, shape: Shape, trigger: Trigger, hold_ms: int = 0) -> pa.Table:
    """Returns `batch_answer` over the rows of a shape, made again."""
    with duckdb.connect() as connection:
        source_relation(connection, shape)
        return batch_answer(connection, query, shape, trigger, hold_ms)


def open_windows(query: Query, shape: Shape) -> int:
    """Returns how many windows of the batch answer are not closed once all rows are in."""
    with duckdb.connect() as connection:
        source_relation(connection, shape)
        everything, closed = (batch_answer(connection, query, shape, trigger).num_rows
                              for trigger in ("AT_ONCE", "WINDOW_CLOSE"))
        return everything - closed


def check(query: Query, found: pa.Table, wanted: pa.Table) -> None:
    """Raises WrongAnswerError unless both tables hold the same rows, whatever their order.

    Timestamps may be Arrow timestamps or integers of ms; numbers may differ by a relative 1e-6.
    """
    if found.num_rows != wanted.num_rows:
        raise WrongAnswerError(f"{query.name}: {found.num_rows} result rows, the batch query has {wanted.num_rows}"
                               + _first_difference(query, found, wanted))
    left, right = _sorted(query, found), _sorted(query, wanted)
    for name in (*query.keys, *query.values):
        same = _equal(left.column(name), right.column(name))
        if not same.all():
            row = int(np.flatnonzero(~same)[0])
            raise WrongAnswerError(
                f"{query.name}: {int((~same).sum())} of {left.num_rows} rows differ in {name}; the first: "
                f"{left.slice(row, 1).to_pylist()[0]} instead of {right.slice(row, 1).to_pylist()[0]}")


def _first_difference(query: Query, found: pa.Table, wanted: pa.Table) -> str:
    keys = list(query.keys)
    left, right = (_sorted(query, table).select(keys) for table in (found, wanted))
    for text, one, other in (("missing", right, left), ("too many", left, right)):
        rest = one.join(other, keys, join_type="left anti").sort_by([(key, "ascending") for key in reversed(keys)])
        if rest.num_rows:
            return f"; {text}: {rest.num_rows}, such as {rest.slice(0, 1).to_pylist()[0]}"
    return "; the same keys, some of them twice"


def _sorted(query: Query, table: pa.Table) -> pa.Table:
    columns = {}
    for name in (*query.keys, *query.values):
        column = table.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms")).cast(pa.int64())
        elif pa.types.is_integer(column.type):
            column = column.cast(pa.int64())
        columns[name] = column
    return pa.table(columns).sort_by([(key, "ascending") for key in query.keys])


def _equal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        one, other = (column.cast(pa.float64()).to_numpy() for column in (left, right))
        return np.isclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
    same = pc.equal(left.cast(right.type), right).combine_chunks()
    return np.asarray(pc.fill_null(same, False).to_numpy(zero_copy_only=False))
