"""Which tables a query reads, wherever they stand in it, and which queries an expression has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlglot import exp

from penstock.sql.tree.statements import (
    ExternalSource,
    Name,
    Query,
    Select,
    SetOperation,
    TableSource,
    ValuesQuery,
)


def tables_of(query: Query, named: frozenset[str] = frozenset()) -> Iterator[TableSource | ExternalSource]:
    """Yields each, in sub-queries and WITH too; not what WITH names, nor `named`, what it names around the query."""
    for cte in query.ctes:
        yield from tables_of(cte.query, named)
        named |= {cte.name}
    pending: list[Any] = [part for name, part in query.args.items() if name != "ctes"]
    while pending:
        match pending.pop():
            case TableSource(name=Name(database=None) as name, cuts=None) if name.name in named:
                pass
            case TableSource() | ExternalSource() as source:
                yield source
            case Select() | SetOperation() | ValuesQuery() as inner:
                yield from tables_of(inner, named)
            case list() as parts:
                pending += parts
            case exp.Expression() as part:
                pending += part.args.values()


def queries_in(expression: exp.Expression) -> Iterator[Query]:
    """Yields the queries of an expression, but not those within them."""
    for node in expression.walk(prune=lambda node: isinstance(node, Select | SetOperation)):
        if isinstance(node, Select | SetOperation):
            yield node
