"""FILL of windows without rows, and of instants of INTERP: what it can compute, and how far it may go."""

from __future__ import annotations

from penstock.planner.duckdb_sql.duckdb_tree import Tree, fragment, let, try_cast
from penstock.planner.duckdb_sql.quoting import LIMIT
from penstock.sql.tree.statements import FillMode
from penstock.sql.types import INTEGERS, DataType, Kind

MAX_FILLED = 10_000_000
FILL_RANGE = 0x263B
FORCED: tuple[FillMode, ...] = ("null_f", "value_f")
#: What a query is refused with that would fill more.
REFUSAL = f"{LIMIT}FILL would make more than {MAX_FILLED:,} windows in all groups together"


def can_interpolate(type_: DataType) -> bool:
    """Tells whether FILL(LINEAR) has a value between two values of this type."""
    return type_.is_numeric and type_.kind is not Kind.BOOL


def straight_line(before: Tree, after: Tree, at: Tree, type_: DataType) -> Tree:
    """Returns the value at `at` on the straight line between two structs {t, v}, as `type_`.

    NULL if that can't hold it: DOUBLE may round what is near its ends beyond them, and differences may be infinite.
    """
    value = fragment("(:before).v + ((:after).v - (:before).v) * (:at - (:before).t) / ((:after).t - (:before).t)",
                     before=before, after=after, at=at)
    if type_.kind in INTEGERS:
        value = fragment("trunc(:value)", value=value)
    return let(value, lambda x: fragment(
        "CASE WHEN isfinite(:x) THEN :rounded END", x=x, rounded=try_cast(x, type_.duckdb())))
