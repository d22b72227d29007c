"""Plans queries: SELECT and UNION statements to a logical plan, DuckDB SQL, the scans they need and result columns.

Each query becomes operators: rows, filtered and keyed; windows; groups; filled windows; projection; limits. Here
sources are bound, clauses are checked, and the kind of the query is told; `query_rows`, `query_groups` and
`query_interp` bind the kinds. `lower.duckdb` makes SQL of the plan.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sqlglot import exp

from penstock.common.errors import InvalidStatementError, LimitExceededError
from penstock.common.headroom import with_headroom
from penstock.planner.bind.binder import (
    STAR,
    Inner,
    Relation,
    RelColumn,
    bind_sides,
    children_relation,
    external_relation,
    numbered,
    resolve_table,
    scan_table,
)
from penstock.planner.bind.fields import with_fields
from penstock.planner.bind.joins import bind_join, bind_lateral
from penstock.planner.bind.limits import output_name
from penstock.planner.bind.over import with_windows
from penstock.planner.bind.query_parts import Planned, is_star, renamed
from penstock.planner.bind.row_functions import bind_function, is_about_rows, one_row
from penstock.planner.bind.scopes import ILLEGAL_AGGREGATE, NOT_ALLOWED_FUNCTION, columns_of, vector_calls
from penstock.planner.bind.select_list import expand_items
from penstock.planner.bind.user_functions import bind_user_functions
from penstock.planner.duckdb_sql.duckdb_tree import column as column_tree
from penstock.planner.duckdb_sql.duckdb_tree import parameters_of, render
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.operators import Operator, Project
from penstock.planner.logical.written import folded
from penstock.planner.lower.duckdb.aggregate_sql import users_aggregates
from penstock.planner.lower.duckdb.query_sql import lower, lower_in_steps
from penstock.planner.lower.duckdb.steps import computed_once, gathered
from penstock.planner.lower.tolerant_plan import tolerant_plan
from penstock.planner.query.batch_plan import BatchPlan, GivenScan
from penstock.planner.query.named_queries import QueryBuilder, named_queries, named_rows, shared_rows
from penstock.planner.query.query_context import QueryContext
from penstock.planner.query.query_groups import plan_groups
from penstock.planner.query.query_interp import plan_interp
from penstock.planner.query.query_rows import plan_picked, plan_rows, plan_series
from penstock.planner.query.row_limits import NEGATIVE_LIMIT
from penstock.planner.query.set_operation import plan_set_operation
from penstock.planner.query.values_query import plan_values
from penstock.planner.query.view_queries import plan_view, view_of
from penstock.planner.scalar.scalar_cast import to_text
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.sql.schema import CatalogView, Session
from penstock.sql.tree.statements import (
    ExternalSource,
    FunctionSource,
    IntervalWindow,
    JoinSource,
    Query,
    Select,
    SelectItem,
    SetOperation,
    Source,
    SubquerySource,
    TableSource,
    ValuesQuery,
)
from penstock.sql.types import VARCHAR, Kind, Precision

GROUP_LACKS_EXPRESSION = 0x260A
GROUP_AND_WINDOW = 0x2624
SLIMIT_WITHOUT_PARTITION = 0x2638


@with_headroom
def plan_query(
    statement: Query, catalog: CatalogView, session: Session, *, ordered: bool = True, of_stream: bool = False,
    tolerant: bool = False,
) -> BatchPlan:
    """Returns the plan of a query. `ordered`: rows have an order where the statement doesn't ask for one.

    `of_stream`: scans have all rows, with the names of their tables, since a task of a stream is given these.
    `tolerant`: what can't be computed is NULL.

    Raises NotFoundError for unknown databases, tables, columns and functions, InvalidStatementError for what makes
    no sense, each with TDengine's code where there is one, the place in the statement, and a hint, and
    LimitExceededError for too many views, or such as nest too deep.
    """
    builder = QueryBuilder(catalog, session, statement.source_text, statement.source_start, ordered, of_stream,
                           functions=bind_user_functions(statement, catalog, session))
    builder.plan_inner = partial(_inner, builder=builder)
    try:
        return _planned(statement, builder, tolerant=tolerant)
    except RecursionError:
        if not builder.views:
            raise
        # How deep a text nests, the parser bounds; how deep views make it, nobody else does.
        raise LimitExceededError("the views of the statement are nested too deeply",
                                 hint="store the rows of one of them in a table") from None


def _planned(statement: Query, builder: QueryBuilder, *, tolerant: bool) -> BatchPlan:
    planned = _plan(statement, builder)
    plan = tolerant_plan(_shown(planned)) if tolerant else _shown(planned)
    steps, body = gathered(*lower_in_steps(plan, shared_rows(builder)))
    return BatchPlan(
        plan=plan,
        steps=tuple((name, render(step)) for name, step in steps),
        body=render(body),
        scans=tuple(slot.scan() for slot in builder.scans),
        columns=tuple(ResultColumn(column.name, column.value.type, column.alias) for column in planned.columns),
        tables=tuple(builder.tables),
        functions=tuple(dict.fromkeys((*builder.functions, *users_aggregates(plan)))),
        once=computed_once(steps, body),
        views=builder.views,
        takes=parameters_of(body, *(step for _, step in steps)),
        given=tuple(GivenScan(slot.name, slot.instants, slot.children) for slot in builder.scans
                    if slot.instants or slot.children is not None),
    )


def _shown(planned: Planned) -> Operator:
    """Returns the plan, with results as text for which Arrow has no type."""
    values = [SqlExpr(column_tree(output_name(index)), column.value.type)
              for index, column in enumerate(planned.columns)]
    as_text = [value.type.kind is Kind.OTHER and value.type.arrow() == VARCHAR.arrow() for value in values]
    if not any(as_text):
        return planned.plan()
    return Project(planned.plan(), tuple(
        Computed(output_name(index), SqlExpr(to_text(value), VARCHAR) if text else value)
        for index, (value, text) in enumerate(zip(values, as_text, strict=True))))


def _plan(statement: Query, builder: QueryBuilder) -> Planned:
    if not statement.ctes:
        return _plan_unnamed(statement, builder)
    around = builder.ctes
    builder.ctes = named_queries(statement.ctes, builder, _plan)
    planned = _plan_unnamed(statement, builder)
    for cte in statement.ctes:
        builder.ctes[cte.name].planned()  # or what is wrong with one that nobody reads would not be found
    builder.ctes = around
    return planned


def _plan_unnamed(statement: Query, builder: QueryBuilder) -> Planned:
    if isinstance(statement, SetOperation):
        return plan_set_operation(statement, [_plan(query, builder) for query in statement.queries], builder)
    if isinstance(statement, ValuesQuery):
        return plan_values(statement, builder)
    return _plan_select(statement, builder)


def _inner(query: Query, builder: QueryBuilder) -> Inner:
    """Plans a query in an expression."""
    before = len(builder.planned)
    planned = _plan(query, builder)
    plan = planned.in_any_order()
    builder.functions += users_aggregates(plan)
    return Inner(lower(plan, shared_rows(builder, before), len(builder.around)), tuple(
        SqlExpr(column_tree(output_name(index)), column.value.type) for index, column in enumerate(planned.columns)),
        tuple(column.alias or column.name for column in planned.columns))


def _plan_select(select: Select, builder: QueryBuilder) -> Planned:
    builder.called, around, builder.aliases = None, builder.aliases, {}
    planned = _plan_named(select, builder)
    builder.aliases = around
    return planned


def _plan_named(select: Select, builder: QueryBuilder) -> Planned:
    """Plans a query; the names of its SELECT list mean something from WHERE on."""
    select = with_windows(select, builder)
    _check_limits(select)
    query = _bound_query(select, builder)
    builder.aliases = {item.alias: item.expression for item in select.items if item.alias is not None}
    _check_clauses(query)
    query.read_rows()
    if any(spec.instants for spec in query.functions):
        return plan_interp(query)
    if any(spec.along is not None for spec in query.functions):
        return plan_series(query)
    if any(spec.picks is not None for spec in query.functions):
        return plan_picked(query)
    if query.calls or select.window is not None or select.group_by:
        return plan_groups(query)
    return plan_rows(query)


# --- sources --------------------------------------------------------------------------------------------------


def _bound_query(select: Select, builder: QueryBuilder) -> QueryContext:
    relation = one_row(builder) if select.source is None else _bind(select.source, select, builder)
    if select.tags_only and (relation.table is None or not relation.table.tags):
        raise InvalidStatementError("SELECT TAGS needs a super table or a child table")
    select = with_fields(select, relation, builder)
    items = expand_items(select, relation, builder)
    if not items:
        raise builder.error("there are no columns that * could stand for", select.items[0].expression)
    query = QueryContext(select, builder, relation, items)
    between = isinstance(select.source, TableSource) and select.source.cuts is not None
    if _only_tags(query) and not between:
        relation = children_relation(relation, builder)
        query = QueryContext(select, builder, relation, expand_items(select, relation, builder))
    return query


def _bind(source: Source, select: Select, builder: QueryBuilder, precision: Precision = "ms") -> Relation:
    """`precision`: of timestamps of external tables."""
    if isinstance(source, TableSource):
        named = named_rows(source, builder)
        if named is not None:
            return _rows_of(named, source.alias or source.name.name, builder)
        view = view_of(source, builder)
        if view is not None:
            rows = _rows_of(plan_view(view, source, builder, _plan), source.alias or view.name, builder)
            return rows if source.alias else replace(rows, homes=((view.database, view.name),))
        if source.cuts is not None and select.tags_only:
            raise InvalidStatementError("SELECT TAGS reads no rows: it has no cuts")
        return scan_table(resolve_table(source.name, builder), source.alias, builder, source.cuts)
    if isinstance(source, FunctionSource):
        return bind_function(source, builder)
    if isinstance(source, ExternalSource):
        return external_relation(source, builder, precision)
    if isinstance(source, JoinSource):
        beside = _lateral(source.right)
        if beside is not None:
            return bind_lateral(source, beside, _bind(source.left, select, builder), builder)
        left, right = bind_sides(source, lambda side, found: _bind(side, select, builder, found))
        return bind_join(source, left, right, select.where, builder)
    planned = renamed(_plan(source.query, builder), source.columns, source.alias or "the sub-query")
    return _rows_of(planned, source.alias, builder)


def _lateral(source: Source) -> SubquerySource | None:
    """Returns what may name columns of what stands before it, as a sub-query."""
    if isinstance(source, FunctionSource) and is_about_rows(source):
        everything = Select((SelectItem(exp.Star(), None),), source)
        return SubquerySource(everything, source.alias or str(source.call.this), source.columns)
    return source if isinstance(source, SubquerySource) and source.lateral else None


def _rows_of(planned: Planned, alias: str | None, builder: QueryBuilder) -> Relation:
    """Returns the relation of a query's rows."""
    columns = tuple(
        RelColumn(column.alias or column.name, column.value.type, output_name(index), alias,
                  folded=None if column.alias else folded(column.name))
        for index, column in enumerate(planned.columns))
    time = next((columns[index] for index, column in enumerate(planned.columns) if column.is_time), None)

    def plan() -> Operator:
        # Rows are numbered as they are sorted by default.
        ordered = builder.keeps_order or relation.row_key[0].used
        return planned.plan() if ordered else planned.in_any_order()

    relation = numbered(Relation(
        columns=columns, star=columns, time=time, precision=planned.precision, plan=plan,
        qualifiers=(alias,) if alias else ()))
    return relation


