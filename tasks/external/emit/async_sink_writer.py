"""Delivers results to an external target, in order. Tries again until it takes them, and says why it doesn't."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.common.connection import OpenedConnection
from penstock.common.errors import InternalError, PenstockError, RowRefusedError, StaleAttemptError
from penstock.common.logging import logger
from penstock.tasks.external.emit.result_events import time_text
from penstock.tasks.external.emit.sent_record import SentRecord

_log = logger(__name__)
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """Rows, as `ExternalRows.of` makes them, that a target takes as a whole or not at all.

    `number` tells it from all others of its task and grows from one to the next. A delivery that comes again has the
    same number and the same rows, unless numbers are counted by attempts (`DirectWriter`). `digest` tells other rows,
    also where some of them go to the DLQ; empty where nobody asks for it.
    """

    number: int
    rows: pa.RecordBatch
    digest: str = ""


class ExternalTarget(Protocol):
    """One kind of target, reached by one connection. One thread calls it, and may have to wait."""

    def deliver(self, delivery: Delivery) -> None:
        """Returns once the target has the delivery durably.

        Raises RowRefusedError for a row that it will never take, StaleAttemptError if a later attempt writes there,
        and other PenstockErrors for what may be repaired. Nothing of the delivery counts then, or a later try replaces
        it, unless the target's guarantee is at least once.
        """
        ...

    def close(self) -> None: ...


class DeadResults(Protocol):
    """Where results go that a target doesn't take."""

    def keep(self, rows: pa.RecordBatch, message: str) -> None:
        """Returns once the rows are kept durably."""
        ...


def delay_after(failures: int) -> float:
    """Returns how many seconds after so many failures in a row the next try is."""
    return min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(failures - 1, 30))


@dataclass(frozen=True, slots=True)
class Outage:
    """Why nothing is delivered. `next_try` is monotonic, the other times are wall clock in milliseconds."""

    reason: str
    since_ms: int
    tries: int
    next_try: float
    next_try_ms: int

    @classmethod
    def after(cls, before: Outage | None, reason: str, clock: Clock) -> Outage:
        """Returns what there is after another failure; `before`: after the one before it, if that was one."""
        now_ms, tries = clock.now_ms(), 1 if before is None else before.tries + 1
        delay = delay_after(tries)
        return cls(reason, now_ms if before is None else before.since_ms, tries, clock.monotonic() + delay,
                   now_ms + round(delay * 1000))

    def ends_now(self, clock: Clock) -> Outage:
        """Returns it without a wait for the next try."""
        return replace(self, next_try=clock.monotonic(), next_try_ms=clock.now_ms())

    def __str__(self) -> str:
        tries = "once" if self.tries == 1 else f"{self.tries} times"
        return (f"{self.reason}; tried {tries} since {time_text(self.since_ms, 1000)}, "
                f"next at {time_text(self.next_try_ms, 1000)}")


