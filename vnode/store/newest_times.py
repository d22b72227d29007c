"""The newest time of each child table of one storage table, as sorted columns. Guarded by `TableStore.lock`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.common.masks import all_set
from penstock.vnode.store.sorted_keys import I64, TS_MIN, U64, Bools, Index

_APPENDED_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class TimesBefore:
    """What a few rows are: all newer than what their child tables had (None), or of each the newest time before, which
    is its own if it takes the place of that row, else TS_MIN."""

    times: list[int] | None


class NewestTimes:
    """The greatest ts ever written to each child table, rows that were deleted since included.

    A child table is *certain* while the row at its newest time is known to be there, and *likely* while nothing is
    known that has taken it away: after a restart, too. What comes row by row is kept beside the columns until somebody
    asks for them.
    """

    def __init__(self) -> None:
        self._tuids: U64 = np.zeros(0, np.uint64)
        self._times: I64 = np.zeros(0, np.int64)
        self._certain: Bools = np.zeros(0, np.bool_)
        self._likely: Bools = np.zeros(0, np.bool_)
        self._appended: dict[int, int] = {}
        self._greatest = -1  # of `_tuids`

    def __len__(self) -> int:
        return len(self.tuids)

    @property
    def tuids(self) -> U64:
        self._settle()
        return self._tuids

    @property
    def times(self) -> I64:
        self._settle()
        return self._times

    def get(self, tuid: int) -> int | None:
        """Returns the newest time of one child table."""
        appended = self._appended.get(tuid)
        if appended is not None:
            return appended
        return self._in_columns(tuid)[0]

    def appended(self, tuid: int, time: int) -> None:
        """Takes over the time of a row that was written and is newer than all of its child table."""
        self._appended[tuid] = time
        if len(self._appended) > _APPENDED_MAX:
            self._settle()

    def verdict_on(self, tuids: Sequence[int], times: Sequence[int]) -> TimesBefore | None:
        """Returns what a few rows, sorted by key, are to those written before, if it is known without a look at these.

        None where it isn't: rows aren't sorted, or have a key twice; one is older than the newest of its child table,
        or has its time, and the row there may be gone. Goes row by row, which is cheapest for a few.
        """
        before: list[int] = []
        appends = certain = True
        last_tuid, last_time = -1, 0
        newest: int | None = None
        for tuid, time in zip(tuids, times, strict=True):
            if tuid != last_tuid:
                if tuid < last_tuid:
                    return None
                newest, certain = self._appended.get(tuid), True
                if newest is None:
                    newest, certain = self._in_columns(tuid)
            elif time <= last_time:
                return None
            if newest is None or time > newest:
                before.append(TS_MIN)
            elif certain and time == newest:
                before.append(newest)
                appends = False
            else:
                return None
            last_tuid, last_time = tuid, time
        return TimesBefore(None if appends else before)

    def _in_columns(self, tuid: int) -> tuple[int | None, bool]:
        """Returns the newest time of a child table, if the columns have it, and whether its row is certain."""
        if tuid > self._greatest:  # mostly it is a new one then
            return None, False
        place = int(self._tuids.searchsorted(np.uint64(tuid)))
        if self._tuids[place] != tuid:
            return None, False
        return int(self._times[place]), bool(self._certain[place])

    def taken(self, tuids: Iterable[int], times: Iterable[int]) -> None:
        """Takes over the times of rows that `verdict_on` knew all about."""
        self._appended.update(zip(tuids, times, strict=True))
        if len(self._appended) > _APPENDED_MAX:
            self._settle()

    def _settle(self) -> None:
        """Brings what came row by row into the columns."""
        if not self._appended:
            return
        tuids = np.fromiter(self._appended.keys(), np.uint64, len(self._appended))
        times = np.fromiter(self._appended.values(), np.int64, len(self._appended))
        self._appended = {}
        order = np.argsort(tuids)
        self.written(tuids[order], times[order])

    def of(self, tuids: U64) -> tuple[I64, Bools]:
        """Returns the newest time of each, TS_MIN for child tables without rows, and which of them are certain."""
        places, known = self._find(tuids)
        if not len(self._tuids):
            return np.full(len(tuids), TS_MIN, np.int64), known
        return np.where(known, self._times[places], TS_MIN), known & self._certain[places]

    def likely(self, tuids: U64) -> Bools:
        """Returns of which the row at the newest time is likely to be there."""
        places, known = self._find(tuids)
        return known & self._likely[places] if len(self._tuids) else known

    def written(self, tuids: U64, times: I64) -> None:
        """Takes over the newest times of rows that were written; `tuids` ascend, each once."""
        places, known = self._find(tuids)
        if not all_set(known):
            self._insert(tuids[~known])
            places, _ = self._find(tuids)
        newer = times >= self._times[places]
        if not all_set(newer):
            places, times = places[newer], times[newer]
        self._times[places] = times
        self._certain[places] = self._likely[places] = True

    def stored(self, tuids: U64, times: I64) -> None:
        """Takes over newest times of rows that may have been deleted since; `tuids` ascend, each once."""
        _, known = self._find(tuids)
        self._insert(tuids[~known])
        places, _ = self._find(tuids)
        self._likely[places[times >= self.times[places]]] = True
        self.times[places] = np.maximum(self.times[places], times)

    def deleted(self, tuids: U64 | None) -> None:
        """Notes that rows of these child tables (None: of any) may be gone."""
        if tuids is None:
            self._settle()
            self._certain[:] = self._likely[:] = False
            return
        places, known = self._find(tuids)
        self._certain[places[known]] = self._likely[places[known]] = False

    def forget(self, tuids: tuple[int, ...]) -> None:
        """Forgets child tables that were dropped."""
        places, known = self._find(np.array(tuids, np.uint64))
        kept: Bools = np.ones(len(self), np.bool_)
        kept[places[known]] = False
        self._tuids, self._times = self.tuids[kept], self.times[kept]
        self._certain, self._likely = self._certain[kept], self._likely[kept]
        self._greatest = int(self._tuids[-1]) if len(self._tuids) else -1

    def _find(self, tuids: U64) -> tuple[Index, Bools]:
        """Returns the place of each, and whether it is there; places of others are in range, but meaningless."""
        self._settle()
        own = self._tuids
        if not len(own):
            return np.zeros(len(tuids), np.intp), np.zeros(len(tuids), np.bool_)
        places = np.minimum(own.searchsorted(tuids), len(own) - 1)
        return places, own[places] == tuids

    def _insert(self, tuids: U64) -> None:
        if not len(tuids):
            return
        places = np.searchsorted(self._tuids, tuids)
        self._tuids = np.insert(self._tuids, places, tuids)
        self._times = np.insert(self._times, places, TS_MIN)
        self._certain = np.insert(self._certain, places, False)
        self._likely = np.insert(self._likely, places, False)
        self._greatest = int(self._tuids[-1])
