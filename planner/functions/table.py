"""The one table of all functions of the dialect, with lookup."""

from __future__ import annotations

from penstock.common.errors import NotFoundError, Position
from penstock.common.suggestions import closest
from penstock.planner.functions import (
    aggregates,
    codes,
    conditional,
    conversion,
    lists,
    math,
    pseudo,
    selections,
    series,
    string,
    system,
    text_sets,
    time,
)
from penstock.planner.functions.duckdb_calls import OF_DUCKDB, duckdb_function, listed
from penstock.planner.functions.elsewhere import EXAMPLES
from penstock.planner.functions.spec import (
    UNKNOWN_FUNCTION,
    Argument,
    Category,
    FunctionSpec,
    check_call,
)
from penstock.planner.functions.window import WINDOW_FUNCTIONS

__all__ = [
    "FUNCTIONS",
    "Argument",
    "Category",
    "FunctionSpec",
    "check_call",
    "lookup",
    "name_in_plans",
    "require",
    "suggest",
]

FUNCTIONS: dict[str, FunctionSpec] = {
    spec.name: spec for spec in (
        *math.FUNCTIONS, *conditional.FUNCTIONS, *string.FUNCTIONS, *text_sets.FUNCTIONS,
        *lists.FUNCTIONS, *codes.FUNCTIONS, *conversion.FUNCTIONS, *time.FUNCTIONS, *system.FUNCTIONS,
        *aggregates.FUNCTIONS, *selections.FUNCTIONS, *series.FUNCTIONS, *pseudo.FUNCTIONS)
}


def lookup(name: str) -> FunctionSpec | None:
    """Returns the function or pseudo column of this name (any case), or DuckDB's function, or None."""
    folded = name.lower()
    return FUNCTIONS.get(folded) or duckdb_function(folded)


def name_in_plans(spec: FunctionSpec) -> str:
    """Returns by which name `lookup` finds the function again: DuckDB's may have that of one of the dialect."""
    return spec.name if FUNCTIONS.get(spec.name, spec) is spec else OF_DUCKDB + spec.name


def suggest(name: str) -> str | None:
    """Returns a hint for who calls a function that isn't there: what does its job, or which one was meant; or None."""
    folded = name.lower()
    if folded in WINDOW_FUNCTIONS:
        return f"it needs OVER: write {folded}(...) OVER (ORDER BY ...)"
    if folded in EXAMPLES:
        return f"write, for example, {EXAMPLES[folded]}"
    near = closest(name, [*(known for known, spec in FUNCTIONS.items() if spec.category != "pseudo"), *listed()])
    return None if near is None else f"did you mean {near}()?"


def require(name: str, position: Position | None = None) -> FunctionSpec:
    """Returns the function of this name; raises NotFoundError with a hint."""
    spec = lookup(name)
    if spec is None or spec.category == "pseudo":
        raise NotFoundError(
            f"function {name}() does not exist",
            code=UNKNOWN_FUNCTION,
            position=position,
            hint=suggest(name),
        )
    return spec
