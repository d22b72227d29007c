"""What compiling an expression asks of the place where it stands: what names and aggregates mean there."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from sqlglot import exp

from penstock.common.errors import Position
from penstock.planner.bind.binder import Inner
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.sql.schema import Session
from penstock.sql.tree.statements import Query
from penstock.sql.types import Precision


class Scope(Protocol):
    """What an expression may refer to."""

    @property
    def session(self) -> Session: ...

    @property
    def precision(self) -> Precision: ...

    def column(self, name: str, qualifier: str | None, node: exp.Expression, /) -> SqlExpr:
        """Returns the column; raises NotFoundError with position and hint."""
        ...

    def pseudo(self, name: str, node: exp.Expression, /) -> SqlExpr | None:
        """Returns a pseudo column such as `_wstart` or `tbname`, or None if there is none here."""
        ...

    def aggregate(self, name: str, args: list[exp.Expression], node: exp.Expression, /) -> SqlExpr:
        """Returns the value of an aggregate, selection or time-series function, or raises."""
        ...

    def inner(self, query: Query, node: exp.Expression, /) -> Inner:
        """Returns a query that stands in the expression, planned, or raises."""
        ...

    def over(self, node: exp.Window, /) -> SqlExpr:
        """Returns the value of a call with OVER, or raises."""
        ...

    def multiply(self, node: exp.Anonymous, /) -> None:
        """Raises if there can't be several rows in place of one here, which a call gives."""
        ...

    def filtered(self, node: exp.Filter, /) -> exp.Anonymous:
        """Returns a call with FILTER as one without, or raises."""
        ...


@runtime_checkable
class LocatingScope(Protocol):
    """A scope that knows the statement's text, so that errors tell the place."""

    def position(self, node: exp.Expression, /) -> Position | None:
        """Returns where the node stands in the statement."""
        ...
