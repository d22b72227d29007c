"""Parses statements: says which words begin which, and what the dialect has that Penstock has not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, cast

from sqlglot import exp
from sqlglot.tokens import Token

from penstock.common.errors import NotSupportedError, SqlSyntaxError
from penstock.common.headroom import with_headroom
from penstock.sql.dialect.literals import position
from penstock.sql.dialect.parse_connection import (
    parse_alter_connection,
    parse_create_connection,
)
from penstock.sql.dialect.parse_ddl import (
    parse_alter_database,
    parse_alter_table,
    parse_create_database,
    parse_create_table,
    parse_drop_table,
    parse_flush,
    parse_split_vgroup,
    parse_trim,
)
from penstock.sql.dialect.parse_function import parse_create_function
from penstock.sql.dialect.parse_ingest import parse_alter_ingest, parse_create_ingest
from penstock.sql.dialect.parse_insert import parse_delete, parse_insert
from penstock.sql.dialect.parse_query import QueryParser
from penstock.sql.dialect.parse_show import (
    parse_describe,
    parse_kill_query,
    parse_promote,
    parse_set,
    parse_show,
    parse_switchover,
)
from penstock.sql.dialect.parse_stream import (
    parse_alter_stream,
    parse_analyze_stream,
    parse_create_materialized_view,
    parse_create_snode,
    parse_create_stream,
    parse_drop_materialized_view,
    parse_drop_savepoint,
    parse_drop_snode,
    parse_dry_run,
    parse_note_time,
    parse_pause,
    parse_recalculate,
    parse_replay,
    parse_resume,
    parse_start_stream,
    parse_stop_stream,
    parse_verify,
)
from penstock.sql.dialect.parse_user import (
    parse_alter_user,
    parse_create_user,
    parse_grant,
    parse_revoke,
)
from penstock.sql.dialect.parse_view import parse_create_view
from penstock.sql.tree.statements import (
    CheckpointStream,
    DropConnection,
    DropDatabase,
    DropFunction,
    DropIngest,
    DropStream,
    DropUser,
    DropView,
    Explain,
    ExplainPart,
    Name,
    Statement,
    TestConnection,
    UseDatabase,
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
        return f"{', '.join(objects[:-1])} or {objects[-1]} is expected after {first}"

    def parse_explain(self) -> Statement:
        """Parses what follows EXPLAIN."""
        analyze = self.take("ANALYZE")
        if analyze and self.take("STREAM"):
            return parse_analyze_stream(self)
        if self.take("VERBOSE") and self.take_any("TRUE", "FALSE") is None:
            raise self.fail("TRUE or FALSE is expected")
        part: ExplainPart | None = None
        if not self.at_query() and self.take("("):
            word = self.take_any("LOGICAL", "SQL", "TASKS")
            if word is None:
                raise self.fail("LOGICAL, SQL or TASKS is expected")
            self.expect(")")
            part = cast("ExplainPart", word.lower())
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


def _of(
    kind: type[Statement], read: Callable[[StatementParser], str | Name]
) -> Callable[[StatementParser, int], Statement]:
    """Returns what parses `[IF EXISTS] name [CASCADE]`, of the options those that the statement has."""
    def parse(parser: StatementParser, _: int) -> Statement:
        options = {"if_exists": parser.take_if_exists()} if "if_exists" in kind.parts else {}
        name = read(parser)
        if "cascade" in kind.parts:
            options["cascade"] = parser.take("CASCADE")
        return kind(name, **options)

    return parse


def _named(kind: type[Statement], what: str) -> Callable[[StatementParser, int], Statement]:
    return _of(kind, lambda parser: parser.name(what))


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
    ("INSERT",): _plain(parse_insert),
    ("IMPORT",): _plain(parse_insert),
    ("SHOW",): _plain(parse_show),
    ("USE",): _named(UseDatabase, "a database name"),
    ("SET",): _plain(parse_set),
    ("DESCRIBE",): _plain(parse_describe),
    ("DESC",): _plain(parse_describe),
    ("DELETE",): _plain(parse_delete),
    ("CREATE", "DATABASE"): _plain(parse_create_database),
    ("CREATE", "TABLE"): lambda parser, _: parse_create_table(parser, must_be_super=False),
    ("CREATE", "STABLE"): lambda parser, _: parse_create_table(parser, must_be_super=True),
    ("CREATE", "STREAM"): parse_create_stream,
    ("CREATE", "OR", "REPLACE", "STREAM"):
        lambda parser, start: parse_create_stream(parser, start, or_replace=True),
    ("CREATE", "MATERIALIZED", "VIEW"): parse_create_materialized_view,
    ("DROP", "MATERIALIZED", "VIEW"): _plain(parse_drop_materialized_view),
    ("CREATE", "VIEW"): lambda parser, _: parse_create_view(parser, or_replace=False),
    ("CREATE", "OR", "REPLACE", "VIEW"): lambda parser, _: parse_create_view(parser, or_replace=True),
    ("CREATE", "SNODE"): _plain(parse_create_snode),
    ("CREATE", "INGEST"): parse_create_ingest,
    ("CREATE", "FUNCTION"): lambda parser, _: parse_create_function(parser, aggregate=False),
    ("CREATE", "AGGREGATE", "FUNCTION"): lambda parser, _: parse_create_function(parser, aggregate=True),
    ("CREATE", "OR", "REPLACE", "FUNCTION"):
        lambda parser, _: parse_create_function(parser, aggregate=False, replace=True),
    ("CREATE", "OR", "REPLACE", "AGGREGATE", "FUNCTION"):
        lambda parser, _: parse_create_function(parser, aggregate=True, replace=True),
    ("CREATE", "USER"): _plain(parse_create_user),
    ("ALTER", "USER"): _plain(parse_alter_user),
    ("DROP", "USER"): _named(DropUser, "a user name"),
    ("GRANT",): _plain(parse_grant),
    ("REVOKE",): _plain(parse_revoke),
    ("CREATE", "CONNECTION"): _plain(parse_create_connection),
    ("ALTER", "CONNECTION"): _plain(parse_alter_connection),
    ("DROP", "CONNECTION"): _named(DropConnection, "a connection name"),
    ("TEST", "CONNECTION"): _named(TestConnection, "a connection name"),
    ("ALTER", "DATABASE"): _plain(parse_alter_database),
    ("ALTER", "TABLE"): lambda parser, _: parse_alter_table(parser, must_be_super=False),
    ("ALTER", "STABLE"): lambda parser, _: parse_alter_table(parser, must_be_super=True),
    ("ALTER", "STREAM"): _plain(parse_alter_stream),
    ("ALTER", "INGEST"): _plain(parse_alter_ingest),
    ("CHECKPOINT", "STREAM"): _of(CheckpointStream, QueryParser.stream_name),
    ("STOP", "STREAM"): _plain(parse_stop_stream),
    ("START", "STREAM"): _plain(parse_start_stream),
    ("DROP", "DATABASE"): _named(DropDatabase, "a database name"),
    ("DROP", "TABLE"): lambda parser, _: parse_drop_table(parser, must_be_super=False),
    ("DROP", "STABLE"): lambda parser, _: parse_drop_table(parser, must_be_super=True),
    ("DROP", "VIEW"): _of(DropView, lambda parser: parser.object_name("a view name")),
    ("DROP", "STREAM"): _of(DropStream, QueryParser.stream_name),
    ("DROP", "SAVEPOINT"): _plain(parse_drop_savepoint),
    ("DROP", "SNODE"): _plain(parse_drop_snode),
    ("DROP", "INGEST"): _named(DropIngest, "the name of an ingest"),
    ("DROP", "FUNCTION"): _named(DropFunction, "a function name"),
    ("PAUSE",): _plain(parse_pause),
    ("RESUME",): _plain(parse_resume),
    ("RECALCULATE", "STREAM"): _plain(parse_recalculate),
    ("VERIFY", "STREAM"): _plain(parse_verify),
    ("DRY", "RUN"): _plain(parse_dry_run),
    ("REPLAY", "DLQ"): parse_replay,
    ("NOTE", "TIME"): _plain(parse_note_time),
    ("EXPLAIN",): _plain(StatementParser.parse_explain),
    ("KILL", "QUERY"): _plain(parse_kill_query),
    ("SWITCHOVER",): _plain(parse_switchover),
    ("PROMOTE",): _plain(parse_promote),
    ("FLUSH",): _plain(parse_flush),
    ("TRIM",): _plain(parse_trim),
    ("SPLIT", "VGROUP"): _plain(parse_split_vgroup),
}

_BEGINNINGS = {
    first: tuple((words, parse_rest) for words, parse_rest in _STATEMENTS.items() if words[0] == first)
    for first in {words[0]: None for words in _STATEMENTS}
}
"""The statements by their first words."""
