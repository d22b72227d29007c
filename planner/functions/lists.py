"""Lists that are made of numbers, and the items of lists as rows."""

from __future__ import annotations

from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, fragment, let_all, number, text
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.spec import EVERY, INTEGER_KINDS, WRONG_ARGUMENT_TYPE, Argument, FunctionSpec, always
from penstock.planner.scalar.duckdb_values import duckdb_value
from penstock.planner.scalar.scalar_call import ScalarCall
from penstock.sql.types import NULL, Kind, other_type

MAX_ITEMS = 1_000_000
"""How long a list may be that its arguments say the length of."""
_START, _STOP, _STEP = (Argument(name, INTEGER_KINDS, optional=name != "start") for name in ("start", "stop", "step"))


def _stepped(given: ScalarCall) -> Tree:
    bounds = [argument.node for argument in given.arguments]
    start, stop = (number(0), bounds[0]) if len(bounds) == 1 else bounds[:2]
    step = bounds[2] if len(bounds) == 3 else number(1)
    refusal = call("error", text(f"{given.name}() makes at most {MAX_ITEMS} items; in FROM it gives any number"))
    # The refusal is in an argument: DuckDB computes a call of constants alone even where a CASE passes over it.
    return let_all((start, stop, step), lambda first, last, width: call(
        given.name,
        fragment("CASE WHEN abs(:last::HUGEINT - :first) > abs(:width::HUGEINT) * :most THEN :refusal "
                 "ELSE :first::BIGINT END", first=first, last=last, width=width, most=MAX_ITEMS, refusal=refusal),
        *(fragment(":bound::BIGINT", bound=bound) for bound in (last, width))))


def _unnested(given: ScalarCall) -> SqlExpr:
    kind = given.arguments[0].type
    found = None
    if kind.kind is Kind.NULL or kind.sql().endswith("]"):
        found = duckdb_value(lambda items: call("unnest", items), given.arguments, given.precision,
                             given.session.time_zone)
    if found is None:
        raise given.refuse("a list is expected", WRONG_ARGUMENT_TYPE)
    return found


FUNCTIONS = (
    FunctionSpec("range", "scalar", (_START, _STOP, _STEP), always(other_type("BIGINT[]")),
                 "The list of the numbers from start, or 0, to before stop. In FROM it gives rows, of times as well.",
                 in_stream=False, example="range(1, 7, 2)", scalar=_stepped),
    FunctionSpec("generate_series", "scalar", (_START, _STOP, _STEP), always(other_type("BIGINT[]")),
                 "The list of the numbers from start, or 0, to stop. In FROM it gives rows, of times as well.",
                 in_stream=False, example="generate_series(1, 7, 2)", scalar=_stepped),
    FunctionSpec("unnest", "scalar", (Argument("list", EVERY),), always(NULL),
                 "The items of a list, a row each. It stands in the SELECT list or in FROM.", in_stream=False,
                 example="unnest([1, 5])", scalar=_unnested, multiplies=True),
)
