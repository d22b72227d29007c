"""What DuckDB computes by its own rules, where the dialect has none: functions and operators, with its types.

The type is what DuckDB's binder says, of columns of the operands' types and of the constants among them. Instants are
DuckDB's timestamps on their way there and back; durations are intervals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.duckdb_sql.duckdb_tree import VOLATILE, Tree, call, called, cast, fragment, number
from penstock.planner.duckdb_sql.folding import evaluate, is_implemented, type_over
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.duckdb_sql.timezones import local_timestamp
from penstock.sql.tree.statements import Duration
from penstock.sql.tree.walking import nodes_of
from penstock.sql.types import (
    BIGINT,
    BOOL,
    DOUBLE,
    INT,
    NULL,
    UBIGINT,
    VARCHAR,
    DataType,
    Kind,
    Precision,
    other_type,
    timestamp,
)

Operator = Callable[..., Tree]
"""Makes a tree of those of its operands."""

_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_TIMES = ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")
_INSTANT = "TIMESTAMP WITH TIME ZONE"
_TYPES = {
    "BOOLEAN": BOOL, "TINYINT": DataType(Kind.TINYINT), "SMALLINT": DataType(Kind.SMALLINT), "INTEGER": INT,
    "BIGINT": BIGINT, "UTINYINT": DataType(Kind.UTINYINT), "USMALLINT": DataType(Kind.USMALLINT),
    "UINTEGER": DataType(Kind.UINT), "UBIGINT": UBIGINT, "FLOAT": DataType(Kind.FLOAT), "DOUBLE": DOUBLE,
    "VARCHAR": VARCHAR, "BLOB": DataType(Kind.VARBINARY), '"NULL"': NULL,
}
"""DuckDB's types that are types of the dialect."""
_INTERVALS = {"u": "to_microseconds", "a": "to_milliseconds", "s": "to_seconds", "m": "to_minutes", "h": "to_hours",
              "d": "to_days", "w": "to_weeks", "n": "to_months", "y": "to_years"}


def duckdb_value(
    make: Operator, operands: Sequence[SqlExpr], precision: Precision, time_zone: str, *, converts: bool = False
) -> SqlExpr | None:
    """Returns what `make` makes of the operands; None if DuckDB has no such function or operator, or, if it `converts`
    them, no such conversion.

    Times of the result have the `precision`; `time_zone`: on whose wall clock DuckDB's timestamps are. Raises
    InvalidStatementError for constants that can't be.
    """
    name = type_name_of(make, operands)
    if name is None or (converts and not is_implemented(*_over_columns(make, operands))):
        return None
    return from_duckdb(make(*(operand_tree(operand, time_zone) for operand in operands)), name, precision, time_zone)


def duckdb_type(name: str, precision: Precision) -> DataType:
    """Returns the type that values have which DuckDB says to be of the type `name`."""
    if name in (*_TIMES, _INSTANT):
        return timestamp(precision)
    if (decimal := _DECIMAL.fullmatch(name)) is not None:
        return DataType(Kind.DECIMAL, digits=int(decimal[1]), scale=int(decimal[2]))
    return VARCHAR if name == "JSON" else _TYPES.get(name) or other_type(name)


def from_duckdb(tree: Tree, name: str, precision: Precision, time_zone: str) -> SqlExpr:
    """Returns a tree of DuckDB's type `name` as a value of the dialect."""
    kind = duckdb_type(name, precision)
    if kind.kind is Kind.TIMESTAMP:
        if name in _TIMES and time_zone != "UTC":
            tree = fragment("timezone(:zone, :local)", zone=time_zone, local=tree)
        tree = call(f"epoch_{precision}", tree)
    elif name == "JSON":
        tree = cast(tree, "VARCHAR")
    return SqlExpr(tree, kind)


def instant_of(tree: Tree) -> int | None:
    """Returns the instant that a tree of units since the epoch is if it reads no columns, else None."""
    known = not any(isinstance(node, exp.Column | exp.Query) or called(node) in VOLATILE for node in nodes_of(tree))
    value = evaluate(tree) if known else None
    return value if isinstance(value, int) else None


def operand_tree(operand: SqlExpr, time_zone: str) -> Tree:
    """Returns a value as DuckDB is given it: times as its own, integers that are known as bare numbers, and columns
    without a type as a bare NULL, which fit into all of its types.
    """
    if operand.type.kind is Kind.NULL:
        return exp.Null()
    if operand.type.kind is Kind.TIMESTAMP:
        return local_timestamp(operand.node, operand.type.precision, time_zone)
    constant = operand.constant
    if isinstance(constant, Duration):
        return _interval(constant)
    return number(constant) if operand.type.is_integer and isinstance(constant, int) else operand.node


def _interval(duration: Duration) -> Tree:
    if duration.unit == "b":  # intervals have microseconds
        return call("to_microseconds", number(duration.value // 1000))
    return call(_INTERVALS[duration.unit], number(duration.value))


def type_name_of(make: Operator, operands: Sequence[SqlExpr]) -> str | None:
    """Returns DuckDB's name of the type of what `make` makes, None if it can't. Raises as `duckdb_value`."""
    return type_over(*_over_columns(make, operands))


def _over_columns(make: Operator, operands: Sequence[SqlExpr]) -> tuple[Tree, dict[str, str]]:
    """Returns what `make` makes of constants and of columns in place of other operands, and the types of these."""
    columns: dict[str, str] = {}
    trees: list[Tree] = []
    for place, operand in enumerate(operands):
        kind, constant = operand.type.kind, operand.constant
        known = kind is not Kind.TIMESTAMP and isinstance(constant, str | int | float | Duration)
        if known or (kind is Kind.OTHER and not _reads_rows(operand.node)) or kind is Kind.NULL:
            trees.append(operand_tree(operand, "UTC"))
            continue
        columns[f"a{place}"] = operand.type.duckdb_name()
        trees.append(exp.column(f"a{place}"))
    return make(*trees), columns


def _reads_rows(tree: Tree) -> bool:
    """Whether there is a column, a variable or a query in a tree; names of fields are none."""
    fields = {id(field.this) for field in tree.find_all(exp.PropertyEQ)}
    return any(isinstance(part, exp.Identifier | exp.Query) and id(part) not in fields
               for part in tree.walk(prune=lambda part: isinstance(part, exp.DataType)))


def no_operator(words: str, operands: Sequence[SqlExpr]) -> InvalidStatementError:
    """Returns the error for an operator that DuckDB doesn't have for such operands."""
    return InvalidStatementError(f"there is no {words} of {' and '.join(operand.type.sql() for operand in operands)}",
                                 code=0x2603)
