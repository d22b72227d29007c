"""How a sink task sends notifications: one sink writer per address, and counts of what it has sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.clock import Clock
from penstock.common.connection import OpenedConnection
from penstock.common.quantities import MIB
from penstock.tasks.compute.id_table import Numbers
from penstock.tasks.external.emit.async_sink_writer import AsyncSinkWriter, Delivery, Outage
from penstock.tasks.external.notify.notify_target import NotifySender, NotifyTarget, open_sender
from penstock.tasks.external.notify.window_events import WindowEvents
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.numbered_children import NumberedChildren
from penstock.tasks.protocol.task_status import NotifyCounts

WAITING_MAX, WAITING_BYTES_MAX = 10_000, 16 * MIB
"""So many events, and bytes of them, wait for one address at most that may be dropped (ON_FAILURE DROP); further ones
are."""
_GIVE_UP_AFTER_S = 10.0
_TIMEOUT = "10s"

OpenSender = Callable[[OpenedConnection], NotifySender]


class _Dropped:
    """Counts the events that are given up (a sink writer's `DeadResults`)."""

    def __init__(self) -> None:
        self.events = 0
        self.error = ""

    def keep(self, rows: pa.RecordBatch, message: str) -> None:
        self.events += rows.num_rows
        self.error = message


class _Address:
    """One address: its sink writer, and the events of the deliveries that it has."""

    def __init__(self, sink_writer: AsyncSinkWriter, dropped: _Dropped | None) -> None:
        self.sink_writer = sink_writer
        self.dropped = dropped
        self.sent = 0
        self.given = 0
        self.waiting = 0
        self._waiting_bytes = 0
        self._deliveries: deque[tuple[int, int]] = deque()  # events, and their bytes
        self._done = 0
        self._given_up = 0
        self.error = ""

    def give(self, events: pa.RecordBatch) -> None:
        """Has events delivered. What may be dropped is if too much waits already."""
        room = self._room(events)
        if self.dropped is not None and events.num_rows > room:
            self.dropped.keep(events.slice(room), self.error or "events come faster than they can be sent")
            self._given_up = self.dropped.events
            events = events.slice(0, room)
        if events.num_rows:
            self.given += 1
            self.waiting += events.num_rows
            self._waiting_bytes += events.nbytes
            self._deliveries.append((events.num_rows, events.nbytes))
            self.sink_writer.put(Delivery(self.given, events))

    def _room(self, events: pa.RecordBatch) -> int:
        """Returns how many of some events may wait, too; one may that is large if none waits."""
        sizes = np.cumsum(pc.binary_length(events.column(0)).to_numpy()) + self._waiting_bytes
        fitting = int(np.searchsorted(sizes, WAITING_BYTES_MAX, "right"))
        return min(WAITING_MAX - self.waiting, fitting if self.waiting else max(fitting, 1))

    def look(self) -> int:
        """Returns how many deliveries are done."""
        done = self.sink_writer.check()
        outage = self.sink_writer.outage
        if outage is not None:
            self.error = outage.reason
        while self._done < done:
            self._done += 1
            events, nbytes = self._deliveries.popleft()
            self.waiting -= events
            self._waiting_bytes -= nbytes
            self.sent += events
        if self.dropped is not None and self.dropped.events > self._given_up:
            self.sent -= self.dropped.events - self._given_up
            self._given_up = self.dropped.events
            self.error = self.dropped.error
        return done


class Notifier:
    """Takes the result blocks that one sink task is about to write, and tells of the windows in them.

    With ON_FAILURE PAUSE a write counts as done when all addresses have its events, too. So a checkpoint covers only
    events that were sent, and a restart sends the rest: at least once, with the same ids. With DROP nothing waits.
    """

    def __init__(self, events: WindowEvents, addresses: Sequence[_Address], clock: Clock, *, drops: bool) -> None:
        self._events = events
        self._addresses = addresses
        self._clock = clock
        self._drops = drops
        self._writes: deque[tuple[int, ...]] = deque()  # how many deliveries of each address must be done
        self._acknowledged = 0
        self._blocks: list[str] = []

    def take(self, block: pa.RecordBatch, places: Numbers, children: NumberedChildren) -> None:
        """Takes the events of a block that belongs to the next write."""
        self._blocks += self._events.of(block, places, children, self._clock.now_ms())

    def take_fired(self, fired: pa.Table, children: NumberedChildren) -> None:
        """Takes the events of windows that are computed; `fired`: see `FireRequest`."""
        self._blocks += self._events.of_fired(fired, children, self._clock.now_ms())

    def submit(self) -> None:
        """Sends the events that were taken; their write is submitted at the same time."""
        taken, self._blocks = self._blocks, []
        if taken:
            rows = pa.record_batch([pa.array(taken, pa.string())], names=["event"])
            for address in self._addresses:
                address.give(rows)
        self._writes.append(tuple(0 if self._drops else address.given for address in self._addresses))

    def acknowledged(self) -> int:
        """Returns of how many writes, from the first one on, everybody was told who must be."""
        done = [address.look() for address in self._addresses]
        while self._writes and all(map(int.__ge__, done, self._writes[0])):
            self._writes.popleft()
            self._acknowledged += 1
        return self._acknowledged

    @property
    def outage(self) -> Outage | None:
        """Why events don't arrive that writes wait for, or None."""
        if self._drops:
            return None
        return next((address.sink_writer.outage for address in self._addresses if address.sink_writer.outage), None)

    @property
    def next_try(self) -> float | None:
        """When `acknowledged` should be called even if nothing changed, in monotonic time."""
        tries = [address.sink_writer.next_try for address in self._addresses]
        return min((at for at in tries if at is not None), default=None)

    @property
    def counts(self) -> NotifyCounts:
        addresses = self._addresses
        return NotifyCounts(
            sum(address.sent for address in addresses),
            sum(address.dropped.events for address in addresses if address.dropped is not None),
            sum(address.waiting for address in addresses),
            next((address.error for address in addresses if address.error), ""))

    def try_now(self) -> None:
        """Tries again at once."""
        for address in self._addresses:
            address.sink_writer.try_now()

    def start(self, name: str) -> None:
        """Delivers in threads from now on."""
        for number, address in enumerate(self._addresses):
            address.sink_writer.start(f"{name} {number}")

    def close(self) -> None:
        for address in self._addresses:
            address.sink_writer.close()


def notifier_of(
    deployment: StreamDeployment, clock: Clock, wake: Callable[[], None], open_url: OpenSender = open_sender
) -> Notifier:
    """Returns the notifier of a sink task of a stream with NOTIFY, which isn't started."""
    notify = deployment.plan.notify
    assert notify is not None
    drops = notify.on_failure == "drop"
    addresses = []
    for url in notify.urls:
        connection = OpenedConnection("of NOTIFY", "webhook", {"url": url, "timeout": _TIMEOUT}, 1)
        dropped = _Dropped() if drops else None

        def open_target(connection: OpenedConnection, known: bool) -> NotifyTarget:
            return NotifyTarget(open_url(connection), deployment.name, clock.now_ms)

        addresses.append(_Address(
            AsyncSinkWriter(open_target, connection, clock, wake, dead=dropped, give_up_after_s=_GIVE_UP_AFTER_S),
            dropped))
    return Notifier(WindowEvents(deployment.plan, deployment.name), addresses, clock, drops=drops)
