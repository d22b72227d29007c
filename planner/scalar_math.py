"""The mathematical functions as DuckDB SQL; what has no finite result is NULL."""

from __future__ import annotations

from penstock.planner.plan import SqlExpr
from penstock.planner.scalar_call import Builder, Call
from penstock.planner.scalar_cast import to_double, to_integer, wrap_integer
from penstock.sql.types import DOUBLE, INTEGERS, SIGNED, DataType, Kind

MAX_EXPONENT = 308
BITS, SUMS, PRODUCTS = range(1, 4)
"""How tightly operators bind in DuckDB's SQL."""


class RowOfOperators(SqlExpr):
    """An expression in parentheses whose operators all bind as tightly as `level`."""

    __slots__ = ("level",)

    def __init__(self, sql: str, type: DataType, constant: object, level: int) -> None:
        super().__init__(sql, type, constant)
        self.level = level


def in_row(left: SqlExpr, sql: str, level: int) -> str:
    """Returns `sql`, what `left` was made into, to be followed by an operator of a level.

    Operators of one level follow each other without parentheses: those of long rows would nest as deep.
    """
    return sql[1:-1] if isinstance(left, RowOfOperators) and left.level == level and sql is left.sql else sql


def finite(sql: str) -> str:
    """Returns SQL that is NULL where the DOUBLE is infinite or not a number."""
    return f"NULLIF(NULLIF(NULLIF({sql}, 'inf'::DOUBLE), '-inf'::DOUBLE), 'nan'::DOUBLE)"


def add(left: SqlExpr, right: SqlExpr) -> str:
    """Returns left + right as DOUBLE."""
    return f"({in_row(left, to_double(left), SUMS)} + {to_double(right)})"


def subtract(left: SqlExpr, right: SqlExpr) -> str:
    """Returns left - right as DOUBLE."""
    return f"({in_row(left, to_double(left), SUMS)} - {to_double(right)})"


def multiply(left: SqlExpr, right: SqlExpr) -> str:
    """Returns left * right as DOUBLE."""
    return f"({in_row(left, to_double(left), PRODUCTS)} * {to_double(right)})"


def divide(left: SqlExpr, right: SqlExpr) -> str:
    """Returns left / right as DOUBLE, NULL if right is 0."""
    return f"({in_row(left, to_double(left), PRODUCTS)} / NULLIF({to_double(right)}, 0))"


def remainder(left: SqlExpr, right: SqlExpr) -> str:
    """Returns the remainder as DOUBLE with the sign of left, NULL if right is 0."""
    return f"({in_row(left, to_double(left), PRODUCTS)} % NULLIF({to_double(right)}, 0))"


def _function(duckdb_name: str) -> Builder:
    return lambda call: finite(f"{duckdb_name}({call.double(0)})")


def _abs(call: Call) -> str:
    kind, sql = call.result.kind, call.arguments[0].sql
    if kind not in SIGNED:
        return f"abs({sql})" if kind not in INTEGERS else sql
    # The least integer has no positive counterpart in its own type: it wraps, as a machine's does.
    wider = DataType(Kind.BIGINT) if kind is not Kind.BIGINT else None
    if wider is not None:
        return to_integer(SqlExpr(f"abs(CAST({sql} AS BIGINT))", wider), kind)
    return wrap_integer(f"abs(CAST({sql} AS HUGEINT))", Kind.BIGINT)


def _whole(duckdb_name: str) -> Builder:
    def build(call: Call) -> str:
        sql = call.arguments[0].sql
        return sql if call.result.kind in INTEGERS else f"CAST({duckdb_name}({sql}) AS {call.result.duckdb()})"
    return build


def _to_digits(duckdb_name: str) -> Builder:
    def build(call: Call) -> str:
        sql, kind = call.arguments[0].sql, call.result.kind
        digits = call.constant(1)
        if kind in INTEGERS and (len(call) == 1 or (isinstance(digits, int) and digits >= 0)):
            return sql
        if isinstance(digits, int) and digits < -MAX_EXPONENT:
            return f"CAST({sql} * 0 AS {call.result.duckdb()})"
        places = f"TRY_CAST({call.integer(1)} AS INTEGER)" if len(call) > 1 else "0"
        shifted = f"{duckdb_name}({to_double(call.arguments[0])}, {places})"
        if kind in INTEGERS:
            return to_integer(SqlExpr(shifted, DOUBLE), kind)
        return shifted if kind is Kind.DOUBLE else f"CAST({shifted} AS {call.result.duckdb()})"
    return build


def _sign(call: Call) -> str:
    return f"CAST(sign({call.arguments[0].sql}) AS {call.result.duckdb()})"


def _log(call: Call) -> str:
    number = call.double(0)
    if len(call) == 1:
        return finite(f"ln({number})")
    if call.constant(1) in (2, 10):
        return finite(f"log{call.constant(1)}({number})")
    return finite(f"(ln({number}) / NULLIF(ln({call.double(1)}), 0))")


def _pow(call: Call) -> str:
    return finite(f"pow({call.double(0)}, {call.double(1)})")


def _rand(call: Call) -> str:
    if len(call) == 0 or call.arguments[0].type.kind is Kind.NULL:
        return "random()"
    return f"(CAST(hash({call.integer(0)}) AS DOUBLE) / 18446744073709551616e0)"


BUILDERS: dict[str, Builder] = {
    "abs": _abs,
    "ceil": _whole("ceil"),
    "floor": _whole("floor"),
    "round": _to_digits("round"),
    "truncate": _to_digits("trunc"),
    "trunc": _to_digits("trunc"),
    "sign": _sign,
    "log": _log,
    "pow": _pow,
    "power": _pow,
    "mod": lambda call: remainder(call.arguments[0], call.arguments[1]),
    "pi": lambda _call: "pi()",
    "rand": _rand,
    **{name: _function(name) for name in (
        "sqrt", "exp", "ln", "sin", "cos", "tan", "asin", "acos", "atan", "degrees", "radians")},
}
