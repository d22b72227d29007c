"""Parses CREATE STREAM and the other statements about streams and snodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast, get_args

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from penstock.common.quantities import MIB, TIB, read_size, size_text
from penstock.sql.dialect.parse_ddl import parse_column_definition
from penstock.sql.dialect.parse_query import QueryParser
from penstock.sql.dialect.parse_trigger import at_trigger, parse_target_column, parse_triggered_stream
from penstock.sql.tree.statements import (
    OF_VIEWS,
    AlterStream,
    AnalyzeStream,
    ColumnDefinition,
    CreateSnode,
    CreateStream,
    DropSavepoint,
    DropSnode,
    DropStream,
    DryRunStream,
    Duration,
    ExternalFormat,
    ExternalTargetOptions,
    Guarantee,
    Name,
    NoteTime,
    Notify,
    NotifyEvent,
    NotifyFailure,
    PauseIngest,
    PauseStream,
    RecalculateStream,
    ReplayDlq,
    ResumeIngest,
    ResumeStream,
    StartStream,
    Statement,
    StopStream,
    StreamOptions,
    StreamTarget,
    TriggerMode,
    VerifyStream,
)

_DURATIONS = ("ALLOWED_LATENESS", "IDLE_TIMEOUT", "MAX_FUTURE", "MAX_SKEW", "WRITER_TIMEOUT", "RETRY_TIME",
              "LOOKUP_FRESHNESS", "STATE_TTL")
_FAILURE_FATES = ("PAUSE", "DLQ")
_MISMATCH_FATES = ("REPORT", "RECALCULATE")
_PLACES = ("TOPIC", "TABLE", "PATH")
_FORMATS = ("JSON", "CSV", "PARQUET", "AVRO")
_ERROR_FATES = ("FAIL", "SKIP", "DLQ")
_LATE_FATES = ("DROP", "RECALC", "DLQ")
_CLOCKS = ("EVENT", "INGESTION", "PROCESSING")
_FLAGS = ("CLOSE_WHEN_IDLE",)
MAX_SAVEPOINT_BYTES = 64
SAMPLE_MAX = 1_000
ANALYZE_MIN_S, ANALYZE_MAX_S = 1, 600
_LATENCY_MAX_MS = 10_000
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
    """Collects the options of one CREATE STREAM or ALTER STREAM and refuses repeats.

    `offsets`: where those that were read start.
    """

    parser: QueryParser
    values: dict[str, Any] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)

    def read(self) -> StreamOptions:
        start = self.parser.token.start
        while self._read_one():
            self.offsets.update(dict.fromkeys(self.values.keys() - self.offsets.keys(), start))
            start = self.parser.token.start
        return StreamOptions(**self.values)

    def _read_one(self) -> bool:
        parser = self.parser
        token = parser.token
        if parser.take("TRIGGER"):
            self._set(token, "trigger", token.text.upper(), self._trigger())
        elif parser.take("WATERMARK"):
            if "watermark" in self.values or "watermark_from" in self.values:
                raise parser.fail("WATERMARK is given twice", token)
            if parser.take("FROM"):
                parser.expect("WRITERS")
                self.values["watermark_from"] = "writers"
            else:
                self.values["watermark"] = _fixed_duration(parser, "the delay of WATERMARK")
        elif parser.take("IGNORE"):
            word = parser.take_any("EXPIRED", "UPDATE")
            if word is None:
                raise parser.fail("EXPIRED or UPDATE is expected")
            self._set(token, f"ignore_{word.lower()}", f"IGNORE {word}", self._flag(f"IGNORE {word}"))
        elif parser.take("DELETE_MARK"):
            self._set(token, "delete_mark", token.text.upper(), _fixed_duration(parser, "the age of DELETE_MARK"))
        elif parser.take("FILL_HISTORY"):
            self._set(token, "fill_history", token.text.upper(), self._flag("FILL_HISTORY"))
            self.values["fill_history_async"] = parser.take("ASYNC")
        elif parser.take("CHECKPOINT_INTERVAL"):
            self._set(token, "checkpoint_interval", token.text.upper(), _checkpoint_interval(parser))
        elif parser.take_any(*_RATES) is not None:
            self._set(token, token.text.upper().lower(), token.text.upper(), _rate(parser, token.text.upper()))
        elif parser.take("STATE_LIMIT"):
            self._set(token, "state_limit", token.text.upper(), _state_limit(parser))
        elif parser.take("GUARANTEE"):
            word = parser.take_any(*_GUARANTEES)
            if word is None:
                raise parser.fail("EXACTLY_ONCE or AT_LEAST_ONCE is expected")
            self._set(token, "guarantee", token.text.upper(), cast(Guarantee, word.lower()))
        else:
            return self._read_time_option()
        return True

    def _read_time_option(self) -> bool:
        """Reads one of the options that TDengine doesn't have."""
        parser = self.parser
        token = parser.token
        if parser.take("TIMEZONE"):
            self._set(token, "timezone", token.text.upper(), parser.string("a time zone"))
            return True
        if parser.take("TIME"):
            word = parser.take_any(*_CLOCKS)
            if word is None:
                raise parser.fail("EVENT, INGESTION or PROCESSING is expected", hint=parser.guess())
            self._set(token, "time", token.text.upper(), word.lower())
            return True
        if parser.take("ON_ERROR"):
            self._set(token, "on_error", token.text.upper(), self._fate(token, *_ERROR_FATES))
            return True
        if parser.take("ON_MISMATCH"):
            word = parser.take_any(*_MISMATCH_FATES)
            if word is None:
                raise parser.fail(f"{' or '.join(_MISMATCH_FATES)} is expected behind ON_MISMATCH")
            self._set(token, "on_mismatch", token.text.upper(), word.lower())
            return True
        if parser.take("ON_FAILURE"):
            self._set(token, "on_failure", token.text.upper(), self._fate(token, *_FAILURE_FATES))
            return True
        if parser.take("LATE"):
            self._set(token, "late", token.text.upper(), self._fate(token, *_LATE_FATES))
            return True
        if parser.take("LATENCY"):
            self._set(token, "latency", token.text.upper(), _latency(parser))
            return True
        for option in _FLAGS:
            if parser.take(option):
                self._set(token, option.lower(), option, self._flag(option))
                return True
        for option in _DURATIONS:
            if parser.take(option):
                self._set(token, option.lower(), option, _fixed_duration(parser, f"the duration of {option}"))
                return True
        return False

    def _trigger(self) -> TriggerMode:
        parser = self.parser
        word = parser.take_any(*_TRIGGERS)
        if word is None:
            raise parser.fail("a trigger mode is expected", hint=parser.guess() or "one of " + ", ".join(_TRIGGERS))
        if word == "MAX_DELAY":
            self.values["max_delay"] = _fixed_duration(parser, "the delay of MAX_DELAY")
        elif word == "CONTINUOUS_WINDOW_CLOSE" and parser.take("RECALCULATE"):
            self.values["recalculate"] = _fixed_duration(parser, "the period of RECALCULATE")
        return cast(TriggerMode, word.lower())

    def _fate(self, option: Token, *words: str) -> str:
        """Reads what becomes of a row; a DLQ has a name, one for the whole stream."""
        parser = self.parser
        word = parser.take_any(*words)
        if word is None:
            raise parser.fail(f"{', '.join(words[:-1])} or {words[-1]} is expected behind {option.text.upper()}")
        if word == "DLQ":
            token = parser.token
            name = parser.object_name("the name of a DLQ table")
            known = self.values.setdefault("dlq", name)
            if (known.name, known.database) != (name.name, name.database):
                raise parser.fail("a stream has one DLQ table", token)
        return word.lower()

    def _flag(self, option: str) -> bool:
        return bool(self.parser.integer(option, maximum=1))

    def _set(self, token: Token, key: str, option: str, value: object) -> None:
        if key in self.values:
            raise self.parser.fail(f"{option} is given twice", token)
        self.values[key] = value


