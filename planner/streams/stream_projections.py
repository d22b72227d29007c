"""The results of a stream, bound: what they are called, and the time that goes before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from penstock.planner.bind.query_parts import Item
from penstock.planner.duckdb_sql.sql_expr import SqlExpr

Projections = Sequence[tuple[Item, SqlExpr]]
"""Result columns, each with its value."""


def short_names(items: Sequence[Item]) -> list[Item]:
    """Returns the items with the names of the result's columns: for `a.v` that is `v`, unless another is called that.
    """
    short = [item.name if item.alias is None else item.alias for item in items]
    return [replace(item, name=one if short.count(one) == 1 else item.name)
            for item, one in zip(items, short, strict=True)]


def with_time(projections: Projections, time: str, value: SqlExpr) -> Projections:
    """Returns the results with the time that they are of, called `time`, put before them unless they start with it."""
    first = projections[0][0].expression
    if isinstance(first, exp.Column) and first.name == time:
        return projections
    names = {item.name for item, _ in projections}
    name = next(name for name in (time, "ts", f"{time}_") if name not in names)
    return [(Item(exp.column(time), name, name), value), *projections]
