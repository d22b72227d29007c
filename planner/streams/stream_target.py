"""INTO of CREATE STREAM: which column of the target takes which result, names of its children, and their tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from penstock.common.errors import (
    AlreadyExistsError,
    InvalidStatementError,
    InvalidStreamError,
    NotFoundError,
)
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.query_parts import Item
from penstock.planner.bind.scopes import fingerprint
from penstock.planner.duckdb_sql.duckdb_tree import column, is_column
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.operators import TBNAME as TABLE_NAME
from penstock.planner.logical.stream import GROUP, Target
from penstock.planner.lower.stages import TBNAME
from penstock.planner.lower.targets import always_fits, converted, problem_of, sink_plan
from penstock.planner.streams.calculated_target import fired_target
from penstock.planner.streams.external_sink import avro_schema, plan_external_sink, require_connection
from penstock.planner.streams.stream_context import StreamContext
from penstock.planner.streams.stream_keys import PartitionKey
from penstock.planner.streams.stream_projections import Projections
from penstock.planner.streams.stream_scopes import PartitionScope
from penstock.planner.task_plans.column_names import CHILD, OPERATION
from penstock.sql.schema import Column, Table, database_missing
from penstock.sql.tree.statements import ExternalTargetOptions
from penstock.sql.types import INTEGERS, UBIGINT, VARCHAR, DataType, Kind, Precision, check_stored, timestamp

_NULL = SqlExpr(exp.null(), DataType(Kind.NULL))
#: What result rows have beside the columns of their table: the child table, and whether to write or to delete.
_OF_RESULT_ROWS = (CHILD, OPERATION)


@dataclass(frozen=True, slots=True)
class BoundTarget:
    """A target with the value for each of its columns."""

    target: Target
    values: tuple[SqlExpr, ...]

    def times_of(self, name: str) -> list[int]:
        """Returns which of the target's columns are a bound of the window, as the primary timestamp is."""
        return [place for place, (value, target) in enumerate(zip(self.values, self.target.columns, strict=True))
                if target.type.kind is Kind.TIMESTAMP and is_column(value.node, name)]


def bind_target(stream: StreamContext, projections: Projections, *, prepended: bool) -> BoundTarget:
    """Returns where the projections go. `prepended`: the first one isn't of the query.

    Raises NotFoundError, AlreadyExistsError, InvalidStatementError or InvalidStreamError for targets that don't fit.
    """
    if stream.statement.calculation is not None:
        return BoundTarget(*fired_target(stream, projections))
    external = stream.statement.target.external
    return _table(stream, projections, prepended) if external is None else _external(stream, external, projections)


# --- tables -----------------------------------------------------------------------------------------------------


def _table(stream: StreamContext, projections: Projections, prepended: bool) -> BoundTarget:
    target, catalog = stream.statement.target, stream.catalog
    database = target.name.database or stream.session.database
    if database is None:
        raise InvalidStatementError("no database is in use", code=0x2616, hint="USE a database, or write db.table")
    known = catalog.database(database)
    if known is None:
        raise database_missing(database, catalog)
    existing = catalog.table(database, target.name.name)
    values = [value for _, value in projections]
    if existing is None:
        columns, tags = _new_columns(stream, projections, prepended, database), _new_tags(stream)
    else:
        columns, values = _existing_columns(stream, existing, values, prepended)
        tags = existing.tags
    taken = next((column.name for column in columns if column.name in _OF_RESULT_ROWS), None)
    if taken is not None:
        raise InvalidStreamError(f"{taken} cannot be a column of a stream's target: result rows have one of that name",
                                 hint="give it another name")
    _check_key(stream, projections, columns)
    child, tag_values, tag_problem = _children(stream, tags)
    uid = existing.uid if existing else 0
    fit = all(always_fits(value, column.type) for value, column in zip(values, columns, strict=True))
    return BoundTarget(
        Target(database, target.name.name, columns, tags, child, tag_values, uid, existing is None,
               checks_results=not fit, tag_problem=tag_problem,
               home=known.home, uid_shift=stream.uid_shift), tuple(values))