def _only_tags(query: QueryContext) -> bool:
    """Whether rows don't matter: TAGS without columns, or distinct tags alone, which tables without rows have too."""
    select, relation = query.select, query.relation
    if select.tags_only:
        asked = [node for node in _asked(query) if STAR not in node.meta]
        return all(found is None or found.role != "column" for found in map(query.scope.find, asked))
    if relation.table is None or relation.table.kind != "super" or query.calls or select.window is not None or not (
            select.distinct or select.group_by) or query.has_queries:
        return False
    if select.where is not None and next(vector_calls(select.where), None) is not None:
        return False
    names = {column.name for column in relation.columns}
    aliases = {item.alias for item in query.items if item.alias}
    roles = []
    for column in _asked(query):
        if column.name in aliases and column.name not in names and STAR not in column.meta:
            continue
        found = query.scope.find(column)
        roles.append(found.role if found is not None else "column")
    return bool(roles) and all(role in ("tag", "tbname") for role in roles)


def _asked(query: QueryContext) -> list[exp.Column]:
    """The columns that a query names."""
    select = query.select
    nodes = [*query.result_nodes(), *(item.expression for item in (*select.group_by, *select.partition_by))]
    if select.where is not None:
        nodes.append(select.where)
    return [column for node in nodes for column in columns_of(node)]


