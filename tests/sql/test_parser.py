"""What the parser makes of statements: golden scripts, positions, names, and texts of any kind."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.golden_runner import read_blocks, render, run_golden
from kits.basics.places import TESTS
from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from penstock.common.errors import NotSupportedError, PenstockError, SqlSyntaxError
from penstock.sql.dialect.parse_statement import StatementParser
from penstock.sql.dialect.parser import parse, parse_one
from penstock.sql.dialect.tokenizer import scan, skip_rows
from penstock.sql.tree.expression_nodes import PSEUDO_COLUMNS, cast_type, expression_sql, source_range
from penstock.sql.tree.statements import CreateStream, Insert, Query, Select, SetOperation
from penstock.sql.types import DataType, Kind

GOLDEN = TESTS / "golden" / "parser"
SCRIPTS = sorted(GOLDEN.glob("*.txt"))
STATEMENTS = [block.statement for path in SCRIPTS for block in read_blocks(path) if block.statement]


def render_all(text: str) -> str:
    return "\n".join(render(statement) for statement in parse(text))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_golden_scripts(path: Path) -> None:
    """Statements come out as the golden scripts say."""
    run_golden(path, render_all)


def answer(text: str) -> str:
    """Returns the message of the parser's error, or nothing if there is none; other errors are not caught."""
    try:
        parse(text)
    except (SqlSyntaxError, NotSupportedError) as error:
        return str(error)
    return ""


def expression(text: str) -> exp.Expression:
    statement = parse_one(f"select {text}")
    assert isinstance(statement, Select)
    return statement.items[0].expression


@pytest.mark.parametrize("text", [
    block.statement.removeprefix("select ") for block in read_blocks(GOLDEN / "expressions.txt")
])
def test_printed_expressions_parse_to_the_same_tree(text: str) -> None:
    """Printing a tree in our dialect and parsing that gives the same tree."""
    statement = parse_one(f"select {text}")
    assert isinstance(statement, Select)
    for item in statement.items:
        assert expression(expression_sql(item.expression)) == item.expression


def is_query(node: exp.Expression) -> bool:
    return isinstance(node, Query)


@pytest.mark.parametrize("text", STATEMENTS)
def test_every_node_knows_its_source(text: str) -> None:
    """Each node's range lies within that of the whole item, whose text is the slice (without a unary plus)."""
    try:
        statements = parse(text)
    except PenstockError:
        return
    for statement in statements:
        if not isinstance(statement, Select):
            continue
        for item in statement.items:
            if not item.text:
                continue  # the star that FROM alone stands for
            start, end = source_range(item.expression)
            assert text[start:end] == item.text.removeprefix("+")
            for node in item.expression.walk(prune=is_query):
                inner = source_range(node)
                if is_query(node):
                    continue
                assert start <= inner[0] < inner[1] <= end


def test_names_fold_to_lower_case_unless_quoted() -> None:
    """Plain names are lower-cased, back-quoted ones kept; a quoted pseudo column is an ordinary one."""
    column = expression("Tb.`_WStart`")
    assert (column.name, column.table, column.this.quoted) == ("_WStart", "tb", True)
    for name in sorted(PSEUDO_COLUMNS):
        column = expression(name.upper())
        assert isinstance(column, exp.Column)
        assert (column.name, column.this.quoted) == (name, False)


@pytest.mark.parametrize("name", [
    "string", "value", "time", "first", "count", "status", "name", "key", "offset", "file", "window", "start", "level",
    "user", "options", "prev", "update", "type",
])
def test_most_words_are_legal_names(name: str) -> None:
    """Words without a meaning of their own in an expression are names of columns, tables and databases."""
    parse(f"create table {name}.{name} (ts timestamp, {name} int); select {name}, t.{name} from {name} t "
          f"where {name} > 1 order by {name}; create database {name}; insert into {name} ({name}) values (1)")


@pytest.mark.parametrize("name", ["session", "tags", "int", "table", "select", "interval", "now", "null", "trigger"])
def test_reserved_words_need_back_quotes(name: str) -> None:
    """Reserved words are refused as names, with a hint that back-quotes help, and they do."""
    with pytest.raises(SqlSyntaxError) as caught:
        parse(f"create table t (ts timestamp, {name} int)")
    assert "back-quotes" in str(caught.value) or f"`{name}`" in str(caught.value)
    parse(f"create table t (ts timestamp, `{name}` int)")


