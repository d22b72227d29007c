"""Options of streams as text: what is written is read back as it was, and ALTER changes nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.errors import SqlSyntaxError
from penstock.sql.dialect.generator import print_sql
from penstock.sql.dialect.parser import parse_one
from penstock.sql.dialect.stream_options import altered
from penstock.sql.dialect.stream_options import given as given_in
from penstock.sql.tree.statements import CreateStream, Duration, StreamOptions

DURATIONS = st.builds(Duration, st.integers(1, 999), st.sampled_from(["a", "s", "m", "h", "d"]))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "trigger": st.sampled_from(["at_once", "window_close", "force_window_close"]),
    "max_delay": st.none(), "recalculate": st.none(),
    "watermark": DURATIONS, "ignore_expired": st.booleans(), "ignore_update": st.booleans(), "delete_mark": DURATIONS,
    "fill_history": st.booleans(), "fill_history_async": st.just(False),
    "timezone": st.sampled_from(["Europe/Berlin", "it's"]), "allowed_lateness": DURATIONS, "idle_timeout": DURATIONS,
    "time": st.sampled_from(["event", "processing"]), "max_future": DURATIONS, "max_skew": DURATIONS,
    "on_error": st.sampled_from(["fail", "skip"]), "late": st.sampled_from(["drop", "recalc"]), "dlq": st.none(),
    "watermark_from": st.none(), "writer_timeout": DURATIONS,
    "close_when_idle": st.booleans(), "checkpoint_interval": st.just(Duration(90, "s")),
    "state_limit": st.just(0) | st.integers(1 << 20, 1 << 44), "state_ttl": DURATIONS,
    "sink_rate": st.sampled_from([0.0, 0.1, 2.5]), "sink_calls": st.sampled_from([0.5, 50.0, 100_000.0]),
    "source_rate": st.sampled_from([0.0, 1.0, 1234567.0]), "history_rate": st.sampled_from([0.0, 2.5, 1e9]),
    "guarantee": st.sampled_from(["exactly_once", "at_least_once"]),
    "on_failure": st.just("pause"), "retry_time": DURATIONS, "lookup_freshness": DURATIONS,
    "latency": st.builds(Duration, st.integers(0, 10), st.sampled_from(["u", "a", "s"])),
    "on_mismatch": st.sampled_from(["report", "recalculate"]),
}
OPTIONS = st.fixed_dictionaries({}, optional=VALUES).map(lambda values: StreamOptions(**values))
PERIODS = [StreamOptions(trigger="max_delay", max_delay=Duration(7, "s")),
           StreamOptions(trigger="continuous_window_close", recalculate=Duration(20, "m")),
           StreamOptions(fill_history=True, fill_history_async=True)]


def create(options: str) -> CreateStream:
    statement = parse_one(f"CREATE STREAM s {options} INTO `into` AS SELECT _wstart, count(*) FROM t INTERVAL(1s)")
    assert isinstance(statement, CreateStream)
    return statement


def test_every_option_is_known_here() -> None:
    """A new option must be written by the generator, or ALTER STREAM would lose it."""
    assert VALUES.keys() == StreamOptions.parts.keys()


@given(OPTIONS)
def test_options_are_read_back_as_they_were(options: StreamOptions) -> None:
    """Whatever is given, in whatever combination, the text has all of it."""
    assert create(print_sql(options)).options == options


@pytest.mark.parametrize("options", PERIODS, ids=print_sql)
def test_options_of_two_words_are_read_back(options: StreamOptions) -> None:
    """A trigger's time and ASYNC belong to the word before them."""
    assert create(print_sql(options)).options == options


@given(OPTIONS, OPTIONS)
def test_altered_options_replace_the_old_and_leave_the_rest(old: StreamOptions, new: StreamOptions) -> None:
    """The changed text is the old one with other options."""
    before = create(print_sql(old))
    after = parse_one(altered(before, new))
    assert isinstance(after, CreateStream)
    assert after.options == old.with_changes(**{name: getattr(new, name) for name in given_in(new)})
    assert (after.name, after.target.name.name, after.query.source_text) == ("s", "into", before.query.source_text)


@pytest.mark.parametrize("latency", ["50", "11s", "1n", "-1s", "x", "1s LATENCY 2s", ""])
def test_latency_has_a_unit_and_a_bound(latency: str) -> None:
    """A bare number would mean another time in each database."""
    with pytest.raises(SqlSyntaxError):
        parse_one(f"CREATE STREAM s LATENCY {latency} INTO o AS SELECT count(*) FROM m INTERVAL(1s)")
