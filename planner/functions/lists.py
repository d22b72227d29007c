"""Lists that are made of numbers, and the items of lists as rows."""

from __future__ import annotations

from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, fragment, let_all, number, text
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.spec import EVERY, NUMBERS, WRONG_ARGUMENT_TYPE, Argument, FunctionSpec, always
from penstock.planner.scalar.duckdb_values import duckdb_value
from penstock.planner.scalar.scalar_call import ScalarCall
from penstock.sql.types import NULL, Kind, Precision, other_type

MAX_ITEMS = 1_000_000
"""How long a list may be that its arguments say the length of."""
_TIMES = frozenset((Kind.TIMESTAMP, Kind.OTHER))
_START, _STOP, _STEP = (Argument(name, NUMBERS | _TIMES, optional=name != "start")
                        for name in ("start", "stop", "step"))


def _stepped(given: ScalarCall) -> Tree | SqlExpr:
    if any(argument.type.kind in _TIMES for argument in given.arguments):
        return _times(given)
    bounds = [argument.node for argument in given.arguments]
    start, stop = (number(0), bounds[0]) if len(bounds) == 1 else bounds[:2]
    step = bounds[2] if len(bounds) == 3 else number(1)
    refusal = _too_many(given.name)
    # The refusal is in an argument: DuckDB computes a call of constants alone even where a CASE passes over it.
    return let_all((start, stop, step), lambda first, last, width: call(
        given.name,
        fragment("CASE WHEN abs(:last::HUGEINT - :first) > abs(:width::HUGEINT) * :most THEN :refusal "
                 "ELSE :first::BIGINT END", first=first, last=last, width=width, most=MAX_ITEMS, refusal=refusal),
        *(fragment(":bound::BIGINT", bound=bound) for bound in (last, width))))


def _times(given: ScalarCall) -> SqlExpr:
    """The times from one to another, by an interval along the wall clock of the session's time zone."""
    zone, refusal = given.session.time_zone, _too_many(given.name)

    def times(*bounds: Tree) -> Tree:
        listed = let_all(bounds, lambda first, last, width: call(
            given.name,
            fragment("CASE WHEN abs(epoch(:last::TIMESTAMP) - epoch(:first::TIMESTAMP)) > abs(epoch(:width)) * :most "
                     "THEN :refusal ELSE :first::TIMESTAMP END", first=first, last=last, width=width, most=MAX_ITEMS,
                     refusal=refusal),
            fragment(":last::TIMESTAMP", last=last), width))
        # Times in lists are in UTC.
        return listed if zone == "UTC" else fragment(
            "list_transform(:listed, lambda t: timezone('UTC', timezone(:zone, t)))", listed=listed, zone=zone)

    *ends, step = given.arguments
    found = None
    are_times = all(end.type.kind in (Kind.TIMESTAMP, Kind.NULL) or end.type.sql() == "DATE" for end in ends)
    if len(ends) == 2 and are_times and step.type.sql() == "INTERVAL":
        found = duckdb_value(times, given.arguments, given.precision, zone)
    if found is None:
        raise given.refuse("two times and an INTERVAL are expected, or integers", WRONG_ARGUMENT_TYPE)
    return found


def _too_many(name: str) -> Tree:
    return call("error", text(f"{name}() makes at most {MAX_ITEMS} items; in FROM it gives any number"))


def items_of(value: SqlExpr, precision: Precision) -> SqlExpr | None:
    """Returns the items of a list, a row each; None of what is no list. Times in lists are in UTC."""
    if value.type.kind is not Kind.NULL and not value.type.sql().endswith("]"):
        return None
    return duckdb_value(lambda items: call("unnest", items), [value], precision, "UTC")


def _unnested(given: ScalarCall) -> SqlExpr:
    found = items_of(given.arguments[0], given.precision)
    if found is None:
        raise given.refuse("a list is expected", WRONG_ARGUMENT_TYPE)
    return found


FUNCTIONS = (
    FunctionSpec("range", "scalar", (_START, _STOP, _STEP), always(other_type("BIGINT[]")),
                 "A list of numbers from start (0 by default) to stop, exclusive, or of times with an INTERVAL as "
                 "step. In FROM it returns rows.",
                 in_stream=False, example="range(1, 7, 2)", scalar=_stepped),
    FunctionSpec("generate_series", "scalar", (_START, _STOP, _STEP), always(other_type("BIGINT[]")),
                 "A list of numbers from start (0 by default) to stop, inclusive, or of times with an INTERVAL as "
                 "step. In FROM it returns rows.",
                 in_stream=False, example="generate_series(1, 7, 2)", scalar=_stepped),
    FunctionSpec("unnest", "scalar", (Argument("list", EVERY),), always(NULL),
                 "A row per element of a list, in the SELECT list or in FROM.", in_stream=False,
                 example="unnest([1, 5])", scalar=_unnested, multiplies=True),
)
