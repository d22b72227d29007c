"""What columns views have: as their queries say now, since the catalog keeps texts."""

from __future__ import annotations

from penstock.common.errors import PenstockError, UnavailableError
from penstock.mnode.access.roles import require_readable
from penstock.mnode.catalog.catalog import Catalog
from penstock.planner.query.select import plan_query
from penstock.planner.query.view_queries import views_below
from penstock.sql.dialect.generator import print_sql
from penstock.sql.dialect.parser import parse_query
from penstock.sql.schema import Column, Session, Table, View
from penstock.sql.tree.read_tables import tables_of
from penstock.sql.tree.statements import ExternalSource, Name


def view_table(view: View, catalog: Catalog) -> Table:
    """Returns a view as a table of what it gives now. Raises what reading it raises, whoever reads it."""
    require_readable(view, catalog)
    query = parse_query(f"SELECT * FROM {print_sql(Name(view.name, view.database))}")
    # What is wrong has no place in a text that nobody has typed.
    planned = plan_query(query.change(source_text=""), catalog, Session())
    return Table(view.uid, view.database, view.name, "view",
                 tuple(Column(column.name, column.type, column.name) for column in planned.columns))


def known_table(view: View, catalog: Catalog) -> Table:
    """Does what `view_table` does for lists, which wait for no server: UnavailableError if one must be asked."""
    query = parse_query(view.text)
    queries = [query, *(parse_query(below.text) for below in views_below(query, view.database, catalog))]
    if any(isinstance(source, ExternalSource) for each in queries for source in tables_of(each)):
        raise UnavailableError(f"view {view} reads tables of a connection, whose server is asked by who reads it only")
    return view_table(view, catalog)


def view_tables(database: str, catalog: Catalog) -> list[Table]:
    """Returns the views of a database as tables; those whose columns aren't known have none."""
    found = []
    for view in catalog.views(database):
        try:
            found.append(known_table(view, catalog))
        except PenstockError:
            found.append(Table(view.uid, database, view.name, "view", ()))
    return found