def _fixed_duration(parser: QueryParser, what: str) -> Duration:
    token = parser.token
    duration = parser.duration(what)
    if duration.is_calendar:
        raise parser.fail(f"{what} cannot be in months or years", token, hint="use b u a s m h d w")
    return duration


def _checkpoint_interval(parser: QueryParser) -> Duration:
    token = parser.token
    interval = _fixed_duration(parser, "the time of CHECKPOINT_INTERVAL")
    if not interval.unit or not 100 <= interval.in_units("ms") <= 86_400_000:
        raise parser.fail("CHECKPOINT_INTERVAL is from 100a to 1d, with its unit", token)
    return interval


def _latency(parser: QueryParser) -> Duration:
    token = parser.token
    latency = _fixed_duration(parser, "the time of LATENCY")
    if (not latency.unit and latency.value) or latency.in_units("ms") > _LATENCY_MAX_MS:
        raise parser.fail(f"LATENCY is from 0 to {_LATENCY_MAX_MS // 1000}s, with its unit", token)
    return latency


def _rate(parser: QueryParser, option: str) -> float:
    spec = _RATES[option]
    token = parser.token
    if token.token_type is not TokenType.NUMBER:
        raise parser.fail(f"a number of {spec.unit} is expected")
    rate = float(parser.advance().text)
    if not (spec.or_zero and rate == 0) and not spec.low <= rate <= spec.high:
        unlimited = ", or 0 for no limit" if spec.or_zero else ""
        raise parser.fail(f"{option} is from {spec.low:g} to {spec.high:.0f} {spec.unit}{unlimited}", token)
    return rate


