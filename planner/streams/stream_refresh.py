"""Streams of any query: what has no quicker way is computed again, by DuckDB, when the tables that it reads change."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial, reduce

from sqlglot import exp

from penstock.common.errors import (
    AlreadyExistsError,
    InvalidStatementError,
    InvalidStreamError,
    NotFoundError,
    NotSupportedError,
)
from penstock.common.suggestions import did_you_mean
from penstock.planner.bind.binder import is_pseudo, known_table
from penstock.planner.bind.query_parts import is_star
from penstock.planner.bind.scopes import QUERIES, vector_calls, vector_spec
from penstock.planner.bind.user_functions import function_of
from penstock.planner.query.batch_plan import BatchPlan
from penstock.planner.query.select import plan_query
from penstock.planner.query.timeless_plan import timeless_plan
from penstock.planner.query.view_queries import views_below
from penstock.planner.streams.dead_letters import dlq_table
from penstock.planner.streams.external_sink import avro_schema, plan_external_sink, require_connection
from penstock.planner.streams.result_key import TBNAME, ResultKey, key_of, place_of
from penstock.planner.streams.state_ttl import READS_AGAIN, check_no_ttl
from penstock.planner.streams.stream_groups import plan_kept_groups
from penstock.planner.streams.stream_time import zoned
from penstock.planner.streams.touched_keys import TouchedColumn, touched_columns
from penstock.planner.task_plans.column_names import OPERATION
from penstock.planner.task_plans.external_rows import IDENTITY
from penstock.planner.task_plans.plan_tree import PlanNode, names_in_tables
from penstock.planner.task_plans.stream_plan import (
    Grouping,
    Policies,
    RefreshPlan,
    SinkPlan,
    SourceColumn,
    SourcePlan,
    StreamPlan,
)
from penstock.sql.dialect.create_statements import tag_literal
from penstock.sql.dialect.parser import parse_query
from penstock.sql.schema import CatalogView, Column, Session, Table, TagValue, with_time
from penstock.sql.tree.read_tables import tables_of
from penstock.sql.tree.statements import (
    CountWindow,
    CreateStream,
    ExternalSource,
    ExternalTargetOptions,
    FunctionSource,
    IntervalWindow,
    JoinSource,
    Query,
    Select,
    SessionWindow,
    StreamOptions,
    SubquerySource,
    TableSource,
    ValuesQuery,
)
from penstock.sql.tree.walking import found_in, unwrapped
from penstock.sql.types import INTEGERS, VARCHAR, Kind, Precision, check_stored, timestamp

TEXT_LENGTH = 1024
"""How long texts may be of which the query doesn't say how long they are."""

_OF_ITS_OWN = ("timezone", "checkpoint_interval", "fill_history", "fill_history_async", "trigger", "late",
               "on_mismatch", "state_ttl")
_OF_TASKS = ("sink_rate", "sink_calls", "source_rate", "history_rate", "state_limit", "guarantee")
_OF_EMITTING = ("on_failure", "retry_time", "dlq")
_NOT_ALLOWED_FUNCTION = 0x265A
#: Types of tags whose values a condition tells apart as they are.
_TAGS = (*INTEGERS, Kind.BOOL, Kind.VARCHAR, Kind.NCHAR)


def refreshed_for(statement: CreateStream, catalog: CatalogView, session: Session) -> str | None:
    """Returns what a stream's query has that no task keeps up to date by itself; None if there is nothing."""
    views = views_below(statement.query, session.database or "", catalog)
    return _written(statement) or ("a view" if next(views, None) is not None else _table(statement, catalog, session))


def _written(statement: CreateStream) -> str | None:
    """Does what `refreshed_for` does, but for what names in FROM mean."""
    query = statement.query
    if not isinstance(query, Select):
        return "VALUES" if isinstance(query, ValuesQuery) else query.kind.upper()
    clauses: tuple[tuple[object, str], ...] = (
        (query.ctes, "WITH"), (query.group_by, "GROUP BY"), (query.having, "HAVING"), (query.qualify, "QUALIFY"),
        (query.distinct or query.distinct_on, "DISTINCT"), (query.windows, "WINDOW"), (query.order_by, "ORDER BY"),
        (query.limit, "LIMIT"), (query.slimit, "SLIMIT"))
    named = next((name for clause, name in clauses if clause), None)
    return named or _source(query) or _expression(query) or _aggregate(query, statement.options)


