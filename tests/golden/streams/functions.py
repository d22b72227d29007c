"""Users' functions that the golden streams call."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def twice(values: pa.Array) -> pa.Array:
    return pc.multiply(values, 2)


def even(values: pa.Array) -> pa.Array:
    return pc.equal(pc.bit_wise_and(values, pa.scalar(1, pa.int32())), 0)


class Scatter:
    """Count times the sum of squares, minus the square of the sum; NULL without values."""

    def init(self) -> tuple[int, int, int]:
        return 0, 0, 0

    def accumulate(self, state: tuple[int, int, int], values: pa.Array) -> tuple[int, int, int]:
        numbers: list[int] = values.drop_null().to_pylist()
        return self.merge(state, (len(numbers), sum(numbers), sum(number * number for number in numbers)))

    def merge(self, left: tuple[int, int, int], right: tuple[int, int, int]) -> tuple[int, int, int]:
        return left[0] + right[0], left[1] + right[1], left[2] + right[2]

    def finish(self, state: tuple[int, int, int]) -> int | None:
        count, total, squares = state
        return squares * count - total * total if count else None


class Texts:
    """The different texts, sorted."""

    def init(self) -> set[str]:
        return set()

    def accumulate(self, state: set[str], values: pa.Array) -> set[str]:
        return state | set(values.drop_null().to_pylist())

    def merge(self, left: set[str], right: set[str]) -> set[str]:
        return left | right

    def finish(self, state: set[str]) -> Any:
        return ",".join(sorted(state))
