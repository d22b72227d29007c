"""The operators + - * / % & | as trees of DuckDB SQL; what has no finite result is NULL."""

from __future__ import annotations

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import Tree, closed, fragment, made
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.scalar.scalar_cast import to_double

_SUMS = (exp.Add, exp.Sub)
_PRODUCTS = (exp.Mul, exp.Div, exp.Mod)
_BITS = (exp.BitwiseAnd, exp.BitwiseOr)


def finite(value: Tree) -> Tree:
    """Returns a DOUBLE that is NULL where the given one is infinite or not a number."""
    return fragment("NULLIF(NULLIF(NULLIF(:value, 'inf'::DOUBLE), '-inf'::DOUBLE), 'nan'::DOUBLE)", value=value)


def in_row(operator: type[exp.Binary], left: Tree, right: Tree) -> Tree:
    """Returns `left operator right`.

    Operators that bind alike follow each other without parentheses: those of long rows would nest as deep.
    """
    alike = next(level for level in (_SUMS, _PRODUCTS, _BITS) if operator in level)
    return made(operator, this=left if isinstance(left, alike) else closed(left), expression=closed(right))


def add(left: SqlExpr, right: SqlExpr) -> Tree:
    """Returns left + right as DOUBLE."""
    return in_row(exp.Add, to_double(left), to_double(right))


def subtract(left: SqlExpr, right: SqlExpr) -> Tree:
    """Returns left - right as DOUBLE."""
    return in_row(exp.Sub, to_double(left), to_double(right))


def multiply(left: SqlExpr, right: SqlExpr) -> Tree:
    """Returns left * right as DOUBLE."""
    return in_row(exp.Mul, to_double(left), to_double(right))


def divide(left: SqlExpr, right: SqlExpr) -> Tree:
    """Returns left / right as DOUBLE, NULL if right is 0."""
    return in_row(exp.Div, to_double(left), _divisor(right))


def remainder(left: SqlExpr, right: SqlExpr) -> Tree:
    """Returns the remainder as DOUBLE with the sign of left, NULL if right is 0."""
    return in_row(exp.Mod, to_double(left), _divisor(right))


def _divisor(value: SqlExpr) -> Tree:
    return fragment("NULLIF(:value, 0)", value=to_double(value))
