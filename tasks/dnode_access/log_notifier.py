"""Wakes the streams of a worker when the log of the vnode that they follow has grown by records that concern them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.common.clock import Clock
from penstock.common.logging import logger

_log = logger(__name__)

#: How long it waits for news while streams are at work, and while none is.
_WAIT_S, _IDLE_WAIT_S = 0.25, 1.0
#: A stream that no record concerns reads on after so long all the same, so that its position in the log moves on;
#: where streams gather after so many rounds, but after the longest rest at the latest.
_REST_S, _REST_ROUNDS, _LONGEST_REST_S = 0.05, 8, 5.0


class News(Protocol):
    """What is followed; see `WalNews`."""

    @property
    def version(self) -> int: ...

    def wait(self, timeout_s: float) -> bool: ...

    def look(self) -> frozenset[int] | None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Follower:
    table_uids: frozenset[int]
    wake: Callable[[], None]


@dataclass(slots=True)
class _Followed:
    news: News
    followers: dict[int, _Follower] = field(default_factory=dict)
    behind: set[int] = field(default_factory=set)  # streams that were not woken for what is there
    rest_until: float = 0.0


class WalNotifier:
    """A thread per log, which sleeps until the log's writer wakes it.

    A vnode's log holds the records of all of its tables, results among them: if each woke every stream, streams would
    mostly be busy with waking up. Where the system can't wake, the thread looks at the log every `interval_s`.
    """

    def __init__(self, clock: Clock, interval_s: float, after_look: Callable[[], bool] = lambda: False,
                 rest_s: Callable[[], float] = lambda: 0.0) -> None:
        """`after_look` is called now and then, and tells whether streams are at work: then at least a few times per
        second. `rest_s` tells how long those who were woken care for no more news."""
        self._clock = clock
        self._after_look = after_look
        self._rest_s = rest_s
        self._interval_s = interval_s
        self._followed: dict[int, _Followed] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def follow(self, vgroup_id: int, stream_id: int, table_uid: int, open_news: Callable[[], News],
               wake: Callable[[], None]) -> None:
        """Calls `wake` at once, whenever the vnode's log has records of the table or for everybody, and now and then
        while there are others. A stream may follow several tables of a vnode."""
        with self._lock:
            follower = _Follower(frozenset([table_uid]), wake)
            followed = self._followed.get(vgroup_id)
            if followed is not None:
                known = followed.followers.get(stream_id)
                if known is not None and known.wake == wake:
                    follower = _Follower(known.table_uids | follower.table_uids, wake)
                followed.followers[stream_id] = follower
            else:
                followed = self._followed[vgroup_id] = _Followed(open_news(), {stream_id: follower})
                threading.Thread(
                    target=self._run, args=(followed,), name=f"wal notifier {vgroup_id}", daemon=True).start()
        wake()

    def unfollow(self, stream_id: int) -> None:
        with self._lock:
            for vgroup_id, followed in list(self._followed.items()):
                followed.followers.pop(stream_id, None)
                if not followed.followers:
                    del self._followed[vgroup_id]

    def stop(self) -> None:
        """Lets all threads end within a moment."""
        self._stopping.set()

    def _run(self, followed: _Followed) -> None:
        at_work = True
        while followed.followers and not self._stopping.is_set():
            try:
                patience_s = _WAIT_S if at_work else _IDLE_WAIT_S
                if followed.behind:
                    patience_s = min(patience_s, max(_REST_S, followed.rest_until - self._clock.monotonic()))
                if not followed.news.wait(patience_s):
                    self._clock.wait(self._stopping, self._interval_s)
                woken = self._look(followed)
                at_work = self._after_look()
                if woken and (rest_s := self._rest_s()):
                    self._clock.wait(self._stopping, rest_s)
            except Exception:  # noqa: BLE001
                # The tasks' own readers meet the same trouble and fail with a better story; keep the others going.
                _log.exception("the end of a log could not be read")
                self._clock.wait(self._stopping, _WAIT_S)
        followed.news.close()

    def _look(self, followed: _Followed) -> bool:
        """Wakes whom news concern; returns whether they concern anybody."""
        before = followed.news.version
        tables = followed.news.look()
        with self._lock:
            followers = dict(followed.followers)
        now = self._clock.monotonic()
        if tables is None:
            woken = set(followers)
        else:
            woken = {stream_id for stream_id, follower in followers.items()
                     if not follower.table_uids.isdisjoint(tables)}
            if followed.news.version != before:
                if not followed.behind:
                    followed.rest_until = now + max(_REST_S, min(_REST_ROUNDS * self._rest_s(), _LONGEST_REST_S))
                followed.behind |= followers.keys() - woken
            if followed.behind and now >= followed.rest_until:
                woken |= followed.behind & followers.keys()
        followed.behind -= woken
        followed.behind &= followers.keys()
        for stream_id in woken:
            followers[stream_id].wake()
        return bool(woken)
