"""TODO"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.binder import (
    COLUMN_MARK,
    Builder,
    Relation,
    RelColumn,
    Tree,
    children_relation,
    find_column,
    is_pseudo,
    qualifier_of,
    resolve_table,
    row_number_column,
    scan_table,
)
from penstock.planner.bounds import time_bounds, time_constant
from penstock.planner.expressions import common_type, compile_condition, compile_expression
from penstock.planner.fill import (
    FILL_RANGE,
    MAX_FILLED,
    FillColumn,
    filled_sql,
    grid_sql,
)
from penstock.planner.grouping import COUNTING, WITH_COMPANIONS, Aggregation, GroupScope, distinct_calls, window_column
from penstock.planner.interp import AT, FILLED, ORIGIN, InterpGrid, InterpValue, interp_sql
from penstock.planner.joins import bind_join
from penstock.planner.limits import OrderTerm, Output, finish
from penstock.planner.plan import BatchPlan, PlanNode, ResultColumn, SqlExpr
from penstock.planner.row_windows import WINDOW_ID, count_sql, event_sql, session_sql, state_sql
from penstock.planner.scalar_cast import cast, null_of
from penstock.planner.scopes import (
    INTERP_NAMES,
    NO_TIME_LINE,
    NOT_ALLOWED_FUNCTION,
    NOT_SINGLE_GROUP,
    TIME_NAMES,
    WINDOW_NAMES,
    Bounds,
    Key,
    RowScope,
    columns_of,
    fingerprint,
    key_of,
    unwrapped,
    vector_calls,
    vector_spec,
    with_placeholders,
)
from penstock.planner.timeseries import PICKING, ROW_RULES, checked_call, picked_rows, time_series
from penstock.planner.windows import (
    auto_offset,
    check_interval,
    count_between,
    expand_windows_sql,
    interval_end_sql,
    interval_start_sql,
    starts_between_sql,
    window_bounds,
)
from penstock.sql.dialect import Penstock
from penstock.sql.schema import CatalogView, Session
from penstock.sql.statements import (
    CountWindow,
    EventWindow,
    IntervalWindow,
    JoinSource,
    Limit,
    OrderItem,
    PartitionItem,
    Query,
    Select,
    SessionWindow,
    SetOperation,
    Source,
    StateWindow,
    SubquerySource,
    TableSource,
    Window,
)
from penstock.sql.types import BOOL, INTEGERS, STRINGS, DataType, Kind, Precision, timestamp
from penstock.planner.query_context import QueryContext
from penstock.planner.query_parts import Item, Planned, call_of, column_reference, is_star, marked, order_node, ordinal, over_node, text_of, window_text

GROUP_LACKS_EXPRESSION = 0x260A
GROUP_AND_WINDOW = 0x2624
COLUMN_COUNT = 0x2634
SLIMIT_WITHOUT_PARTITION = 0x2638


def plan_query(statement: Query, catalog: CatalogView, session: Session) -> BatchPlan:
    """Returns the plan of a query.

    Raises NotFoundError for unknown databases, tables, columns and functions, InvalidStatementError for what makes
    no sense, each with TDengine's code where there is one, the place in the statement, and a hint.
    """
    builder = Builder(catalog, session, statement.text)
    planned = _plan(statement, builder)
    return BatchPlan(
        sql=builder.render(planned.sql),
        scans=tuple(slot.scan() for slot in builder.scans),
        columns=tuple(ResultColumn(column.name, column.value.type) for column in planned.columns),
        tree=planned.tree(),
        tables=tuple(builder.tables),
    )


def _plan(query: Query, builder: Builder) -> Planned:
    if isinstance(query, SetOperation):
        return _plan_union(query, builder)
    return _SelectPlanner(query, builder).plan()


# --- UNION ----------------------------------------------------------------------------------------------------


def _plan_union(query: SetOperation, builder: Builder) -> Planned:
    left, right = _plan(query.left, builder), _plan(query.right, builder)
    if len(left.columns) != len(right.columns):
        raise InvalidStatementError(
            f"the queries of a UNION have {len(left.columns)} and {len(right.columns)} columns", code=COLUMN_COUNT,
            hint="let both return the same number of columns")
    types = [_union_type(a.value.type, b.value.type, left.precision)
             for a, b in zip(left.columns, right.columns, strict=True)]
    sides = [_converted(side, types, builder) for side in (left, right)]
    word = "UNION ALL" if query.all else "UNION"
    name = builder.step("united", f"SELECT * FROM {sides[0]} {word} SELECT * FROM {sides[1]}")
    outputs = [Output(column.name, SqlExpr(f"o{index}", types[index]), is_time=column.is_time)
               for index, column in enumerate(left.columns)]
    names = {output.name.lower(): index for index, output in reversed(list(enumerate(outputs)))}
    order = []
    for item in query.order_by:
        position = ordinal(item.expression, len(outputs), builder)
        if position is None and isinstance(item.expression, exp.Column):
            position = names.get(item.expression.name.lower())
        if position is None:
            text = text_of(item.expression)
            position = names.get(text.lower())
        if position is None:
            raise builder.error("ORDER BY of a UNION must name a column of its result", item.expression, code=0x2602,
                                hint="columns are named by the first query")
        order.append(OrderTerm(position, None, item.descending, item.nulls_first))
    sql = finish(builder, name, outputs, order, limit=query.limit)
    inputs = (left.tree, right.tree)

    def tree() -> PlanNode:
        node = PlanNode("Union", (("all", "yes" if query.all else "no"),), tuple(side() for side in inputs))
        return order_node(query.order_by, query.limit, node)

    return Planned(sql, tuple(outputs), left.precision, tree)


def _union_type(left: DataType, right: DataType, precision: Precision) -> DataType:
    if left == right:
        return left
    result = common_type([left, right])
    return replace(result, precision=precision) if result.kind is Kind.TIMESTAMP else result


def _converted(side: Planned, types: Sequence[DataType], builder: Builder) -> str:
    name = builder.step("query", side.sql)
    columns = []
    for index, (column, target) in enumerate(zip(side.columns, types, strict=True)):
        value = SqlExpr(f"o{index}", column.value.type)
        if value.type.kind is Kind.NULL:
            text = null_of(target)
        elif value.type.kind is target.kind:
            text = value.sql
        else:
            text = cast(value, target, side.precision, builder.session.time_zone).sql
        columns.append(f"{text} AS o{index}")
    return builder.step("side", f"SELECT {', '.join(columns)} FROM {name}")

class _SelectPlanner:
    def __init__(self, select: Select, builder: Builder) -> None:
        self.select = select
        self.builder = builder
        self.keys: list[Key] = []
        self.constants: list[RelColumn] = []
        self.bounds: Bounds = (None, None)

    def plan(self) -> Planned:
        select = self.select
        self._check_limits()
        if select.source is None:
            return self._plan_constants()
        relation = self._bind(select.source)
        if select.tags_only and (relation.table is None or not relation.table.tags):
            raise InvalidStatementError("SELECT TAGS needs a super table or a child table")
        self.relation = relation
        self.items = self._expand_items()
        if select.tags_only or self._only_tags():
            self.relation = relation = children_relation(relation, self.builder)
            self.items = self._expand_items()
        self.calls = [call for node in self._result_nodes() for call in vector_calls(node)]
        self.functions = {str(call.this) for call in self.calls}
        self._check_clauses()
        self._read_rows()
        if "interp" in self.functions:
            return self._plan_interp()
        if self.functions & set(ROW_RULES):
            return self._plan_series()
        if self.functions & set(PICKING):
            return self._plan_picked()
        if self.calls or select.window is not None or select.group_by:
            return self._plan_groups()
        return self._plan_rows()

    # -- sources ---------------------------------------------------------------------------------------------

    def _bind(self, source: Source) -> Relation:
        if isinstance(source, TableSource):
            return scan_table(resolve_table(source.name, self.builder), source.alias, self.builder)
        if isinstance(source, SubquerySource):
            return self._bind_subquery(source)
        assert isinstance(source, JoinSource)
        left, right = self._bind(source.left), self._bind(source.right)
        return bind_join(source, left, right, self.select.where, self.builder)

    def _bind_subquery(self, source: SubquerySource) -> Relation:
        planned = _plan(source.query, self.builder)
        body = self.builder.step("query", planned.sql)
        number = row_number_column()
        name = self.builder.step("numbered", lambda: (
            f"SELECT *{', row_number() OVER () AS ' + number.sql if number.used else ''} FROM {body}"))
        columns = tuple(RelColumn(column.name, column.value.type, f"o{index}", source.alias)
                        for index, column in enumerate(planned.columns))
        time = next((columns[index] for index, column in enumerate(planned.columns) if column.is_time), None)
        return Relation(
            name=name, columns=columns, star=columns, time=time, precision=planned.precision, tree=planned.tree,
            row_key=(number,), qualifiers=(source.alias,) if source.alias else ())

    def _only_tags(self) -> bool:
        """Whether only distinct tags are asked for, which child tables without rows have as well."""
        select, table = self.select, self.relation.table
        if table is None or table.kind != "super" or select.window is not None or not (
                select.distinct or select.group_by):
            return False
        nodes = [*self._result_nodes(), *(item.expression for item in (*select.group_by, *select.partition_by))]
        nodes += [select.where] if select.where is not None else []
        if any(next(vector_calls(node), None) is not None for node in nodes):
            return False
        scope = RowScope(self.relation, self.builder, "the SELECT list")
        aliases = {item.alias for item in self.items if item.alias}
        found = []
        for node in nodes:
            for column in columns_of(node):
                known = any(c.name == column.name or column.name.startswith(COLUMN_MARK)
                            for c in self.relation.columns)
                if not known and column.name in aliases:
                    continue
                target = scope.find(column)
                found.append(target is not None and target.role in ("tag", "tbname"))
        return bool(found) and all(found)

    # -- checks ----------------------------------------------------------------------------------------------

    def _check_limits(self) -> None:
        select = self.select
        for limit, word in ((select.limit, "LIMIT"), (select.slimit, "SLIMIT")):
            if limit is not None and (limit.count < 0 or limit.offset < 0):
                raise InvalidStatementError(f"{word} and its offset must not be negative", code=0x2637)
        if select.slimit is not None and not (select.partition_by or select.group_by):
            raise InvalidStatementError("SLIMIT needs PARTITION BY or GROUP BY", code=SLIMIT_WITHOUT_PARTITION)

    def _check_clauses(self) -> None:
        select, builder = self.select, self.builder
        if select.window is not None and select.group_by:
            raise InvalidStatementError("GROUP BY cannot stand next to a window", code=GROUP_AND_WINDOW,
                                        hint="use PARTITION BY")
        grouped = bool(select.group_by or select.partition_by or select.window or self.relation.driver)
        if select.having is not None and not grouped:
            raise builder.error("HAVING needs GROUP BY, PARTITION BY or a window", select.having,
                                code=GROUP_LACKS_EXPRESSION, hint="use WHERE for conditions on rows")
        if "interp" not in self.functions and (select.range or select.every):
            raise InvalidStatementError("RANGE and EVERY belong to INTERP", code=NOT_ALLOWED_FUNCTION)
        if select.fill is not None and "interp" not in self.functions and not isinstance(
                select.window, IntervalWindow):
            raise InvalidStatementError("FILL belongs to INTERVAL and INTERP")
        for call in self.calls:
            spec = vector_spec(call)
            if spec is not None and spec.category == "timeseries" and (select.window or select.group_by):
                raise builder.error(f"{spec.name}() cannot be used with a window or GROUP BY", call,
                                    code=NOT_ALLOWED_FUNCTION, hint="use PARTITION BY")
            if spec is not None and spec.name == "last_row" and isinstance(select.window, IntervalWindow):
                raise builder.error("last_row() cannot be used with INTERVAL", call, code=NOT_ALLOWED_FUNCTION,
                                    hint="use last()")
