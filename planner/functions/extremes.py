"""GREATEST and LEAST: which of a row's values is largest, which is smallest."""

from __future__ import annotations

from penstock.planner.duckdb_sql.duckdb_tree import Tree, any_of, call, cast, fragment, let_all, null
from penstock.planner.functions.spec import NUMBERS, TEXTS, Argument, FunctionSpec
from penstock.planner.scalar.common_type import brought_to, common_type
from penstock.planner.scalar.scalar_call import ScalarCall
from penstock.sql.types import Kind

_COMPARED = Argument("value", NUMBERS | TEXTS | {Kind.BOOL, Kind.TIMESTAMP})
# TDengine's tests go up to a thousand columns.
_MORE = Argument("value", _COMPARED.accepts, repeats=1000)


def _extreme(given: ScalarCall) -> Tree:
    def body(*values: Tree) -> Tree:
        # DuckDB's own functions pass over NULL.
        return fragment("CASE WHEN :missing THEN :nothing ELSE :extreme END", nothing=null(given.result.duckdb()),
                        missing=any_of([fragment(":value IS NULL", value=value) for value in values]),
                        extreme=call(given.name, *values))

    values = [brought_to(value, given.result, given.precision, given.session.time_zone) for value in given.arguments]
    extreme = let_all(values, body)
    return cast(extreme, given.result.duckdb()) if given.result.kind is Kind.DECIMAL else extreme


FUNCTIONS = tuple(
    FunctionSpec(name, "scalar", (_COMPARED, _MORE), common_type,
                 f"The {which} of the values; NULL if one is NULL. Numbers among texts are compared as texts.",
                 example=f"{name}(2, 10), {name}(2, '10')", scalar=_extreme)
    for name, which in (("greatest", "largest"), ("least", "smallest")))
