"""Views that queries read: each is a sub-query, whose names are those of the view and not of who reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sqlglot import exp

from penstock.common.errors import InvalidStatementError, LimitExceededError, PenstockError
from penstock.common.headroom import with_headroom
from penstock.planner.bind.binder import RelColumn
from penstock.planner.bind.query_parts import Planned, renamed
from penstock.planner.bind.user_functions import bind_user_functions
from penstock.planner.logical.operators import Viewed
from penstock.planner.query.named_queries import PlanQuery, QueryBuilder
from penstock.sql.dialect.parser import parse_query
from penstock.sql.schema import VIEWS_MAX, CatalogView, View, too_many_views
from penstock.sql.tree.read_tables import tables_of
from penstock.sql.tree.statements import ExternalSource, Query, TableSource


def view_of(source: TableSource, builder: QueryBuilder) -> View | None:
    """Returns the view that a name in FROM means, or None. InvalidStatementError if it is to be read by cuts."""
    database = source.name.database or builder.session.database
    view = None if database is None else builder.catalog.view(database, source.name.name)
    if view is not None and source.cuts is not None:
        raise InvalidStatementError(f"{view} is a view: it has no cuts", position=builder.place(source.name))
    return view


@with_headroom
def plan_view(view: View, source: TableSource, builder: QueryBuilder, plan: PlanQuery) -> Planned:
    """Returns the query of a view, planned. Whatever is wrong with it is told of the view, at its name in `source`.

    LimitExceededError if the statement reads too many views.
    """
    place = builder.place(source.name)
    builder.views += 1
    if builder.views > VIEWS_MAX:
        raise too_many_views()
    kept = {name: getattr(builder, name) for name in ("text", "base", "session", "ctes", "around")}
    session = replace(builder.session, database=view.database, time_zone=view.time_zone)
    try:
        query = parse_query(view.text)
        builder.text, builder.base, builder.session, builder.ctes = view.text, query.source_start, session, {}
        # How deep it stands in other queries counts, but none of their names is known in it.
        builder.around = (_Unknown(),) * len(builder.around)
        bind_user_functions(query, builder.catalog, session, builder.functions)
        planned = plan(query, builder)
        viewed = replace(planned, plan=lambda: Viewed(planned.plan(), str(view)),
                         loose=lambda: Viewed(planned.in_any_order(), str(view)))
        return renamed(viewed, view.columns, str(view))
    except LimitExceededError:
        raise
    except PenstockError as error:
        raise type(error)(f"view {view} can't be read: {error.message}", code=error.code, hint=error.hint,
                          position=place) from error
    finally:
        for name, value in kept.items():
            setattr(builder, name, value)


def views_below(query: Query, database: str, catalog: CatalogView) -> Iterator[View]:
    """Yields the views that a query reads where `database` is in use, and those that these read."""
    pending, known = [(query, database)], set()
    while pending:
        query, database = pending.pop()
        for source in tables_of(query):
            view = None if isinstance(source, ExternalSource) else catalog.view(
                source.name.database or database, source.name.name)
            if view is not None and view not in known:
                known.add(view)
                pending.append((parse_query(view.text), view.database))
                yield view


class _Unknown:
    """A query around a view, which has no names for it."""

    relation = None

    def find(self, name: str, qualifier: str | None, node: exp.Expression, /) -> RelColumn | None:
        return None
