"""The options of CREATE STREAM: which can be changed, and the statement with others."""

from __future__ import annotations

from penstock.sql.dialect.generator import print_sql, print_stream
from penstock.sql.tree.statements import CreateStream, StreamOptions

ALTERABLE = (
    "max_delay", "recalculate", "delete_mark", "idle_timeout", "max_skew", "checkpoint_interval", "sink_rate",
    "sink_calls", "source_rate", "history_rate", "state_limit", "guarantee",
    "retry_time", "lookup_freshness", "latency", "on_mismatch",
)
"""Fields of `StreamOptions` that say how a stream works. The others say what its results are: changed half-way, the
result table would be made half by the one and half by the other."""

_RATES = ("sink_rate", "sink_calls", "source_rate", "history_rate")
LIVE = frozenset({*_RATES, "state_limit", "on_mismatch"})
"""Those of them that a stream takes over as it runs."""


def rates_sql(options: StreamOptions) -> str:
    """Returns the rates that are given, as CREATE STREAM has them."""
    return print_sql(StreamOptions(**{name: getattr(options, name) for name in _RATES}))


def given(options: StreamOptions) -> tuple[str, ...]:
    """Returns the names of the fields that are given."""
    return tuple(name for name in options.parts if name in options.args)


def altered(statement: CreateStream, changes: StreamOptions) -> str:
    """Returns the text of the statement without OR REPLACE, and with `changes` in the place of options where given."""
    options = statement.options.with_changes(**{name: getattr(changes, name) for name in given(changes)})
    return print_stream(statement.with_changes(options=options, or_replace=False))
