"""Parses CREATE STREAM and the other statements about streams and snodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast, get_args

from sqlglot import exp

from penstock.common.quantities import MIB, TIB, read_size, size_text
from penstock.sql.cursor import Cursor
from penstock.sql.lexer import Token, TokenKind
from penstock.sql.parse_ddl import parse_column_definition, parse_parenthesised, take_if_exists, take_if_not_exists
from penstock.sql.parse_expression import parse_expression
from penstock.sql.parse_query import at_query, parse_query
from penstock.sql.statements import (
    AlterStream,
    AnalyzeStream,
    CheckpointStream,
    ColumnDefinition,
    CreateSnode,
    CreateStream,
    DropSavepoint,
    DropSnode,
    DropStream,
    DryRunStream,
    Duration,
    Guarantee,
    Name,
    NoteTime,
    Notify,
    NotifyEvent,
    NotifyFailure,
    OutsideFormat,
    OutsideTarget,
    PauseIngest,
    PauseStream,
    RecalculateStream,
    ReplayDlq,
    ResumeIngest,
    ResumeStream,
    Select,
    StartStream,
    Statement,
    StopStream,
    StreamOptions,
    StreamTarget,
    TriggerMode,
)

_DURATIONS = ("ALLOWED_LATENESS", "IDLE_TIMEOUT", "MAX_FUTURE", "MAX_SKEW", "WRITER_TIMEOUT", "RETRY_TIME",
              "LOOKUP_FRESHNESS")
_FAILURE_FATES = ("PAUSE", "DLQ")
_PLACES = ("TOPIC", "TABLE", "PATH")
_FORMATS = ("JSON", "CSV", "PARQUET", "AVRO")
_ERROR_FATES = ("FAIL", "SKIP", "DLQ")
_LATE_FATES = ("DROP", "RECALC", "DLQ")
_CLOCKS = ("EVENT", "INGESTION", "PROCESSING")
_FLAGS = ("CLOSE_WHEN_IDLE",)
MAX_SAVEPOINT_BYTES = 64
ANALYZE_MIN_S, ANALYZE_MAX_S = 1, 600
_STATE_LIMIT_RANGE = (MIB, 16 * TIB)


@dataclass(frozen=True)
class _Rate:
    """What a rate may be; `or_zero`: 0 is no limit."""

    unit: str
    low: float
    high: float
    or_zero: bool = True


_RATES = {
    "SINK_RATE": _Rate("MB per second", 0.1, 5),
    "SINK_CALLS": _Rate("write calls per second", 0.1, 100_000, or_zero=False),
    "SOURCE_RATE": _Rate("rows per second", 1, 1_000_000_000),
    "HISTORY_RATE": _Rate("rows per second", 1, 1_000_000_000),
}
_GUARANTEES = ("EXACTLY_ONCE", "AT_LEAST_ONCE")
_TRIGGERS = ("AT_ONCE", "WINDOW_CLOSE", "MAX_DELAY", "FORCE_WINDOW_CLOSE", "CONTINUOUS_WINDOW_CLOSE")


@dataclass
class _OptionReader:
    """Collects the options of one CREATE STREAM or ALTER STREAM and refuses repeats."""

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
            if "watermark" in self.values or "watermark_from" in self.values:
                raise cursor.fail("WATERMARK is given twice", token)
            if cursor.take("FROM"):
                cursor.expect("WRITERS")
                self.values["watermark_from"] = "writers"
            else:
                self.values["watermark"] = _fixed_duration(cursor, "the delay of WATERMARK")
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
        elif cursor.take("CHECKPOINT_INTERVAL"):
            self._set(token, "checkpoint_interval", token.word, _checkpoint_interval(cursor))
        elif cursor.take_any(*_RATES) is not None:
            self._set(token, token.word.lower(), token.word, _rate(cursor, token.word))
        elif cursor.take("STATE_LIMIT"):
            self._set(token, "state_limit", token.word, _state_limit(cursor))
        elif cursor.take("GUARANTEE"):
            word = cursor.take_any(*_GUARANTEES)
            if word is None:
                raise cursor.fail("EXACTLY_ONCE or AT_LEAST_ONCE is expected")
            self._set(token, "guarantee", token.word, cast(Guarantee, word.lower()))
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
        if cursor.take("ON_ERROR"):
            self._set(token, "on_error", token.word, self._fate(token, *_ERROR_FATES))
            return True
        if cursor.take("ON_FAILURE"):
            self._set(token, "on_failure", token.word, self._fate(token, *_FAILURE_FATES))
            return True
        if cursor.take("LATE"):
            self._set(token, "late", token.word, self._fate(token, *_LATE_FATES))
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

    def _fate(self, option: Token, *words: str) -> str:
        """Reads what becomes of a row; a DLQ has a name, one for the whole stream."""
        cursor = self.cursor
        word = cursor.take_any(*words)
        if word is None:
            raise cursor.fail(f"{', '.join(words[:-1])} or {words[-1]} is expected behind {option.word}")
        if word == "DLQ":
            token = cursor.token
            name = cursor.object_name("the name of a DLQ table")
            known = self.values.setdefault("dlq", name)
            if (known.name, known.database) != (name.name, name.database):
                raise cursor.fail("a stream has one DLQ table", token)
        return word.lower()

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


def _checkpoint_interval(cursor: Cursor) -> Duration:
    token = cursor.token
    interval = _fixed_duration(cursor, "the time of CHECKPOINT_INTERVAL")
    if not interval.unit or not 100 <= interval.in_units("ms") <= 86_400_000:
        raise cursor.fail("CHECKPOINT_INTERVAL is from 100a to 1d, with its unit", token)
    return interval


def _rate(cursor: Cursor, option: str) -> float:
    spec = _RATES[option]
    token = cursor.token
    if token.kind is not TokenKind.NUMBER:
        raise cursor.fail(f"a number of {spec.unit} is expected")
    rate = float(cursor.advance().raw)
    if not (spec.or_zero and rate == 0) and not spec.low <= rate <= spec.high:
        unlimited = ", or 0 for no limit" if spec.or_zero else ""
        raise cursor.fail(f"{option} is from {spec.low:g} to {spec.high:.0f} {spec.unit}{unlimited}", token)
    return rate


def _state_limit(cursor: Cursor) -> int:
    token = cursor.token
    try:
        limit = read_size(cursor.string("a size") if token.kind is TokenKind.STRING else token.raw)
    except ValueError:
        raise cursor.fail("a size such as '1GiB' is expected", token) from None
    if token.kind is not TokenKind.STRING:
        cursor.advance()
    low, high = _STATE_LIMIT_RANGE
    if limit != 0 and not low <= limit <= high:
        raise cursor.fail(f"STATE_LIMIT is from {size_text(low)} to {size_text(high)}, or 0 for no limit", token)
    return limit


def parse_create_stream(cursor: Cursor, start: int, *, or_replace: bool = False) -> Statement:
    """Parses what follows CREATE [OR REPLACE] STREAM; `start` is where CREATE is."""
    if or_replace and cursor.at("IF"):
        raise cursor.fail("OR REPLACE and IF NOT EXISTS exclude each other")
    if_not_exists = take_if_not_exists(cursor)
    name = cursor.name("a stream name")
    options_start = cursor.token.start
    options = _OptionReader(cursor).read()
    options_place = (options_start - start, cursor.token.start - start)
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
    notify = _parse_notify(cursor) if cursor.take("NOTIFY") else None
    return CreateStream(name, options, target, query, if_not_exists, cursor.source(start), options_place,
                        or_replace, notify)


def _parse_notify(cursor: Cursor) -> Notify:
    """Parses what follows NOTIFY: `(url, ...) ON (event, ...) [NOTIFY_HISTORY 0|1] [ON_FAILURE DROP|PAUSE]`."""
    urls = parse_parenthesised(cursor, lambda inside: inside.string("a URL"))
    cursor.expect("ON")
    events = parse_parenthesised(cursor, _parse_notify_event)
    history: bool | None = None
    on_failure: NotifyFailure | None = None
    while not cursor.at_end:
        token = cursor.token
        word = cursor.take_any("NOTIFY_HISTORY", "ON_FAILURE")
        if word is None:
            break
        if (history if word == "NOTIFY_HISTORY" else on_failure) is not None:
            raise cursor.fail(f"{word} is given twice", token)
        if word == "NOTIFY_HISTORY":
            history = bool(cursor.integer(word, maximum=1))
        else:
            fate = cursor.take_any("DROP", "PAUSE")
            if fate is None:
                raise cursor.fail("DROP or PAUSE is expected behind ON_FAILURE")
            on_failure = cast(NotifyFailure, fate.lower())
    return Notify(urls, tuple(dict.fromkeys(events)), history or False, on_failure or "pause")


def _parse_notify_event(cursor: Cursor) -> NotifyEvent:
    token = cursor.token
    event = cursor.string("an event").lower()
    if event not in get_args(NotifyEvent):
        raise cursor.fail("'WINDOW_OPEN' or 'WINDOW_CLOSE' is expected", token)
    return cast(NotifyEvent, event)


def _parse_target(cursor: Cursor) -> StreamTarget:
    following = cursor.peek(1)
    if (cursor.at("CONNECTION") and following.kind in (TokenKind.WORD, TokenKind.QUOTED)
            and following.word not in ("AS", "TAGS", "SUBTABLE")):
        cursor.advance()
        start = cursor.token.start
        name = Name(cursor.name("the name of a connection"), None, start)
        return StreamTarget(name, outside=_parse_outside(cursor))
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


def _parse_outside(cursor: Cursor) -> OutsideTarget:
    """Parses `(TOPIC 'topic', FORMAT json, ...)`, which may be missing."""
    places: dict[str, str] = {}
    format_: OutsideFormat | None = None
    qos: int | None = None
    if not cursor.take_operator("("):
        return OutsideTarget()
    while not cursor.at_operator(")"):
        token = cursor.token
        if (word := cursor.take_any(*_PLACES)) is not None and word.lower() not in places:
            places[word.lower()] = cursor.string(f"the {word.lower()}")
        elif format_ is None and cursor.take("FORMAT"):
            chosen = cursor.take_any(*_FORMATS)
            if chosen is None:
                raise cursor.fail(f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]} is expected", hint=cursor.guess())
            format_ = cast(OutsideFormat, chosen.lower())
        elif qos is None and cursor.take("QOS"):
            qos = cursor.integer("the QoS", minimum=1, maximum=2)
        elif cursor.token is not token or token.word in ("FORMAT", "QOS"):
            raise cursor.fail(f"{token.word} is given twice", token)
        else:
            raise cursor.fail("TOPIC, TABLE, PATH, FORMAT or QOS is expected", hint=cursor.guess())
        if not cursor.take_operator(","):
            break
    cursor.expect_operator(")")
    return OutsideTarget(tuple(places.items()), format_, qos)


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


def parse_alter_stream(cursor: Cursor) -> Statement:
    """Parses what follows ALTER STREAM."""
    if_exists = take_if_exists(cursor)
    name = cursor.name("a stream name")
    cursor.expect("SET")
    options = _OptionReader(cursor).read()
    if options == StreamOptions():
        raise cursor.fail("a stream option is expected")
    return AlterStream(name, options, if_exists)


def parse_checkpoint_stream(cursor: Cursor) -> Statement:
    """Parses what follows CHECKPOINT STREAM."""
    if_exists = take_if_exists(cursor)
    return CheckpointStream(cursor.name("a stream name"), if_exists)


def parse_stop_stream(cursor: Cursor) -> Statement:
    """Parses what follows STOP STREAM."""
    if_exists = take_if_exists(cursor)
    name = cursor.name("a stream name")
    return StopStream(name, if_exists, _savepoint(cursor) if cursor.take("WITH", "SAVEPOINT") else None)


def parse_start_stream(cursor: Cursor) -> Statement:
    """Parses what follows START STREAM."""
    if_exists = take_if_exists(cursor)
    name = cursor.name("a stream name")
    return StartStream(name, if_exists, _savepoint(cursor) if cursor.take("FROM", "SAVEPOINT") else None)


def parse_drop_savepoint(cursor: Cursor) -> Statement:
    """Parses what follows DROP SAVEPOINT."""
    if_exists = take_if_exists(cursor)
    savepoint = _savepoint(cursor)
    cursor.expect("FOR")
    return DropSavepoint(savepoint, cursor.name("a stream name"), if_exists)


def _savepoint(cursor: Cursor) -> str:
    token = cursor.token
    name = cursor.string("the name of a savepoint")
    if not name.strip() or not name.isprintable() or len(name.encode()) > MAX_SAVEPOINT_BYTES:
        raise cursor.fail(f"the name of a savepoint has 1 to {MAX_SAVEPOINT_BYTES} bytes, all printable", token)
    return name


def parse_analyze_stream(cursor: Cursor) -> Statement:
    """Parses what follows EXPLAIN ANALYZE STREAM."""
    name = cursor.name("a stream name")
    if not cursor.take("FOR"):
        return AnalyzeStream(name)
    token = cursor.token
    seconds = _fixed_duration(cursor, "how long to measure").in_units("ms") / 1000
    if not ANALYZE_MIN_S <= seconds <= ANALYZE_MAX_S:
        raise cursor.fail(f"FOR takes {ANALYZE_MIN_S} to {ANALYZE_MAX_S} seconds", token)
    return AnalyzeStream(name, seconds)


def parse_pause(cursor: Cursor) -> Statement:
    """Parses what follows PAUSE."""
    ingest = _expect_stream_or_ingest(cursor)
    if_exists = take_if_exists(cursor)
    if ingest:
        return PauseIngest(cursor.name("the name of an ingest"), if_exists)
    return PauseStream(cursor.name("a stream name"), if_exists)


def parse_resume(cursor: Cursor) -> Statement:
    """Parses what follows RESUME."""
    ingest = _expect_stream_or_ingest(cursor)
    if_exists = take_if_exists(cursor)
    if ingest:
        return ResumeIngest(cursor.name("the name of an ingest"), if_exists)
    ignore_untreated = cursor.take("IGNORE", "UNTREATED")
    return ResumeStream(cursor.name("a stream name"), if_exists, ignore_untreated)


def _expect_stream_or_ingest(cursor: Cursor) -> bool:
    """Takes STREAM or INGEST; returns whether it was INGEST."""
    word = cursor.take_any("STREAM", "INGEST")
    if word is None:
        raise cursor.fail("STREAM or INGEST is expected")
    return word == "INGEST"


def parse_recalculate(cursor: Cursor) -> Statement:
    """Parses what follows RECALCULATE STREAM."""
    if_exists = take_if_exists(cursor)
    name = cursor.name("a stream name")
    cursor.expect("FROM")
    first = parse_expression(cursor)
    last = parse_expression(cursor) if cursor.take("TO") else None
    return RecalculateStream(name, first, last, if_exists)


def parse_note_time(cursor: Cursor) -> Statement:
    """Parses what follows NOTE TIME."""
    instant = parse_expression(cursor)
    writer = cursor.string("the name of a writer") if cursor.take("WRITER") else ""
    cursor.expect("ON")
    return NoteTime(instant, cursor.name("a database name"), writer)


def parse_replay(cursor: Cursor, start: int) -> Statement:
    """Parses what follows REPLAY DLQ; `start` is where REPLAY is."""
    name = cursor.object_name("the name of a DLQ table")
    where = parse_expression(cursor) if cursor.take("WHERE") else None
    return ReplayDlq(name, where, cursor.source(start))


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
