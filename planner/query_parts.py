"""Small things that all kinds of queries are planned with: planned queries, items, nodes of trees and expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from penstock.planner.binder import COLUMN_MARK, Builder, Tree
from penstock.planner.limits import Output
from penstock.planner.plan import PlanNode
from penstock.sql.dialect import expression_sql
from penstock.sql.statements import (
    CountWindow,
    EventWindow,
    IntervalWindow,
    Limit,
    OrderItem,
    SessionWindow,
    StateWindow,
    Window,
)
from penstock.sql.types import Precision


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


def ordinal(node: exp.Expression, count: int, builder: Builder) -> int | None:
    """Returns the 0-based position that an integer in ORDER BY, GROUP BY or PARTITION BY means, or None."""
    if not isinstance(node, exp.Literal) or node.is_string or not node.this.isdigit():
        return None
    number = int(node.this)
    if not 1 <= number <= count:
        raise builder.error(f"there is no column {number} in the SELECT list", node, code=0x2609,
                            hint=f"it has {count} column{'' if count == 1 else 's'}")
    return number - 1


def order_node(order: Sequence[OrderItem], limit: Limit | None, node: PlanNode) -> PlanNode:
    """Returns the node under what ORDER BY and LIMIT do to its rows."""
    if order:
        texts = [f"{text_of(item.expression)}{' desc' if item.descending else ''}" for item in order]
        node = PlanNode("Sort", (("by", " ".join(texts)),), (node,))
    if limit is not None:
        node = PlanNode("Limit", (("count", str(limit.count)), ("offset", str(limit.offset))), (node,))
    return node


def over_node(tree: Tree, operator: str, *properties: tuple[str, str]) -> Tree:
    """Returns the tree with one more operator above it."""
    return lambda: PlanNode(operator, tuple(properties), (tree(),))


def is_star(node: exp.Expression) -> bool:
    """Tells whether the node is `*` or `t.*`."""
    return isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star))


def marked(index: int, origin: exp.Expression) -> exp.Column:
    """Returns a reference to a column of `Relation.star` by its number."""
    column = exp.Column(this=exp.Identifier(this=f"{COLUMN_MARK}{index}", quoted=True))
    column.meta.update(origin.meta)
    return column


def column_reference(name: str) -> exp.Column:
    """Returns a reference to a column or pseudo column."""
    return exp.Column(this=exp.Identifier(this=name, quoted=False))


def call_of(name: str, arguments: list[exp.Expression], origin: exp.Expression) -> exp.Anonymous:
    """Returns a call that stands where `origin` stands."""
    call = exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])
    call.meta.update(origin.meta)
    return call


def text_of(node: exp.Expression) -> str:
    """Returns the expression as the dialect spells it."""
    return expression_sql(node)


def window_text(window: Window) -> str:
    """Returns the window clause as EXPLAIN prints it."""
    match window:
        case IntervalWindow():
            text = f"interval({window.interval}{'' if window.offset is None else f', {window.offset}'})"
            return text if window.sliding is None else f"{text} sliding({window.sliding})"
        case SessionWindow():
            return f"session({window.gap})"
        case StateWindow():
            return f"state({text_of(window.expression)})"
        case EventWindow():
            return f"event(start {text_of(window.start)} end {text_of(window.end)})"
        case CountWindow():
            return f"count({window.count}{'' if window.sliding is None else f', {window.sliding}'})"
