"""Text to statements: the entry of the parser. Names are not looked up here, and nothing is executed."""

from __future__ import annotations

from functools import lru_cache

from penstock.common.errors import InvalidStatementError, SqlSyntaxError
from penstock.common.responsiveness import LONG_TEXT, one_at_a_time
from penstock.sql.dialect.tdengine import TDengine
from penstock.sql.tree.statements import CreateDatabase, Describe, Name, Query, Statement

_DIALECT = TDengine()


def parse(text: str, query_words: int | None = None) -> list[Statement]:
    """Returns the statements of a text, which are separated by semicolons; empty ones are skipped.

    `query_words`: how many words, numbers and signs queries in it may have; None: any number. Raises SqlSyntaxError,
    NotSupportedError for what TDengine has and Penstock has not, and LimitExceededError.
    """
    with one_at_a_time(unless=len(text) < LONG_TEXT):
        return _DIALECT.statements(text, query_words)


def parse_one(text: str, query_words: int | None = None) -> Statement:
    """Returns the only statement of a text. Raises SqlSyntaxError, also if there is none or more than one.

    For all else see `parse`.
    """
    statements = parse(text, query_words)
    if len(statements) != 1:
        raise SqlSyntaxError(f"one statement is expected, not {len(statements) or 'an empty text'}")
    return statements[0]


def parse_query(text: str) -> Query:
    """Returns the query that a text is. Raises as `parse_one`, and InvalidStatementError for other statements."""
    statement = parse_one(text)
    if not isinstance(statement, Query):
        raise InvalidStatementError("a query is expected")
    return statement


@lru_cache(maxsize=1024)
def parse_table_name(text: str) -> Name:
    """Returns the name that `[database.]table` is; programs write to the same few tables again and again."""
    described = parse_one(f"DESCRIBE {text}")
    assert isinstance(described, Describe)
    return described.name


def parse_database_options(text: str) -> tuple[tuple[str, str | int], ...]:
    """Returns the options of a database, as CREATE DATABASE has them; what `generator.database_options` has printed."""
    created = parse_one(f"CREATE DATABASE d {text}")
    assert isinstance(created, CreateDatabase)
    return created.options
