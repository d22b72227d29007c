"""CREATE and DROP VIEW: all rules of these statements, then the change of the catalog, which alone knows views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.common.clock import Clock
from penstock.common.errors import AlreadyExistsError, InvalidStatementError
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.name_lookup import database_of, require_user_database, require_view
from penstock.mnode.ddl.name_rules import check_name
from penstock.mnode.ddl.tables_in_use import refuse_if_view_streamed
from penstock.planner.bind.query_parts import check_names
from penstock.planner.query.select import plan_query
from penstock.planner.query.view_queries import views_below
from penstock.sql.schema import VIEWS_MAX, Session, View, too_many_views
from penstock.sql.tree.statements import CreateView, DropView


class ViewStatements:
    """Makes and drops views; one at a time per engine."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock

    def create(self, statement: CreateView, session: Session) -> Result:
        """Executes CREATE VIEW: what the query says must be possible now. Whoever replaces a view owns it."""
        database = require_user_database(database_of(statement.name, session, self._catalog).name, self._catalog)
        known = self._catalog.view(database.name, statement.name.name)
        if known is not None and not statement.or_replace:
            if statement.if_not_exists:
                return Result()
            raise AlreadyExistsError(f"view {known} already exists", hint="use CREATE OR REPLACE VIEW")
        check_name(statement.name.name, "view")
        within = replace(session, database=database.name)
        planned = plan_query(statement.query, self._catalog, within)
        _check_columns(statement, [column.name for column in planned.columns])
        if planned.views >= VIEWS_MAX:  # a statement that reads it reads one more
            raise too_many_views()
        if known is not None and known in views_below(statement.query, database.name, self._catalog):
            raise InvalidStatementError(f"view {known} would read itself")
        owner = self._catalog.users.named(session.user)
        wanted = View(
            0, database.name, statement.name.name, statement.query.source_text, statement.columns, session.time_zone,
            session.user, None if owner is None else owner.created_ms, statement.invoker, self._clock.now_ms())
        if known is not None and known.says != wanted.says:
            refuse_if_view_streamed(known, self._catalog)
        self._catalog.schema.put_view(wanted)
        return Result()

    def drop(self, statement: DropView, session: Session) -> Result:
        """Executes DROP VIEW; views that read it can't be read any more."""
        database = database_of(statement.name, session, self._catalog)
        if statement.if_exists and self._catalog.view(database.name, statement.name.name) is None:
            return Result()
        view = require_view(statement.name, session, self._catalog)
        refuse_if_view_streamed(view, self._catalog)
        self._catalog.schema.drop_view(view)
        return Result()


def _check_columns(statement: CreateView, found: Sequence[str]) -> None:
    """Raises InvalidStatementError unless each column of the query gets a name of its own."""
    check_names(statement.columns, len(found), str(statement.name))
    names = [*statement.columns, *found[len(statement.columns):]]
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise InvalidStatementError(
            f"two columns of view {statement.name} are called {twice}",
            hint=f"name them: CREATE VIEW {statement.name} (a, b, ...) AS, or by AS in the query")
