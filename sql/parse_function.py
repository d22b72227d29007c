"""Parses CREATE FUNCTION and DROP FUNCTION; where the code is, and whether it fits, is not looked at here."""

from __future__ import annotations

from penstock.common.errors import NotSupportedError
from penstock.sql.cursor import Cursor
from penstock.sql.lexer import TokenKind
from penstock.sql.literals import position
from penstock.sql.parse_ddl import parse_parenthesised, take_if_exists, take_if_not_exists
from penstock.sql.parse_expression import parse_data_type
from penstock.sql.statements import CreateFunction, DropFunction, Statement
from penstock.sql.types import DataType, Kind

_LENGTH_OPTIONAL = {"VARCHAR": Kind.VARCHAR, "BINARY": Kind.VARCHAR, "NCHAR": Kind.NCHAR, "VARBINARY": Kind.VARBINARY}


def parse_create_function(cursor: Cursor, *, aggregate: bool, replace: bool = False) -> Statement:
    """Parses what follows CREATE [OR REPLACE] [AGGREGATE] FUNCTION:

    `[IF NOT EXISTS] name [(type, ...)]`, then in any order RETURNS or OUTPUTTYPE type, LANGUAGE PYTHON, AS 'source',
    and COMMENT or BUFSIZE if need be.
    """
    if_not_exists = not replace and take_if_not_exists(cursor)
    name = cursor.name("a function name")
    arguments = parse_parenthesised(cursor, _parse_type) if cursor.at_operator("(") else None
    result: DataType | None = None
    source: str | None = None
    comment: str | None = None
    python = False
    given: set[str] = set()
    while not cursor.at_end:
        token = cursor.token
        word = cursor.take_any("RETURNS", "OUTPUTTYPE", "LANGUAGE", "AS", "COMMENT", "BUFSIZE")
        if word is None:
            raise cursor.fail("RETURNS, LANGUAGE, AS or COMMENT is expected")
        word = "RETURNS" if word == "OUTPUTTYPE" else word
        if word in given:
            raise cursor.fail(f"{word} is given twice", token)
        given.add(word)
        if word == "RETURNS":
            result = _parse_type(cursor)
        elif word == "LANGUAGE":
            python = _parse_language(cursor)
        elif word == "AS":
            source = cursor.string("where the code is")
        elif word == "COMMENT":
            comment = cursor.string("a comment")
        else:
            cursor.integer("the size of the buffer")
    if result is None:
        raise cursor.fail("RETURNS and the type of the result are expected")
    if source is None:
        raise cursor.fail("AS 'module:function' is expected")
    if not python:
        raise cursor.fail("LANGUAGE PYTHON is expected", hint="there are no functions in other languages")
    return CreateFunction(name, aggregate, arguments, result, source, replace, if_not_exists, comment)


def parse_drop_function(cursor: Cursor) -> Statement:
    """Parses what follows DROP FUNCTION."""
    if_exists = take_if_exists(cursor)
    return DropFunction(cursor.name("a function name"), if_exists)


def _parse_type(cursor: Cursor) -> DataType:
    """Parses a type; texts and binaries may leave their length out."""
    kind = _LENGTH_OPTIONAL.get(cursor.token.word)
    if kind is not None and cursor.token.kind is TokenKind.WORD and cursor.peek().raw != "(":
        cursor.advance()
        return DataType(kind)
    return parse_data_type(cursor)


def _parse_language(cursor: Cursor) -> bool:
    token = cursor.token
    language = (cursor.string("a language") if token.kind is TokenKind.STRING
                else cursor.name("a language"))
    if language.lower() != "python":
        raise NotSupportedError(f"functions in {language} are not supported", hint="write LANGUAGE PYTHON",
                                position=position(cursor.text, token.start, token.end - token.start))
    return True
