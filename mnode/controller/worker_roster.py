"""The workers that have joined, by group and place: how each is reached, and when it was heard last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.common.clock import Clock
from penstock.common.config import LOOPBACK
from penstock.mnode.controller.mailbox import Mailbox
from penstock.mnode.controller.runtime_environment import WorkerLine
from penstock.tasks.protocol import control

SILENCE_CHECK_S = 0.5
_CROWD_CHANGE = 0.1
_WHERE_FULL = 2.0


@dataclass(slots=True)
class JoinedWorker:
    """A worker that has said Hello. `heard_at`: monotonic seconds. `gathering_s`, `busy`: as its last heartbeat has it.
    `crowd`: how crowded its machine is, as it was told."""

    connection: WorkerLine
    heard_at: float
    gathering_s: float = 0.0
    busy: float = 0.0
    crowd: float = 1.0

    @property
    def machine(self) -> str:
        """What workers on the same machine have in common."""
        return self.connection.exchange_address.rpartition(":")[0]


class WorkerRoster:
    """All workers that are there. `timeout_s`: how long one may be silent."""

    def __init__(self, clock: Clock, mailbox: Mailbox, timeout_s: float, is_full: Callable[[], bool]) -> None:
        """`is_full`: whether the processors of this machine have next to nothing to spare."""
        self._clock = clock
        self._is_full = is_full
        self._mailbox = mailbox
        self._timeout_s = timeout_s
        self._groups: dict[str, dict[int, JoinedWorker]] = {}
        #: by machine, and there by group and place: each heartbeat looks at those of one machine
        self._machines: dict[str, dict[tuple[str, int], JoinedWorker]] = {}
        self._checked_at = clock.monotonic()

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __iter__(self) -> Iterator[tuple[str, int, JoinedWorker]]:
        """Yields group, place in it, and worker."""
        for group, workers in self._groups.items():
            for index, worker in workers.items():
                yield group, index, worker

    def group(self, name: str) -> dict[int, JoinedWorker]:
        """Returns the workers of a group by their places."""
        return self._groups.get(name, {})

    def pids(self) -> dict[str, dict[int, int]]:
        """Returns the process ids of the workers by group and place."""
        return {group: {index: worker.connection.pid for index, worker in workers.items()}
                for group, workers in self._groups.items()}

    def join(self, connection: WorkerLine) -> None:
        workers = self._groups.setdefault(connection.group, {})
        if connection.index in workers:
            self._leave_machine(workers[connection.index])
        worker = workers[connection.index] = JoinedWorker(connection, self._clock.monotonic())
        self._machines.setdefault(worker.machine, {})[connection.group, connection.index] = worker

    def of(self, connection: WorkerLine) -> JoinedWorker | None:
        """Returns the worker at the other end of a connection; None if it isn't there any more, or another is."""
        worker = self.group(connection.group).get(connection.index)
        return worker if worker is not None and worker.connection is connection else None

    def send(self, group: str, message: control.MnodeMessage) -> None:
        """Sends a message to all workers of a group."""
        for worker in self.group(group).values():
            worker.connection.send(message)

    def tell_crowd(self, worker: JoinedWorker) -> None:
        """Tells a worker what the turns of all workers on its machine take, if that has changed by some percent.

        It counts twice where they share the machine with the engine, and nothing of it is left: what they take is taken
        from who writes rows, and from the engine, which has results to write for each turn.
        """
        busy = [other.busy for other in self._machines[worker.machine].values()]
        crowd = min(sum(busy) / worker.busy, float(len(busy))) if worker.busy > 0 else 1.0
        if worker.machine == LOOPBACK and self._is_full():
            crowd *= _WHERE_FULL
        if abs(crowd - worker.crowd) > _CROWD_CHANGE * worker.crowd:
            worker.crowd = crowd
            worker.connection.send(control.Crowded(crowd))

    def end(self, group: str) -> None:
        """Closes the connections of a group's workers, and has their processes killed."""
        for worker in self._groups.pop(group, {}).values():
            self._leave_machine(worker)
            worker.connection.close()
            self._mailbox.helper(worker.connection.kill)

    def next_check(self) -> float | None:
        """Returns when (monotonic seconds) `check_silence` is due; None: there is nobody to look after."""
        return self._checked_at + SILENCE_CHECK_S if self._groups else None

    def check_silence(self, lost: Callable[[str, int, str], None]) -> None:
        """Tells of each worker that has been silent for too long: group, place, what happened."""
        now = self._clock.monotonic()
        if now < self._checked_at + SILENCE_CHECK_S:
            return
        self._checked_at = now
        for group, index, worker in list(self):
            if now - worker.heard_at > self._timeout_s and self.of(worker.connection) is worker:
                lost(group, index, f"no heartbeat for {self._timeout_s:g} s")

    def _leave_machine(self, worker: JoinedWorker) -> None:
        there = self._machines[worker.machine]
        del there[worker.connection.group, worker.connection.index]
        if not there:
            del self._machines[worker.machine]
