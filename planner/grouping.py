"""Aggregates over groups: which aggregate columns a query needs, and what names mean where each row is a group."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from penstock.planner.aggregates import ALL_ROWS, aggregate, companion, rows_by_value
from penstock.planner.binder import Builder, Relation, RelColumn
from penstock.planner.duckdb_tree import number, render
from penstock.planner.expressions import compile_expression
from penstock.planner.functions.table import check_call, require
from penstock.planner.grouped_call import RowKey
from penstock.planner.plan import SqlExpr
from penstock.planner.scopes import (
    NO_TIME_LINE,
    NOT_ALLOWED_FUNCTION,
    NOT_SINGLE_GROUP,
    WINDOW_NAMES,
    Key,
    RowScope,
    fingerprint,
    key_of,
)
from penstock.planner.timeseries import over, unit_of
from penstock.sql.statements import Duration
from penstock.sql.types import BIGINT, DOUBLE, timestamp

WITH_COMPANIONS = ("min", "max", "first", "last", "last_row", "mode")
NEEDS_TIME = ("first", "last", "last_row", "twa", "irate", "elapsed")
COUNTING = ("count", "hyperloglog")
COLS = "#cols"


@dataclass(slots=True)
class Aggregation:
    """The aggregate columns of one GROUP BY step, and the columns that its rows need before they are grouped.

    `rows` is what is grouped, `keys` SQL of the columns that separate time lines. `interval` tells whether windows
    have borders (`#ws`, `#we`) between which values are interpolated.
    """

    rows: Relation
    scope: RowScope
    builder: Builder
    line_keys: Sequence[str]
    interval: bool
    columns: dict[str, str] = field(default_factory=dict)
    row_columns: dict[str, str] = field(default_factory=dict)

    def add(self, sql: str) -> str:
        """Returns the name of the column with this aggregate."""
        return self.columns.setdefault(sql, f'"#a{len(self.columns)}"')

    def add_row_column(self, sql: str) -> str:
        """Returns the name of a column that is computed for every row before windows are assigned."""
        return self.row_columns.setdefault(sql, f'"#n{len(self.row_columns)}"')

    def select_list(self) -> list[str]:
        """Returns the aggregate columns as a SELECT lists them."""
        return [f"{sql} AS {name}" for sql, name in self.columns.items()]

    def arguments(self, name: str, arguments: Sequence[exp.Expression], node: exp.Expression) -> list[SqlExpr]:
        """Compiles the arguments of a call; `*` and `t.*` stand for rows."""
        compiled = []
        for argument in arguments:
            if isinstance(argument, exp.Star):
                compiled.append(ALL_ROWS)
            elif isinstance(argument, exp.Column) and isinstance(argument.this, exp.Star):
                compiled.append(self._rows_of(argument))
            else:
                compiled.append(compile_expression(argument, self.scope))
        if name != "count" and ALL_ROWS in compiled:
            raise self.builder.error(f"{name}(*) is not possible here", node)
        return compiled

    def _rows_of(self, star: exp.Column) -> SqlExpr:
        """What `count(t.*)` counts: rows in which the table `t` has a time."""
        qualifier = star.args["table"].name
        for time, _ in self.rows.times:
            if time.qualifier == qualifier:
                return time.use()
        if qualifier in self.rows.qualifiers:
            return ALL_ROWS
        raise self.builder.error(f"there is no table {qualifier} in FROM", star, code=0x2603)

    def call(self, name: str, arguments: Sequence[exp.Expression], node: exp.Expression) -> SqlExpr:
        """Returns the value of an aggregate as a column of the group."""
        compiled = self.arguments(name, arguments, node)
        time = self.rows.time
        if time is None and name in NEEDS_TIME:
            raise self.builder.error(f"{name}() needs a time line", node, code=NO_TIME_LINE,
                                     hint="let the sub-query return the primary timestamp")
        if name == "percentile" and (self.rows.table is None or self.rows.table.kind == "super"):
            raise self.builder.error("percentile() is for child and normal tables", node, code=NOT_ALLOWED_FUNCTION,
                                     hint="use apercentile()")
        if name in ("twa", "elapsed") and time is not None:
            check_call(require(name), [value.type for value in compiled], [value.constant for value in compiled],
                       precision=self.scope.precision, position=self.builder.position(node))
            return self._covered(name, compiled, time.use().sql, node)
        result = aggregate(name, compiled, self._row_key, node, precision=self.scope.precision,
                           position=self.builder.position(node))
        return SqlExpr(self.add(result.sql), result.type)

    def _covered(self, name: str, arguments: Sequence[SqlExpr], ts: str, node: exp.Expression) -> SqlExpr:
        """TWA and ELAPSED: sums over the stretches between a row and its neighbours, cut at the window's borders."""
        value = f"({arguments[0].sql})::DOUBLE"
        line = over(self.line_keys, self.rows.order)
        point = f"CASE WHEN {value} IS NOT NULL THEN {{'t': {ts}, 'v': {value}}} END"
        before = self.add_row_column(f"lag({point} IGNORE NULLS) {line}")
        slope_before = f"({value} - {before}.v) / ({ts} - {before}.t)"
        start = f"greatest({before}.t, \"#ws\")" if self.interval else f"{before}.t"
        head = f"CASE WHEN {value} IS NOT NULL AND {before}.t < {ts} THEN {{}} ELSE 0 END"
        lengths = head.format(f"{ts} - {start}")
        areas = head.format(f"({value} - {slope_before} * ({ts} - {start}) / 2) * ({ts} - {start})")
        if self.interval:
            after = self.add_row_column(f"lead({point} IGNORE NULLS) {line}")
            # TWA's windows end with their last instant, ELAPSED's with the next window's first.
            border = '("#we" - 1)' if name == "twa" else '"#we"'
            slope_after = f"({after}.v - {value}) / ({after}.t - {ts})"
            tail = (f"CASE WHEN {value} IS NOT NULL AND {after}.t >= \"#we\" AND {after}.t > {ts} "
                    f"THEN {{}} ELSE 0 END")
            lengths += f" + {tail.format(f'{border} - {ts}')}"
            areas += f" + {tail.format(f'({value} + {slope_after} * ({border} - {ts}) / 2) * ({border} - {ts})')}"
        if name == "elapsed":
            constant = arguments[1].constant if len(arguments) > 1 else None
            unit = unit_of(constant if isinstance(constant, Duration) else None, self.scope, node)
            return SqlExpr(self.add(f"sum({lengths})::DOUBLE / {unit}"), DOUBLE)
        single = f"arg_min({value}, {ts})"
        return SqlExpr(self.add(f"coalesce(sum({areas}) / nullif(sum({lengths}), 0), {single})"), DOUBLE)

    @property
    def _row_key(self) -> RowKey:
        """What orders the rows of a group."""
        time, keys = self.rows.time, [column.use() for column in self.rows.row_key]
        ts = time.use() if time is not None else SqlExpr(number(0), BIGINT)
        return RowKey(ts, keys[0] if keys else None, tuple(keys[1:]))

    def companion(self, name: str, arguments: Sequence[exp.Expression], node: exp.Expression,
                  column: SqlExpr) -> SqlExpr:
        """Returns a column of the row that the call `name` picks."""
        found_arguments = self.arguments(name, arguments, node)
        check_call(require(name), [value.type for value in found_arguments], position=self.builder.position(node))
        selected = found_arguments[0]
        time = self.rows.time
        if time is None and name in ("first", "last", "last_row"):
            raise self.builder.error(f"{name}() needs a time line", node, code=NO_TIME_LINE)
        if name == "mode":
            value = self.call(name, arguments, node).sql
            rows = self.add(render(rows_by_value(selected, column, self._row_key)))
            return SqlExpr(f"list_filter({rows}, lambda item: item.v = {value})[1].c", column.type)
        found = companion(name, selected, column, self._row_key)
        return SqlExpr(self.add(found.sql), found.type)

    def constant_of_group(self, column: RelColumn) -> SqlExpr:
        """Returns a column that has one value per group."""
        value = column.use()
        return SqlExpr(self.add(f"any_value({value.sql})"), value.type)


