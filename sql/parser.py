"""Text to statements: the entry of the parser. Names are not looked up here, and nothing is executed."""

from __future__ import annotations

from functools import lru_cache

from penstock.common.errors import SqlSyntaxError
from penstock.common.responsiveness import LONG_TEXT, one_at_a_time
from penstock.sql.statements import Describe, Name, Statement
from penstock.sql.tdengine import TDengine

_DIALECT = TDengine()


def parse(text: str) -> list[Statement]:
    """Returns the statements of a text, which are separated by semicolons; empty ones are skipped.

    Raises SqlSyntaxError, and NotSupportedError for what TDengine has and Penstock has not.
    """
    with one_at_a_time(unless=len(text) < LONG_TEXT):
        return _DIALECT.statements(text)


def parse_one(text: str) -> Statement:
    """Returns the only statement of a text. Raises SqlSyntaxError, also if there is none or more than one."""
    statements = parse(text)
    if len(statements) != 1:
        raise SqlSyntaxError(f"one statement is expected, not {len(statements) or 'an empty text'}")
    return statements[0]


@lru_cache(maxsize=1024)
def parse_table_name(text: str) -> Name:
    """Returns the name that `[database.]table` is; programs write to the same few tables again and again."""
    described = parse_one(f"DESCRIBE {text}")
    assert isinstance(described, Describe)
    return described.name
