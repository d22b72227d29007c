"""Small things that all kinds of queries are planned with: planned queries, items, nodes of trees and expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.bind.binder import STAR, Builder, Plan, RelColumn
from penstock.planner.bind.limits import Output
from penstock.planner.logical.written import text_of as text_of
from penstock.planner.logical.written import window_text as window_text
from penstock.sql.tree.walking import copied
from penstock.sql.types import Precision


@dataclass(frozen=True, slots=True)
class Planned:
    """A query inside of a statement: an operator with the columns `o0`, `o1`, ..., and what is known of them.

    `loose` has the same rows, not sorted where the statement doesn't ask for it; None: so has `plan`.
    """

    plan: Plan
    columns: tuple[Output, ...]
    precision: Precision
    loose: Plan | None = None

    @property
    def in_any_order(self) -> Plan:
        """The rows for who doesn't look at their order."""
        return self.loose or self.plan


def renamed(planned: Planned, names: Sequence[str], of: str) -> Planned:
    """Returns the query `of` with other names for the first of its columns. Raises as `check_names`."""
    columns = planned.columns
    check_names(names, len(columns), of)
    found = [replace(column, name=name, alias=name) for column, name in zip(columns, names, strict=False)]
    return replace(planned, columns=(*found, *columns[len(names):]))


def check_names(names: Sequence[str], columns: int, of: str) -> None:
    """Raises InvalidStatementError if these are more names than `of` has columns."""
    if len(names) > columns:
        raise InvalidStatementError(f"{of} has {columns} columns, and {len(names)} names for them")


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


def is_star(node: exp.Expression) -> bool:
    """Tells whether the node is `*` or `t.*`."""
    return isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star))


def starred(index: int, column: RelColumn, origin: exp.Expression) -> exp.Column:
    """Returns a reference to a column of `Relation.star`, by its number there."""
    reference = exp.Column(this=exp.Identifier(this=column.name, quoted=True))
    reference.meta.update(origin.meta)
    reference.meta[STAR] = index
    return reference


def column_reference(name: str) -> exp.Column:
    """Returns a reference to a column or pseudo column."""
    return exp.Column(this=exp.Identifier(this=name, quoted=False))


def call_of(name: str, arguments: list[exp.Expression], origin: exp.Expression) -> exp.Anonymous:
    """Returns a call that stands where `origin` stands."""
    call = exp.Anonymous(this=name, expressions=list(map(copied, arguments)))
    call.meta.update(origin.meta)
    return call