def _source(query: Select) -> str | None:
    if isinstance(query.source, SubquerySource):
        return "a sub-query"
    if isinstance(query.source, JoinSource) and isinstance(query.source.left, JoinSource):
        return "a join of more than two tables"
    for source in found_in(query, JoinSource, SubquerySource, FunctionSource, ValuesQuery):
        if isinstance(source, ValuesQuery):
            return "VALUES"
        if isinstance(source, FunctionSource):
            return f"{source.call.this}() in FROM"
        if isinstance(source, SubquerySource):
            if source.lateral or source.columns or not isinstance(source.query, Select) or not source.query.tags_only:
                return "LATERAL" if source.lateral else "a sub-query"
        elif source.using or source.natural:
            return "USING" if source.using else "NATURAL"
        elif source.nearest or (source.variant and source.kind == "inner"):
            return f"{source.variant.upper() or 'ASOF'} JOIN"
    return None


def _expression(query: Select) -> str | None:
    if not query.nests:
        return None
    for found in found_in(query, exp.Filter, exp.Window, exp.Anonymous, *QUERIES):
        if isinstance(found, exp.Filter | exp.Window):
            return "FILTER" if isinstance(found, exp.Filter) else "OVER"
        if isinstance(found, exp.Any | exp.All):
            return "ANY or ALL"
        if not isinstance(found, exp.Anonymous):
            return "a sub-query"
        if found.args.get("distinct") or found.args.get("order") is not None:
            return "DISTINCT or ORDER BY in a call"
    return None


def _aggregate(query: Select, options: StreamOptions) -> str | None:
    """Returns a function over several rows that tasks don't keep, or that has no window."""
    if options.trigger == "force_window_close" or isinstance(query.source, JoinSource):
        return None
    for item in query.items:
        for call in vector_calls(item.expression):
            spec = vector_spec(call)
            assert spec is not None
            if query.window is None and not spec.instants:
                return f"{spec.name}() without a window"
            if query.window is not None and not spec.in_stream and not spec.only_force_window_close:
                return f"{spec.name}()"
    return None


def _table(statement: CreateStream, catalog: CatalogView, session: Session) -> str | None:
    """Returns what there is about the rows that are read: what of them a query shows, a task may not."""
    query = statement.select
    source = query.source.left if isinstance(query.source, JoinSource) else query.source
    if not isinstance(source, TableSource):
        return None
    table = known_table(source.name, catalog, session)
    if table is None:
        return None
    if table.keyed:
        return "a table with a KEY"
    if not statement.materialized:
        return None
    if isinstance(query.source, JoinSource):
        return "a join"
    if query.window is not None:
        return _row_window(query, table)
    if table.kind == "super" or query.partition_by:
        return "rows of a super table"
    first = unwrapped(query.items[0].expression)
    by_time = is_star(first) or (isinstance(first, exp.Column) and first.name == table.time_column.name)
    return None if by_time else "rows without their time"


def _row_window(query: Select, table: Table) -> str | None:
    """Returns what tasks ask of windows of rows that a view, which has no options, need not have."""
    if isinstance(query.window, SessionWindow):
        by_end = any(is_pseudo(column, "_wend", "_wduration") for column in found_in(query, exp.Column))
        return "the end of SESSION" if by_end else None  # of a stream it is later, by the gap
    if isinstance(query.window, IntervalWindow):
        return None
    if isinstance(query.window, CountWindow):
        return "COUNT_WINDOW"
    if table.key_column is not None:
        return "windows of rows of a table with a composite key"
    by_table = any(isinstance(item.expression, exp.Column) and item.expression.name == TBNAME
                   for item in query.partition_by)
    return "windows of rows over tables" if table.kind == "super" and not by_table else None


