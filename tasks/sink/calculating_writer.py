"""How a sink task hands over windows that a trigger has fired for, and hears that what they are for is computed."""

from __future__ import annotations

from collections import deque

import pyarrow as pa

from penstock.tasks.external.notify.window_notifier import Notifier
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.messages import ResultWrite, TaskId
from penstock.tasks.protocol.refreshing import FireRequest
from penstock.tasks.protocol.result_writers import ResultWriter


class CalculatingWriter:
    """A `ResultWriter` whose writes are windows: each is acknowledged once the engine has computed what it is for.

    One order is under way at a time; it is about all windows that were handed over by then, so that many are computed
    together while the engine is busy.
    """

    def __init__(
        self, task: TaskId, attempt: int, windows: ResultWriter, environment: TaskEnvironment, notifier: Notifier | None
    ) -> None:
        """`windows` takes the rows. `notifier`: who tells of windows, if anybody is to be told."""
        self._request = FireRequest(task, attempt)
        self._windows = windows
        self._environment = environment
        self._notifier = notifier
        self._children: deque[ResultWrite] = deque()
        self._asked = 0
        self._done = 0
        self._answer: pa.Table | None = None
        self._failure: Exception | None = None

    def submit(self, write: ResultWrite) -> None:
        """Hands windows over."""
        self._children.append(write)
        self._windows.submit(write)

    def acknowledged(self) -> int:
        """Returns for how many writes all is computed; raises what computing failed with as a whole."""
        if self._failure is not None:
            raise self._failure
        handed = self._windows.acknowledged()
        if handed > self._asked and self._asked == self._done:
            self._asked = handed
            self._environment.in_background(self._fire, f"calculation {self._request.task}")
        if self._answer is not None:
            answer, self._answer = self._answer, None
            self._tell(answer)
            self._done = self._asked
        return self._done

    def _fire(self) -> None:
        try:
            self._answer = self._environment.ask(self._request)
        except Exception as error:  # noqa: BLE001 - a thread has nobody above it: the task raises it
            self._failure = error
        self._environment.wake()

    def _tell(self, answer: pa.Table) -> None:
        writes = [self._children.popleft() for _ in range(self._asked - self._done)]
        if self._notifier is None:
            return
        self._notifier.take_fired(answer, writes[-1].children)
        for _ in writes:
            self._notifier.submit()
