"""What a thread does over and over: how long it waits after a failure, and what people are told of it."""

from __future__ import annotations

import logging

from penstock.common.clock import Clock
from penstock.common.errors import PenstockError

_LOG_AGAIN_S = 60.0


class Retries:
    """The failures of one thing that is tried again. Written by one thread, read by all.

    Pauses double from `first_s` to `most_s` seconds. What has failed counts until it has gone well (`succeeded`), or
    has not failed for `most_s` and 60 s more.
    """

    def __init__(self, what: str, clock: Clock, log: logging.Logger, first_s: float, most_s: float) -> None:
        """`what`: the beginning of a sentence that the reason ends, such as "node 2 can't be reached"."""
        self._what = what
        self._clock = clock
        self._log = log
        self._first_s = first_s
        self._most_s = most_s
        self._pause_s = 0.0
        self._failed: tuple[float, str] | None = None
        self._logged: tuple[float, str] = (float("-inf"), "")

    @property
    def problem(self) -> str:
        """What fails just now, for people; "" if nothing does."""
        failed = self._failed
        return "" if failed is None or self._is_over(failed[0]) else f"{self._what}: {failed[1]}"

    def failed(self, error: BaseException) -> float:
        """Notes a failure; returns for how many seconds to wait. What nobody foresaw is logged with its trace.

        The same failure again is logged once a minute.
        """
        now = self._clock.monotonic()
        foreseen = isinstance(error, PenstockError | OSError)
        text = str(error) if foreseen else f"{type(error).__name__}: {error}"
        grows = self._failed is not None and not self._is_over(self._failed[0])
        self._pause_s = min(self._most_s, 2 * self._pause_s) if grows else self._first_s
        self._failed = now, text
        if text != self._logged[1] or now - self._logged[0] >= _LOG_AGAIN_S:
            self._logged = now, text
            self._log.warning("%s: %s", self._what, text, exc_info=None if foreseen else error)
        return self._pause_s

    def succeeded(self) -> None:
        """It has gone well."""
        self._failed = None

    def _is_over(self, at: float) -> bool:
        return self._clock.monotonic() - at > self._most_s + _LOG_AGAIN_S
