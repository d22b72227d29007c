"""sqlglot's dialect `tdengine`: `sqlglot.parse_one(text, dialect="tdengine")` knows every statement of Penstock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError
from sqlglot.tokens import SQLGLOTC_INSTALLED

from penstock.common.errors import NotSupportedError, SqlSyntaxError
from penstock.sql.dialect.generator import StatementGenerator
from penstock.sql.dialect.parse_statement import StatementParser
from penstock.sql.dialect.sqlglot_queries import as_sqlglot
from penstock.sql.dialect.tokenizer import Tokenizer, check_words, scan
from penstock.sql.tree.statements import Statement

if SQLGLOTC_INSTALLED:
    raise RuntimeError("the package sqlglotc allows no other dialects: uninstall it")


class TDengine(Dialect):  # type: ignore[misc]
    """TDengine's SQL as Penstock takes it.

    Who comes by sqlglot gets sqlglot's ParseError, who calls `statements` that of Penstock. Parsing ends at the first
    error, whatever `error_level` is asked for.
    """

    Tokenizer = Tokenizer
    Parser = StatementParser
    Generator = StatementGenerator

    def parse(self, sql: str, **options: Any) -> list[Any]:
        with _as_parse_errors():
            return [as_sqlglot(tree) for tree in self.parser(**options).parse(scan(sql), sql)]

    def parse_into(self, expression_type: Any, sql: str, **options: Any) -> list[Any]:
        with _as_parse_errors():
            return [as_sqlglot(tree) for tree in super().parse_into(expression_type, sql, **options)]

    def statements(self, text: str, query_words: int | None = None) -> list[Statement]:
        """Returns the statements of a text; see `parser.parse`."""
        if query_words is not None:
            check_words(text, query_words)
        return list(self.parser().parse(scan(text), text))


@contextmanager
def _as_parse_errors() -> Iterator[None]:
    """Has errors of Penstock told as those of sqlglot."""
    try:
        yield
    except (SqlSyntaxError, NotSupportedError) as error:
        place = error.position
        raise ParseError.new(
            str(error), description=error.message, line=place.line if place else None,
            col=place.column if place else None, highlight=place.text if place else None,
        ) from error
