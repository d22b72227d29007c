"""The thread that gives copies of vnodes and of the catalog to other nodes, or gets them from the active one."""

from __future__ import annotations

import queue
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.common.clock import Clock
from penstock.common.fs import Fs
from penstock.common.logging import logger
from penstock.common.retries import Retries
from penstock.mnode.cluster.cluster_messages import CopyAnswer, CopyRequest
from penstock.mnode.dnode.vnode_copies import CopyReception, CopySources, named

_log = logger(__name__)
_MESSAGES_MAX = 64
_TURN_S = 0.2
_ASK_AGAIN_S = 2.0
_REST_S, _REST_MOST_S = 5.0, 15.0
_PAUSE_MOST_S = 5.0


class VnodeCopier:
    """Both sides of copies. `send` sends to a node or drops; `needed` returns the active node, if this one follows, and
    by log why it needs a copy; `put` has a folder become a vnode's, or the catalog's, or returns False if that can't be
    yet. Whatever they raise is logged, told by `problems`, and tried again.
    """

    def __init__(self, sources: CopySources, scratch: Path, fs: Fs, clock: Clock,
                 send: Callable[[int, CopyRequest | CopyAnswer], object],
                 needed: Callable[[], tuple[int | None, Mapping[int, str]]], put: Callable[[int, Path], bool]) -> None:
        self._sources = sources
        self._scratch = scratch
        self._fs = fs
        self._clock = clock
        self._send = send
        self._needed = needed
        self._put = put
        self._messages: queue.Queue[tuple[int, CopyRequest | CopyAnswer]] = queue.Queue(_MESSAGES_MAX)
        self._reception: CopyReception | None = None
        self._asked_at = float("-inf")
        self._begin_at = float("-inf")
        self._failed: int | None = None
        self._copying = Retries("what this node lacks can't be copied", clock, _log, _REST_S, _REST_MOST_S)
        self._turns = Retries("copies for or from other nodes wait", clock, _log, _TURN_S, _PAUSE_MOST_S)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-cluster-copies", daemon=True)

    @property
    def problems(self) -> list[str]:
        """What fails just now, for people."""
        return [one.problem for one in (self._copying, self._turns) if one.problem]

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def receive(self, node: int, message: CopyRequest | CopyAnswer) -> None:
        """Another node says something. What comes too fast is dropped: it is asked again."""
        try:
            self._messages.put_nowait((node, message))
        except queue.Full:
            _log.info("a message about copies of node %d is dropped: there are too many", node)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001  # it is told, and the thread goes on
                self._clock.wait(self._closed, self._turns.failed(error))
        self._give_up()
        self._sources.end_all()

    def _turn(self) -> None:
        active, wanted = self._needed()
        try:
            node, message = self._messages.get(timeout=_TURN_S)
        except queue.Empty:
            self._sources.end_idle()
            answer = None
        else:
            answer = self._handle(node, message, active)
        if not wanted:
            self._copying.succeeded()
        try:
            self._receive(active, wanted, answer)
        except Exception as error:  # noqa: BLE001  # it is told, and begun anew
            self._begin_at = self._clock.monotonic() + self._copying.failed(error)
            self._failed = None if self._reception is None else self._reception.log
            self._give_up()

    def _receive(self, active: int | None, wanted: Mapping[int, str], answer: CopyAnswer | None) -> None:
        """Goes on with the copy under way, or begins one."""
        reception = self._reception
        if reception is not None and answer is not None and reception.take(answer) and not reception.is_whole:
            self._ask(active)
        if reception is not None and (active is None or reception.log not in wanted):
            self._begin_at = self._clock.monotonic() + _REST_S
            self._give_up()
        elif reception is not None and reception.is_whole:
            self._finish(reception, active)
        elif reception is not None and self._clock.monotonic() - self._asked_at >= _ASK_AGAIN_S:
            self._ask(active)
        elif reception is None and active is not None and self._clock.monotonic() >= self._begin_at:
            # The catalog comes first: only with it is known which vnodes there are. What has just failed comes last.
            log = min(wanted, key=lambda one: (one == self._failed, one), default=None)
            if log is not None:
                _log.info("%s is copied from node %d: %s", named(log), active, wanted[log])
                folder = self._scratch / f"copy-{log}"
                self._reception = CopyReception(log, secrets.randbelow(1 << 62), folder, self._fs)
                self._ask(active)

    def _handle(self, node: int, message: CopyRequest | CopyAnswer, active: int | None) -> CopyAnswer | None:
        """Answers what another node asks; returns what the active one answers."""
        if isinstance(message, CopyAnswer):
            return message if node == active else None
        answer = None if active is not None else self._sources.answer(node, message)
        if answer is not None:
            self._send(node, answer)
        return None

    def _finish(self, reception: CopyReception, active: int | None) -> None:
        """Puts a copy that is whole in its place, now or in a later turn."""
        if self._put(reception.log, reception.finish()):
            _log.info("%s is a copy of node %s's now", named(reception.log), active)
            self._ask(active)
            self._reception = None
            self._copying.succeeded()

    def _ask(self, active: int | None) -> None:
        self._asked_at = self._clock.monotonic()
        if self._reception is not None and active is not None:
            self._send(active, self._reception.request())

    def _give_up(self) -> None:
        reception, self._reception = self._reception, None
        if reception is not None:
            reception.close()
