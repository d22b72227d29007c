"""Plans queries: SELECT and UNION statements to DuckDB SQL, the scans they need, result columns and a tree.

Each query becomes a chain of CTEs: rows, filtered and keyed; windows; groups; filled grid; projection; limits.
Aggregates, windows, joins and fill have modules of their own; here is how they follow on each other, and which
combinations of clauses are refused.
"""

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

GROUP_LACKS_EXPRESSION = 0x260A
GROUP_AND_WINDOW = 0x2624
STATE_TYPE = 0x2628
STATE_TAG = 0x2629
SESSION_GAP = 0x262B
SESSION_COLUMN = 0x262C
COLUMN_COUNT = 0x2634
SLIMIT_WITHOUT_PARTITION = 0x2638
EXPANDING = ("first", "last", "last_row")


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned query inside of a statement: SQL that yields columns `o0`, `o1`, ..., and what is known of them."""

    sql: str
    columns: tuple[Output, ...]
    precision: Precision
    tree: Tree


@dataclass(frozen=True, slots=True)
class Item:
    """One column of the SELECT list after stars are expanded; `alias` is also set for plain columns."""

    expression: exp.Expression
    name: str
    alias: str | None


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
        position = _ordinal(item.expression, len(outputs), builder)
        if position is None and isinstance(item.expression, exp.Column):
            position = names.get(item.expression.name.lower())
        if position is None:
            text = _text(item.expression)
            position = names.get(text.lower())
        if position is None:
            raise builder.error("ORDER BY of a UNION must name a column of its result", item.expression, code=0x2602,
                                hint="columns are named by the first query")
        order.append(OrderTerm(position, None, item.descending, item.nulls_first))
    sql = finish(builder, name, outputs, order, limit=query.limit)
    inputs = (left.tree, right.tree)

    def tree() -> PlanNode:
        node = PlanNode("Union", (("all", "yes" if query.all else "no"),), tuple(side() for side in inputs))
        return _order_node(query.order_by, query.limit, node)

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


def _ordinal(node: exp.Expression, count: int, builder: Builder) -> int | None:
    """Returns the 0-based position that an integer in ORDER BY, GROUP BY or PARTITION BY means, or None."""
    if not isinstance(node, exp.Literal) or node.is_string or not node.this.isdigit():
        return None
    number = int(node.this)
    if not 1 <= number <= count:
        raise builder.error(f"there is no column {number} in the SELECT list", node, code=0x2609,
                            hint=f"it has {count} column{'' if count == 1 else 's'}")
    return number - 1


def _order_node(order: Sequence[OrderItem], limit: Limit | None, node: PlanNode) -> PlanNode:
    if order:
        texts = [f"{_text(item.expression)}{' desc' if item.descending else ''}" for item in order]
        node = PlanNode("Sort", (("by", " ".join(texts)),), (node,))
    if limit is not None:
        node = PlanNode("Limit", (("count", str(limit.count)), ("offset", str(limit.offset))), (node,))
    return node


# --- SELECT ---------------------------------------------------------------------------------------------------


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

    # -- the SELECT list -------------------------------------------------------------------------------------

    def _expand_items(self) -> list[Item]:
        items: list[Item] = []
        for item in self.select.items:
            node = item.expression
            if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
                items += self._expand_star(node)
                continue
            call = unwrapped(node)
            name = str(call.this) if isinstance(call, exp.Anonymous) else ""
            if name in EXPANDING and (len(call.expressions) > 1 or any(map(_is_star, call.expressions))):
                items += self._expand_call(call, name)
            elif name == "cols" and len(call.expressions) > 1:
                items += self._expand_cols(call)
            else:
                plain = node.name if isinstance(node, exp.Column) else None
                items.append(Item(node, item.name, item.alias if item.alias is not None else plain))
        return items

    def _expand_star(self, node: exp.Expression) -> list[Item]:
        qualifier = qualifier_of(node)
        if qualifier is not None and qualifier not in self.relation.qualifiers:
            raise self.builder.error(f"there is no table {qualifier} in FROM", node, code=0x2603)
        return [Item(_marked(index, node), column.name, column.name)
                for index, column in enumerate(self.relation.star) if qualifier in (None, column.qualifier)]

    def _expand_call(self, call: exp.Expression, name: str) -> list[Item]:
        items = []
        for argument in call.expressions:
            if not _is_star(argument):
                text = _text(argument)
                items.append(Item(_call(name, [argument], call), f"{name}({text})", None))
                continue
            qualifier = qualifier_of(argument)
            for index, column in enumerate(self.relation.star):
                if column.role == "column" and qualifier in (None, column.qualifier):
                    items.append(Item(_call(name, [_marked(index, argument)], call), f"{name}({column.name})", None))
        return items

    def _expand_cols(self, call: exp.Expression) -> list[Item]:
        items = []
        for argument in call.expressions[1:]:
            alias = argument.alias if isinstance(argument, exp.Alias) else None
            value = argument.this if isinstance(argument, exp.Alias) else argument
            name = alias if alias is not None else _text(value)
            items.append(Item(_call("cols", [call.expressions[0], value], call), name, name))
        return items

    def _result_nodes(self) -> list[exp.Expression]:
        nodes = [item.expression for item in self.items]
        if self.select.having is not None:
            nodes.append(self.select.having)
        return [*nodes, *(item.expression for item in self.select.order_by)]

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

    # -- rows ------------------------------------------------------------------------------------------------

    def _read_rows(self) -> None:
        """Filters the rows and adds the partition and group keys as columns."""
        select, builder, relation = self.select, self.builder, self.relation
        scope = RowScope(relation, builder, "WHERE")
        self.bounds = self._time_bounds(scope, relation.time)
        self.scope = RowScope(relation, builder, "WHERE", self.bounds)
        condition = compile_condition(select.where, self.scope) if select.where is not None else None
        for time, slot in relation.times:
            if slot is not None:
                slot.first_ts, slot.last_ts = self._time_bounds(scope, time)
        columns = ["*"]
        for item in (*select.partition_by, *select.group_by):
            columns.append(self._key(item))
        tree = relation.tree
        if condition is not None:
            text = _text(select.where) if select.where is not None else ""
            tree = _over(tree, "Filter", ("condition", text))
        if condition is not None or len(columns) > 1:
            where = f" WHERE {condition}" if condition is not None else ""
            name = builder.step("rows", f"SELECT {', '.join(columns)} FROM {relation.name}{where}")
            self.relation = relation.over(name, tree)
        self.scope = RowScope(self.relation, builder, "the SELECT list", self.bounds)
        self.constants = self._constant_columns()

    def _time_bounds(self, scope: RowScope, time: RelColumn | None) -> Bounds:
        if time is None:
            return None, None

        def constant(node: exp.Expression) -> float | int | None:
            if next(node.find_all(exp.Column), None) is not None:
                return None
            return time_constant(compile_expression(node, scope), scope.precision, scope.session)

        return time_bounds(self.select.where, lambda node: scope.find(node) is time, constant)

    def _key(self, item: PartitionItem) -> str:
        node = item.expression
        ordinal = _ordinal(node, len(self.items), self.builder)
        if ordinal is not None:
            node = self.items[ordinal].expression
        elif isinstance(node, exp.Column) and qualifier_of(node) is None and not any(
                column.name == node.name for column in self.relation.columns) and not is_pseudo(node, *TIME_NAMES):
            node = next((other.expression for other in self.items if other.alias == node.name), node)
        scope = self.scope.within("PARTITION BY" if item in self.select.partition_by else "GROUP BY")
        value = compile_expression(node, scope)
        column = f'"#g{len(self.keys)}"'
        is_time = self.relation.time is not None and scope.find(unwrapped(node)) is self.relation.time
        self.keys.append(Key(column, value.type, fingerprint(node, scope), item.alias, item.text, is_time))
        return f"{value.sql} AS {column}"

    def _constant_columns(self) -> list[RelColumn]:
        """The columns that have one value per group: the tags where a group is of one table, and driving rows."""
        relation, table = self.relation, self.relation.table
        if relation.driver is not None:
            side = '"#l' if relation.time is not None and relation.time.sql.startswith('"#l') else '"#r'
            return [column for column in relation.columns if column.sql.startswith(side)]
        tables = {fingerprint(_column("tbname"), self.scope)} if table is not None and table.kind != "system" else set()
        by_table = any(key.mark in tables for key in self.keys)
        if table is not None and (table.kind in ("child", "normal") or by_table):
            return [column for column in relation.columns if column.role in ("tag", "tbname")]
        return []

    @property
    def key_columns(self) -> list[str]:
        return [key.column for key in self.keys]

    # -- results ---------------------------------------------------------------------------------------------

    def _output(self, item: Item, scope: RowScope, compiled: SqlExpr) -> Output:
        return Output(item.name, compiled, is_time=self._is_time(item.expression, scope))

    def _is_time(self, node: exp.Expression, scope: RowScope) -> bool:
        """Whether a result column is a time line that a query around this one can use."""
        node = unwrapped(node)
        if is_pseudo(node, "_wstart", "_wend", "_irowts"):
            return True
        if isinstance(node, exp.Anonymous) and node.this in EXPANDING and len(node.expressions) == 1:
            return self._is_time(node.expressions[0], scope)
        if not isinstance(node, exp.Column):
            return False
        key = key_of(node.name, self.keys)
        if key is not None:
            return key.is_time
        return self.relation.time is not None and self.scope.find(node) is self.relation.time

    def _order_terms(self, outputs: Sequence[Output], compile_: Callable[[exp.Expression], SqlExpr]) -> list[OrderTerm]:
        marks = [fingerprint(item.expression, self.scope) for item in self.items]
        terms = []
        for item in self.select.order_by:
            node = unwrapped(item.expression)
            position = _ordinal(node, len(outputs), self.builder)
            if position is None and isinstance(node, exp.Column) and qualifier_of(node) is None:
                position = next((index for index, other in enumerate(self.items) if other.alias == node.name), None)
            if position is None:
                mark = fingerprint(node, self.scope)
                position = marks.index(mark) if mark in marks else None
            hidden = compile_(node) if position is None else None
            if hidden is not None and self.select.distinct:
                raise self.builder.error("ORDER BY of SELECT DISTINCT must name a column of the result", node,
                                         code=0x260B)
            terms.append(OrderTerm(position, hidden, item.descending, item.nulls_first))
        return terms

    def _finish(
        self, name: str, outputs: Sequence[Output], terms: Sequence[OrderTerm], tree: Tree, *,
        default: Sequence[str] = (), having: str | None = None, sort: bool = False,
    ) -> Planned:
        select = self.select
        sql = finish(
            self.builder, name, outputs, terms, distinct=select.distinct, having=having, limit=select.limit,
            slimit=select.slimit, partition=self.key_columns, per_partition=bool(select.partition_by),
            default=default, sort=sort)
        names = " ".join(output.name for output in outputs)

        def node() -> PlanNode:
            inner = tree()
            if having is not None and select.having is not None:
                inner = PlanNode("Filter", (("having", _text(select.having)),), (inner,))
            inner = PlanNode("Project", (("columns", names),), (inner,))
            if select.distinct:
                inner = PlanNode("Distinct", (), (inner,))
            if select.slimit is not None:
                inner = PlanNode("PartitionLimit", (("count", str(select.slimit.count)),
                                                    ("offset", str(select.slimit.offset))), (inner,))
            return _order_node(select.order_by, select.limit, inner)

        return Planned(sql, tuple(outputs), self.scope.precision, node)

    def _plan_constants(self) -> Planned:
        """SELECT without FROM."""
        select, builder = self.select, self.builder
        self.items = [Item(item.expression, item.name, item.alias) for item in select.items]
        for item in self.items:
            if _is_star(item.expression):
                raise builder.error("* needs FROM", item.expression)
        scope = RowScope(None, builder, "a query without FROM")
        self.scope = scope
        condition = compile_condition(select.where, scope) if select.where is not None else None
        outputs = [Output(item.name, compile_expression(item.expression, scope)) for item in self.items]
        terms = self._plain_order(outputs, scope)
        name = builder.step("one", "SELECT 1 AS \"#one\"")
        sql = finish(builder, name, outputs, terms, distinct=select.distinct, having=condition, limit=select.limit)
        names = " ".join(output.name for output in outputs)
        return Planned(sql, tuple(outputs), "ms", lambda: PlanNode("Project", (("columns", names),)))

    def _plain_order(self, outputs: Sequence[Output], scope: RowScope) -> list[OrderTerm]:
        self.relation_free = True
        return self._order_terms(outputs, lambda node: compile_expression(node, scope))

    def _plan_rows(self) -> Planned:
        """No function over several rows: one result row per row."""
        scope = _RowResultScope(self.scope, self.keys)
        if self.select.having is not None:
            raise self.builder.error("HAVING needs an aggregate", self.select.having, code=GROUP_LACKS_EXPRESSION)
        outputs = [self._output(item, scope, self._compiled(item.expression, scope)) for item in self.items]
        terms = self._order_terms(outputs, lambda node: self._compiled(node, scope))
        joined = isinstance(self.select.source, JoinSource)
        default = [*self.key_columns, *self.relation.order] if self.select.partition_by or joined else []
        return self._finish(self.relation.name, outputs, terms, self.relation.tree, default=default, sort=joined)

    def _compiled(self, node: exp.Expression, scope: RowScope) -> SqlExpr:
        return compile_expression(with_placeholders(node, self.keys, self.scope), scope)

    # -- functions that give rows ----------------------------------------------------------------------------

    def _plan_series(self) -> Planned:
        """DIFF, CSUM and their kin."""
        calls = distinct_calls(self.calls, self.scope)
        self._only_calls(calls, set(ROW_RULES))
        arguments = self.scope.within("an argument")
        checked = [checked_call(call, arguments) for call in calls]
        relation, values = time_series(checked, self.relation, self.key_columns, self.builder, arguments)
        names = " ".join(call.name for call in checked)
        return self._plan_called(calls, values, relation, _over(relation.tree, "Series", ("functions", names)))

    def _plan_picked(self) -> Planned:
        """TOP, UNIQUE and their kin: rows are picked per group or window, and shown."""
        calls = distinct_calls(self.calls, self.scope)
        if len(calls) > 1:
            raise self.builder.error(
                f"{calls[0].this}() gives several rows and cannot stand next to {calls[1].this}()", calls[1],
                code=NOT_ALLOWED_FUNCTION)
        call = checked_call(calls[0], self.scope.within("an argument"))
        keys = self.key_columns
        if self.select.window is not None:
            keys = self._assign_windows(borders=True)
            call = checked_call(calls[0], self.scope.within("an argument"))
        relation, value = picked_rows(call, self.relation, keys, self.builder, self.builder.session.now_ms)
        tree = _over(relation.tree, "Pick", ("function", call.name))
        return self._plan_called(calls, [value], relation, tree)

    def _only_calls(self, calls: Sequence[exp.Anonymous], names: set[str]) -> None:
        for call in calls:
            if call.this not in names:
                others = next(other for other in calls if other.this in names)
                raise self.builder.error(f"{call.this}() cannot stand next to {others.this}()", call,
                                         code=NOT_ALLOWED_FUNCTION)

    def _plan_called(
        self, calls: Sequence[exp.Anonymous], values: Sequence[SqlExpr], relation: Relation, tree: Tree
    ) -> Planned:
        known = {fingerprint(call, self.scope): value for call, value in zip(calls, values, strict=True)}
        self.relation = relation
        self.scope = RowScope(relation, self.builder, "the SELECT list", self.bounds)
        scope = _CalledScope(self.scope, self.keys, known, windowed=self.select.window is not None)
        outputs = [self._output(item, scope, self._compiled(item.expression, scope)) for item in self.items]
        terms = self._order_terms(outputs, lambda node: self._compiled(node, scope))
        having = None
        if self.select.having is not None:
            having = compile_condition(with_placeholders(self.select.having, self.keys, self.scope), scope)
        default = [*self.key_columns, *(['"#ws"'] if self.select.window else []), *relation.order]
        return self._finish(relation.name, outputs, terms, tree, default=default, having=having, sort=True)

    # -- windows ---------------------------------------------------------------------------------------------

    def _assign_windows(self, *, borders: bool) -> list[str]:
        """Puts rows into windows; returns the columns whose values tell windows apart.

        Rows get `#ws` (interval) or `#wid`; with `borders` also `#ws` and `#we`.
        """
        window, relation, builder = self.select.window, self.relation, self.builder
        keys = self.key_columns
        if relation.time is None:
            raise InvalidStatementError("a window needs a time line", code=NO_TIME_LINE,
                                        hint="let the sub-query return the primary timestamp")
        if isinstance(window, IntervalWindow):
            return self._assign_intervals(window, borders=borders)
        assert window is not None
        ts = relation.time.use().sql
        sql = self._row_window_sql(window)
        name = builder.step("windowed", sql)
        if borders:
            part = ", ".join((*keys, WINDOW_ID))
            name = builder.step("windowed", f"SELECT *, min({ts}) OVER (PARTITION BY {part}) AS \"#ws\", "
                                            f"max({ts}) OVER (PARTITION BY {part}) AS \"#we\" FROM {name}")
            length = self._true_for()
            if length is not None:
                name = builder.step("windowed", f"SELECT * FROM {name} WHERE \"#we\" - \"#ws\" >= {length}")
        self._move(relation.over(name))
        return [*keys, WINDOW_ID]

    def _move(self, relation: Relation) -> None:
        self.relation = relation
        self.scope = RowScope(relation, self.builder, "the SELECT list", self.bounds)

    def _resolved_interval(self, window: IntervalWindow) -> IntervalWindow:
        check_interval(window, self.scope.precision)
        if window.offset == "auto":
            return auto_offset(window, self.bounds[0], self.scope.precision, self.scope.session.time_zone)
        return window

    def _assign_intervals(self, window: IntervalWindow, *, borders: bool) -> list[str]:
        window = self._resolved_interval(window)
        assert self.relation.time is not None
        ts, precision, zone = self.relation.time.use().sql, self.scope.precision, self.scope.session.time_zone
        if window.sliding is None:
            start = interval_start_sql(ts, window, precision, zone)
        else:
            start = f"unnest({expand_windows_sql(ts, window, precision, zone)})"
        name = self.builder.step("windowed", f"SELECT *, {start} AS \"#ws\" FROM {self.relation.name}")
        if borders:
            end = interval_end_sql('"#ws"', window, precision, zone)
            name = self.builder.step("windowed", f"SELECT *, {end} AS \"#we\" FROM {name}")
        self._move(self.relation.over(name))
        return [*self.key_columns, '"#ws"']

    def _row_window_sql(self, window: SessionWindow | StateWindow | EventWindow | CountWindow) -> str:
        relation, builder = self.relation, self.builder
        keys, order = self.key_columns, relation.order
        match window:
            case SessionWindow():
                scope = self.scope.within("SESSION")
                if scope.find(unwrapped(window.column)) is not relation.time:
                    raise builder.error("SESSION needs the primary timestamp", window.column, code=SESSION_COLUMN)
                if window.gap.is_calendar or window.gap.in_units(scope.precision) <= 0:
                    raise InvalidStatementError(f"the gap {window.gap} of SESSION is not a positive fixed time",
                                                code=SESSION_GAP)
                return session_sql(relation.name, keys, order, window.gap.in_units(scope.precision))
            case StateWindow():
                return state_sql(relation.name, keys, order, self._state(window.expression))
            case EventWindow():
                scope = self.scope.within("EVENT_WINDOW")
                return event_sql(relation.name, keys, order, compile_condition(window.start, scope),
                                 compile_condition(window.end, scope))
        sliding = window.count if window.sliding is None else window.sliding
        if window.count < 2 or not 1 <= sliding <= window.count:
            raise InvalidStatementError(
                f"COUNT_WINDOW({window.count}{'' if window.sliding is None else f', {sliding}'}) is not possible",
                hint="the count must be at least 2, the slide from 1 to the count")
        columns = [compile_expression(node, self.scope.within("COUNT_WINDOW")).sql for node in window.columns]
        return count_sql(relation.name, keys, order, window.count, sliding, columns)

    def _state(self, node: exp.Expression) -> str:
        scope = self.scope.within("STATE_WINDOW")
        column = scope.find(unwrapped(node))
        if column is not None and column.role != "column":
            raise self.builder.error("STATE_WINDOW cannot be over a tag", node, code=STATE_TAG,
                                     hint="use PARTITION BY for tags")
        value = compile_expression(node, scope)
        if value.type.kind not in (*INTEGERS, Kind.BOOL, *STRINGS):
            raise self.builder.error(f"STATE_WINDOW cannot be over {value.type.sql()}", node, code=STATE_TYPE,
                                     hint="use an integer, a boolean or a string")
        return value.sql

    def _true_for(self) -> int | None:
        window = self.select.window
        if not isinstance(window, StateWindow | EventWindow) or window.true_for is None:
            return None
        if window.true_for.is_calendar:
            raise InvalidStatementError("TRUE_FOR cannot be in months or years")
        return window.true_for.in_units(self.scope.precision)

    # -- groups ----------------------------------------------------------------------------------------------

    def _plan_groups(self) -> Planned:
        select, builder = self.select, self.builder
        calls = distinct_calls(self.calls, self.scope)
        if select.window is not None and not calls:
            raise InvalidStatementError("a query with a window needs an aggregate or selection function",
                                        hint="add count(*), for example")
        interval = isinstance(select.window, IntervalWindow)
        aggregation = Aggregation(
            self.relation, self.scope.within("an argument"), builder, list(self.key_columns), interval)
        groups = list(self.key_columns)
        if select.window is None:
            if self.relation.driver is not None:
                groups.append(self.relation.driver)
                # A group is what a driving row met: its first and last rows are those of the other side's time.
                main = self.relation.time
                self._move(replace(self.relation, time=next(t for t, _ in self.relation.times if t is not main)))
            self._neighbours(aggregation)
        elif interval:
            self._neighbours(aggregation)
            groups = self._assign_windows(borders=False)
            self._add_ends(aggregation)
        else:
            groups = self._assign_windows(borders=False)
            aggregation.line_keys = groups
            self._neighbours(aggregation)
        aggregation.rows = self.relation
        aggregation.scope = self.scope.within("an argument")
        rows_tree = self.relation.tree
        # Plain columns come from the row that the one selecting function picks; LAST_ROWs all pick the same.
        one = len(calls) == 1 or (calls and all(call.this == "last_row" for call in calls))
        selecting = calls[0] if one and calls[0].this in WITH_COMPANIONS else None
        scope = GroupScope(self.scope, aggregation, self.keys, selecting, self.constants,
                           windowed=select.window is not None)
        having = self._existence(calls, aggregation)
        name = builder.step("groups", lambda: self._groups_sql(aggregation, groups, having))
        if select.window is not None:
            name = self._bounded(name)
        compiled = [self._compiled(item.expression, scope) for item in self.items]
        tree = _over(rows_tree, "Aggregate", *self._aggregate_properties(calls))
        if select.fill is not None and select.fill.mode != "none":
            compiled, name = self._filled(compiled, name, scope)
            tree = _over(tree, "Fill", ("mode", select.fill.mode))
        outputs = [self._output(item, scope, value) for item, value in zip(self.items, compiled, strict=True)]
        if "histogram" in self.functions:
            outputs = [replace(output, value=SqlExpr(f"unnest({output.value.sql})", output.value.type))
                       if any(call.this == "histogram" for call in vector_calls(item.expression)) else output
                       for item, output in zip(self.items, outputs, strict=True)]
        terms = self._order_terms(outputs, lambda node: self._compiled(node, scope))
        condition = None
        if select.having is not None:
            condition = compile_condition(with_placeholders(select.having, self.keys, self.scope), scope)
        default = groups if select.window is None else [*self.key_columns, '"#ws"']
        return self._finish(name, outputs, terms, tree, default=default, having=condition, sort=True)

    def _neighbours(self, aggregation: Aggregation) -> None:
        """Adds the step with columns that look at the rows before and after, which aggregates may ask for."""
        below = self.relation.name
        name = self.builder.step("lines", lambda: "SELECT " + ", ".join(
            ["*", *(f"{sql} AS {column}" for sql, column in aggregation.row_columns.items())]) + f" FROM {below}")
        self._move(self.relation.over(name))

    def _add_ends(self, aggregation: Aggregation) -> None:
        """Adds the ends of interval windows to the rows if an aggregate needs them there."""
        assert isinstance(self.select.window, IntervalWindow)
        window = self._resolved_interval(self.select.window)
        end = interval_end_sql('"#ws"', window, self.scope.precision, self.scope.session.time_zone)
        below = self.relation.name
        name = self.builder.step("windowed", lambda: "SELECT *" + (
            f", {end} AS \"#we\"" if aggregation.row_columns else "") + f" FROM {below}")
        self._move(self.relation.over(name))

    def _groups_sql(self, aggregation: Aggregation, groups: Sequence[str], having: str | None) -> str:
        columns = list(groups)
        if self.select.window is not None and not isinstance(self.select.window, IntervalWindow):
            assert self.relation.time is not None
            ts = self.relation.time.use().sql
            columns += [f"min({ts}) AS \"#ws\"", f"max({ts}) AS \"#we\""]
        columns += aggregation.select_list()
        sql = f"SELECT {', '.join(columns) or '1'} FROM {aggregation.rows.name}"
        if groups:
            sql += f" GROUP BY {', '.join(groups)}"
        return f"{sql} HAVING {having}" if having else sql

    def _existence(self, calls: Sequence[exp.Anonymous], aggregation: Aggregation) -> str | None:
        """The condition under which a group has a result row at all."""
        names = {str(call.this) for call in calls}
        if calls and names <= {"first", "last"}:
            values = [aggregation.arguments(str(call.this), call.expressions, call)[0].sql for call in calls
                      if len(call.expressions) == 1 and not _is_star(call.expressions[0])]
            return " OR ".join(f"count({value}) > 0" for value in values) or None
        grouped = self.keys or self.select.window is not None or self.relation.driver is not None
        if grouped or names & set(COUNTING):
            return None
        return "count(*) > 0"

    def _bounded(self, name: str) -> str:
        """Adds the windows' ends, and leaves out windows that are too short."""
        window, builder = self.select.window, self.builder
        if isinstance(window, IntervalWindow):
            end = interval_end_sql('"#ws"', self._resolved_interval(window), self.scope.precision,
                                   self.scope.session.time_zone)
            return builder.step("windows", f"SELECT *, {end} AS \"#we\" FROM {name}")
        length = self._true_for()
        if length is None:
            return name
        return builder.step("windows", f"SELECT * FROM {name} WHERE \"#we\" - \"#ws\" >= {length}")

    def _aggregate_properties(self, calls: Sequence[exp.Anonymous]) -> list[tuple[str, str]]:
        properties = []
        if self.select.window is not None:
            properties.append(("window", _window_text(self.select.window)))
        if self.keys:
            properties.append(("by", " ".join(key.text for key in self.keys)))
        shown = [self._shown(call) for call in calls]
        return [*properties, ("functions", " ".join(shown) or "none")]

    def _shown(self, call: exp.Expression) -> str:
        text = _text(call)
        for index, column in enumerate(self.relation.star):
            text = text.replace(f"`{COLUMN_MARK}{index}`", column.name)
        return text

    # -- FILL ------------------------------------------------------------------------------------------------

    def _filled(self, compiled: Sequence[SqlExpr], name: str, scope: GroupScope) -> tuple[list[SqlExpr], str]:
        """Adds windows without rows. Returns what the result columns are now, and the relation they are in."""
        fill, builder = self.select.fill, self.builder
        assert fill is not None
        assert isinstance(self.select.window, IntervalWindow)
        if fill.mode == "near":
            raise InvalidStatementError("FILL(NEAR) is for INTERP only")
        window = self._resolved_interval(self.select.window)
        precision, zone = scope.precision, scope.session.time_zone
        first, last = self.bounds
        if first is None or last is None:
            raise InvalidStatementError("FILL needs a time range in WHERE", code=FILL_RANGE,
                                        hint="write WHERE ts >= ... AND ts <= ...")
        if count_between(first, last, window, precision, zone) > MAX_FILLED:
            raise InvalidStatementError(f"FILL would make more than {MAX_FILLED:,} windows", code=FILL_RANGE,
                                        hint="shorten the time range or take longer windows")
        filling = [index for index, item in enumerate(self.items) if self._is_filled(item.expression)]
        constants = self._fill_values([compiled[index].type for index in filling], scope)
        columns = [FillColumn(f'"#f{number}"', compiled[index].type, constants[number] if constants else None)
                   for number, index in enumerate(filling)]
        shown = [*self.key_columns, '"#ws"', *(f"{compiled[index].sql} AS {column.name}"
                                               for column, index in zip(columns, filling, strict=True))]
        values = builder.step("values", f"SELECT {', '.join(shown)} FROM {name}")
        # With SLIDING, windows that start before the range hold its first instant.
        earliest = window_bounds(first, window, precision, zone)[0][0] if first <= last else first
        starts = starts_between_sql(earliest, last, window, precision, zone) if first <= last else "[]::BIGINT[]"
        grid = builder.step("grid", grid_sql(values, self.key_columns, starts, fill.mode))
        filled = builder.step("filled", filled_sql(grid, self.key_columns, columns, fill.mode))
        end = interval_end_sql('"#ws"', window, precision, zone)
        filled = builder.step("filled", f"SELECT *, {end} AS \"#we\" FROM {filled}")
        changed = list(compiled)
        for column, index in zip(columns, filling, strict=True):
            changed[index] = SqlExpr(column.name, column.type)
        return changed, filled

    def _is_filled(self, node: exp.Expression) -> bool:
        """Whether a result column has its value from rows; keys, constants and bounds are known without."""
        if next(vector_calls(node), None) is not None:
            return True
        for column in columns_of(with_placeholders(node, self.keys, self.scope)):
            if key_of(column.name, self.keys) is None and not is_pseudo(column, *WINDOW_NAMES):
                return True
        return False

    def _fill_values(self, types: Sequence[DataType], scope: RowScope) -> list[str]:
        """SQL of the constants of FILL(VALUE, ...), cast to the columns' types."""
        fill = self.select.fill
        assert fill is not None
        if fill.mode not in ("value", "value_f"):
            return []
        if len(fill.values) != len(types):
            raise InvalidStatementError(f"FILL({fill.mode.upper()}) needs {len(types)} values, not "
                                        f"{len(fill.values)}", hint="one for each column with a function")
        constants = RowScope(None, self.builder, "FILL")
        values = []
        for node, type_ in zip(fill.values, types, strict=True):
            value = compile_expression(node, constants)
            values.append(null_of(type_) if value.type.kind is Kind.NULL
                          else cast(value, type_, scope.precision, scope.session.time_zone).sql)
        return values

    # -- INTERP ----------------------------------------------------------------------------------------------

    def _plan_interp(self) -> Planned:
        select, builder, relation = self.select, self.builder, self.relation
        calls = distinct_calls(self.calls, self.scope)
        self._only_calls(calls, {"interp"})
        if select.window is not None or select.group_by:
            raise builder.error("interp() cannot be used with a window or GROUP BY", calls[0],
                                code=NOT_ALLOWED_FUNCTION, hint="use PARTITION BY")
        if relation.time is None:
            raise builder.error("interp() needs a time line", calls[0], code=NO_TIME_LINE)
        grid = self._interp_grid()
        checked = [checked_call(call, self.scope.within("an argument")) for call in calls]
        assert select.fill is not None
        mode = select.fill.mode
        types = [call.type for call in checked]
        constants: list[str] = []
        if select.fill.values:
            value_fill = replace(select, fill=replace(select.fill, mode="value"))
            constants = _SelectPlanner(value_fill, builder)._fill_values(types, self.scope)
        values = [InterpValue(call.arguments[0].sql, call.type, call.integer(1) == 1,
                              constants[index] if constants else None) for index, call in enumerate(checked)]
        ts = relation.order[0]
        name = builder.step("interp", interp_sql(relation.name, ts, self.key_columns, values, grid, mode))
        known = {fingerprint(call, self.scope): SqlExpr(f'"#i{index}"', checked[index].type)
                 for index, call in enumerate(calls)}
        scope = _InterpScope(self.scope, self.keys, known)
        outputs = [self._output(item, scope, self._compiled(item.expression, scope)) for item in self.items]
        terms = self._order_terms(outputs, lambda node: self._compiled(node, scope))
        tree = _over(relation.tree, "Interp", ("fill", mode), ("grid", f"{grid.first}..{grid.last}/{grid.step}"))
        return self._finish(name, outputs, terms, tree, default=[*self.key_columns, AT], sort=True)

    def _interp_grid(self) -> InterpGrid:
        select, precision = self.select, self.scope.precision
        if select.range is None or select.fill is None:
            raise InvalidStatementError("INTERP needs RANGE and FILL", code=NOT_ALLOWED_FUNCTION,
                                        hint="write RANGE(first, last) EVERY(step) FILL(mode)")
        first = self._instant(select.range.first)
        last = first if select.range.last is None else self._instant(select.range.last)
        reach = select.range.near.in_units(precision) if select.range.near is not None else None
        if select.every is None:
            if select.range.last is not None and first != last:
                raise InvalidStatementError("INTERP over a range needs EVERY", hint="write EVERY(1s), for example")
            return InterpGrid(first, first, 1, reach)
        step = 0 if select.every.is_calendar else select.every.in_units(precision)
        if step <= 0:
            raise InvalidStatementError(f"EVERY({select.every}) must be a fixed time of at least one unit",
                                        code=0x2615)
        if (last - first) // step > MAX_FILLED:
            raise InvalidStatementError(f"INTERP would make more than {MAX_FILLED:,} rows", code=FILL_RANGE)
        return InterpGrid(first, last, step, reach)

    def _instant(self, node: exp.Expression) -> int:
        scope = RowScope(None, self.builder, "RANGE")
        scope.precision = self.scope.precision
        value = time_constant(compile_expression(node, scope), scope.precision, scope.session)
        if value is None:
            raise self.builder.error("RANGE needs instants", node, code=0x2635,
                                     hint="write '2024-01-01 00:00:00' or a number")
        return int(value)


