"""The dialect as other programs see it: those that import sqlglot alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
import sqlglot
from kits.basics.golden_runner import read_blocks
from kits.basics.places import GOLDEN
from sqlglot import exp
from sqlglot.tokens import TokenType

from penstock.common.errors import PenstockError
from penstock.sql.dialect.generator import print_sql
from penstock.sql.dialect.parser import parse

SCRIPTS = sorted((GOLDEN).glob("*/*.txt"))
PROGRAM = """
import json, sys
import sqlglot

answers = []
for text in json.load(sys.stdin):
    try:
        trees = sqlglot.parse(text, dialect="tdengine")
    except sqlglot.ParseError as error:
        answers.append(str(error))
        continue
    answers.append([type(tree).__name__ for tree in trees])
    for tree in trees:
        printed = tree.sql(dialect="tdengine")
        again = sqlglot.parse_one(printed, dialect="tdengine")
        assert again == tree, printed
        assert again.sql(dialect="tdengine") == printed
json.dump(answers, sys.stdout)
"""
TOOLS = """
import json, sys
import sqlglot
from sqlglot.diff import Remove
from sqlglot.lineage import lineage

stream = sqlglot.parse_one(
    "create stream s into o as select _wstart ws, avg(x) mean from (select ts, v * 2 x from d.m) interval(10s)",
    dialect="tdengine")
schema = {"d": {"m": {"ts": "timestamp", "v": "int"}}}
root = lineage("mean", stream.query, schema, dialect="tdengine")
other = sqlglot.parse_one(stream.sql(dialect="tdengine").replace("v * 2", "v"), dialect="tdengine")
edits = sqlglot.diff(stream, other, delta_only=True, dialect="tdengine")
json.dump({
    "lineage": [node.name for node in root.walk()],
    "removed": sorted(edit.expression.sql(dialect="tdengine") for edit in edits if isinstance(edit, Remove)),
}, sys.stdout)
"""
#: What sqlglot calls the classes of queries.
QUERIES = {"TDengineSelect": "Select", "Union": "SetOperation", "Intersect": "SetOperation", "Except": "SetOperation",
           "Values": "ValuesQuery"}


def answer(text: str) -> list[str] | str:
    """Returns the kinds of the statements in a text, or what is wrong with it."""
    try:
        return [type(statement).__name__ for statement in parse(text)]
    except PenstockError as error:
        return str(error)


def test_a_program_that_imports_sqlglot_alone_parses_every_statement(tmp_path: Path) -> None:
    """All statements of the golden scripts, right and wrong ones, give what they give Penstock itself; what is right
    prints, and that is read back as an equal tree."""
    texts = [block.statement for path in SCRIPTS for block in read_blocks(path) if block.statement]
    assert len(texts) > 1000
    run = subprocess.run([sys.executable, "-P", "-c", PROGRAM], input=json.dumps(texts), capture_output=True,
                         text=True, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stderr
    for text, given in zip(texts, json.loads(run.stdout), strict=True):
        kinds = given if isinstance(given, str) else [QUERIES.get(kind, kind) for kind in given]
        assert kinds == answer(text), text


def test_tools_of_sqlglot_know_the_queries_of_streams(tmp_path: Path) -> None:
    """Lineage goes through windows and sub-queries to the column of the table, and diff tells what has changed."""
    run = subprocess.run([sys.executable, "-P", "-c", TOOLS], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["lineage"] == ["mean", "_0.x", "m.v"]
    assert found["removed"] == ["2", "v * 2"]


@pytest.mark.parametrize("text", [
    *(f"dry run create stream s into o as select a.ts from {tables} on sample ({sample})"
      for tables in ("a, b", "a join b", "a inner join b", "a left asof join b", "a join b on sample(file) > 1")
      for sample in ("from 1 to 2", "file 'rows.csv'")),
    "select * from a join (b between cut '1:1' and '1:2' x join c on x.ts = c.ts) on a.ts = x.ts",
    "select * from a join (b between cut '1:1' and '1:2', c) on a.ts = b.ts",
    "select * from a join (connection k (table 't') x left asof join c on x.ts >= c.ts jlimit 2) on a.ts = x.ts",
    "select * from (b between cut '1:1' and '1:2' x join c on x.ts = c.ts)",
])
def test_joins_print_back(text: str) -> None:
    """Those without ON where another ON follows, and those whose first table no other dialect has."""
    tree = sqlglot.parse_one(text, dialect="tdengine")
    assert sqlglot.parse_one(tree.sql(dialect="tdengine"), dialect="tdengine") == tree
    statement, = parse(text)
    assert parse(print_sql(statement)) == [statement]
    assert parse(tree.sql(dialect="tdengine")) == [statement]


@pytest.mark.parametrize("text", [
    "select n, v * 2 w from t where v between 2 and 4 and not n is null order by n desc, w limit 3 offset 1",
    "select a.n, b.v from t a left join u b on a.n = b.n and b.v > 1 order by a.n, b.v",
    "select n, count(*) c, sum(v) s from (select n, v from t union all select n, v from u) q group by n "
    "having count(*) > 1 order by n nulls last",
    "select n from t union select n from u order by n",
    "select a.n x, c.v y from t a, (u b join u c on b.n = c.n) where a.n = b.n order by x, y",
    "select distinct case when v > 3 then 'much' else 'little' end k from t order by k",
    "with a as (select n, v from t), b(m) as (select max(v) from a) select n, v from a where v < (select m from b) "
    "and n in (select n from u where u.v > a.v) and exists (select 1 from u) order by n, v",
    "select n from t intersect all select n from u except select 1 order by n",
    "select n || 'x' x, v y from t where n is distinct from 2 and (v > 1) is true order by x, y",
])
def test_plain_queries_transpile_to_duckdb(text: str) -> None:
    """DuckDB takes what sqlglot makes of it, and its answer is that of the same query in DuckDB's own words."""
    database = duckdb.connect()
    database.execute("create table t as select nullif(x % 5, 0) n, x v from range(8) r(x)")
    database.execute("create table u as select nullif(x % 3, 0) n, x v from range(6) r(x)")
    printed, = sqlglot.transpile(text, read="tdengine", write="duckdb")
    database.execute("set default_null_order = 'nulls_first_on_asc_last_on_desc'")  # as TDengine has it
    wanted = database.execute(text).fetchall()
    assert len(wanted) > 1
    database.execute("reset default_null_order")
    assert database.execute(printed).fetchall() == wanted


