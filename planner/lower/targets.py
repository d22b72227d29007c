"""Where results of streams go: values as the target's types, and the SQL of names and tags of child tables."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.planner.duckdb_sql.duckdb_tree import (
    Tree,
    cast,
    closed,
    column,
    fragment,
    named,
    render,
    replaced_columns,
    select,
    try_cast,
)
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.stream import GROUP, StreamKey, Target
from penstock.planner.task_plans.column_names import CHILD
from penstock.planner.task_plans.stream_plan import Field, SinkPlan
from penstock.sql.schema import Column
from penstock.sql.types import DataType, Kind

_SUBTABLE = """
coalesce(CASE
    WHEN _gid = 0 OR ends_with(:given, _gid::VARCHAR) OR (length(:given) = 34 AND starts_with(:given, 't_')) THEN :given
    WHEN strlen(:given || :suffix) <= 192 THEN :given || :suffix
    WHEN strlen(:given) <= 159 THEN :given || '_' || md5(:suffix)
    ELSE md5(:given) || '_' || md5(:suffix) END, :hashed)"""


def key_fields(keys: Sequence[StreamKey]) -> tuple[Field, ...]:
    """Returns the keys as columns of blocks."""
    return tuple(key_field(place, key.type) for place, key in enumerate(keys))


def key_field(place: int, type_: DataType) -> Field:
    """Returns the n-th key as a column of blocks."""
    return Field(f"k{place}", type_)


def converted(value: SqlExpr, target: DataType) -> Tree:
    """Returns `value` as the target column's type; a value that doesn't fit becomes NULL rather than an error."""
    if target.kind is Kind.TIMESTAMP and value.type.kind is Kind.TIMESTAMP:
        return cast(value.node, "BIGINT")
    if target.is_string and target.length is not None:
        return fragment("left(:value::VARCHAR, :length)", value=value.node, length=target.length)
    return try_cast(value.node, target.duckdb())


def converted_results(values: Sequence[SqlExpr], columns: Sequence[Column]) -> list[Tree]:
    """Returns each value as the type of the target column that takes it."""
    return [converted(value, column.type) for value, column in zip(values, columns, strict=True)]


def sink_plan(target: Target, keys: Sequence[StreamKey]) -> SinkPlan:
    """Returns what sink tasks need to know."""
    return SinkPlan(target.database, target.table, target.columns, target.tags, render(_children(target, keys)),
                    target.uid, target.create, target.external)


def _children(target: Target, keys: Sequence[StreamKey]) -> Tree:
    """The SELECT from `groups` to names of child tables (tdengine.md 1.7) and values of tags."""
    of_blocks: dict[str, Tree] = {key.name: column(field.name)
                                  for key, field in zip(keys, key_fields(keys), strict=True)}
    place = f"{target.database}.{target.table if target.external is None else target.external.place}"
    child = fragment("'t_' || md5(:target || ',' || _gid::VARCHAR)", target=place)
    if target.child is not None:
        child = fragment(_SUBTABLE, given=closed(replaced_columns(target.child.node, of_blocks)), hashed=child,
                         suffix=fragment(":name || _gid::VARCHAR", name=f"_{target.table}_"))
    of_blocks[GROUP] = column("_gid")
    tags = [replaced_columns(value.node, of_blocks) for value in target.tag_values]
    return select([column("_gid"), named(child, CHILD), *(named(tag, f"t{n}") for n, tag in enumerate(tags))],
                  "groups")