# --- checks ---------------------------------------------------------------------------------------------------


def _check_limits(select: Select) -> None:
    if select.slimit is not None and (select.slimit.count < 0 or select.slimit.offset < 0):
        raise InvalidStatementError("SLIMIT and its offset must not be negative", code=NEGATIVE_LIMIT)
    if select.slimit is not None and not (select.partition_by or select.group_by):
        raise InvalidStatementError("SLIMIT needs PARTITION BY or GROUP BY", code=SLIMIT_WITHOUT_PARTITION)


def _check_clauses(query: QueryContext) -> None:
    select, builder = query.select, query.builder
    for call in query.calls:
        if select.source is None and any(map(is_star, call.expressions)):
            raise builder.error(f"{call.this}(*) needs FROM", call, code=ILLEGAL_AGGREGATE)
    if select.window is not None and select.group_by:
        raise InvalidStatementError("GROUP BY cannot stand next to a window", code=GROUP_AND_WINDOW,
                                    hint="use PARTITION BY")
    grouped = bool(select.group_by or select.partition_by or select.window)
    if grouped and query.relation.driver:
        item = next(iter((*select.group_by, *select.partition_by)), None)
        raise builder.error(
            "a WINDOW JOIN groups rows itself: no GROUP BY, PARTITION BY or window beside it",
            item.expression if item is not None else None, code=GROUP_AND_WINDOW,
            hint="make it a sub-query, and group that")
    grouped = grouped or query.relation.driver is not None or bool(query.calls)
    if select.having is not None and not grouped:
        raise builder.error("HAVING needs an aggregate, GROUP BY, PARTITION BY or a window", select.having,
                            code=GROUP_LACKS_EXPRESSION, hint="use WHERE for conditions on rows")
    interp = any(spec.instants for spec in query.functions)
    if not interp and (select.range or select.every):
        raise InvalidStatementError("RANGE and EVERY belong to INTERP", code=NOT_ALLOWED_FUNCTION)
    if not interp and select.fill is not None and not isinstance(select.window, IntervalWindow):
        raise InvalidStatementError("FILL belongs to INTERVAL and INTERP")
    for call, spec in zip(query.calls, query.functions, strict=True):
        if spec.category == "timeseries" and (select.window or select.group_by):
            raise builder.error(f"{spec.name}() cannot be used with a window or GROUP BY", call,
                                code=NOT_ALLOWED_FUNCTION, hint="use PARTITION BY")
        if spec.not_in_interval and isinstance(select.window, IntervalWindow):
            raise builder.error(f"{spec.name}() cannot be used with INTERVAL", call, code=NOT_ALLOWED_FUNCTION,
                                hint="use last()")
