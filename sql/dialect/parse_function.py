"""Parses CREATE FUNCTION and DROP FUNCTION; where the code is, and whether it fits, is not looked at here."""

from __future__ import annotations

from sqlglot.tokens import TokenType

from penstock.common.errors import NotSupportedError
from penstock.sql.dialect.parse_query import QueryParser
from penstock.sql.tree.statements import CreateFunction, Statement
from penstock.sql.types import DataType, Kind

_LENGTH_OPTIONAL = {"VARCHAR": Kind.VARCHAR, "BINARY": Kind.VARCHAR, "NCHAR": Kind.NCHAR, "VARBINARY": Kind.VARBINARY}


def parse_create_function(parser: QueryParser, *, aggregate: bool, replace: bool = False) -> Statement:
    """Parses what follows CREATE [OR REPLACE] [AGGREGATE] FUNCTION:

    `[IF NOT EXISTS] name [(type, ...)]`, then in any order RETURNS or OUTPUTTYPE type, LANGUAGE PYTHON, AS 'source',
    and COMMENT or BUFSIZE if need be.
    """
    if_not_exists = not replace and parser.take_if_not_exists()
    name = parser.name("a function name")
    arguments = parser.wrapped_csv(lambda: _parse_type(parser)) if parser.at("(") else None
    result: DataType | None = None
    source: str | None = None
    comment: str | None = None
    python = False
    given: set[str] = set()
    while not parser.at_end:
        token = parser.token
        word = parser.take_any("RETURNS", "OUTPUTTYPE", "LANGUAGE", "AS", "COMMENT", "BUFSIZE")
        if word is None:
            raise parser.fail("RETURNS, LANGUAGE, AS or COMMENT is expected")
        word = "RETURNS" if word == "OUTPUTTYPE" else word
        if word in given:
            raise parser.fail(f"{word} is given twice", token)
        given.add(word)
        if word == "RETURNS":
            result = _parse_type(parser)
        elif word == "LANGUAGE":
            python = _parse_language(parser)
        elif word == "AS":
            source = parser.string("where the code is")
        elif word == "COMMENT":
            comment = parser.string("a comment")
        else:
            parser.integer("the size of the buffer")
    if result is None:
        raise parser.fail("RETURNS and the type of the result are expected")
    if source is None:
        raise parser.fail("AS 'module:function' is expected")
    if not python:
        raise parser.fail("LANGUAGE PYTHON is expected", hint="there are no functions in other languages")
    return CreateFunction(name, aggregate, arguments, result, source, replace, if_not_exists, comment)


def _parse_type(parser: QueryParser) -> DataType:
    """Parses a type; texts and binaries may leave their length out."""
    kind = _LENGTH_OPTIONAL.get(parser.word)
    if kind is not None and parser.peek() != "(":
        parser.advance()
        return DataType(kind)
    return parser.parse_data_type()


def _parse_language(parser: QueryParser) -> bool:
    token = parser.token
    language = (parser.string("a language") if token.token_type is TokenType.STRING
                else parser.name("a language"))
    if language.lower() != "python":
        raise NotSupportedError(f"functions in {language} are not supported", hint="write LANGUAGE PYTHON",
                                position=parser.place(token))
    return True
