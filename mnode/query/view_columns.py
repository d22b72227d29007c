"""What columns views have: as their queries say now, since the catalog keeps texts."""

from __future__ import annotations

from penstock.mnode.access.roles import require_view
from penstock.mnode.catalog.catalog import Catalog
from penstock.planner.query.select import plan_query
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.sql.dialect.generator import print_sql
from penstock.sql.dialect.parser import parse_query
from penstock.sql.schema import Session, View
from penstock.sql.tree.statements import Name


def view_columns(view: View, catalog: Catalog) -> tuple[ResultColumn, ...]:
    """Returns the columns that a view has now. Raises what reading it raises, whoever reads it."""
    require_view(view, catalog)
    query = parse_query(f"SELECT * FROM {print_sql(Name(view.name, view.database))}")
    # What is wrong has no place in a text that nobody has typed.
    return plan_query(query.change(source_text=""), catalog, Session()).columns