@pytest.mark.parametrize("text", [
    "select count(*) from t interval(10s)", "select a.n from t a left asof join u b on a.ts >= b.ts",
    "select tags g from t", "select v from t partition by n slimit 1", "select v from t between cut '1' and '2'",
    "drop stream s",
])
def test_what_other_dialects_lack_is_refused(text: str) -> None:
    """Rather than printed without it."""
    with pytest.raises(ValueError, match="Unsupported expression type"):
        sqlglot.transpile(text, read="tdengine", write="duckdb")


def test_errors_have_the_place_where_sqlglot_has_it() -> None:
    """Message, line, column and the text there; only the first error is told."""
    with pytest.raises(sqlglot.ParseError) as raised:
        sqlglot.parse_one("select a\nfrom t whre b", dialect="tdengine", error_level=sqlglot.ErrorLevel.RAISE)
    error, = raised.value.errors
    assert (error["line"], error["col"], error["highlight"]) == (2, 13, "b")
    assert error["description"] == "syntax error: the end of the statement is expected"
    with pytest.raises(sqlglot.ParseError, match="CREATE TOPIC is not supported"):
        sqlglot.parse_one("create topic x", dialect="tdengine")
    with pytest.raises(sqlglot.ParseError, match="nested more than 50 levels deep"):
        sqlglot.condition("(" * 100 + "a" + ")" * 100, dialect="tdengine")


def test_expressions_parse_by_themselves() -> None:
    """As sqlglot's builders ask for them."""
    condition = sqlglot.condition("a > 1 and b is not null", dialect="tdengine")
    assert isinstance(condition, exp.And)
    assert sqlglot.parse_one("t.`B`", dialect="tdengine", into=exp.Column) == exp.column(
        exp.to_identifier("B", quoted=True), table=exp.to_identifier("t", quoted=False))
    query = sqlglot.parse_one("select a from t", dialect="tdengine", into=exp.Query)
    assert query == sqlglot.parse_one("select a from t", dialect="tdengine")
    with pytest.raises(sqlglot.ParseError, match="the end of the statement is expected"):
        sqlglot.condition("a > 1 b", dialect="tdengine")


def test_tokens_have_their_places() -> None:
    """Offsets, lines and columns; rows of an INSERT are one token, and text is without quotes."""
    text = "insert into `T`\n values (1, 'a)')\n (2, 'b') -- rows\n u values ('c')"
    tokens = sqlglot.tokenize(text, dialect="tdengine")
    assert [text[token.start:token.end + 1] for token in tokens] == [
        "insert", "into", "`T`", "values", "(1, 'a)')\n (2, 'b')", "u", "values", "('c')"]
    assert [(token.line, token.col) for token in tokens[2:6]] == [(1, 13), (2, 2), (2, 9), (4, 2)]
    kinds = [TokenType.IDENTIFIER, TokenType.VALUES, TokenType.ROWS, TokenType.VAR]
    assert [(token.token_type, token.text) for token in tokens[2:6]] == list(
        zip(kinds, ["T", "values", "(1, 'a)')\n (2, 'b')", "u"], strict=True))
    assert [(token.token_type, token.text) for token in sqlglot.tokenize("10s 0x1F 'it''s' $", dialect="tdengine")] == [
        (TokenType.INTERVAL, "10s"), (TokenType.NUMBER, "0x1F"), (TokenType.STRING, "it's"), (TokenType.UNKNOWN, "$")]


def test_compiled_sqlglot_is_refused() -> None:
    """It fails on the first class of ours, with words that help nobody; so what to do is said before."""
    program = "import sqlglot.tokens as tokens; tokens.SQLGLOTC_INSTALLED = True; import penstock.sql.dialect.parser"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "the package sqlglotc allows no other dialects" in run.stderr