def plan_refreshed(
    statement: CreateStream, catalog: CatalogView, session: Session, reason: str, refreshed: Collection[int] = ()
) -> StreamPlan:
    """Returns the plan of a stream of any query; `reason` is what `refreshed_for` says.
    `refreshed`: see StreamDefaults.

    Raises what planning the query raises, InvalidStreamError for a query whose answer depends on more than rows, and
    for options that say nothing for it, InvalidStatementError where rows of the answer can't be told apart.
    """
    _check_options(statement, reason)
    queries, batch = lasting_answer(statement, catalog, session)
    sources = _sources(queries, batch, catalog)
    dlq = None
    touched: Sequence[TouchedColumn] = ()
    if statement.target.external is not None:
        _check_not_given(statement, reason, _OF_TASKS)
        sink = _emitted(statement, statement.target.external, batch, sources[0], catalog, session)
        refresh = RefreshPlan(sources, reason)
        check_no_ttl(statement, "what leaves Penstock is compared with what was sent: no groups are kept")
        if statement.options.dlq is not None:
            dlq = replace(dlq_table(statement.options.dlq, sources[0].precision, catalog, session), errors=False,
                          failures=True)
    else:
        database, columns, repeats = _target(statement, batch, catalog, session)
        # Answers are computed together with those of the tables that they read, as of one cut.
        together = statement.materialized or any(source.storage_uid in refreshed for source in sources)
        kept = None if together else _kept_groups(statement, catalog, session, database, columns)
        if kept is not None:
            if kept.sink.single:
                check_no_ttl(statement, "all rows together are one group, which each of them changes")
            return kept
        _check_not_given(statement, reason, _OF_TASKS)
        check_no_ttl(statement, _why_no_groups(sources, together=together))
        groups, keys = _groups_of_tables(statement.query, columns, catalog, session)
        by_key = columns[0].primary_key or columns[0].type.kind is not Kind.TIMESTAMP
        touched = () if groups or not by_key else _lasting(touched_columns(batch.plan), batch)
        origins = _origins(touched, batch, sources)
        claimed = any(flagged for _, flagged in statement.target.columns or ()) and not all(
            columns[each.place].primary_key for each in touched)
        sink = SinkPlan(database, statement.target.name.name, columns, (), "", 0, create=True)
        refresh = RefreshPlan(sources, reason, groups, keys, repeats, tuple(each.place for each in touched), origins,
                              _steady(origins, sources, catalog), claimed)
    if refresh.groups:
        how = f"by groups of tables: {' '.join(refresh.groups)}"
    elif touched:
        how = f"by values of {' '.join(sink.columns[each.place].name for each in touched)}, for {reason}"
    else:
        how = f"as a whole, for {reason}"
    tree = PlanNode("Stream", (("trigger", "at_once"), ("refreshed", how), ("into", sink.text)), (batch.tree,))
    return StreamPlan(
        sources[0], Grouping((), colocated=False), refresh, "at_once", Policies(ignore_expired=False), sink,
        session.time_zone, tree, batch.functions, dlq)


def _why_no_groups(sources: Sequence[SourcePlan], *, together: bool) -> str:
    """Returns why tasks of a stream keep no groups that STATE_TTL might let go."""
    if together:
        return "the stream is computed as of one cut with the one whose result it reads, and keeps nothing of rows"
    if not all(source.timed for source in sources):
        return "rows of a table with a KEY have no time by which groups could go"
    return READS_AGAIN


def _lasting(touched: Sequence[TouchedColumn], batch: BatchPlan) -> Sequence[TouchedColumn]:
    """Returns those of such columns whose values rows of tables with a KEY keep, if there are any: then nobody needs to
    know what a row was."""
    tables = {scan.name: scan.table for scan in batch.scans}
    keys = {name: {column.name for column in table.key_columns} for name, table in tables.items() if table.keyed}
    lasting = [each for each in touched if all(name in keys.get(scan, {name}) for scan, name in each.origins)]
    return lasting or touched


