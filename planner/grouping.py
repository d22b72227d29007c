"""Aggregates over groups: which aggregate columns a query needs, and what names mean where each row is a group."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from penstock.planner.aggregates import ALL_ROWS, aggregate, companion, rows_by_value
from penstock.planner.binder import Builder, Relation, RelColumn
from penstock.planner.duckdb_tree import Tree, fragment, number
from penstock.planner.duckdb_tree import column as column_tree
from penstock.planner.expressions import compile_expression
from penstock.planner.functions.table import check_call, require
from penstock.planner.grouped_call import RowKey
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.operators import AggregateCall
from penstock.planner.logical.windows import END, START
from penstock.planner.lower.duckdb.pieces import ignoring_nulls, over
from penstock.planner.plan import SqlExpr
from penstock.planner.scopes import (
    NO_TIME_LINE,
    NOT_ALLOWED_FUNCTION,
    NOT_SINGLE_GROUP,
    TIME_NAMES,
    WINDOW_NAMES,
    Key,
    RowScope,
    fingerprint,
    key_of,
    mark_of,
)
from penstock.planner.timeseries import unit_of
from penstock.sql.statements import Duration
from penstock.sql.types import BIGINT, DOUBLE, timestamp

WITH_COMPANIONS = ("min", "max", "first", "last", "last_row", "mode")
NEEDS_TIME = ("first", "last", "last_row", "twa", "irate", "elapsed")
COUNTING = ("count", "hyperloglog")


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
    columns: dict[Hashable, AggregateCall] = field(default_factory=dict)
    row_columns: dict[Hashable, Computed] = field(default_factory=dict)

    def add(self, mark: Hashable, function: str, value: Callable[[], SqlExpr]) -> SqlExpr:
        """Returns the column with an aggregate, which is the same for the same mark."""
        found = self.columns.get(mark)
        if found is None:
            found = self.columns[mark] = AggregateCall(f"#a{len(self.columns)}", function, value())
        return SqlExpr(column_tree(found.name), found.value.type)

    def add_row_column(self, mark: Hashable, value: Callable[[], SqlExpr]) -> Tree:
        """Returns a column that is computed for every row before windows are assigned, the same for the same mark."""
        found = self.row_columns.get(mark)
        if found is None:
            found = self.row_columns[mark] = Computed(f"#n{len(self.row_columns)}", value())
        return column_tree(found.name)

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
                compiled.append(compile_expression(argument, self.scope))
        if name != "count" and any(argument is ALL_ROWS for argument in compiled):
            raise self.builder.error(f"{name}(*) is not possible here", node)
        return compiled

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
        time = self.rows.time
        if time is None and name in NEEDS_TIME:
            raise self.builder.error(f"{name}() needs a time line", node, code=NO_TIME_LINE,
                                     hint="let the sub-query return the primary timestamp")
        if name == "percentile" and (self.rows.table is None or self.rows.table.kind == "super"):
            raise self.builder.error("percentile() is for child and normal tables", node, code=NOT_ALLOWED_FUNCTION,
                                     hint="use apercentile()")
        mark = fingerprint(node, self.scope)
        if name in ("twa", "elapsed") and time is not None:
            check_call(require(name), [value.type for value in compiled], [value.constant for value in compiled],
                       precision=self.scope.precision, position=self.builder.position(node))
            ts = time.use().node
            return self.add(mark, name, lambda: self._covered(name, compiled, ts, node))
        return self.add(mark, name, lambda: aggregate(
            name, compiled, self._row_key, node, precision=self.scope.precision, position=self.builder.position(node)))

    @property
    def _row_key(self) -> RowKey:
        """What orders the rows of a group."""
        time, keys = self.rows.time, [column.use() for column in self.rows.row_key]
        ts = time.use() if time is not None else SqlExpr(number(0), BIGINT)
        return RowKey(ts, keys[0] if keys else None, tuple(keys[1:]))

    def _covered(self, name: str, arguments: Sequence[SqlExpr], ts: Tree, node: exp.Expression) -> SqlExpr:
        """TWA and ELAPSED: sums over the stretches between a row and its neighbours, cut at the window's borders."""
        value = fragment(":value::DOUBLE", value=arguments[0].leaf)
        start, end = column_tree(START), column_tree(END)
        line = (list(map(column_tree, self.line_keys)), list(map(column_tree, self.rows.order)))
        mark = fingerprint(node, self.scope)

        def point() -> Tree:
            return fragment("CASE WHEN :value IS NOT NULL THEN {'t': :ts, 'v': :value} END", value=value, ts=ts)

        before = self.add_row_column(("before", mark), lambda: SqlExpr(
            over(ignoring_nulls("lag", point()), *line), DOUBLE))
        slope = fragment("(:value - (:before).v) / (:ts - (:before).t)", value=value, before=before, ts=ts)
        since = fragment("greatest((:before).t, :start)", before=before, start=start) if self.interval else fragment(
            "(:before).t", before=before)
        length = fragment("(:ts - :since)", ts=ts, since=since)
        area = fragment("(:value - :slope * :length / 2) * :length", value=value, slope=slope, length=length)
        head = "CASE WHEN :value IS NOT NULL AND (:before).t < :ts THEN :covered ELSE 0 END"
        lengths, areas = (fragment(head, value=value, before=before, ts=ts, covered=covered)
                          for covered in (length, area))
        if self.interval:
            after = self.add_row_column(("after", mark), lambda: SqlExpr(
                over(ignoring_nulls("lead", point()), *line), DOUBLE))
            # TWA's windows end with their last instant, ELAPSED's with the next window's first.
            border = fragment("(:till - 1)", till=end) if name == "twa" else end
            slope = fragment("((:after).v - :value) / ((:after).t - :ts)", value=value, after=after, ts=ts)
            length = fragment("(:border - :ts)", border=border, ts=ts)
            area = fragment("(:value + :slope * :length / 2) * :length", value=value, slope=slope, length=length)
            tail = ("CASE WHEN :value IS NOT NULL AND (:after).t >= :till AND (:after).t > :ts THEN :covered "
                    "ELSE 0 END")
            tails = [fragment(tail, value=value, after=after, till=end, ts=ts, covered=covered)
                     for covered in (length, area)]
            lengths, areas = (fragment(":head + :tail", head=one, tail=other)
                              for one, other in zip((lengths, areas), tails, strict=True))
        if name == "elapsed":
            constant = arguments[1].constant if len(arguments) > 1 else None
            unit = unit_of(constant if isinstance(constant, Duration) else None, self.scope, node)
            return SqlExpr(fragment("sum(:lengths)::DOUBLE / :unit", lengths=lengths, unit=unit), DOUBLE)
        return SqlExpr(fragment(
            "coalesce(sum(:areas) / nullif(sum(:lengths), 0), arg_min(:value, :ts))", areas=areas, lengths=lengths,
            value=value, ts=ts), DOUBLE)

    def companion(self, name: str, arguments: Sequence[exp.Expression], node: exp.Expression,
                  mark: Hashable, column: SqlExpr) -> SqlExpr:
        """Returns a column, which the mark tells from others, of the row that the call `name` picks."""
        found_arguments = self.arguments(name, arguments, node)
        check_call(require(name), [value.type for value in found_arguments], position=self.builder.position(node))
        selected = found_arguments[0]
        if self.rows.time is None and name in ("first", "last", "last_row"):
            raise self.builder.error(f"{name}() needs a time line", node, code=NO_TIME_LINE)
        call = (fingerprint(node, self.scope), mark)
        if name == "mode":
            value = self.call(name, arguments, node)
            rows = self.add(call, name, lambda: SqlExpr(
                rows_by_value(selected, column, self._row_key), column.type))
            return SqlExpr(fragment("list_filter(:rows, lambda item: item.v = :value)[1].c", rows=rows.node,
                                    value=value.node), column.type)
        return self.add(call, name, lambda: companion(name, selected, column, self._row_key))

    def constant_of_group(self, column: RelColumn) -> SqlExpr:
        """Returns a column that has one value per group."""
        value = column.use()
        return self.add(("any", id(column)), "any_value", lambda: SqlExpr(
            fragment("any_value(:value)", value=value.node), value.type))


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
        key = key_of(node, self.keys) if qualifier is None else None
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
            return self.aggregation.companion(
                str(call.this), call.expressions, call, mark_of(found), found.use())
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
        mark = fingerprint(arguments[1], self.aggregation.scope)
        return self.aggregation.companion(name, call.expressions, call, mark, value)


def window_column(name: str, scope: RowScope) -> SqlExpr:
    """Returns `_wstart`, `_wend` or `_wduration`."""
    if name == "_wduration":
        return SqlExpr(fragment("(:till - :since)", till=column_tree(END), since=column_tree(START)), BIGINT)
    return SqlExpr(column_tree(START if name == "_wstart" else END), timestamp(scope.precision))


def distinct_calls(calls: Sequence[exp.Anonymous], scope: RowScope) -> list[exp.Anonymous]:
    """Returns the calls without those that repeat an earlier one."""
    seen: dict[Hashable, exp.Anonymous] = {}
    for call in calls:
        seen.setdefault(fingerprint(call, scope), call)
    return list(seen.values())
