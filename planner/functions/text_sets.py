"""Functions that look for a text among those that stand in another one, with a separator between them."""

from __future__ import annotations

from collections.abc import Callable

from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, column, fragment, let, let_all, text
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.spec import TEXTS, WRONG_ARGUMENT_VALUE, Argument, FunctionSpec, ScalarBuilder, always
from penstock.planner.scalar.scalar_call import ScalarCall
from penstock.planner.scalar.scalar_compare import like, match
from penstock.sql.types import BIGINT, VARCHAR

# A name that no column has.
_ITEM = "#item"
_NO_SEPARATOR = "the separator must not be empty or NULL"

_TEXT, _PATTERN, _LIST = Argument("text", TEXTS), Argument("pattern", TEXTS), Argument("list", TEXTS)
_SEPARATOR = Argument("separator", TEXTS, optional=True)


def _searched(given: ScalarCall, search: Callable[[Tree, Tree], Tree]) -> Tree:
    """The place that `search` finds for a wanted text in a list of texts; 0 if none, NULL if one of both is."""
    return let_all((given.text(0), given.text(1)), lambda wanted, whole: fragment(
        "CASE WHEN :wanted IS NOT NULL AND :whole IS NOT NULL THEN CAST(coalesce(:found, 0) AS BIGINT) END",
        wanted=wanted, whole=whole, found=search(wanted, call("string_split", whole, _separator(given)))))


def _separator(given: ScalarCall) -> Tree:
    """One that isn't known yet is checked on each row."""
    separator = given.constant(2) if len(given) > 2 else ","
    if separator == "":
        raise given.refuse(_NO_SEPARATOR, WRONG_ARGUMENT_VALUE)
    if isinstance(separator, str):
        return text(separator)
    return let(given.text(2), lambda x: fragment(
        "CASE WHEN :x <> '' THEN :x ELSE :refused END", x=x,
        refused=call("error", text(f"{given.name}(): {_NO_SEPARATOR}"))))


def _find_in_set(given: ScalarCall) -> Tree:
    return _searched(given, lambda wanted, items: call("list_position", items, wanted))


def _matching(matches: Callable[[SqlExpr, SqlExpr], Tree]) -> ScalarBuilder:
    def build(given: ScalarCall) -> Tree:
        return _searched(given, lambda wanted, items: fragment(
            f'list_position(list_transform(:items, lambda "{_ITEM}": :matched), true)', items=items,
            matched=matches(SqlExpr(column(_ITEM), VARCHAR), SqlExpr(wanted, VARCHAR, given.constant(0)))))
    return build


def _function(name: str, wanted: Argument, scalar: ScalarBuilder, example: str, summary: str) -> FunctionSpec:
    return FunctionSpec(name, "scalar", (wanted, _LIST, _SEPARATOR), always(BIGINT), summary, example=example,
                        scalar=scalar)


FUNCTIONS = (
    _function("find_in_set", _TEXT, _find_in_set, "find_in_set('b', 'a,b,c')",
              "The position of a text in a list with a separator (`,` by default); 0 if the list doesn't contain "
              "it."),
    _function("like_in_set", _PATTERN, _matching(like), "like_in_set('b%', 'oslo,bergen')",
              "The position of the first text in such a list that is LIKE the pattern; 0 if there is none."),
    _function("regexp_in_set", _PATTERN, _matching(match), "regexp_in_set('^b.*n$', 'oslo,bergen')",
              "The position of the first text in such a list that MATCHes the pattern; 0 if there is none."),
)