def test_error_position_counts_lines_and_columns() -> None:
    """Line and column are those of the offending text in the whole text, also after other statements."""
    with pytest.raises(SqlSyntaxError) as caught:
        parse("use d;\n\nselect a +\n   from t")
    assert caught.value.position is not None
    assert (caught.value.position.line, caught.value.position.column, caught.value.position.text) == (4, 4, "from")


def test_casts_carry_our_types() -> None:
    """A CAST's target is a DataType of ours."""
    cast = expression("cast(a as nchar(5))")
    assert isinstance(cast, exp.Cast)
    assert cast_type(cast) == DataType(Kind.NCHAR, length=5)


def test_function_calls_keep_name_and_arguments() -> None:
    """No call is turned into a class of sqlglot's own, even where it knows the function."""
    for name in ("count", "sum", "substr", "concat_ws", "to_timestamp", "date", "if", "mod", "log", "left"):
        call = expression(f"{name}(a, 2)")
        assert type(call) is exp.Anonymous
        assert (call.this, [argument.sql() for argument in call.expressions]) == (name, ["a", "2"])


def test_statements_are_split_at_semicolons_outside_of_quotes() -> None:
    """Semicolons in strings, names, rows and comments don't end a statement; empty statements are skipped."""
    statements = parse(";;select ';', `a;b` from t -- ;\n; /* ; */ insert into t values (';', 1);;")
    assert [type(statement).__name__ for statement in statements] == ["Select", "Insert"]
    assert parse(" \n-- nothing\n") == []
    with pytest.raises(SqlSyntaxError):
        parse_one("select 1; select 2")


def test_stream_text_is_the_statement_as_typed() -> None:
    """`text` of a stream begins at CREATE and ends with the query, and parses to the same stream."""
    text = "create  stream s into o as select ts,\n a from t"
    statement = parse(f"use d; {text} ; use e")[1]
    assert isinstance(statement, CreateStream)
    assert statement.source_text == text
    assert parse_one(statement.source_text) == parse_one(text)


def test_long_conditions_do_not_exhaust_the_stack() -> None:
    """Thousands of ORs parse to a shallow tree, and thousands of values in IN are fine."""
    statement = parse_one("select 1 from t where " + " or ".join(f"a = {i}" for i in range(5000)))
    assert isinstance(statement, Select)
    assert statement.where is not None
    assert expression_sql(statement.where).count(" OR ") == 4999
    parse_one(f"select 1 from t where a in ({', '.join(map(str, range(5000)))})")
    unions = parse_one(" union all ".join(["select 1"] * 50))
    assert isinstance(unions, SetOperation)


@pytest.mark.parametrize("text", [
    "select " + "(" * 5000 + "1" + ")" * 5000, "select " + "-" * 5001 + "1", "select " + "+".join(["1"] * 5000),
    "select " + "not " * 5000 + "1", "select " + "f(" * 5000, "select 1 from " + "(" * 5000 + "select 1",
    "(" * 5000 + "select 1", "select " + "case " * 5000, "select " + "9" * 5000, "select 0x" + "f" * 5000,
    "select 1 from t interval(" + "9" * 5000 + "s)", "select " + "- " * 5000 + "1", "explain " * 5000 + "select 1",
    "select 1 limit " + "9" * 5000, "select " + "a->'b'" * 5000, " union ".join(["select 1"] * 5000),
    "select 1 from a " + "join b " * 5000,
])
def test_deep_or_long_texts_are_refused_or_parsed(text: str) -> None:
    """However deep a text is nested, the parser answers with statements or a short syntax error."""
    assert len(answer(text)) < 400


@pytest.mark.parametrize("text", ["(" * 5000, "select a b c " + "x " * 5000, "insert into t " + "(" * 5000])
def test_what_is_wrong_early_is_told_without_reading_on(text: str) -> None:
    """Tokens are made on demand, so a long text costs nothing behind its first error."""
    made = 0

    def counted() -> Iterator[Token]:
        nonlocal made
        for token in scan(text):
            made += 1
            yield token

    with pytest.raises(SqlSyntaxError):
        StatementParser().parse(counted(), text)
    assert made < 100


def test_rows_are_not_tokenised() -> None:
    """The text of the rows is handed on as it is, with its place in the statement."""
    rows = "(1, 'a;b') (2, \"c)d\") , (3, ')(')\n(4, now() + 1s)"
    text = f"insert into t (ts, s) values {rows} u values (5, 6)"
    statement = parse_one(text)
    assert isinstance(statement, Insert)
    first, second = statement.targets
    assert first.rows == rows
    assert text[first.rows_offset:].startswith(rows)
    assert second.rows == "(5, 6)"