def _state_limit(parser: QueryParser) -> int:
    token = parser.token
    try:
        limit = read_size(parser.string("a size") if token.token_type is TokenType.STRING else token.text)
    except ValueError:
        raise parser.fail("a size such as '1GiB' is expected", token) from None
    if token.token_type is not TokenType.STRING:
        parser.advance()
    low, high = _STATE_LIMIT_RANGE
    if limit != 0 and not low <= limit <= high:
        raise parser.fail(f"STATE_LIMIT is from {size_text(low)} to {size_text(high)}, or 0 for no limit", token)
    return limit


def parse_create_stream(parser: QueryParser, start: int, *, or_replace: bool = False) -> Statement:
    """Parses what follows CREATE [OR REPLACE] STREAM; `start` is where CREATE is."""
    if or_replace and parser.at("IF"):
        raise parser.fail("OR REPLACE and IF NOT EXISTS exclude each other")
    if_not_exists = parser.take_if_not_exists()
    name = parser.object_name("a stream name")
    if at_trigger(parser):
        return parse_triggered_stream(parser, name.name, start, database=name.database, if_not_exists=if_not_exists,
                                      or_replace=or_replace)
    if name.database is not None:
        raise parser.fail("a stream option or INTO is expected",
                          hint="only streams with a trigger of their own name a database")
    reader = _OptionReader(parser)
    options = reader.read()
    if not parser.at("INTO"):
        raise parser.fail("a stream option, a trigger or INTO is expected")
    parser.advance()
    target = _parse_target(parser)
    parser.expect("AS")
    if not parser.at_query():
        raise parser.fail("SELECT is expected")
    query_start = parser.token
    query = parser.parse_query()
    if query.into_file is not None:
        raise parser.fail("a stream cannot write to a file", query_start)
    notify = _parse_notify(parser) if parser.take("NOTIFY") else None
    return CreateStream(name.name, options, target, query, if_not_exists, parser.source(start), or_replace, notify,
                        start, option_offsets=dict(sorted(reader.offsets.items())) or None)


