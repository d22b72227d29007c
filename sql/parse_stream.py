"""Parses CREATE STREAM and the other statements about streams and snodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from sqlglot import exp

from penstock.common.errors import NotSupportedError
from penstock.sql.cursor import Cursor
from penstock.sql.lexer import Token
from penstock.sql.literals import position
from penstock.sql.parse_ddl import parse_column_definition, parse_parenthesised, take_if_exists, take_if_not_exists
from penstock.sql.parse_expression import parse_expression
from penstock.sql.parse_query import at_query, parse_query
from penstock.sql.statements import (
    ColumnDefinition,
    CreateSnode,
    CreateStream,
    DropSnode,
    DropStream,
    DryRunStream,
    Duration,
    PauseStream,
    RecalculateStream,
    ResumeStream,
    Select,
    Statement,
    StreamOptions,
    StreamTarget,
    TriggerMode,
)

_DURATIONS = ("ALLOWED_LATENESS", "IDLE_TIMEOUT", "MAX_FUTURE", "MAX_SKEW")
_CLOCKS = ("EVENT", "INGESTION", "PROCESSING")
_FLAGS = ("CLOSE_WHEN_IDLE",)
_TRIGGERS = ("AT_ONCE", "WINDOW_CLOSE", "MAX_DELAY", "FORCE_WINDOW_CLOSE", "CONTINUOUS_WINDOW_CLOSE")


@dataclass
class _OptionReader:
    """Collects the options of one CREATE STREAM and refuses repeats."""

    cursor: Cursor
    values: dict[str, Any] = field(default_factory=dict)

    def read(self) -> StreamOptions:
        while self._read_one():
            pass
        return StreamOptions(**self.values)

    def _read_one(self) -> bool:
        cursor = self.cursor
        token = cursor.token
        if cursor.take("TRIGGER"):
            self._set(token, "trigger", token.word, self._trigger())
        elif cursor.take("WATERMARK"):
            self._set(token, "watermark", token.word, _fixed_duration(cursor, "the delay of WATERMARK"))
        elif cursor.take("IGNORE"):
            word = cursor.take_any("EXPIRED", "UPDATE")
            if word is None:
                raise cursor.fail("EXPIRED or UPDATE is expected")
            self._set(token, f"ignore_{word.lower()}", f"IGNORE {word}", self._flag(f"IGNORE {word}"))
        elif cursor.take("DELETE_MARK"):
            self._set(token, "delete_mark", token.word, _fixed_duration(cursor, "the age of DELETE_MARK"))
        elif cursor.take("FILL_HISTORY"):
            self._set(token, "fill_history", token.word, self._flag("FILL_HISTORY"))
            self.values["fill_history_async"] = cursor.take("ASYNC")
        else:
            return self._read_time_option()
        return True

    def _read_time_option(self) -> bool:
        """Reads one of the options that TDengine doesn't have."""
        cursor = self.cursor
        token = cursor.token
        if cursor.take("TIMEZONE"):
            self._set(token, "timezone", token.word, cursor.string("a time zone"))
            return True
        if cursor.take("TIME"):
            word = cursor.take_any(*_CLOCKS)
            if word is None:
                raise cursor.fail("EVENT, INGESTION or PROCESSING is expected", hint=cursor.guess())
            self._set(token, "time", token.word, word.lower())
            return True
        for option in _FLAGS:
            if cursor.take(option):
                self._set(token, option.lower(), option, self._flag(option))
                return True
        for option in _DURATIONS:
            if cursor.take(option):
                self._set(token, option.lower(), option, _fixed_duration(cursor, f"the duration of {option}"))
                return True
        return False

    def _trigger(self) -> TriggerMode:
        cursor = self.cursor
        word = cursor.take_any(*_TRIGGERS)
        if word is None:
            raise cursor.fail("a trigger mode is expected", hint=cursor.guess() or "one of " + ", ".join(_TRIGGERS))
        if word == "MAX_DELAY":
            self.values["max_delay"] = _fixed_duration(cursor, "the delay of MAX_DELAY")
        elif word == "CONTINUOUS_WINDOW_CLOSE" and cursor.take("RECALCULATE"):
            self.values["recalculate"] = _fixed_duration(cursor, "the period of RECALCULATE")
        return cast(TriggerMode, word.lower())

    def _flag(self, option: str) -> bool:
        return bool(self.cursor.integer(option, maximum=1))

    def _set(self, token: Token, key: str, option: str, value: object) -> None:
        if key in self.values:
            raise self.cursor.fail(f"{option} is given twice", token)
        self.values[key] = value


def _fixed_duration(cursor: Cursor, what: str) -> Duration:
    token = cursor.token
    duration = cursor.duration(what)
    if duration.is_calendar:
        raise cursor.fail(f"{what} cannot be in months or years", token, hint="use b u a s m h d w")
    return duration


