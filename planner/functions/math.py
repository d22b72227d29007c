"""The mathematical functions; what has no finite result is NULL."""

from __future__ import annotations

from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, cast, fragment, number, try_cast
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.spec import (
    INTEGER_KINDS,
    NUMBERS,
    Argument,
    FunctionSpec,
    ScalarBuilder,
    always,
    same_as_first,
)
from penstock.planner.scalar.arithmetic import finite, remainder
from penstock.planner.scalar.scalar_call import ScalarCall
from penstock.planner.scalar.scalar_cast import to_double, to_integer, wrap_integer
from penstock.sql.types import BIGINT, DOUBLE, INTEGERS, SIGNED, Kind

MAX_EXPONENT = 308
_NUMBER = Argument("number", NUMBERS)
_EXPONENT = Argument("exponent", NUMBERS)


def _of_double(name: str, example: str, summary: str) -> FunctionSpec:
    """A function of one DOUBLE that DuckDB has under the same name."""
    return FunctionSpec(name, "scalar", (_NUMBER,), always(DOUBLE), summary, example=example,
                        scalar=lambda given: finite(call(name, given.double(0))))


def _keeps_type(name: str, example: str, summary: str, scalar: ScalarBuilder, *more: Argument) -> FunctionSpec:
    return FunctionSpec(name, "scalar", (_NUMBER, *more), same_as_first, summary, example=example, scalar=scalar)


def _abs(given: ScalarCall) -> Tree:
    kind, value = given.result.kind, given.arguments[0].node
    if kind not in SIGNED:
        return call("abs", value) if kind not in INTEGERS else value
    # The least integer has no positive counterpart in its own type: it wraps, as a machine's does.
    if kind is Kind.BIGINT:
        return wrap_integer(fragment("abs(CAST(:value AS HUGEINT))", value=value), kind)
    return to_integer(SqlExpr(fragment("abs(CAST(:value AS BIGINT))", value=value), BIGINT), kind)


def _whole(duckdb_name: str) -> ScalarBuilder:
    def build(given: ScalarCall) -> Tree:
        value = given.arguments[0].node
        return value if given.result.kind in INTEGERS else _fitting(call(duckdb_name, value), given)
    return build


def _fitting(value: Tree, given: ScalarCall) -> Tree:
    """Returns a number in the type of the result: of a DECIMAL that has no room for it, NULL."""
    convert = try_cast if given.result.kind is Kind.DECIMAL else cast
    return convert(value, given.result.duckdb())


def _to_digits(duckdb_name: str) -> ScalarBuilder:
    def build(given: ScalarCall) -> Tree:
        value, kind = given.arguments[0].node, given.result.kind
        digits = given.constant(1)
        if kind in INTEGERS and (len(given) == 1 or (isinstance(digits, int) and digits >= 0)):
            return value
        if isinstance(digits, int) and digits < -MAX_EXPONENT:
            return cast(fragment(":value * 0", value=value), given.result.duckdb())
        places = try_cast(given.integer(1), "INTEGER") if len(given) > 1 else number(0)
        shifted = call(duckdb_name, to_double(given.arguments[0]), places)
        if kind in INTEGERS:
            return to_integer(SqlExpr(shifted, DOUBLE), kind)
        return shifted if kind is Kind.DOUBLE else _fitting(shifted, given)
    return build


def _sign(given: ScalarCall) -> Tree:
    return cast(call("sign", given.arguments[0].node), given.result.duckdb())


def _log(given: ScalarCall) -> Tree:
    if len(given) == 1:
        return finite(call("ln", given.double(0)))
    base = given.constant(1)
    if base in (2, 10):
        return finite(call(f"log{base}", given.double(0)))
    return finite(fragment("ln(:number) / NULLIF(ln(:base), 0)", number=given.double(0), base=given.double(1)))


def _rand(given: ScalarCall) -> Tree:
    if len(given) == 0 or given.arguments[0].type.kind is Kind.NULL:
        return call("random")
    return fragment("CAST(hash(:seed) AS DOUBLE) / 18446744073709551616e0", seed=given.integer(0))


def _pow(name: str, example: str, summary: str) -> FunctionSpec:
    return FunctionSpec(name, "scalar", (_NUMBER, _EXPONENT), always(DOUBLE), summary, example=example,
                        scalar=lambda given: finite(call("pow", given.double(0), given.double(1))))


FUNCTIONS = (
    _keeps_type("abs", "abs(-2.5)", "The absolute value.", _abs),
    _keeps_type("ceil", "ceil(1.2)", "The smallest whole number that is not less than the argument.", _whole("ceil")),
    _keeps_type("floor", "floor(-1.2)", "The greatest whole number that is not greater than the argument.",
                _whole("floor")),
    _keeps_type("round", "round(2.567, 1)",
                "The number rounded to `digits` decimal places (0 by default), halves away from zero.",
                _to_digits("round"), Argument("digits", NUMBERS, optional=True)),
    _keeps_type("truncate", "truncate(2.567, 1)",
                "The number truncated to `digits` decimal places. Negative digits truncate left of the point.",
                _to_digits("trunc"), Argument("digits", NUMBERS)),
    _keeps_type("trunc", "trunc(1299, -2)", "The same as truncate; `digits` are 0 if left out.", _to_digits("trunc"),
                Argument("digits", NUMBERS, optional=True)),
    _keeps_type("sign", "sign(-7)", "-1, 0 or 1: the sign of the argument.", _sign),
    _of_double("sqrt", "sqrt(16)", "The square root; NULL for negative numbers."),
    _of_double("exp", "exp(0)", "e raised to the argument."),
    _of_double("ln", "ln(1)", "The natural logarithm; NULL for numbers that are not positive."),
    FunctionSpec("log", "scalar", (_NUMBER, Argument("base", NUMBERS, optional=True)), always(DOUBLE),
                 "The logarithm to `base`, or the natural logarithm; NULL if it is undefined.",
                 example="log(8, 2)", scalar=_log),
    _pow("pow", "pow(2, 10)", "The number raised to the exponent."),
    _pow("power", "power(2, 10)", "The same as pow."),
    FunctionSpec("mod", "scalar", (_NUMBER, Argument("divisor", NUMBERS)), always(DOUBLE),
                 "The remainder, with the sign of the first argument; NULL if the divisor is 0.",
                 example="mod(7, 3)", scalar=lambda given: remainder(given.arguments[0], given.arguments[1])),
    _of_double("sin", "sin(0)", "The sine of an angle in radians."),
    _of_double("cos", "cos(0)", "The cosine of an angle in radians."),
    _of_double("tan", "tan(0)", "The tangent of an angle in radians."),
    _of_double("asin", "asin(0)", "The arc sine in radians; NULL outside -1 to 1."),
    _of_double("acos", "acos(1)", "The arc cosine in radians; NULL outside -1 to 1."),
    _of_double("atan", "atan(0)", "The arc tangent in radians."),
    _of_double("degrees", "degrees(pi())", "Radians to degrees."),
    _of_double("radians", "radians(180)", "Degrees to radians."),
    FunctionSpec("pi", "scalar", (), always(DOUBLE), "The number pi.", example="pi()", scalar="pi()"),
    FunctionSpec("rand", "scalar", (Argument("seed", INTEGER_KINDS, optional=True),), always(DOUBLE),
                 "A random number from 0 to 1, exclusive. The same seed gives the same number.",
                 volatile=True, example="rand(1) = rand(1)", scalar=_rand),
)
