"""Parses the options of CREATE and ALTER CONNECTION; which kinds and options there are, is not known here."""

from __future__ import annotations

from dataclasses import replace

from sqlglot.tokens import TokenType

from penstock.common.errors import SqlSyntaxError
from penstock.sql.dialect.parse_query import QueryParser


def parse_options(parser: QueryParser) -> tuple[tuple[str, str], ...]:
    """Parses `(option='value', ...)`."""
    return tuple((option, value or "") for option, value in _parse_options(parser, removable=False))


def parse_changed_options(parser: QueryParser) -> tuple[tuple[str, str | None], ...]:
    """Parses `(option='value', ...)`; NULL takes an option away."""
    return _parse_options(parser, removable=True)


def _parse_options(parser: QueryParser, *, removable: bool) -> tuple[tuple[str, str | None], ...]:
    """Parses `(option='value', ...)`. What is quoted may be a password, so no error quotes it."""
    try:
        return parser.wrapped_csv(lambda: _parse_option(parser, removable=removable))
    except SqlSyntaxError as error:
        if error.position is None:
            raise
        raise SqlSyntaxError(error.message, code=error.code, hint=error.hint,
                             position=replace(error.position, text="")) from None


def _parse_option(parser: QueryParser, *, removable: bool) -> tuple[str, str | None]:
    name = _parse_option_name(parser)
    parser.expect("=")
    if removable and parser.take("NULL"):
        return name, None
    if parser.at_type(TokenType.NUMBER):
        return name, parser.advance().text
    return name, parser.string(f"the value of {name}")


def _parse_option_name(parser: QueryParser) -> str:
    """Parses the name of an option; keywords are such, too: DATABASE."""
    if not parser.at_word:
        raise parser.fail("the name of an option is expected")
    return str(parser.advance().text).lower()
