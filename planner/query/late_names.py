"""Groups of child tables: rows are told apart by the uids of their tables, and groups get the names afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from penstock.sql.tree.statements import IntervalWindow, PartitionItem
from penstock.sql.tree.walking import found_in, unwrapped

if TYPE_CHECKING:
    from penstock.planner.query.query_context import QueryContext


@dataclass(slots=True)
class LateKey:
    """The item by whose names the rows of a query are grouped, and the column that has the uids of the tables."""

    item: PartitionItem
    column: str = ""


def late_key(query: QueryContext) -> LateKey | None:
    """Returns the item `tbname` of a query's keys if the names of tables may come after rows are grouped.

    So they may where groups are of a super table's rows, and nothing asks for names before.
    """
    select, relation = query.select, query.relation
    if query.builder.of_stream or relation.table is None or relation.table.kind != "super":
        return None
    if (relation.driver is not None or len(relation.times) != 1 or not query.calls
            or not isinstance(select.window, IntervalWindow | None)):
        return None
    if any(spec.instants or spec.along is not None or spec.picks is not None for spec in query.functions):
        return None
    keys = (*select.partition_by, *select.group_by)
    if query.has_queries:
        return None
    found = [item for item in keys if _is_name(query, unwrapped(item.expression))]
    before = [*(item.expression for item in keys if item not in found), *query.calls,
              *([select.where] if select.where is not None else [])]
    if len(found) != 1 or any(_is_name(query, column) for node in before for column in found_in(node, exp.Column)):
        return None
    return LateKey(found[0])


def _is_name(query: QueryContext, node: exp.Expression) -> bool:
    """Whether an expression is the name of a row's child table."""
    if not isinstance(node, exp.Column) or node.name.lower() != "tbname":
        return False
    column = query.scope.find(node)
    return column is not None and column.role == "tbname"