def parse_create_materialized_view(parser: QueryParser, start: int) -> Statement:
    """Parses what follows CREATE MATERIALIZED VIEW: a stream of its name, and into a table of its name, that leaves
    nothing out."""
    if_not_exists = parser.take_if_not_exists()
    name = parser.object_name("the name of a materialized view")
    columns = parser.wrapped_csv(lambda: parse_target_column(parser)) if parser.at("(") else None
    parser.expect("AS")
    if not parser.at_query():
        raise parser.fail("SELECT is expected")
    return CreateStream(name.name, OF_VIEWS, StreamTarget(name, columns), parser.parse_query(), if_not_exists,
                        parser.source(start), source_start=start, materialized=True)


def parse_drop_materialized_view(parser: QueryParser) -> Statement:
    """Parses what follows DROP MATERIALIZED VIEW."""
    if_exists = parser.take_if_exists()
    return DropStream(parser.object_name("the name of a materialized view").name, if_exists, with_table=True)


def _parse_notify(parser: QueryParser) -> Notify:
    """Parses what follows NOTIFY: `(url, ...) ON (event, ...) [NOTIFY_HISTORY 0|1] [ON_FAILURE DROP|PAUSE]`."""
    urls = parser.wrapped_csv(lambda: parser.string("a URL"))
    parser.expect("ON")
    events = parser.wrapped_csv(lambda: _parse_notify_event(parser))
    history: bool | None = None
    on_failure: NotifyFailure | None = None
    while not parser.at_end:
        token = parser.token
        word = parser.take_any("NOTIFY_HISTORY", "ON_FAILURE")
        if word is None:
            break
        if (history if word == "NOTIFY_HISTORY" else on_failure) is not None:
            raise parser.fail(f"{word} is given twice", token)
        if word == "NOTIFY_HISTORY":
            history = bool(parser.integer(word, maximum=1))
        else:
            fate = parser.take_any("DROP", "PAUSE")
            if fate is None:
                raise parser.fail("DROP or PAUSE is expected behind ON_FAILURE")
            on_failure = cast(NotifyFailure, fate.lower())
    return Notify(urls, tuple(dict.fromkeys(events)), history or False, on_failure or "pause")


def _parse_notify_event(parser: QueryParser) -> NotifyEvent:
    token = parser.token
    event = parser.string("an event").lower()
    if event not in get_args(NotifyEvent):
        raise parser.fail("'WINDOW_OPEN' or 'WINDOW_CLOSE' is expected", token)
    return cast(NotifyEvent, event)


def _parse_target(parser: QueryParser) -> StreamTarget:
    following = parser.peek()
    named = following.isidentifier() or parser.token_ahead().token_type is TokenType.IDENTIFIER
    if parser.at("CONNECTION") and named and following not in ("AS", "TAGS", "SUBTABLE"):
        parser.advance()
        start = parser.token.start
        name = Name(parser.name("the name of a connection"), None, start)
        return StreamTarget(name, external=_parse_external(parser))
    name = parser.object_name("the name of the target table")
    columns: tuple[tuple[str, bool], ...] | None = None
    if parser.at("("):
        columns = parser.wrapped_csv(lambda: parse_target_column(parser))
    definitions: tuple[ColumnDefinition, ...] | None = None
    tag_names: tuple[str, ...] | None = None
    if parser.take("TAGS"):
        definitions, tag_names = _parse_target_tags(parser)
    subtable: exp.Expression | None = None
    if parser.take("SUBTABLE"):
        parser.expect("(")
        subtable = parser.parse_expression()
        parser.expect(")")
    return StreamTarget(name, columns, definitions, tag_names, subtable)


