"""Small parts of queries as trees of DuckDB SQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, cast, column, identifier, made, try_cast
from penstock.sql.types import DataType


def columns(names: Iterable[str]) -> list[Tree]:
    """Returns references to columns of these names."""
    return [column(name) for name in names]


def star(without: Sequence[str] = (), replaced: Sequence[exp.Alias] = (), of: str | None = None) -> Tree:
    """Returns all columns, of the relation `of` if given; `replaced` are those that have another value."""
    found = made(exp.Star, except_=columns(without) or None, replace=list(replaced) or None) \
        if without or replaced else _all_columns()
    return found if of is None else made(exp.Column, this=found, table=identifier(of))


@cache
def _all_columns() -> exp.Star:
    return made(exp.Star)


def relation(name: str, alias: str | None = None) -> exp.Table:
    """Returns a relation as it stands behind FROM."""
    return made(exp.Table, this=identifier(name), alias=_alias(alias))


def nested(query: exp.Query, alias: str | None = None) -> exp.Subquery:
    """Returns a query as it stands behind FROM."""
    return made(exp.Subquery, this=query, alias=_alias(alias))


def _alias(name: str | None) -> exp.TableAlias | None:
    return None if name is None else made(exp.TableAlias, this=identifier(name))


def joined(source: Tree, on: Tree | None = None, *, side: str = "", method: str = "") -> exp.Join:
    """Returns what stands behind a FROM item: [ASOF] [LEFT | FULL] JOIN source ON on; CROSS JOIN without `on`."""
    if on is None:
        return made(exp.Join, this=source, kind="CROSS")
    return made(exp.Join, this=source, on=on, side=side or None, method=method or None)


def ordered(tree: Tree, *, descending: bool = False, nulls_first: bool = False) -> exp.Ordered:
    """Returns an item of ORDER BY."""
    return made(exp.Ordered, this=tree, desc=descending, nulls_first=nulls_first)


def frame(start: str, start_side: str, end: str, end_side: str = "") -> exp.WindowSpec:
    """Returns a frame of rows, such as UNBOUNDED PRECEDING to CURRENT ROW."""
    return made(exp.WindowSpec, kind="ROWS", start=start, start_side=start_side, end=end, end_side=end_side or None)


@cache
def so_far() -> exp.WindowSpec:
    """Returns the frame of the rows up to this one: the default would take rows of equal order together."""
    return frame("UNBOUNDED", "PRECEDING", "CURRENT ROW")


@cache
def from_here() -> exp.WindowSpec:
    """Returns the frame of this row and those behind it."""
    return frame("CURRENT ROW", "", "UNBOUNDED", "FOLLOWING")


def over(function: Tree, keys: Sequence[Tree] = (), order: Sequence[Tree] = (),
         spec: exp.WindowSpec | None = None) -> exp.Window:
    """Returns the call of a window function per partition of the keys, along an order."""
    return made(
        exp.Window, this=function, partition_by=list(keys) or None,
        order=made(exp.Order, expressions=[item if isinstance(item, exp.Ordered) else ordered(item)
                                           for item in order]) if order else None,
        spec=spec, over="OVER")


def ignoring_nulls(function: str, value: Tree) -> exp.Anonymous:
    """Returns the call of a window function that passes over NULLs."""
    return call(function, made(exp.IgnoreNulls, this=value))


def row_number(keys: Sequence[Tree] = (), order: Sequence[Tree] = ()) -> exp.Window:
    """Returns the number of a row, from 1."""
    return over(call("row_number"), keys, order)


def as_type(tree: Tree, type_: DataType) -> exp.Cast:
    """Returns the value converted to the DuckDB type that holds values of the type."""
    return cast(tree, type_.duckdb())


def try_as(tree: Tree, type_: DataType) -> exp.TryCast:
    """Returns the value converted as by `as_type`, NULL where that isn't possible."""
    return try_cast(tree, type_.duckdb())
