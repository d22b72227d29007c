"""The options of CREATE STREAM as text: those that ALTER STREAM changes take their place in the statement."""

from __future__ import annotations

import re

from penstock.common.quantities import size_text
from penstock.sql.dialect import quote_identifier, quote_string
from penstock.sql.statements import CreateStream, StreamOptions

_PREFIX = re.compile(r"CREATE\s+OR\s+REPLACE\s+STREAM", re.IGNORECASE)

ALTERABLE = (
    "max_delay", "recalculate", "delete_mark", "idle_timeout", "max_skew", "checkpoint_interval", "sink_rate",
    "sink_calls", "source_rate", "history_rate", "state_limit", "guarantee",
    "retry_time", "lookup_freshness",
)
"""Fields of `StreamOptions` that say how a stream works. The others say what its results are: changed half-way, the
result table would be made half by the one and half by the other."""

_RATES = ("sink_rate", "sink_calls", "source_rate", "history_rate")
LIVE = frozenset({*_RATES, "state_limit"})
"""Those of them that a stream takes over as it runs."""


def options_sql(options: StreamOptions) -> str:
    """Returns the options that are given, as CREATE STREAM has them."""
    words: list[str] = []
    if options.trigger is not None:
        words.append(f"TRIGGER {options.trigger.upper()}")
    if options.max_delay is not None:
        words.append(str(options.max_delay))
    if options.recalculate is not None:
        words.append(f"RECALCULATE {options.recalculate}")
    if options.watermark is not None:
        words.append(f"WATERMARK {options.watermark}")
    if options.watermark_from is not None:
        words.append(f"WATERMARK FROM {options.watermark_from.upper()}")
    if options.writer_timeout is not None:
        words.append(f"WRITER_TIMEOUT {options.writer_timeout}")
    if options.ignore_expired is not None:
        words.append(f"IGNORE EXPIRED {options.ignore_expired:d}")
    if options.ignore_update is not None:
        words.append(f"IGNORE UPDATE {options.ignore_update:d}")
    if options.delete_mark is not None:
        words.append(f"DELETE_MARK {options.delete_mark}")
    if options.fill_history is not None:
        words.append(f"FILL_HISTORY {options.fill_history:d}{' ASYNC' if options.fill_history_async else ''}")
    if options.time is not None:
        words.append(f"TIME {options.time.upper()}")
    if options.timezone is not None:
        words.append(f"TIMEZONE {quote_string(options.timezone)}")
    if options.allowed_lateness is not None:
        words.append(f"ALLOWED_LATENESS {options.allowed_lateness}")
    if options.idle_timeout is not None:
        words.append(f"IDLE_TIMEOUT {options.idle_timeout}")
    if options.close_when_idle is not None:
        words.append(f"CLOSE_WHEN_IDLE {options.close_when_idle:d}")
    if options.max_future is not None:
        words.append(f"MAX_FUTURE {options.max_future}")
    if options.max_skew is not None:
        words.append(f"MAX_SKEW {options.max_skew}")
    if options.on_error is not None:
        words.append(f"ON_ERROR {_fate(options.on_error, options)}")
    if options.late is not None:
        words.append(f"LATE {_fate(options.late, options)}")
    if options.checkpoint_interval is not None:
        words.append(f"CHECKPOINT_INTERVAL {options.checkpoint_interval}")
    if options.sink_rate is not None:
        words.append(f"SINK_RATE {options.sink_rate:.12g}")
    if options.sink_calls is not None:
        words.append(f"SINK_CALLS {options.sink_calls:.12g}")
    if options.source_rate is not None:
        words.append(f"SOURCE_RATE {options.source_rate:.12g}")
    if options.history_rate is not None:
        words.append(f"HISTORY_RATE {options.history_rate:.12g}")
    if options.state_limit is not None:
        words.append(f"STATE_LIMIT {quote_string(size_text(options.state_limit))}")
    if options.guarantee is not None:
        words.append(f"GUARANTEE {options.guarantee.upper()}")
    if options.on_failure is not None:
        words.append(f"ON_FAILURE {_fate(options.on_failure, options)}")
    if options.retry_time is not None:
        words.append(f"RETRY_TIME {options.retry_time}")
    if options.lookup_freshness is not None:
        words.append(f"LOOKUP_FRESHNESS {options.lookup_freshness}")
    return " ".join(words)


def rates_sql(options: StreamOptions) -> str:
    """Returns the rates that are given, as CREATE STREAM has them."""
    return options_sql(StreamOptions(**{name: getattr(options, name) for name in _RATES}))


def _fate(word: str, options: StreamOptions) -> str:
    if word != "dlq":
        return word.upper()
    assert options.dlq is not None
    database = f"{quote_identifier(options.dlq.database)}." if options.dlq.database else ""
    return f"DLQ {database}{quote_identifier(options.dlq.name)}"


def given(options: StreamOptions) -> tuple[str, ...]:
    """Returns the names of the fields that are given."""
    return tuple(name for name in options.parts if name in options.args)


def altered(statement: CreateStream, changes: StreamOptions) -> str:
    """Returns the statement's text without OR REPLACE, and with `changes` in the place of options where given."""
    merged = statement.options.with_changes(**{name: getattr(changes, name) for name in given(changes)})
    first, last = statement.options_place
    text = options_sql(merged)
    # Behind the name stands either an option or, after white space, INTO.
    head = _PREFIX.sub("CREATE STREAM", statement.source_text[:first]).rstrip()
    return " ".join(filter(None, (head, text, statement.source_text[last:].lstrip())))
