"""Finds the rows that fail by themselves, so that others are computed without them."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa


def failing_rows(rows: pa.Table, error_of: Callable[[pa.Table], str | None], first: int = 0) -> dict[int, str]:
    """Returns which rows can't be computed by themselves, by their numbers from `first`, and why.

    `error_of` says why rows can't be computed, None if they can.
    """
    if not rows.num_rows:
        return {}
    error = error_of(rows)
    if error is None:
        return {}
    if rows.num_rows == 1:
        return {first: error}
    half = rows.num_rows // 2
    return (failing_rows(rows.slice(0, half), error_of, first)
            | failing_rows(rows.slice(half), error_of, first + half))
