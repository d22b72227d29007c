"""INTERP: values on a grid of instants, taken from or computed between the rows around each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.planner.fill import FORCED, can_interpolate, linear_sql
from penstock.sql.statements import FillMode
from penstock.sql.types import DataType

AT = '"#at"'
FILLED = '"#filled"'
ORIGIN = '"#origin"'
KIND = '"#kind"'


@dataclass(frozen=True, slots=True)
class InterpValue:
    """One INTERP call: SQL of its argument over the rows, its type, IGNORE NULL, and SQL of FILL's value."""

    sql: str
    type: DataType
    ignore_null: bool
    constant: str | None = None


@dataclass(frozen=True, slots=True)
class InterpGrid:
    """The instants first, first + step, ... up to last; `reach` is how far away a row may be, None: any distance."""

    first: int
    last: int
    step: int
    reach: int | None = None


def interp_sql(
    rows: str, order: Sequence[str], keys: Sequence[str], values: Sequence[InterpValue], grid: InterpGrid,
    mode: FillMode,
) -> str:
    """Returns SQL of the grid rows: `keys`, AT, FILLED, ORIGIN and one column `#i0`, `#i1`, ... per value.

    `order` is SQL of the primary timestamp and of what orders rows of equal time.

    Rows and instants are put in one order in time, rows first; what surrounds an instant is then the last row before
    it in that order (or at the same time) and the first one after it.
    """
    ts, ties = order[0], order[1:]
    key_list = "".join(f"{key}, " for key in keys)
    points = []
    for index, value in enumerate(values):
        kept = f"({value.sql}) IS NOT NULL" if value.ignore_null else "true"
        points.append(f"CASE WHEN {kept} THEN {{'t': {ts}, 'v': {value.sql}}} END AS \"#p{index}\"")
    tie_columns = [f'"#tie{index}"' for index in range(len(ties))]
    tied = "".join(f", {tie} AS {column}" for tie, column in zip(ties, tie_columns, strict=True))
    data = f"SELECT {key_list}{ts} AS {AT}, 0 AS \"#kind\", {', '.join(points)}{tied} FROM {rows}"
    groups = f"SELECT DISTINCT {', '.join(keys)} FROM {rows}" if keys else (
        "SELECT 1" if mode in FORCED else f"SELECT 1 WHERE EXISTS (SELECT 1 FROM {rows})")
    empty = ", ".join("NULL" for _ in (*values, *ties))
    instants = f"generate_series({grid.first}::BIGINT, {grid.last}::BIGINT, {grid.step})"
    marks = (f"SELECT {''.join(f'g.{key}, ' for key in keys)}s.s, 1, {empty} FROM ({groups}) g "
             f"CROSS JOIN (SELECT unnest({instants}) AS s) s")
    partition = f"PARTITION BY {', '.join(keys)} " if keys else ""
    line = f"{partition}ORDER BY {', '.join((AT, KIND, *tie_columns))}"
    around = []
    for index in range(len(values)):
        point = f"\"#p{index}\""
        around.append(f"last_value({point} IGNORE NULLS) OVER ({line} ROWS UNBOUNDED PRECEDING) AS \"#b{index}\"")
        around.append(f"first_value({point} IGNORE NULLS) OVER ({line} ROWS BETWEEN CURRENT ROW AND UNBOUNDED "
                      f"FOLLOWING) AS \"#a{index}\"")
    both = f"SELECT *, {', '.join(around)} FROM ({data} UNION ALL {marks})"
    results, present = [], []
    for index, value in enumerate(values):
        result, has = _value_sql(value, f"\"#b{index}\"", f"\"#a{index}\"", grid, mode)
        results.append(f"{result} AS \"#i{index}\"")
        present.append(has)
    exact = f"(\"#b0\".t IS NOT NULL AND \"#b0\".t = {AT})"
    return (f"SELECT {key_list}{AT}, NOT {exact} AS {FILLED}, {_origin(grid, mode)} AS {ORIGIN}, {', '.join(results)} "
            f"FROM ({both}) WHERE \"#kind\" = 1 AND ({' OR '.join(present)})")


def _value_sql(
    value: InterpValue, before: str, after: str, grid: InterpGrid, mode: FillMode
) -> tuple[str, str]:
    """SQL of the value at an instant, and of whether there is a row for it."""
    kind = value.type.duckdb()
    exact = f"({before}.t IS NOT NULL AND {before}.t = {AT})"
    fallback = value.constant if value.constant is not None else "NULL"
    if mode in ("null", "null_f", "value", "value_f"):
        return f"CASE WHEN {exact} THEN {before}.v ELSE ({fallback})::{kind} END", "true"
    if mode == "none":
        return f"{before}.v", exact
    if mode == "linear":
        between = linear_sql(before, after, AT, value.type) if can_interpolate(value.type) else "NULL"
        return (f"CASE WHEN {exact} THEN {before}.v ELSE {between} END",
                f"{exact} OR ({before}.t IS NOT NULL AND {after}.t IS NOT NULL)")
    source = _nearest(before, after, mode)
    if grid.reach is None:
        return f"({source}).v", f"({source}).t IS NOT NULL"
    close = f"coalesce(abs(({source}).t - {AT}) <= {grid.reach}, false)"
    return f"CASE WHEN {close} THEN ({source}).v ELSE ({fallback})::{kind} END", (
        "true" if value.constant is not None else close)


def _nearest(before: str, after: str, mode: FillMode) -> str:
    """SQL of the point that PREV, NEXT or NEAR takes: an exact hit is `before` in every mode."""
    exact = f"({before}.t IS NOT NULL AND {before}.t = {AT})"
    if mode == "prev":
        return before
    if mode == "next":
        return f"CASE WHEN {exact} THEN {before} ELSE {after} END"
    nearer = f"({after}.t IS NULL OR {AT} - {before}.t <= {after}.t - {AT})"
    return f"CASE WHEN {before}.t IS NOT NULL AND {nearer} THEN {before} ELSE {after} END"


def _origin(grid: InterpGrid, mode: FillMode) -> str:
    """SQL of the time of the row that the first value was taken from."""
    if mode in ("prev", "next", "near"):
        nearest = _nearest('"#b0"', '"#a0"', mode)
        source = f"({nearest}).t"
        return source if grid.reach is None else f"CASE WHEN abs({source} - {AT}) <= {grid.reach} THEN {source} END"
    return f"CASE WHEN \"#b0\".t = {AT} THEN {AT} END"
