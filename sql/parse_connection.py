"""Parses CREATE, ALTER, DROP and TEST CONNECTION; which kinds and options there are, is not known here."""

from __future__ import annotations

from dataclasses import replace

from penstock.common.errors import SqlSyntaxError
from penstock.sql.cursor import Cursor
from penstock.sql.lexer import TokenKind
from penstock.sql.parse_ddl import parse_parenthesised, take_if_exists, take_if_not_exists
from penstock.sql.statements import AlterConnection, CreateConnection, DropConnection, Statement, TestConnection


def parse_create_connection(cursor: Cursor) -> Statement:
    """Parses what follows CREATE CONNECTION: `[IF NOT EXISTS] name TYPE kind WITH (option='value', ...)`."""
    if_not_exists = take_if_not_exists(cursor)
    name = _parse_name(cursor)
    cursor.expect("TYPE")
    kind = cursor.name("a type of connection")
    cursor.expect("WITH")
    options = _parse_options(cursor, removable=False)
    return CreateConnection(name, kind, tuple((option, value or "") for option, value in options), if_not_exists)


def parse_alter_connection(cursor: Cursor) -> Statement:
    """Parses what follows ALTER CONNECTION: `name SET (option='value', ...)`; NULL takes an option away."""
    name = _parse_name(cursor)
    cursor.expect("SET")
    return AlterConnection(name, _parse_options(cursor, removable=True))


def parse_drop_connection(cursor: Cursor) -> Statement:
    """Parses what follows DROP CONNECTION."""
    if_exists = take_if_exists(cursor)
    return DropConnection(_parse_name(cursor), if_exists)


def parse_test_connection(cursor: Cursor) -> Statement:
    """Parses what follows TEST CONNECTION."""
    return TestConnection(_parse_name(cursor))


def _parse_name(cursor: Cursor) -> str:
    return cursor.name("a connection name")


def _parse_options(cursor: Cursor, *, removable: bool) -> tuple[tuple[str, str | None], ...]:
    """Parses `(option='value', ...)`. What is quoted may be a password, so no error quotes it."""
    try:
        return parse_parenthesised(cursor, lambda inside: _parse_option(inside, removable=removable))
    except SqlSyntaxError as error:
        if error.position is None:
            raise
        raise SqlSyntaxError(error.message, code=error.code, hint=error.hint,
                             position=replace(error.position, text="")) from None


def _parse_option(cursor: Cursor, *, removable: bool) -> tuple[str, str | None]:
    name = _parse_option_name(cursor)
    cursor.expect_operator("=")
    if removable and cursor.take("NULL"):
        return name, None
    if cursor.token.kind is TokenKind.NUMBER:
        return name, cursor.advance().raw
    return name, cursor.string(f"the value of {name}")


def _parse_option_name(cursor: Cursor) -> str:
    """Parses the name of an option; keywords are such, too: DATABASE."""
    if cursor.token.kind is not TokenKind.WORD:
        raise cursor.fail("the name of an option is expected")
    return cursor.advance().raw.lower()
