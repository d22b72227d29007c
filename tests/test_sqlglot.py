"""The dialect as other programs see it: those that import sqlglot alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sqlglot
from sqlglot import exp
from sqlglot.tokens import TokenType
from tests.golden_runner import read_blocks

from penstock.common.errors import PenstockError
from penstock.sql.parser import parse

SCRIPTS = sorted((Path(__file__).parent / "golden").glob("*/*.txt"))
PROGRAM = """
import json, sys
import sqlglot

answers = []
for text in json.load(sys.stdin):
    try:
        answers.append([type(tree).__name__ for tree in sqlglot.parse(text, dialect="tdengine")])
    except sqlglot.ParseError as error:
        answers.append(str(error))
json.dump(answers, sys.stdout)
"""


def answer(text: str) -> list[str] | str:
    """Returns the kinds of the statements in a text, or what is wrong with it."""
    try:
        return [type(statement).__name__ for statement in parse(text)]
    except PenstockError as error:
        return str(error)


def test_a_program_that_imports_sqlglot_alone_parses_every_statement(tmp_path: Path) -> None:
    """All statements of the golden scripts, right and wrong ones, give what they give Penstock itself."""
    texts = [block.statement for path in SCRIPTS for block in read_blocks(path) if block.statement]
    assert len(texts) > 1000
    run = subprocess.run([sys.executable, "-P", "-c", PROGRAM], input=json.dumps(texts), capture_output=True,
                         text=True, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stderr
    for text, given in zip(texts, json.loads(run.stdout), strict=True):
        assert given == answer(text), text


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
    program = "import sqlglot.tokens as tokens; tokens.SQLGLOTC_INSTALLED = True; import penstock.sql.parser"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "uninstall the package sqlglotc" in run.stderr
