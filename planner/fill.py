"""FILL of INTERVAL windows in queries: the grid of windows over a time range, and values for those without rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.planner.scalar_sql import LIMIT, quote_text
from penstock.sql.statements import FillMode
from penstock.sql.types import INTEGERS, DataType, Kind

MAX_FILLED = 10_000_000
FILL_RANGE = 0x263B
FORCED: tuple[FillMode, ...] = ("null_f", "value_f")
START = '"#ws"'
HIT = '"#hit"'


@dataclass(frozen=True, slots=True)
class FillColumn:
    """A column of results: where there is no row, FILL gives its value. `constant` is SQL of VALUE's value."""

    name: str
    type: DataType
    constant: str | None = None


def can_interpolate(type_: DataType) -> bool:
    """Tells whether FILL(LINEAR) has a value between two values of this type."""
    return type_.is_numeric and type_.kind is not Kind.BOOL


def grid_sql(windows: str, keys: Sequence[str], starts: str, count: int, mode: FillMode) -> str:
    """Returns SQL of one row per group and window start: `keys`, START, and HIT with the values where there are any.

    `windows` has the windows with rows: `keys`, START and values. `starts` is a list of all starts, of which there are
    `count`; all groups together have at most MAX_FILLED. A group is in the
    result if it has any row; without keys, the one group is also in it where the mode is forced.
    """
    if keys:
        groups = f"SELECT DISTINCT {', '.join(keys)} FROM {windows}"
    elif mode in FORCED:
        groups = "SELECT 1"
    else:
        groups = f"SELECT 1 WHERE EXISTS (SELECT 1 FROM {windows})"
    if keys:
        refusal = quote_text(f"{LIMIT}FILL would make more than {MAX_FILLED:,} windows in all groups together")
        starts = (f"CASE WHEN (SELECT count(*) FROM ({groups})) > {MAX_FILLED // max(count, 1)} "
                  f"THEN error({refusal}) ELSE {starts} END")
    same = "".join(f" AND w.{key} IS NOT DISTINCT FROM g.{key}" for key in keys)
    shown = "".join(f"g.{key}, " for key in keys)
    hidden = ", ".join((*keys, START))
    return (f"SELECT {shown}s.s AS {START}, w.{START} IS NOT NULL AS {HIT}, w.* EXCLUDE ({hidden}) FROM ({groups}) g "
            f"CROSS JOIN (SELECT unnest({starts}) AS s) s LEFT JOIN {windows} w ON w.{START} = s.s{same}")


def filled_sql(grid: str, keys: Sequence[str], columns: Sequence[FillColumn], mode: FillMode) -> str:
    """Returns SQL of the rows of `grid` with their columns filled."""
    partition = f"PARTITION BY {', '.join(keys)} " if keys else ""
    before = f"OVER ({partition}ORDER BY {START} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    after = f"OVER ({partition}ORDER BY {START} ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)"
    changed = []
    for column in columns:
        match mode:
            case "value" | "value_f":
                changed.append(f"coalesce({column.name}, {column.constant}) AS {column.name}")
            case "prev":
                changed.append(f"last_value({column.name} IGNORE NULLS) {before} AS {column.name}")
            case "next":
                changed.append(f"first_value({column.name} IGNORE NULLS) {after} AS {column.name}")
            case "linear" if can_interpolate(column.type):
                point = f"CASE WHEN {HIT} THEN {{'t': {START}, 'v': {column.name}::DOUBLE}} END"
                value = linear_sql(f"(last_value({point} IGNORE NULLS) {before})",
                                   f"(first_value({point} IGNORE NULLS) {after})", START, column.type)
                changed.append(f"CASE WHEN {HIT} THEN {column.name} ELSE {value} END AS {column.name}")
    replaced = f" REPLACE ({', '.join(changed)})" if changed else ""
    return f"SELECT *{replaced} FROM {grid}"


def linear_sql(before: str, after: str, at: str, type_: DataType) -> str:
    """Returns SQL of the value at `at` on the straight line between two structs {t, v}, as `type_`."""
    value = f"{before}.v + ({after}.v - {before}.v) * ({at} - {before}.t) / ({after}.t - {before}.t)"
    if type_.kind in INTEGERS:
        return f"trunc({value})::{type_.duckdb()}"
    return f"({value})::{type_.duckdb()}"