class _RowResultScope(RowScope):
    """Names in the result of a query over rows: columns, and the aliases of PARTITION BY."""

    def __init__(self, rows: RowScope, keys: Sequence[Key]) -> None:
        super().__init__(rows.relation, rows.builder, rows.clause, rows.bounds)
        self.keys = list(keys)

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        key = key_of(name, self.keys) if qualifier is None else None
        return key.use() if key is not None else super().column(name, qualifier, node)


class _CalledScope(_RowResultScope):
    """As before, with the values of the functions that gave the rows, and the bounds of their windows."""

    def __init__(self, rows: RowScope, keys: Sequence[Key], known: dict[object, SqlExpr], *, windowed: bool) -> None:
        super().__init__(rows, keys)
        self.known = known
        self.windowed = windowed

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        if name in WINDOW_NAMES and self.windowed:
            return window_column(name, self)
        return super().pseudo(name, node)

    def aggregate(self, name: str, arguments: list[exp.Expression], node: exp.Expression) -> SqlExpr:
        value = self.known.get(fingerprint(node, self))
        return value if value is not None else super().aggregate(name, arguments, node)


class _InterpScope(_CalledScope):
    """Names in the result of INTERP: keys, values at instants, and what is known of the instants."""

    def __init__(self, rows: RowScope, keys: Sequence[Key], known: dict[object, SqlExpr]) -> None:
        super().__init__(rows, keys, known, windowed=False)

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        key = key_of(name, self.keys) if qualifier is None else None
        if key is not None:
            return key.use()
        assert self.relation is not None
        find_column(self.relation, name, qualifier, node, self.builder)
        raise self.builder.error(f"column {name} has no value between rows", node, code=NOT_SINGLE_GROUP,
                                 hint=f"write interp({name}), or put it into PARTITION BY")

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        if name in INTERP_NAMES:
            return {"_irowts": SqlExpr(AT, timestamp(self.precision)), "_isfilled": SqlExpr(FILLED, BOOL),
                    "_irowts_origin": SqlExpr(ORIGIN, timestamp(self.precision))}[name]
        if name == "tbname":
            return self.column(name, None, node)
        return super().pseudo(name, node)


