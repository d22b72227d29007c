"""Which child tables a WHERE clause leaves: its conditions on tags and tbname, computed over the catalog's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import duckdb
from sqlglot import exp

from penstock.common.closed_duckdb import renew_small_duckdb_if_broken, small_duckdb
from penstock.planner.bind.binder import GivenChildren, children_table
from penstock.planner.bind.expressions import condition_tree
from penstock.planner.bind.scopes import RowScope, columns_of, equalled, has_given, has_query, vector_calls
from penstock.planner.duckdb_sql.duckdb_tree import all_of, parameters_of, render
from penstock.planner.duckdb_sql.quoting import for_duckdb
from penstock.sql.schema import CatalogView, Table
from penstock.sql.tree.expression_nodes import Given
from penstock.sql.tree.walking import conjuncts, unwrapped


def selected_children(where: exp.Expression | None, table: Table, scope: RowScope) -> tuple[int, ...] | None:
    """Returns the uids of the child tables that `where` may be true for, None if it says nothing about tags.

    Where it names tables, these are looked up, and conditions on tags are left to the query. A condition that cannot
    be computed here leaves all tables: the query itself tells what is wrong with it.
    """
    named = [names for names in (_names(node, scope) for node in conjuncts(where)) if names is not None]
    if named:
        return children_named(set.intersection(*named), table, scope.builder.catalog)
    conditions = [node for node in conjuncts(where) if is_about_tags(node, scope) and not has_given(node)]
    if not conditions:
        return None
    return children_that_meet(render(all_of([condition_tree(node, scope) for node in conditions])), {}, table,
                              scope.builder.catalog)


def children_that_meet(
    condition: str, parameters: Mapping[str, object], table: Table, catalog: CatalogView
) -> tuple[int, ...] | None:
    """Returns the uids of child tables that meet a condition over `children_table`; None if it can't be computed."""
    with small_duckdb() as connection:
        connection.register("children", for_duckdb(children_table(table, catalog)))
        try:
            rows = connection.execute(f"SELECT _tuid FROM children WHERE {condition} ORDER BY _tuid",
                                      {**parameters}).fetchall()
        except duckdb.Error:
            renew_small_duckdb_if_broken()
            return None
    return tuple(row[0] for row in rows)


def given_children(where: exp.Expression | None, scope: RowScope) -> GivenChildren | None:
    """Returns which child tables `where` leaves by values that the plan is given; None if these say nothing of them."""
    names, conditions = [], []
    for node in conjuncts(where):
        if has_given(node) and is_about_tags(node, scope):
            name = _given_name(node, scope)
            if name is None:
                conditions.append(condition_tree(node, scope))
            else:
                names.append(name)
    if not names and not conditions:
        return None
    condition = all_of(conditions)
    return GivenChildren(tuple(names), render(condition) if conditions else None, parameters_of(condition))


def _given_name(node: exp.Expression, scope: RowScope) -> str | None:
    """Returns the given value that the name of a table must equal, None for other conditions."""
    if not isinstance(node, exp.EQ | exp.NullSafeEQ):
        return None
    sides = unwrapped(node.this), unwrapped(node.expression)
    for side, other in (sides, sides[::-1]):
        found = scope.find(side)
        if found is not None and found.role == "tbname" and isinstance(other, Given):
            return str(other.this)
    return None


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


def children_named(names: Iterable[str], table: Table, catalog: CatalogView) -> tuple[int, ...]:
    """Returns the uids of the child tables of a super table that have these names."""
    found = (catalog.table(table.database, name) for name in names)
    return tuple(sorted(child.uid for child in found if child is not None and child.super_uid == table.uid))


def is_about_tags(node: exp.Expression, scope: RowScope) -> bool:
    """Whether a condition is about nothing but tags and names of child tables."""
    found = [scope.find(column) for column in columns_of(node)]
    return bool(found) and all(column is not None and column.role in ("tag", "tbname") for column in found) and (
        next(vector_calls(node), None) is None and not has_query(node))
