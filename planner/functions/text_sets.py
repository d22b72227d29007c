"""Functions that look for a text among those that stand in another one, with a separator between them."""

from __future__ import annotations

from collections.abc import Callable

from penstock.planner.duckdb_sql.duckdb_tree import Tree, any_of, call, column, fragment, let, text
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.spec import TEXTS, WRONG_ARGUMENT_VALUE, Argument, FunctionSpec, ScalarBuilder, always
from penstock.planner.scalar.scalar_call import ScalarCall
from penstock.planner.scalar.scalar_compare import like, match
from penstock.sql.types import BIGINT, VARCHAR

# A name that no column has.
_ITEM = "#item"

_TEXT, _PATTERN, _LIST = Argument("text", TEXTS), Argument("pattern", TEXTS), Argument("list", TEXTS)
_SEPARATOR = Argument("separator", TEXTS, optional=True)


def _items(given: ScalarCall) -> Tree:
    """The list of texts. A separator that isn't known yet is checked on each row."""
    separator = given.constant(2) if len(given) > 2 else ","
    if separator == "":
        raise given.refuse("the separator must not be empty or NULL", WRONG_ARGUMENT_VALUE)
    if isinstance(separator, str):
        return call("string_split", given.text(1), text(separator))
    checked = let(given.text(2), lambda x: fragment(
        "CASE WHEN :x <> '' THEN :x ELSE :refused END", x=x,
        refused=call("error", text(f"{given.name}(): the separator must not be empty or NULL"))))
    return call("string_split", given.text(1), checked)


def _place(found: Tree, given: ScalarCall) -> Tree:
    """The place of what was found in the list, 0 if nothing was; NULL if the wanted text or the list is."""
    return fragment("CASE WHEN :missing THEN NULL ELSE CAST(coalesce(:found, 0) AS BIGINT) END", found=found,
                    missing=any_of([fragment(":text IS NULL", text=given.text(index)) for index in (0, 1)]))


def _find_in_set(given: ScalarCall) -> Tree:
    return _place(call("list_position", _items(given), given.text(0)), given)


def _matching(matches: Callable[[SqlExpr, SqlExpr], Tree]) -> ScalarBuilder:
    def build(given: ScalarCall) -> Tree:
        matched = matches(SqlExpr(column(_ITEM), VARCHAR), given.arguments[0])
        return _place(fragment(f'list_position(list_transform(:items, lambda "{_ITEM}": :matched), true)',
                               items=_items(given), matched=matched), given)
    return build


def _function(name: str, wanted: Argument, scalar: ScalarBuilder, example: str, summary: str) -> FunctionSpec:
    return FunctionSpec(name, "scalar", (wanted, _LIST, _SEPARATOR), always(BIGINT), summary, example=example,
                        scalar=scalar)


FUNCTIONS = (
    _function("find_in_set", _TEXT, _find_in_set, "find_in_set('b', 'a,b,c')",
              "The place of a text in a list of texts with a separator (`,` if left out) between them; 0 if it isn't "
              "there."),
    _function("like_in_set", _PATTERN, _matching(like), "like_in_set('b%', 'oslo,bergen')",
              "The place of the first text in such a list that is LIKE the pattern; 0 if none is."),
    _function("regexp_in_set", _PATTERN, _matching(match), "regexp_in_set('^b.*n$', 'oslo,bergen')",
              "The place of the first text in such a list that MATCHes the pattern; 0 if none does."),
)
