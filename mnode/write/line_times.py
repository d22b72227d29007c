"""The timestamps of lines in the precision of a database: finer ones are cut off, those beyond KEEP are refused."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.sql.schema import Database
from penstock.sql.time_bounds import LATEST, oldest_allowed
from penstock.sql.types import UNITS_PER_SECOND

LinePrecision = Literal["h", "m", "s", "ms", "us", "ns"]

_NANOSECONDS: dict[str, int] = {
    "h": 3_600_000_000_000, "m": 60_000_000_000, "s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class LineTimes:
    """Timestamps that come in one unit, of one moment: `now`, for lines without one, in units of the database."""

    def __init__(self, database: Database, precision: str, now_ms: int) -> None:
        self.oldest, self.latest = oldest_allowed(database, now_ms), LATEST[database.precision]
        self.now = now_ms * (UNITS_PER_SECOND[database.precision] // 1000)
        from_ns, to_ns = _NANOSECONDS[precision], _NANOSECONDS[database.precision]
        self._factor, self._divisor = max(from_ns // to_ns, 1), max(to_ns // from_ns, 1)

    def scaled(self, time: int) -> int | None:
        """Returns one timestamp, 0 standing for now; None if it is out of range."""
        if time == 0:
            return self.now
        scaled = time * self._factor if self._divisor == 1 else _cut_off(time, self._divisor)
        return scaled if self.oldest <= scaled <= self.latest else None

    def all_scaled(self, times: Ints, timeless: Bools | None) -> tuple[Ints, Bools]:
        """Returns timestamps, and which are out of range; where `timeless` is set it is now."""
        if self._divisor == 1:
            outside = (times > self.latest // self._factor) | (times < -(-self.oldest // self._factor))
            scaled = times * self._factor if self._factor > 1 else times
        else:
            # Towards zero, as SQL cuts timestamps; NumPy's division goes down.
            scaled = times // self._divisor + ((times < 0) & (times % self._divisor != 0))
            outside = (scaled > self.latest) | (scaled < self.oldest)
        if timeless is not None:
            scaled = np.where(timeless, self.now, scaled)
            outside &= ~timeless
        return scaled, outside


def _cut_off(time: int, divisor: int) -> int:
    return time // divisor if time >= 0 else -(-time // divisor)
