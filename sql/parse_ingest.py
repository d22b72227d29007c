"""Parses CREATE INGEST; which options go together is not known here."""

from __future__ import annotations

from typing import Any, cast

from penstock.common.quantities import MIB, read_size
from penstock.sql.cursor import Cursor
from penstock.sql.lexer import Token, TokenKind
from penstock.sql.parse_ddl import parse_parenthesised, take_if_exists, take_if_not_exists
from penstock.sql.statements import (
    CreateIngest,
    DropIngest,
    FieldMapping,
    IngestErrors,
    IngestOptions,
    MessageField,
    MessagePart,
    Statement,
)

_WORDS: dict[str, tuple[str, ...]] = {
    "FORMAT": ("JSON", "CSV", "AVRO", "LINE"),
    "START": ("EARLIEST", "LATEST"),
    "TIME_UNIT": ("S", "MS", "US", "NS"),
    "UNKNOWN": ("IGNORE", "REFUSE"),
}
_TEXTS = ("SCHEMA", "PATH", "MEASUREMENT")
_PARTS = ("_topic", "_key", "_measurement", "_time")
_MESSAGE_SIZES = (1, 64 * MIB)
MAX_TOPICS, MAX_LEVEL, MAX_DEPTH = 64, 64, 16


def parse_create_ingest(cursor: Cursor, start: int) -> Statement:
    """Parses what follows CREATE INGEST."""
    if_not_exists = take_if_not_exists(cursor)
    name = cursor.name("the name of an ingest")
    cursor.expect("FROM", "CONNECTION")
    connection = cursor.name("the name of a connection")
    options = _parse_options(cursor) if cursor.at_operator("(") else IngestOptions()
    cursor.expect("INTO")
    target = cursor.object_name("a super table")
    columns = parse_parenthesised(cursor, _parse_mapping) if cursor.at_operator("(") else ()
    tags = parse_parenthesised(cursor, _parse_mapping) if cursor.take("TAGS") else ()
    tbname = None
    if cursor.take("TBNAME"):
        cursor.expect_operator("(")
        tbname = _parse_field(cursor)
        cursor.expect_operator(")")
    time, on_arrival = None, False
    if cursor.take("TS", "FROM"):
        time = _parse_field(cursor)
    elif cursor.take("TS", "ON", "ARRIVAL") or cursor.take("ON", "ARRIVAL"):
        on_arrival = True
    on_error, dlq = "fail", None
    if cursor.take("ON_ERROR"):
        word = cursor.take_any("FAIL", "SKIP", "DLQ")
        if word is None:
            raise cursor.fail("FAIL, SKIP or DLQ is expected behind ON_ERROR")
        on_error = word.lower()
        dlq = cursor.object_name("the name of a DLQ table") if word == "DLQ" else None
    return CreateIngest(name, connection, options, target, columns, tags, tbname, time, on_arrival,
                        cast(IngestErrors, on_error), dlq, if_not_exists, cursor.source(start))


def parse_drop_ingest(cursor: Cursor) -> Statement:
    """Parses what follows DROP INGEST."""
    if_exists = take_if_exists(cursor)
    return DropIngest(cursor.name("the name of an ingest"), if_exists)


def _parse_options(cursor: Cursor) -> IngestOptions:
    values: dict[str, Any] = {}

    def parse_one(cursor: Cursor) -> None:
        token = cursor.token
        word = cursor.take_any("TOPIC", "QOS", "MAX_MESSAGE", *_WORDS, *_TEXTS)
        if word is None:
            raise cursor.fail("an option of the ingest is expected", hint=cursor.guess() or
                              f"TOPIC, QOS, MAX_MESSAGE, {', '.join((*_WORDS, *_TEXTS))}")
        if word == "TOPIC":
            topics = values.setdefault("topics", ())
            if len(topics) == MAX_TOPICS:
                raise cursor.fail(f"an ingest has at most {MAX_TOPICS} topics", token)
            values["topics"] = (*topics, cursor.string("a topic"))
            return
        key = "schema" if word == "SCHEMA" else word.lower()
        if key in values:
            raise cursor.fail(f"{word} is given twice", token)
        values[key] = _option(cursor, word)

    parse_parenthesised(cursor, parse_one)
    return IngestOptions(**values)


def _option(cursor: Cursor, word: str) -> str | int:
    if word == "QOS":
        return cursor.integer(word, maximum=2)
    if word == "MAX_MESSAGE":
        return _message_size(cursor)
    if word in _TEXTS:
        return cursor.string(f"the value of {word}")
    choice = cursor.take_any(*_WORDS[word])
    if choice is None:
        raise cursor.fail(f"{', '.join(_WORDS[word])} is expected behind {word}")
    return choice.lower()


def _message_size(cursor: Cursor) -> int:
    token = cursor.token
    if token.kind is TokenKind.STRING:
        try:
            size = read_size(cursor.string("a size"))
        except ValueError as error:
            raise cursor.fail(f"MAX_MESSAGE: {error}", token) from None
    else:
        size = cursor.integer("MAX_MESSAGE")
    if not _MESSAGE_SIZES[0] <= size <= _MESSAGE_SIZES[1]:
        raise cursor.fail("MAX_MESSAGE is from 1 byte to 64 MiB", token)
    return size


def _parse_mapping(cursor: Cursor) -> FieldMapping:
    name = cursor.name("a column name")
    cursor.expect_operator("=")
    return FieldMapping(name, _parse_field(cursor))


def _parse_field(cursor: Cursor) -> MessageField:
    """Parses `$.a.b`, or `_topic`, `_topic(n)`, `_key`, `_measurement`, `_time`."""
    token = cursor.token
    if token.raw == "$":
        cursor.advance()
        keys: list[str] = []
        while cursor.take_operator("."):
            keys.append(_parse_key(cursor))
        if not keys:
            raise cursor.fail("a field such as $.value is expected", token)
        if len(keys) > MAX_DEPTH:
            raise cursor.fail(f"a field is at most {MAX_DEPTH} levels deep", token)
        return MessageField(tuple(keys))
    part = token.raw.lower() if token.kind is TokenKind.WORD else ""
    if part not in _PARTS:
        raise cursor.fail(f"a field such as $.value is expected, or {', '.join(_PARTS)}", token)
    cursor.advance()
    level = None
    if part == "_topic" and cursor.take_operator("("):
        level = cursor.integer("the level of the topic, from 1", minimum=1, maximum=MAX_LEVEL)
        cursor.expect_operator(")")
    return MessageField((), cast(MessagePart, part[1:]), level)


def _parse_key(cursor: Cursor) -> str:
    """Takes the name of a field, whose case counts."""
    token: Token = cursor.token
    if token.kind not in (TokenKind.WORD, TokenKind.QUOTED):
        raise cursor.fail("the name of a field is expected", hint="put names with other characters in back-quotes")
    cursor.advance()
    return token.raw if token.kind is TokenKind.WORD else token.raw[1:-1].replace("``", "`")
