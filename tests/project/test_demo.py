"""The demo's rows: complete, unique, late within the watermark, the same for the same seed; and the demo itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from examples.flights import check
from examples.flights.data import LATE_BY_MINUTES_MAX, Feed, batches, load_feeds
from examples.shared.verdict import compare
from kits.basics.places import ROOT


@pytest.fixture(scope="module")
def feeds() -> list[Feed]:
    """Both feeds of January."""
    return load_feeds(seed=1, months=1)


def test_feeds_are_complete_and_unique(feeds: list[Feed]) -> None:
    """No departure is lost, and no two rows share a key."""
    flights, weather = feeds
    assert len(flights.frame) == 27_004
    assert len(weather.frame) == 2226
    for feed in feeds:
        assert not feed.frame.duplicated(["tbname", "ts"]).any()


def test_cancelled_flights_count_at_their_scheduled_time(feeds: list[Feed]) -> None:
    """A flight that never left has no delay, but a time."""
    cancelled = feeds[0].frame[feeds[0].frame["dep_delay"].isna()]
    assert len(cancelled) == 521
    assert (cancelled["ts"] > 0).all()


def test_some_rows_are_late_but_within_the_watermark(feeds: list[Feed]) -> None:
    """Rows arrive behind newer ones, by less than the streams' watermark of an hour."""
    times = feeds[0].frame["ts"].to_numpy()
    lateness = np.maximum.accumulate(times) - times
    assert 0 < lateness.max() <= LATE_BY_MINUTES_MAX * 60_000
    assert LATE_BY_MINUTES_MAX < 60
    assert (lateness > 0).mean() > 0.01


def test_batches_hold_every_row_once_in_order_of_arrival(feeds: list[Feed]) -> None:
    """The feeds are cut without loss."""
    found: dict[str, list[int]] = {"flights": [], "weather": []}
    for table, rows in batches(feeds):
        found[table] += rows["ts"].to_pylist()
    for feed in feeds:
        assert found[feed.table] == feed.frame["ts"].tolist()


def test_same_seed_same_rows() -> None:
    """Which rows are late depends on the seed alone."""
    first, again, other = (load_feeds(seed, months=1)[0].frame for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(first, again)
    assert not first["ts"].equals(other["ts"])


def test_comparison_finds_differences(feeds: list[Feed]) -> None:
    """A wrong value, a missing row and a row too many are told apart and named."""
    wanted = check.pandas_answer(check.EXPECTATIONS[0], feeds[0].frame)
    assert compare("left", wanted, "right", wanted, lambda key: True, "UTC") == []
    wrong = wanted.copy()
    wrong.iloc[0, 0] += 1
    assert "planned is" in compare("left", wanted, "right", wrong, lambda key: True, "UTC")[0]
    assert "right has not" in compare("left", wanted, "right", wanted.iloc[1:], lambda key: True, "UTC")[0]
    assert compare("left", wanted, "right", wanted.iloc[1:], lambda key: False, "UTC") == []
    assert "left has not" in compare("left", wanted.iloc[1:], "right", wanted, lambda key: True, "UTC")[0]


@pytest.mark.slow
def test_the_demo_matches_the_batch_answers(tmp_path: Path) -> None:
    """Two months of the demo, in a process of their own, end with four matches."""
    answer = subprocess.run(
        [sys.executable, "-m", "examples.flights", "--fast", "--data", str(tmp_path / "data")],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=180,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.count("matches the batch answer") == 4
    assert not (tmp_path / "data").exists()