def _over(tree: Tree, operator: str, *properties: tuple[str, str]) -> Tree:
    return lambda: PlanNode(operator, tuple(properties), (tree(),))


def _is_star(node: exp.Expression) -> bool:
    return isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star))


def _marked(index: int, origin: exp.Expression) -> exp.Column:
    """A reference to a column of `Relation.star` by its number."""
    column = exp.Column(this=exp.Identifier(this=f"{COLUMN_MARK}{index}", quoted=True))
    column.meta.update(origin.meta)
    return column


def _column(name: str) -> exp.Column:
    return exp.Column(this=exp.Identifier(this=name, quoted=False))


def _call(name: str, arguments: list[exp.Expression], origin: exp.Expression) -> exp.Anonymous:
    call = exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])
    call.meta.update(origin.meta)
    return call


def _text(node: exp.Expression) -> str:
    return str(node.sql(dialect=Penstock))


def _window_text(window: Window) -> str:
    match window:
        case IntervalWindow():
            text = f"interval({window.interval}{'' if window.offset is None else f', {window.offset}'})"
            return text if window.sliding is None else f"{text} sliding({window.sliding})"
        case SessionWindow():
            return f"session({window.gap})"
        case StateWindow():
            return f"state({_text(window.expression)})"
        case EventWindow():
            return f"event(start {_text(window.start)} end {_text(window.end)})"
        case CountWindow():
            return f"count({window.count}{'' if window.sliding is None else f', {window.sliding}'})"
