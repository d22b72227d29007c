"""Parses CREATE, ALTER and DROP INGEST; which options go together is not known here."""

from __future__ import annotations

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
_TEXTS = ("SCHEMA", "PATH", "MEASUREMENT")
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
        parser.expect("(")
        tbname = _parse_field(parser)
        parser.expect(")")
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
    word = parser.take_any("FAIL", "SKIP", "DLQ")
    if word is None:
        raise parser.fail("FAIL, SKIP or DLQ is expected behind ON_ERROR")
    return (cast(IngestErrors, word.lower()),
            parser.object_name("the name of a DLQ table") if word == "DLQ" else None)


def _parse_options(parser: QueryParser) -> IngestOptions:
    values: dict[str, Any] = {}

    def parse_one() -> None:
        token = parser.token
        word = parser.take_any("TOPIC", "QOS", "MAX_MESSAGE", *_WORDS, *_TEXTS)
        if word is None:
            raise parser.fail("an option of the ingest is expected", hint=parser.guess() or
                              f"TOPIC, QOS, MAX_MESSAGE, {', '.join((*_WORDS, *_TEXTS))}")
        if word == "TOPIC":
            topics = values.setdefault("topics", ())
            if len(topics) == MAX_TOPICS:
                raise parser.fail(f"an ingest has at most {MAX_TOPICS} topics", token)
            values["topics"] = (*topics, parser.string("a topic"))
            return
        key = "schema" if word == "SCHEMA" else word.lower()
        if key in values:
            raise parser.fail(f"{word} is given twice", token)
        values[key] = _option(parser, word)

    parser.wrapped_csv(parse_one)
    return IngestOptions(**values)


def _option(parser: QueryParser, word: str) -> str | int:
    if word == "QOS":
        return parser.integer(word, maximum=2)
    if word == "MAX_MESSAGE":
        return _message_size(parser)
    if word in _TEXTS:
        return parser.string(f"the value of {word}")
    choice = parser.take_any(*_WORDS[word])
    if choice is None:
        raise parser.fail(f"{', '.join(_WORDS[word])} is expected behind {word}")
    return choice.lower()


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
