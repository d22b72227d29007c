"""Wakes the streams of a worker when the log of the vnode that they follow has grown; reads no records."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.common.clock import Clock
from penstock.common.logging import logger

_log = logger(__name__)

_WAIT_S = 0.25


class Log(Protocol):
    """What is followed: a `WalReader` that nobody else uses."""

    @property
    def acknowledged_version(self) -> int: ...

    def wait(self, version: int, timeout_s: float) -> bool:
        """Waits until the acknowledged version isn't `version`; returns False if this system can't wait for that."""
        ...


@dataclass(slots=True)
class _Followed:
    log: Log
    version: int = -1
    wakes: dict[int, Callable[[], None]] = field(default_factory=dict)


class WalNotifier:
    """A thread per log, which sleeps until the log's writer wakes it.

    Where the system has no way for that, the thread looks at the log every `interval_s`.
    """

    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._followed: dict[int, _Followed] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def follow(self, vgroup_id: int, stream_id: int, log: Log, wake: Callable[[], None]) -> None:
        """Calls `wake` at once and whenever the acknowledged version of the vnode's log is another one."""
        with self._lock:
            followed = self._followed.get(vgroup_id)
            if followed is not None:
                followed.wakes[stream_id] = wake
            else:
                followed = self._followed[vgroup_id] = _Followed(log, wakes={stream_id: wake})
                threading.Thread(
                    target=self._run, args=(followed,), name=f"wal notifier {vgroup_id}", daemon=True).start()
        wake()

    def unfollow(self, stream_id: int) -> None:
        with self._lock:
            for vgroup_id, followed in list(self._followed.items()):
                followed.wakes.pop(stream_id, None)
                if not followed.wakes:
                    del self._followed[vgroup_id]

    def stop(self) -> None:
        """Lets all threads end within a moment."""
        self._stopping.set()

    def _run(self, followed: _Followed) -> None:
        while followed.wakes and not self._stopping.is_set():
            try:
                if not followed.log.wait(followed.version, _WAIT_S):
                    self._clock.wait(self._stopping, self._interval_s)
                self._look(followed)
            except Exception:  # noqa: BLE001
                # The tasks' own readers meet the same trouble and fail with a better story; keep the others going.
                _log.exception("the end of a log could not be read")
                self._clock.wait(self._stopping, _WAIT_S)

    def _look(self, followed: _Followed) -> None:
        version = followed.log.acknowledged_version
        if version == followed.version:
            return
        followed.version = version
        with self._lock:
            wakes = list(followed.wakes.values())
        for wake in wakes:
            wake()
