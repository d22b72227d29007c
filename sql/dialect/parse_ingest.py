"""Parses CREATE and ALTER INGEST; which options go together is not known here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from sqlglot.tokens import Token, TokenType

from penstock.common.quantities import MIB, read_size
from penstock.sql.dialect.parse_query import QueryParser
from penstock.sql.tree.statements import (
    AlterIngest,
    CreateIngest,
    FieldMapping,
    IngestErrors,
    IngestOptions,
    MessageField,
    MessagePart,
    Name,
    Statement,
)

_WORDS: dict[str, tuple[str, ...]] = {
    "FORMAT": ("JSON", "CSV", "AVRO", "LINE", "DEBEZIUM", "UPSERT"),
    "START": ("EARLIEST", "LATEST"),
    "TIME_UNIT": ("S", "MS", "US", "NS"),
    "UNKNOWN": ("IGNORE", "REFUSE"),
}
_PARTS = ("_topic", "_key", "_measurement", "_time")
_MESSAGE_SIZES = (1, 64 * MIB)
MAX_TOPICS, MAX_LEVEL, MAX_DEPTH = 64, 64, 16


def parse_create_ingest(parser: QueryParser, start: int) -> Statement:
    """Parses what follows CREATE INGEST."""
    if_not_exists = parser.take_if_not_exists()
    name = parser.name("the name of an ingest")
    parser.expect("FROM", "CONNECTION")
    connection = parser.name("the name of a connection")
    options = _parse_options(parser) if parser.at("(") else IngestOptions()
    parser.expect("INTO")
    target = parser.object_name("a super table, or a table with a KEY")
    columns = parser.wrapped_csv(lambda: _parse_mapping(parser)) if parser.at("(") else ()
    tags = parser.wrapped_csv(lambda: _parse_mapping(parser)) if parser.take("TAGS") else ()
    tbname = None
    if parser.take("TBNAME"):
        tbname = parser.wrapped(lambda: _parse_field(parser))
    time, on_arrival = None, False
    if parser.take("TS", "FROM"):
        time = _parse_field(parser)
    elif parser.take("TS", "ON", "ARRIVAL") or parser.take("ON", "ARRIVAL"):
        on_arrival = True
    on_error, dlq = _parse_on_error(parser) if parser.take("ON_ERROR") else ("fail", None)
    return CreateIngest(name, connection, options, target, columns, tags, tbname, time, on_arrival, on_error, dlq,
                        if_not_exists, parser.source(start))


def parse_alter_ingest(parser: QueryParser) -> Statement:
    """Parses what follows ALTER INGEST."""
    if_exists = parser.take_if_exists()
    name = parser.name("the name of an ingest")
    parser.expect("ON_ERROR")
    return AlterIngest(name, *_parse_on_error(parser), if_exists)


def _parse_on_error(parser: QueryParser) -> tuple[IngestErrors, Name | None]:
    word = parser.one_of("FAIL", "SKIP", "DLQ", behind="ON_ERROR")
    return cast(IngestErrors, word), parser.object_name("the name of a DLQ table") if word == "dlq" else None


def _parse_options(parser: QueryParser) -> IngestOptions:
    values: dict[str, Any] = {}
    topics: list[str] = []

    def parse_one() -> None:
        token = parser.token
        if not parser.take("TOPIC"):
            parser.option(_OPTIONS, values, "an option of the ingest", f"TOPIC, {', '.join(_OPTIONS)}")
            return
        if len(topics) == MAX_TOPICS:
            raise parser.fail(f"an ingest has at most {MAX_TOPICS} topics", token)
        topics.append(parser.string("a topic"))

    parser.wrapped_csv(parse_one)
    return IngestOptions(tuple(topics), **{word.lower(): value for word, value in values.items()})


def _message_size(parser: QueryParser) -> int:
    token = parser.token
    if token.token_type is TokenType.STRING:
        try:
            size = read_size(parser.string("a size"))
        except ValueError as error:
            raise parser.fail(f"MAX_MESSAGE: {error}", token) from None
    else:
        size = parser.integer("MAX_MESSAGE")
    if not _MESSAGE_SIZES[0] <= size <= _MESSAGE_SIZES[1]:
        raise parser.fail("MAX_MESSAGE is from 1 byte to 64 MiB", token)
    return size


def _word(option: str, parser: QueryParser) -> str:
    return parser.one_of(*_WORDS[option], behind=option)


def _text(option: str, parser: QueryParser) -> str:
    return parser.string(f"the value of {option}")


_OPTIONS: dict[str, Callable[[QueryParser], Any]] = {
    "QOS": lambda parser: parser.integer("QOS", maximum=2), "MAX_MESSAGE": _message_size,
    **{option: partial(_word, option) for option in _WORDS},
    **{option: partial(_text, option) for option in ("SCHEMA", "PATH", "MEASUREMENT")},
}
"""What reads the values of options, but for TOPIC, which may be there several times."""


def _parse_mapping(parser: QueryParser) -> FieldMapping:
    name = parser.name("a column name")
    parser.expect("=")
    return FieldMapping(name, _parse_field(parser))


def _parse_field(parser: QueryParser) -> MessageField:
    """Parses `$.a.b`, `$.a[*].b`, or `_topic`, `_topic(n)`, `_key`, `_measurement`, `_time`."""
    token = parser.token
    if token.text == "$" and token.token_type is TokenType.UNKNOWN:
        parser.advance()
        keys: list[str] = []
        array = None
        while parser.take("."):
            keys.append(_parse_key(parser))
            if parser.token.text == "[":
                _parse_array(parser, is_first=array is None)
                array = len(keys)
        if not keys:
            raise parser.fail("a field such as $.value is expected", token)
        if len(keys) > MAX_DEPTH:
            raise parser.fail(f"a field is at most {MAX_DEPTH} levels deep", token)
        return MessageField(tuple(keys), array=array)
    part = parser.word.lower()
    if part not in _PARTS:
        raise parser.fail(f"a field such as $.value is expected, or {', '.join(_PARTS)}", token)
    parser.advance()
    level = None
    if part == "_topic" and parser.take("("):
        level = parser.integer("the level of the topic, from 1", minimum=1, maximum=MAX_LEVEL)
        parser.expect(")")
    return MessageField((), cast(MessagePart, part[1:]), level)


def _parse_array(parser: QueryParser, *, is_first: bool) -> None:
    """Takes `[*]`."""
    for sign in "[*]":
        if parser.token.text != sign or not is_first:
            raise parser.fail("a field has [*] behind one of its names at most, such as in $.values[*].v")
        parser.advance()


def _parse_key(parser: QueryParser) -> str:
    """Takes the name of a field, whose case counts."""
    token: Token = parser.token
    if not (parser.at_word or parser.at_type(TokenType.IDENTIFIER)):
        raise parser.fail("the name of a field is expected", hint="put names with other characters in back-quotes")
    parser.advance()
    return str(token.text)