def _new_columns(
    stream: StreamContext, projections: Projections, prepended: bool, database: str
) -> tuple[Column, ...]:
    names, given = [_column_name(item) for item, _ in projections], stream.statement.target.columns
    if given is not None:
        expected = len(projections) - (1 if prepended else 0)
        if len(given) != expected:
            raise InvalidStatementError(f"{len(given)} columns are named, but the query has {expected}", code=0x263F)
        names = [*([names[0]] if prepended else []), *(name for name, _ in given)]
    key = _key_place(stream, names)
    types = _types(stream, projections, _checked_precision(stream, database))
    types = [replace(kind, length=kind.length or _length(item)) if kind.is_string else kind
             for (item, _), kind in zip(projections, types, strict=True)]
    _check_names(names)
    return tuple(Column(name, kind, name, place == key)
                 for place, (name, kind) in enumerate(zip(names, types, strict=True)))


def _column_name(item: Item) -> str:
    """What the column of a new target is called: not tbname, which is every table's own name."""
    return f"{TBNAME}_" if _is_table_name(item) and item.name == TBNAME else item.name


def _length(item: Item) -> int:
    """How long the texts of a new column may be, if its type doesn't say."""
    return TABLE_NAME.length or 0 if _is_table_name(item) else 64


def _is_table_name(item: Item) -> bool:
    return isinstance(item.expression, exp.Column) and item.expression.name == TBNAME


def _types(stream: StreamContext, projections: Projections, precision: Precision) -> list[DataType]:
    """The types of the results, of which the first is the primary timestamp."""
    for item, value in projections:
        check_stored(value.type, stream.position(item.expression))
    types = [value.type if value.type.kind is not Kind.NULL else VARCHAR for _, value in projections]
    return [timestamp(precision), *types[1:]]


def _check_names(names: Sequence[str]) -> None:
    duplicate = next((name for n, name in enumerate(names) if name in names[:n]), None)
    if duplicate is not None:
        raise InvalidStatementError(f"the result has two columns named {duplicate}", code=0x263C,
                                    hint="give one of them an alias")


def _key_place(stream: StreamContext, names: list[str]) -> int | None:
    """Returns which column of a new target is the second part of its key, as the column list or the source says."""
    flagged = [name for name, is_key in stream.statement.target.columns or () if is_key]
    if len(flagged) > 1:
        raise InvalidStatementError("only one column besides the timestamp can be a part of the primary key",
                                    code=0x263F)
    if flagged:
        return names.index(flagged[0])
    keyed = stream.query.window is None and stream.join is None and stream.table.key_column is not None
    return 1 if keyed else None


def _check_key(stream: StreamContext, projections: Projections, columns: Sequence[Column]) -> None:
    """Checks what a composite key needs: that of the source is the second column of a stream without a window."""
    for place, target in enumerate(columns):
        if target.primary_key and (place != 1 or target.type.kind not in (*INTEGERS, Kind.VARCHAR)):
            raise InvalidStatementError(f"column {target.name} cannot be a part of the primary key", code=0x263F,
                                        hint="only the second column can, if it is an integer or VARCHAR")
    table, key = stream.table, stream.table.key_column
    if stream.query.window is not None or stream.join is not None or key is None:
        return
    second = projections[1][0].expression if len(projections) > 1 else None
    if not isinstance(second, exp.Column) or second.name != key.name:
        raise InvalidStreamError(
            f"{table.name} has a composite primary key: the second column of the query must be {key.name}")
    if len(columns) < 2 or not columns[1].primary_key:
        raise InvalidStreamError(
            f"{table.name} has a composite primary key: the second column of the target must be a key too",
            hint="declare it with PRIMARY KEY")


def _checked_precision(stream: StreamContext, database: str) -> Precision:
    found = stream.catalog.database(database)
    assert found is not None
    if found.precision != stream.precision:
        raise InvalidStreamError(
            f"the target's database has precision {found.precision}, the source's {stream.precision}",
            hint="write into a database of the same precision")
    return found.precision


