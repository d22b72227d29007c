"""The copy of a table that a source task's rows look up in: how old it may be, and when it is read anew."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.common.connection import OpenedConnection
from penstock.common.errors import PenstockError
from penstock.common.logging import logger
from penstock.planner.task_plans.stream_plan import LookupPlan
from penstock.tasks.external.emit.async_sink_writer import Outage
from penstock.tasks.protocol.task_status import ConnectionHealth

_log = logger(__name__)

ReadTable = Callable[[LookupPlan, OpenedConnection | None], pa.Table]
"""Returns the columns of a table as the relation LOOKUP; may have to wait. Raises PenstockErrors."""
InBackground = Callable[[Callable[[], None], str], None]
"""Has something done that may have to wait, under a name: beside the caller, or at once."""


class LookupCopy:
    """Keeps one table. `current` is asked by the task's thread; reading happens beside it.

    Rows never meet a copy that was begun to be read longer than `freshness_s` ago. From half of that on it is read
    anew while the old one serves, so that a stream whose rows come all the time doesn't wait.
    """

    def __init__(
        self, plan: LookupPlan, connection: OpenedConnection | None, read: ReadTable, in_background: InBackground,
        freshness_s: float, clock: Clock, wake: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._connection = connection
        self._read = read
        self._in_background = in_background
        self._freshness_s = freshness_s
        self._clock = clock
        self._wake = wake
        self._copy: tuple[pa.Table, float] | None = None
        self._reading = False
        self._version = 0
        self._failure: Exception | None = None
        self.outage: Outage | None = None

    def current(self) -> pa.Table | None:
        """Returns a copy that is fresh enough; None while there is none, which it sees to.

        Raises what no further try would help with.
        """
        if self._failure is not None:
            raise self._failure
        now = self._clock.monotonic()
        copy = self._copy
        age = None if copy is None else now - copy[1]
        if age is None or age > self._freshness_s / 2:
            self._begin(now)
            copy = self._copy
        if copy is None or now - copy[1] > self._freshness_s:
            return None
        return copy[0]

    def use(self, connection: OpenedConnection) -> None:
        """Reads by another version of the connection from now on, and tries at once."""
        self._connection = connection
        self.try_now()

    def try_now(self) -> None:
        """Doesn't wait for the next try any longer."""
        outage = self.outage
        if outage is not None:
            self.outage = outage.ends_now(self._clock)

    @property
    def next_try(self) -> float | None:
        """When `current` should be called again, in monotonic time; None if nothing failed."""
        return None if self.outage is None or self._reading else self.outage.next_try

    @property
    def text(self) -> str:
        """What is looked up in."""
        return self._plan.text

    @property
    def health(self) -> ConnectionHealth | None:
        """How it fares with its connection; None without one, or before it was used."""
        if self._plan.connection is None or (self._copy is None and self.outage is None):
            return None
        return ConnectionHealth(self._plan.connection, self._version, "" if self.outage is None else str(self.outage))

    @property
    def memory_bytes(self) -> int:
        return 0 if self._copy is None else self._copy[0].nbytes

    def _begin(self, now: float) -> None:
        if self._reading or (self.outage is not None and now < self.outage.next_try):
            return
        self._reading = True
        self._in_background(self._fetch, f"look up in {self._plan.text}")

    def _fetch(self) -> None:
        begun, connection = self._clock.monotonic(), self._connection
        self._version = 0 if connection is None else connection.version
        try:
            table = self._read(self._plan, connection)
        except PenstockError as error:
            where = f"connection {self._plan.connection}: " if self._plan.connection is not None else ""
            self.outage = Outage.after(self.outage, f"{where}{error}", self._clock)
        except Exception as error:  # noqa: BLE001 - a thread has nobody above it: the task raises it
            _log.exception("reading %s failed", self._plan.text)
            self._failure = error
        else:
            self._copy = table, begun
            self.outage = None
        self._reading = False
        self._wake()
