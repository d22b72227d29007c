"""What columns views have: as their queries say now, since the catalog keeps texts."""

from __future__ import annotations

from penstock.common.errors import PenstockError
from penstock.mnode.access.roles import require_view
from penstock.mnode.catalog.catalog import Catalog
from penstock.planner.query.select import plan_query
from penstock.sql.dialect.generator import print_sql
from penstock.sql.dialect.parser import parse_query
from penstock.sql.schema import Column, Session, Table, View
from penstock.sql.tree.statements import Name


def view_table(view: View, catalog: Catalog) -> Table:
    """Returns a view as a table of what it gives now. Raises what reading it raises, whoever reads it."""
    require_view(view, catalog)
    query = parse_query(f"SELECT * FROM {print_sql(Name(view.name, view.database))}")
    # What is wrong has no place in a text that nobody has typed.
    planned = plan_query(query.change(source_text=""), catalog, Session())
    return Table(view.uid, view.database, view.name, "view",
                 tuple(Column(column.name, column.type, column.name) for column in planned.columns))


def view_tables(database: str, catalog: Catalog) -> list[Table]:
    """Returns the views of a database as tables; those that can't be read now have no columns."""
    found = []
    for view in catalog.views(database):
        try:
            found.append(view_table(view, catalog))
        except PenstockError:
            found.append(Table(view.uid, database, view.name, "view", ()))
    return found
