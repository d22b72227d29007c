"""Calls with OVER: what is computed for each row of a result of the rows around it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.common.suggestions import did_you_mean
from penstock.planner.bind.aggregate_calls import ALL_ROWS, aggregate_call, taken_rows
from penstock.planner.bind.binder import Builder
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.scopes import (
    Mark,
    RowScope,
    fingerprint,
    is_query,
    replaced,
    unfiltered,
    vector_spec,
)
from penstock.planner.duckdb_sql.duckdb_tree import Tree, made
from penstock.planner.duckdb_sql.duckdb_tree import column as column_tree
from penstock.planner.duckdb_sql.pieces import ordered
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.grouped_call import GroupedCall
from penstock.planner.functions.table import name_in_plans, require
from penstock.planner.functions.taken_rows import in_aggregates, taking
from penstock.planner.functions.window import WINDOW_FUNCTIONS, window_function
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.group_values import RowKey
from penstock.planner.scalar.common_type import brought_to
from penstock.planner.scalar.duckdb_values import operand_tree
from penstock.sql.tree.statements import Select
from penstock.sql.tree.walking import copied
from penstock.sql.types import Kind, timestamp


def with_windows(select: Select, builder: Builder) -> Select:
    """Returns the query with the windows in place of the names that WINDOW gives them. Raises InvalidStatementError."""
    if not select.windows:
        return select
    known: dict[str, exp.Window] = {}

    def named(part: exp.Expression) -> exp.Expression | None:
        name = part.args.get("alias") if isinstance(part, exp.Window) else None
        if name is None:
            return None
        base = known.get(name.name)
        if base is None:
            raise _no_window(name, known, builder)
        if part.args.get("partition_by") or (part.args.get("order") is not None and base.args.get("order") is not None):
            raise builder.error(f"the window {name.name} says that already", part)
        own = {key: value for key, value in part.args.items() if value and key != "alias"}
        found = exp.Window(**{**copied(base).args, **own})
        found.meta.update(part.meta)
        return found

    for each in select.windows:
        window = replaced(each.window, named)
        assert isinstance(window, exp.Window)
        known[each.name] = window
    return select.with_changes(
        items=tuple(item.with_changes(expression=replaced(item.expression, named)) for item in select.items),
        qualify=None if select.qualify is None else replaced(select.qualify, named),
        order_by=tuple(item.with_changes(expression=replaced(item.expression, named)) for item in select.order_by))


@dataclass(slots=True)
class OverCalls:
    """The calls of a query with OVER, each once, as columns of its rows; what they are written as is for EXPLAIN."""

    columns: dict[Mark, Computed] = field(default_factory=dict)
    written: list[exp.Expression] = field(default_factory=list)

    def value(self, node: exp.Window, scope: RowScope) -> SqlExpr:
        """Returns the column of a call; raises InvalidStatementError for what can't be called so."""
        inner = next((part for part in node.walk(prune=is_query) if isinstance(part, exp.Window) and part is not node),
                     None)
        if inner is not None:
            raise scope.builder.error("a call with OVER can't be within another", inner, hint="write a sub-query")
        mark = fingerprint(node, scope)
        found = self.columns.get(mark)
        if found is None:
            found = self.columns[mark] = Computed(f"#over{len(self.columns)}", _computed(node, scope))
            self.written.append(node)
        return SqlExpr(column_tree(found.name), found.value.type)


class OverScope(RowScope):
    """Names in the result of a query, which may have calls with OVER."""

    def __init__(self, rows: RowScope, clause: str) -> None:
        super().__init__(rows.relation, rows.builder, clause, rows.bounds)
        self.overs = OverCalls()

    def multiply(self, node: exp.Anonymous) -> None:
        """A result may have several rows for one."""

    def over(self, node: exp.Window) -> SqlExpr:
        return self.overs.value(node, self)


