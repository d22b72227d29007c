"""Compiles expressions of the dialect over a small relation and runs them in DuckDB; used by several test files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import duckdb
from sqlglot import exp

from penstock.common.errors import InvalidStatementError, NotFoundError, Position
from penstock.planner.bind.binder import Inner
from penstock.planner.bind.expressions import compile_expression, condition_tree
from penstock.planner.duckdb_sql.duckdb_tree import closed, column, render
from penstock.planner.duckdb_sql.quoting import quote_name
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.sql.dialect.literals import position
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session
from penstock.sql.tree.expression_nodes import source_range
from penstock.sql.tree.statements import Query, Select
from penstock.sql.types import DataType, Precision

NOW_MS = 1_700_000_000_123
CONNECTION = duckdb.connect()


@dataclass
class TableScope:
    """A scope over columns of given types; aggregates are refused."""

    columns: dict[str, DataType] = field(default_factory=dict)
    session: Session = field(default_factory=lambda: Session(database="db", now_ms=NOW_MS))
    precision: Precision = "ms"
    text: str = ""

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        if name not in self.columns:
            raise NotFoundError(f"column {name} does not exist", position=self.position(node))
        return SqlExpr(column(name), self.columns[name])

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        return None

    def aggregate(self, name: str, args: list[exp.Expression], node: exp.Expression) -> SqlExpr:
        raise InvalidStatementError(f"{name} is not allowed here", position=self.position(node))

    def over(self, node: exp.Window) -> SqlExpr:
        raise InvalidStatementError("no OVER is allowed here", position=self.position(node))

    def filtered(self, node: exp.Filter) -> exp.Anonymous:
        raise InvalidStatementError("no FILTER is allowed here", position=self.position(node))

    def inner(self, query: Query, node: exp.Expression) -> Inner:
        raise InvalidStatementError("no query is allowed here", position=self.position(node))

    def position(self, node: exp.Expression) -> Position | None:
        start, end = source_range(node)
        return position(self.text, start, end - start)


def parsed(expression: str, scope: TableScope) -> exp.Expression:
    """Parses one expression as the only item of a SELECT."""
    scope.text = f"select {expression}"
    statement = parse_one(scope.text)
    assert isinstance(statement, Select)
    return statement.items[0].expression


def compiled(expression: str, scope: TableScope | None = None) -> SqlExpr:
    """Compiles an expression."""
    scope = scope or TableScope()
    return compile_expression(parsed(expression, scope), scope)


def sql_of(value: SqlExpr) -> str:
    """Returns an expression as text, which may stand anywhere."""
    return render(closed(value.node))


def condition(expression: str, scope: TableScope | None = None) -> str:
    """Compiles a condition as WHERE has it."""
    scope = scope or TableScope()
    return render(closed(condition_tree(parsed(expression, scope), scope)))


def value(expression: str, *, time_zone: str = "UTC", precision: Precision = "ms") -> Any:
    """Returns the value of an expression without columns; the SQL must have the type that was promised."""
    scope = TableScope(session=Session(database="db", now_ms=NOW_MS, time_zone=time_zone), precision=precision)
    result = compiled(expression, scope)
    row = CONNECTION.execute(f"SELECT {sql_of(result)}, typeof({sql_of(result)})").fetchone()
    assert row is not None
    promised = result.type.duckdb()
    assert row[1] == promised or row[1].strip('"') in ("NULL", "JSON"), f"{expression}: {row[1]}, not {promised}"
    return row[0]


def column_values(expression: str, data: dict[str, tuple[DataType, list[Any]]], *, time_zone: str = "UTC",
                  precision: Precision = "ms") -> list[Any]:
    """Returns the values of an expression over columns given as {name: (type, values)}."""
    session = Session(database="db", now_ms=NOW_MS, time_zone=time_zone)
    scope = TableScope({name: kind for name, (kind, _) in data.items()}, session, precision)
    return run_over(sql_of(compiled(expression, scope)), data)


def rows_where(expression: str, data: dict[str, tuple[DataType, list[Any]]]) -> list[int]:
    """Returns the numbers of the rows for which a condition is true."""
    scope = TableScope({name: kind for name, (kind, _) in data.items()})
    flags = run_over(condition(expression, scope), data)
    return [number for number, flag in enumerate(flags) if flag]


def run_over(sql: str, data: dict[str, tuple[DataType, list[Any]]]) -> list[Any]:
    """Evaluates DuckDB SQL per row."""
    names = ", ".join(quote_name(name) for name in data)
    types = ", ".join(f"CAST({quote_name(name)} AS {kind.duckdb()}) AS {quote_name(name)}"
                      for name, (kind, _) in data.items())
    count = len(next(iter(data.values()))[1])
    marks = ", ".join(["(" + ", ".join(["?"] * (len(data) + 1)) + ")"] * count)
    parameters = [item for row in range(count)
                  for item in (row, *(values[row] for _, values in data.values()))]
    source = f"SELECT _row, {types} FROM (VALUES {marks}) AS given(_row, {names})"
    return [row[0] for row in CONNECTION.execute(f"SELECT {sql} FROM ({source}) ORDER BY _row", parameters).fetchall()]
