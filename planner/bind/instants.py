"""Instants given by constant expressions, such as '2024-05-01', 1714521600000 or now - 1d."""

from __future__ import annotations

import math

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.bind.binder import Inner
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.time_range import time_constant
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.sql.schema import Session
from penstock.sql.tree.statements import Query
from penstock.sql.types import Precision


class _NoNames:
    """A scope without columns."""

    def __init__(self, session: Session, precision: Precision) -> None:
        self.session = session
        self.precision = precision

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        raise InvalidStatementError(f"an instant is expected, {name} is not a constant",
                                    hint="for example '2024-05-01 12:00:00' or now - 1d")

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        return self.column(name, None, node)

    def aggregate(self, name: str, arguments: list[exp.Expression], node: exp.Expression) -> SqlExpr:
        return self.column(f"{name}()", None, node)

    def over(self, node: exp.Window) -> SqlExpr:
        return self.column("OVER", None, node)

    def multiply(self, node: exp.Anonymous) -> None:
        self.column(f"{node.this}()", None, node)

    def filtered(self, node: exp.Filter) -> exp.Anonymous:
        raise InvalidStatementError("an instant is expected, FILTER is for aggregates")

    def inner(self, query: Query, node: exp.Expression) -> Inner:
        raise InvalidStatementError("an instant is expected, a sub-query is not a constant")


def instant(expression: exp.Expression, precision: Precision, session: Session) -> int:
    """Returns what a constant expression means where it meets a timestamp, in units of `precision`.

    Raises InvalidStatementError for what is not a constant instant.
    """
    value = time_constant(compile_expression(expression, _NoNames(session, precision)), precision, session)
    if value is None:
        raise InvalidStatementError(f"{expression.sql()} is not an instant",
                                    hint="for example '2024-05-01 12:00:00' or now - 1d")
    return math.floor(value)
