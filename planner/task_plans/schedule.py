"""When PERIOD fires: instants in milliseconds since the epoch, by the calendar of a time zone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Schedule:
    """Instants that lie `period_ms` apart.

    Of less than a day they are counted anew from each midnight, plus `offset_ms`: the last step of a day may be
    shorter. Longer ones are counted from the midnight of the day of `created_ms`, by what clocks show: an hour that
    summer time skips or repeats moves none.
    """

    period_ms: int
    offset_ms: int
    time_zone: str
    created_ms: int

    def after(self, ms: int) -> int:
        """Returns the first instant later than this one."""
        return next(instant for instant in self._from(ms) if instant > ms)

    def before(self, ms: int) -> int:
        """Returns the last instant earlier than this one; the schedule goes on into the past."""
        last = None
        # An hour of summer time may lie between two that are days apart.
        for instant in self._from(ms - self.period_ms - (0 if self.period_ms < DAY_MS else DAY_MS)):
            if instant >= ms:
                break
            last = instant
        assert last is not None
        return last

    def until(self, ms: int) -> int:
        """Returns the last instant that isn't later than this one."""
        return self.before(ms + 1)

    def between(self, first: int, last: int, most: int = 1_000_000) -> int:
        """Returns how many instants lie between two of them, `most` at most."""
        count, instant = 0, self.after(first)
        while instant < last and count < most:
            count, instant = count + 1, self.after(instant)
        return count

    def _from(self, ms: int) -> Iterator[int]:
        """Yields instants in order, from one that is not later than this one."""
        return self._within_days(ms) if self.period_ms < DAY_MS else self._by_days(ms)

    def _within_days(self, ms: int) -> Iterator[int]:
        day = self._day(ms) - timedelta(days=2)
        base = self._midnight(day)
        while True:
            day += timedelta(days=1)
            end = self._midnight(day)
            yield from range(base + max(0, (ms - base) // self.period_ms - 1) * self.period_ms, end, self.period_ms)
            base = end

    def _by_days(self, ms: int) -> Iterator[int]:
        start = datetime.combine(self._day(self.created_ms), datetime.min.time()) + timedelta(
            milliseconds=self.offset_ms)
        period = timedelta(milliseconds=self.period_ms)
        passed = datetime.fromtimestamp(ms / 1000, ZoneInfo(self.time_zone)).replace(tzinfo=None) - start
        step = passed // period - 1
        while True:
            yield self._instant(start + step * period)
            step += 1

    def _day(self, ms: int) -> date:
        return datetime.fromtimestamp(ms / 1000, ZoneInfo(self.time_zone)).date()

    def _midnight(self, day: date) -> int:
        return self._instant(datetime.combine(day, datetime.min.time())) + self.offset_ms

    def _instant(self, shown: datetime) -> int:
        moment = shown.replace(tzinfo=ZoneInfo(self.time_zone)).astimezone(UTC)
        return round(moment.timestamp() * 1000)
