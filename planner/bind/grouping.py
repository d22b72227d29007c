"""Aggregates over groups: which aggregate columns a query needs, and what names mean where each row is a group."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass, field

from sqlglot import exp

from penstock.common.errors import PenstockError
from penstock.planner.bind.aggregate_calls import ALL_ROWS, aggregate_call, taken_rows
from penstock.planner.bind.binder import Builder, Relation, RelColumn
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.over import OverScope
from penstock.planner.bind.query_parts import column_reference
from penstock.planner.bind.scopes import (
    NO_TIME_LINE,
    NOT_ALLOWED_FUNCTION,
    NOT_SINGLE_GROUP,
    TIME_NAMES,
    WINDOW_NAMES,
    GroupKey,
    RowScope,
    fingerprint,
    has_query,
    key_of,
    mark_of,
    require_vector,
    vector_spec,
    with_placeholders,
)
from penstock.planner.bind.timeseries import unit_of
from penstock.planner.duckdb_sql.duckdb_tree import column as column_tree
from penstock.planner.duckdb_sql.duckdb_tree import fragment, number
from penstock.planner.duckdb_sql.pieces import ignoring_nulls, over
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.pseudo import pseudo_column
from penstock.planner.functions.table import FunctionSpec, check_call, name_in_plans, require
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.group_values import (
    AggregateCall,
    Covered,
    GroupValue,
    KeysLeftOut,
    PickedColumn,
    RowKey,
    SharedValue,
)
from penstock.planner.logical.window_kinds import END, START
from penstock.sql.tree.statements import Duration
from penstock.sql.types import DOUBLE, timestamp


@dataclass(slots=True)
class Aggregation:
    """The aggregate columns of one grouping, and the columns that its rows need before they are grouped.

    `rows` is what is grouped, `line_keys` name the columns that separate time lines. `interval` tells whether windows
    have borders (START, END) between which values are interpolated.
    """

    rows: Relation
    scope: RowScope
    builder: Builder
    line_keys: Sequence[str]
    interval: bool
    columns: dict[Hashable, GroupValue] = field(default_factory=dict)
    row_columns: dict[Hashable, Computed] = field(default_factory=dict)

    def add(self, mark: Hashable, value: Callable[[str], GroupValue]) -> SqlExpr:
        """Returns the column with a value of groups, which is the same for the same mark; `value` is given its name."""
        found = self.columns.get(mark)
        if found is None:
            found = self.columns[mark] = value(f"#a{len(self.columns)}")
        return SqlExpr(column_tree(found.name), found.type)

    def add_row_column(self, mark: Hashable, value: Callable[[], SqlExpr]) -> SqlExpr:
        """Returns a column that is computed for every row before windows are assigned, the same for the same mark."""
        found = self.row_columns.get(mark)
        if found is None:
            found = self.row_columns[mark] = Computed(f"#n{len(self.row_columns)}", value())
        return SqlExpr(column_tree(found.name), found.value.type)

    def arguments(self, name: str, arguments: Sequence[exp.Expression], node: exp.Expression) -> list[SqlExpr]:
        """Compiles the arguments of a call; `*` and `t.*` stand for rows."""
        compiled = []
        for argument in arguments:
            if isinstance(argument, exp.Star):
                compiled.append(ALL_ROWS)
            elif isinstance(argument, exp.Column) and isinstance(argument.this, exp.Star):
                time = self._time_of(argument)
                compiled.append(ALL_ROWS if time is None else time.use())
            else:
                compiled.append(self.row_value(argument))
        if any(argument is ALL_ROWS for argument in compiled) and not require_vector(node).takes_rows:
            raise self.builder.error(f"{name}(*) is not possible here", node)
        return compiled

    def row_value(self, node: exp.Expression) -> SqlExpr:
        """Compiles an argument. With a sub-query, which may name columns, it is computed before rows are grouped."""
        if not has_query(node):
            return compile_expression(node, self.scope)
        scope = self.scope.within("the SELECT list")
        return self.add_row_column(fingerprint(node, self.scope), lambda: compile_expression(node, scope))

    def _time_of(self, star: exp.Column) -> RelColumn | None:
        """What `count(t.*)` counts: rows in which the table `t` has a time; None: all rows."""
        qualifier = star.args["table"].name
        for time, _ in self.rows.times:
            if time.qualifier == qualifier:
                return time
        if qualifier in self.rows.qualifiers:
            return None
        raise self.builder.error(f"there is no table {qualifier} in FROM", star, code=0x2603)

    def call(self, name: str, arguments: Sequence[exp.Expression], node: exp.Expression) -> SqlExpr:
        """Returns the value of an aggregate as a column of the group."""
        compiled = self.arguments(name, arguments, node)
        time, spec = self.rows.time, require_vector(node)
        if time is None and spec.needs_time:
            raise self.builder.error(f"{name}() needs a time line", node, code=NO_TIME_LINE,
                                     hint="let the sub-query return the primary timestamp")
        if spec.one_table and (self.rows.table is None or self.rows.table.kind == "super"):
            raise self.builder.error(f"{name}() is for child and normal tables", node, code=NOT_ALLOWED_FUNCTION,
                                     hint="use apercentile()")
        try:
            return self.add(fingerprint(node, self.scope), lambda column: self.value(column, spec, compiled, node))
        except PenstockError as error:
            error.position = error.position or self.builder.position(node)
            raise

    def value(
        self, name: str, spec: FunctionSpec, arguments: Sequence[SqlExpr], node: exp.Expression
    ) -> GroupValue:
        """Returns the column of groups that a call is."""
        time = self.rows.time
        if spec.by_stretches is not None and time is not None:
            if node.args.get("distinct") or node.args.get("order") is not None:
                raise self.builder.error(f"{spec.name}() takes no DISTINCT or ORDER BY", node)
            check_call(spec, [value.type for value in arguments], [value.constant for value in arguments],
                       precision=self.scope.precision)
            return self._covered(name, spec, arguments, time.use(), node)
        return self.aggregate_call(name, spec, arguments, node)

    def aggregate_call(
        self, name: str, spec: FunctionSpec, arguments: Sequence[SqlExpr], node: exp.Expression
    ) -> AggregateCall:
        """Returns a checked call of a function that needs nothing but the rows of a group."""
        row = self.row_key if spec.goes_by_order or not self.rows.is_numbered else RowKey(self._time)
        return aggregate_call(name, name_in_plans(spec), arguments, row, node, precision=self.scope.precision,
                              taken=taken_rows(node, self.row_value))

    @property
    def row_key(self) -> RowKey:
        """What orders the rows of a group."""
        keys = [column.use() for column in self.rows.row_key]
        return RowKey(self._time, keys[0] if keys else None, tuple(keys[1:]))

    @property
    def _time(self) -> SqlExpr:
        time = self.rows.time
        return time.use() if time is not None else SqlExpr(number(0), timestamp(self.rows.precision))

    def _covered(
        self, name: str, spec: FunctionSpec, arguments: Sequence[SqlExpr], ts: SqlExpr, node: exp.Expression,
    ) -> Covered:
        """TWA or ELAPSED, with the columns of rows that hold their neighbours."""
        line = (list(map(column_tree, self.line_keys)), list(map(column_tree, self.rows.order)))
        mark = fingerprint(node, self.scope)

        def neighbour(side: str) -> SqlExpr:
            point = fragment("CASE WHEN :value IS NOT NULL THEN {'t': :ts, 'v': :value} END", ts=ts.node,
                             value=fragment(":value::DOUBLE", value=arguments[0].node))
            return self.add_row_column((side, mark), lambda: SqlExpr(over(ignoring_nulls(side, point), *line), DOUBLE))

        before = neighbour("lag")
        after = neighbour("lead") if self.interval else None
        place = spec.unit_argument
        constant = arguments[place].constant if place is not None and place < len(arguments) else None
        unit = unit_of(constant if isinstance(constant, Duration) else None, self.scope, node)
        return Covered(name, spec.name, arguments[0], ts, before, after, unit)

    def companion(self, name: str, arguments: Sequence[exp.Expression], node: exp.Expression,
                  mark: Hashable, column: SqlExpr, written: exp.Expression) -> SqlExpr:
        """Returns a column, which the mark tells from others, of the row that the call `name` picks.

        `written` is the column as the statement has it.
        """
        found_arguments = self.arguments(name, arguments, node)
        spec = require(name)
        check_call(spec, [value.type for value in found_arguments], position=self.builder.position(node))
        selected = found_arguments[0]
        if self.rows.time is None and spec.needs_time:
            raise self.builder.error(f"{name}() needs a time line", node, code=NO_TIME_LINE)
        call = (fingerprint(node, self.scope), mark)

        def picked(added: str) -> PickedColumn:
            return PickedColumn(added, name, selected, column, self.row_key, written)

        if spec.selects_equal:
            value = self.call(name, arguments, node)
            rows = self.add(call, picked)
            return SqlExpr(fragment("list_filter(:rows, lambda item: item.v = :value)[1].c", rows=rows.node,
                                    value=value.node), column.type)
        return self.add(call, picked)

    def constant_of_group(self, column: RelColumn) -> SqlExpr:
        """Returns a column that has one value per group."""
        value = column.use()
        return self.add(("any", id(column)), lambda name: SharedValue(name, value))


class GroupScope(OverScope):
    """Names where each row is a group: keys, window bounds, aggregates, and columns of a selected row."""

    def __init__(self, rows: RowScope, aggregation: Aggregation, keys: Sequence[GroupKey],
                 selecting: exp.Anonymous | None, constants: Sequence[RelColumn], *, windowed: bool) -> None:
        super().__init__(rows, "the SELECT list")
        self.aggregation = aggregation
        self.keys = list(keys)
        self.selecting = selecting
        self.constants = constants
        self.windowed = windowed

    def without_selected_row(self) -> GroupScope:
        """Returns the same names but the columns of a selected row."""
        found = copy(self)
        found.selecting = None
        return found

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        key = key_of(node, self.keys) if qualifier is None else None
        if key is not None:
            return key.use()
        alias = self.alias(node)
        if alias is not None:
            return self.stand_in(name, with_placeholders(alias, self.keys, self.aggregation.scope))
        return self._member(self.find(node), node)

    def _member(self, found: RelColumn | None, node: exp.Expression) -> SqlExpr:
        if found is None:
            raise self.builder.error(f"{node.name} is not available here", node)
        if found.role == "outer":
            return found.use()
        key = next((key for key in self.keys if key.mark == mark_of(found)), None)
        if key is not None:
            return key.use()
        if any(found is column for column in self.constants):
            return self.aggregation.constant_of_group(found)
        if self.selecting is not None:
            call = self.selecting
            return self.aggregation.companion(
                str(call.this), call.expressions, call, mark_of(found), found.use(), node)
        raise self.builder.error(
            f"column {found.name} has many values per group", node, code=NOT_SINGLE_GROUP,
            hint="put it into GROUP BY or PARTITION BY, or into an aggregate function")

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        if name in WINDOW_NAMES and self.windowed:
            return window_column(name, self)
        if name == "tbname" or name in TIME_NAMES or self.has_column(name):
            key = key_of(node, self.keys)
            return key.use() if key is not None else self._member(self.find(node), node)
        return super().pseudo(name, node)

    def aggregate(self, name: str, arguments: list[exp.Expression], node: exp.Expression) -> SqlExpr:
        spec = require_vector(node)
        if spec.of_call:
            return self._cols(arguments, node)
        if spec.of_keys:
            return self._keys_left_out(arguments, node)
        return self.aggregation.call(name, arguments, node)

    def _keys_left_out(self, arguments: list[exp.Expression], node: exp.Expression) -> SqlExpr:
        marks = [fingerprint(argument, self.aggregation.scope) for argument in arguments]
        keys = {key.mark: key.column for key in self.keys}
        if not marks or not keys.keys() >= set(marks):
            raise self.builder.error("grouping() takes keys of GROUP BY", node, code=NOT_ALLOWED_FUNCTION)
        columns = tuple(keys[mark] for mark in marks)
        return self.aggregation.add(("grouping", columns), lambda name: KeysLeftOut(name, columns))

    def _cols(self, arguments: list[exp.Expression], node: exp.Expression) -> SqlExpr:
        """COLS(call, expression): the expression over the row that the call picks."""
        call = arguments[0]
        name = str(call.this) if isinstance(call, exp.Anonymous) else ""
        spec = vector_spec(call)
        if spec is None or not spec.has_companions or len(arguments) != 2:
            raise self.builder.error("COLS needs min, max, first, last, last_row or mode, and expressions", node,
                                     code=NOT_ALLOWED_FUNCTION, hint="write cols(last(x), y)")
        value = compile_expression(arguments[1], self.aggregation.scope)
        assert isinstance(call, exp.Anonymous)
        mark = fingerprint(arguments[1], self.aggregation.scope)
        return self.aggregation.companion(name, call.expressions, call, mark, value, arguments[1])


def window_column(name: str, scope: RowScope) -> SqlExpr:
    """Returns `_wstart`, `_wend` or `_wduration`."""
    return pseudo_column(name, scope.precision, column_tree(START), column_tree(END))


def constant_columns(relation: Relation, keys: Sequence[GroupKey], scope: RowScope) -> list[RelColumn]:
    """Returns the columns that have one value per group: the tags where a group is of one table, and driving rows."""
    table = relation.table
    if relation.driver is not None:
        return list(relation.driver)
    if table is None or table.kind == "system":
        return []
    of_one = table.kind in ("child", "normal")
    if keys and not of_one:
        name = fingerprint(column_reference("tbname"), scope)
        of_one = any(key.mark == name for key in keys)
    if of_one:
        return [column for column in relation.columns if column.role in ("tag", "tbname")]
    return []


def distinct_calls(calls: Sequence[exp.Anonymous], scope: RowScope) -> list[exp.Anonymous]:
    """Returns the calls without those that repeat an earlier one."""
    if len(calls) < 2:
        return list(calls)
    seen: dict[Hashable, exp.Anonymous] = {}
    for call in calls:
        seen.setdefault(fingerprint(call, scope), call)
    return list(seen.values())