class GroupScope(RowScope):
    """Names where each row is a group: keys, window bounds, aggregates, and columns of a selected row."""

    def __init__(self, rows: RowScope, aggregation: Aggregation, keys: Sequence[Key],
                 selecting: exp.Anonymous | None, constants: Sequence[RelColumn], *, windowed: bool) -> None:
        super().__init__(rows.relation, rows.builder, "the SELECT list", rows.bounds)
        self.aggregation = aggregation
        self.keys = list(keys)
        self.selecting = selecting
        self.constants = constants
        self.windowed = windowed

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        key = key_of(name, self.keys) if qualifier is None else None
        if key is not None:
            return key.use()
        assert self.relation is not None
        return self._member(self.find(node), node)

    def _member(self, found: RelColumn | None, node: exp.Expression) -> SqlExpr:
        if found is None:
            raise self.builder.error(f"{node.name} is not available here", node)
        if any(found is column for column in self.constants):
            return self.aggregation.constant_of_group(found)
        if self.selecting is not None:
            call = self.selecting
            return self.aggregation.companion(str(call.this), call.expressions, call, found.use())
        raise self.builder.error(
            f"column {found.name} has many values per group", node, code=NOT_SINGLE_GROUP,
            hint="put it into GROUP BY or PARTITION BY, or into an aggregate function")

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        if name in WINDOW_NAMES and self.windowed:
            return window_column(name, self)
        if name == "tbname" or name in ("_rowts", "_c0"):
            key = key_of(name, self.keys)
            return key.use() if key is not None else self._member(self.find(node), node)
        return super().pseudo(name, node)

    def aggregate(self, name: str, arguments: list[exp.Expression], node: exp.Expression) -> SqlExpr:
        if name == "cols":
            return self._cols(arguments, node)
        return self.aggregation.call(name, arguments, node)

    def _cols(self, arguments: list[exp.Expression], node: exp.Expression) -> SqlExpr:
        """COLS(call, expression): the expression over the row that the call picks."""
        call = arguments[0]
        name = str(call.this) if isinstance(call, exp.Anonymous) else ""
        if name not in WITH_COMPANIONS or len(arguments) != 2:
            raise self.builder.error("COLS needs min, max, first, last, last_row or mode, and expressions", node,
                                     code=NOT_ALLOWED_FUNCTION, hint="write cols(last(x), y)")
        value = compile_expression(arguments[1], self.aggregation.scope)
        assert isinstance(call, exp.Anonymous)
        return self.aggregation.companion(name, call.expressions, call, value)


def window_column(name: str, scope: RowScope) -> SqlExpr:
    """Returns `_wstart`, `_wend` or `_wduration`."""
    if name == "_wduration":
        return SqlExpr('("#we" - "#ws")', BIGINT)
    return SqlExpr('"#ws"' if name == "_wstart" else '"#we"', timestamp(scope.precision))


def distinct_calls(calls: Sequence[exp.Anonymous], scope: RowScope) -> list[exp.Anonymous]:
    """Returns the calls without those that repeat an earlier one."""
    seen: dict[Hashable, exp.Anonymous] = {}
    for call in calls:
        seen.setdefault(fingerprint(call, scope), call)
    return list(seen.values())
