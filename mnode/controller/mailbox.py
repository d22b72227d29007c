"""The controller's thread: all events in order, one at a time, and helper threads for what takes long."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from penstock.common.clock import Clock
from penstock.common.errors import UnavailableError
from penstock.common.logging import logger
from penstock.mnode.controller.runtime_environment import RuntimeEnvironment

_log = logger(__name__)

T = TypeVar("T")

# Answers come within milliseconds; on a machine with no processor to spare, a late one is still better than none.
_ANSWER_TIMEOUT_S = 30.0
_HELPERS = 4


class Mailbox:
    """Takes events from any thread and handles them on one, which never waits for anything else.

    Construct, `open`, `close`. What takes long is given to `helper`, and comes back by `post`.
    """

    def __init__(self, clock: Clock, environment: RuntimeEnvironment) -> None:
        self._clock = clock
        self._environment = environment
        self._inbox: deque[Callable[[], None]] = deque()
        self._flag = threading.Event()
        self._closed = False
        self._helpers = environment.pool("controller helper", _HELPERS)
        self._thread: threading.Thread | None = None
        self._tick: Callable[[], None]
        self._next_deadline: Callable[[], float | None]

    def open(self, tick: Callable[[], None], next_deadline: Callable[[], float | None]) -> None:
        """Begins to handle events. `tick` does what is due by time; `next_deadline` returns when (monotonic seconds)
        something will be, None for never.
        """
        self._tick, self._next_deadline = tick, next_deadline
        self._thread = self._environment.launch("stream controller", self._run)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Ends the thread. Questions raise UnavailableError from now on."""
        self._closed = True
        self._flag.set()
        if self._thread is not None:
            self._thread.join()

    def end_helpers(self) -> None:
        """Waits for helper threads; what they haven't begun is dropped."""
        self._helpers.shutdown(wait=True, cancel_futures=True)

    # --- from any thread -----------------------------------------------------------------------------------------

    def post(self, action: Callable[[], None]) -> None:
        """Has the thread perform an action, after those before it."""
        self._inbox.append(action)
        self._flag.set()

    def ask(self, question: Callable[[], T]) -> T:
        """Has the thread answer a question; raises what it raises, or UnavailableError if the thread is gone."""
        answer: Future[T] = Future()

        def reply() -> None:
            try:
                answer.set_result(question())
            except Exception as error:  # noqa: BLE001  # raised again where the question was asked
                answer.set_exception(error)

        if self._closed:
            raise UnavailableError("the engine is closed")
        self.post(reply)
        try:
            return self.result(answer, _ANSWER_TIMEOUT_S)
        except FutureTimeoutError:
            raise UnavailableError("the stream controller hasn't answered for "
                                   f"{_ANSWER_TIMEOUT_S:.0f} s; the statement may still be carried out") from None

    def result(self, future: Future[T], timeout_s: float) -> T:
        """Waits for what the thread will have done. Raises what it raises, or `concurrent.futures.TimeoutError`."""
        return self._environment.result(future, timeout_s)

    def helper(self, work: Callable[..., None], *arguments: Any) -> None:
        """Runs `work` on a helper thread."""
        self._helpers.submit(work, *arguments)

    # --- the thread ----------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether something has come in that `turn` would handle, besides what is due by time."""
        return bool(self._inbox)

    def turn(self) -> None:
        """Handles everything that has come in, and what is due; the thread's body."""
        while self._inbox:
            self._guard(self._inbox.popleft())
        self._guard(self._tick)

    def _run(self) -> None:
        while not self._closed:
            self._flag.clear()
            self.turn()
            self._wait()

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # noqa: BLE001
            # A defect in the handling of one event must not take all streams along; it is told with its story.
            _log.exception("the stream controller could not handle an event")

    def _wait(self) -> None:
        deadline = self._next_deadline()
        if deadline is None:
            self._flag.wait()
            return
        timeout = deadline - self._clock.monotonic()
        if timeout > 0:
            self._clock.wait(self._flag, timeout)
