"""Which child tables a WHERE clause leaves: its conditions on tags and tbname, computed over the catalog's tables."""

from __future__ import annotations

from collections.abc import Iterable

import duckdb
from sqlglot import exp

from penstock.common.closed_duckdb import renew_small_duckdb_if_broken, small_duckdb
from penstock.planner.bind.binder import children_table
from penstock.planner.bind.expressions import condition_tree
from penstock.planner.bind.scopes import RowScope, columns_of, equalled, has_query, vector_calls
from penstock.planner.duckdb_sql.duckdb_tree import all_of, column, render, select
from penstock.planner.duckdb_sql.quoting import for_duckdb
from penstock.sql.schema import Table
from penstock.sql.tree.walking import conjuncts


def selected_children(where: exp.Expression | None, table: Table, scope: RowScope) -> tuple[int, ...] | None:
    """Returns the uids of the child tables that `where` may be true for, None if it says nothing about tags.

    Where it names tables, these are looked up, and conditions on tags are left to the query. A condition that cannot
    be computed here leaves all tables: the query itself tells what is wrong with it.
    """
    named = [names for names in (_names(node, scope) for node in conjuncts(where)) if names is not None]
    if named:
        return _uids(set.intersection(*named), table, scope)
    conditions = [node for node in conjuncts(where) if _only_tags(node, scope)]
    if not conditions:
        return None
    condition = all_of([condition_tree(node, scope) for node in conditions])
    query = render(select([column("_tuid")], "children", where=condition, order_by=[column("_tuid")]))
    with small_duckdb() as connection:
        connection.register("children", for_duckdb(children_table(table, scope.builder.catalog)))
        try:
            rows = connection.execute(query).fetchall()
        except duckdb.Error:
            renew_small_duckdb_if_broken()
            return None
    return tuple(row[0] for row in rows)


def _names(node: exp.Expression, scope: RowScope) -> set[str] | None:
    """Returns the names that `tbname = '...'` or `tbname IN ('...', ...)` allows, None for other conditions."""
    compared = equalled(node)
    if compared is None:
        return None
    subject, values = compared
    found = scope.find(subject)
    if found is None or found.role != "tbname":
        return None
    if not all(isinstance(value, exp.Literal) and value.is_string for value in values):
        return None
    return {value.this for value in values}


def _uids(names: Iterable[str], table: Table, scope: RowScope) -> tuple[int, ...]:
    found = (scope.builder.catalog.table(table.database, name) for name in names)
    return tuple(sorted(child.uid for child in found if child is not None and child.super_uid == table.uid))


def _only_tags(node: exp.Expression, scope: RowScope) -> bool:
    found = [scope.find(column) for column in columns_of(node)]
    return bool(found) and all(column is not None and column.role in ("tag", "tbname") for column in found) and (
        next(vector_calls(node), None) is None and not has_query(node))
