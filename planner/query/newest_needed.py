"""Queries that need nothing but the newest row of each child table: LAST_ROW and LAST without a window."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from penstock.planner.bind.scopes import columns_of, require_vector
from penstock.planner.functions.spec import FunctionSpec
from penstock.planner.query.query_context import QueryContext
from penstock.sql.tree.walking import unwrapped

_OF_TABLES = ("tag", "tbname")


def note_newest_rows(query: QueryContext, calls: Sequence[exp.Anonymous]) -> None:
    """Lets the scan of a query leave out all but the newest row of each child table, if it needs no others.

    It does not where all that it computes is taken from the last row of groups of whole child tables.
    """
    select, relation = query.select, query.relation
    if select.window is not None or not calls or len(relation.times) != 1 or relation.driver is not None or (
            query.sets is not None):
        return
    _, slot = relation.times[0]
    if slot is None or slot.cuts is not None or slot.table.key_column is not None:
        return
    if not all(_takes_last_row(require_vector(call)) for call in calls) or not _is_of_whole_tables(
            query) or query.has_queries:
        return
    if not any(_skips_nulls(require_vector(call)) for call in calls):
        slot.newest = "rows"
    elif all(isinstance(argument, exp.Column) for call in calls for argument in call.expressions):
        slot.newest = "values"


def _takes_last_row(spec: FunctionSpec) -> bool:
    return spec.selects is not None and not spec.selects.by_value and not spec.selects.ascending


def _skips_nulls(spec: FunctionSpec) -> bool:
    return spec.selects is not None and spec.selects.present


def _is_of_whole_tables(query: QueryContext) -> bool:
    """Whether a row's group, and whether it counts at all, depends on its child table alone."""
    select = query.select
    names = {column.name for column in query.relation.columns if column.role in _OF_TABLES}
    keys = [unwrapped(item.expression) for item in (*select.partition_by, *select.group_by)]
    conditions = [] if select.where is None else columns_of(select.where)
    return all(isinstance(node, exp.Column) and node.name in names for node in (*keys, *conditions))
