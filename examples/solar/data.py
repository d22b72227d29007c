"""What the trackers report, made from a seed, in the order of arrival: rows late, rows twice, and rows rewritten."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

SITES = ("north", "east", "south")
TRACKERS_PER_SITE = 4
FIRST_MS = 1_717_200_000_000  # 2024-06-01 00:00:00 UTC
MINUTE_MS = 60_000
DAY_MINUTES = 1440
LATE_SHARE, TWICE_SHARE, REWRITTEN_SHARE = 0.02, 0.01, 0.005
LATE_BY_MINUTES_MAX = 45  # below the watermark of an hour
BATCH_MINUTES = 120
STORM = 17.0  # m/s: beyond it trackers lie flat
NIGHT, TRACKING, STOWED = 0.0, 1.0, 2.0


def load_rows(seed: int, days: int) -> pd.DataFrame:
    """Returns all rows in the order of arrival, with `arrival` in ms; the same seed gives the same rows."""
    random = np.random.default_rng(seed)
    frames = [_reports(site, number, days, random) for site in SITES for number in range(TRACKERS_PER_SITE)]
    rows = pd.concat(frames, ignore_index=True)
    delay = _delays(len(rows), random)
    delay[random.random(len(rows)) >= LATE_SHARE] = 0
    rows["arrival"] = rows["ts"] + delay
    kind = random.random(len(rows))
    twice = rows[kind < TWICE_SHARE].copy()
    rewritten = rows[kind > 1 - REWRITTEN_SHARE].copy()
    rewritten["power"] = (rewritten["power"] * 1.1).round(3)
    again = pd.concat([twice, rewritten], ignore_index=True)
    again["arrival"] += _delays(len(again), random)
    return pd.concat([rows, again]).sort_values("arrival", kind="stable", ignore_index=True)


def batches(rows: pd.DataFrame) -> Iterator[tuple[str, pa.Table]]:
    """Yields (super table, rows) in the order of arrival, two hours at a time."""
    steps = (rows["arrival"] // (BATCH_MINUTES * MINUTE_MS)).to_numpy()
    table = pa.Table.from_pandas(rows.drop(columns="arrival"), preserve_index=False)
    for start, end in zip(*_stretches(steps), strict=True):
        yield "trackers", table.slice(start, end - start)


def stored(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows as they are in the end: of each tracker's reports of a minute the last to arrive."""
    return rows.drop_duplicates(["tbname", "ts"], keep="last").drop(columns="arrival")


def _stretches(steps: npt.NDArray[np.int64]) -> tuple[list[int], list[int]]:
    borders = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]
    return borders[:-1], borders[1:]


def _delays(count: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    return random.integers(1, LATE_BY_MINUTES_MAX, count, endpoint=True) * MINUTE_MS


def _reports(site: str, number: int, days: int, random: np.random.Generator) -> pd.DataFrame:
    """One report per minute: the sun rises and sets, clouds pass, wind comes and goes."""
    minute = np.arange(days * DAY_MINUTES)
    height = np.sin((minute % DAY_MINUTES - 360) / 720 * np.pi)
    wind = 8 + 6 * np.sin(minute / 700 + SITES.index(site)) + random.normal(0, 2, len(minute))
    mode = np.where(height <= 0, NIGHT, np.where(_calm(wind) > STORM - 4, STOWED, TRACKING))
    target = np.where(mode == TRACKING, 60 * np.cos((minute % DAY_MINUTES - 360) / 720 * np.pi), 0.0)
    angle = target + random.normal(0, 0.4, len(minute))
    power = np.where(mode == NIGHT, 0.0, 50 * np.clip(height, 0, 1) * random.uniform(0.6, 1, len(minute)))
    return pd.DataFrame({
        "tbname": f"t_{site}_{number}", "site": site, "device": f"{site[0]}{number}",
        "ts": FIRST_MS + minute * MINUTE_MS, "power": power.round(3), "target": target.round(2),
        "angle": angle.round(2), "wind": wind.round(1), "mode": mode.astype("float32"),
    })


def _calm(wind: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns the wind's mean over the last half hour: one gust stows no tracker."""
    sums = np.cumsum(np.insert(wind, 0, 0.0))
    ends = np.arange(1, len(wind) + 1)
    starts = np.maximum(ends - 30, 0)
    mean: npt.NDArray[np.float64] = (sums[ends] - sums[starts]) / (ends - starts)
    return mean
