"""Parses CREATE STREAM as TDengine has it since 3.3.7: a trigger, and apart from it what is computed when it fires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from sqlglot import exp
from sqlglot.tokens import TokenType

from penstock.sql.dialect.parse_query import QueryParser
from penstock.sql.tree.statements import (
    TRIGGER,
    Calculation,
    ColumnDefinition,
    CountWindow,
    CreateStream,
    Duration,
    Fill,
    IntervalWindow,
    Name,
    Notify,
    NotifyEvent,
    PartitionItem,
    Select,
    SelectItem,
    Source,
    Statement,
    StreamOptions,
    StreamTarget,
    TableSource,
    Window,
)
from penstock.sql.tree.walking import copied, found_in, nodes_of

TRIGGERS = ("PERIOD", "SLIDING", "INTERVAL", "SESSION", "STATE_WINDOW", "EVENT_WINDOW", "COUNT_WINDOW")
DAY_MS = 86_400_000
_PERIOD_MIN_MS, _PERIOD_MAX_MS = 10, 3_650 * DAY_MS
_MAX_DELAY_MIN_MS = 3_000
_FLAGS = ("IGNORE_DISORDER", "DELETE_RECALC", "CALC_NOTIFY_ONLY", "LOW_LATENCY_CALC", "FORCE_OUTPUT",
          "IGNORE_NODATA_TRIGGER")
_OPTIONS = ("WATERMARK", "EXPIRED_TIME", "FILL_HISTORY", "FILL_HISTORY_FIRST", "PRE_FILTER", "MAX_DELAY", "EVENT_TYPE",
            "DELETE_OUTPUT_TABLE", *_FLAGS)
_NOTIFY_OPTIONS = dict.fromkeys(("NOTIFY_HISTORY", "ON_FAILURE_PAUSE"), lambda _: True)


@dataclass
class _Trigger:
    """What the statement says of its trigger."""

    window: Window | None = None
    period: Duration | None = None
    offset: Duration | None = None
    slides: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def has_windows(self) -> bool:
        """Whether it fires for windows, which open and close, and not whenever a time has come."""
        return self.period is None and not self.slides


def at_trigger(parser: QueryParser) -> bool:
    """Whether a trigger comes next: then CREATE STREAM is of the newer form."""
    return parser.at_any(*TRIGGERS)


def parse_triggered_stream(
    parser: QueryParser, name: str, start: int, *, database: str | None, if_not_exists: bool, or_replace: bool
) -> Statement:
    """Parses what follows the name of a stream; `start` is where CREATE is."""
    given = _parse_trigger(parser)
    source = _parse_table(parser) if parser.take("FROM") else None
    if source is None and given.period is None:
        raise parser.fail("FROM and the trigger's table are expected: only PERIOD needs none")
    groups: tuple[PartitionItem, ...] = ()
    if source is not None and parser.take("PARTITION"):
        parser.expect("BY")
        groups = parser.csv(parser.parse_partition_item)
    if parser.take("STREAM_OPTIONS"):
        _parse_options(parser, given.options)
    notify, where = _parse_notify(parser, given) if parser.take("NOTIFY") else (None, None)
    target = _parse_target(parser, groups) if parser.take("INTO") else None
    query = None
    if parser.take("AS"):
        if not parser.at_query():
            raise parser.fail("SELECT is expected")
        with parser.calculating():
            query = parser.parse_query()
    elif target is not None:
        raise parser.fail("AS and a query are expected: INTO is for what it gives")
    if query is not None and notify is None and given.options.get("calc_notify_only"):
        raise parser.fail("NOTIFY is expected: with CALC_NOTIFY_ONLY results are told, and not kept")
    if query is not None and notify is None and target is None:
        raise parser.fail("INTO is expected", hint="or NOTIFY, for results that are told and not kept")
    if query is None and where is not None:
        raise parser.fail("AS and a query are expected: NOTIFY's condition is about what it gives")
    if query is None and notify is None:
        raise parser.fail("NOTIFY, or INTO and AS, are expected: the stream would do nothing")
    options = given.options
    calculation = Calculation(
        query=query, database=database, period=given.period, offset=given.offset, slides=given.slides,
        expired=options.get("expired_time"), history_from=options.get("history_from"),
        events=options.get("event_type", ("window_close",)) if given.has_windows else ("window_close",),
        notify_only=bool(options.get("calc_notify_only")),
        force_output=bool(options.get("force_output")), ignore_nodata=bool(options.get("ignore_nodata_trigger")),
        flags=tuple(flag for flag in ("low_latency_calc", "delete_recalc") if options.get(flag)),
        where=where)
    windows = windows_of(given.window, source, groups, options.get("pre_filter"),
                         fills=not options.get("ignore_nodata_trigger"))
    return CreateStream(
        name, _stream_options(given), target or StreamTarget(Name("")), windows, if_not_exists, parser.source(start),
        or_replace, notify, start, calculation=calculation)


# --- the trigger ------------------------------------------------------------------------------------------------


def _parse_trigger(parser: QueryParser) -> _Trigger:
    start = parser.token
    if parser.take("PERIOD"):
        parser.expect("(")
        period = _fixed(parser, "the period")
        if not _PERIOD_MIN_MS <= period.in_units("us") / 1000 <= _PERIOD_MAX_MS:
            raise parser.fail("PERIOD is from 10a to 3650d", start)
        if period.in_units("us") % 1000:
            raise parser.fail("PERIOD is of whole milliseconds", start)
        offset = _parse_offset(parser) if parser.take(",") else None
        parser.expect(")")
        return _Trigger(period=period, offset=offset)
    if parser.take("SLIDING"):
        parser.expect("(")
        step = _fixed(parser, "the step")
        if not _follows_day(step):
            raise parser.fail("the step of SLIDING without INTERVAL divides a day, or is of whole days", start)
        offset = _parse_offset(parser) if parser.take(",") else None
        parser.expect(")")
        return _Trigger(IntervalWindow(step, offset), slides=True)
    window = parser.parse_window()
    assert window is not None
    if isinstance(window, IntervalWindow) and window.sliding is None:
        raise parser.fail("SLIDING is expected", hint="INTERVAL(5m) SLIDING(5m) has windows that follow each other")
    return _Trigger(window)


def _follows_day(step: Duration) -> bool:
    units = step.in_units("us")
    day = DAY_MS * 1000
    return units > 0 and (day % units == 0 or units % day == 0)


def _parse_offset(parser: QueryParser) -> Duration:
    token = parser.token
    offset = _fixed(parser, "the offset")
    if offset.in_units("us") >= DAY_MS * 1000:
        raise parser.fail("the offset is shorter than a day", token)
    return offset


def _fixed(parser: QueryParser, what: str) -> Duration:
    token = parser.token
    duration = parser.duration(what)
    if duration.is_calendar or not duration.unit or duration.value <= 0:
        raise parser.fail(f"{what} is a time with its unit", token, hint="use a s m h d, as in 10s")
    return duration


def _parse_table(parser: QueryParser) -> Source:
    return TableSource(parser.object_name("the trigger's table"))


def windows_of(
    window: Window | None, source: Source | None, groups: Sequence[PartitionItem], condition: exp.Expression | None, *,
    fills: bool,
) -> Select:
    """Returns the query of a trigger, whose rows are its windows: start, end, rows, and what tells its group.

    `condition`: that of PRE_FILTER. `fills`: windows without rows are windows, too.
    """
    names = ["_wstart", "_wend", "_twrownum", *(f"_group{place}" for place in range(1, len(groups) + 1))]
    values = [exp.column("_wstart"), exp.column("_wend"), exp.Anonymous(this="count", expressions=[exp.Star()]),
              *(copied(item.expression) for item in groups)]
    if isinstance(window, CountWindow) and window.columns:
        given_values = [exp.Not(this=exp.Is(this=copied(column), expression=exp.Null())) for column in window.columns]
        any_value = exp.Paren(this=exp.or_(*given_values))
        condition = any_value if condition is None else exp.And(this=exp.Paren(this=condition), expression=any_value)
        window = CountWindow(window.count, window.sliding)
    fill = Fill("value", (exp.Literal.number("0"),)) if fills and isinstance(window, IntervalWindow) else None
    return Select(tuple(SelectItem(value, name, name) for value, name in zip(values, names, strict=True)), source,
                  where=condition, partition_by=tuple(groups), window=window, fill=fill)


# --- options ----------------------------------------------------------------------------------------------------


def _parse_options(parser: QueryParser, options: dict[str, Any]) -> None:
    """Parses `(option | option ...)`."""
    parser.expect("(")
    while True:
        token = parser.token
        word = parser.take_any(*_OPTIONS)
        if word is None:
            raise parser.fail("an option of a stream is expected",
                              hint=parser.guess() or "one of " + ", ".join(_OPTIONS))
        key = "fill_history" if word.startswith("FILL_HISTORY") else word.lower()
        if key in options:
            raise parser.fail(f"{word} is given twice", token)
        if word == "DELETE_OUTPUT_TABLE":
            raise parser.fail("DELETE_OUTPUT_TABLE is not supported: results of a table that is dropped are deleted, "
                              "their empty table stays", token)
        options[key] = word in _FLAGS or _OPTION_PARSERS[key](parser, options)
        if not parser.take("|"):
            break
    parser.expect(")")


def _in_parentheses(what: str) -> Callable[[QueryParser, dict[str, Any]], Duration]:
    def parse(parser: QueryParser, _: dict[str, Any]) -> Duration:
        parser.expect("(")
        token = parser.token
        duration = parser.duration(what)
        if duration.is_calendar:
            raise parser.fail(f"{what} cannot be in months or years", token, hint="use a s m h d")
        parser.expect(")")
        return duration

    return parse


def _parse_max_delay(parser: QueryParser, options: dict[str, Any]) -> Duration:
    token = parser.token
    delay = _in_parentheses("the delay of MAX_DELAY")(parser, options)
    if delay.in_units("ms") < _MAX_DELAY_MIN_MS:
        raise parser.fail("MAX_DELAY is at least 3s", token)
    return delay


def _parse_history(parser: QueryParser, options: dict[str, Any]) -> bool:
    if parser.take("("):
        token = parser.token
        options["history_from"] = parser.parse_operand()
        if found_in(options["history_from"], exp.Column):
            raise parser.fail("FILL_HISTORY begins at a constant time, not at a column", token)
        parser.expect(")")
    return True


def _parse_filter(parser: QueryParser, _: dict[str, Any]) -> exp.Expression:
    return parser.wrapped(parser.parse_expression)


def _parse_event_type(parser: QueryParser, _: dict[str, Any]) -> tuple[NotifyEvent, ...]:
    return parser.wrapped(lambda: _parse_events(parser))


_OPTION_PARSERS: dict[str, Callable[[QueryParser, dict[str, Any]], Any]] = {
    "watermark": _in_parentheses("the delay of WATERMARK"), "expired_time": _in_parentheses("the age of EXPIRED_TIME"),
    "fill_history": _parse_history, "pre_filter": _parse_filter, "max_delay": _parse_max_delay,
    "event_type": _parse_event_type,
}


def _parse_events(parser: QueryParser) -> tuple[NotifyEvent, ...]:
    """Parses events as words or texts, with `|` or a comma between them."""
    events: list[NotifyEvent] = []
    while True:
        token = parser.token
        text = parser.string("an event") if parser.at_type(TokenType.STRING) else parser.advance().text
        if text.lower() not in (*get_args(NotifyEvent), "on_time"):
            raise parser.fail("WINDOW_OPEN or WINDOW_CLOSE is expected", token)
        events.append(cast(NotifyEvent, "window_close" if text.lower() == "on_time" else text.lower()))
        if not (parser.take("|") or parser.take(",")):
            return tuple(dict.fromkeys(events))


def _stream_options(given: _Trigger) -> StreamOptions:
    """Returns what the options say in the words of the older form."""
    options = given.options
    disorder = bool(options.get("ignore_disorder"))
    delay = options.get("max_delay") if given.has_windows else None
    return StreamOptions(
        trigger=None if given.period is not None else "window_close" if delay is None else "max_delay",
        max_delay=delay, watermark=options.get("watermark"), ignore_expired=disorder, ignore_update=disorder,
        fill_history=True if options.get("fill_history") else None,
        latency=Duration(0, "") if options.get("low_latency_calc") else None)


# --- who is told, and where results go --------------------------------------------------------------------------


def _parse_notify(parser: QueryParser, given: _Trigger) -> tuple[Notify, exp.Expression | None]:
    urls = parser.wrapped_csv(lambda: parser.string("a URL"))
    events: tuple[NotifyEvent, ...] = ("window_close",)
    if parser.take("ON"):
        events = parser.wrapped(lambda: _parse_events(parser))
    elif given.has_windows:
        raise parser.fail("ON and the events are expected", hint="ON (WINDOW_OPEN | WINDOW_CLOSE)")
    where = parser.parse_expression() if parser.take("WHERE") else None
    options: dict[str, Any] = {}
    if parser.take("NOTIFY_OPTIONS"):
        parser.expect("(")
        while parser.option(_NOTIFY_OPTIONS, options, " or ".join(_NOTIFY_OPTIONS)) and parser.take("|"):
            pass
        parser.expect(")")
    return Notify(urls, events, "NOTIFY_HISTORY" in options,
                  "pause" if "ON_FAILURE_PAUSE" in options else "drop"), where


def _parse_target(parser: QueryParser, groups: Sequence[PartitionItem]) -> StreamTarget:
    name = parser.object_name("the name of the result table")
    subtable = None
    start = parser.token
    if parser.take("OUTPUT_SUBTABLE"):
        subtable = parser.wrapped(lambda: _parse_of_group(parser, groups))
        if not groups:
            raise parser.fail("OUTPUT_SUBTABLE needs PARTITION BY", start)
    columns = parser.wrapped_csv(lambda: parse_target_column(parser)) if parser.at("(") else None
    definitions: tuple[ColumnDefinition, ...] | None = None
    values: tuple[exp.Expression, ...] | None = None
    token = parser.token
    if parser.take("TAGS"):
        if not groups:
            raise parser.fail("TAGS need PARTITION BY", token)
        found = parser.wrapped_csv(lambda: _parse_tag(parser, groups))
        definitions = tuple(definition for definition, _ in found)
        values = tuple(value for _, value in found)
    return StreamTarget(name, columns, definitions, None, subtable, tag_values=values)


def parse_target_column(parser: QueryParser) -> tuple[str, bool]:
    """Parses a column of a result table; returns its name, and whether it is a part of the primary key."""
    name = parser.name("a column name")
    if not parser.at_any("PRIMARY", "COMPOSITE"):
        return name, False
    parser.advance()
    parser.expect("KEY")
    return name, True


def _parse_tag(
    parser: QueryParser, groups: Sequence[PartitionItem]
) -> tuple[ColumnDefinition, exp.Expression]:
    definition = ColumnDefinition(parser.name("a tag name"), parser.parse_data_type())
    if parser.take("COMMENT"):
        parser.string("a comment")
    parser.expect("AS")
    return definition, _parse_of_group(parser, groups)


def _parse_of_group(parser: QueryParser, groups: Sequence[PartitionItem]) -> exp.Expression:
    """Parses an expression over the columns of PARTITION BY, each of which `%%n` stands for, too."""
    token = parser.token
    with parser.calculating():
        root = exp.Paren(this=parser.parse_expression())
    for node in nodes_of(root):
        if isinstance(node, exp.Column) and node.name.startswith(TRIGGER) and not node.this.quoted:
            name = node.name.removeprefix(TRIGGER)
            if name != "tbname" and not 1 <= int(name) <= len(groups):
                raise parser.fail(f"{node.name} is not there: PARTITION BY has {len(groups)} columns", token)
            value = exp.column("tbname") if name == "tbname" else groups[int(name) - 1].expression
            node.replace(copied(value))
    return cast(exp.Expression, root.this)
