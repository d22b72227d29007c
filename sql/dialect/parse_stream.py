"""Parses CREATE STREAM and the other statements about streams and snodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast, get_args

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from penstock.common.quantities import MIB, TIB, read_size, size_text
from penstock.common.suggestions import alternatives
from penstock.sql.dialect.parse_ddl import parse_column_definition
from penstock.sql.dialect.parse_query import QueryParser
from penstock.sql.dialect.parse_trigger import at_trigger, parse_target_column, parse_triggered_stream
from penstock.sql.tree.statements import (
    OF_VIEWS,
    AlterStream,
    AnalyzeStream,
    ColumnDefinition,
    CreateStream,
    DropStream,
    DryRunStream,
    Duration,
    ExternalTargetOptions,
    Name,
    Notify,
    NotifyEvent,
    ReplayDlq,
    Statement,
    StreamOptions,
    StreamTarget,
    TriggerMode,
    VerifyStream,
)

_DURATIONS = ("ALLOWED_LATENESS", "IDLE_TIMEOUT", "MAX_FUTURE", "MAX_SKEW", "WRITER_TIMEOUT", "RETRY_TIME",
              "LOOKUP_FRESHNESS", "STATE_TTL")
_FATES = {
    "ON_ERROR": ("FAIL", "SKIP", "DLQ"), "ON_FAILURE": ("PAUSE", "DLQ"), "LATE": ("DROP", "RECALC", "DLQ")}
_PLACES = ("TOPIC", "TABLE", "PATH")
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
        parser, token = self.parser, self.parser.token
        word = parser.take_any("TRIGGER", "WATERMARK", "IGNORE", "FILL_HISTORY", *_FATES, *_READERS)
        match word:
            case None:
                return False
            case "TRIGGER":
                self._set(token, word, self._trigger())
            case "WATERMARK":
                if "watermark" in self.values or "watermark_from" in self.values:
                    raise parser.fail("WATERMARK is given twice", token)
                if parser.take("FROM"):
                    parser.expect("WRITERS")
                    self.values["watermark_from"] = "writers"
                else:
                    self.values["watermark"] = _fixed_duration(parser, "the delay of WATERMARK")
            case "IGNORE":
                word = f"IGNORE {parser.one_of('EXPIRED', 'UPDATE').upper()}"
                self._set(token, word, _flag(word, parser))
            case "FILL_HISTORY":
                self._set(token, word, _flag(word, parser))
                self.values["fill_history_async"] = parser.take("ASYNC")
            case _ if word in _FATES:
                self._set(token, word, self._fate(word))
            case _:
                self._set(token, word, _READERS[word](parser))
        return True

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

    def _fate(self, option: str) -> str:
        """Reads what becomes of a row; a DLQ has a name, one for the whole stream."""
        parser = self.parser
        word = parser.one_of(*_FATES[option], behind=option)
        if word == "dlq":
            token = parser.token
            name = parser.object_name("the name of a DLQ table")
            known = self.values.setdefault("dlq", name)
            if (known.name, known.database) != (name.name, name.database):
                raise parser.fail("a stream has one DLQ table", token)
        return word

    def _set(self, token: Token, option: str, value: object) -> None:
        key = option.lower().replace(" ", "_")
        if key in self.values:
            raise self.parser.fail(f"{option} is given twice", token)
        self.values[key] = value


def _flag(option: str, parser: QueryParser) -> bool:
    return bool(parser.integer(option, maximum=1))


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


def _rate(option: str, parser: QueryParser) -> float:
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


_READERS: dict[str, Callable[[QueryParser], object]] = {
    "DELETE_MARK": lambda parser: _fixed_duration(parser, "the age of DELETE_MARK"),
    "CHECKPOINT_INTERVAL": _checkpoint_interval, "STATE_LIMIT": _state_limit, "LATENCY": _latency,
    "GUARANTEE": lambda parser: parser.one_of("EXACTLY_ONCE", "AT_LEAST_ONCE"),
    "TIMEZONE": lambda parser: parser.string("a time zone"),
    "TIME": lambda parser: parser.one_of("EVENT", "INGESTION", "PROCESSING"),
    "ON_MISMATCH": lambda parser: parser.one_of("REPORT", "RECALCULATE", behind="ON_MISMATCH"),
    "CLOSE_WHEN_IDLE": partial(_flag, "CLOSE_WHEN_IDLE"),
    **{option: partial(_rate, option) for option in _RATES},
    **{option: partial(_fixed_duration, what=f"the duration of {option}") for option in _DURATIONS},
}
"""What reads the values of options."""


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
    given = parser.options(_NOTIFY_OPTIONS)
    return Notify(urls, tuple(dict.fromkeys(events)), given.get("NOTIFY_HISTORY", False),
                  given.get("ON_FAILURE", "pause"))


_NOTIFY_OPTIONS: dict[str, Callable[[QueryParser], Any]] = {
    "NOTIFY_HISTORY": partial(_flag, "NOTIFY_HISTORY"),
    "ON_FAILURE": lambda parser: parser.one_of("DROP", "PAUSE", behind="ON_FAILURE"),
}


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
        subtable = parser.wrapped(parser.parse_expression)
    return StreamTarget(name, columns, definitions, tag_names, subtable)


def _parse_external(parser: QueryParser) -> ExternalTargetOptions:
    """Parses `(TOPIC 'topic', FORMAT json, ...)`, which may be missing."""
    given: dict[str, Any] = {}
    if parser.take("("):
        while not parser.at(")"):
            parser.option(_EXTERNAL_OPTIONS, given, alternatives(tuple(_EXTERNAL_OPTIONS)))
            if not parser.take(","):
                break
        parser.expect(")")
    places = tuple((word.lower(), value) for word, value in given.items() if word in _PLACES)
    return ExternalTargetOptions(places, given.get("FORMAT"), given.get("QOS"), given.get("KEY", ()))


_EXTERNAL_OPTIONS: dict[str, Callable[[QueryParser], Any]] = {
    "TOPIC": lambda parser: parser.string("the topic"),
    "TABLE": lambda parser: parser.string("the table"),
    "PATH": lambda parser: parser.string("the path"),
    "FORMAT": lambda parser: parser.one_of("JSON", "CSV", "PARQUET", "AVRO"),
    "QOS": lambda parser: parser.integer("the QoS", minimum=1, maximum=2),
    "KEY": lambda parser: parser.wrapped_csv(lambda: parser.name("a column of the KEY")),
}


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


def parse_verify(parser: QueryParser) -> Statement:
    """Parses what follows VERIFY STREAM."""
    name = parser.stream_name()
    first = parser.parse_expression() if parser.take("FROM") else None
    last = parser.parse_expression() if first is not None and parser.take("TO") else None
    sample = parser.integer("the number of windows that SAMPLE draws", minimum=1, maximum=SAMPLE_MAX,
                            hint="leave SAMPLE out to compare all") if parser.take("SAMPLE") else None
    return VerifyStream(name, first, last, sample)


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
