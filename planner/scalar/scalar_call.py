"""What the compilers of scalar functions are given: one checked call with its compiled arguments."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.common.errors import InvalidStatementError
from penstock.planner.duckdb_sql.duckdb_tree import Tree
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.scalar.scalar_cast import to_double, to_integer, to_text, to_timestamp
from penstock.sql.schema import Session
from penstock.sql.tree.statements import Duration
from penstock.sql.types import DataType, Precision


@dataclass(frozen=True, slots=True)
class ScalarCall:
    """A call whose arguments were checked against the function table; `result` is the type it must give."""

    name: str
    arguments: tuple[SqlExpr, ...]
    result: DataType
    precision: Precision
    session: Session

    def __len__(self) -> int:
        return len(self.arguments)

    def double(self, index: int) -> Tree:
        """Returns an argument as DOUBLE."""
        return to_double(self.arguments[index])

    def integer(self, index: int) -> Tree:
        """Returns an argument as BIGINT."""
        return to_integer(self.arguments[index])

    def text(self, index: int) -> Tree:
        """Returns an argument as VARCHAR."""
        return to_text(self.arguments[index])

    def time(self, index: int) -> SqlExpr:
        """Returns an argument as a TIMESTAMP."""
        return to_timestamp(self.arguments[index], self.precision, self.session.time_zone)

    def constant(self, index: int) -> object | None:
        """Returns the value of an argument if it is given and known, else None."""
        return self.arguments[index].constant if index < len(self.arguments) else None

    def duration(self, index: int) -> Duration | None:
        """Returns the duration given as an argument, or None."""
        value = self.constant(index)
        return value if isinstance(value, Duration) else None

    def refuse(self, text: str, code: int, hint: str | None = None) -> InvalidStatementError:
        """Returns the error that says what is wrong with the call."""
        return InvalidStatementError(f"{self.name}(): {text}", code=code, hint=hint)
