"""Other names for databases in the text of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from sqlglot.tokens import Token, TokenType

from penstock.common.errors import InvalidStatementError
from penstock.sql.dialect.tokenizer import scan
from penstock.sql.tree.expression_nodes import quote_identifier

_BEFORE_NAMES = ("FROM", "JOIN", "INTO", "DLQ", "STREAM", "EXISTS")
_QUOTED = (TokenType.STRING, TokenType.IDENTIFIER)


def with_databases(text: str, names: Mapping[str, str]) -> str:
    """Returns a statement in which databases have other names: `names` has the new one by the old one.

    A name is that of a database where a table or a stream must follow: behind FROM, JOIN, INTO, DLQ, STREAM and IF NOT
    EXISTS, and before two dots.
    Raises InvalidStatementError where it may as well be that of a table.
    """
    tokens = list(takewhile(bool, scan(text)))
    words = ["" if token.token_type in _QUOTED else token.text.upper() for token in tokens] + [""] * 4
    changes: list[tuple[Token, str]] = []
    for place, token in enumerate(tokens):
        new = names.get(_name(token) or "")
        qualifies = words[place + 1] == "." and (place == 0 or words[place - 1] != ".")
        if new is None or not qualifies:
            continue
        if words[place - 1] in _BEFORE_NAMES or words[place + 3] == ".":
            changes.append((token, new))
        elif words[place - 1] == ",":
            raise InvalidStatementError(
                f"whether {text[token.start:token.end + 1]} before a dot is a database or a table cannot be told",
                hint="create the stream by hand, with the new name of the database")
    for token, new in reversed(changes):
        text = f"{text[:token.start]}{quote_identifier(new)}{text[token.end + 1:]}"
    return text


def _name(token: Token) -> str | None:
    """Returns the name that a token stands for, as the catalog has it."""
    if token.token_type is TokenType.IDENTIFIER:
        return str(token.text)
    return token.text.lower() if token.text.isidentifier() and token.token_type is not TokenType.STRING else None
