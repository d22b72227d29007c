"""Functions that choose among their arguments: by a condition, by which of them is NULL, or the largest one."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import (
    VOLATILE,
    Tree,
    any_of,
    call,
    called,
    cast,
    fragment,
    let,
    let_all,
    null,
)
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.spec import (
    ANY,
    EVERY,
    NUMBERS,
    TEXTS,
    WRONG_ARGUMENT_VALUE,
    Argument,
    FunctionSpec,
    ScalarBuilder,
    always,
    same_as_first,
)
from penstock.planner.scalar.common_type import brought_to, common_type
from penstock.planner.scalar.scalar_call import ScalarCall
from penstock.planner.scalar.scalar_cast import to_bool
from penstock.planner.scalar.scalar_compare import Comparer
from penstock.planner.scalar.scalar_json import JsonValue, is_null
from penstock.sql.types import BOOL, DataType, Kind

_CONDITION = Argument("condition", ANY - {Kind.VARBINARY, Kind.GEOMETRY})
_VALUE, _OTHER, _ELSE = (Argument(name, EVERY) for name in ("value", "other", "otherwise"))
# TDengine's tests go up to a thousand columns.
_MORE = Argument("value", EVERY, optional=True, repeats=1000)
_COMPARED = Argument("value", NUMBERS | TEXTS | {Kind.BOOL, Kind.TIMESTAMP})
_MORE_COMPARED = Argument("value", _COMPARED.accepts, repeats=1000)


def type_of_branches(types: Sequence[DataType]) -> DataType:
    """Returns the common type of all arguments but the first."""
    return common_type(types[1:])


def _brought(given: ScalarCall, index: int) -> Tree:
    return brought_to(given.arguments[index], given.result, given.precision, given.session.time_zone)


def _choice(given: ScalarCall, condition: Tree) -> Tree:
    return fragment("CASE WHEN :condition THEN :value ELSE :otherwise END", condition=condition,
                    value=_brought(given, 1), otherwise=_brought(given, 2))


def _if(given: ScalarCall) -> Tree:
    return _choice(given, to_bool(given.arguments[0]))


def _nvl2(given: ScalarCall) -> Tree:
    return _choice(given, fragment("NOT (:missing)", missing=is_null(given.arguments[0])))


def _coalesce(given: ScalarCall) -> Tree:
    return call("coalesce", *(_brought(given, index) for index in range(len(given))))


def _nullif(given: ScalarCall) -> Tree:
    comparer = Comparer(given.precision, given.session.time_zone)
    value, other = given.arguments

    def body(value: SqlExpr) -> Tree:
        return fragment("CASE WHEN :equal THEN NULL ELSE :value END", equal=comparer.compare(exp.EQ, value, other),
                        value=value.node)

    if isinstance(value, JsonValue):
        return body(value)
    return let(value.node, lambda x: body(SqlExpr(x, value.type, value.constant)))


def _is_null(given: ScalarCall) -> Tree:
    return is_null(given.arguments[0])


def _is_not_null(given: ScalarCall) -> Tree:
    return fragment("NOT (:missing)", missing=_is_null(given))


def _try(given: ScalarCall) -> Tree:
    value = given.arguments[0].node
    if any(isinstance(part, exp.Query) or called(part) in VOLATILE | {"error"} for part in value.walk()):
        raise given.refuse("it takes no sub-queries, no random values, and no functions that bound what they make",
                           WRONG_ARGUMENT_VALUE)
    return call("try", value)


def _extreme(given: ScalarCall) -> Tree:
    def body(*values: Tree) -> Tree:
        # DuckDB's own functions pass over NULL.
        return fragment("CASE WHEN :missing THEN :nothing ELSE :extreme END", nothing=null(given.result.duckdb()),
                        missing=any_of([fragment(":value IS NULL", value=value) for value in values]),
                        extreme=call(given.name, *values))

    extreme = let_all([_brought(given, index) for index in range(len(given))], body)
    return cast(extreme, given.result.duckdb()) if given.result.kind is Kind.DECIMAL else extreme


def _first_known(name: str, arguments: tuple[Argument, ...], example: str, summary: str) -> FunctionSpec:
    return FunctionSpec(name, "scalar", arguments, common_type, summary, example=example, scalar=_coalesce)


def _test(name: str, scalar: ScalarBuilder, summary: str) -> FunctionSpec:
    return FunctionSpec(name, "scalar", (_VALUE,), always(BOOL), summary, example=f"{name}(s) FROM m", scalar=scalar)


FUNCTIONS = (
    *(FunctionSpec(name, "scalar", (_COMPARED, _MORE_COMPARED), common_type,
                   f"The {which} of the values; NULL if one is NULL. Numbers among texts are compared as texts.",
                   example=f"{name}(2, 10), {name}(2, '10')", scalar=_extreme)
      for name, which in (("greatest", "largest"), ("least", "smallest"))),
    FunctionSpec("if", "scalar", (_CONDITION, _VALUE, _ELSE), type_of_branches,
                 "The value if the condition holds, else the other one.", example="if(1 > 2, 2, 3)", scalar=_if),
    _first_known("ifnull", (_VALUE, _OTHER), "ifnull(v, 0) FROM m", "The value, or the other one if that is NULL."),
    _first_known("nvl", (_VALUE, _OTHER), "nvl(v, 0) FROM m", "The same as ifnull."),
    _first_known("coalesce", (_VALUE, _MORE), "coalesce(NULL, 2, 3)",
                 "The first of the values that is not NULL."),
    FunctionSpec("nvl2", "scalar", (_VALUE, _OTHER, _ELSE), type_of_branches,
                 "The second argument if the first is not NULL, else the third.", example="nvl2(NULL, 1, 2)",
                 scalar=_nvl2),
    FunctionSpec("nullif", "scalar", (_VALUE, _OTHER), same_as_first,
                 "NULL if both are equal, else the first.", example="nullif(v, 3) FROM m", scalar=_nullif),
    FunctionSpec("try", "scalar", (_VALUE,), same_as_first, "The value, or NULL if it can't be computed.",
                 example="try(ln(v)) FROM m", scalar=_try),
    _test("isnull", _is_null, "Whether the value is NULL."),
    _test("isnotnull", _is_not_null, "Whether the value is not NULL."),
)
