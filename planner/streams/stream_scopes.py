"""What names mean in the clauses of a stream: over rows of the source, over groups, over what tells groups apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from penstock.common.errors import (
    InvalidStatementError,
    InvalidStreamError,
    NotFoundError,
    Position,
)
from penstock.common.suggestions import did_you_mean
from penstock.planner.bind.aggregate_calls import selects_row
from penstock.planner.bind.binder import qualifier_of
from penstock.planner.bind.scopes import TIME_NAMES, WINDOW_NAMES
from penstock.planner.duckdb_sql.duckdb_tree import column
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.pseudo import pseudo_column
from penstock.planner.logical.group_values import PickedColumn
from penstock.planner.logical.window_kinds import END, START
from penstock.planner.lower.stages import TBNAME
from penstock.sql.dialect.literals import position
from penstock.sql.schema import CatalogView, Session, Table
from penstock.sql.tree.statements import Name

if TYPE_CHECKING:
    from penstock.planner.streams.stream_planner import _Planner


class RowScope:
    """Names in expressions over single source rows: WHERE, PARTITION BY, arguments of aggregates."""

    def __init__(self, planner: _Planner) -> None:
        self.planner = planner
        self.session = planner.session
        self.precision = planner.precision
        self.position = planner.position

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        table, lookup = self.planner.table, self.planner.lookup
        found = lookup.column(name, qualifier, node) if lookup is not None else None
        if found is not None:
            return found
        if table.column(name) is None:
            raise unknown_column(name, table, self.planner.position(node))
        return self.planner.use(name)

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        found = self.planner.lookup.pseudo(name, node) if self.planner.lookup is not None else None
        if found is not None:
            return found
        if name == TBNAME:
            return self.planner.use(name)
        if name in TIME_NAMES:
            return self.planner.use(self.planner.table.time_column.name)
        if self.planner.table.column(name) is not None:
            return self.column(name, qualifier_of(node), node)
        if name in WINDOW_NAMES:
            raise InvalidStreamError(f"{name} is not allowed here", position=self.planner.position(node))
        return None

    def aggregate(self, name: str, arguments: list[exp.Expression], node: exp.Expression) -> SqlExpr:
        raise InvalidStreamError(
            f"{name} cannot be inside of WHERE, PARTITION BY or another aggregate in a stream",
            position=self.planner.position(node), hint="filter the result table when you query it")


class ResultScope:
    """Names in the projections of a windowed stream: aggregates, keys, window bounds, companion columns."""

    def __init__(self, planner: _Planner, rows: RowScope) -> None:
        self.planner = planner
        self.rows = rows
        self.session = planner.session
        self.precision = planner.precision
        self.position = planner.position
        self.companions: list[tuple[SqlExpr, exp.Expression]] = []

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        key = self.planner.key(name) if qualifier is None else None
        if key is not None:
            return key.use()
        value = self.rows.column(name, qualifier, node)
        key = self.planner.key_of(name, qualifier, value)
        if key is not None:
            return key.use()
        self.companions.append((value, node))
        return SqlExpr(column(f"#companion{len(self.companions) - 1}"), value.type)

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        if name in WINDOW_NAMES:
            return pseudo_column(name, self.precision, column(START), column(END))
        if name == TBNAME:
            key = self.planner.key(name)
            if key is None:
                raise InvalidStreamError("tbname needs PARTITION BY tbname", position=self.planner.position(node))
            return key.use()
        if name in TIME_NAMES:
            return self.column(self.planner.table.time_column.name, None, node)
        if self.planner.table.column(name) is not None:
            return self.column(name, qualifier_of(node), node)
        return self.rows.pseudo(name, node)

    def aggregate(self, name: str, arguments: list[exp.Expression], node: exp.Expression) -> SqlExpr:
        return self.planner.aggregate(name, arguments, node, self.rows)

    def carry_companions(self) -> None:
        """Has the one aggregate that picks a row carry the plain columns of that row; called after all projections.

        Raises InvalidStreamError if there is none, or another aggregate.
        """
        if not self.companions:
            return
        planner = self.planner
        if len(planner.calls) != 1 or not selects_row(planner.calls[0].function):
            raise InvalidStreamError(
                "a plain column needs exactly one of min, max, first, last next to it",
                position=planner.position(self.companions[0][1]),
                hint="add it to PARTITION BY, or put it into an aggregate")
        call = planner.calls[0]
        planner.companions += [
            PickedColumn(f"#companion{n}", call.function, call.arguments[0], value, planner.row_key(), node)
            for n, (value, node) in enumerate(self.companions)]


class KeyScope:
    """Names in SUBTABLE: only what PARTITION BY gives."""

    def __init__(self, planner: _Planner, clause: str) -> None:
        self.planner = planner
        self.clause = clause
        self.session = planner.session
        self.precision = planner.precision
        self.position = planner.position

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        key = next((key for key in self.planner.keys if name in key.names and key.partitions), None)
        if key is None:
            raise InvalidStreamError(f"{self.clause} may only use what is in PARTITION BY: {name} is not",
                                     code=0x2602, position=self.planner.position(node))
        return key.use()

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        key = next((key for key in self.planner.keys if key.partitions and (name in key.names or key.column == name)),
                   None)
        if key is None:
            return self.column(name, None, node)
        return key.use()

    def aggregate(self, name: str, arguments: list[exp.Expression], node: exp.Expression) -> SqlExpr:
        raise InvalidStreamError(f"{self.clause} cannot have aggregates", position=self.planner.position(node))


def resolve_table(name: Name, catalog: CatalogView, session: Session, text: str) -> Table:
    """Returns the table that `name` means; raises NotFoundError or, without a database, InvalidStatementError."""
    database = name.database or session.database
    at = position(text, name.offset, len(name.name)) if text else None
    if database is None:
        raise InvalidStatementError("no database is in use", code=0x2616, position=at,
                                    hint="USE a database, or write db.table")
    if catalog.database(database) is None:
        raise NotFoundError(f"database {database} does not exist", code=0x0388, position=at)
    table = catalog.table(database, name.name)
    if table is None:
        raise NotFoundError(f"table {database}.{name.name} does not exist", code=0x2603, position=at,
                            hint=did_you_mean(name.name, catalog.table_names(database)))
    return table


def unknown_column(name: str, table: Table, at: Position | None) -> NotFoundError:
    """Returns the error for a column that `table` doesn't have, with a suggestion."""
    names = [column.name for column in (*table.columns, *table.tags)]
    return NotFoundError(f"column {name} does not exist in {table.name}", code=0x2602, position=at,
                         hint=did_you_mean(name, names))