def _parse_external(parser: QueryParser) -> ExternalTargetOptions:
    """Parses `(TOPIC 'topic', FORMAT json, ...)`, which may be missing."""
    places: dict[str, str] = {}
    format_: ExternalFormat | None = None
    qos: int | None = None
    key: tuple[str, ...] = ()
    if not parser.take("("):
        return ExternalTargetOptions()
    while not parser.at(")"):
        token = parser.token
        if (word := parser.take_any(*_PLACES)) is not None and word.lower() not in places:
            places[word.lower()] = parser.string(f"the {word.lower()}")
        elif format_ is None and parser.take("FORMAT"):
            chosen = parser.take_any(*_FORMATS)
            if chosen is None:
                raise parser.fail(f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]} is expected", hint=parser.guess())
            format_ = cast(ExternalFormat, chosen.lower())
        elif qos is None and parser.take("QOS"):
            qos = parser.integer("the QoS", minimum=1, maximum=2)
        elif not key and parser.take("KEY"):
            key = parser.wrapped_csv(lambda: parser.name("a column of the KEY"))
        elif parser.token is not token or token.text.upper() in ("FORMAT", "QOS", "KEY"):
            raise parser.fail(f"{token.text.upper()} is given twice", token)
        else:
            raise parser.fail("TOPIC, TABLE, PATH, FORMAT, QOS or KEY is expected", hint=parser.guess())
        if not parser.take(","):
            break
    parser.expect(")")
    return ExternalTargetOptions(tuple(places.items()), format_, qos, key)


def _parse_target_tags(parser: QueryParser) -> tuple[tuple[ColumnDefinition, ...] | None, tuple[str, ...] | None]:
    if parser.peek(2) in (",", ")"):
        return None, parser.wrapped_csv(lambda: parser.name("a tag name"))
    return parser.wrapped_csv(lambda: parse_column_definition(parser)), None


def parse_alter_stream(parser: QueryParser) -> Statement:
    """Parses what follows ALTER STREAM."""
    if_exists = parser.take_if_exists()
    name = parser.stream_name()
    parser.expect("SET")
    options = _OptionReader(parser).read()
    if options == StreamOptions():
        raise parser.fail("a stream option is expected")
    return AlterStream(name, options, if_exists)


def parse_stop_stream(parser: QueryParser) -> Statement:
    """Parses what follows STOP STREAM."""
    if_exists = parser.take_if_exists()
    name = parser.stream_name()
    return StopStream(name, if_exists, _savepoint(parser) if parser.take("WITH", "SAVEPOINT") else None)


def parse_start_stream(parser: QueryParser) -> Statement:
    """Parses what follows START STREAM."""
    if_exists = parser.take_if_exists()
    ignore_untreated = parser.take("IGNORE", "UNTREATED")
    name = parser.stream_name()
    savepoint = _savepoint(parser) if parser.take("FROM", "SAVEPOINT") else None
    return StartStream(name, if_exists, savepoint, ignore_untreated)


def parse_drop_savepoint(parser: QueryParser) -> Statement:
    """Parses what follows DROP SAVEPOINT."""
    if_exists = parser.take_if_exists()
    savepoint = _savepoint(parser)
    parser.expect("FOR")
    return DropSavepoint(savepoint, parser.stream_name(), if_exists)


def _savepoint(parser: QueryParser) -> str:
    token = parser.token
    name = parser.string("the name of a savepoint")
    if not name.strip() or not name.isprintable() or len(name.encode()) > MAX_SAVEPOINT_BYTES:
        raise parser.fail(f"the name of a savepoint has 1 to {MAX_SAVEPOINT_BYTES} bytes, all printable", token)
    return name


def parse_analyze_stream(parser: QueryParser) -> Statement:
    """Parses what follows EXPLAIN ANALYZE STREAM."""
    name = parser.stream_name()
    if not parser.take("FOR"):
        return AnalyzeStream(name)
    token = parser.token
    seconds = _fixed_duration(parser, "how long to measure").in_units("ms") / 1000
    if not ANALYZE_MIN_S <= seconds <= ANALYZE_MAX_S:
        raise parser.fail(f"FOR takes {ANALYZE_MIN_S} to {ANALYZE_MAX_S} seconds", token)
    return AnalyzeStream(name, seconds)


