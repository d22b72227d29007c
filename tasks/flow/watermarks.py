"""The watermark of a task with several inputs: the least of those that aren't idle. It never goes back."""

from __future__ import annotations

from typing import Any


class Watermarks:
    """Keeps what each input said last. `current` is None until event time is known."""

    def __init__(self, inputs: int) -> None:
        self._ts: list[int | None] = [None] * inputs
        self._idle = [False] * inputs
        self._first: int | None = None  # the least that an input said when it first spoke
        self.current: int | None = None

    def update(self, input: int, ts: int | None, idle: bool) -> bool:
        """Takes over what an input says; returns whether `current` advanced.

        When all inputs are idle, the least of those that ever had rows counts: time doesn't advance by the clock.
        """
        known = self._ts[input]
        if ts is not None:
            self._ts[input] = ts if known is None else max(known, ts)
            if known is None:
                self._first = ts if self._first is None else min(self._first, ts)
        self._idle[input] = idle
        active = [self._ts[n] for n in range(len(self._ts)) if not self._idle[n]]
        if not active:
            active = [value for value in self._ts if value is not None]
        values = [value for value in active if value is not None]
        if not values or len(values) < len(active):
            return False
        least = min(values)
        if self.current is not None and least <= self.current:
            return False
        self.current = least
        return True

    @property
    def all_idle(self) -> bool:
        """Whether no input has anything to say about time."""
        return all(self._idle)

    def idle_inputs(self) -> list[int]:
        return [n for n, idle in enumerate(self._idle) if idle]

    def known(self) -> dict[int, int]:
        """Returns what the inputs said last, those that ever had rows."""
        return {n: ts for n, ts in enumerate(self._ts) if ts is not None}

    def advance(self, ts: int) -> bool:
        """Lets time go on to `ts` although no input says so; returns whether that is an advance."""
        if self.current is not None and ts <= self.current:
            return False
        self.current = ts
        return True

    def ahead(self, skew: int) -> list[int]:
        """Returns the inputs whose time is more than `skew` ahead of the slowest.

        One that has said nothing yet, and isn't idle, counts as being where the first began.
        """
        active = [ts for ts, idle in zip(self._ts, self._idle, strict=True) if not idle]
        known = [ts for ts in active if ts is not None]
        least = self._first if len(known) < len(active) else min(known, default=None)
        return [n for n, ts in enumerate(self._ts) if ts is not None and least is not None and ts > least + skew]

    def holding_back(self) -> list[int]:
        """Returns the inputs whose watermark is the least, or that have none yet and are not idle."""
        active = [n for n in range(len(self._ts)) if not self._idle[n]]
        silent = [n for n in active if self._ts[n] is None]
        if silent:
            return silent
        least = min((value for n in active if (value := self._ts[n]) is not None), default=None)
        return [n for n in active if self._ts[n] == least]

    def save(self) -> dict[str, Any]:
        return {"ts": self._ts, "idle": self._idle, "first": self._first, "current": self.current}

    def restore(self, saved: dict[str, Any]) -> None:
        self._ts, self._idle, self.current = list(saved["ts"]), list(saved["idle"]), saved["current"]
        self._first = saved.get("first")  # it begins anew over more vnodes
