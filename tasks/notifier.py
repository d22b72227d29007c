"""Wakes the streams of a worker when the log of the vnode that they follow has grown; reads no records."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.common.clock import Clock
from penstock.common.logging import logger

_log = logger(__name__)

QUIET_AFTER_S = 1.0
QUIET_FACTOR = 10.0


@dataclass(slots=True)
class _Followed:
    probe: Callable[[], int]
    version: int = -1
    wakes: dict[int, Callable[[], None]] = field(default_factory=dict)


class WalNotifier:
    """One thread that polls the acknowledged ends of logs.

    It looks every `interval_s` while something arrives, and ten times less often after a second of quiet. Shared
    memory has no wake-up of its own; a look costs some microseconds.
    """

    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._followed: dict[int, _Followed] = {}
        self._lock = threading.Lock()
        self._active = threading.Event()
        self._stopping = threading.Event()
        self._last_growth = clock.monotonic()
        self._thread = threading.Thread(target=self._run, name="wal notifier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def follow(
        self, vgroup_id: int, stream_id: int, probe: Callable[[], int], wake: Callable[[], None]
    ) -> None:
        """Calls `wake` whenever `probe`, which returns the log's acknowledged version, returns another one."""
        with self._lock:
            self._followed.setdefault(vgroup_id, _Followed(probe)).wakes[stream_id] = wake
            self._active.set()

    def unfollow(self, stream_id: int) -> None:
        with self._lock:
            for vgroup_id, followed in list(self._followed.items()):
                followed.wakes.pop(stream_id, None)
                if not followed.wakes:
                    del self._followed[vgroup_id]
            if not self._followed and not self._stopping.is_set():
                self._active.clear()

    def look(self) -> None:
        """Looks at all logs once."""
        with self._lock:
            followed = [(f, list(f.wakes.values())) for f in self._followed.values()]
        for log, wakes in followed:
            version = log.probe()
            if version != log.version:
                log.version = version
                self._last_growth = self._clock.monotonic()
                for wake in wakes:
                    wake()

    def interval_s(self) -> float:
        """Returns how long to wait until the next look."""
        quiet = self._clock.monotonic() - self._last_growth > QUIET_AFTER_S
        return self._interval_s * (QUIET_FACTOR if quiet else 1.0)

    def stop(self) -> None:
        with self._lock:
            self._stopping.set()
            self._active.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._active.wait()
            try:
                self.look()
            except Exception:  # noqa: BLE001
                # The tasks' own readers meet the same trouble and fail with a better story; keep the others going.
                _log.exception("the end of a log could not be read")
            self._clock.wait(self._stopping, self.interval_s())
