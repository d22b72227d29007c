"""The solar example: its rows arrive late, twice and rewritten as it says; its streams match the batch answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import by_night
from examples.solar.check import daily_peaks, hourly_peaks, modes, quarters
from examples.solar.data import (
    DAY_MINUTES,
    LATE_BY_MINUTES_MAX,
    MINUTE_MS,
    SITES,
    TRACKERS_PER_SITE,
    batches,
    load_rows,
    stored,
)
from kits.basics.places import ROOT

DAY_ROWS = len(SITES) * TRACKERS_PER_SITE * DAY_MINUTES


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """One day of rows in the order of arrival."""
    return load_rows(seed=1, days=1)


def test_rows_come_late_twice_and_rewritten(rows: pd.DataFrame) -> None:
    """Each kind is there, late rows within the watermark, and one row per tracker and minute is left."""
    lateness = np.maximum.accumulate(rows["ts"].to_numpy()) - rows["ts"].to_numpy()
    # What is sent again may have been late the first time.
    assert 0 < lateness.max() <= 2 * LATE_BY_MINUTES_MAX * MINUTE_MS
    again = rows[rows.duplicated(["tbname", "ts"], keep=False)].groupby(["tbname", "ts"])["power"]
    daylight = again.max() > 0
    assert (again.nunique()[daylight] == 1).any()
    assert (again.nunique()[daylight] == 2).any()
    assert len(stored(rows)) == DAY_ROWS


def test_batches_hold_every_row_in_order_of_arrival(rows: pd.DataFrame) -> None:
    """The rows are cut without loss."""
    found = [ts for _, part in batches(rows) for ts in part["ts"].to_pylist()]
    assert found == rows["ts"].tolist()


def test_same_seed_same_rows(rows: pd.DataFrame) -> None:
    """The rows depend on the seed alone."""
    pd.testing.assert_frame_equal(rows, load_rows(seed=1, days=1))
    assert not rows["power"].equals(load_rows(seed=2, days=1)["power"])


def test_batch_answers_count_every_reading(rows: pd.DataFrame) -> None:
    """Each reading is in one hour, one day and one mode, and in three quarters."""
    kept = stored(rows)
    for answer, times in ((hourly_peaks, 1), (daily_peaks, 1), (modes, 1), (quarters, 3)):
        assert answer(kept)["readings"].sum() == times * DAY_ROWS


@by_night
@pytest.mark.slow
def test_the_streams_match_the_batch_answers(tmp_path: Path) -> None:
    """A day of the example, in a process of its own, ends with four matches."""
    answer = subprocess.run(
        [sys.executable, "-m", "examples.solar", "--days", "1", "--data", str(tmp_path / "data")],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=180,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.count("matches the batch answer") == 4
    assert not (tmp_path / "data").exists()
