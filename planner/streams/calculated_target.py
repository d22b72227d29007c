"""Where streams with a trigger of their own write: the result table, its child tables, and the table of executions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.common.errors import InvalidStatementError, InvalidStreamError
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.stream import Target
from penstock.planner.lower.stages import TBNAME
from penstock.planner.lower.targets import always_fits, converted, problem_of
from penstock.planner.streams.stream_context import StreamContext
from penstock.planner.streams.stream_keys import PartitionKey
from penstock.planner.streams.stream_projections import Projections
from penstock.planner.streams.stream_scopes import PartitionScope
from penstock.sql.schema import CatalogView, Column, Database, Session, Table, database_missing
from penstock.sql.tree.fired_queries import END, FIRED, ID, ROWS, START, group_column
from penstock.sql.tree.statements import CreateStream
from penstock.sql.types import BIGINT, VARCHAR, DataType, Kind, Precision, timestamp

EXECUTED, TOOK, RESULTS, PROBLEM, TIMES = "executed", "took_us", "result_rows", "problem", "result_times"
CUT = "written_until"
_CUT_LENGTH = 8_000
TIMES_MAX = 16_000
PROBLEM_MAX = 1_024
TABLE_NAME_TAG = "tag_tbname"
_TBNAME_LENGTH = 270
_TEXT_LENGTH = 1_024


def fired_target(stream: StreamContext, projections: Projections) -> tuple[Target, tuple[SqlExpr, ...]]:
    """Returns the result table with the columns of windows, which is what sink tasks hand over, and their values.

    Raises NotFoundError and InvalidStatementError for a table that doesn't fit, InvalidStreamError for a result of
    windows that may not fit its column.
    """
    name = stream.statement.target.name
    database = target_database(stream.statement, stream.catalog, stream.session, stream.table.database)
    if database.precision != stream.precision:
        raise InvalidStreamError(
            f"the target's database has precision {database.precision}, the trigger's {stream.precision}",
            hint="write into a database of the same precision")
    existing = existing_target(stream.statement, stream.catalog, database, grouped=bool(stream.partition))
    columns = window_columns(stream.partition, stream.precision)
    for place, (_, value) in enumerate(projections[len(columns):], 1):
        kind = with_length(value.type)
        if not always_fits(value, kind):
            raise InvalidStreamError(f"a result may not fit {kind.sql()}")
        columns += (Column(value_column(place), kind, value_column(place)),)
    tags, values = _tags(stream, existing)
    child = None
    if stream.statement.target.subtable is not None:
        scope = PartitionScope(stream.keys, stream.rows, "OUTPUT_SUBTABLE")
        child = compile_expression(stream.statement.target.subtable, scope)
        if not child.type.is_string:
            raise InvalidStreamError("OUTPUT_SUBTABLE must be a VARCHAR expression", hint="cast it, or use concat")
    problem = problem_of(values, tags, "tag")
    made = tuple(SqlExpr(converted(value, tag.type), tag.type) for value, tag in zip(values, tags, strict=True))
    return Target(
        database.name, name.name, columns, tags, child, made, 0 if existing is None else existing.uid,
        existing is None and bool(name.name),
        tag_problem=None if problem is None else SqlExpr(problem, VARCHAR), exact_child=True,
        home=database.home, uid_shift=stream.uid_shift,
    ), tuple(value for _, value in projections)


def target_database(
    statement: CreateStream, catalog: CatalogView, session: Session, otherwise: str | None
) -> Database:
    """Returns the database of the result table. Raises NotFoundError, or InvalidStatementError if none is named."""
    name = statement.target.name.database or session.database or otherwise
    if name is None:
        raise InvalidStatementError("no database is in use", code=0x2616, hint="USE a database, or write db.table")
    found = catalog.database(name)
    if found is None:
        raise database_missing(name, catalog)
    return found


def existing_target(
    statement: CreateStream, catalog: CatalogView, database: Database, *, grouped: bool
) -> Table | None:
    """Returns the result table if it is there. Raises InvalidStreamError for a table of another kind."""
    name = statement.target.name.name
    existing = catalog.table(database.name, name) if name else None
    if existing is not None and (existing.keyed or existing.kind != ("super" if grouped else "normal")):
        raise InvalidStreamError(
            f"{existing.name} is no {'super' if grouped else 'normal'} table",
            hint="results of groups go to child tables of a super table, others to a normal table")
    return existing


def window_columns(keys: Sequence[PartitionKey], precision: Precision) -> tuple[Column, ...]:
    """Returns the columns of windows that fire: start, end, rows, and what tells their group."""
    kinds = [(START, timestamp(precision)), (END, timestamp(precision)), (ROWS, BIGINT)]
    kinds += [(group_column(place), with_length(key.type)) for place, key in enumerate(keys, 1)]
    return tuple(Column(name, kind, name) for name, kind in kinds)


def value_column(place: int) -> str:
    """Returns what the column for the n-th result of a window is called, from 1."""
    return f"value_{place}"


def executions_columns(windows: Sequence[Column]) -> tuple[Column, ...]:
    """Returns the columns of the table of executions, whose first are those of windows."""
    start, *others = windows
    kinds = ((FIRED, BIGINT), (EXECUTED, start.type), (TOOK, BIGINT), (RESULTS, BIGINT),
             (PROBLEM, DataType(Kind.VARCHAR, PROBLEM_MAX)), (TIMES, DataType(Kind.VARBINARY, TIMES_MAX)),
             (CUT, DataType(Kind.VARCHAR, _CUT_LENGTH)))
    return (start, Column(ID, BIGINT, ID, True), *others, *(Column(name, kind, name) for name, kind in kinds))


def with_length(kind: DataType) -> DataType:
    if kind.kind is Kind.NULL:
        return VARCHAR
    return replace(kind, length=kind.length or _TEXT_LENGTH) if kind.is_string or kind.kind is Kind.VARBINARY else kind


def _tags(stream: StreamContext, existing: Table | None) -> tuple[tuple[Column, ...], tuple[SqlExpr, ...]]:
    """Returns the tags of the result table and their values over the keys."""
    target = stream.statement.target
    if target.tag_definitions is not None and target.tag_values is not None:
        scope = PartitionScope(stream.keys, stream.rows, "TAGS")
        made = tuple(Column(tag.name, tag.type, tag.name) for tag in target.tag_definitions)
        values = tuple(compile_expression(value, scope) for value in target.tag_values)
    else:
        keys = stream.partition
        names = [TABLE_NAME_TAG if key.source == TBNAME else key.names[0] for key in keys]
        made = tuple(Column(name, DataType(Kind.VARCHAR, _TBNAME_LENGTH) if name == TABLE_NAME_TAG else
                            with_length(key.type), name) for name, key in zip(names, keys, strict=True))
        values = tuple(key.use() for key in keys)
    if len({tag.name for tag in made}) < len(made):
        raise InvalidStatementError("two tags of the result table have the same name", hint="name them with TAGS (...)")
    if existing is None:
        return made, values
    if [tag.name for tag in existing.tags] != [tag.name for tag in made]:
        raise InvalidStatementError(
            f"{existing.name} has the tags {', '.join(tag.name for tag in existing.tags)}, the stream's results "
            f"{', '.join(tag.name for tag in made)}")
    return existing.tags, values
