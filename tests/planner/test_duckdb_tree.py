"""Fragments of DuckDB SQL: holes keep what they hold together, and DuckDB reads what is printed as it was meant."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import (
    all_of,
    any_of,
    call,
    cast,
    column,
    columns_in,
    fragment,
    integer,
    is_column,
    let,
    let_all,
    named,
    null,
    number,
    parse_tree,
    render,
    replaced_columns,
    select,
    text,
    try_cast,
)
from penstock.planner.duckdb_sql.pieces import star
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.sql.types import BIGINT

OPERATORS = (":a + :b", ":a - :b", ":a * :b", "-:a", "(:a) + :b", "CASE WHEN :a < :b THEN :a ELSE :b END",
             "CASE WHEN :a BETWEEN :b AND 3 OR NOT :a = :b THEN :b END", "(:a)::INTEGER - :b", "abs(:a) % 7 + :b",
             "[:a, :b][1]", "list_transform([:a], lambda x: x - :b)[1]", "coalesce(:a, :b)", ":a // 3 - :b",
             "CASE WHEN :a IS NULL THEN :b ELSE {'f': :a}.f END", "CASE WHEN :a IN (1, :b) THEN 1 ELSE :b END")


def _value(template: str, a: int | None, b: int | None) -> int | None:
    shown = template.replace(":a", "NULL::BIGINT" if a is None else f"({a})").replace(
        ":b", "NULL::BIGINT" if b is None else f"({b})")
    return _answer(shown)


def _answer(sql: str) -> int | None:
    return duckdb.execute(f"SELECT {sql}").fetchall()[0][0]  # type: ignore[no-any-return]


DRAWN = st.recursive(
    st.integers(-5, 5), lambda inner: st.tuples(st.sampled_from(OPERATORS), inner, inner), max_leaves=6)


@given(DRAWN)
def test_nested_fragments_compute_what_their_parts_do(drawn: object) -> None:
    """Operators in holes stand in parentheses where they need some."""
    def both(drawn: object) -> tuple[exp.Expression, int | None]:
        if isinstance(drawn, int):
            return number(drawn), drawn
        template, left, right = drawn  # type: ignore[misc]
        (a, a_value), (b, b_value) = both(left), both(right)
        return fragment(template, a=a, b=b), _value(template, a_value, b_value)

    tree, expected = both(drawn)
    assert _answer(render(tree)) == expected


@pytest.mark.parametrize("sql", [
    "lag(x IGNORE NULLS) OVER (PARTITION BY a ORDER BY b ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)",
    "arg_min(struct_pack(a := x, b := y), row(x, -CAST(y AS HUGEINT))) FILTER(WHERE x > 1)",
    "list_filter(l, LAMBDA x, i : x > i)", "timezone('UTC', make_timestamptz(x))", "if(a, b, c)", "count(DISTINCT x)",
    "date_diff('month', a, b)", "x[1:3]", "sum(x) OVER (ORDER BY t RANGE BETWEEN 5 PRECEDING AND CURRENT ROW)",
])
def test_functions_keep_their_names_and_clauses(sql: str) -> None:
    """sqlglot makes nothing else of them."""
    assert render(parse_tree(sql)) == sql


def test_holes_take_trees_numbers_and_texts() -> None:
    """Values are quoted as what they are."""
    tree = fragment("concat(:a, :b, :c)", a=column('a"b', "t"), b=-3, c="it's")
    assert render(tree) == """concat("t"."a""b", (-3), 'it''s')"""
    assert render(call("f", text("x"), column("y"))) == """f('x', "y")"""
    with pytest.raises(KeyError, match="missing"):
        fragment(":a + :missing", a=1)


def test_casts_are_casts() -> None:
    """In both spellings, so that whoever reads a tree finds the value and the type."""
    for spelled in ("CAST(:x AS DOUBLE)", ":x::DOUBLE"):
        tree = fragment(spelled, x=column("v"))
        assert type(tree) is exp.Cast
        assert tree.to.is_type("double")
    assert type(fragment("TRY_CAST(:x AS DOUBLE)", x=column("v"))) is exp.TryCast


def test_a_tree_may_be_used_again() -> None:
    """Trees share what stands in both."""
    value = SqlExpr(fragment("v + 1"), BIGINT)
    twice = fragment(":x * :x", x=value.node)
    again = fragment("-:x", x=value.node)
    assert (render(twice), render(again), render(value.node)) == ("(v + 1) * (v + 1)", "-(v + 1)", "v + 1")


def test_a_select_has_its_clauses_in_their_places() -> None:
    """Steps go into WITH, a SELECT to read from into parentheses."""
    doubled = select([star(), named(fragment("v * 2"), "w")], "rows", where=fragment("v > :n", n=1))
    tree = select([column("k"), named(fragment("sum(w)"), "s")], "doubled", group_by=[column("k")],
                  having=fragment("count(*) > 1"), order_by=[column("k")], steps=[("doubled", doubled)])
    assert render(tree) == (
        'WITH "doubled" AS (SELECT *, v * 2 AS "w" FROM "rows" WHERE v > 1) SELECT "k", sum(w) AS "s" FROM "doubled" '
        'GROUP BY "k" HAVING count(*) > 1 ORDER BY "k"')
    outer = render(select([star()], tree))
    rows = duckdb.execute(
        f"WITH rows AS (SELECT unnest([1, 2, 3, 4]) AS v, 1 AS k), r AS ({outer}) FROM r").fetchall()
    assert rows == [(1, 18)]


def test_columns_are_found_and_replaced() -> None:
    """What takes a column's place next to an operator is in parentheses."""
    tree = fragment("f(x) * 2 + -y + t.z")
    assert columns_in(tree) == {"x", "y", "z"}
    assert is_column(column("x"), "x")
    assert not is_column(tree, "x")
    assert render(replaced_columns(tree, {"x": fragment("a + b"), "y": fragment("a - 1")})) == (
        "f(a + b) * 2 + -(a - 1) + t.z")