def _computed(node: exp.Window, scope: RowScope) -> SqlExpr:
    inner, nulls = node.this, None
    if isinstance(inner, exp.IgnoreNulls | exp.RespectNulls):
        inner, nulls = inner.this, type(inner)
    call = unfiltered(inner, scope.builder) if isinstance(inner, exp.Filter) else inner
    assert isinstance(call, exp.Anonymous)
    name = str(call.this).lower()
    window = _window(node, scope)
    if name in WINDOW_FUNCTIONS:
        order = call.args.get("order")
        if call is not inner or call.args.get("distinct") or (order is not None and nulls is not None):
            raise scope.builder.error(f"{name}() takes no FILTER, DISTINCT, or ORDER BY beside IGNORE NULLS", node)
        arguments = [compile_expression(argument, scope) for argument in call.expressions]
        if len(arguments) == 3:  # the value where there is no such row
            type_ = arguments[0].type
            other = brought_to(arguments[2], type_, scope.precision, scope.session.time_zone)
            arguments[2] = SqlExpr(other, type_)
        value = window_function(name, arguments)
        if nulls is not None:
            *others, last = value.node.expressions or [None]
            if last is None:
                raise scope.builder.error(f"{name}() looks at no value that could be NULL", node)
            value.node.set("expressions", [*others, made(nulls, this=last)])
        if order is not None:
            *others, last = value.node.expressions or [None]
            terms = [_ordered(term, compile_expression(term.this, scope).node) for term in order.expressions]
            value.node.set("expressions", [*others, made(exp.Order, this=last, expressions=terms)])
        return SqlExpr(window(value.node), value.type)
    spec = vector_spec(call)
    if spec is None or spec.aggregate is None or spec.multi_row or spec.needs_time or nulls is not None or (
            spec.selects is not None and not spec.selects.by_value):
        raise scope.builder.error(f"{name}() can't be computed over rows around each row", node,
                                  hint="write an aggregate such as avg(x), row_number(), lag(x) or first_value(x)")
    arguments = [ALL_ROWS if isinstance(argument, exp.Star) else compile_expression(argument, scope)
                 for argument in call.expressions]
    row = RowKey(SqlExpr(exp.Literal.number(0), timestamp(scope.precision)))
    found = aggregate_call("", name_in_plans(spec), arguments, row, call, precision=scope.precision,
                           taken=taken_rows(call, lambda part: compile_expression(part, scope)))
    compute = require(found.function).aggregate
    assert compute is not None
    tree = compute(GroupedCall(name, found.arguments, found.type, row))
    if found.taken is not None:
        tree = taking(tree, found.taken, [argument.node for argument in found.arguments])
    return SqlExpr(in_aggregates(tree, window), found.type)


def _no_window(name: exp.Identifier, known: Collection[str], builder: Builder) -> InvalidStatementError:
    return builder.error(f"there is no window {name.name}", name, hint=did_you_mean(name.name, known))


def _window(node: exp.Window, scope: RowScope) -> _Window:
    if (name := node.args.get("alias")) is not None:
        raise _no_window(name, (), scope.builder)
    keys = [compile_expression(part, scope).node for part in node.args.get("partition_by") or ()]
    order, spec = node.args.get("order"), node.args.get("spec")
    bounds = {name: value if isinstance(value, str | exp.Var | None) else compile_expression(value, scope)
              for name, value in (spec.args if spec is not None else {}).items()}
    # Intervals are added to times of DuckDB's own.
    intervals = any(isinstance(bound, SqlExpr) and bound.type.kind is Kind.OTHER for bound in bounds.values())
    terms = []
    for term in order.expressions if order is not None else ():
        value = compile_expression(term.this, scope)
        terms.append(_ordered(term, operand_tree(value, scope.session.time_zone) if intervals else value.node))
    frame = {name: bound.node if isinstance(bound, SqlExpr) else bound for name, bound in bounds.items()}
    return _Window(keys, terms, made(exp.WindowSpec, **frame) if frame else None)


def _ordered(term: exp.Ordered, value: Tree) -> exp.Ordered:
    return ordered(value, descending=term.args["desc"], nulls_first=term.args["nulls_first"])


@dataclass(frozen=True, slots=True)
class _Window:
    keys: list[Tree]
    order: list[Tree]
    spec: exp.WindowSpec | None

    def __call__(self, function: Tree) -> Tree:
        return made(exp.Window, this=function, partition_by=self.keys or None,
                    order=made(exp.Order, expressions=self.order) if self.order else None, spec=self.spec, over="OVER")
