"""Parses statements: says which words begin which, and what the dialect has that Penstock has not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, cast

from sqlglot import exp
from sqlglot.tokens import Token

from penstock.common.errors import NotSupportedError, SqlSyntaxError
from penstock.common.headroom import with_headroom
from penstock.common.suggestions import alternatives
from penstock.sql.dialect.literals import position
from penstock.sql.dialect.parse_ddl import (
    parse_alter_table,
    parse_create_table,
    parse_create_view,
    parse_drop_table,
)
from penstock.sql.dialect.parse_function import parse_create_function
from penstock.sql.dialect.parse_ingest import parse_alter_ingest, parse_create_ingest
from penstock.sql.dialect.parse_insert import parse_insert
from penstock.sql.dialect.parse_query import QueryParser
from penstock.sql.dialect.parse_show import (
    parse_set,
    parse_show,
)
from penstock.sql.dialect.parse_stream import (
    parse_alter_stream,
    parse_analyze_stream,
    parse_create_materialized_view,
    parse_create_stream,
    parse_drop_materialized_view,
    parse_dry_run,
    parse_replay,
    parse_verify,
)
from penstock.sql.dialect.parse_user import (
    parse_alter_user,
    parse_create_user,
)
from penstock.sql.dialect.statement_forms import FORMS
from penstock.sql.tree.statements import (
    Explain,
    ExplainPart,
    Statement,
)

_CLAUSES = ("WHERE", "PARTITION", "GROUP", "HAVING", "ORDER", "SLIMIT", "LIMIT", "FILL", "INTERVAL", "RANGE", "EVERY")
_CLAUSE_ORDER = (
    "clauses come in this order: FROM, WHERE, PARTITION BY, RANGE, EVERY, window, FILL, GROUP BY, HAVING, WINDOW, "
    "QUALIFY, ORDER BY, SLIMIT, LIMIT"
)
_EXPLAINED = (("STREAM",), ("OR", "REPLACE", "STREAM"), ("MATERIALIZED", "VIEW"), ("INGEST",))
_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_TEXT = 64 * 1024 * 1024


class StatementParser(QueryParser):
    """Every statement of the dialect."""

    EXPRESSION_PARSERS: dict[type[exp.Expression], Callable[[StatementParser], exp.Expression]] = {  # noqa: RUF012
        exp.Expression: QueryParser.parse_expression, exp.Condition: QueryParser.parse_expression,
        exp.Column: QueryParser._parse_column,
        exp.Query: QueryParser.parse_query, exp.Select: QueryParser.parse_query,
    }

    @with_headroom
    def _parse(
        self, parse_method: Callable[[StatementParser], Any], raw_tokens: Iterable[Token], sql: str | None = None
    ) -> list[Any]:
        """Parses one thing after another, separated by semicolons; what is empty between them is skipped."""
        text = sql or ""
        _check_text(text)
        self.begin(text, raw_tokens)
        found: list[Any] = []
        while True:
            while self.take(";"):
                pass
            if self.at_end:
                return found
            self.joins = 0
            self.nests = False
            found.append(parse_method(self))
            if not self.at_end:
                hint = _CLAUSE_ORDER if self.word in _CLAUSES else None
                raise self.fail("the end of the statement is expected", hint=hint)

    def _parse_statement(self) -> Statement:
        start = self.token.start
        for words, parse_rest in _BEGINNINGS.get(self.word, ()):
            if self.take(*words):
                return parse_rest(self, start)
        if self.at_query():
            return self.parse_query()
        self.at_any(*_BEGINNINGS)
        for words, hint in _NOT_SUPPORTED.items():
            if self.at(*words):
                place = position(self.sql, start, self.token_ahead(len(words) - 1).end + 1 - start)
                raise NotSupportedError(f"{' '.join(words)} is not supported", position=place, hint=hint)
        raise self.fail(self._expected_after())

    def _expected_after(self) -> str:
        first = self.word
        rests = [words[1:] for words in _STATEMENTS if words[0] == first and len(words) > 1 and words[1] != "OR"]
        if not rests:
            return "a statement is expected"
        self.advance()
        self.at_any(*(rest[0] for rest in rests))
        objects = [" ".join(rest) for rest in rests]
        return f"{alternatives(objects)} is expected after {first}"

    def parse_explain(self) -> Statement:
        """Parses what follows EXPLAIN."""
        analyze = self.take("ANALYZE")
        if analyze and self.take("STREAM"):
            return parse_analyze_stream(self)
        if self.take("VERBOSE"):
            self.one_of("TRUE", "FALSE")
        part: ExplainPart | None = None
        if not self.at_query() and self.take("("):
            part = cast("ExplainPart", self.one_of("LOGICAL", "SQL", "TASKS"))
            self.expect(")")
        if not self.at_query() and not any(self.at("CREATE", *words) for words in _EXPLAINED):
            raise self.fail("EXPLAIN takes a query, CREATE STREAM, CREATE MATERIALIZED VIEW or CREATE INGEST, "
                            "EXPLAIN ANALYZE also STREAM and its name")
        return Explain(self._parse_statement(), analyze, part)


def _check_text(text: str) -> None:
    """Raises SqlSyntaxError if nobody should try to parse this."""
    if len(text) > MAX_TEXT:
        raise SqlSyntaxError(f"the text has {len(text)} characters; {MAX_TEXT} are allowed")
    surrogate = None if text.isascii() else _SURROGATE.search(text)
    if surrogate is not None:
        raise SqlSyntaxError("the text is not valid Unicode", position=position(text, surrogate.start(), 0))


def _plain(parse_rest: Callable[[StatementParser], Statement]) -> Callable[[StatementParser, int], Statement]:
    return lambda parser, _: parse_rest(parser)


_NO_TRANSACTIONS = "there are no transactions: a statement is whole or not at all, and stays"

# What TDengine or standard SQL has and Penstock has not: said so, instead of calling it a syntax error; and a hint.
_NOT_SUPPORTED: dict[tuple[str, ...], str | None] = {
    ("UPDATE",): "INSERT of a row that is there updates the columns that it names",
    **dict.fromkeys((("BEGIN",), ("COMMIT",), ("ROLLBACK",)), _NO_TRANSACTIONS),
    **dict.fromkeys((
        *(("CREATE", noun) for noun in ("TOPIC", "INDEX", "DNODE", "MNODE", "QNODE", "TSMA")),
        *(("DROP", noun) for noun in ("TOPIC", "INDEX", "DNODE", "MNODE", "QNODE", "TSMA")),
        *(("ALTER", noun) for noun in ("DNODE", "LOCAL", "CLUSTER", "VIEW")),
        ("CREATE", "OR"), ("DROP", "CONSUMER"), ("KILL", "CONNECTION"), ("KILL", "TRANSACTION"), ("BALANCE",),
        ("COMPACT",), ("MERGE",), ("REDISTRIBUTE",), ("RESET",), ("RECOVER",))),
}

_STATEMENTS: dict[tuple[str, ...], Callable[[StatementParser, int], Statement]] = {
    **{tuple(form.words.split()): _plain(form.parse) for form in FORMS},
    ("INSERT",): _plain(parse_insert),
    ("IMPORT",): _plain(parse_insert),
    ("SHOW",): _plain(parse_show),
    ("SET",): _plain(parse_set),
    ("CREATE", "TABLE"): lambda parser, _: parse_create_table(parser, must_be_super=False),
    ("CREATE", "STABLE"): lambda parser, _: parse_create_table(parser, must_be_super=True),
    ("CREATE", "STREAM"): parse_create_stream,
    ("CREATE", "OR", "REPLACE", "STREAM"):
        lambda parser, start: parse_create_stream(parser, start, or_replace=True),
    ("CREATE", "MATERIALIZED", "VIEW"): parse_create_materialized_view,
    ("DROP", "MATERIALIZED", "VIEW"): _plain(parse_drop_materialized_view),
    ("CREATE", "VIEW"): lambda parser, _: parse_create_view(parser, or_replace=False),
    ("CREATE", "OR", "REPLACE", "VIEW"): lambda parser, _: parse_create_view(parser, or_replace=True),
    ("CREATE", "INGEST"): parse_create_ingest,
    ("CREATE", "FUNCTION"): lambda parser, _: parse_create_function(parser, aggregate=False),
    ("CREATE", "AGGREGATE", "FUNCTION"): lambda parser, _: parse_create_function(parser, aggregate=True),
    ("CREATE", "OR", "REPLACE", "FUNCTION"):
        lambda parser, _: parse_create_function(parser, aggregate=False, replace=True),
    ("CREATE", "OR", "REPLACE", "AGGREGATE", "FUNCTION"):
        lambda parser, _: parse_create_function(parser, aggregate=True, replace=True),
    ("CREATE", "USER"): _plain(parse_create_user),
    ("ALTER", "USER"): _plain(parse_alter_user),
    ("ALTER", "TABLE"): lambda parser, _: parse_alter_table(parser, must_be_super=False),
    ("ALTER", "STABLE"): lambda parser, _: parse_alter_table(parser, must_be_super=True),
    ("ALTER", "STREAM"): _plain(parse_alter_stream),
    ("ALTER", "INGEST"): _plain(parse_alter_ingest),
    ("DROP", "TABLE"): lambda parser, _: parse_drop_table(parser, must_be_super=False),
    ("DROP", "STABLE"): lambda parser, _: parse_drop_table(parser, must_be_super=True),
    ("VERIFY", "STREAM"): _plain(parse_verify),
    ("DRY", "RUN"): _plain(parse_dry_run),
    ("REPLAY", "DLQ"): parse_replay,
    ("EXPLAIN",): _plain(StatementParser.parse_explain),
}

_BEGINNINGS = {
    first: tuple((words, parse_rest) for words, parse_rest in _STATEMENTS.items() if words[0] == first)
    for first in {words[0]: None for words in _STATEMENTS}
}
"""The statements by their first words."""
