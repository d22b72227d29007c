"""DISTINCT, ORDER BY, FILTER and OVER of an aggregate, put into what DuckDB computes for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.duckdb_sql.duckdb_tree import Tree, all_of, called, made
from penstock.planner.duckdb_sql.folding import aggregate_names
from penstock.planner.duckdb_sql.pieces import ordered
from penstock.planner.logical.group_values import Taken


def in_aggregates(tree: Tree, change: Callable[[Tree], Tree]) -> Tree:
    """Returns a tree with its calls of aggregates changed, each with the FILTER that it has."""
    names = aggregate_names()

    def changed(node: Tree) -> Tree:
        inner = node.this if isinstance(node, exp.Filter) else node
        return change(node) if isinstance(inner, exp.Anonymous) and called(inner) in names else node

    found: Tree = tree.transform(changed)
    return found


def taking(tree: Tree, taken: Taken, arguments: Sequence[Tree]) -> Tree:
    """Returns what DuckDB computes for an aggregate of these arguments, of the rows that are taken.

    Raises InvalidStatementError for DISTINCT where it isn't computed of the arguments alone.
    """
    return in_aggregates(tree, lambda call: _taking(call, taken, [_bare(argument) for argument in arguments]))


def _taking(call: Tree, taken: Taken, arguments: Sequence[Tree]) -> Tree:
    inner = call.this if isinstance(call, exp.Filter) else call
    values = list(inner.expressions)
    order = [ordered(term.value.node, descending=term.descending, nulls_first=term.nulls_first)
             for term in taken.order]
    if values and isinstance(values[-1], exp.Order):
        order += [] if taken.distinct else values[-1].expressions
        values[-1] = values[-1].this
        order = order or [ordered(value) for value in values[:1]]
    if taken.distinct and values and not isinstance(values[0], exp.Distinct):
        if not all(isinstance(value, exp.Literal) or _bare(value) in arguments for value in values):
            raise InvalidStatementError("it takes no DISTINCT")
        values[0] = made(exp.Distinct, expressions=[values[0]])
    if order and values:
        values[-1] = made(exp.Order, this=values[-1], expressions=order)
    found: Tree = made(exp.Anonymous, this=inner.this, expressions=values)
    conditions = [call.expression.this] if isinstance(call, exp.Filter) else []
    if taken.condition is not None:
        conditions.append(taken.condition.node)
    if not conditions:
        return found
    return made(exp.Filter, this=found, expression=made(exp.Where, this=all_of(conditions)))


def _bare(value: Tree) -> Tree:
    while isinstance(value, exp.Cast | exp.Paren):
        value = value.this
    return value
