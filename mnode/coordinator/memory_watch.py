"""What is ended or paused when an engine and its processes take more memory than they may, and what goes on. Pure.

No stream pays for a query: queries are ended first, and a stream is paused only if memory grows on without them. It
goes on when there is room again, a good deal less than the limit, so that it isn't paused again at once.

Pausing gives nothing back at once: the stream keeps its state, and what it has read it still works off. So the next
stream follows only if memory has grown by a twentieth since, not because it is still beyond the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.common.quantities import mebibytes
from penstock.sql.tree.expression_nodes import quote_identifier

_GROWN = 1.05
_ROOM = 0.9
_NEAR = 0.8


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """A worker: its group, and its place in it."""

    group: str
    index: int

    def __str__(self) -> str:
        return f"{self.group}/{self.index}"


@dataclass(frozen=True, slots=True)
class Holding:
    """What a running stream holds in the memory of a worker: state, and rows in queues."""

    stream_id: int
    stream: str
    place: WorkerPlace
    nbytes: int


class MemoryWatch:
    """Looks at each measurement; see `decide`. `limit`: bytes, 0 for no limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._level = float(limit)

    @property
    def near(self) -> float:
        """From how many bytes on the limit is so near that measurements must be exact."""
        return self.limit * _NEAR if self.limit else float("inf")

    def shortage(self, total: int) -> str | None:
        """Returns that memory is short, with the figures; None if it isn't."""
        if not self.limit or total <= self.limit:
            return None
        return (f"the engine and its processes take {mebibytes(total)} of memory, memoryLimit is "
                f"{mebibytes(self.limit)}")

    def has_room(self, total: int) -> bool:
        """Tells whether a stream that was paused may go on."""
        return not self.limit or total <= self.limit * _ROOM

    def note_ended(self, total: int) -> None:
        """Takes note that queries were ended at this measurement: what they had is given back in a while."""
        self._level = max(self._level, total * _GROWN)

    def decide(
        self, total: int, workers: Mapping[WorkerPlace, int], holdings: Sequence[Holding]
    ) -> tuple[Holding, str] | None:
        """Returns what to pause, if anything, and why.

        `total`: bytes of all processes, `workers`: of each worker; `holdings`: of all streams that aren't paused.
        """
        if not self.limit or total <= self.limit:
            self._level = self.limit
            return None
        if total <= self._level or not holdings:
            return None
        self._level = total * _GROWN
        place = max({holding.place for holding in holdings}, key=lambda place: (workers.get(place, 0), str(place)))
        most = max((holding for holding in holdings if holding.place == place),
                   key=lambda holding: (holding.nbytes, holding.stream_id))
        name = quote_identifier(most.stream)
        return most, (
            f"{self.shortage(total)}; of them worker {place} has the most, {mebibytes(workers.get(place, 0))}, and "
            f"there this stream: {mebibytes(most.nbytes)} of state and rows in queues; it goes on by itself when "
            f"there is room, or by RESUME STREAM {name}")
