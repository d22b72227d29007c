"""Finds what a statement names, or says what is wrong with the name and which one was probably meant."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.common.errors import InvalidStatementError, NotFoundError, PenstockError, Position
from penstock.common.suggestions import did_you_mean
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.system_schema import DATABASES as SYSTEM_DATABASES
from penstock.sql.dialect.literals import position
from penstock.sql.schema import Column, Database, Session, Table, View, database_missing
from penstock.sql.tree.statements import Name

NO_DATABASE = 0x2616
TABLE_MISSING = 0x2603
COLUMN_MISSING = 0x2602
TAG_MISSING = 0x260E


def database_of(name: Name, session: Session, catalog: Catalog, text: str = "", start: int = 0) -> Database:
    """Returns the database that a table name belongs to: its prefix, or the one in use.

    `text` is the statement's, for errors, `start` where it begins in the text that the name was parsed from.
    """
    wanted = name.database or session.database
    if wanted is None:
        raise InvalidStatementError(
            f"no database is in use, and {name} names none", code=NO_DATABASE, hint="USE a database, or write db.table")
    database = catalog.database(wanted)
    # Positions are only computed for errors: to find the line of a late name, a long statement is read as a whole.
    return database if database is not None else require_database(
        wanted, catalog, _position(name, text, start))


def require_database(name: str, catalog: Catalog, at: Position | None = None) -> Database:
    """Returns the database. `NotFoundError` with a hint if there is none."""
    database = catalog.database(name)
    if database is None:
        raise database_missing(name, catalog, at)
    return database


def require_user_database(name: str, catalog: Catalog) -> Database:
    """Returns the database; `NotFoundError` with a hint if there is none, `InvalidStatementError` for system ones."""
    if name in SYSTEM_DATABASES:
        raise InvalidStatementError(f"{name} is a system database")
    return require_database(name, catalog)


def require_table(name: Name, session: Session, catalog: Catalog, text: str = "") -> Table:
    """Returns the table. Raises what `table_missing` returns if there is none."""
    table = find_table(name, session, catalog, text)
    if table is None:
        raise table_missing(name, session, catalog, text)
    return table


def find_table(name: Name, session: Session, catalog: Catalog, text: str = "", start: int = 0) -> Table | None:
    """Returns the table, or None. The database must exist all the same, see `database_of`."""
    return catalog.table(database_of(name, session, catalog, text, start).name, name.name)


def table_missing(name: Name, session: Session, catalog: Catalog, text: str = "") -> PenstockError:
    """Returns the error for a table that doesn't exist: a NotFoundError, or InvalidStatementError if it is a view."""
    database = database_of(name, session, catalog, text)
    view = catalog.view(database.name, name.name)
    if view is not None:
        return InvalidStatementError(f"{view} is a view, not a table", code=TABLE_MISSING,
                                     position=_position(name, text))
    return NotFoundError(
        f"table {database.name}.{name.name} does not exist", code=TABLE_MISSING, position=_position(name, text),
        hint=did_you_mean(name.name, catalog.table_names(database.name)))


def require_view(name: Name, session: Session, catalog: Catalog) -> View:
    """Returns the view. `NotFoundError` with a hint if there is none, InvalidStatementError if it is a table."""
    database = database_of(name, session, catalog)
    view = catalog.view(database.name, name.name)
    if view is not None:
        return view
    if catalog.table(database.name, name.name) is not None:
        raise InvalidStatementError(f"{database.name}.{name.name} is a table, not a view")
    raise NotFoundError(
        f"view {database.name}.{name.name} does not exist", code=TABLE_MISSING,
        hint=did_you_mean(name.name, (other.name for other in catalog.views(database.name))))


def require_column(name: str, columns: Iterable[Column], table: Table, what: str = "column") -> Column:
    """Returns the column or tag of that name. `NotFoundError` with a hint if there is none."""
    known = {column.name: column for column in columns}
    if name not in known:
        raise NotFoundError(
            f"{what} {name} does not exist in {table.name}", code=TAG_MISSING if what == "tag" else COLUMN_MISSING,
            hint=did_you_mean(name, known))
    return known[name]


def _position(name: Name, text: str, start: int = 0) -> Position | None:
    return position(text, name.offset - start, len(str(name))) if text else None