def _origins(
    touched: Sequence[TouchedColumn], batch: BatchPlan, sources: Sequence[SourcePlan]
) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Returns the columns of each source that the values of such columns of the answer are, for each of its scans."""
    named = [dict(each.origins) for each in touched]
    found = []
    for source in sources:
        physical = {column.name: column.physical for column in source.columns}
        scans = [scan.name for scan in batch.scans if (scan.table.database, scan.table.name) == (
            source.database, source.table)] if named else []
        found.append(tuple(tuple(physical[each[scan]] for each in named) for scan in scans))
    return tuple(found)


def _steady(
    origins: Sequence[Sequence[Sequence[str]]], sources: Sequence[SourcePlan], catalog: CatalogView
) -> tuple[bool, ...]:
    """Returns for each source whether the columns that values are of belong to its KEY."""
    tables = [catalog.table(source.database, source.table) for source in sources]
    return tuple(table is not None and {name for scan in scans for name in scan} <= {
        column.physical for column in table.key_columns} for table, scans in zip(tables, origins, strict=True))


def _kept_groups(
    statement: CreateStream, catalog: CatalogView, session: Session, database: str, columns: tuple[Column, ...]
) -> StreamPlan | None:
    """Returns the plan of a stream whose tasks keep groups; None if the query is another one."""
    query = statement.query
    if not isinstance(query, Select) or not isinstance(query.source, TableSource):
        return None
    session = zoned(statement.options, session)
    batch = plan_query(query, catalog, session, ordered=False, of_stream=True)
    return plan_kept_groups(statement, batch, database, columns, session.time_zone)


def lasting_answer(
    statement: CreateStream, catalog: CatalogView, session: Session
) -> tuple[list[tuple[Query, str]], BatchPlan]:
    """Returns the query and those of the views that it reads, each with the database that is in use there; and the plan
    of its answer. Raises InvalidStreamError if that depends on more than rows.
    """
    views = views_below(statement.query, session.database or "", catalog)
    queries = [(statement.query, session.database or ""), *((parse_query(view.text), view.database) for view in views)]
    for query, _ in queries:
        _check_functions(query)
    batch = timeless_plan(partial(plan_answer, statement, catalog), session)
    if batch is None:
        raise InvalidStreamError("the query depends on the time at which it is asked: no stream can keep that up to "
                                 "date", hint="write times that don't move")
    return queries, batch


def plan_answer(
    statement: CreateStream, catalog: CatalogView, session: Session, query: Query | None = None
) -> BatchPlan:
    """Returns the plan of the query whose answer the result table is, or of a part of it.

    The catalog doesn't have that table.
    """
    return plan_query(query or statement.query, catalog, zoned(statement.options, session), ordered=False)


def _check_options(statement: CreateStream, reason: str) -> None:
    options, target = statement.options, statement.target
    own = (*_OF_ITS_OWN, *_OF_TASKS) if target.external is None else (*_OF_ITS_OWN, *_OF_TASKS, *_OF_EMITTING)
    others = [name for name in StreamOptions.parts if name not in own]
    others += [name for name, harmless in (("trigger", "at_once"), ("late", "recalc"), ("fill_history", True))
               if getattr(options, name) not in (None, harmless)]
    _check_not_given(statement, reason, others)
    if options.dlq is not None and options.on_failure != "dlq":
        raise InvalidStreamError(f"a stream with {reason} leaves no rows out: a DLQ is for what its target refuses",
                                 hint="ON_FAILURE DLQ table")
    if target.tag_definitions is not None or target.tag_names is not None or target.subtable is not None:
        raise InvalidStreamError(f"TAGS and SUBTABLE are not for a stream with {reason}",
                                 hint="its results are rows of one table, told apart by the KEY")
    if statement.notify is not None:
        raise NotSupportedError(f"NOTIFY is not for a stream with {reason}: it has no windows")


def _check_not_given(statement: CreateStream, reason: str, names: Sequence[str]) -> None:
    """Raises InvalidStreamError if one of these options is given."""
    given = next((name for name in names if getattr(statement.options, name) is not None), None)
    if given is not None:
        raise InvalidStreamError(f"{given.upper().replace('IGNORE_', 'IGNORE ')} is not for a stream with {reason}",
                                 hint="its result is at all times what the query says")


def _check_functions(query: Query) -> None:
    for call in found_in(query, exp.Anonymous):
        spec = function_of(call)
        if spec is not None and spec.volatile:
            raise InvalidStreamError(f"{spec.name}() is not allowed in a stream: its value differs between calls",
                                     code=_NOT_ALLOWED_FUNCTION)


def _sources(
    queries: Sequence[tuple[Query, str]], batch: BatchPlan, catalog: CatalogView
) -> tuple[SourcePlan, ...]:
    """Returns the tables that are read, each once, also those of which only tags are, with the columns that are.

    `queries`: that of the stream and those of the views that it reads, each with the database that is in use there.
    """
    read: dict[int, Table] = {}
    for source, database in [(source, database) for query, database in queries for source in tables_of(query)]:
        if isinstance(source, ExternalSource):
            raise InvalidStreamError(f"{source.connection} is another server: a stream cannot read its tables so")
        if source.cuts is not None:
            raise InvalidStreamError("a stream reads what comes after its creation: BETWEEN CUT is for queries")
        table = catalog.table(source.name.database or database, source.name.name)
        if table is None:
            continue  # a view, or what WITH names
        if table.kind == "system":
            raise InvalidStreamError(f"{table.name} is a system table: a stream cannot read it")
        read.setdefault(table.uid, table)
    if not read:
        raise InvalidStreamError("a stream reads at least one table")
    used = {(scan.table.uid, name) for scan in batch.scans for name in scan.columns}
    found = []
    for table in read.values():
        home = catalog.database(table.database)
        assert home is not None
        columns = tuple(SourceColumn(column.name, column.physical, column.type)
                        for column in table.columns if (table.uid, column.name) in used)
        found.append(SourcePlan(
            table.database, table.name, table.storage_uid, None, table.time_column.name, False, home.precision,
            columns, (), needs_children=False, sql="", late_sql=None, expired_sql=None))
    return tuple(found)


# --- the result table -----------------------------------------------------------------------------------------------


def _target(
    statement: CreateStream, batch: BatchPlan, catalog: CatalogView, session: Session
) -> tuple[str, tuple[Column, ...], bool]:
    """Returns the database of the result table, its columns, of which the KEY is flagged, and whether rows may be
    equal: then all columns are the KEY."""
    name = statement.target.name
    database = name.database or session.database
    known = None if database is None else catalog.database(database)
    if known is None:
        raise NotFoundError(f"database {database} does not exist" if database else "no database is in use", code=0x0388)
    if catalog.table(known.name, name.name) is not None:
        raise AlreadyExistsError(f"table {known.name}.{name.name} already exists", code=0x0603,
                                 hint="such a stream makes its own table: it would delete rows of others")
    given = statement.target.columns
    # Every table has a column tbname of its own.
    names = ["tbname_" if name == TBNAME else name for name in names_in_tables(batch.columns)]
    if given is not None:
        if len(given) != len(names):
            raise InvalidStatementError(f"{len(given)} columns are named, but the query has {len(names)}", code=0x263F)
        names = [each for each, _ in given]
    columns = _columns(batch, names, known.precision, TEXT_LENGTH)
    named = tuple(place for place, (_, flagged) in enumerate(given or ()) if flagged)
    key = ResultKey(named, timely=True) if named else key_of(statement.query, len(columns), catalog, session)
    if key is not None and 0 not in key.places and columns[0].type.kind is Kind.TIMESTAMP:
        if named:
            raise InvalidStreamError(f"{names[0]} is a time and not a part of the KEY, which must not be the first "
                                     "column", hint="put a column of the KEY first")
        key = None
    flagged = tuple(replace(column, primary_key=key is None or place in key.places)
                    for place, column in enumerate(columns))
    return known.name, with_time(flagged) if key is not None and key.timely else flagged, key is None


def _columns(batch: BatchPlan, names: Sequence[str], precision: Precision, text_length: int | None) -> list[Column]:
    """Returns the columns of the result under these names, with the types that they have when they are written."""
    duplicate = next((each for place, each in enumerate(names) if each in names[:place]), None)
    if duplicate is not None:
        raise InvalidStatementError(f"two columns of the result are called {duplicate}", code=0x263C,
                                    hint="give one another name: AS name")
    columns = []
    for column, own in zip(batch.columns, names, strict=True):
        check_stored(column.type)
        kind = VARCHAR if column.type.kind is Kind.NULL else column.type
        if kind.kind is Kind.TIMESTAMP:
            kind = timestamp(precision)
        if kind.kind in (Kind.VARCHAR, Kind.NCHAR, Kind.VARBINARY) and kind.length is None:
            kind = replace(kind, length=text_length)
        columns.append(Column(own, kind, own))
    return columns


def _emitted(
    statement: CreateStream, target: ExternalTargetOptions, batch: BatchPlan, source: SourcePlan,
    catalog: CatalogView, session: Session
) -> SinkPlan:
    """Returns where rows of the answer go that leave Penstock, with the columns of their KEY flagged."""
    connection = require_connection(statement.target.name.name, catalog)
    names = names_in_tables(batch.columns)
    columns = _columns(batch, names, source.precision, None)
    reserved = next((name for name in names if name in (OPERATION, IDENTITY)), None)
    if reserved is not None:
        raise InvalidStreamError(f"{reserved} is what each result has besides its columns",
                                 hint="give the column another name: AS name")
    unknown = next((name for name in target.key_columns if name not in names), None)
    if unknown is not None:
        raise NotFoundError(f"the result has no column {unknown}", code=0x2602, hint=did_you_mean(unknown, names))
    found = key_of(statement.query, len(columns), catalog, session)
    key = target.key_columns or tuple(names[place] for place in (() if found is None else found.places))
    if not key and len(columns) > 1:
        raise InvalidStreamError(
            "it can't be told which columns tell rows of the result apart, so none could be taken back",
            hint=f"name them: INTO CONNECTION {connection.name} (..., KEY ({names[0]}))")
    flagged = tuple(replace(column, primary_key=not key or column.name in key) for column in columns)
    external = replace(plan_external_sink(target, connection, key or names),
                       on_failure=statement.options.on_failure or "pause")
    sink = SinkPlan(connection.name, external.place or external.kind, flagged, (), "", 0, create=False,
                    external=external, by_key=True)
    if external.format == "avro":
        avro_schema(sink)  # names that it can't have are told now
    return sink


def _groups_of_tables(
    query: Query, columns: Sequence[Column], catalog: CatalogView, session: Session
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns the tags, or `tbname`, that tell groups apart whose answers are of their own child tables' rows alone,
    and the places of these keys in the result.

    `columns` are those of the result: groups are only told by their keys where these are the KEY.
    """
    nothing: tuple[tuple[str, ...], tuple[int, ...]] = ((), ())
    if not isinstance(query, Select) or not isinstance(query.source, TableSource) or not query.group_by:
        return nothing
    table = known_table(query.source.name, catalog, session)
    others = (query.ctes, query.nests, query.order_by, query.limit, query.slimit, query.distinct, query.distinct_on,
              query.windows, query.qualify, query.window, query.partition_by, query.range, query.every)
    if table is None or table.kind != "super" or any(others):
        return nothing
    kinds = {tag.name: tag.type.kind for tag in table.tags} | {"tbname": Kind.VARCHAR}
    groups, places = [], []
    for item in query.group_by:
        node = unwrapped(item.expression)
        if not isinstance(node, exp.Column) or node.table or kinds.get(node.name) not in _TAGS:
            return nothing
        place = place_of(node, query, frozenset(kinds))
        if place is None or unwrapped(query.items[place].expression) != node:
            return nothing
        groups.append(node.name)
        places.append(place)
    if set(places) != {place for place, column in enumerate(columns) if column.primary_key}:
        return nothing
    return tuple(groups), tuple(places)


def of_groups(query: Query, groups: Sequence[str], values: Sequence[Sequence[TagValue]]) -> Query:
    """Returns the query over the groups alone whose keys have these values."""
    assert isinstance(query, Select)
    columns = [exp.column(exp.to_identifier(name, quoted=True)) for name in groups]
    chosen = [reduce(_and, (exp.NullSafeEQ(this=column.copy(), expression=tag_literal(value))
                            for column, value in zip(columns, one, strict=True))) for one in values]
    either = reduce(lambda left, right: exp.Or(this=left, expression=right), chosen)
    return query.with_changes(where=either if query.where is None else _and(query.where.copy(), either))


def _and(left: exp.Expression, right: exp.Expression) -> exp.Expression:
    return exp.And(this=left, expression=right)