class AsyncSinkWriter:
    """Holds what is to be delivered, and delivers it: in a thread of its own, or where `turn` is called."""

    def __init__(
        self,
        open_target: Callable[[OpenedConnection, bool], ExternalTarget],
        connection: OpenedConnection,
        clock: Clock,
        wake: Callable[[], None],
        *,
        dead: DeadResults | None = None,
        sent: SentRecord | None = None,
        give_up_after_s: float = 0.0,
    ) -> None:
        """`open_target` takes the connection, and whether the target has taken a delivery before, also of earlier
        attempts. `wake` is called after each delivery and each failure. With `dead`, a result that is refused goes
        there at once, and what can't be delivered at all after `give_up_after_s` seconds of trying. `sent` is told of
        each delivery before it counts as done."""
        self._open_target = open_target
        self._connection = connection
        self._clock = clock
        self._wake = wake
        self._dead = dead
        self._sent = sent
        self._give_up_after_s = give_up_after_s
        self._target: ExternalTarget | None = None
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._waiting: deque[Delivery] = deque()
        self._closing = False
        self._reopen = False
        self._since: float | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self.outage: Outage | None = None
        self.delivered = 0
        self.known = False
        """Whether the target has ever taken a delivery."""

    # -- by the task's thread --------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Delivers in a thread from now on; without it, `turn` must be called."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, delivery: Delivery) -> None:
        """Takes a delivery over."""
        self._waiting.append(delivery)
        self._changed.set()

    def check(self) -> int:
        """Returns how many deliveries are done; raises what no further try would help with."""
        if self._thread is None:
            self.turn()
        if self._failure is not None:
            raise self._failure
        return self.delivered

    def use(self, connection: OpenedConnection) -> None:
        """Delivers by another version of the connection from now on, and tries at once."""
        with self._lock:
            self._connection = connection
            self._reopen = True
        self.try_now()

    def try_now(self) -> None:
        """Doesn't wait for the next try any longer."""
        outage = self.outage
        if outage is not None:
            self._since = None
            self.outage = outage.ends_now(self._clock)
        self._changed.set()

    @property
    def next_try(self) -> float | None:
        """When `turn` should be called, in monotonic time; None: nothing waits, or a thread looks after it."""
        if self._thread is not None or not self._waiting:
            return None
        return None if self.outage is None else self.outage.next_try

    def close(self) -> None:
        """Ends the thread once it has done what it is at; doesn't wait for that."""
        self._closing = True
        self._changed.set()
        if self._thread is None:
            self._close_target()

    # -- delivering: by one thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._changed.clear()
            if self.turn():
                continue
            outage = self.outage
            if not self._waiting or outage is None or self._failure is not None:
                self._changed.wait()
            else:
                self._clock.wait(self._changed, max(0.0, outage.next_try - self._clock.monotonic()))
        self._close_target()

    def turn(self) -> bool:
        """Tries the next delivery if it is due; returns whether it did anything."""
        if self._failure is not None or not self._waiting:
            return False
        if self.outage is not None and self._clock.monotonic() < self.outage.next_try:
            return False
        try:
            self._deliver(self._waiting[0])
        except (StaleAttemptError, InternalError) as error:
            self._fail(error)
        except PenstockError as error:
            self._note_outage(error)
        except Exception as error:  # noqa: BLE001 - a thread has nobody above it
            _log.exception("a delivery failed")
            self._fail(error)
        else:
            self._done()
        self._wake()
        return True

    def _deliver(self, delivery: Delivery) -> None:
        with self._lock:
            connection, reopen, self._reopen = self._connection, self._reopen, False
        if reopen:
            self._close_target()
        while delivery.rows.num_rows:
            try:
                if self._target is None:
                    self._target = self._open_target(connection, self.known)
                self._target.deliver(delivery)
            except RowRefusedError as error:
                if self._dead is None:
                    raise
                rows = delivery.rows
                self._give_up(self._dead, rows.slice(error.row, 1), str(error))
                kept = [n for n in range(rows.num_rows) if n != error.row]
                delivery = replace(delivery, rows=rows.take(pa.array(kept, pa.int64())))
                self._waiting[0] = delivery
            else:
                if self._sent is not None:
                    self._sent.note(delivery.rows)
                return

    def _give_up(self, dead: DeadResults, rows: pa.RecordBatch, why: str) -> None:
        dead.keep(rows, why)
        if self._sent is not None:
            self._sent.note_refused(rows)

    def _note_outage(self, error: PenstockError) -> None:
        if not isinstance(error, RowRefusedError):
            self._close_target()  # whatever state it is in
        now = self._clock.monotonic()
        if self._since is None:
            self._since = now
        reason = f"connection {self._connection.name}: {error}"
        self.outage = Outage.after(self.outage, reason, self._clock)
        if self._dead is not None and now - self._since >= self._give_up_after_s:
            self._give_up(self._dead, self._waiting[0].rows, reason)
            self._finish_first()

    def _done(self) -> None:
        if self.outage is not None:
            _log.info("connection %s: taken again after %d tries", self._connection.name, self.outage.tries)
        self.outage = None
        self._since = None
        self.known = True
        self._finish_first()

    def _finish_first(self) -> None:
        self._waiting.popleft()
        self.delivered += 1

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._close_target()

    def _close_target(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            try:
                target.close()
            except PenstockError as error:
                _log.info("connection %s: closing failed: %s", self._connection.name, error)
