"""What a task of a stream of any query orders: that its result table be made the answer."""

from __future__ import annotations

from dataclasses import dataclass

TouchedValues = tuple[tuple[int | str | None, ...], ...]
"""Values of each touched column of an answer."""


@dataclass(frozen=True, slots=True)
class RefreshRequest:
    """An order of an attempt of a stream of any query: to make its result table the answer as it is now.

    `tuids`: only groups of these child tables may have another answer. `values`: only rows of the answer may be others
    that have some of these in the columns that the plan says are touched. Both None: any may. The answer is one row:
    how many rows were `written` or deleted.
    """

    stream_id: int
    attempt: int
    tuids: tuple[int, ...] | None
    values: TouchedValues | None = None