def _existing_columns(
    stream: StreamContext, table: Table, values: Sequence[SqlExpr], prepended: bool
) -> tuple[tuple[Column, ...], list[SqlExpr]]:
    target = stream.statement.target
    _checked_precision(stream, table.database)
    if table.kind != "super":
        raise InvalidStreamError(f"{table.name} is not a super table: a stream needs one to write to")
    if target.tag_definitions is not None:
        raise AlreadyExistsError(f"table {table.name} exists: TAGS must name its tags without types", code=0x2603)
    if target.columns is None:
        if len(values) != len(table.columns):
            raise InvalidStatementError(
                f"{table.name} has {len(table.columns)} columns, the query gives {len(values)}", code=0x263F)
        bound = list(values)
    else:
        bound = _named_columns(table, [name for name, _ in target.columns], values, prepended)
    for one, value in zip(table.columns, bound, strict=True):
        if not _castable(value.type, one.type):
            raise InvalidStatementError(
                f"column {one.name} of {table.name} is {one.type.sql()}, the query gives {value.type.sql()}",
                code=0x263F)
    return table.columns, bound


def _named_columns(table: Table, given: Sequence[str], values: Sequence[SqlExpr], prepended: bool) -> list[SqlExpr]:
    """Returns the value for each column of the table, of which only some are named."""
    if prepended and len(given) == len(values) - 1:
        values = values[1:]
    if len(given) != len(values):
        raise InvalidStatementError(f"{len(given)} columns are named, the query gives {len(values)}", code=0x263F)
    known = {one.name for one in table.columns}
    for name in given:
        if name not in known:
            raise NotFoundError(f"column {name} does not exist in {table.name}", code=0x2602)
    if table.time_column.name not in given:
        raise InvalidStatementError(f"the primary timestamp {table.time_column.name} is not among the columns",
                                    code=0x263F)
    if table.key_column is not None and table.key_column.name not in given:
        raise InvalidStatementError(f"the key column {table.key_column.name} is not among the columns", code=0x263F)
    chosen = dict(zip(given, values, strict=True))
    return [chosen.get(one.name, _NULL) for one in table.columns]


def _castable(source: DataType, target: DataType) -> bool:
    if Kind.NULL in (source.kind, target.kind) or source.kind is target.kind:
        return True
    if source.kind is Kind.OTHER:
        return target.is_string
    binary = (Kind.VARBINARY, Kind.GEOMETRY, Kind.JSON)
    return source.kind not in binary and target.kind not in binary


# --- child tables and tags --------------------------------------------------------------------------------------


def _new_tags(stream: StreamContext) -> tuple[Column, ...]:
    target = stream.statement.target
    if target.tag_names is not None:
        raise NotFoundError(f"table {target.name} does not exist: its TAGS need types", code=0x2603)
    if target.tag_definitions is None:
        return (Column("group_id", UBIGINT, "group_id"),)
    return tuple(Column(tag.name, tag.type, tag.name) for tag in target.tag_definitions)


def _children(
    stream: StreamContext, tags: Sequence[Column]
) -> tuple[SqlExpr | None, tuple[SqlExpr, ...], SqlExpr | None]:
    """Returns what SUBTABLE says, the values of tags, and what names those that don't fit, if there may be any."""
    target, child = stream.statement.target, None
    if target.subtable is not None:
        child = compile_expression(target.subtable, PartitionScope(stream.keys, stream.rows, "SUBTABLE"))
        if not child.type.is_string:
            raise InvalidStreamError("SUBTABLE must be a VARCHAR expression",
                                     position=stream.position(target.subtable), hint="cast it, or use concat")
    if target.tag_definitions is not None:
        return child, *_tag_values(stream, [tag.name for tag in target.tag_definitions], tags)
    if target.tag_names is not None:
        return child, *_tag_values(stream, target.tag_names, tags)
    if len(tags) == 1 and tags[0].type.kind is Kind.UBIGINT:
        return child, (SqlExpr(column(GROUP), UBIGINT),), None
    if any(key.partitions for key in stream.keys):
        raise InvalidStatementError(
            f"{target.name} needs exactly one tag of type BIGINT UNSIGNED to hold the group", code=0x263F,
            hint="or say which tags to write with TAGS (names)")
    return child, tuple(_NULL for _ in tags), None


