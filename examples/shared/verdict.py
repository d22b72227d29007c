"""Compares answers, as data frames indexed by (group, window start in ms), and says in words how they differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

DIFFERENCES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of one stream: its rows, and the differences found, of which there should be none."""

    stream: str
    rows: int
    differences: tuple[str, ...]

    @property
    def matches(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        if self.matches:
            return f"{self.stream}: matches the batch answer ({self.rows} rows)"
        shown = "\n  ".join(self.differences[:DIFFERENCES_SHOWN])
        more = len(self.differences) - DIFFERENCES_SHOWN
        return f"{self.stream}: differs from the batch answer\n  {shown}" + (f"\n  and {more} more" if more > 0 else "")


def compare(
    left_name: str, left: pd.DataFrame, right_name: str, right: pd.DataFrame, required: Callable[[Any], bool],
    time_zone: str,
) -> list[str]:
    """Returns differences in words; rows of `left` that aren't `required` may be missing from `right`.

    `time_zone` is how times are shown.
    """

    def shown(key: tuple[str, int]) -> str:
        group, start = key
        return f"{group} at {pd.Timestamp(start, unit='ms', tz='UTC').tz_convert(time_zone):%Y-%m-%d %H:%M}"

    differences = [f"{right_name} has {shown(key)}, {left_name} has not" for key in right.index.difference(left.index)]
    missing = [key for key in left.index.difference(right.index) if required(key)]
    differences += [f"{left_name} has {shown(key)}, {right_name} has not" for key in missing]
    common = left.index.intersection(right.index)
    for column in left.columns:
        wanted = left.loc[common, column].astype("float64")
        found = right.loc[common, column].astype("float64")
        tolerance = 1e-9 * wanted.abs().clip(lower=1)
        wrong = ~((wanted - found).abs() <= tolerance) & ~(wanted.isna() & found.isna())
        differences += [
            f"{shown(key)}: {column} is {found[key]} by {right_name}, {wanted[key]} by {left_name}"
            for key in common[wrong]
        ]
    return differences