def parse_pause(parser: QueryParser) -> Statement:
    """Parses what follows PAUSE."""
    ingest = _expect_stream_or_ingest(parser)
    if_exists = parser.take_if_exists()
    if ingest:
        return PauseIngest(parser.name("the name of an ingest"), if_exists)
    return PauseStream(parser.stream_name(), if_exists)


def parse_resume(parser: QueryParser) -> Statement:
    """Parses what follows RESUME."""
    ingest = _expect_stream_or_ingest(parser)
    if_exists = parser.take_if_exists()
    if ingest:
        return ResumeIngest(parser.name("the name of an ingest"), if_exists)
    ignore_untreated = parser.take("IGNORE", "UNTREATED")
    return ResumeStream(parser.stream_name(), if_exists, ignore_untreated)


def _expect_stream_or_ingest(parser: QueryParser) -> bool:
    """Takes STREAM or INGEST; returns whether it was INGEST."""
    word = parser.take_any("STREAM", "INGEST")
    if word is None:
        raise parser.fail("STREAM or INGEST is expected")
    return word == "INGEST"


def parse_recalculate(parser: QueryParser) -> Statement:
    """Parses what follows RECALCULATE STREAM."""
    if_exists = parser.take_if_exists()
    name = parser.stream_name()
    parser.expect("FROM")
    first = parser.parse_expression()
    last = parser.parse_expression() if parser.take("TO") else None
    return RecalculateStream(name, first, last, if_exists)


def parse_verify(parser: QueryParser) -> Statement:
    """Parses what follows VERIFY STREAM."""
    name = parser.stream_name()
    first = parser.parse_expression() if parser.take("FROM") else None
    last = parser.parse_expression() if first is not None and parser.take("TO") else None
    sample = parser.integer("the number of windows that SAMPLE draws", minimum=1, maximum=SAMPLE_MAX,
                            hint="leave SAMPLE out to compare all") if parser.take("SAMPLE") else None
    return VerifyStream(name, first, last, sample)


def parse_note_time(parser: QueryParser) -> Statement:
    """Parses what follows NOTE TIME."""
    instant = parser.parse_expression()
    writer = parser.string("the name of a writer") if parser.take("WRITER") else ""
    parser.expect("ON")
    return NoteTime(instant, parser.name("a database name"), writer)


def parse_replay(parser: QueryParser, start: int) -> Statement:
    """Parses what follows REPLAY DLQ; `start` is where REPLAY is."""
    name = parser.object_name("the name of a DLQ table")
    where = parser.parse_expression() if parser.take("WHERE") else None
    return ReplayDlq(name, where, parser.source(start))


def parse_dry_run(parser: QueryParser) -> Statement:
    """Parses what follows DRY RUN."""
    start = parser.token
    parser.expect("CREATE", "STREAM")
    stream = parse_create_stream(parser, start.start)
    assert isinstance(stream, CreateStream)
    if not parser.take("ON", "SAMPLE"):
        raise parser.fail("ON SAMPLE (FROM ... TO ...) or ON SAMPLE (FILE '...') is expected")
    parser.expect("(")
    if parser.take("FILE"):
        statement = DryRunStream(stream, file=parser.string("the path of a CSV file"))
    else:
        parser.expect("FROM")
        first = parser.parse_expression()
        parser.expect("TO")
        statement = DryRunStream(stream, first, parser.parse_expression())
    parser.expect(")")
    return statement


def parse_create_snode(parser: QueryParser) -> Statement:
    """Parses what follows CREATE SNODE."""
    parser.expect("ON", "DNODE")
    return CreateSnode(parser.integer("the id of a dnode"))


def parse_drop_snode(parser: QueryParser) -> Statement:
    """Parses what follows DROP SNODE."""
    parser.expect("ON", "DNODE")
    return DropSnode(parser.integer("the id of a dnode"))