def _tag_values(
    stream: StreamContext, given: Sequence[str], tags: Sequence[Column]
) -> tuple[tuple[SqlExpr, ...], SqlExpr | None]:
    partitioned = any(key.partitions for key in stream.keys)
    known = {tag.name for tag in tags}
    for name in given:
        if name not in known:
            raise InvalidStatementError(f"tag {name} does not exist in {stream.statement.target.name}", code=0x260E)
    values: list[SqlExpr] = []
    for tag in tags:
        key = next((key for key in stream.keys if tag.name in key.names), None)
        if tag.name in given and partitioned and key is None:
            raise InvalidStatementError(f"tag {tag.name} is not the name of a PARTITION BY item", code=0x2602,
                                        hint="give the item that alias")
        values.append(_NULL if key is None or tag.name not in given else key.use())
    problem = problem_of(values, tags, "tag")
    made = tuple(value if value is _NULL else SqlExpr(converted(value, tag.type), tag.type)
                 for value, tag in zip(values, tags, strict=True))
    return made, None if problem is None else SqlExpr(problem, VARCHAR)


# --- what leaves Penstock ---------------------------------------------------------------------------------------


def _external(stream: StreamContext, target: ExternalTargetOptions, projections: Projections) -> BoundTarget:
    """Returns an external target. A key that is also selected is called as it is there."""
    name = stream.statement.target.name
    connection = require_connection(name.name, stream.catalog, stream.builder.place(name))
    if target.key_columns:
        raise InvalidStreamError("KEY is for streams that are computed again: results of this one are told apart by "
                                 "PARTITION BY and their time", hint="leave it out")
    keys = [key for key in stream.keys if key.partitions]
    selected: dict[str, str] = {}
    for item, value in projections[1:]:
        key = next((key for key in keys if _is_key(stream, item.expression, value, key)), None)
        if key is not None:
            selected.setdefault(key.column, item.name)
    others = [item.name for item, _ in projections if item.name not in selected.values()]
    names = [selected.get(key.column, name) for key, name in zip(keys, _short_names(keys, others), strict=True)]
    tags = tuple(Column(tag, key.value.type, tag) for key, tag in zip(keys, names, strict=True))
    external = replace(plan_external_sink(target, connection, names),
                      on_failure=stream.statement.options.on_failure or "pause")
    keyed = 1 if stream.query.window is None and stream.table.key_column is not None else None
    columns = tuple(Column(item.name, kind, item.name, n == keyed) for n, ((item, _), kind) in enumerate(
        zip(projections, _types(stream, projections, stream.precision), strict=True)))
    _check_names([*names, *(one.name for one in columns if one.name not in selected.values())])
    _check_key(stream, projections, columns)
    bound = Target(external.connection, external.place or external.kind, columns, tags, None,
                   tuple(key.use() for key in keys), 0, create=False, external=external)
    if external.format == "avro":
        avro_schema(sink_plan(bound, [key.stream_key for key in stream.keys]))  # names that it can't have are told now
    return BoundTarget(bound, tuple(value for _, value in projections))


def _is_key(stream: StreamContext, node: exp.Expression, value: SqlExpr, key: PartitionKey) -> bool:
    """Whether what is selected is a key of PARTITION BY. Two tables of a join may have a column of that name."""
    if not isinstance(node, exp.Column):
        return False
    if stream.join is None:
        return value == key.value or is_column(value.node, key.column)
    return key.item is not None and (
        (not node.table and node.name == key.item.alias) or fingerprint(node, stream.rows) == key.mark)


def _short_names(keys: Sequence[PartitionKey], others: Sequence[str]) -> list[str]:
    """Returns what keys are called where nothing says it: for `a.v` that is `v`, unless something else is called that.
    """
    short = [key.item.expression.name if key.item is not None and key.item.alias is None and isinstance(
        key.item.expression, exp.Column) else key.names[0] for key in keys]
    return [name if short.count(name) == 1 and name not in others else key.names[0]
            for name, key in zip(short, keys, strict=True)]
