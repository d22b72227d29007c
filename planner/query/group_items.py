"""GROUP BY with ALL, GROUPING SETS, ROLLUP and CUBE: plain expressions, and the sets of them that make groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

from sqlglot import exp

from penstock.planner.bind.binder import Builder
from penstock.planner.bind.query_parts import Item
from penstock.planner.bind.scopes import vector_calls
from penstock.sql.tree.statements import OrderItem, PartitionItem, Select
from penstock.sql.tree.walking import found_in, unwrapped

MAX_SETS = 1024
_Set = tuple[exp.Expression, ...]
_SETS = (exp.GroupingSets, exp.Rollup, exp.Cube)


def with_plain_groups(
    select: Select, items: Sequence[Item], builder: Builder
) -> tuple[Select, tuple[tuple[int, ...], ...] | None]:
    """Returns the query with plain expressions in GROUP BY and ORDER BY, and the sets of the former by their places.

    None: rows are grouped by all of them. Raises InvalidStatementError for more than MAX_SETS.
    """
    if _names_all(select.order_by):
        select = select.with_changes(order_by=tuple(
            OrderItem(exp.Literal.number(place + 1), item.descending, item.nulls_first)
            for item in select.order_by for place in range(len(items))))
    if _names_all(select.group_by):
        return select.with_changes(group_by=tuple(
            PartitionItem(item.expression, None, item.name) for item in items
            if not isinstance(item.expression, exp.Literal) and not found_in(item.expression, exp.Window)
            and next(vector_calls(item.expression), None) is None)), None
    if not any(isinstance(item.expression, _SETS) for item in select.group_by):
        return select, None
    sets: list[_Set] = [()]
    for item in select.group_by:
        own = _sets_of(item.expression, builder)
        if len(sets) * len(own) > MAX_SETS:
            raise builder.error(f"GROUP BY makes more than {MAX_SETS:,} grouping sets", item.expression)
        sets = [left + right for left, right in product(sets, own)]
    known: list[exp.Expression] = []
    places = []
    for members in sets:
        found = []
        for member in members:
            if member not in known:
                known.append(member)
            found.append(known.index(member))
        places.append(tuple(dict.fromkeys(found)))
    plain = tuple(PartitionItem(node, None, node.sql("tdengine")) for node in known)
    return select.with_changes(group_by=plain), tuple(places)


def _names_all(items: Sequence[PartitionItem] | Sequence[OrderItem]) -> bool:
    return len(items) == 1 and isinstance(items[0].expression, exp.Var)


def _sets_of(node: exp.Expression, builder: Builder) -> list[_Set]:
    if isinstance(node, exp.GroupingSets):
        return [found for part in node.expressions for found in _sets_of(part, builder)]
    if isinstance(node, exp.Rollup):
        parts = [_members(part) for part in node.expressions]
        return [sum(parts[:count], ()) for count in range(len(parts), -1, -1)]
    if isinstance(node, exp.Cube):
        parts = [_members(part) for part in node.expressions]
        if 2 ** len(parts) > MAX_SETS:
            raise builder.error(f"CUBE makes more than {MAX_SETS:,} grouping sets", node)
        return [sum(chosen, ()) for count in range(len(parts), -1, -1) for chosen in combinations(parts, count)]
    return [_members(node)]


def _members(node: exp.Expression) -> _Set:
    return tuple(map(unwrapped, node.expressions)) if isinstance(node, exp.Tuple) else (unwrapped(node),)