LEAVES = st.sampled_from([
    "a", "T.b", "`C d`", "1", "-2.5", "1e-3", "'x'", '"it\'s"', "null", "true", "10s", "now", "tbname",
    "timestamp '2020-01-01'",
])
OPERANDS = st.recursive(LEAVES, lambda inner: st.one_of(
    st.tuples(inner, st.sampled_from("+-*/%&|"), inner).map(" ".join),
    inner.map(lambda x: f"-{x}" if not x.startswith("-") else f"- {x}"),
    inner.map(lambda x: f"({x})"), inner.map(lambda x: f"cast({x} as varchar(9))"),
    st.lists(inner, max_size=3).map(lambda items: f"f({', '.join(items)})"),
    st.tuples(inner, inner, inner).map(lambda x: f"case when {x[0]} > 0 then {x[1]} else {x[2]} end"),
    st.tuples(inner, inner).map(lambda x: f"trim(leading {x[0]} from {x[1]})"),
), max_leaves=8)
CONDITIONS = st.recursive(st.one_of(
    st.tuples(OPERANDS, st.sampled_from(["=", "<>", "<", ">="]), OPERANDS).map(" ".join),
    OPERANDS.map(lambda x: f"{x} is not null"), OPERANDS.map(lambda x: f"{x} not like 'a%'"),
    OPERANDS.map(lambda x: f"{x} nmatch 'a'"),
    st.tuples(OPERANDS, OPERANDS).map(lambda x: f"{x[0]} not in ({x[1]}, 1)"),
    st.tuples(OPERANDS, OPERANDS, OPERANDS).map(lambda x: f"{x[0]} between {x[1]} and {x[2]}"),
), lambda inner: st.one_of(
    st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join), inner.map(lambda x: f"not {x}"),
    inner.map(lambda x: f"({x})"),
), max_leaves=4)


@settings(max_examples=times(80, 2000), deadline=None)
@given(CONDITIONS)
def test_any_expression_prints_and_parses_to_itself(text: str) -> None:
    """Printing keeps the tree, and the tree's range is the whole text."""
    tree = expression(text)
    assert expression(expression_sql(tree)) == tree
    assert source_range(tree) == (len("select "), len("select ") + len(text))


@settings(max_examples=times(60, 1500), deadline=None)
@given(st.text(max_size=60) | st.text(alphabet="select(),.'\"`*->=<0123456789 \\/;\n", max_size=60))
def test_any_text_gives_statements_or_a_syntax_error(text: str) -> None:
    """Random text never raises anything but the parser's own errors."""
    answer(text)


@settings(max_examples=times(120, 3000), deadline=None)
@given(st.sampled_from(STATEMENTS), st.randoms(use_true_random=False))
def test_mutated_statements_give_statements_or_a_syntax_error(text: str, source: random.Random) -> None:
    """Real statements with pieces cut, repeated, swapped or taken from others never raise anything else."""
    pieces = text.split(" ")
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(pieces))
        other = source.choice(STATEMENTS).split(" ")
        match source.randrange(5):
            case 0:
                del pieces[at:at + source.randint(1, 3)]
            case 1:
                pieces.insert(at, source.choice(other))
            case 2:
                pieces[at] = pieces[at][: source.randint(0, len(pieces[at]))]
            case 3:
                pieces[at:at + 1] = other[: source.randint(1, 6)]
            case _:
                pieces.insert(at, source.choice(["'", '"', "`", "(", ")", ",", ";", "/*", "--", "\0", "é", "1s", "-"]))
        pieces = pieces or [""]
    answer(" ".join(pieces))


def end_of_rows(text: str) -> int:
    """The same as `skip_rows`, token by token."""
    end = depth = 0
    for token in scan(text):
        kind = token.token_type
        if not token or kind is TokenType.UNKNOWN:
            break
        if depth == 0 and kind not in (TokenType.L_PAREN, TokenType.COMMA):
            break
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(kind, 0)
        if kind is TokenType.R_PAREN and depth == 0:
            end = token.end + 1
    return end


@settings(max_examples=times(160, 4000), deadline=None)
@given(st.lists(st.sampled_from([
    "(", "(", ")", ")", ",", "'", '"', "\\", " a", "1", " ", "-", "--", "\n", "/", "*", "/*", "*/", "''", "('x')",
    "(1,'a')",
]), max_size=16).map("".join))
def test_skipping_rows_ends_where_the_tokens_do(text: str) -> None:
    """The regular expression that skips rows knows strings, comments and brackets as the tokens do."""
    deep = re.search(r"\([^)]*\([^)]*\([^)]*\(", text)
    if not deep:
        assert skip_rows(text, 0) == end_of_rows(text)