def parse_create_stream(cursor: Cursor, start: int) -> Statement:
    """Parses what follows CREATE STREAM; `start` is where CREATE is."""
    if_not_exists = take_if_not_exists(cursor)
    name = cursor.name("a stream name")
    options = _OptionReader(cursor).read()
    if not cursor.at("INTO"):
        raise cursor.fail("a stream option or INTO is expected")
    cursor.advance()
    target = _parse_target(cursor)
    cursor.expect("AS")
    if not at_query(cursor):
        raise cursor.fail("SELECT is expected")
    query_start = cursor.token
    query = parse_query(cursor)
    if not isinstance(query, Select):
        raise cursor.fail("a stream takes a single SELECT, not a UNION", query_start)
    if query.into_file is not None:
        raise cursor.fail("a stream cannot write to a file", query_start)
    if cursor.at("NOTIFY"):
        token = cursor.token
        raise NotSupportedError("NOTIFY is not supported", position=position(cursor.text, token.start, len(token.raw)))
    return CreateStream(name, options, target, query, if_not_exists, cursor.source(start))


def _parse_target(cursor: Cursor) -> StreamTarget:
    name = cursor.object_name("the name of the target table")
    columns: tuple[tuple[str, bool], ...] | None = None
    if cursor.at_operator("("):
        columns = parse_parenthesised(cursor, _parse_target_column)
    definitions: tuple[ColumnDefinition, ...] | None = None
    tag_names: tuple[str, ...] | None = None
    if cursor.take("TAGS"):
        definitions, tag_names = _parse_target_tags(cursor)
    subtable: exp.Expression | None = None
    if cursor.take("SUBTABLE"):
        cursor.expect_operator("(")
        subtable = parse_expression(cursor)
        cursor.expect_operator(")")
    return StreamTarget(name, columns, definitions, tag_names, subtable)


def _parse_target_column(cursor: Cursor) -> tuple[str, bool]:
    name = cursor.name("a column name")
    if not cursor.at_any("PRIMARY", "COMPOSITE"):
        return name, False
    cursor.advance()
    cursor.expect("KEY")
    return name, True


def _parse_target_tags(cursor: Cursor) -> tuple[tuple[ColumnDefinition, ...] | None, tuple[str, ...] | None]:
    if cursor.peek(2).raw in (",", ")"):
        return None, parse_parenthesised(cursor, lambda c: c.name("a tag name"))
    return parse_parenthesised(cursor, parse_column_definition), None


def parse_drop_stream(cursor: Cursor) -> Statement:
    """Parses what follows DROP STREAM."""
    if_exists = take_if_exists(cursor)
    return DropStream(cursor.name("a stream name"), if_exists)


def parse_pause(cursor: Cursor) -> Statement:
    """Parses what follows PAUSE."""
    cursor.expect("STREAM")
    if_exists = take_if_exists(cursor)
    return PauseStream(cursor.name("a stream name"), if_exists)


def parse_resume(cursor: Cursor) -> Statement:
    """Parses what follows RESUME."""
    cursor.expect("STREAM")
    if_exists = take_if_exists(cursor)
    ignore_untreated = cursor.take("IGNORE", "UNTREATED")
    return ResumeStream(cursor.name("a stream name"), if_exists, ignore_untreated)


def parse_recalculate(cursor: Cursor) -> Statement:
    """Parses what follows RECALCULATE STREAM."""
    if_exists = take_if_exists(cursor)
    name = cursor.name("a stream name")
    cursor.expect("FROM")
    first = parse_expression(cursor)
    last = parse_expression(cursor) if cursor.take("TO") else None
    return RecalculateStream(name, first, last, if_exists)


def parse_dry_run(cursor: Cursor) -> Statement:
    """Parses what follows DRY RUN."""
    start = cursor.token
    cursor.expect("CREATE", "STREAM")
    stream = parse_create_stream(cursor, start.start)
    assert isinstance(stream, CreateStream)
    if not cursor.take("ON", "SAMPLE"):
        raise cursor.fail("ON SAMPLE (FROM ... TO ...) or ON SAMPLE (FILE '...') is expected")
    cursor.expect_operator("(")
    if cursor.take("FILE"):
        statement = DryRunStream(stream, file=cursor.string("the path of a CSV file"))
    else:
        cursor.expect("FROM")
        first = parse_expression(cursor)
        cursor.expect("TO")
        statement = DryRunStream(stream, first, parse_expression(cursor))
    cursor.expect_operator(")")
    return statement


def parse_create_snode(cursor: Cursor) -> Statement:
    """Parses what follows CREATE SNODE."""
    cursor.expect("ON", "DNODE")
    return CreateSnode(cursor.integer("the id of a dnode"))


def parse_drop_snode(cursor: Cursor) -> Statement:
    """Parses what follows DROP SNODE."""
    cursor.expect("ON", "DNODE")
    return DropSnode(cursor.integer("the id of a dnode"))