def test_what_is_used_often_is_computed_once() -> None:
    """`let` names what is more than a column; what is named may be named within it, and means the same."""
    def twice(x: exp.Expression) -> exp.Expression:
        return fragment(":x + :x", x=x)

    assert render(let(column("a"), twice)) == '"a" + "a"'
    deep = number(1)
    for _ in range(12):
        deep = let(fragment(":x + 0", x=deep), twice)
    assert _answer(render(deep)) == 1 << 12
    assert len(render(deep)) < 12 * 100
    nested = let(fragment("abs(:n)", n=7), lambda x: let(fragment("abs(:n)", n=7), lambda y: fragment(
        ":x * 10 + :y + :z", x=x, y=y, z=let(fragment("abs(:x)", x=x), twice))))
    assert _answer(render(nested)) == 91
    assert columns_in(nested) == set()
    both = let_all((fragment("abs(:n)", n=-2), fragment("abs(:n)", n=-3)), lambda x, y: fragment(
        ":x * 10 + :y", x=x, y=y))
    assert _answer(render(both)) == 23


def test_depth_and_length_take_no_stack() -> None:
    """Thousands of operators, calls or conditions are printed, whoever asks."""
    tree: exp.Expression = column("a")
    for _ in range(3000):
        tree = fragment("abs(CASE WHEN :x > 0 THEN 1 END - 1)", x=tree)
    assert render(tree).count("abs(") == 3000
    conditions = [fragment("a = :n", n=n) for n in range(3000)]
    assert render(any_of(conditions)) == " OR ".join(f"a = {n}" for n in range(3000))
    mixed = all_of([any_of([column("a"), column("b")]), fragment("NOT :a", a=column("a")), column("c")])
    assert render(mixed) == '("a" OR "b") AND (NOT "a") AND "c"'


def test_types_have_the_names_that_duckdb_gives_them() -> None:
    """Casts, integers and NULL of a type."""
    for name in ("HUGEINT", "VARCHAR", "FLOAT", "INTEGER", "UTINYINT", "DECIMAL(10, 2)", "BLOB", "TIMESTAMP", "DATE"):
        assert render(cast(column("a"), name)) == f'CAST("a" AS {name})'
        assert render(try_cast(null(name), "VARCHAR")) == f"TRY_CAST(CAST(NULL AS {name}) AS VARCHAR)"
    assert render(integer(-(1 << 63), "HUGEINT")) == f"CAST(-{1 << 63} AS HUGEINT)"


def test_a_type_holds_no_tree() -> None:
    """Types are in all trees: one that knew where it is would keep that tree."""
    for tree in (cast(column("a"), "DATE"), try_cast(column("a"), "DATE"), integer(1, "DATE"), null("DATE")):
        assert tree.args["to"].parent is None
