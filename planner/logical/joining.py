"""How pairs of rows of a join are found."""

from __future__ import annotations

from typing import Literal

from penstock.planner.logical.operators import Join

Method = Literal["hash", "sorted times", "asof"]


def method_of(join: Join) -> Method:
    """Returns whether what must be equal is hashed, both sides are sorted along their times, or DuckDB's ASOF join."""
    if join.variant == "window":
        return "hash" if join.keys else "sorted times"
    if join.variant == "asof" and is_nearest(join):
        return "asof"
    return "hash" if join.keys or any(time.comparison == "=" for time in join.times) else "sorted times"


def is_nearest(join: Join) -> bool:
    """Whether the nearest row can be found without pairing all rows with equal keys first."""
    return not (join.others or join.limit == 0 or any(time.comparison == "=" for time in join.times)
                or not all(key.as_they_are for key in join.keys))


def has_pieces(join: Join) -> bool:
    """Whether DuckDB, which hashes keys, would pair all rows of equal ones, however far apart in time they are."""
    return bool(join.keys) and join.range is not None and join.range.start is not None \
        and join.range.end is not None and all(time.comparison != "=" for time in join.times)
